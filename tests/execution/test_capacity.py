"""A stage that doesn't fit into the machine is refused before it starts."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.harm import group_reason, parent_group
from benchwright.errors import GateRefused, Where
from benchwright.execution import capacity, cgroup
from benchwright.execution.capacity import MachineMemory, check_memory, machine_memory
from tests.support import require

MACHINE = MachineMemory(total_mb=10_000, available_mb=8_000)
LIMITED = MachineMemory(total_mb=10_000, available_mb=8_000, group_limit_mb=4_000)


def test_capacity_is_the_least_of_machine_group_and_available() -> None:
    assert MACHINE.capacity_mb == 8_000
    assert LIMITED.capacity_mb == 4_000
    assert LIMITED.machine_mb == 4_000
    assert MachineMemory(10_000, 3_000, 4_000).capacity_mb == 3_000


@pytest.mark.parametrize(
    ("budget", "peak", "machine"),
    [
        (None, None, MACHINE),
        (5_000, 1_000, MACHINE),
        (None, 7_200, MACHINE),
        (3_000, None, LIMITED),
    ],
)
def test_what_fits_is_let_through(
    budget: float | None, peak: float | None, machine: MachineMemory
) -> None:
    assert check_memory(budget, peak, machine) is None


@pytest.mark.parametrize("peak", [7_201.0, 8_000.0])
def test_inside_the_reserve_a_person_has_to_agree(peak: float) -> None:
    warning = check_memory(None, peak, MACHINE)
    assert warning is not None
    assert f"leaves {8_000 - peak:.0f} MB of the 8000 MB" in warning
    assert "reserve of 10% (800 MB)" in warning


@pytest.mark.parametrize(
    ("budget", "peak", "machine", "words", "limit"),
    [
        (None, 8_001.0, MACHINE, "headroom -1 MB", "at most 8000 MB"),
        (8_501.0, None, MACHINE, "memory budget of 8501 MB is over 85%", "at most 8500 MB"),
        (8_501.0, 100.0, MACHINE, "memory budget of 8501 MB is over 85%", "at most 8500 MB"),
        (None, 3_401.0, LIMITED, "estimated peak of 3401 MB is over 85%", "at most 3400 MB"),
        (1_000.0, 1_200.0, MACHINE, "over the stage's own budget", "at most 1000 MB"),
    ],
)
def test_what_does_not_fit_is_refused(
    budget: float | None, peak: float | None, machine: MachineMemory, words: str, limit: str
) -> None:
    where = Where(key="stages.build.resources.memory_mb")
    with pytest.raises(GateRefused) as refused:
        check_memory(budget, peak, machine, where)
    assert words in refused.value.what
    assert refused.value.expected == limit
    assert refused.value.hint
    assert "stages.build.resources.memory_mb" in str(refused.value)
    assert len(refused.value.differences) == 1


def test_this_machines_memory_is_read() -> None:
    machine = machine_memory()
    assert 0 < machine.available_mb <= machine.total_mb
    assert machine.capacity_mb <= machine.machine_mb <= machine.total_mb


def test_the_lowest_limit_of_the_groups_above_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    reason = group_reason()
    require(not reason, f"a memory group that can be written: {reason}")
    with parent_group(limit_mb=500) as outer:
        inner = outer / "inner"
        inner.mkdir()
        found = cgroup.Group(inner, 1)
        monkeypatch.setattr(
            cgroup, "own_memory_group", lambda version: found if version == 1 else None
        )
        assert machine_memory().group_limit_mb == pytest.approx(500, abs=0.01)


def test_no_limit_is_no_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(capacity, "memory_limit", lambda: None)
    machine = machine_memory()
    assert machine.group_limit_mb is None
    assert machine.machine_mb == machine.total_mb

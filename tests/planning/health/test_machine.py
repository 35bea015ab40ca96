"""What runs stand on, on machines that are made up and on the real one."""

from __future__ import annotations

import os
import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from benchwright.execution.accelerators import Machine
from benchwright.execution.device import Device, Vendor
from benchwright.planning.health import machine
from benchwright.planning.health.check import Place, State, examine
from benchwright.planning.health.window import Clocks, Window, watch
from tests.planning.health.made_up import STILL, place
from tests.support import require


def test_a_disk_is_broken_tight_or_fine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def with_free(size: float, files: int = 10**6) -> State:
        found = SimpleNamespace(f_bavail=size, f_frsize=1, f_files=10**6, f_favail=files)
        monkeypatch.setattr(os, "statvfs", lambda _path: found)
        return machine.disk(place(tmp_path)).state

    assert with_free(100e6) is State.BROKEN
    assert with_free(50e9, files=5) is State.BROKEN
    assert with_free(1e9) is State.WARNING
    assert with_free(50e9) is State.OK


def mounts(kind: str, point: Path) -> dict[str, str]:
    line = f"36 35 98:0 / {point} rw,noatime master:1 - {kind} server:/x rw"
    return {"proc/self/mountinfo": f"20 1 8:1 / / rw - ext4 /dev/sda rw\n{line}\n"}


def test_a_home_on_a_network_file_system_is_a_warning(tmp_path: Path) -> None:
    seen = machine.file_system(place(tmp_path, mounts("nfs4", tmp_path)))
    assert seen.state is State.WARNING
    assert "nfs4" in seen.sentence
    fine = machine.file_system(place(tmp_path, mounts("xfs", tmp_path)))
    assert (fine.state, fine.sentence.endswith("xfs")) == (State.OK, True)


def clocks(wall: float = 0.5, span: float = 0.5, raw: float = 0.5) -> Window:
    return replace(
        STILL, before=Clocks(1e9, 10.0, 10.0), after=Clocks(1e9 + wall, 10.0 + span, 10.0 + raw)
    )


@pytest.mark.parametrize(
    ("window", "state", "word"),
    [
        (clocks(), State.OK, "agree"),
        (clocks(wall=0.5 + 3600), State.WARNING, "was set"),
        (clocks(wall=-5), State.WARNING, "was set"),
        (clocks(raw=0.5 * (1 - 400e-6)), State.WARNING, "+400 millionths"),
    ],
)
def test_a_clock_that_is_set_or_corrected_is_seen(
    window: Window, state: State, word: str, tmp_path: Path
) -> None:
    seen = machine.clock(place(tmp_path, window=window))
    assert seen.state is state
    assert word in seen.sentence


def test_the_real_clocks_are_read_close_together() -> None:
    before, after = (window := watch(seconds=0.05)).before, window.after
    assert before.monotonic <= time.monotonic()
    assert abs(before.wall - time.time()) < 60
    assert after.monotonic - before.monotonic >= 0.05


@pytest.mark.parametrize(
    ("answer", "state"), [((True, 0.01), State.OK), ((False, 16.0), State.WARNING)]
)
def test_a_clock_that_nothing_keeps_is_a_warning(
    answer: tuple[bool, float], state: State, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(machine, "read_time_service", lambda: answer)
    assert machine.time_service(place(tmp_path)).state is state


def test_a_kernel_that_does_not_say_is_unknown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse() -> Any:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(machine, "read_time_service", refuse)
    assert machine.time_service(place(tmp_path)).state is State.UNKNOWN


def test_the_real_kernel_says_whether_its_clock_is_kept() -> None:
    try:
        kept, error_s = machine.read_time_service()
    except OSError as refusal:
        require(False, f"a kernel that lets adjtimex be asked ({refusal})")
    assert isinstance(kept, bool)
    assert error_s >= 0


SOURCE = "sys/devices/system/clocksource/clocksource0/"


def test_a_slow_clock_source_is_a_warning_with_the_quick_one(tmp_path: Path) -> None:
    files = {
        f"{SOURCE}current_clocksource": "hpet\n",
        f"{SOURCE}available_clocksource": "tsc hpet acpi_pm\n",
    }
    seen = machine.clock_source(place(tmp_path, files))
    assert seen.state is State.WARNING
    assert seen.command == f"echo tsc | sudo tee /{SOURCE}current_clocksource"
    fine = machine.clock_source(place(tmp_path, {f"{SOURCE}current_clocksource": "tsc\n"}))
    assert fine.state is State.OK
    assert machine.clock_source(place(tmp_path / "none")).state is State.UNKNOWN


@pytest.mark.parametrize(
    ("named", "state"),
    [
        ("Europe/Berlin", State.OK),
        ("CET-1CEST,M3.5.0,M10.5.0/3", State.OK),
        ("UTC", State.OK),
        ("", State.OK),
        ("Europe/Berln", State.WARNING),
    ],
)
def test_a_misspelt_time_zone_is_seen(named: str, state: State, tmp_path: Path) -> None:
    seen = machine.time_zone(Place(tmp_path, {"TZ": named}))
    assert seen.state is state


@pytest.mark.parametrize(
    ("reasons", "state", "word"),
    [
        ({"cgroup2": "", "cgroup1": "", "polling": ""}, State.OK, "(cgroup2)"),
        ({"cgroup2": "not delegated", "cgroup1": "", "polling": ""}, State.OK, "not delegated"),
        (
            {"cgroup2": "not delegated", "cgroup1": "no group", "polling": ""},
            State.WARNING,
            "not delegated; no group",
        ),
    ],
)
def test_the_memory_guard_in_force_is_said_and_why_it_is_no_better_one(
    reasons: dict[str, str],
    state: State,
    word: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(machine, "mechanisms", lambda: reasons)
    seen = machine.memory_guard(place(tmp_path))
    assert seen.state is state
    assert word in seen.sentence


GPU = Device("GPU-1", "Tester 9000", 0, Vendor.NVIDIA)


@pytest.mark.parametrize(
    ("there", "files", "state", "command"),
    [
        (Machine(gpus=(GPU,)), {}, State.OK, ""),
        (Machine(), {}, State.OK, ""),
        (
            Machine(why_no_gpus="NVML can't be used: driver not loaded"),
            {"vendor": "0x10de\n", "class": "0x030200\n"},
            State.BROKEN,
            "nvidia-smi",
        ),
        (
            Machine(why_no_gpus="the binding of NVML is not installed"),
            {"vendor": "0x10de\n", "class": "0x030000\n"},
            State.BROKEN,
            "pip install 'benchwright[gpu]'",
        ),
        (Machine(), {"vendor": "0x10de\n", "class": "0x040300\n"}, State.OK, ""),
    ],
)
def test_a_gpu_whose_driver_does_not_work_is_broken_and_none_at_all_is_fine(
    there: Machine,
    files: dict[str, str],
    state: State,
    command: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(machine, "read_machine", lambda _environ, _root: there)
    card = {f"sys/bus/pci/devices/0000:01:00.0/{name}": text for name, text in files.items()}
    seen = machine.gpu_driver(place(tmp_path, card))
    assert (seen.state, seen.command) == (state, command)


def test_a_machine_without_bash_is_broken(tmp_path: Path) -> None:
    assert machine.shell(place(tmp_path)).state is State.OK
    assert machine.shell(Place(tmp_path, {"PATH": str(tmp_path)})).state is State.BROKEN


def test_every_check_of_the_machine_says_something_on_this_machine(tmp_path: Path) -> None:
    checks = examine(Place(tmp_path, dict(os.environ)), machine.MACHINE)
    assert [check.name for check in checks] == [one.name for one in machine.MACHINE]
    for check in checks:
        assert check.seen.sentence
        assert "can't be looked at" not in check.seen.sentence

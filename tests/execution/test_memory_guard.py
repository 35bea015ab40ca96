"""A stage stays within its memory budget, whatever mechanism the machine gives."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from benchmarks.harm import (
    MB,
    NO_DEATH_BUDGET_MB,
    NO_MEMORY_DEATHS,
    attendant_of,
    cpu_seconds,
    group_reason,
    neighbour,
    parent_group,
    program,
    requester,
    runaway_without_guard,
    stage,
    tagged,
    wait_until,
)
from benchwright.execution import cgroup, memory
from benchwright.execution.launch import EndReason
from benchwright.execution.supervisor import Supervisor
from tests.support import require

NO_GROUP = group_reason()
MECHANISMS = ("cgroup1", "polling")
BUDGET_MB = 400.0


@pytest.fixture(params=MECHANISMS)
def mechanism(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    require(name == "polling" or not NO_GROUP, f"a memory group that can be written: {NO_GROUP}")
    return name


@pytest.fixture
def group() -> Iterator[Path]:
    require(not NO_GROUP, f"a memory group that can be written: {NO_GROUP}")
    with parent_group() as path:
        yield path


@pytest.mark.parametrize("rate", [0.1, 0.5, 2.0])
@pytest.mark.parametrize("processes", [1, 4])
def test_a_runaway_is_ended_within_its_budget(
    mechanism: str, group: Path, rate: float, processes: int, tmp_path: Path
) -> None:
    start = BUDGET_MB - 50
    argv = program("runaway", rate_gb_s=rate, processes=processes, start_mb=start, limit_mb=1500)
    # A machine that is busy, or whose host is, can delay a look: the best of three tells.
    for _ in range(3):
        with requester(
            argv, tmp_path, group=group, mechanism=mechanism, memory_mb=BUDGET_MB
        ) as asked:
            outcome = asked.outcome()
        assert outcome.reason is EndReason.MEMORY
        assert outcome.usage.guard == mechanism
        assert f"memory budget of {BUDGET_MB:.0f} MB" in outcome.detail
        assert asked.group_peak_mb is not None
        assert tagged(asked.tag) == []
        if asked.group_peak_mb <= BUDGET_MB * 1.05:
            break
    assert asked.group_peak_mb is not None
    assert asked.group_peak_mb <= BUDGET_MB * 1.05


def test_the_neighbour_in_the_same_group_lives(mechanism: str, tmp_path: Path) -> None:
    require(not NO_GROUP, f"a memory group that can be written: {NO_GROUP}")
    with parent_group(limit_mb=500) as group, neighbour(group, mb=280) as innocent:
        argv = program("runaway", rate_gb_s=1.0, limit_mb=1000)
        with requester(argv, tmp_path, group=group, mechanism=mechanism, memory_mb=100.0) as asked:
            assert asked.outcome().reason is EndReason.MEMORY
        assert innocent.poll() is None


def test_without_a_guard_the_neighbour_dies(tmp_path: Path) -> None:
    """The control: the kernel takes the largest, not the guilty."""
    require(not NO_GROUP, f"a memory group that can be written: {NO_GROUP}")
    with parent_group(limit_mb=500) as group, neighbour(group, mb=280) as innocent:
        runaway_without_guard(group, rate_gb_s=1.0, limit_mb=1000)
        assert innocent.wait(10) == -signal.SIGKILL


def test_without_a_budget_the_kernel_still_takes_the_stage_first(tmp_path: Path) -> None:
    """By its oom_score_adj; and what the kernel did is evidence of a memory death."""
    require(not NO_GROUP, f"a memory group that can be written: {NO_GROUP}")
    with parent_group(limit_mb=500) as group, neighbour(group, mb=280) as innocent:
        argv = program("runaway", rate_gb_s=1.0, limit_mb=1000)
        with requester(argv, tmp_path, group=group) as asked:
            outcome = asked.outcome()
        assert (outcome.reason, outcome.usage.guard) == (EndReason.MEMORY, "none")
        assert "or a group above the stage, ran out of memory" in outcome.detail
        assert innocent.poll() is None


def test_1_gb_that_ten_forks_share_fits_into_2_gb(mechanism: str, tmp_path: Path) -> None:
    argv = program("share", mb=1000, processes=10, hold_s=0.2)
    with requester(argv, tmp_path, mechanism=mechanism, memory_mb=2000.0) as asked:
        outcome = asked.outcome()
    assert outcome.ok, outcome.detail
    assert (tmp_path / "stdout.log").read_text().count("shared 244141\n") == 10
    assert outcome.usage.peak_memory_mb is not None
    assert 990 < outcome.usage.peak_memory_mb < 1200


def test_shared_memory_that_grows_past_the_budget_is_no_excuse(
    mechanism: str, tmp_path: Path
) -> None:
    argv = program("share", mb=300, processes=4, own_mb=60, hold_s=60)
    with requester(argv, tmp_path, mechanism=mechanism, memory_mb=450.0) as asked:
        assert asked.outcome().reason is EndReason.MEMORY


def test_a_killed_child_whose_parent_exits_with_zero_is_a_memory_death(
    mechanism: str, tmp_path: Path
) -> None:
    child = " ".join(f"'{part}'" for part in program("runaway", rate_gb_s=1, limit_mb=1000))
    argv = ("sh", "-c", f"{child}; exit 0")
    with requester(argv, tmp_path, mechanism=mechanism, memory_mb=150.0) as asked:
        assert asked.outcome().reason is EndReason.MEMORY


@pytest.mark.parametrize("name", NO_MEMORY_DEATHS)
def test_no_memory_death_is_claimed_without_evidence(
    mechanism: str, name: str, tmp_path: Path
) -> None:
    script, reason = NO_MEMORY_DEATHS[name]
    with Supervisor(mechanism=mechanism) as supervisor:
        outcome = supervisor.run(stage(tmp_path, "sh", "-c", script, memory_mb=NO_DEATH_BUDGET_MB))
    assert outcome.reason is reason, outcome.detail


def test_a_guard_whose_limit_is_lifted_ends_the_stage(group: Path, tmp_path: Path) -> None:
    with requester(
        ("sleep", "600"), tmp_path, group=group, mechanism="cgroup1", memory_mb=100.0
    ) as asked:
        asked.wait_for(1)
        leaf = wait_until(lambda: list(group.glob(f"{cgroup.PREFIX}*")), "the stage's group")[0]
        cgroup.write(leaf / "memory.memsw.limit_in_bytes", "-1")
        cgroup.write(leaf / "memory.limit_in_bytes", "-1")
        outcome = asked.outcome()
    assert outcome.reason is EndReason.FAILED
    assert "memory guard (cgroup1) was lost: the limit of its group was changed" in outcome.detail


def test_a_guard_whose_stage_is_moved_away_ends_it(group: Path, tmp_path: Path) -> None:
    with requester(
        ("sleep", "600"), tmp_path, group=group, mechanism="cgroup1", memory_mb=100.0
    ) as asked:
        asked.wait_for(1)
        (pid,) = tagged(asked.tag)
        cgroup.write(group / "cgroup.procs", str(pid))
        outcome = asked.outcome()
    assert outcome.reason is EndReason.FAILED
    assert "its main process was moved out of its group" in outcome.detail
    assert tagged(asked.tag) == []


def test_a_polling_guard_that_cant_read_what_it_needs_ends_the_stage(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    sizes = {10: memory._Size(80 * MB, 20 * MB), 11: memory._Size(80 * MB, 20 * MB)}
    monkeypatch.setattr(memory, "_sizes", lambda: sizes)
    monkeypatch.setattr(memory, "_sum_of_pss", lambda pids: None)
    monkeypatch.setattr(memory, "tell", lambda pids, number: None)
    guard = memory.PollingGuard(100 * MB)
    guard.begin(10, 0.0)
    breach = guard.look(0.01)
    assert breach is not None
    assert not breach.proven
    assert "can't be read" in breach.detail


class Tree:
    """A tree whose sizes a test sets, in place of /proc."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.sizes: dict[int, memory._Size] = {}
        self.pss: dict[int, int] = {}
        self.reads = 0
        self.told: list[Any] = []
        monkeypatch.setattr(memory, "_sizes", lambda: dict(self.sizes))
        monkeypatch.setattr(memory, "_sum_of_pss", self._sum)
        monkeypatch.setattr(
            memory, "tell", lambda pids, number: self.told.append((set(pids), number))
        )

    def _sum(self, pids: Any) -> int:
        self.reads += 1
        return sum(self.pss[pid] for pid in pids)

    def set(self, pid: int, resident: int, own: int, pss: int) -> None:
        self.sizes[pid] = memory._Size(resident * MB, own * MB)
        self.pss[pid] = pss * MB


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> Tree:
    return Tree(monkeypatch)


def test_page_tables_are_not_walked_while_resident_sets_are_far_from_the_budget(
    fake: Tree,
) -> None:
    guard = memory.PollingGuard(1000 * MB)
    guard.begin(1, 0.0)
    fake.set(1, resident=700, own=600, pss=650)
    guard._sample_at = 1e9
    for tick in range(1, 100):
        assert guard.look(tick / 100) is None
    assert fake.reads == 0


def test_the_next_look_comes_before_the_budget_would_be_passed(fake: Tree) -> None:
    guard = memory.PollingGuard(1000 * MB)
    guard.begin(1, 0.0)
    guard._sample_at = 1e9
    fake.set(1, resident=100, own=0, pss=100)
    guard.look(0.01)
    assert guard.next_look() == pytest.approx(0.02)
    fake.set(1, resident=400, own=0, pss=400)
    guard.look(0.02)  # 300 MB in 10 ms: 600 MB are left for 20 ms, half of which is the limit
    assert guard.next_look() == pytest.approx(0.03)
    fake.set(1, resident=790, own=0, pss=790)
    guard.look(0.03)
    assert guard.next_look() == pytest.approx(0.03 + 0.5 * 210 / 39000, rel=0.05)


def test_a_sum_of_resident_sets_over_the_budget_is_no_claim(fake: Tree) -> None:
    guard = memory.PollingGuard(1000 * MB)
    guard.begin(1, 0.0)
    for pid in range(1, 5):
        fake.set(pid, resident=900, own=900, pss=225)
    assert guard.look(0.01) is None
    assert guard.peak(None) == 900 * MB
    reads = fake.reads
    for tick in range(2, 50):
        assert guard.look(tick / 100) is None
    assert fake.reads == reads  # nothing has grown: nothing is read again


def test_a_tree_is_stopped_before_it_is_called_guilty(fake: Tree) -> None:
    guard = memory.PollingGuard(1000 * MB)
    guard.begin(1, 0.0)
    for pid in (1, 2):
        fake.set(pid, resident=450, own=450, pss=440)
    assert guard.look(0.01) is None
    for pid in (1, 2):
        fake.set(pid, resident=520, own=520, pss=495)
    assert guard.look(0.02) is None
    assert fake.told == [({1, 2}, signal.SIGSTOP), ({1, 2}, signal.SIGCONT)]
    for pid in (1, 2):
        fake.set(pid, resident=530, own=530, pss=505)
    breach = guard.look(0.03)
    assert breach is not None
    assert breach.proven
    assert "held 1010 MB (sum of PSS)" in breach.detail
    assert fake.told[2:] == [({1, 2}, signal.SIGSTOP)]


def test_a_tree_that_was_stopped_for_a_look_is_taken_to_grow_as_before(fake: Tree) -> None:
    guard = memory.PollingGuard(1000 * MB)
    guard.begin(1, 0.0)
    guard._sample_at = 1e9
    now = time.monotonic()  # the end of a stop is read from the clock
    for tick, resident in enumerate((940, 960, 980)):
        fake.set(1, resident=resident, own=resident - 10, pss=resident - 8)
        guard.look(now + tick / 100)
    fake.set(1, resident=1003, own=993, pss=995)
    assert guard.look(now + 0.03) is None
    assert fake.told == [({1}, signal.SIGSTOP), ({1}, signal.SIGCONT)]
    # 2000 MB/s, and 5 MB are left: half of 2.5 ms, where a pause would have given 10 ms.
    assert guard.next_look() == pytest.approx(now + 0.03 + 0.5 * 5 / 2300, rel=1e-3, abs=3e-4)


def test_page_tables_are_not_walked_on_the_last_stretch_before_the_budget(fake: Tree) -> None:
    guard = memory.PollingGuard(1000 * MB)
    guard.begin(1, 0.0)
    guard._sample_at = 0.0
    fake.set(1, resident=900, own=900, pss=900)
    guard.look(0.01)
    reads, guard._sample_at = fake.reads, 0.0
    fake.set(1, resident=950, own=950, pss=950)
    guard.look(0.02)  # 50 MB in 10 ms: 10 ms are left, and a walk takes 19
    assert fake.reads == reads
    for tick in (3, 4):
        guard.look(tick / 100)  # it grows no more
    assert fake.reads == reads + 1
    assert guard.peak(None) == 950 * MB


@pytest.mark.parametrize("budget_mb", [None, 400.0])
def test_the_peak_of_a_tree_is_measured(
    mechanism: str, budget_mb: float | None, tmp_path: Path
) -> None:
    # PSS is read for 2 % of the time only: a short peak may pass between two readings.
    argv = program("hold", mb=200, processes=4, hold_s=1.0 if mechanism == "polling" else 0.3)
    with Supervisor(mechanism=mechanism) as supervisor:
        outcome = supervisor.run(stage(tmp_path, *argv, memory_mb=budget_mb))
    assert outcome.ok, outcome.detail
    assert outcome.usage.guard == (mechanism if budget_mb else "none")
    assert outcome.usage.peak_memory_mb is not None
    assert 200 <= outcome.usage.peak_memory_mb < 245


def test_files_that_a_stage_reads_are_no_part_of_its_peak(mechanism: str, tmp_path: Path) -> None:
    (tmp_path / "big").write_bytes(b"x" * 100 * MB)
    os.sync()
    with Supervisor(mechanism=mechanism) as supervisor:
        outcome = supervisor.run(stage(tmp_path, "sh", "-c", "cat big > copy; cat copy >/dev/null"))
    assert outcome.usage.peak_memory_mb is not None
    assert outcome.usage.peak_memory_mb < 30


def test_the_best_mechanism_that_works_is_taken(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(memory, "leaf_parent", lambda version: None)
    assert memory.arm(100.0, "benchwright-none").name == "polling"
    with pytest.raises(OSError, match="cgroup1: this process is in no memory group"):
        memory.arm(100.0, "benchwright-none", "cgroup1")
    # A folder that is no group: the leaf can be made, the limit can't.
    fake = cgroup.Group(tmp_path, 1)
    monkeypatch.setattr(memory, "leaf_parent", lambda version: fake)
    assert memory.arm(100.0, "benchwright-none").name == "polling"
    assert list(tmp_path.iterdir()) == []


def test_a_group_of_version_2_is_limited_and_watched_as_the_kernel_documents(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a folder with the kernel's file names: this machine may have version 1 only."""
    leaf = tmp_path / "leaf"

    def made(self: cgroup.Leaf, group: cgroup.Group, name: str) -> None:
        self.path, self.version = leaf, 2
        leaf.mkdir()
        for file, text in {
            "cgroup.procs": "",
            "cgroup.kill": "",
            "memory.current": "1000\n",
            "memory.peak": "100000000\n",
            "memory.max": "max\n",
            "memory.swap.max": "max\n",
            "memory.oom.group": "0\n",
            "memory.stat": "anon 900\nfile 50\nshmem 10\n",
            "memory.events": "low 0\nhigh 0\nmax 0\noom 0\noom_kill 0\n",
        }.items():
            (leaf / file).write_text(text)
        self.join_fd = os.open(leaf / "cgroup.procs", os.O_WRONLY)

    monkeypatch.setattr(cgroup.Leaf, "__init__", made)
    guard = memory.GroupGuard(cgroup.Group(tmp_path, 2), "leaf", 99_999_744)
    assert guard.name == "cgroup2"
    assert (leaf / "memory.max").read_text().startswith("99999744")
    assert (leaf / "memory.swap.max").read_text().startswith("0")
    assert (leaf / "memory.oom.group").read_text().startswith("1")
    guard.begin(os.getpid(), 0.0)
    assert guard.look(0.01) is None
    assert guard.peak(None) == 960
    (leaf / "memory.events").write_text("max 3\noom 1\noom_kill 2\n")
    breach = guard.look(0.02)
    assert breach is not None
    assert breach.proven
    assert "killed 2 of its processes" in breach.detail
    guard.kill()
    assert (leaf / "cgroup.kill").read_text() == "1"
    for fd in (*guard._fds, guard.join_fd):
        with suppress(OSError, TypeError):
            os.close(fd)  # type: ignore[arg-type]


def test_own_group_is_found_through_mounts_and_namespaces(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    point = tmp_path / "memory point"
    (point / "job").mkdir(parents=True)
    texts = {
        "/proc/self/cgroup": "5:cpu:/x\n4:memory:/docker/abc/job\n0::/user.slice\n",
        "/proc/self/mountinfo": (
            f"35 31 0:32 /docker/abc {str(point).replace(' ', chr(92) + '040')} rw - "
            "cgroup cgroup rw,memory\n"
        ),
    }
    monkeypatch.setattr(
        cgroup, "read_proc", lambda path: texts[path].encode() if path in texts else None
    )
    monkeypatch.setattr(cgroup, "_memory_mount", cgroup._memory_mount.__wrapped__)
    assert cgroup.own_memory_group(1) == cgroup.Group(point / "job", 1)
    assert cgroup.own_memory_group(2) is None
    (point / "job" / "release_agent").touch()  # only the root of a hierarchy has it
    assert cgroup.own_memory_group(1) is None


HAND_ON = """
import os, sys
from pathlib import Path
from benchwright.execution import cgroup
group, controller = Path(sys.argv[1]), sys.argv[2]
cgroup.write(group / "cgroup.procs", "0")
if os.fork() == 0:
    os.close(1)
    os.read(0, 1)
    os._exit(0)
print(cgroup.is_delegated(group), cgroup.hand_on(group, controller), flush=True)
print(*cgroup.members(group / cgroup.INNER), flush=True)
leaf = cgroup.Leaf(cgroup.Group(group, 2), "benchwright-leaf")
os.write(leaf.join_fd, b"0")
print(leaf.holds(os.getpid()), leaf.members() == [os.getpid()], flush=True)
leaf.kill()
os.read(0, 1)
"""


def test_a_delegated_group_of_version_2_hands_its_controller_on(tmp_path: Path) -> None:
    """With any controller that version 2 has here: memory may belong to version 1."""
    mount = cgroup._memory_mount(2)
    require(mount is not None, "the hierarchy of version 2")
    assert mount is not None
    root = Path(mount[1])
    controllers = (root / "cgroup.controllers").read_text().split()
    require(bool(controllers), "a controller in version 2")
    group = root / "harm-delegated"
    try:
        handed = cgroup.hands_on(root, controllers[0])
        if not handed:
            cgroup.write(root / "cgroup.subtree_control", f"+{controllers[0]}")
        group.mkdir()
        os.setxattr(group, "trusted.delegate", b"1")
    except OSError as error:
        require(False, f"a group of version 2 that can be written: {error}")
    reader, writer = os.pipe()
    try:
        assert not cgroup.is_delegated(root)
        process = subprocess.Popen(
            [sys.executable, "-c", HAND_ON, str(group), controllers[0]],
            stdin=reader,
            stdout=subprocess.PIPE,
            text=True,
        )
        printed, _ = process.communicate(timeout=10)
        lines = printed.splitlines()
        assert lines[0] == "True True"
        assert len(lines[1].split()) == 2
        assert lines[2] == "True True"
        assert process.returncode == -signal.SIGKILL  # cgroup.kill
    finally:
        os.close(writer)
        os.close(reader)
        wait_until(lambda: not cgroup.members(group), "an empty group")
        assert cgroup.remove(group)
        if not handed:
            cgroup.write(root / "cgroup.subtree_control", f"-{controllers[0]}")


def test_each_mechanism_says_whether_it_works_here() -> None:
    reasons = memory.mechanisms()
    assert list(reasons) == list(memory.MECHANISMS)
    assert reasons["polling"] == ""
    assert bool(reasons["cgroup1"]) == bool(NO_GROUP)
    assert reasons["cgroup2"] == "" or "Delegate=yes" in reasons["cgroup2"]


def test_the_guard_costs_little(mechanism: str, tmp_path: Path) -> None:
    limit = {"cgroup1": 0.01, "polling": 0.05}[mechanism]
    argv = program("hold", mb=90, processes=9, hold_s=60)
    with requester(argv, tmp_path, mechanism=mechanism, memory_mb=200.0) as asked:
        asked.wait_for(9)
        attendant = attendant_of(asked.tag)
        before, began = cpu_seconds(attendant), time.monotonic()
        with suppress(subprocess.TimeoutExpired):
            asked.process.wait(1.0)
        share = (cpu_seconds(attendant) - before) / (time.monotonic() - began)
    assert share <= limit

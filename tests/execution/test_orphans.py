"""Nothing of a stage outlives it: however it forks, and whoever of its guardians is killed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import pytest

from benchmarks.harm import (
    ENDINGS,
    LEFTOVERS,
    TAG,
    Requester,
    attendant_of,
    orphans_after,
    orphans_without_supervisor,
    requester,
    tagged,
    wait_until,
)
from benchwright.execution import cgroup, tree
from benchwright.execution.launch import EndReason
from benchwright.execution.orphans import VARIABLE, Mark, digest_of, pid_namespace, sweep_orphans


@pytest.mark.parametrize("leftover", LEFTOVERS)
@pytest.mark.parametrize("ending", ENDINGS)
def test_no_orphan_is_left(leftover: str, ending: str, tmp_path: Path) -> None:
    assert orphans_after(leftover, ending, tmp_path) == 0


@pytest.mark.parametrize("leftover", LEFTOVERS)
def test_a_plain_child_leaves_orphans(leftover: str) -> None:
    """The control: the harm is real."""
    assert orphans_without_supervisor(leftover) > 0


REASONS = {
    "time-out": EndReason.TIMEOUT,
    "Ctrl-C": EndReason.CANCELLED,
    "cancel": EndReason.CANCELLED,
    "kill -9 of the supervisor": EndReason.LOST,
}


@pytest.mark.parametrize("ending", REASONS)
def test_the_outcome_says_what_ended_it(ending: str, tmp_path: Path) -> None:
    deadline = 0.5 if ending == "time-out" else None
    with requester(("sh", "-c", "sleep 600 & wait"), tmp_path, timeout_s=deadline) as asked:
        asked.wait_for(2)
        ENDINGS[ending](asked)
        assert asked.outcome().reason is REASONS[ending]


def _zygote_of(asked: Requester) -> int:
    stat = tree.stat_of(attendant_of(asked.tag))
    assert stat is not None
    return stat.parent


def test_the_flow_ends_the_stage_when_its_attendant_and_its_zygote_are_killed(
    tmp_path: Path,
) -> None:
    with requester(("sh", "-c", LEFTOVERS["setsid"].script), tmp_path) as asked:
        asked.wait_for(LEFTOVERS["setsid"].processes)
        pair = (_zygote_of(asked), attendant_of(asked.tag))
        for pid in pair:
            os.kill(pid, signal.SIGSTOP)
        for pid in pair:
            os.kill(pid, signal.SIGKILL)
        assert asked.outcome().reason is EndReason.LOST
        assert tagged(asked.tag) == []


def test_a_sweep_ends_what_is_left_when_all_are_killed_at_once(tmp_path: Path) -> None:
    with requester(("sh", "-c", LEFTOVERS["double fork"].script), tmp_path) as asked:
        asked.wait_for(LEFTOVERS["double fork"].processes)
        started = set(tagged(asked.tag))
        everyone = (asked.process.pid, _zygote_of(asked), attendant_of(asked.tag))
        for pid in everyone:
            os.kill(pid, signal.SIGSTOP)
        for pid in everyone:
            os.kill(pid, signal.SIGKILL)
        asked.process.wait()
        wait_until(lambda: not any(map(tree.alive, everyone)), "their end")
        assert tagged(asked.tag) != []
        swept = [orphan for orphan in sweep_orphans() if orphan.pid in started]
        assert tagged(asked.tag) == []
        assert "trial/stage/arm/0" in {orphan.label for orphan in swept}
        assert _stale_leaves() == []


def _stale_leaves() -> list[Path]:
    group = cgroup.own_memory_group(1) or cgroup.own_memory_group(2)
    if group is None:
        return []
    leaves = group.path.glob(f"{cgroup.PREFIX}*")
    return [leaf for leaf in leaves if (mark := Mark.of_leaf(leaf.name)) and mark.alone]


def test_a_sweep_spares_the_stages_of_living_supervisors(tmp_path: Path) -> None:
    with requester(("sleep", "600"), tmp_path) as asked:
        asked.wait_for(1)
        alive = tagged(asked.tag)
        sweep_orphans()
        assert tagged(asked.tag) == alive


def _sleeper(mark: Mark) -> subprocess.Popen[bytes]:
    sleeper = subprocess.Popen(["sleep", "600"], env={VARIABLE: str(mark), TAG: "sleeper"})
    wait_until(lambda: tagged("sleeper"), "the sleeper's environment")
    return sleeper


def _mark_of_a_dead_supervisor(home: str, namespace: int | None = None) -> Mark:
    return Mark(home, namespace or pid_namespace(), 2**22 + 1, 1, "abcdef", "run/stage/arm/0")


@pytest.mark.parametrize(
    ("mark", "why"),
    [
        (_mark_of_a_dead_supervisor("0" * 8), "another home's"),
        (_mark_of_a_dead_supervisor(digest_of(Path("/home/of/runs")), 1), "another container's"),
        (Mark(digest_of(Path("/home/of/runs")), pid_namespace(), 1, 0, "abcdef"), "not dead"),
    ],
)
def test_a_sweep_ends_only_what_is_known_to_be_ours_and_alone(mark: Mark, why: str) -> None:
    if why == "not dead":
        init = tree.stat_of(1)
        assert init is not None
        mark = Mark(mark.home, mark.namespace, 1, init.started, mark.token)
    sleeper = _sleeper(mark)
    try:
        assert sweep_orphans(Path("/home/of/runs")) == []
        assert sleeper.poll() is None
    finally:
        sleeper.kill()
        sleeper.wait()


def test_a_supervisors_number_that_another_process_has_got_is_not_it() -> None:
    own = tree.stat_of(os.getpid())
    assert own is not None
    mark = Mark("0" * 8, pid_namespace(), os.getpid(), own.started, "abcdef")
    assert not mark.alone
    assert Mark("0" * 8, pid_namespace(), os.getpid(), own.started - 1, "abcdef").alone


def test_the_mark_has_one_width_for_all_stages() -> None:
    """The size of the environment shifts a program's stack, so it must not differ by arm."""
    short = Mark("0" * 8, 1, 2, 3, "abcdef", "r/s/a/0")
    long = Mark("0" * 8, 4026531836, 4194304, 10**12, "abcdef", "run/stage/ärm-" + "x" * 90)
    assert len(os.fsencode(str(short))) == len(os.fsencode(str(long)))
    assert Mark.parse(str(short)) == short
    assert Mark.of_leaf(long.leaf) == Mark("0" * 8, 4026531836, 4194304, 10**12, "abcdef")


@pytest.mark.parametrize("text", ["", "outer", "a:b:c:d:e:f", "a:1:2:3:4"])
def test_a_variable_of_somebody_elses_is_no_mark(text: str) -> None:
    assert Mark.parse(text) is None


def test_a_fork_bomb_is_ended(tmp_path: Path) -> None:
    # Each process makes the next and ends: the walk sees a new tree each time.
    script = "import os\nwhile True:\n if os.fork(): os._exit(0)\n"
    argv = ("sh", "-c", f"{sys.executable} -S -c '{script}' & sleep 600")
    with requester(argv, tmp_path, timeout_s=0.5, grace_s=0.1) as asked:
        assert asked.outcome().reason is EndReason.TIMEOUT
        assert tagged(asked.tag) == []


def test_processes_are_walked_with_those_of_threads(tmp_path: Path) -> None:
    script = (
        "import subprocess, threading, time\n"
        "t = threading.Thread(target=lambda: subprocess.run(['sleep', '600']))\n"
        "t.start(); t.join()"
    )
    parent = subprocess.Popen([sys.executable, "-c", script])
    try:
        below = wait_until(lambda: tree.descendants([parent.pid]), "the thread's child")
        assert len(below) == 1
        stat = wait_until(
            lambda: (s := tree.stat_of(below[0])) and s.name == "sleep" and s, "its program"
        )
        assert stat.parent == parent.pid
        assert tree.describe(below[0]) == f"sleep (PID {below[0]})"
    finally:
        tree.kill_all(lambda: [parent.pid, *tree.descendants([parent.pid])])
        parent.wait()


def test_a_name_with_parentheses_is_read(tmp_path: Path) -> None:
    odd = tmp_path / "a) R 1 ("
    odd.symlink_to("/bin/sleep")
    process = subprocess.Popen([str(odd), "600"])
    try:
        stat = wait_until(
            lambda: (s := tree.stat_of(process.pid)) and s.name.startswith("a)") and s, "its name"
        )
        assert (stat.name, stat.parent) == ("a) R 1 (", os.getpid())
    finally:
        process.kill()
        process.wait()
    assert tree.stat_of(process.pid) is None


def test_what_is_gone_is_passed_over() -> None:
    gone = subprocess.Popen(["true"])
    gone.wait()
    with suppress(ProcessLookupError):
        tree.tell([gone.pid], signal.SIGTERM)
    assert tree.children(gone.pid) == []
    assert tree.read_proc(f"/proc/{gone.pid}/stat") is None
    began = time.monotonic()
    tree.kill_all(list)
    assert time.monotonic() - began < 1

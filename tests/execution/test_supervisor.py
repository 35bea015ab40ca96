"""A stage is run to its verified end, and its outcome says how it ended and what it used."""

from __future__ import annotations

import ctypes
import os
import resource
import signal
import stat
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from benchmarks.harm import attendant_of, stage, tagged, wait_until
from benchwright.execution.launch import EndReason, StageOutcome
from benchwright.execution.supervisor import Supervisor


@pytest.fixture(scope="module")
def supervisor() -> Iterator[Supervisor]:
    with Supervisor() as running:
        yield running


def shell(supervisor: Supervisor, folder: Path, script: str, **options: Any) -> StageOutcome:
    return supervisor.run(stage(folder, "sh", "-c", script, **options))


def test_a_stage_that_ends_with_zero_has_completed(supervisor: Supervisor, tmp_path: Path) -> None:
    outcome = shell(supervisor, tmp_path, "echo result; echo note >&2")
    assert outcome.ok
    assert (outcome.exit_code, outcome.signal, outcome.detail, outcome.notes) == (0, None, "", ())
    assert (tmp_path / "stdout.log").read_text() == "result\n"
    assert (tmp_path / "stderr.log").read_text() == "note\n"
    assert (outcome.usage.stdout_bytes, outcome.usage.stderr_bytes) == (7, 5)


def test_output_files_are_for_their_owner_only_and_start_empty(
    supervisor: Supervisor, tmp_path: Path
) -> None:
    old = tmp_path / "stdout.log"
    old.write_text("from before")
    old.chmod(0o644)
    shell(supervisor, tmp_path, "printf new")
    assert old.read_text() == "new"
    for name in ("stdout.log", "stderr.log"):
        assert stat.S_IMODE((tmp_path / name).stat().st_mode) == 0o600


def test_an_exit_code_fails_the_stage_and_quotes_the_end_of_its_error_output(
    supervisor: Supervisor, tmp_path: Path
) -> None:
    outcome = shell(supervisor, tmp_path, "echo early >&2; echo 'no such index' >&2; exit 3")
    assert (outcome.reason, outcome.exit_code, outcome.signal) == (EndReason.FAILED, 3, None)
    assert "exit code 3" in outcome.detail
    assert outcome.detail.endswith("no such index")


@pytest.mark.parametrize("number", [signal.SIGSEGV, signal.SIGKILL, 40])
def test_a_signal_from_elsewhere_is_a_failure_and_no_memory_death(
    supervisor: Supervisor, tmp_path: Path, number: int
) -> None:
    outcome = shell(supervisor, tmp_path, f"kill -{int(number)} $$", memory_mb=500.0)
    assert (outcome.reason, outcome.exit_code) == (EndReason.FAILED, None)
    assert outcome.signal == number
    assert f"signal {int(number)}" in outcome.detail


@pytest.mark.parametrize(
    ("argv", "code", "words"),
    [
        (("no-such-program",), 127, "no program 'no-such-program' in its PATH"),
        (("./missing",), 127, "No such file"),
        (("./plain",), 126, "Permission denied"),
        (("./noexec",), 126, "#!/bin/sh"),
        ((), 126, "empty"),
        (("echo", "a\0b"), 126, "NUL"),
        (("echo", "x" * 3_000_000), 126, "larger than the kernel takes"),
    ],
)
def test_a_program_that_cant_be_started_is_named(
    supervisor: Supervisor, tmp_path: Path, argv: tuple[str, ...], code: int, words: str
) -> None:
    (tmp_path / "plain").write_text("echo not executable")
    (tmp_path / "noexec").write_bytes(b"\x01\x02 no program")
    (tmp_path / "noexec").chmod(0o755)
    outcome = supervisor.run(stage(tmp_path, *argv))
    assert (outcome.reason, outcome.exit_code) == (EndReason.FAILED, code)
    assert outcome.detail.startswith("The stage was not started")
    assert words in outcome.detail


def test_a_missing_working_directory_is_named(supervisor: Supervisor, tmp_path: Path) -> None:
    gone = tmp_path / "gone"
    outcome = supervisor.run(stage(tmp_path, "true", cwd=gone))
    assert outcome.reason is EndReason.FAILED
    assert f"working directory {gone}: No such file" in outcome.detail


def test_an_output_file_that_cant_be_made_is_named(supervisor: Supervisor, tmp_path: Path) -> None:
    outcome = supervisor.run(stage(tmp_path, "true", stdout=tmp_path / "gone" / "out"))
    assert outcome.reason is EndReason.FAILED
    assert "its output file" in outcome.detail
    assert "can't be created" in outcome.detail


def test_a_stage_sees_its_environment_its_folder_and_no_input(
    supervisor: Supervisor, tmp_path: Path
) -> None:
    env = {"PATH": os.environ["PATH"], "ODD": "a'b $(id) \udcff {x}\nline"}
    script = 'pwd; printf "%s\\n" "$ODD"; env | grep -c ^HOME=; cat; ulimit -c >/dev/null'
    outcome = supervisor.run(stage(tmp_path, "sh", "-c", script, env=env))
    assert outcome.ok
    printed = (tmp_path / "stdout.log").read_bytes()
    assert printed == os.fsencode(f"{tmp_path.resolve()}\n{env['ODD']}\n0\n")


def test_signals_reach_a_stage_as_a_shell_would_hand_them_on(
    supervisor: Supervisor, tmp_path: Path
) -> None:
    # Python ignores SIGPIPE, and an ignored signal stays ignored over exec: `yes | head` then
    # complains instead of ending.
    outcome = shell(supervisor, tmp_path, "grep -E 'SigIgn|SigBlk' /proc/self/status")
    assert outcome.ok
    for line in (tmp_path / "stdout.log").read_text().splitlines():
        assert int(line.split()[1], 16) & 0x7FFFFFFF == 0, line


def test_a_stage_has_the_flows_priority(supervisor: Supervisor, tmp_path: Path) -> None:
    # The attendant goes before others; its stage must not.
    outcome = shell(
        supervisor, tmp_path, "cut -d' ' -f19 /proc/self/stat; cat /proc/self/oom_score_adj"
    )
    assert outcome.ok
    printed = (tmp_path / "stdout.log").read_text().split()
    assert printed[0] == str(os.getpriority(os.PRIO_PROCESS, 0))
    assert printed[1] == "1000"


def test_the_deadline_asks_first_and_then_kills(supervisor: Supervisor, tmp_path: Path) -> None:
    script = "trap 'echo asked' TERM; while :; do sleep 0.02; done"
    outcome = shell(supervisor, tmp_path, script, timeout_s=0.3, grace_s=0.3)
    assert (outcome.reason, outcome.signal) == (EndReason.TIMEOUT, signal.SIGKILL)
    assert "deadline of 0.3 s" in outcome.detail
    assert "asked" in (tmp_path / "stdout.log").read_text()
    assert 0.55 < outcome.usage.wall_s < 3


def test_a_stage_that_ends_within_the_grace_keeps_its_exit_code(
    supervisor: Supervisor, tmp_path: Path
) -> None:
    script = "trap 'exit 9' TERM; while :; do sleep 0.02; done"
    outcome = shell(supervisor, tmp_path, script, timeout_s=0.3, grace_s=20.0)
    assert (outcome.reason, outcome.exit_code) == (EndReason.TIMEOUT, 9)
    assert outcome.usage.wall_s < 10


def test_a_stopped_stage_is_ended_by_its_deadline_too(
    supervisor: Supervisor, tmp_path: Path
) -> None:
    outcome = shell(supervisor, tmp_path, "kill -STOP $$", timeout_s=0.3, grace_s=20.0)
    assert (outcome.reason, outcome.signal) == (EndReason.TIMEOUT, signal.SIGTERM)


def test_cpu_time_is_that_of_the_whole_tree(supervisor: Supervisor, tmp_path: Path) -> None:
    burn = "import time\nwhile time.process_time() < 0.15: pass"
    script = f'{sys.executable} -S -c "{burn}" & {sys.executable} -S -c "{burn}" & wait'
    outcome = shell(supervisor, tmp_path, script)
    used = outcome.usage
    assert used.cpu_user_s is not None
    assert used.cpu_system_s is not None
    assert 0.3 <= used.cpu_user_s + used.cpu_system_s < 0.6


def test_the_stages_clock_starts_with_its_program(supervisor: Supervisor, tmp_path: Path) -> None:
    outcomes = [shell(supervisor, tmp_path, "sleep 0.1") for _ in range(3)]
    assert 0.1 <= min(outcome.usage.wall_s for outcome in outcomes) < 0.15
    used = min(outcome.usage.cpu_user_s or 0.0 for outcome in outcomes)
    assert used < 0.02  # not that of the Python process which became the program


def test_what_a_finished_stage_left_running_is_ended_and_noted(
    supervisor: Supervisor, tmp_path: Path
) -> None:
    outcome = supervisor.run(stage(tmp_path, "sh", "-c", "sleep 600 & echo done", tag="left"))
    assert outcome.ok
    assert outcome.usage.wall_s < 0.1
    assert "left processes running, which were ended: sleep (PID" in outcome.notes[0]
    assert tagged("left") == []


def test_what_ends_by_itself_right_after_the_stage_is_no_leftover(
    supervisor: Supervisor, tmp_path: Path
) -> None:
    outcome = shell(supervisor, tmp_path, "(sleep 0.03; echo last words) & echo first")
    assert outcome.ok
    assert outcome.notes == ()
    assert (tmp_path / "stdout.log").read_text() == "first\nlast words\n"


def test_cancel_from_another_thread_ends_all_that_runs(
    supervisor: Supervisor, tmp_path: Path
) -> None:
    outcomes: dict[int, StageOutcome] = {}

    def run(number: int) -> None:
        folder = tmp_path / str(number)
        folder.mkdir()
        launch = stage(folder, "sh", "-c", "sleep 600", tag=f"cancel{number}")
        outcomes[number] = supervisor.run(launch)

    threads = [threading.Thread(target=run, args=(number,)) for number in range(3)]
    for thread in threads:
        thread.start()
    for number in range(3):
        wait_until(partial(tagged, f"cancel{number}"), "a running stage")
    supervisor.cancel()
    for thread in threads:
        thread.join(10)
    assert [outcomes[number].reason for number in range(3)] == [EndReason.CANCELLED] * 3
    assert all(tagged(f"cancel{number}") == [] for number in range(3))
    assert shell(supervisor, tmp_path, "true").ok  # what comes after is not cancelled


def test_a_second_cancel_takes_away_the_grace(supervisor: Supervisor, tmp_path: Path) -> None:
    script = "trap '' TERM; echo ready; while :; do sleep 0.02; done"
    done: list[StageOutcome] = []
    thread = threading.Thread(
        target=lambda: done.append(shell(supervisor, tmp_path, script, grace_s=60.0))
    )
    thread.start()
    log = tmp_path / "stdout.log"
    wait_until(lambda: log.exists() and log.read_text(), "the trap")
    supervisor.cancel()
    supervisor.cancel()
    thread.join(10)
    assert [(outcome.reason, outcome.signal) for outcome in done] == [(EndReason.CANCELLED, 9)]


def test_an_exception_raised_in_the_waiting_thread_ends_the_stage_first(
    supervisor: Supervisor, tmp_path: Path
) -> None:
    """How Prefect cancels a task that runs in a thread."""

    class FlowCancelled(BaseException):
        pass

    caught: list[BaseException] = []

    def run() -> None:
        try:
            supervisor.run(stage(tmp_path, "sleep", "600", tag="raised"))
        except FlowCancelled as error:
            assert tagged("raised") == []
            caught.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    wait_until(lambda: tagged("raised"), "a running stage")
    assert thread.ident is not None
    ctypes.pythonapi.PyThreadState_SetAsyncExc(
        ctypes.c_ulong(thread.ident), ctypes.py_object(FlowCancelled)
    )
    thread.join(10)
    assert len(caught) == 1


def test_a_forked_child_runs_stages_with_a_zygote_of_its_own(
    supervisor: Supervisor, tmp_path: Path
) -> None:
    assert shell(supervisor, tmp_path, "true").ok
    child = os.fork()
    if child == 0:
        with supervisor:
            ok = shell(supervisor, tmp_path, "echo $PPID; exit 0").ok
        os._exit(0 if ok else 1)
    assert os.waitpid(child, 0)[1] == 0
    assert shell(supervisor, tmp_path, "true").ok


def test_a_dead_zygote_is_replaced_and_the_running_stage_goes_on(tmp_path: Path) -> None:
    with Supervisor() as supervisor:
        done: list[StageOutcome] = []
        launch = stage(tmp_path, "sh", "-c", "while [ ! -e go ]; do sleep 0.02; done", tag="goes")
        thread = threading.Thread(target=lambda: done.append(supervisor.run(launch)))
        thread.start()
        wait_until(lambda: tagged("goes"), "a running stage")
        zygote = supervisor._zygote
        assert zygote is not None
        zygote.process.kill()
        zygote.process.wait()
        other = tmp_path / "other"
        other.mkdir()
        assert shell(supervisor, other, "true").ok
        (tmp_path / "go").touch()
        thread.join(10)
        assert done[0].ok


def test_a_killed_attendant_means_lost_and_nothing_left(
    supervisor: Supervisor, tmp_path: Path
) -> None:
    done: list[StageOutcome] = []
    launch = stage(tmp_path, "sh", "-c", "setsid sleep 600 & sleep 600", tag="lost")
    thread = threading.Thread(target=lambda: done.append(supervisor.run(launch)))
    thread.start()
    wait_until(lambda: len(tagged("lost")) >= 3, "a running stage")
    os.kill(attendant_of("lost"), signal.SIGKILL)
    thread.join(10)
    assert tagged("lost") == []
    assert done[0].reason is EndReason.LOST
    assert "was ended by signal 9" in done[0].detail


def test_term_to_the_attendant_ends_its_stage(supervisor: Supervisor, tmp_path: Path) -> None:
    done: list[StageOutcome] = []
    launch = stage(tmp_path, "sleep", "600", tag="term")
    thread = threading.Thread(target=lambda: done.append(supervisor.run(launch)))
    thread.start()
    wait_until(lambda: tagged("term"), "a running stage")
    os.kill(attendant_of("term"), signal.SIGTERM)
    thread.join(10)
    assert done[0].reason is EndReason.CANCELLED
    assert "SIGTERM" in done[0].detail


WATCH = """
class Watch:
    interval_s = 0.01

    def __init__(self, launch):
        self.launch = launch
        self.looks = 0

    def look(self, pids):
        self.looks += 1
        if self.launch.vram_mb == 1:
            raise RuntimeError("driver gone")
        if self.looks >= 3 and len(pids) == 2:
            return "The stage held 900 MB on GPU-7, over 500 MB."

    def peak_mb(self):
        return 900.0
"""


def test_a_further_guard_is_polled_with_the_stages_processes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "harm_watch.py").write_text(WATCH)
    monkeypatch.syspath_prepend(tmp_path)
    with Supervisor(watch="harm_watch:Watch") as supervisor:
        outcome = shell(supervisor, tmp_path, "sleep 600 & wait", vram_mb=500.0, gpus=("GPU-7",))
        assert outcome.reason is EndReason.VRAM
        assert outcome.detail == "The stage held 900 MB on GPU-7, over 500 MB."
        assert outcome.usage.vram_peak_mb == 900.0
        assert outcome.usage.gpu_seconds == pytest.approx(outcome.usage.wall_s)
        lost = shell(supervisor, tmp_path, "sleep 600", vram_mb=1.0)
        assert (lost.reason, lost.exit_code) == (EndReason.FAILED, None)
        assert "was lost: RuntimeError: driver gone" in lost.detail
    with Supervisor(watch="harm_watch:Missing") as supervisor:
        refused = shell(supervisor, tmp_path, "echo ran")
        assert refused.reason is EndReason.FAILED
        assert "can't be set up" in refused.detail
        assert (tmp_path / "stdout.log").read_text() == ""


def test_nothing_of_the_flow_is_held_open(supervisor: Supervisor, tmp_path: Path) -> None:
    """A worker waits for the end of its flow's output: an orphan that holds it is never noticed."""
    reader, writer = os.pipe()
    os.set_inheritable(writer, True)
    with Supervisor() as fresh:
        outcome = fresh.run(stage(tmp_path, "ls", "/proc/self/fd"))
        zygote = fresh._zygote
        assert zygote is not None
        held = []
        for path in Path(f"/proc/{zygote.process.pid}/fd").iterdir():
            with suppress(FileNotFoundError):  # the zygote closes what the stage needed
                held.append(path.readlink())
    flow = Path(f"/proc/self/fd/{writer}").readlink()
    os.close(reader)
    os.close(writer)
    assert outcome.ok
    # Its three streams, and the folder that `ls` reads.
    assert (tmp_path / "stdout.log").read_text().split() == ["0", "1", "2", "3"]
    assert flow not in held


def test_a_closed_supervisor_leaves_no_process(tmp_path: Path) -> None:
    with Supervisor() as supervisor:
        assert shell(supervisor, tmp_path, "true").ok
        zygote = supervisor._zygote
        assert zygote is not None
    assert zygote.process.poll() is not None


def test_many_short_stages_leave_no_descriptor_behind(
    supervisor: Supervisor, tmp_path: Path
) -> None:
    def opened() -> int:
        return len(list(Path("/proc/self/fd").iterdir()))

    shell(supervisor, tmp_path, "true")
    before = opened()
    began = time.monotonic()
    for _ in range(30):
        shell(supervisor, tmp_path, "true")
    assert opened() == before
    zygote = supervisor._zygote
    assert zygote is not None
    assert len(list(Path(f"/proc/{zygote.process.pid}/fd").iterdir())) < 12
    assert time.monotonic() - began < 30


def test_ctrl_c_ends_the_stage_before_it_is_passed_on(tmp_path: Path) -> None:
    with Supervisor() as supervisor:
        main = threading.main_thread().ident
        assert main is not None

        def press() -> None:
            wait_until(lambda: tagged("ctrl-c"), "a running stage")
            signal.pthread_kill(main, signal.SIGINT)

        thread = threading.Thread(target=press)
        thread.start()
        with pytest.raises(KeyboardInterrupt):
            supervisor.run(stage(tmp_path, "sleep", "600", tag="ctrl-c"))
        assert tagged("ctrl-c") == []
        thread.join()


def test_a_flow_without_descriptors_gets_an_outcome(tmp_path: Path) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    free = os.dup(0)  # the lowest number that isn't taken
    os.close(free)
    with Supervisor() as supervisor:
        resource.setrlimit(resource.RLIMIT_NOFILE, (free, hard))
        try:
            outcome = supervisor.run(stage(tmp_path, "true"))
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        assert outcome.reason is EndReason.FAILED
        assert "can't be supervised" in outcome.detail


def test_a_large_environment_reaches_the_stage(supervisor: Supervisor, tmp_path: Path) -> None:
    # Larger than a socket's buffer: the order is still being sent while the attendant starts.
    env = {"PATH": os.environ["PATH"], **{f"V{n}": "x" * 100_000 for n in range(10)}}
    outcome = supervisor.run(stage(tmp_path, "sh", "-c", "echo ${#V9}", env=env))
    assert outcome.ok, outcome.detail
    assert (tmp_path / "stdout.log").read_text() == "100000\n"


def test_many_stages_at_once_don_t_mistake_each_other(
    supervisor: Supervisor, tmp_path: Path
) -> None:
    outcomes: dict[int, StageOutcome] = {}

    def run(number: int) -> None:
        folder = tmp_path / str(number)
        folder.mkdir()
        outcomes[number] = shell(
            supervisor, folder, f"sleep 0.1; exit {number}", memory_mb=100.0, label=f"n{number}"
        )

    threads = [threading.Thread(target=run, args=(number,)) for number in range(24)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert {number: outcome.exit_code for number, outcome in outcomes.items()} == {
        number: number for number in range(24)
    }, [outcome.detail for outcome in outcomes.values()]

"""The harm that a stage can do: processes left behind, memory without end, a neighbour killed.

For `benchmarks/supervision.py` and for the tests of supervision. Everything runs in a process of
its own (`requester`), which stands for the flow and may be killed, and in a control group that is
made below this process's own and removed afterwards.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from benchwright.execution import cgroup, tree
from benchwright.execution.launch import EndReason, StageLaunch, StageOutcome, Usage
from benchwright.execution.orphans import mark_of

MB = 10**6
TAG = "HARM_TAG"
PATIENCE_S = 20.0
ROOT = Path(__file__).parents[1]
ALLOCATE = Path(__file__).with_name("allocate.py")


@dataclass(frozen=True, slots=True)
class Leftover:
    """A stage that leaves processes behind.

    Attributes:
        script: For `sh -c`.
        processes: How many it consists of, when all have started.
    """

    script: str
    processes: int


LEFTOVERS: Mapping[str, Leftover] = {
    "background": Leftover("sleep 600 & sleep 600 & wait", 3),
    "double fork": Leftover("(sleep 600 &); (sh -c 'sleep 600; :' &); sleep 600; :", 5),
    "setsid": Leftover("setsid sh -c 'setsid sleep 600 & sleep 600; :' & wait", 4),
    "TERM ignored": Leftover(
        "trap '' TERM HUP INT; sleep 600 & (setsid sleep 600 &); while :; do sleep 600; done", 4
    ),
}


# Looking at processes from outside


def tagged(tag: str) -> list[int]:
    """Living processes with a tag in their environment."""
    wanted = f"{TAG}={tag}".encode()
    found = []
    for pid in tree.all_processes():
        environ = tree.read_proc(f"/proc/{pid}/environ")
        if environ and wanted in environ.split(b"\0") and tree.alive(pid):
            found.append(pid)
    return found


def wait_until(fact: Callable[[], Any], what: str, patience_s: float = PATIENCE_S) -> Any:
    """Wait until a fact is true and return it."""
    deadline = time.monotonic() + patience_s
    while not (value := fact()):
        if time.monotonic() > deadline:
            raise TimeoutError(f"not seen within {patience_s:g} s: {what}")
        time.sleep(0.002)
    return value


def attendant_of(tag: str) -> int:
    """The supervising process of a tagged stage."""
    for pid in tagged(tag):
        mark = mark_of(pid)
        if mark is not None:
            return mark.supervisor
    raise LookupError(f"no stage is tagged {tag}")


def cpu_seconds(pid: int) -> float:
    """CPU time of a living process, from the scheduler's own nanoseconds."""
    schedstat = tree.read_proc(f"/proc/{pid}/schedstat")
    if not schedstat:
        raise ProcessLookupError(pid)
    return int(schedstat.split()[0]) / 1e9


# A group for a trial


@contextmanager
def parent_group(limit_mb: float | None = None) -> Iterator[Path]:
    """A version-1 memory group below this process's own, removed at the end with all in it.

    Raises:
        OSError: It can't be made here.
    """
    own = cgroup.own_memory_group(1)
    if own is None:
        raise OSError("no version-1 memory group below the root holds this process")
    path = own.path / f"harm-{uuid.uuid4().hex[:8]}"
    path.mkdir()
    try:
        if limit_mb is not None:
            cgroup.write(path / "memory.limit_in_bytes", str(round(limit_mb * MB)))
        yield path
    finally:
        deadline = time.monotonic() + PATIENCE_S
        while (alive := cgroup.members(path)) and time.monotonic() < deadline:
            tree.tell(alive, signal.SIGKILL)
            time.sleep(0.005)
        cgroup.remove(path)


def group_reason() -> str:
    """Why no group can be made here; empty where one can."""
    try:
        with parent_group():
            return ""
    except OSError as error:
        return str(error)


def peak_mb(group: Path) -> float:
    """The group's largest memory since the last reset."""
    return int((group / "memory.max_usage_in_bytes").read_text()) / MB


def reset_peak(group: Path) -> float:
    """Start the group's peak anew from its present memory, page cache dropped; in MB."""
    with suppress(OSError):
        cgroup.write(group / "memory.force_empty", "0")
    cgroup.write(group / "memory.max_usage_in_bytes", "0")
    return int((group / "memory.usage_in_bytes").read_text()) / MB


# The process that asks for a stage


@dataclass(slots=True)
class Requester:
    """A process that runs one stage through a `Supervisor`, as a flow does.

    Attributes:
        process: The process.
        tag: In the environment of all that the stage starts.
        folder: For the stage's output.
        group_peak_mb: By how much the stage raised the memory of the group that both are in; an
            account that is independent of the guard's. None without a group.
    """

    process: subprocess.Popen[str]
    tag: str
    folder: Path
    group_peak_mb: float | None = None

    def outcome(self) -> StageOutcome:
        """Its outcome, when it has ended."""
        answer, _ = self.process.communicate(timeout=PATIENCE_S)
        fields = json.loads(answer.splitlines()[-1])
        self.group_peak_mb = fields.pop("group_peak_mb")
        fields["reason"] = EndReason(fields["reason"])
        fields["usage"] = Usage(**fields["usage"])
        fields["notes"] = tuple(fields["notes"])
        return StageOutcome(**fields)

    def wait_for(self, processes: int) -> None:
        """Wait until the stage's tree has this many processes."""
        wait_until(
            lambda: self.process.poll() is not None or len(tagged(self.tag)) >= processes,
            f"{processes} processes of the stage",
        )

    def end(self) -> None:
        """End it and all that is tagged, whatever has happened."""
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        if self.process.stdout is not None:
            self.process.stdout.close()
        while alive := tagged(self.tag):
            tree.tell(alive, signal.SIGKILL)
            time.sleep(0.005)


@contextmanager
def requester(
    argv: tuple[str, ...],
    folder: Path,
    *,
    group: Path | None = None,
    mechanism: str | None = None,
    **options: Any,
) -> Iterator[Requester]:
    """Start a requester; `options` are fields of its `StageLaunch`."""
    tag = uuid.uuid4().hex
    request = {
        "argv": list(argv),
        "folder": str(folder),
        "tag": tag,
        "group": str(group) if group is not None else None,
        "mechanism": mechanism,
        "options": options,
    }
    process = subprocess.Popen(
        [sys.executable, "-m", "benchmarks.harm", "request", json.dumps(request)],
        cwd=ROOT,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        text=True,
        env={key: value for key, value in os.environ.items() if key != TAG},
    )
    asked = Requester(process, tag, folder)
    try:
        yield asked
    finally:
        asked.end()


def stage(folder: Path, *argv: str, tag: str = "", **options: Any) -> StageLaunch:
    """A launch with its output in a folder."""
    launch = StageLaunch(
        argv=argv,
        cwd=folder,
        env={**os.environ, TAG: tag} if tag else dict(os.environ),
        stdout=folder / "stdout.log",
        stderr=folder / "stderr.log",
        label="trial/stage/arm/0",
    )
    return replace(launch, **options)


def _request(text: str) -> None:
    """In the requester's process."""
    from benchwright.execution.supervisor import Supervisor

    request = json.loads(text)
    if request["group"] is not None:
        cgroup.write(Path(request["group"], "cgroup.procs"), "0")
    launch = stage(
        Path(request["folder"]), *request["argv"], tag=request["tag"], **request["options"]
    )
    group = Path(request["group"]) if request["group"] is not None else None
    before = peak = None
    with Supervisor(mechanism=request["mechanism"]) as supervisor:
        if group is not None:
            supervisor.run(stage(launch.cwd, "true"))  # the supervisor's own memory is there now
            before = reset_peak(group)
        signal.signal(signal.SIGUSR1, lambda *_: supervisor.cancel())
        try:
            outcome = supervisor.run(launch)
        except KeyboardInterrupt:
            outcome = StageOutcome(EndReason.CANCELLED, None, None, Usage(0.0), "Ctrl-C")
        if group is not None and before is not None:
            peak = peak_mb(group) - before
    print(json.dumps({**asdict(outcome), "group_peak_mb": peak}))


# How a stage is ended from outside


def _end_by_timeout(asked: Requester) -> None:
    """Nothing to do: the deadline comes."""


def _end_by_ctrl_c(asked: Requester) -> None:
    asked.process.send_signal(signal.SIGINT)


def _end_by_cancel(asked: Requester) -> None:
    asked.process.send_signal(signal.SIGUSR1)


def _end_by_killing_flow(asked: Requester) -> None:
    asked.process.kill()


def _end_by_killing_supervisor(asked: Requester) -> None:
    with suppress(LookupError):
        os.kill(attendant_of(asked.tag), signal.SIGKILL)


ENDINGS: Mapping[str, Callable[[Requester], None]] = {
    "time-out": _end_by_timeout,
    "Ctrl-C": _end_by_ctrl_c,
    "cancel": _end_by_cancel,
    "kill -9 of the flow": _end_by_killing_flow,
    "kill -9 of the supervisor": _end_by_killing_supervisor,
}

DEADLINE_S = 0.5
"""Of a stage that is ended by its deadline: its whole tree has started by then."""


def orphans_after(leftover: str, ending: str, folder: Path, grace_s: float = 0.2) -> int:
    """Run a stage that leaves processes behind, end it, and count what lives afterwards.

    Where the flow survives, it is counted at the moment when `run` returns. Where the flow was
    killed there is nobody to return to: what lives two seconds after the grace period is counted.
    """
    kind = LEFTOVERS[leftover]
    options: dict[str, Any] = {"grace_s": grace_s}
    if ending == "time-out":
        options["timeout_s"] = DEADLINE_S
    with requester(("sh", "-c", kind.script), folder, **options) as asked:
        asked.wait_for(kind.processes)
        ENDINGS[ending](asked)
        if ending == "kill -9 of the flow":
            with suppress(TimeoutError):
                wait_until(lambda: not tagged(asked.tag), "no orphan", grace_s + 2.0)
        else:
            asked.outcome()
        return len(tagged(asked.tag))


def orphans_without_supervisor(leftover: str) -> int:
    """The control: the same stage as a plain child, ended as `subprocess.run` does on time-out."""
    kind = LEFTOVERS[leftover]
    tag = uuid.uuid4().hex
    plain = subprocess.Popen(
        ["sh", "-c", kind.script], env={**os.environ, TAG: tag}, stdout=subprocess.DEVNULL
    )
    try:
        wait_until(lambda: len(tagged(tag)) >= kind.processes, "the stage's processes")
        plain.kill()
        plain.wait()
        return len(tagged(tag))
    finally:
        while alive := tagged(tag):
            tree.tell(alive, signal.SIGKILL)
            time.sleep(0.005)
        plain.wait()


# What a stage does with memory

NO_MEMORY_DEATHS: Mapping[str, tuple[str, EndReason]] = {
    "exits with 137": ("exit 137", EndReason.FAILED),
    "is killed from outside": ("kill -9 $$", EndReason.FAILED),
    "has a killed child": ("sh -c 'kill -9 $$'; exit 0", EndReason.COMPLETED),
    "reads more than its budget from files": (
        "head -c 300000000 /dev/zero > big; cat big > /dev/null; rm big",
        EndReason.COMPLETED,
    ),
    "stays just within its budget": (
        f"'{sys.executable}' -S -c 'b = bytearray(125 * 10**6); b = None; b = bytearray(10**8)'",
        EndReason.COMPLETED,
    ),
}
"""Stages that are no memory deaths, though they look like one, and how they end."""

NO_DEATH_BUDGET_MB = 150.0


def program(mode: str, **options: float) -> tuple[str, ...]:
    """The argv of `allocate.py`: `runaway`, `hold` or `share`."""
    return (sys.executable, "-S", str(ALLOCATE), mode, json.dumps(options))


@contextmanager
def neighbour(group: Path, mb: float) -> Iterator[subprocess.Popen[bytes]]:
    """An innocent process in a group, that holds memory."""
    with _in_group(program("hold", mb=mb), group) as process:
        assert process.stdout is not None
        if process.stdout.readline() != b"held\n":
            raise RuntimeError("the neighbour got no memory")
        yield process


def runaway_without_guard(group: Path, rate_gb_s: float, limit_mb: float) -> None:
    """The control: a plain child takes memory in a group until the kernel has killed something."""
    before = _oom_kills(group)
    argv = program("runaway", rate_gb_s=rate_gb_s, limit_mb=limit_mb)
    with _in_group(argv, group):
        wait_until(lambda: _oom_kills(group) > before, "the kernel's kill")


def _oom_kills(group: Path) -> int:
    return int((group / "memory.oom_control").read_text().rpartition("oom_kill ")[2])


@contextmanager
def _in_group(argv: tuple[str, ...], group: Path) -> Iterator[subprocess.Popen[bytes]]:
    join = 'echo $$ > "$1" && shift && exec "$@"'
    process = subprocess.Popen(
        ["sh", "-c", join, "sh", str(group / "cgroup.procs"), *argv], stdout=subprocess.PIPE
    )
    try:
        yield process
    finally:
        process.kill()
        process.wait()
        assert process.stdout is not None
        process.stdout.close()


if __name__ == "__main__":
    _request(sys.argv[2])

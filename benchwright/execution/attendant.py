"""One stage, attended from its start until nothing of it is left.

An attendant is a process of its own, with one thread and one poll loop. It watches for the end of
the stage, the end of the process that asked for it, the deadline, the memory guard and the output,
and returns when the kernel says that it has no child left (ECHILD): as a child subreaper it is the
parent of everything that the stage left behind.
"""

from __future__ import annotations

import contextlib
import errno
import math
import os
import resource
import select
import signal
import socket
import sys
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from typing import Any, NamedTuple, Protocol

from benchwright.execution import linux, memory, orphans, tree
from benchwright.execution.launch import EndReason, StageLaunch, StageOutcome, Usage
from benchwright.execution.output import Stream
from benchwright.execution.wire import Cancel, Ended, Gone, Inbox, Order, Started, send

OOM_SCORE = 1000
"""The kernel's first choice when the machine runs out of memory: never a neighbour."""

LINGER_S = 0.1
"""What the main process left behind may end by itself for this long: a `tee` that writes its last
lines is no leftover."""

NO_PROCESS = (
    "The stage was not started: no further process can be made ({}). "
    "Compare `ps -e | wc -l` with `ulimit -u`."
)

KILL_PATIENCE_S = 30.0
"""A process that survives KILL for so long sits in the kernel (state D); it is reported."""

_KILL_AGAIN_S = 0.005
_IO_BLOCK = 512
"""Unit of ru_inblock and ru_oublock on Linux, whatever the file system's."""

_EXIT_NOT_FOUND = 127
_EXIT_NOT_EXECUTABLE = 126


class Watch(Protocol):
    """A further guard of a stage, such as of accelerator memory. Runs in the attendant."""

    interval_s: float

    def look(self, pids: frozenset[int]) -> str | None:
        """Look once.

        Args:
            pids: The processes of the stage.

        Returns:
            A sentence with the limit and the figure to end the stage with reason `vram`.
        """

    def peak_mb(self) -> float | None:
        """Largest memory seen on a device, in MB; None where it can't be attributed."""


@dataclass(frozen=True, slots=True)
class _Birth:
    """What the stage's process said before it became its program.

    Attributes:
        at: Monotonic seconds.
        user_s, system_s: CPU seconds that it had used by then, not the stage's own.
        resident: Its resident set in bytes then, which exec carries over into ru_maxrss.
        failed: The step that failed (`group`, `cwd`, `exec`) and its errno.
    """

    at: float
    user_s: float
    system_s: float
    resident: int
    failed: tuple[str, int] | None = None

    def line(self) -> bytes:
        step, number = self.failed or ("", 0)
        return f"{self.at} {self.user_s} {self.system_s} {self.resident} {number} {step}\n".encode()

    @classmethod
    def parse(cls, data: bytes) -> _Birth | None:
        """The last whole line of the pipe; None where there is none."""
        lines = data.decode().splitlines()
        if not lines:
            return None
        at, user, system, resident, number, step = lines[-1].split(" ")
        failed = (step, int(number)) if step else None
        return cls(float(at), float(user), float(system), int(resident), failed)


@dataclass(slots=True)
class _Ending:
    """The stage is being ended.

    Attributes:
        reason: None where only leftovers of a finished stage are.
        detail: For a person.
        kill_at: Monotonic time at which patience ends.
    """

    reason: EndReason | None
    detail: str
    kill_at: float


class Attendant:
    """Runs one stage to its end.

    Args:
        order: What to run, and how.
        channel: To the process that asked.
        inbox: Messages from there.
        owner: Descriptor of that process (pidfd); None where the kernel has none.
        token: Names the launch.
        niceness: Of the stage.
    """

    def __init__(
        self,
        order: Order,
        channel: socket.socket,
        inbox: Inbox,
        owner: int | None,
        token: str,
        niceness: int,
    ) -> None:
        self._launch: StageLaunch = order.launch
        self._order = order
        self._channel = channel
        self._inbox = inbox
        self._owner = owner
        self._niceness = niceness
        own = tree.stat_of(os.getpid())
        self._mark = orphans.Mark(
            order.home,
            orphans.pid_namespace(),
            os.getpid(),
            own.started if own else 0,
            token,
            self._launch.label,
        )
        self._poll = select.poll()
        self._handlers: dict[int, Callable[[], None]] = {}
        self._streams: list[Stream] = []
        self._guard: memory.Guard | None = None
        self._watch: Watch | None = None
        self._watch_at = math.inf
        self._pid = 0
        self._began = 0.0
        self._finished = 0.0
        self._deadline = math.inf
        self._status: int | None = None
        self._largest = 0
        self._empty = False
        self._told = False
        self._birth_data = b""
        self._birth_fd = -1
        self._ending: _Ending | None = None
        self._breach: memory.Breach | None = None
        self._kill_began = math.inf
        self._notes: list[str] = []
        self._survivors: list[int] = []

    def attend(self, messages: Iterable[object] = ()) -> StageOutcome:
        """Run the stage and return when nothing of it is left.

        Args:
            messages: What had come after the order already.
        """
        try:
            self._prepare()
            self._start()
        except OSError as error:
            self._close()
            return self._not_started(str(error))
        self._obey(messages)
        while not self._empty and not self._given_up():
            now = time.monotonic()
            self._act(now)
            for fd, _ in self._poll.poll(self._timeout_ms(now)):
                if fd in self._handlers:
                    self._handlers[fd]()
        return self._finish()

    # Start

    def _prepare(self) -> None:
        """Everything that can fail before there is a process.

        Raises:
            OSError: With a sentence for a person.
        """
        launch = self._launch
        try:
            self._streams.append(Stream(launch.stdout, launch.output_limit_mb))
            if launch.stderr != launch.stdout:
                self._streams.append(Stream(launch.stderr, launch.output_limit_mb))
        except OSError as error:
            raise OSError(
                f"The stage was not started: its output file {error.filename} can't be "
                f"created ({error.strerror}). Check the folder, its rights and the disk."
            ) from error
        try:
            self._guard = memory.arm(launch.memory_mb, self._mark.leaf, self._order.mechanism)
        except OSError as error:
            raise OSError(
                f"The stage was not started: its memory can't be guarded by "
                f"{self._order.mechanism} here ({error})."
            ) from error
        if self._order.watch is not None:
            self._watch = self._load_watch(self._order.watch)

    def _load_watch(self, name: str) -> Watch | None:
        sys.path.extend(entry for entry in self._order.path if entry not in sys.path)
        module, _, factory = name.partition(":")
        try:
            watch: Watch | None = getattr(import_module(module), factory)(self._launch)
        except Exception as error:  # a guard that can't be set up must not be passed over
            raise OSError(
                f"The stage was not started: its guard {name} can't be set up "
                f"({type(error).__name__}: {error})."
            ) from error
        return watch

    def _start(self) -> None:
        """Listen to all that can happen, and fork the stage's process.

        Raises:
            OSError: With a sentence for a person.
        """
        assert self._guard is not None
        wake, wake_in = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        signal.set_wakeup_fd(wake_in, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.signal(signal.SIGTERM, self._on_term)
        self._handle(wake, lambda: self._reap(wake))
        self._handle(self._channel.fileno(), self._on_message)
        if self._owner is not None:
            self._handle(self._owner, self._on_owner_gone)
        for stream in self._streams:
            self._handle(stream.fd, partial(self._on_output, stream))
        if self._guard.event is not None:
            fd, mask = self._guard.event
            self._handle(fd, lambda: self._look(time.monotonic()), mask)
        self._birth_fd, birth_in = os.pipe2(os.O_CLOEXEC)
        self._handle(self._birth_fd, self._on_birth)
        stdout, stderr = self._streams[0].stage_fd, self._streams[-1].stage_fd
        with contextlib.suppress(Gone):
            send(self._channel, Started(os.getpid()))
        parent = os.getpid()
        self._began = time.monotonic()
        try:
            self._pid = os.fork()
        except OSError as error:
            raise OSError(NO_PROCESS.format(error.strerror)) from error
        if self._pid == 0:
            fds = _Fds(self._guard.join_fd, stdout, stderr, birth_in)
            _become(self._launch, self._mark, fds, parent, self._niceness)
        os.close(birth_in)
        if self._guard.must_be_punctual:
            linux.go_first()
        for stream in self._streams:
            stream.started()
        if self._launch.timeout_s is not None:
            self._deadline = self._began + self._launch.timeout_s
        if self._watch is not None:
            self._watch_at = self._began

    def _handle(self, fd: int, handler: Callable[[], None], mask: int = select.POLLIN) -> None:
        self._handlers[fd] = handler
        self._poll.register(fd, mask)

    def _drop(self, fd: int) -> None:
        if self._handlers.pop(fd, None) is not None:
            self._poll.unregister(fd)

    # Events

    def _on_birth(self) -> None:
        data = os.read(self._birth_fd, 4096)
        self._birth_data += data
        if not data:
            self._drop(self._birth_fd)
            assert self._guard is not None
            self._guard.begin(self._pid, time.monotonic())

    def _on_output(self, stream: Stream) -> None:
        now = time.monotonic()
        stream.drain(now)
        if not stream.open or stream.due > now:
            self._drop(stream.fd)

    def _on_message(self) -> None:
        try:
            messages = self._inbox.receive()
        except Gone:
            self._on_owner_gone()
            return
        self._obey(messages)

    def _obey(self, messages: Iterable[object]) -> None:
        for message in messages:
            if isinstance(message, Cancel):
                self._end(EndReason.CANCELLED, "The stage was cancelled.", message.at_once)

    def _on_owner_gone(self) -> None:
        self._drop(self._channel.fileno())
        if self._owner is not None:
            self._drop(self._owner)
        self._end(EndReason.CANCELLED, "The process that asked for the stage has ended.")

    def _on_term(self, *_: object) -> None:
        # Runs between any two steps of the loop: only leaves word; the wake-up pipe wakes the loop.
        self._told = True

    def _reap(self, wake: int | None = None) -> None:
        """Bury the dead; the main process's end is the stage's."""
        if wake is not None:
            with contextlib.suppress(BlockingIOError):
                os.read(wake, 4096)
        while True:
            try:
                pid, status, usage = os.wait4(-1, os.WNOHANG)
            except ChildProcessError:
                self._empty = not self._members()
                return
            if pid == 0:
                return
            if pid == self._pid:
                self._finished = time.monotonic()
                self._status = status
                self._deadline = math.inf
            self._largest = max(self._largest, usage.ru_maxrss * 1024)

    # What is due

    def _act(self, now: float) -> None:
        if self._told:
            self._told = False
            self._end(EndReason.CANCELLED, "The stage's supervisor was told to end (SIGTERM).")
        for stream in self._streams:
            if stream.open and stream.fd not in self._handlers and now >= stream.due:
                self._handle(stream.fd, partial(self._on_output, stream))
        if now >= self._look_due():
            self._look(now)
        if now >= self._watch_at:
            self._look_further(now)
        if now >= self._deadline:
            self._deadline = math.inf
            self._end(
                EndReason.TIMEOUT,
                f"The stage was ended at its deadline of {self._launch.timeout_s:g} s.",
            )
        if self._status is not None and self._ending is None:
            # The main process has ended by itself and left others behind.
            self._ending = _Ending(None, "", self._finished + LINGER_S)
        if self._ending is not None and now >= self._ending.kill_at:
            self._press(self._ending, now)

    def _timeout_ms(self, now: float) -> int:
        due = min(self._look_due(), self._watch_at, self._deadline)
        if self._ending is not None:
            due = min(due, self._ending.kill_at)
        elif self._status is not None:
            due = now
        for stream in self._streams:
            if stream.open and stream.fd not in self._handlers:
                due = min(due, stream.due)
        if self._empty:
            due = now
        return max(0, math.ceil(min(due - now, 60.0) * 1000))

    def _look_due(self) -> float:
        assert self._guard is not None
        return self._guard.next_look() if self._breach is None else math.inf

    def _look(self, now: float) -> None:
        assert self._guard is not None
        breach = self._guard.look(now) if self._breach is None else None
        if breach is None:
            return
        self._breach = breach
        reason = EndReason.MEMORY if breach.proven else EndReason.FAILED
        self._end(reason, breach.detail, at_once=True)

    def _look_further(self, now: float) -> None:
        assert self._watch is not None
        self._watch_at = now + self._watch.interval_s
        try:
            sentence = self._watch.look(frozenset(self._members()))
        except Exception as error:  # a guard that fails ends the stage: it fails closed
            self._watch_at = math.inf
            self._end(
                EndReason.FAILED,
                f"The guard {self._order.watch} was lost: {type(error).__name__}: {error}.",
                at_once=True,
            )
            return
        if sentence:
            self._watch_at = math.inf
            self._end(EndReason.VRAM, sentence, at_once=True)

    # The end

    def _members(self) -> list[int]:
        """The stage's processes: all below this one, and what is in its group."""
        found = tree.descendants([os.getpid()])
        if self._guard is not None:
            found += [pid for pid in self._guard.members() if pid not in found]
        return found

    def _end(self, reason: EndReason, detail: str, at_once: bool = False) -> None:
        """Ask the tree to end, or take away its grace. The first reason stays."""
        kill_at = 0.0 if at_once else time.monotonic() + self._launch.grace_s
        if self._ending is not None and self._ending.reason is not None:
            self._ending.kill_at = min(self._ending.kill_at, kill_at)
        elif self._status is not None and reason is EndReason.CANCELLED:
            # The main process had ended before: its own end is the result.
            if self._ending is not None:
                self._ending.kill_at = min(self._ending.kill_at, kill_at)
        else:
            self._ending = _Ending(reason, detail, kill_at)
            if not at_once:
                self._ask()

    def _ask(self) -> None:
        """TERM to the whole tree; who is stopped has to wake up for it."""
        members = self._members()
        tree.tell(members, signal.SIGTERM)
        tree.tell(members, signal.SIGCONT)

    def _press(self, ending: _Ending, now: float) -> None:
        """Patience is over: leftovers are asked first, everything else is killed."""
        assert self._guard is not None
        if ending.reason is None and not self._survivors:
            self._survivors = [pid for pid in self._members() if tree.alive(pid)]
            if self._survivors:
                names = ", ".join(map(tree.describe, self._survivors[:5]))
                more = f" and {len(self._survivors) - 5} more" if len(self._survivors) > 5 else ""
                self._notes.append(
                    f"The stage left processes running, which were ended: {names}{more}."
                )
                self._ask()
                ending.kill_at = now + self._launch.grace_s
                return
        self._kill_began = min(self._kill_began, now)
        self._guard.kill()
        tree.kill_all(self._members)
        ending.kill_at = now + _KILL_AGAIN_S
        self._reap()

    def _given_up(self) -> bool:
        if time.monotonic() - self._kill_began < KILL_PATIENCE_S:
            return False
        names = ", ".join(map(tree.describe, self._members()))
        self._notes.append(f"These processes could not be ended, they hang in the kernel: {names}.")
        return True

    def _close(self) -> None:
        for stream in self._streams:
            stream.close()
        if self._guard is not None:
            self._guard.close()

    def _finish(self) -> StageOutcome:
        assert self._guard is not None
        verdict = self._guard.verdict()
        birth = self._birth()
        largest = self._largest if birth is None or self._largest > birth.resident else None
        peak = self._guard.peak(largest)
        self._close()
        used = resource.getrusage(resource.RUSAGE_CHILDREN)
        status = self._status if self._status is not None else 0
        code = os.WEXITSTATUS(status) if os.WIFEXITED(status) else None
        number = os.WTERMSIG(status) if os.WIFSIGNALED(status) else None
        began = birth.at if birth is not None else self._began
        usage = Usage(
            wall_s=max((self._finished or time.monotonic()) - began, 0.0),
            cpu_user_s=max(used.ru_utime - (birth.user_s if birth else 0.0), 0.0),
            cpu_system_s=max(used.ru_stime - (birth.system_s if birth else 0.0), 0.0),
            peak_memory_mb=peak / memory.MB if peak is not None else None,
            read_mb=used.ru_inblock * _IO_BLOCK / memory.MB,
            written_mb=used.ru_oublock * _IO_BLOCK / memory.MB,
            stdout_bytes=self._streams[0].file.total,
            stderr_bytes=self._streams[1].file.total if len(self._streams) > 1 else 0,
            guard=self._guard.name,
            vram_peak_mb=self._watch.peak_mb() if self._watch is not None else None,
            gpu_seconds=len(self._launch.gpus) * max((self._finished or began) - began, 0.0),
        )
        self._note_output()
        # A watch may have more to say, such as why it has no figure.
        self._notes += getattr(self._watch, "notes", tuple)()
        if birth is not None and birth.failed is not None:
            return StageOutcome(
                EndReason.FAILED,
                _exit_code(birth.failed[1]),
                None,
                usage,
                _why_not_started(self._launch, *birth.failed),
            )
        reason, detail = self._judge(verdict, code, number)
        return StageOutcome(reason, code, number, usage, detail, tuple(self._notes))

    def _judge(
        self, verdict: memory.Breach | None, code: int | None, number: int | None
    ) -> tuple[EndReason, str]:
        """The one word for how it ended, and the sentence."""
        ending = self._ending
        if ending is not None and ending.reason is not None:
            if verdict is not None and self._breach is None:
                self._notes.append(verdict.detail)
            return ending.reason, ending.detail
        if verdict is not None:
            return EndReason.MEMORY, verdict.detail
        if code == 0:
            for stream in self._streams:
                if stream.file.error is not None:
                    return EndReason.FAILED, self._notes[-1]
            return EndReason.COMPLETED, ""
        if number is not None:
            what = (
                f"The stage was ended by {_signal_name(number)}, which its supervisor did not "
                "send; no counter says that memory ran out."
            )
        else:
            what = f"The stage ended with exit code {code}."
        return EndReason.FAILED, what + self._quote()

    def _quote(self) -> str:
        """The end of what the stage printed, for the error."""
        for stream, name in zip(reversed(self._streams), ("error", "output"), strict=False):
            tail = stream.file.tail.decode(errors="replace").strip()
            if tail:
                return f" Its standard {name} ends with:\n{tail}"
        return " It printed nothing."

    def _note_output(self) -> None:
        for stream, path in zip(
            self._streams, (self._launch.stdout, self._launch.stderr), strict=False
        ):
            if stream.file.error is not None:
                self._notes.append(
                    f"{path} could not be written ({stream.file.error.strerror}): "
                    f"{stream.file.dropped} bytes of the stage's output are lost."
                )
            elif stream.file.dropped:
                self._notes.append(
                    f"{path} was cut at its limit of {self._launch.output_limit_mb:g} MB: "
                    f"{stream.file.dropped} of {stream.file.total} bytes were left out between "
                    "its beginning and its end."
                )

    def _birth(self) -> _Birth | None:
        if self._birth_fd in self._handlers:
            while data := os.read(self._birth_fd, 4096):
                self._birth_data += data
        return _Birth.parse(self._birth_data)

    def _not_started(self, sentence: str) -> StageOutcome:
        guard = self._guard.name if self._guard is not None else "none"
        return StageOutcome(EndReason.FAILED, None, None, Usage(0.0, guard=guard), sentence)


def _signal_name(number: int) -> str:
    names = {member.value: member.name for member in signal.Signals}
    return f"signal {number} ({names.get(number, 'real-time')})"


class _Fds(NamedTuple):
    """Descriptors that the stage's process is born with; `join` puts it into its group."""

    join: int | None
    stdout: int
    stderr: int
    birth: int


def _become(launch: StageLaunch, mark: orphans.Mark, fds: _Fds, parent: int, niceness: int) -> None:
    """In the forked child: become the stage's program. Never returns."""

    def say(failed: tuple[str, int] | None = None) -> None:
        used = resource.getrusage(resource.RUSAGE_SELF)
        resident = used.ru_maxrss * 1024
        born = _Birth(time.monotonic(), used.ru_utime, used.ru_stime, resident, failed)
        os.write(fds.birth, born.line())

    step = "session"
    try:
        signal.set_wakeup_fd(-1)
        # Python ignores PIPE and XFSZ, a shell INT and QUIT of what it starts in the background.
        for number in (signal.SIGCHLD, signal.SIGTERM, signal.SIGINT, signal.SIGQUIT, signal.SIGHUP,
                       signal.SIGPIPE, signal.SIGXFSZ):  # fmt: skip
            signal.signal(number, signal.SIG_DFL)
        os.setsid()
        linux.die_with_parent(signal.SIGKILL)
        if os.getppid() != parent:  # it died before the kernel knew of our wish
            os._exit(_EXIT_NOT_FOUND)
        _volunteer()
        os.setpriority(os.PRIO_PROCESS, 0, niceness)
        step = "group"
        if fds.join is not None:
            os.write(fds.join, b"0")
        step = "cwd"
        os.chdir(launch.cwd)
        step = "exec"
        null = os.open(os.devnull, os.O_RDONLY)
        for source, target in ((null, 0), (fds.stdout, 1), (fds.stderr, 2)):
            os.dup2(source, target, inheritable=True)
        environment = {**launch.env, orphans.VARIABLE: str(mark)}
        say()
        os.execvpe(launch.argv[0], list(launch.argv), environment)
    except OSError as error:
        say((step, error.errno or errno.EIO))
    except (IndexError, TypeError, ValueError):  # no program, or a NUL in an argument
        say((step, errno.EINVAL))
    finally:
        os._exit(_EXIT_NOT_FOUND)


def _volunteer() -> None:
    """Make this process the kernel's first victim. Raising the score needs no right."""
    with contextlib.suppress(OSError):
        fd = os.open("/proc/self/oom_score_adj", os.O_WRONLY)
        try:
            os.write(fd, str(OOM_SCORE).encode())
        finally:
            os.close(fd)


def _exit_code(number: int) -> int:
    """What a shell would give for a program that can't be started."""
    return _EXIT_NOT_FOUND if number == errno.ENOENT else _EXIT_NOT_EXECUTABLE


def _why_not_started(launch: StageLaunch, step: str, number: int) -> str:
    reason = os.strerror(number)
    if step == "cwd":
        return f"The stage was not started: its working directory {launch.cwd}: {reason}."
    if step == "group":
        return f"The stage was not started: it could not join its memory group: {reason}."
    if step == "session":
        return f"The stage was not started: it got no session of its own: {reason}."
    program = launch.argv[0] if launch.argv else ""
    if number == errno.ENOENT and "/" not in program:
        path = launch.env.get("PATH")
        where = f"in its PATH ({path})" if path is not None else "(its environment has no PATH)"
        return f"The stage was not started: no program {program!r} {where}."
    if number == errno.ENOEXEC:
        reason = "it is no program; a script needs a first line such as #!/bin/sh"
    if number == errno.EINVAL:
        reason = "its command is empty, or an argument or variable has a NUL byte"
    if number == errno.E2BIG:
        reason = "its arguments and environment are larger than the kernel takes"
    return f"The stage was not started: {program!r}: {reason}."


def main(channel: socket.socket, owner: int | None, token: str, niceness: int) -> None:
    """Attend the one stage that is ordered over a channel.

    Args:
        channel: To the process that asks.
        owner: Its descriptor (pidfd); None where the kernel has none.
        token: Names the launch.
        niceness: Of that process, and so of the stage.
    """
    linux.adopt_orphans()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    inbox = Inbox(channel)
    try:
        messages: list[Any] = []
        while not messages:
            messages = inbox.receive()
    except Gone:
        return
    order: Order = messages[0]
    linux.set_name("bw " + order.launch.label[-12:] if order.launch.label else "bw stage")
    channel.setblocking(False)
    attendant = Attendant(order, channel, inbox, owner, token, niceness)
    outcome = attendant.attend(messages[1:])
    channel.setblocking(True)
    with contextlib.suppress(Gone):
        send(channel, Ended(outcome))

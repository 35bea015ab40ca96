"""Runs the stages of one process, each under supervision.

The stages are not children of the process that runs the flow. That one has many threads, may have
been forked itself, and may be killed at any moment; a small process beside it, the zygote, forks
an attendant for each stage, which ends its stage when the flow is gone. See `zygote` and
`attendant`.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import select
import socket
import subprocess
import sys
import threading
import time
import weakref
from dataclasses import replace
from pathlib import Path
from types import TracebackType

from benchwright.execution import orphans
from benchwright.execution.launch import EndReason, StageLaunch, StageOutcome, Usage
from benchwright.execution.wire import Cancel, Ended, Fault, Gone, Inbox, Order, Started, send

_STARTS = 3
"""A launch is handed to a new zygote this often where one dies before the stage has started."""

_HEARTBEAT_S = 0.2
"""A waiting `run` returns to Python this often: an exception that another thread raises in this
one (a cancelled flow) is only seen there."""

_BOOT = """
import sys
root, control, owner = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
# Packages without their __init__: the zygote needs a few modules of the engine and starts in a
# fraction of the time without the rest.
for name in ("benchwright", "benchwright.execution"):
    package = type(sys)(name)
    package.__path__ = [root + "/" + name.replace(".", "/")]
    sys.modules[name] = package
import socket
from benchwright.execution.zygote import main
main(socket.socket(fileno=control), owner if owner >= 0 else None)
"""


class _Zygote:
    """The running zygote, seen from the process that owns it."""

    def __init__(self) -> None:
        self.control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        fds = [theirs.fileno()]
        # Seen by the attendants as well as a closed socket: a fork of this process may hold a
        # copy of the socket open.
        owner = -1
        with contextlib.suppress(OSError):
            owner = os.pidfd_open(os.getpid())
            fds.append(owner)
        root = str(Path(__file__).resolve().parents[2])
        try:
            self.process = subprocess.Popen(
                [sys.executable, "-I", "-S", "-c", _BOOT, root, str(fds[0]), str(owner)],
                pass_fds=fds,
                # None of the flow's own: a worker waits for the end of its flow's output.
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                start_new_session=True,
                cwd="/",
            )
        finally:
            theirs.close()
            if owner >= 0:
                os.close(owner)

    def hand_over(self, token: str, channel: socket.socket) -> None:
        """Have a stage attended.

        Raises:
            Gone: The zygote has died.
        """
        try:
            socket.send_fds(self.control, [token.encode()], [channel.fileno()])
        except (BrokenPipeError, ConnectionResetError) as error:
            raise Gone from error

    def close(self) -> None:
        """Let it end, when its stages have."""
        self.control.close()
        self.process.wait()

    def forget(self) -> None:
        """In a forked child: it is the parent's."""
        self.control.close()
        self.process.returncode = 0  # not our child: nothing to wait for or to warn of


class _Talk:
    """The conversation with the attendant of one stage.

    Attributes:
        channel: To the attendant.
        started: Whether the stage may have been started.
    """

    def __init__(self, channel: socket.socket) -> None:
        self.channel = channel
        self.started = False
        self._inbox = Inbox(channel)
        self._ordered = False
        self._cancelled = False

    def order(self, order: Order) -> None:
        """Say what to run.

        Raises:
            Gone: The attendant has died.
        """
        send(self.channel, order)
        self._ordered = True

    def outcome(self) -> StageOutcome:
        """Wait for the end of the stage.

        Raises:
            Gone: The attendant has died, and nobody is left who could say so.
        """
        fault = ""
        while True:
            for message in self._receive():
                if isinstance(message, Started):
                    self.started = True
                elif isinstance(message, Fault):
                    fault = f" The fault: {message.text}."
                elif isinstance(message, Ended):
                    outcome: StageOutcome = message.outcome
                    return replace(outcome, detail=outcome.detail + fault)

    def cancel(self) -> None:
        """End the stage; a second time, without its grace. Takes no lock."""
        again, self._cancelled = self._cancelled, True
        with contextlib.suppress(Gone, OSError):
            send(self.channel, Cancel(at_once=again))

    def settle(self) -> None:
        """End the stage of a waiting thread that was interrupted, and wait until it is gone."""
        while True:
            try:
                if self._ordered:
                    self.cancel()
                else:  # an order that was cut short can't be followed by a word
                    self.channel.shutdown(socket.SHUT_WR)
                self.outcome()
            except (Gone, OSError):
                return
            except BaseException:  # interrupted again: no more grace
                continue
            return

    def _receive(self) -> list[object]:
        """Messages that have come; none after a while, for Python to look around."""
        poll = select.poll()
        poll.register(self.channel, select.POLLIN)
        return self._inbox.receive() if poll.poll(_HEARTBEAT_S * 1000) else []


class Supervisor:
    """Runs stages on this machine, each ended with all that came from it. A `Launcher`.

    `run` may be called from many threads at once. After a fork the child's copy starts a zygote
    of its own. Leaving it as a context manager cancels what still runs.

    Args:
        home: Home folder of the runs, for the sweep of orphans.
        mechanism: Name of the memory mechanism to use; None chooses the best that works.
        watch: `module:factory` of a further guard; its factory is called with the launch in the
            attendant's process and returns an `attendant.Watch` or None.
    """

    def __init__(
        self, home: Path | None = None, *, mechanism: str | None = None, watch: str | None = None
    ) -> None:
        self._home = orphans.digest_of(home)
        self._mechanism = mechanism
        self._watch = watch
        self._lock = threading.Lock()
        self._zygote: _Zygote | None = None
        self._running: dict[str, _Talk] = {}
        _supervisors.add(self)

    def run(self, launch: StageLaunch) -> StageOutcome:
        """Run a stage to its end; returns always, and only when nothing of it is left.

        An exception that is raised in the waiting thread (Ctrl-C, a cancelled flow) ends the
        stage first and is then passed on.
        """
        order = Order(
            replace(launch, env=dict(launch.env)),
            self._home,
            self._mechanism,
            self._watch,
            tuple(sys.path) if self._watch is not None else (),
        )
        began = time.monotonic()
        try:
            for _ in range(_STARTS):
                outcome = self._attempt(order, began)
                if outcome is not None:
                    return outcome
        except OSError as error:  # no descriptor or process left for a zygote
            sentence = f"The stage was not started: it can't be supervised ({error})."
            return StageOutcome(EndReason.FAILED, None, None, Usage(0.0), sentence)
        return _lost(began, "The stage was not started: its supervisor died three times.")

    def prepare(self) -> None:
        """Start the zygote, and don't wait for it: the first stage finds it running."""
        with self._lock, contextlib.suppress(OSError):  # `run` says what is wrong
            if self._zygote is None:
                self._zygote = _Zygote()

    def cancel(self) -> None:
        """End what is running, reason `cancelled`; a second call takes away the grace period.

        May be called from another thread or from a signal handler: it takes no lock.
        """
        for talk in list(self._running.values()):
            talk.cancel()

    def close(self) -> None:
        """Cancel what is running and end the zygote."""
        self.cancel()
        with self._lock:
            zygote, self._zygote = self._zygote, None
        if zygote is not None:
            zygote.close()

    def __enter__(self) -> Supervisor:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def _attempt(self, order: Order, began: float) -> StageOutcome | None:
        """Run it once; None where it was not started because the zygote died."""
        token = secrets.token_hex(6)
        ours, theirs = socket.socketpair()
        with ours:
            talk = self._running[token] = _Talk(ours)
            try:
                with theirs:
                    self._hand_over(token, theirs)
                talk.order(order)
                return talk.outcome()
            except Gone:
                if not talk.started:
                    return None
                orphans.sweep_orphans(token=token)
                return _lost(
                    began,
                    "The stage's supervisor and the process above it were killed; the stage was "
                    "ended, and its result is lost.",
                )
            except BaseException:
                talk.settle()
                raise
            finally:
                del self._running[token]

    def _hand_over(self, token: str, channel: socket.socket) -> None:
        """Give a launch to the zygote, to a new one where it has died.

        Raises:
            Gone: Two zygotes in a row have died.
        """
        with self._lock:
            for last in (False, True):
                if self._zygote is None:
                    self._zygote = _Zygote()
                try:
                    self._zygote.hand_over(token, channel)
                except Gone:
                    self._zygote.close()
                    self._zygote = None
                    if last:
                        raise
                else:
                    return

    def _after_fork(self) -> None:
        """In a forked child: the parent's stages and zygote are not ours."""
        self._lock = threading.Lock()
        for talk in self._running.values():
            talk.channel.close()
        self._running = {}
        if self._zygote is not None:
            self._zygote.forget()
            self._zygote = None


def _lost(began: float, sentence: str) -> StageOutcome:
    return StageOutcome(
        EndReason.LOST, None, None, Usage(wall_s=time.monotonic() - began), sentence
    )


_supervisors: weakref.WeakSet[Supervisor] = weakref.WeakSet()


def _forget_all() -> None:
    for supervisor in list(_supervisors):
        supervisor._after_fork()


os.register_at_fork(after_in_child=_forget_all)

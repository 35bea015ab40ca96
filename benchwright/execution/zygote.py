"""The process that forks the attendants of a supervisor's stages.

It has one thread and little memory, so a fork of it is safe and cheap, which is true of neither
for the process that runs the flow. It is a child subreaper as well: where an attendant is killed,
what its stage left becomes the zygote's child, is ended here, and the stage is reported as lost.
"""

from __future__ import annotations

import contextlib
import gc
import os
import select
import signal
import socket
import time
import traceback
from dataclasses import dataclass

from benchwright.execution import attendant, cgroup, linux, orphans
from benchwright.execution.launch import EndReason, StageOutcome, Usage
from benchwright.execution.wire import Ended, Fault, Gone, send

TOKEN_BYTES = 64
"""More than a request takes: the name of the launch, beside the descriptor of its channel."""


NICENESS = -10
"""Of the attendants, where they may: only root, as a rule. Their stages get the flow's."""


@dataclass(frozen=True, slots=True)
class _Attended:
    """A stage that an attendant has in hand.

    Attributes:
        token: Names the launch.
        channel: To the process that asked; the attendant has the same.
        began: Monotonic time.
    """

    token: str
    channel: socket.socket
    began: float


def main(control: socket.socket, owner: int | None) -> None:
    """Serve launches until the owner is gone or closes the control socket.

    Args:
        control: Each message is a launch's token, with the descriptor of its channel.
        owner: Descriptor (pidfd) of the process that the stages belong to.
    """
    linux.adopt_orphans()
    linux.set_name("bw zygote")
    control.set_inheritable(False)
    if owner is not None:
        os.set_inheritable(owner, False)
    wake, wake_in = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
    signal.set_wakeup_fd(wake_in, warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    niceness = _hurry()
    for version in (1, 2):
        cgroup.leaf_parent(version)  # finds the mounts once, for all attendants
    # A collection in a forked child would copy every page that it touches.
    gc.disable()
    gc.freeze()
    attended: dict[int, _Attended] = {}
    poll = select.poll()
    poll.register(wake, select.POLLIN)
    poll.register(control, select.POLLIN)
    if owner is not None:
        poll.register(owner, select.POLLIN)
    serving = True
    while serving or attended:
        for fd, _ in poll.poll():
            if fd == wake:
                with contextlib.suppress(BlockingIOError):
                    os.read(wake, 4096)
                _reap(attended)
            elif fd == owner:
                serving = False
                poll.unregister(owner)
            elif fd == control.fileno():
                launch = _accept(control)
                if launch is None:
                    serving = False
                    poll.unregister(control)
                    continue
                token, channel = launch
                began = time.monotonic()
                try:
                    pid = os.fork()
                except OSError as error:
                    _refuse(channel, error)
                    continue
                if pid == 0:
                    for other in attended.values():
                        other.channel.close()
                    control.close()
                    os.close(wake)
                    os.close(wake_in)
                    _attend(channel, owner, token, niceness)
                attended[pid] = _Attended(token, channel, began)
    orphans.end_descendants(set())


def _accept(control: socket.socket) -> tuple[str, socket.socket] | None:
    """The next launch; None at the end."""
    try:
        token, fds, _, _ = socket.recv_fds(control, TOKEN_BYTES, 1)
    except ConnectionResetError:
        return None
    if not fds:
        return None
    os.set_inheritable(fds[0], False)
    return token.decode(), socket.socket(fileno=fds[0])


def _refuse(channel: socket.socket, error: OSError) -> None:
    sentence = attendant.NO_PROCESS.format(error.strerror)
    outcome = StageOutcome(EndReason.FAILED, None, None, Usage(0.0), sentence)
    with channel, contextlib.suppress(Gone):
        send(channel, Ended(outcome))


def _hurry() -> int:
    """Go before others, where that is allowed, and return the niceness from before.

    Attendants do little, and what they do is urgent: on a busy machine a late look at the memory
    is memory taken, and a late look at the clock is a wrong time.
    """
    niceness = os.getpriority(os.PRIO_PROCESS, 0)
    with contextlib.suppress(OSError):
        os.setpriority(os.PRIO_PROCESS, 0, min(niceness, NICENESS))
    return niceness


def _attend(channel: socket.socket, owner: int | None, token: str, niceness: int) -> None:
    """In the forked child: be the attendant. Never returns."""
    code = 1
    try:
        signal.set_wakeup_fd(-1)
        os.setsid()
        attendant.main(channel, owner, token, niceness)
        code = 0
    except BaseException as error:  # a fault of ours: the zygote ends the stage, which is lost
        where = traceback.extract_tb(error.__traceback__)[-1]
        text = f"{type(error).__name__}: {error} ({where.filename}:{where.lineno})"
        with contextlib.suppress(Gone):
            channel.setblocking(True)
            send(channel, Fault(text))
    finally:
        os._exit(code)


def _reap(attended: dict[int, _Attended]) -> None:
    """Bury the dead; where an attendant did not end by itself, end its stage."""
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return
        if pid == 0:
            return
        stage = attended.pop(pid, None)
        if stage is None:
            continue
        if status != 0:
            orphans.end_descendants(set(attended), stage.token)
            with contextlib.suppress(Gone):
                send(stage.channel, Ended(_lost(status, time.monotonic() - stage.began)))
        stage.channel.close()


def _lost(status: int, ran_s: float) -> StageOutcome:
    if os.WIFSIGNALED(status):
        how = f"was ended by signal {os.WTERMSIG(status)}"
    else:
        how = f"ended with exit code {os.WEXITSTATUS(status)}"
    return StageOutcome(
        EndReason.LOST,
        None,
        None,
        Usage(wall_s=ran_s),
        f"The stage's supervisor {how}; the stage was ended with it, and its result is lost.",
    )

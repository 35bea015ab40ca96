"""One measurement at a time on a machine, whoever asked for it.

A lock in the machine's temporary folder, shared by all homes and all users: builds hold it
together, a measurement holds it alone. Our own builds are noise for a measurement like any other.
The kernel frees it when its holder dies.
"""

from __future__ import annotations

import fcntl
import os
import socket
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from benchwright.errors import Interrupted

TURNSTILE, MACHINE = "benchwright-turn.lock", "benchwright-measure.lock"
"""Who waits for the machine holds the turnstile, and who comes later waits for that one: so a
measurement isn't starved by builds that overlap for ever, and two runs take turns."""

POLL_S = 0.02
"""How often a waiting run looks: short against a replicate, and a cancelled run ends at once."""


HOST_VARIABLE = "BENCHWRIGHT_HOST"
"""Names the machine where its own name doesn't: a container, or one of two of the same name."""


def host_name() -> str:
    """The machine's name, as concurrency limits, work queues and records spell it."""
    named = os.environ.get(HOST_VARIABLE, "").strip().lower()
    return named or socket.gethostname().split(".")[0].lower() or "localhost"


@contextmanager
def measuring(
    cancelled: threading.Event | None = None, on_wait: Callable[[], None] | None = None
) -> Iterator[None]:
    """Hold the machine alone.

    Args:
        cancelled: Ends the waiting when it is set.
        on_wait: Called once if another one holds the machine.

    Raises:
        Interrupted: It was cancelled while it waited.
    """
    with _held(fcntl.LOCK_EX, cancelled or threading.Event(), on_wait):
        yield


@contextmanager
def building(
    cancelled: threading.Event | None = None, on_wait: Callable[[], None] | None = None
) -> Iterator[None]:
    """Hold the machine beside other builds, and not beside a measurement; see `measuring`."""
    with _held(fcntl.LOCK_SH, cancelled or threading.Event(), on_wait):
        yield


@contextmanager
def _held(
    mode: int, cancelled: threading.Event, on_wait: Callable[[], None] | None
) -> Iterator[None]:
    folder = lock_folder()
    turn = open_lock(folder / TURNSTILE)
    machine = -1
    try:
        machine = open_lock(folder / MACHINE)
        waiting = _Waiting(cancelled, on_wait)
        waiting.lock(turn, fcntl.LOCK_EX)
        waiting.lock(machine, mode)
        os.close(turn)
        turn = -1
        yield
    finally:
        for descriptor in (turn, machine):
            if descriptor >= 0:
                os.close(descriptor)


class _Waiting:
    """Takes locks without blocking, so that the wait can be said and cancelled."""

    def __init__(self, cancelled: threading.Event, on_wait: Callable[[], None] | None) -> None:
        self._cancelled = cancelled
        self._on_wait = on_wait

    def lock(self, descriptor: int, mode: int) -> None:
        while True:
            try:
                return fcntl.flock(descriptor, mode | fcntl.LOCK_NB)
            except BlockingIOError:
                if self._on_wait is not None:
                    self._on_wait()
                    self._on_wait = None
            if self._cancelled.wait(POLL_S):
                raise Interrupted("the run was cancelled while it waited for the machine")


def holders() -> tuple[int, ...]:
    """Processes that hold the machine now; empty where nobody does, or the kernel doesn't say.

    A line of /proc/locks: `1: FLOCK ADVISORY WRITE 32308 fe:00:3278754 0 EOF`; one that waits has
    an arrow after its number.
    """
    try:
        inode = (lock_folder() / MACHINE).stat().st_ino
        lines = Path("/proc/locks").read_text().splitlines()
    except OSError:
        return ()
    fields = [line.split() for line in lines]
    return tuple(
        int(field[4])
        for field in fields
        if len(field) > 5
        and field[1] == "FLOCK"
        and field[5].rpartition(":")[2] == str(inode)
        and int(field[4]) > 0  # 0: of another container
    )


def lock_folder() -> Path:
    """Where the machine's locks lie, for all homes and all users."""
    return Path(os.environ.get("BENCHWRIGHT_LOCK_DIR") or tempfile.gettempdir())


def open_lock(path: Path) -> int:
    """Open a lock file for reading alone, so that every user of the machine can lock it."""
    while True:
        try:
            return os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
        except FileNotFoundError:
            try:
                os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o644))
            except FileExistsError:
                continue

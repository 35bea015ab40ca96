"""Whether the process that runs a run is alive: the kernel's word, not a file's.

The process that runs a run holds an flock on the run's `.alive` file. However it ends, the
kernel frees the lock, so that no pid is compared and no heartbeat is waited for.
"""

from __future__ import annotations

import fcntl
import os
import time
import weakref
from pathlib import Path
from types import TracebackType

from benchwright.errors import BenchwrightError, Where
from benchwright.record.files import PRIVATE

_PATIENCE_S = 0.5
"""How long a lock that is taken is asked for again: `is_held` holds it for microseconds."""
_RETRY_S = 0.005

_held: weakref.WeakSet[RunLock] = weakref.WeakSet()


class RunLock:
    """The right to run a run, from `RunFolder.lock` until `release`, `close` or death.

    Its descriptor is closed in programs that the process starts and in children that it forks:
    a stage that outlives the run doesn't keep the run alive.

    Raises:
        BenchwrightError: Another process holds it.
    """

    def __init__(self, path: Path) -> None:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, PRIVATE)
        try:
            _take(descriptor)
        except BlockingIOError as error:
            owner = os.pread(descriptor, 64, 0).decode("ascii", "replace").strip()
            os.close(descriptor)
            raise BenchwrightError(
                f"another process runs this run already ({owner or 'it said no process id'})",
                where=Where(path),
                hint="benchwright status --follow",
            ) from error
        try:
            os.ftruncate(descriptor, 0)
            os.pwrite(descriptor, f"pid {os.getpid()}\n".encode(), 0)
        except OSError as error:
            os.close(descriptor)
            raise BenchwrightError(
                f"can't say that this process runs it: {error.strerror}",
                where=Where(path),
                hint=f"free space below {path.parent}",
            ) from error
        self._descriptor: int | None = descriptor
        _held.add(self)

    def release(self) -> None:
        """Give the right back; calling it twice does no harm."""
        descriptor, self._descriptor = self._descriptor, None
        if descriptor is not None:
            fcntl.flock(descriptor, fcntl.LOCK_UN)
            os.close(descriptor)

    def _close_in_child(self) -> None:
        descriptor, self._descriptor = self._descriptor, None
        if descriptor is not None:
            os.close(descriptor)  # without LOCK_UN, which would free the parent's lock

    def __enter__(self) -> RunLock:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.release()


def _forget_locks() -> None:
    for lock in list(_held):
        lock._close_in_child()


os.register_at_fork(after_in_child=_forget_locks)


def _take(descriptor: int) -> None:
    """Take the lock; who merely asks whether it is held has it for an instant. Raises OSError."""
    deadline = time.monotonic() + _PATIENCE_S
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() > deadline:
                raise
            time.sleep(_RETRY_S)
        else:
            return


def is_held(path: Path) -> bool:
    """Whether a living process holds the lock on `path`."""
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    except FileNotFoundError:
        return False
    try:
        # A shared lock that is let go at once: two that ask at a time don't see each other.
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(descriptor)
    return False


def holder(path: Path) -> int | None:
    """Process id of who holds the lock on `path`; None where nobody does.

    The file names its holder, and may still name the one before for an instant; so the process
    must have the file open, too: a number that was used again is no holder.

    Raises:
        BenchwrightError: It is held, by no process that this one can see: on another machine, in
            another container, or of another user.
    """
    deadline = time.monotonic() + _PATIENCE_S
    while is_held(path):
        pid = _named_in(path)
        if pid is not None and _has_open(pid, path):
            return pid
        if time.monotonic() > deadline:
            raise BenchwrightError(
                f"the lock is held, and {f'process {pid}' if pid else 'no process'} that it names"
                " can be seen from here",
                where=Where(path),
                expected="a process of yours on this machine",
                hint="ask on the machine, in the container and as the user that runs it",
            )
        time.sleep(_RETRY_S)
    return None


def _named_in(path: Path) -> int | None:
    """The process id that a lock file names."""
    try:
        word, _, number = path.read_text("ascii", "replace").strip().partition(" ")
    except OSError:
        return None
    return int(number) if word == "pid" and number.isdigit() else None


def _has_open(pid: int, path: Path) -> bool:
    """Whether a process has a file open; False where that may not be seen."""
    try:
        wanted = path.stat()
        for entry in os.scandir(f"/proc/{pid}/fd"):
            try:
                found = entry.stat()
            except OSError:
                continue  # closed meanwhile
            if (found.st_dev, found.st_ino) == (wanted.st_dev, wanted.st_ino):
                return True
    except OSError:
        pass
    return False

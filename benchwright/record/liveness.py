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
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, f"pid {os.getpid()}\n".encode(), 0)
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

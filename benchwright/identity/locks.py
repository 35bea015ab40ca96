"""File locks that the kernel frees when their holder dies, however it dies."""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Iterator
from pathlib import Path


class Lock:
    """A lock that is held: an open file description with a `flock` on it.

    `os.open` makes descriptors that are closed on exec, so that no stage's process inherits it.
    """

    def __init__(self, file: Path, handle: int) -> None:
        self._file = file
        self._handle = handle

    def write(self, text: str) -> None:
        """Leave a word for those who wait, such as who holds it."""
        os.ftruncate(self._handle, 0)
        os.pwrite(self._handle, text.encode(), 0)

    def release(self, *, remove: bool = False) -> None:
        """Free it.

        Args:
            remove: Delete the file too; only for an exclusive lock. Whoever waits for it then
                notices that the file is another one, and takes that.
        """
        if remove:
            self._file.unlink(missing_ok=True)
        os.close(self._handle)


def take(file: Path, *, shared: bool = False, wait: bool = True) -> Lock | None:
    """Take a lock on a file, which is made where it isn't there.

    Args:
        file: The lock's file; its folder must exist.
        shared: Together with others who share it, or alone.
        wait: Wait for it, or give None where another holds it.
    """
    operation = (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | (0 if wait else fcntl.LOCK_NB)
    while True:
        handle = os.open(file, os.O_RDWR | os.O_CREAT, 0o644)
        try:
            fcntl.flock(handle, operation)
            # Its holder may have deleted the file while we waited: then this lock locks nothing.
            if _is_current(file, handle):
                return Lock(file, handle)
        except BlockingIOError:
            os.close(handle)
            return None
        except BaseException:
            os.close(handle)
            raise
        os.close(handle)


@contextlib.contextmanager
def held(file: Path, *, shared: bool = False) -> Iterator[Lock]:
    """Hold a lock for a block of code."""
    lock = take(file, shared=shared)
    assert lock is not None  # it waits
    try:
        yield lock
    finally:
        lock.release()


def _is_current(file: Path, handle: int) -> bool:
    try:
        return os.path.samestat(file.stat(), os.fstat(handle))
    except FileNotFoundError:
        return False

"""Writing files that outlive a crash: appended whole, or written beside and renamed.

Every write of the record goes through here, so that what a full disk, a kill or a power cut can
leave behind is decided once: an earlier file stays as it was, an appended line is there in full
or is cut off again.
"""

from __future__ import annotations

import errno
import fcntl
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from benchwright.errors import BenchwrightError, Where

PRIVATE = 0o600
"""Mode of files that may hold what the environment held: logs, launch facts, samples."""
PUBLIC = 0o644
"""Mode of files that are made to be handed on: reports, results, the index."""
FROZEN = 0o444
"""Mode of a configuration that was planned: nobody changes it afterwards."""

_FULL = {errno.ENOSPC: "the disk is full", errno.EDQUOT: "the disk quota is used up"}


@contextmanager
def _told(path: Path) -> Iterator[None]:
    """Turn a failed write into an error that names the file and what to do."""
    try:
        yield
    except OSError as error:
        reason = _FULL.get(error.errno or 0)
        what = f"can't write: {reason or error.strerror or error}"
        hint = (
            f"free space below {path.parent}, then go on: what was recorded before is intact"
            if reason
            else f"check the owner and the mode of {path.parent}"
        )
        raise BenchwrightError(what, where=Where(path), hint=hint) from error


def _write_all(descriptor: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(descriptor, view) :]


def sync_folder(folder: Path) -> None:
    """Make a rename or a new name in `folder` survive a power cut."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def write_atomically(path: Path, text: str, mode: int = PUBLIC, *, durable: bool = True) -> None:
    """Write a file beside its place and rename it there: readers see the old or the new one.

    One writes at a time: callers that may meet hold a lock (see `exclusively`). So the file
    beside has one name, and what a kill leaves of it is overwritten by the next.

    Args:
        path: The file.
        text: Its new content.
        mode: Its rights.
        durable: Whether it outlives a loss of power the moment this returns. What can be made
            again from other files needn't.

    Raises:
        BenchwrightError: The disk is full or the folder can't be written; the old file stays.
    """
    beside = path.with_name(f".{path.name}.new")
    with _told(path):
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC
        descriptor = os.open(beside, flags, mode)
        try:
            try:
                _write_all(descriptor, text.encode("utf-8", "replace"))
                if durable:
                    os.fsync(descriptor)
            finally:
                os.close(descriptor)
            beside.replace(path)
        except BaseException:
            with suppress(OSError):
                beside.unlink()
            raise
        if durable:
            sync_folder(path.parent)


def write_once(path: Path, text: str, mode: int = FROZEN) -> None:
    """Write a file that must not exist yet, and that stays as it is.

    Raises:
        BenchwrightError: It exists, or can't be written; a half-written one is removed.
    """
    with _told(path):
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode)
        try:
            _write_all(descriptor, text.encode("utf-8", "replace"))
            os.fsync(descriptor)
        except BaseException:
            with suppress(OSError):
                path.unlink()
            raise
        finally:
            os.close(descriptor)
        sync_folder(path.parent)


def keep_back(path: Path, size: int) -> None:
    """Take `size` bytes of the disk, to be given back by removing the file when they are needed.

    Raises:
        BenchwrightError: The disk hasn't that much.
    """
    with _told(path):
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, PRIVATE)
        try:
            os.posix_fallocate(descriptor, 0, size)
        except OSError:
            with suppress(OSError):
                path.unlink()
            raise
        finally:
            os.close(descriptor)


def append_line(path: Path, line: str, *, mode: int = PRIVATE, durable: bool = True) -> None:
    r"""Append one line, whole or not at all.

    The write is one system call on a descriptor opened with O_APPEND, under an flock on the
    file, so that lines of several writers never mix. A tail without its newline is what a kill
    in the middle of an earlier write left: that line was never reported as written, so it is cut
    off before the new one follows. The same is done at once where the disk is full.

    Args:
        path: The file; created with `mode` where it doesn't exist.
        line: The text without its newline; must hold none.
        mode: Permission bits of a new file.
        durable: Whether to return only once it is on the disk.

    Raises:
        BenchwrightError: The disk is full or the file can't be written.
    """
    data = line.encode("utf-8", "replace") + b"\n"
    with _told(path), _to_append(path, mode) as descriptor:
        _append_whole(descriptor, _cut_torn_tail(descriptor), data, durable)


def append_block(path: Path, block: Callable[[str], str], mode: int = PUBLIC) -> str:
    """Append a text that depends on what the file holds, whole or not at all.

    Args:
        path: The file; created with `mode` where it doesn't exist.
        block: Makes the text from the file's content, while nobody else can append.
        mode: Permission bits of a new file.

    Returns:
        The file's new content.

    Raises:
        BenchwrightError: The disk is full or the file can't be written; it stays as it was.
    """
    with _told(path), _to_append(path, mode) as descriptor:
        end = os.fstat(descriptor).st_size
        before = os.pread(descriptor, end, 0).decode("utf-8", "replace")
        added = block(before)
        _append_whole(descriptor, end, added.encode("utf-8", "replace"), durable=True)
    return before + added


@contextmanager
def _to_append(path: Path, mode: int) -> Iterator[int]:
    """The file's descriptor, under an flock that the kernel frees if the holder dies."""
    new = not path.exists()
    if new:
        path.parent.mkdir(parents=True, exist_ok=True)
    flags = os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC
    descriptor = os.open(path, flags, mode)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield descriptor
    finally:
        os.close(descriptor)
    if new:
        sync_folder(path.parent)


def _append_whole(descriptor: int, end: int, data: bytes, durable: bool) -> None:
    """Append `data`, or cut the file off at `end` again where it doesn't fit."""
    try:
        _write_all(descriptor, data)
        if durable:
            os.fsync(descriptor)
    except OSError:
        os.ftruncate(descriptor, end)
        raise


def _cut_torn_tail(descriptor: int) -> int:
    """Cut what follows the last newline, and return the length that stays, in bytes."""
    size = os.fstat(descriptor).st_size
    if size == 0 or os.pread(descriptor, 1, size - 1) == b"\n":
        return size
    end = size
    step = 65536
    while end > 0:
        start = max(0, end - step)
        newline = os.pread(descriptor, end - start, start).rfind(b"\n")
        if newline >= 0:
            end = start + newline + 1
            break
        end = start
    os.ftruncate(descriptor, end)
    return end


@contextmanager
def exclusively(lock: Path) -> Iterator[None]:
    """Hold an flock on the file `lock` meanwhile; the kernel frees it if the holder dies."""
    with _told(lock):
        lock.parent.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, PUBLIC)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)

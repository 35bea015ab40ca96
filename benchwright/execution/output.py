"""What a stage prints: any bytes, into a file that stays within its limit.

The stage writes into a pipe, as programs expect: a regular file would be emptied by a script's
`echo note > /dev/stderr`. The supervisor empties the pipe a few times a second at most while
little is printed, and without a pause while much is, so that it neither disturbs nor blocks.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
from pathlib import Path

MB = 10**6

HEAD_SHARE = 0.75
"""Of the limit, for the beginning; the rest is kept for the end, where results are printed."""

TAIL_BYTES = 2048
"""The end of the output that an error quotes."""

PIPE_BYTES = 1 << 20
"""Asked of the kernel for each pipe; it is the largest that a user gets by default."""

PAUSE_S = 0.005
"""Between two reads while little is printed: a program that flushes each line wakes the
supervisor 200 times a second at most."""

_CUT_SEARCH = 1 << 16
"""A cut is moved to the end of a line where there is one within this many bytes: half a line
could be read as a result."""


class CappedFile:
    """A file with the beginning and the end of what was written to it.

    Args:
        path: Created or emptied, mode 0600.
        limit: Bytes that it keeps.

    Raises:
        OSError: It can't be opened.
    """

    def __init__(self, path: Path, limit: int) -> None:
        self.total = 0
        self.dropped = 0
        self.error: OSError | None = None
        self.tail = b""
        self._head = int(limit * HEAD_SHARE)
        self._ring = max(limit - self._head, 1)
        flags = os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC
        self._fd = os.open(path, flags, 0o600)
        with contextlib.suppress(OSError):  # an existing file of another user's
            os.fchmod(self._fd, 0o600)

    def take(self, data: bytes) -> None:
        """Keep or drop some output; a full disk is remembered, never raised."""
        self.tail = (self.tail + data[-TAIL_BYTES:])[-TAIL_BYTES:]
        start, self.total = self.total, self.total + len(data)
        if self.error is not None:
            self.dropped += len(data)
            return
        try:
            view = memoryview(data)
            if start < self._head:
                self._write(view[: self._head - start], start)
                view = view[self._head - start :]
                start = self._head
            # Past the beginning the file is a ring: what is oldest is written over.
            if len(view) > self._ring:
                start += len(view) - self._ring
                view = view[-self._ring :]
            while view:
                place = (start - self._head) % self._ring
                part = view[: self._ring - place]
                self._write(part, self._head + place)
                start += len(part)
                view = view[len(part) :]
        except OSError as error:
            self.error = error
            self.dropped += len(data)

    def _write(self, view: memoryview, place: int) -> None:
        while view:
            done = os.pwrite(self._fd, view, place)
            view = view[done:]
            place += done

    def close(self) -> None:
        """Put the file in order: beginning, a line that says how much is missing, end."""
        try:
            if self.error is None and self.total > self._head + self._ring:
                self._unroll()
        except OSError as error:
            self.error = error
        finally:
            os.close(self._fd)

    def _unroll(self) -> None:
        place = (self.total - self._head) % self._ring
        end = os.pread(self._fd, self._ring - place, self._head + place)
        end += os.pread(self._fd, place, self._head)
        line = end.find(b"\n", 0, _CUT_SEARCH)
        end = end[line + 1 :]
        begin = self._head
        before = os.pread(self._fd, min(_CUT_SEARCH, begin), begin - min(_CUT_SEARCH, begin))
        if (line := before.rfind(b"\n")) >= 0:
            begin -= len(before) - line - 1
        self.dropped = self.total - begin - len(end)
        gap = b"\n" if line < 0 else b""
        gap += b"[benchwright: %d bytes were left out here]\n" % self.dropped
        self._write(memoryview(gap + end), begin)
        os.ftruncate(self._fd, begin + len(gap) + len(end))


class Stream:
    """One output of the stage: a pipe and the file behind it.

    Args:
        path: The file.
        limit_mb: What it keeps, in MB.

    Raises:
        OSError: The file can't be opened.
    """

    def __init__(self, path: Path, limit_mb: float) -> None:
        self.file = CappedFile(path, round(limit_mb * MB))
        self.fd, self.stage_fd = os.pipe2(os.O_CLOEXEC)
        os.set_blocking(self.fd, False)
        with contextlib.suppress(OSError):  # the user's pipes take too many pages already
            fcntl.fcntl(self.fd, fcntl.F_SETPIPE_SZ, PIPE_BYTES)
        self._size = fcntl.fcntl(self.fd, fcntl.F_GETPIPE_SZ)
        self.open = True
        self.due = 0.0

    def started(self) -> None:
        """The stage has its end: close ours, so that its end is seen."""
        os.close(self.stage_fd)
        self.stage_fd = -1

    def drain(self, now: float) -> None:
        """Take what has been printed, one pipe full at most."""
        try:
            data = os.read(self.fd, self._size)
        except BlockingIOError:
            return
        if not data:
            self.open = False
            return
        self.file.take(data)
        self.due = now if len(data) >= self._size // 2 else now + PAUSE_S

    def close(self) -> None:
        """Take what is left and put the file in order. The tree is gone."""
        if self.stage_fd >= 0:  # the stage was never started
            os.close(self.stage_fd)
        before = -1
        while self.open and before != self.file.total:
            before = self.file.total
            self.drain(0.0)
        os.close(self.fd)
        self.file.close()

"""Digests of files: by content always, read again only where the file may have changed."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import json
import os
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

from benchwright.identity.locks import held

SMALL_BYTES = 16_384
"""Files below this are read each time: that takes about as long as to look them up."""

RACY_NS = 2_000_000_000
"""A file changed this shortly before it was read isn't remembered: a second change within the
clock's tick would leave its times as they are. Git calls such an entry racy; 2 s is the coarsest
tick of a file system in use (FAT)."""

MOST_ENTRIES = 20_000
"""The memo forgets its oldest entries beyond this, so that it's read in some 20 ms at most."""


class Identity(NamedTuple):
    """What tells without reading that a file is as it was.

    `ctime_ns` can't be set by a program, so that an edit with the old `mtime` put back is seen.
    """

    size: int
    mtime_ns: int
    ctime_ns: int
    inode: int
    device: int


def _identity(status: os.stat_result) -> Identity:
    return Identity(
        status.st_size, status.st_mtime_ns, status.st_ctime_ns, status.st_ino, status.st_dev
    )


class DigestMemo:
    """SHA-256 of files, remembered by identity, so that a file is known after a rename too.

    Several processes may share one memo file: saving merges and renames, and what is lost is only
    read again.

    Args:
        file: Where it is kept between processes; None: in memory only.
    """

    def __init__(self, file: Path | None = None) -> None:
        self._file = file
        self._new: dict[Identity, str] = {}

    @functools.cached_property
    def _known(self) -> dict[Identity, str]:
        """What is remembered; read when a large file is first asked for."""
        return _load(self._file) if self._file else {}

    def of(self, path: Path, *, fresh: bool = False) -> str:
        """SHA-256 of a file's content in hex; links are followed.

        Args:
            path: A regular file.
            fresh: Read it even where the memo knows it.

        Raises:
            OSError: Where it can't be read.
        """
        with path.open("rb") as stream:
            before = _identity(os.fstat(stream.fileno()))
            is_large = before.size >= SMALL_BYTES
            if is_large and not fresh and before in self._known:
                return self._known[before]
            started = time.time_ns()
            found = hashlib.file_digest(stream, "sha256").hexdigest()
            settled = before == _identity(os.fstat(stream.fileno()))
        changed = max(before.mtime_ns, before.ctime_ns)
        if settled and is_large and started - changed > RACY_NS:
            self._known[before] = self._new[before] = found
        return found

    def save(self) -> None:
        """Keep what was learnt. A memo that can't be written is no error: it only saves time."""
        if self._file is None or not self._new:
            return
        with contextlib.suppress(OSError), held(self._file.with_suffix(".lock")):
            merged = {**_load(self._file), **self._new}
            recent = list(merged.items())[-MOST_ENTRIES:]
            _write_beside(self._file, json.dumps([[*who, sha] for who, sha in recent]))
        self._new.clear()


def _load(file: Path) -> dict[Identity, str]:
    """The memo's content; a damaged one is an empty one."""
    try:
        rows = json.loads(file.read_text())
        return {Identity(*row[:5]): str(row[5]) for row in rows}
    except (OSError, ValueError, TypeError, IndexError):
        return {}


def _write_beside(file: Path, text: str) -> None:
    handle, name = tempfile.mkstemp(dir=file.parent, prefix=file.name)
    try:
        with os.fdopen(handle, "w") as stream:
            stream.write(text)
        Path(name).replace(file)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise

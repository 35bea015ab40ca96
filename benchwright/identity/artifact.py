"""What an artifact is: files, folders and links, listed when it's published, compared later."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from stat import S_IMODE, S_ISDIR, S_ISLNK, S_ISREG
from typing import TYPE_CHECKING, Any

from benchwright.errors import StageFailed, Where
from benchwright.identity.digests import DigestMemo

if TYPE_CHECKING:
    from benchwright.spec.model import Stage

Row = dict[str, Any]
"""One file (`path`, `mode`, `size`, `sha256`), folder (`path`, `mode`, `folder`) or link (`path`,
`link`) of an artifact; the path starts with the artifact's name."""

MANIFEST = "manifest.json"
"""The file beside the artifacts that lists them."""


def inventory(stage: Stage, staging: Path, memo: DigestMemo) -> list[Row]:
    """A row for each file, folder and link of the artifacts; files are brought to the disk.

    Raises:
        StageFailed: An artifact is missing, has something else in it, or a link that leads out.
        OSError: One can't be read.
    """
    missing = [name for name in stage.produces if not os.path.lexists(staging / name)]
    if missing:
        raise StageFailed(
            f"stage '{stage.name}' ended without making {', '.join(missing)}",
            where=Where(key=f"stages.{stage.name}.produces"),
            expected=f"each artifact at the path that its template gives, such as {{{missing[0]}}}",
            hint="hand the path to the program, and check that it writes there",
        )
    rows: list[Row] = []
    for artifact in stage.produces:
        for path in below(staging / artifact):
            rows.append(_row(path, staging, artifact, stage, memo))
    return rows


def _row(path: Path, staging: Path, artifact: str, stage: Stage, memo: DigestMemo) -> Row:
    status = path.lstat()
    name = str(path.relative_to(staging))
    if S_ISLNK(status.st_mode):
        return {"path": name, "link": _inner_link(path, staging / artifact, stage)}
    row: Row = {"path": name, "mode": S_IMODE(status.st_mode)}
    if S_ISDIR(status.st_mode):
        return {**row, "folder": True}
    if not S_ISREG(status.st_mode):
        raise StageFailed(
            f"stage '{stage.name}': '{name}' in its artifact is neither file, folder nor link",
            where=Where(key=f"stages.{stage.name}.produces"),
            expected="artifacts of files and folders",
            hint="have the program put sockets and pipes elsewhere, or remove them at its end",
        )
    sha = memo.of(path)
    _to_disk(path)
    return {**row, "size": status.st_size, "sha256": sha}


def _inner_link(path: Path, artifact: Path, stage: Stage) -> str:
    """A link's target, which must stay inside the artifact wherever that is moved."""
    target = os.readlink(path)  # noqa: PTH115 - the text as it is, not as a path
    # realpath, since Path.resolve raises for a link that leads back to itself; that one stays.
    real = Path(os.path.realpath(path))
    inside = real.is_relative_to(os.path.realpath(artifact.parent) / Path(artifact.name))
    if path == artifact or Path(target).is_absolute() or not inside:
        raise StageFailed(
            f"stage '{stage.name}': the link '{path.relative_to(artifact.parent)}' leads out of "
            f"its artifact, to '{target}'",
            where=Where(key=f"stages.{stage.name}.produces"),
            expected="links that are relative and stay inside the artifact",
            hint="copy what it points to into the artifact, or make the link relative",
        )
    return target


def difference(place: Path, rows: list[Row], memo: DigestMemo, *, fresh: bool = False) -> str:
    """The first thing in which artifacts aren't as they were listed; empty: none.

    Args:
        place: The folder that they lie in.
        rows: Their inventory.
        memo: Saves reading files that can't have changed.
        fresh: Read them all the same.
    """
    expected = {row["path"]: row for row in rows}
    try:
        for name, row in expected.items():
            problem = _row_difference(place / name, name, row, memo, fresh=fresh)
            if problem:
                return problem
        for top in place.iterdir():
            for path in below(top):
                name = str(path.relative_to(place))
                if name not in expected and name != MANIFEST:
                    return f"'{name}' was added since it was built"
    except OSError as error:
        return f"'{error.filename}' can't be read: {error.strerror}"
    return ""


def _row_difference(path: Path, name: str, row: Row, memo: DigestMemo, *, fresh: bool) -> str:
    try:
        status = path.lstat()
    except (FileNotFoundError, NotADirectoryError):
        return f"'{name}' is missing"
    if "link" in row:
        same = S_ISLNK(status.st_mode) and os.readlink(path) == row["link"]  # noqa: PTH115
        return "" if same else f"'{name}' is no longer the same link"
    if "folder" in row:
        if not S_ISDIR(status.st_mode):
            return f"'{name}' is no longer a folder"
    elif not S_ISREG(status.st_mode):
        return f"'{name}' is no longer a file"
    if S_IMODE(status.st_mode) != row["mode"]:
        return f"'{name}' has mode {S_IMODE(status.st_mode):o}, not {row['mode']:o}"
    if "folder" in row:
        return ""
    if status.st_size != row["size"]:
        verb = "truncated" if status.st_size < row["size"] else "grown"
        return f"'{name}' was {verb}: {status.st_size} bytes, not {row['size']}"
    return "" if memo.of(path, fresh=fresh) == row["sha256"] else f"'{name}' was altered"


def below(path: Path) -> Iterator[Path]:
    """A path and all below it, in sorted order; links aren't followed."""
    yield path
    if path.is_dir() and not path.is_symlink():
        for entry in sorted(path.iterdir()):
            yield from below(entry)


def _to_disk(path: Path) -> None:
    """Bring a file's content to the disk: the memo trusts a file by its times after a crash too."""
    handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)

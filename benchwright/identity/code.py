"""The code's part of a fingerprint: commit, uncommitted change, submodules, read through git."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from benchwright.identity.canonical import canonical_json, digest
from benchwright.identity.digests import DigestMemo
from benchwright.identity.reading import NONE, Field, Unreadable, read_fields

GIT_TIMEOUT_S = 2.0
"""Longer than git takes for any but the largest work trees; beyond it the change is unknown."""

LARGE_BYTES = 32_000_000
"""A changed file above this counts by size and time of its last change, not by content, so that
a fingerprint stays quick; writing the same content again then shows as a change."""


@dataclass(frozen=True, slots=True)
class WorkTree:
    """What git says of a folder's work tree, in one call.

    Attributes:
        top: Its topmost folder.
        commit: HEAD's commit, or `none` before the first one.
        branch: HEAD's branch, or `(detached)`.
        changes: Git's rows for what differs from HEAD or isn't tracked, with the path of each.
    """

    top: Path
    commit: str
    branch: str
    changes: tuple[tuple[str, str], ...]


def read_code(folder: Path, exclude: Sequence[Path] = ()) -> dict[str, str]:
    """The code's fields; each is `none` where the folder is in no repository.

    Args:
        folder: The experiment's folder.
        exclude: Folders whose changes don't count, such as the home that the runs are kept in.
    """
    top = _top(folder)
    if top is None:
        return {field.name: NONE for field in CODE}
    try:
        tree: WorkTree | None = _work_tree(top, exclude)
    except (OSError, subprocess.SubprocessError, ValueError):
        tree = None
    return read_fields(CODE, tree)


def _top(folder: Path) -> Path | None:
    """The topmost folder of the work tree. Looked for here, so that no repository costs no git."""
    here = Path(os.path.realpath(folder))
    return next((place for place in (here, *here.parents) if (place / ".git").exists()), None)


def _work_tree(top: Path, exclude: Sequence[Path]) -> WorkTree:
    status = _git(top, "status", "--porcelain=v2", "--branch", "-z", "--untracked-files=all",
                  "--no-renames")  # fmt: skip
    commit, branch, changes = NONE, NONE, []
    left_out = [str(path) for path in _inside(top, exclude)]
    for row in status.split("\0"):
        if row.startswith("# branch.oid "):
            commit = row.removeprefix("# branch.oid ").replace("(initial)", NONE)
        elif row.startswith("# branch.head "):
            branch = row.removeprefix("# branch.head ")
        elif row and row[0] in "12u?":
            # The path comes last, after as many columns as the kind of row has.
            path = row.split(" ", {"1": 8, "2": 9, "u": 10, "?": 1}[row[0]])[-1]
            if not any(path == out or path.startswith(f"{out}/") for out in left_out):
                changes.append((row, path))
    return WorkTree(top, commit, branch, tuple(changes))


def _inside(top: Path, exclude: Sequence[Path]) -> list[Path]:
    real = [Path(os.path.realpath(path)) for path in exclude]
    return [path.relative_to(top) for path in real if path.is_relative_to(top) and path != top]


def _git(top: Path, *arguments: str) -> str:
    """Git's answer. It takes no lock, asks no one, and runs no program that a repository names."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    done = subprocess.run(
        ["git", "--no-optional-locks", "-c", "core.fsmonitor=false", *arguments],
        cwd=top,
        env={**clean, "LC_ALL": "C", "GIT_TERMINAL_PROMPT": "0"},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        timeout=GIT_TIMEOUT_S,
        check=True,
    )
    return os.fsdecode(done.stdout)


def _uncommitted(tree: WorkTree | None) -> str:
    """A digest of the change; its rows hold modes and the content that HEAD has."""
    tree = _known(tree)
    if not tree.changes:
        return NONE
    memo = DigestMemo()
    rows = [[row, _content(tree.top / path, memo)] for row, path in tree.changes]
    return digest(canonical_json(rows))[:16]


def _content(path: Path, memo: DigestMemo) -> str:
    try:
        status = path.lstat()
    except FileNotFoundError:
        return "deleted"
    if path.is_symlink():
        return f"link {os.readlink(path)}"  # noqa: PTH115 - the text as it is
    if path.is_dir():
        return _commit_of(path)
    if status.st_size > LARGE_BYTES:
        return f"{status.st_size} {status.st_mtime_ns}"
    return memo.of(path)


def _commit_of(path: Path) -> str:
    """A repository inside the work tree: its commit and its own change."""
    inner = _work_tree(path, ())
    return f"{inner.commit} {_uncommitted(inner)}"


def _submodules(tree: WorkTree | None) -> str:
    """A digest of the submodules' commits, as checked out."""
    tree = _known(tree)
    if not (tree.top / ".gitmodules").exists():
        return NONE
    rows = _git(tree.top, "submodule", "status", "--recursive").splitlines()
    return digest("\n".join(sorted(row.split(" (")[0] for row in rows)))[:16] if rows else NONE


def _known(tree: WorkTree | None) -> WorkTree:
    if tree is None:
        raise Unreadable("git gave no answer")
    return tree


CODE: tuple[Field[WorkTree | None], ...] = (
    Field("code.repository", "another repository", lambda tree: _known(tree).top.name),
    Field("code.commit", "other code ran", lambda tree: _known(tree).commit),
    Field("code.branch", "another branch", lambda tree: _known(tree).branch),
    Field("code.uncommitted", "code that is in no commit ran", _uncommitted),
    Field("code.submodules", "other code of a submodule ran", _submodules),
)

FOR_THE_READER = frozenset({"code.repository", "code.branch"})
"""Names of places: recorded, never compared. The commit says which code ran; the same commit in
a clone of another name, or on another branch, is the same code."""

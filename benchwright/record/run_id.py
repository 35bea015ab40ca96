"""Run ids: `YYYY-MM-DD_<slug>_<6 hex>`."""

from __future__ import annotations

import difflib
import re
import secrets
from datetime import datetime
from pathlib import Path

from benchwright.errors import BadInput, Where
from benchwright.identity.canonical import slug
from benchwright.record.home import Layout

_RUN_ID = re.compile(r"\d{4}-\d{2}-\d{2}_[a-z0-9][a-z0-9-]*_[0-9a-f]{6}")
_PART = re.compile(r"[A-Za-z0-9_-]+")
_SHOWN = 5


def new_run_id(name: str, now: datetime) -> str:
    """A run id for a run that starts now.

    The 6 random hex digits tell runs of one day apart; `RunStore.create` draws again where the
    folder exists already, so that two that start in the same instant never share one.
    """
    return f"{now:%Y-%m-%d}_{slug(name)}_{secrets.token_hex(3)}"


def check_run_id(text: str) -> str:
    """The text, where it is a run id: it then names a folder directly below `runs/`.

    Raises:
        BadInput: It isn't one.
    """
    if not _RUN_ID.fullmatch(text):
        raise BadInput(
            f"{text!r} is no run id",
            where=Where(key="RUN"),
            expected="YYYY-MM-DD_<slug>_<6 hex digits>",
            hint="benchwright history",
        )
    return text


def run_ids(home: Path) -> tuple[str, ...]:
    """The ids of all runs below `home`, in order of their text."""
    try:
        names = [entry.name for entry in Layout(home).runs.iterdir()]
    except FileNotFoundError:
        return ()
    return tuple(sorted(name for name in names if _RUN_ID.fullmatch(name)))


def find_run(home: Path, text: str) -> str:
    """The one run that a person means: by its full id, its beginning, or its last hex digits.

    Raises:
        BadInput: No run or several runs are meant; names the nearest.
    """
    ids = run_ids(home)
    if text in ids:
        return text
    if not _PART.fullmatch(text):
        raise BadInput(
            f"{text!r} can't be part of a run id",
            where=Where(key="RUN"),
            expected="letters, digits, '_' and '-'",
            hint="benchwright history",
        )
    found = [
        run_id
        for run_id in ids
        if run_id.startswith(text)
        or run_id.endswith(text)
        or run_id.rpartition("_")[2].startswith(text)
    ]
    if len(found) == 1:
        return found[0]
    if found:
        shown = ", ".join(found[-_SHOWN:])
        more = f" and {len(found) - _SHOWN} more" if len(found) > _SHOWN else ""
        raise BadInput(
            f"{text!r} means {len(found)} runs",
            where=Where(key="RUN"),
            expected=f"one of {shown}{more}",
            hint="name it by its last six characters",
        )
    near = difflib.get_close_matches(text, ids, n=3, cutoff=0.5) or list(ids[-3:])
    raise BadInput(
        f"there is no run {text!r} below {Layout(home).runs}",
        where=Where(key="RUN"),
        expected=f"for example {', '.join(near)}" if near else "no run was recorded here yet",
        hint="benchwright history",
    )

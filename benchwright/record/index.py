"""`results_index.md`: one row for each run, made from the runs' folders.

The folders are the record. The table is made from them, row by row, sorted by creation: whoever
writes last writes the same text, and it can be made again at any time. It is read without a
single folder being opened.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields
from datetime import UTC, datetime
from pathlib import Path

from benchwright.errors import BadInput
from benchwright.record.audit import compared_with, current_tag, flags
from benchwright.record.documents import read, read_lossy
from benchwright.record.files import exclusively, write_atomically
from benchwright.record.form import read_head
from benchwright.record.home import Layout
from benchwright.record.run_id import run_ids

UNREADABLE = "UNREADABLE"
"""Status of a run whose folder can't be understood; the note says why."""

_HASH_SHOWN = 12

_TITLE = (
    "# Results\n\nMade from the folders below `runs/`; "
    "`benchwright history --rebuild` makes it again. Newest last.\n\n"
)


@dataclass(frozen=True, slots=True)
class IndexRow:
    """One run as the index knows it; every attribute is text, empty where there is none.

    Attributes:
        run_id, created, domain, recipe, host: As in the record.
        status: A `Status`, or `UNREADABLE`.
        tag: The tag now, after reclassification.
        headline: The first verdict in a few words.
        config: First digits of the configuration's hash.
        note: What ended it, why it can't be read, or what flags it.
    """

    run_id: str
    created: str
    domain: str
    recipe: str
    status: str
    tag: str
    headline: str
    config: str
    host: str
    note: str


_COLUMNS = tuple(field.name for field in fields(IndexRow))
_HEADER = (
    "| " + " | ".join(name.replace("_", " ") for name in _COLUMNS) + " |\n"
    "|" + " --- |" * len(_COLUMNS) + "\n"
)

_ESCAPES = {
    "&": "&amp;",
    "<": "&lt;",
    ">": "&gt;",
    "\n": "<br>",
    "|": "&#124;",
    "\\": "&#92;",
    "`": "&#96;",
    "*": "&#42;",
    "[": "&#91;",
    "]": "&#93;",
}
_ORIGINALS = {escaped: original for original, escaped in _ESCAPES.items()}
_TO_ESCAPE = re.compile("|".join(map(re.escape, _ESCAPES)))
_ESCAPED = re.compile("|".join(map(re.escape, _ORIGINALS)))
_BREAKS = re.compile(r"\r\n|[\r\v\f\x1c-\x1e\x85\u2028\u2029]")


def _escape(text: str) -> str:
    """A text as a cell: nothing in it ends the cell, the row, or becomes markup."""
    text = _BREAKS.sub("\n", text).strip()
    return _TO_ESCAPE.sub(lambda match: _ESCAPES[match[0]], text)


def _unescape(cell: str) -> str:
    if "&" not in cell and "<" not in cell:
        return cell
    return _ESCAPED.sub(lambda match: _ORIGINALS[match[0]], cell)


def row_of(
    home: Path, run_id: str, compared: Mapping[str, Mapping[str, str]] | None = None
) -> IndexRow:
    """The row of a run, from its folder; a folder that can't be read still gets one."""
    folder = Layout(home).runs / run_id
    path = folder / "results.yaml"
    try:
        head = read_head(read(path), path)
        tag = current_tag(folder, str(head.get("tag") or ""))
        flagged = flags(home, run_id, compared)
    except (BadInput, ValueError) as error:
        note = str(error).splitlines()[0].replace(f"{folder}/", "")
        return IndexRow(
            run_id, run_id[:10], "", "", UNREADABLE, "", "", "", "", _cut(f"unreadable: {note}")
        )
    note = "; ".join(part for part in (*flagged, str(head.get("error") or "")) if part)
    return IndexRow(
        run_id=run_id,
        created=str(head["created"]),
        domain=str(head["domain"]),
        recipe=str(head.get("recipe") or ""),
        status=str(head["status"]),
        tag=tag,
        headline=str(head.get("headline") or ""),
        config=config_prefix(str(head.get("config_hash") or "")),
        host=str(head.get("host") or ""),
        note=_cut(note),
    )


def config_prefix(config_hash: str) -> str:
    """The part of a configuration's hash that the index shows."""
    return config_hash[:_HASH_SHOWN]


def _cut(text: str, limit: int = 200) -> str:
    """The first line of a note, so that a table stays a table."""
    line = text.strip().partition("\n")[0]
    return line if len(line) <= limit else f"{line[: limit - 3]}..."


def _line(row: IndexRow) -> str:
    """A row as a line of the table."""
    return "| " + " | ".join(_escape(getattr(row, name)) for name in _COLUMNS) + " |"


def _place(line: str) -> tuple[float, str]:
    """Where a line stands: by the moment of creation, whatever time zone it was written in."""
    run_id, created, _ = line[2:].split(" | ", 2)
    try:
        moment = datetime.fromisoformat(created)
    except ValueError:
        return 0.0, run_id
    return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp(), run_id


def _write(home: Path, lines: Iterable[str]) -> None:
    table = "\n".join(sorted(lines, key=_place))
    write_atomically(
        Layout(home).index, f"{_TITLE}{_HEADER}{table}\n" if table else _TITLE + _HEADER
    )


def _stored(home: Path) -> list[str] | None:
    """The lines of the table as it is; None where there is none that `_write` wrote."""
    path = Layout(home).index
    if not path.exists():
        return None
    text = read_lossy(path)
    head = _TITLE + _HEADER
    if not text.startswith(head) or not text.endswith("\n"):
        return None
    lines = text[len(head) : -1].split("\n") if len(text) > len(head) else []
    separators = len(_COLUMNS) - 1
    whole = all(
        line.startswith("| ") and line.endswith(" |") and line[2:-2].count(" | ") == separators
        for line in lines
    )
    return lines if whole else None


def _row(line: str) -> IndexRow:
    return IndexRow(*map(_unescape, line[2:-2].split(" | ")))


def index_is_current(home: Path) -> bool:
    """Whether the index is what the folders give; it is left as it is."""
    with exclusively(Layout(home).index_lock):
        lines = _stored(home)
        return lines is not None and lines == sorted(_lines_from_folders(home), key=_place)


def rebuild_index(home: Path) -> tuple[IndexRow, ...]:
    """Make the index from the folders alone, and return its rows, oldest first."""
    with exclusively(Layout(home).index_lock):
        lines = _lines_from_folders(home)
        _write(home, lines)
    return tuple(map(_row, sorted(lines, key=_place)))


def _lines_from_folders(home: Path) -> list[str]:
    try:
        compared = compared_with(home)
    except BadInput:
        compared = None  # each row then says that it can't be read, and why
    return [_line(row_of(home, run_id, compared)) for run_id in run_ids(home)]


def update_index(home: Path, *changed: str) -> None:
    """Bring the rows of these runs up to date.

    The rows are made under the index's lock, from the folders as they are then: the last of
    many writers can't write a row that is older than its folder. The others stay as they are,
    unread: in a home of 10,000 runs, 64 that end at once wait for each other.
    """
    with exclusively(Layout(home).index_lock):
        lines = _stored(home)
        if lines is None:
            _write(home, _lines_from_folders(home))
            return
        kept = [line for line in lines if line[2:].partition(" | ")[0] not in changed]
        _write(home, [*kept, *(_line(row_of(home, run_id)) for run_id in changed)])


def read_index(
    home: Path,
    *,
    tag: str | None = None,
    domain: str | None = None,
    recipe: str | None = None,
    status: str | None = None,
) -> tuple[IndexRow, ...]:
    """The rows of the index, oldest first; only those that agree with what is given.

    An index that is missing or was changed by hand is made again from the folders.
    """
    lines = _stored(home)
    if lines is not None:
        rows = tuple(map(_row, lines))
    else:
        rows = rebuild_index(home) if Layout(home).runs.is_dir() else ()
    wanted = {"tag": tag, "domain": domain, "recipe": recipe, "status": status}
    asked = {name: value for name, value in wanted.items() if value is not None}
    return tuple(
        row for row in rows if all(getattr(row, name) == value for name, value in asked.items())
    )

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


def _order(row: IndexRow) -> tuple[float, str]:
    """By the moment of creation, whatever time zone it was written in."""
    try:
        moment = datetime.fromisoformat(row.created)
    except ValueError:
        return 0.0, row.run_id
    return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp(), row.run_id


def _write(home: Path, rows: Iterable[IndexRow]) -> None:
    lines = [
        "| " + " | ".join(_escape(getattr(row, name)) for name in _COLUMNS) + " |\n"
        for row in sorted(rows, key=_order)
    ]
    write_atomically(Layout(home).index, _TITLE + _HEADER + "".join(lines))


def _parse(text: str) -> tuple[IndexRow, ...] | None:
    """The rows of an index's text; None where it isn't what `_write` writes."""
    head = _TITLE + _HEADER
    if not text.startswith(head) or not text.endswith("\n"):
        return None
    rows = []
    for line in text[len(head) :].splitlines():
        cells = line[2:-2].split(" | ")
        if len(cells) != len(_COLUMNS):
            return None
        rows.append(IndexRow(*map(_unescape, cells)))
    return tuple(rows)


def rebuild_index(home: Path) -> tuple[IndexRow, ...]:
    """Make the index from the folders alone, and return its rows, oldest first."""
    with exclusively(Layout(home).index_lock):
        rows = _rows_from_folders(home)
        _write(home, rows)
    return rows


def _rows_from_folders(home: Path) -> tuple[IndexRow, ...]:
    try:
        compared = compared_with(home)
    except BadInput:
        compared = None  # each row then says that it can't be read, and why
    rows = (row_of(home, run_id, compared) for run_id in run_ids(home))
    return tuple(sorted(rows, key=_order))


def update_index(home: Path, *changed: str) -> None:
    """Bring the rows of these runs up to date.

    The rows are made under the index's lock, from the folders as they are then: the last of
    many writers can't write a row that is older than its folder.
    """
    with exclusively(Layout(home).index_lock):
        rows = _stored(home)
        if rows is None:
            _write(home, _rows_from_folders(home))
            return
        by_id = {row.run_id: row for row in rows}
        by_id.update((run_id, row_of(home, run_id)) for run_id in changed)
        _write(home, by_id.values())


def _stored(home: Path) -> tuple[IndexRow, ...] | None:
    path = Layout(home).index
    return _parse(read_lossy(path)) if path.exists() else None


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
    rows = _stored(home)
    if rows is None:
        rows = rebuild_index(home) if Layout(home).runs.is_dir() else ()
    wanted = {"tag": tag, "domain": domain, "recipe": recipe, "status": status}
    asked = {name: value for name, value in wanted.items() if value is not None}
    return tuple(
        row for row in rows if all(getattr(row, name) == value for name, value in asked.items())
    )

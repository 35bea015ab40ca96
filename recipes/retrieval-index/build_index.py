"""Indexes a collection with SQLite's FTS5 and merges it to a given number of segments.

Each commit flushes one segment, as long as FTS5 merges nothing by itself (`automerge` 0,
`crisismerge` out of reach). FTS5 can merge a whole level only, so the commits are grouped: each
group of flushed segments is merged into one segment of the next level before the next group is
written. That leaves the asked number of segments, with the same number of documents each.
"""

from __future__ import annotations

import argparse
import json
import sqlite3
from collections.abc import Sequence
from pathlib import Path

from fts5_segments import levels, segments

TABLE = "documents"
MAX_FLUSHED = 1900
"""FTS5 holds 2,000 segments (FTS5_MAX_SEGMENT); a group of flushes stays below it."""


def bounds(total: int, parts: int) -> list[tuple[int, int]]:
    """Split `range(total)` into equal parts, as (start, end)."""
    return [(part * total // parts, (part + 1) * total // parts) for part in range(parts)]


def check(docs: int, flushes: int, max_segments: int) -> str | None:
    """Why this number of segments can't be reached, or None."""
    if max_segments < 1 or flushes < max_segments:
        return f"{flushes} flushes can't give {max_segments} segments"
    if flushes > docs:
        return f"{docs} documents can't be flushed {flushes} times"
    group = flushes // max_segments
    # FTS5 merges the level with the most segments, the lowest of equal ones: with fewer flushes in
    # a group it would merge the finished segments instead.
    if 1 < group < max_segments - 1 or (group == 1 and flushes != max_segments):
        return (
            f"{flushes} flushes can't be merged to {max_segments} segments: FTS5 merges the fullest"
            f" level, so it takes {max_segments} flushes, or at least"
            f" {max_segments * max(2, max_segments - 1)}"
        )
    if group >= MAX_FLUSHED:
        return f"{flushes} flushes are more segments than FTS5 holds; take fewer"
    return None


def command(index: sqlite3.Connection, name: str, value: int | None = None) -> None:
    """Give FTS5 one of its special commands (sqlite.org/fts5.html, section 6)."""
    if value is None:
        index.execute(f"INSERT INTO {TABLE}({TABLE}) VALUES (?)", (name,))
    else:
        index.execute(f"INSERT INTO {TABLE}({TABLE}, rank) VALUES (?, ?)", (name, value))


def write(index: sqlite3.Connection, texts: Sequence[str], flushes: int, max_segments: int) -> None:
    """Write the documents in `flushes` commits, merged group by group to `max_segments`."""
    slices = bounds(len(texts), flushes)
    for start, end in bounds(flushes, max_segments):
        for first, last in slices[start:end]:
            index.execute("BEGIN")
            index.executemany(
                f"INSERT INTO {TABLE}(rowid, body) VALUES (?, ?)",
                ((number + 1, texts[number]) for number in range(first, last)),
            )
            index.execute("COMMIT")
        if max_segments == 1:
            command(index, "optimize")
        elif end - start > 1:
            # A page at a time: once this level is merged, FTS5 would go on with the next one.
            while levels(index, TABLE)[0]:
                command(index, "merge", 1)


def main() -> None:
    """Build the index and verify how many segments it has."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--collection", type=Path, required=True)
    parser.add_argument("--flushes", type=int, required=True, help="commits while indexing")
    parser.add_argument("--segments", type=int, required=True, help="segments to merge to")
    parser.add_argument("--out", type=Path, required=True, help="index file to make")
    asked = parser.parse_args()
    texts = (asked.collection / "documents.txt").read_text(encoding="ascii").splitlines()
    wrong = check(len(texts), asked.flushes, asked.segments)
    if wrong:
        parser.error(wrong)

    index = sqlite3.connect(asked.out, isolation_level=None)
    # A build that is cut short is thrown away whole, so nothing has to survive a crash.
    index.execute("PRAGMA journal_mode = OFF")
    index.execute("PRAGMA synchronous = OFF")
    try:
        index.execute(
            f"CREATE VIRTUAL TABLE {TABLE} USING fts5(body, content = '', tokenize = 'ascii')"
        )
    except sqlite3.OperationalError as problem:
        parser.exit(1, f"this Python's SQLite ({sqlite3.sqlite_version}) has no FTS5: {problem}\n")
    command(index, "automerge", 0)
    command(index, "crisismerge", 2000)
    command(index, "usermerge", 2)
    write(index, texts, asked.flushes, asked.segments)

    about = json.loads((asked.collection / "collection.json").read_text(encoding="ascii"))
    about["ingest.flushes"] = asked.flushes
    index.execute("CREATE TABLE made_from(name TEXT PRIMARY KEY, value TEXT)")
    index.executemany(
        "INSERT INTO made_from VALUES (?, ?)", [(k, json.dumps(v)) for k, v in about.items()]
    )
    # Merging leaves free pages behind: without this, the arms would differ in layout as well.
    index.execute("VACUUM")
    count = segments(index, TABLE)
    index.close()
    if count != asked.segments:
        # FTS5 takes a merged segment that has no more pages than a flushed one back to the level
        # of the flushed ones (fts5StructurePromote), and merges it again.
        parser.exit(
            1,
            f"the index has {count} segments where {asked.segments} were asked for: with so few"
            f" documents, merge none (--flushes {asked.segments}), or take more documents\n",
        )
    print(f"{len(texts)} documents in {count} segments, flushed {asked.flushes} times")


if __name__ == "__main__":
    main()

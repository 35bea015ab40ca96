"""Reads from an FTS5 index itself how many segments it has.

SQLite has no function for it. The number stands in the structure record: the row of the table
`<name>_data` with id 10 (FTS5_STRUCTURE_ROWID). Its form, from the comment "Structure record" in
SQLite's ext/fts5/fts5_index.c:

    4 bytes   configuration cookie
    [4 bytes  FF 00 00 01, in indexes that SQLite 3.43 or later wrote with tombstones]
    varint    number of levels
    varint    number of segments
    varint    write counter
    then for each level:
        varint  number of segments that a merge has as its input, 0 where none is under way
        varint  number of segments
        then for each segment:
            3 varints (8 with the marker above): id, first leaf, last leaf, ...
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator

STRUCTURE_ROWID = 10
MARKER_V2 = b"\xff\x00\x00\x01"


def varints(record: bytes) -> Iterator[int]:
    """SQLite's variable-length integers: 7 bits a byte, the high bit says that more follow.

    The ninth byte, where there is one, carries 8 bits.
    """
    value = length = 0
    for byte in record:
        length += 1
        if length == 9:
            yield value << 8 | byte
            value = length = 0
            continue
        value = value << 7 | byte & 0x7F
        if byte < 0x80:
            yield value
            value = length = 0


def levels(index: sqlite3.Connection, table: str) -> list[int]:
    """Number of segments on each level of the index.

    Raises:
        ValueError: The record doesn't have the form above, or contradicts itself: a new version
            of FTS5, or a damaged index. Guessing would be a wrong effective parameter.
    """
    row = index.execute(
        f'SELECT block FROM "{table}_data" WHERE id = ?', (STRUCTURE_ROWID,)
    ).fetchone()
    if row is None:
        raise ValueError(f"{table}_data has no structure record")
    record = bytes(row[0])
    marked = record[4:8] == MARKER_V2
    numbers = varints(record[8 if marked else 4 :])
    try:
        level_count, total, _write_counter = next(numbers), next(numbers), next(numbers)
        counts = []
        for _ in range(level_count):
            _merging, count = next(numbers), next(numbers)
            counts.append(count)
            for _ in range(count * (8 if marked else 3)):
                next(numbers)
    except StopIteration:
        raise ValueError(f"the structure record of {table} ends early") from None
    if sum(counts) != total or next(numbers, None) is not None:
        raise ValueError(f"the structure record of {table} has an unknown form")
    return counts


def segments(index: sqlite3.Connection, table: str) -> int:
    """Number of segments of the whole index. Raises ValueError as `levels`."""
    return sum(levels(index, table))

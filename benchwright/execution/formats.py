"""The three forms in which a program writes its metrics: JSON, `name: value` lines, CSV.

A reader finds the entries and says where each one stands; what counts as a number is decided in
`metrics`. All of them work on the end of a file only (`TAIL_LIMIT`), take any bytes, and are the
same under every locale.
"""

from __future__ import annotations

import csv
import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches
from functools import partial
from pathlib import Path
from stat import S_ISREG
from typing import Any, NoReturn

from benchwright.errors import StageFailed, Where

TAIL_LIMIT = 64 * 1024 * 1024
"""Bytes that are read from the end of an output: as much as a stage's output file may hold
(`StageLaunch.output_limit_mb`)."""

JSON_LIMIT = 16 * 1024 * 1024
"""Bytes from the end in which a JSON result or a CSV table is looked for."""

QUOTE_LIMIT = 60
"""Characters of an offending text that an error quotes."""

EXTRA_LIMIT = 200
"""Numbers that nobody asked for and that are kept all the same; more would swell every record."""

NUMBER = re.compile(r"[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?")
"""A number as programs write it. Python's `float` takes `1_000`, `nan` and other scripts' digits
too, which are no way to print a measurement."""


class Text(str):
    """A value from a text format, which doesn't say whether it is a number."""

    __slots__ = ()


@dataclass(frozen=True, slots=True)
class Entry:
    """One name with what stands behind it.

    Attributes:
        value: A JSON value; from text formats a `Text`, or a list of them for repeats.
        line: Gives its line in the file, counted from 1. Counted on demand only: an output may
            have millions of lines before it.
        clash: The other value that the same name was given in the same place, alone in a tuple;
            None where it was given one.
    """

    value: Any
    line: Callable[[], int] | None = None
    clash: tuple[Any] | None = None


@dataclass(slots=True)
class Table:
    """What a reader found.

    Attributes:
        entries: Every entry by name; nested JSON names are dotted.
        effective: Values under `effective`, by dotted name.
        items: The JSON value under `items`; None where there is none.
        hints: What to say of a name that isn't there, by name.
    """

    entries: dict[str, Entry] = field(default_factory=dict)
    effective: dict[str, Entry] = field(default_factory=dict)
    items: Any = None
    hints: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Output:
    """The end of a text that a stage wrote.

    Attributes:
        who: Who wrote it, for errors: `stage 'search'`.
        path: The file.
        label: What it is, in words: `its standard output`.
        data: The last `TAIL_LIMIT` bytes at most, starting at a line where it was cut.
        skipped: Bytes before them.
    """

    who: str
    path: Path
    label: str
    data: bytes
    skipped: int

    @classmethod
    def read(cls, who: str, path: Path, label: str, *, hint: str) -> Output:
        """Read the end of a file. Raises StageFailed where there is none, or nothing in it."""
        try:
            # Not opened before it is known to be a file: a pipe would block for ever.
            regular = S_ISREG(path.stat().st_mode)
        except OSError as problem:
            raise StageFailed(
                f"{who}: {label} isn't there ({problem.strerror})",
                where=Where(file=path),
                hint=hint,
            ) from None
        if not regular:
            raise StageFailed(
                f"{who}: {label} is no file",
                where=Where(file=path),
                hint=hint,
            )
        with path.open("rb") as file:
            size = file.seek(0, 2)
            skipped = max(0, size - TAIL_LIMIT)
            file.seek(skipped)
            data = file.read(TAIL_LIMIT)
        if skipped:
            cut = data.find(b"\n") + 1
            data, skipped = data[cut:], skipped + cut
        if data.startswith(b"\xef\xbb\xbf"):
            data, skipped = data[3:], skipped + 3
        if not data.strip():
            raise StageFailed(
                f"{who}: {label} is empty",
                where=Where(file=path),
                hint=hint,
            )
        return cls(who, path, label, data, skipped)

    def line(self, offset: int) -> int:
        """The line, counted from 1, of a byte of `data`. Reads what was skipped, for errors."""
        line = 1 + self.data.count(b"\n", 0, offset)
        if self.skipped:
            left = self.skipped
            with self.path.open("rb") as file:
                while left and (chunk := file.read(min(left, 1 << 20))):
                    line += chunk.count(b"\n")
                    left -= len(chunk)
        return line

    def tail(self, limit: int) -> tuple[int, str]:
        """The last whole lines within `limit` bytes: their offset in `data`, and their text."""
        start = max(0, len(self.data) - limit)
        if start:
            start = self.data.find(b"\n", start) + 1
        return start, self.data[start:].decode("utf-8", "replace")

    def fail(
        self,
        what: str,
        *,
        line: int | Callable[[], int] | None = None,
        expected: str | None = None,
        hint: str | None = None,
    ) -> NoReturn:
        """Raise StageFailed with this file as its place."""
        raise StageFailed(
            f"{self.who}: {what}",
            where=Where(file=self.path, line=line() if callable(line) else line),
            expected=expected,
            hint=hint,
        )


def quote(text: object) -> str:
    """A text for an error: on one line, without control characters, shortened."""
    plain = "".join(c if c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in str(text))
    return f"'{plain[:QUOTE_LIMIT]}...'" if len(plain) > QUOTE_LIMIT else f"'{plain}'"


# --- JSON ---------------------------------------------------------------------------------------


class _Object(dict[str, Any]):
    """A JSON object that remembers a key that was given two values."""

    clashes: Mapping[str, Any] = {}


@dataclass(frozen=True, slots=True)
class Overflow:
    """A number in JSON that no double holds, such as `1e400`, as it was written."""

    text: str


def _object(pairs: list[tuple[str, Any]]) -> _Object:
    found = _Object(pairs)
    if len(found) < len(pairs):
        # Compared as text: there, NaN is itself, and 1 isn't true.
        found.clashes = {key: value for key, value in pairs if repr(value) != repr(found[key])}
    return found


def _float(text: str) -> float | Overflow:
    value = float(text)
    return Overflow(text) if value in (float("inf"), float("-inf")) else value


def _int(text: str) -> int | Overflow:
    # 309 digits are the most that a double holds; Python refuses over 4300 by itself.
    return Overflow(text) if len(text) > 310 else int(text)


_DECODER = json.JSONDecoder(object_pairs_hook=_object, parse_float=_float, parse_int=_int)
_BLOCK = re.compile(r"^[ \t]*(?=[{\[])", re.MULTILINE)
_UNFINISHED = re.compile(r"^[ \t]*\{[ \t]*(?:\"|\Z)", re.MULTILINE)
"""The beginning of an object. Behind the last whole one, it is a result that was cut off; the whole
one before it is then an older result, or set-up."""
_REST = re.compile(r"[ \t\r]*(?:\n|\Z)")


@dataclass(frozen=True, slots=True)
class _Found:
    """A JSON object that stands on its own lines, and its offset in the text."""

    value: _Object
    start: int
    end: int


def _blocks(text: str) -> Iterator[_Found | None]:
    """The JSON values that stand on lines of their own, in order; None for a list.

    Read forwards, so that an object inside another one, or inside a list, is never taken for a
    result of its own.
    """
    position = 0
    while match := _BLOCK.search(text, position):
        try:
            value, end = _DECODER.raw_decode(text, match.end())
        except (ValueError, RecursionError):
            position = match.end() + 1
            continue
        if rest := _REST.match(text, end):
            yield _Found(value, match.end(), end) if isinstance(value, _Object) else None
            position = rest.end()
            if position == len(text):
                return
        else:
            position = match.end() + 1


def has_json(output: Output) -> bool:
    """Whether a JSON object stands on a line, or lines, of its own."""
    return any(found is not None for found in _blocks(output.tail(JSON_LIMIT)[1]))


def read_json(output: Output) -> Table:
    """The last JSON object that stands on a line, or lines, of its own.

    Earlier objects are set-up and progress, and never fill in for it. Nested names become dotted
    ones, but for `effective` and `items`.

    Raises:
        StageFailed: There is none.
    """
    start, text = output.tail(JSON_LIMIT)
    last: _Found | None = None
    earlier: dict[str, int] = {}
    lists = 0
    for found in _blocks(text):
        if found is None:
            lists += 1
            continue
        if last is not None:
            earlier |= dict.fromkeys(last.value, last.start)
        last = found
    if last is None:
        output.fail(
            f"{output.label} has no JSON object"
            + (", only a JSON list" if lists else "")
            + f"; it ends with {quote(text.rstrip().rpartition(chr(10))[2])}",
            expected='an object on its last line, such as {"p50_ms": 1.25}',
            hint="print the result as one JSON object, or set metrics_from.format: key_value",
        )

    if unfinished := _UNFINISHED.search(text, last.end):
        output.fail(
            f"the last JSON object in {output.label} is cut off: "
            + quote(text[unfinished.start() :].partition("\n")[0]),
            line=output.line(start) + text.count("\n", 0, unfinished.start()),
            expected="a whole object on its last line",
            hint="the program may have been ended while it wrote; flush its output before it ends",
        )

    def line(offset: int) -> int:
        return output.line(start) + text.count("\n", 0, offset)

    table = Table()
    body = text[last.start : last.end]

    def line_of(key: str) -> int:
        place = body.find(json.dumps(key, ensure_ascii=False))
        return line(last.start) + (body.count("\n", 0, place) if place > 0 else 0)

    def walk(values: _Object, prefix: str, into: dict[str, Entry]) -> None:
        for key, value in values.items():
            name = f"{prefix}{key}"
            clash: tuple[Any] | None = None
            if key in values.clashes:
                clash = (values.clashes[key],)
            elif name in into:  # `a.b` beside `a: {b: ...}`
                clash = (into[name].value,)
            if isinstance(value, _Object) and value and clash is None:
                walk(value, f"{name}.", into)
            else:
                into[name] = Entry(value, partial(line_of, key), clash)

    def part(name: str) -> _Object | None:
        value = last.value.get(name)
        if not isinstance(value, _Object):
            return None
        if name in last.value.clashes:
            output.fail(f"the key '{name}' is given twice, with two values", line=line_of(name))
        return value

    effective, items = part("effective"), part("items")
    rest = _Object(
        (key, value)
        for key, value in last.value.items()
        if not (key == "effective" and effective is not None)
        and not (key == "items" and items is not None)
    )
    rest.clashes = last.value.clashes
    walk(rest, "", table.entries)
    if effective is not None:
        walk(effective, "", table.effective)
    for name in [name for name in table.entries if name.startswith("effective.")]:
        table.effective[name.removeprefix("effective.")] = table.entries.pop(name)
    table.items = items
    table.hints = {
        name: f"an earlier JSON object, on line {line(offset)}, has it: print the result last"
        for name, offset in earlier.items()
        if name not in table.entries
    }
    return table


# --- name: value --------------------------------------------------------------------------------

_EXTRA_TAIL = 1024 * 1024
_EXTRA = re.compile(
    r"^[ \t]*([^\s:={}\[\],\"'][^:={}\[\],\"'\r\n]{0,98}?)[ \t]*[:=][ \t]*("
    + NUMBER.pattern
    + r")[ \t]*\r?$",
    re.MULTILINE,
)


def read_key_value(output: Output, names: Sequence[str]) -> Table:
    """Lines of the form `name: value` or `name = value`.

    Text before the name keeps a line from counting. The names asked for, and `effective.*`, are
    looked for in all that is kept of the output, so that one given twice is noticed; other numbers
    in its last mebibyte.

    Args:
        output: The text.
        names: The names that matter, exactly as written.
    """
    asked = b"|".join(re.escape(name.encode()) for name in sorted(names, key=len, reverse=True))
    wanted = rb"effective\.[^\s:=\"']+" + (rb"|" + asked if asked else b"")
    line = re.compile(
        rb"(?:^|\r)[ \t]*([\"']?)("
        + wanted
        + rb")\1[ \t]*[:=][ \t]*([^\r\n]*?)[ \t]*(?=[\r\n]|\Z)",
        re.MULTILINE,
    )
    table = Table()
    for match in line.finditer(output.data):
        name = match[2].decode("utf-8", "replace")
        into = table.entries
        if name.startswith("effective.") and name not in names:
            into, name = table.effective, name.removeprefix("effective.")
        value = Text(match[3].decode("utf-8", "replace"))
        _add(into, name, value, partial(output.line, match.start(2)))
    extras: dict[str, Entry] = {}
    for extra in _EXTRA.finditer(output.tail(_EXTRA_TAIL)[1]):
        if extra[1] not in table.entries and not extra[1].startswith("effective."):
            _add(extras, extra[1], Text(extra[2]), None)
    table.entries |= extras
    for name in names:
        if name not in table.entries and (place := output.data.rfind(name.encode())) >= 0:
            begin = output.data.rfind(b"\n", 0, place) + 1
            end = output.data.find(b"\n", place)
            mention = output.data[begin : end if end >= 0 else None][: 4 * QUOTE_LIMIT]
            table.hints[name] = (
                f"line {output.line(place)} mentions it, but isn't of the form `{name}: value`: "
                + quote(mention.decode("utf-8", "replace").strip())
            )
    return table


# --- CSV ----------------------------------------------------------------------------------------

LONG_HEADERS = ({"metric", "value"}, {"name", "value"})
"""Headers of a table with a row for each metric; further columns (a unit) are ignored."""

REPEAT_COLUMNS = {"repeat", "repetition", "iteration"}
"""Columns that only number the repeats inside the process."""


def read_csv(output: Output, names: Sequence[str]) -> Table:
    """A header and its rows: one row of values, or one row for each metric.

    The table starts at the last line that can be its header, so that lines before it are fine, and
    ends at an empty line. Several rows of values are repeats where the header has nothing but
    metrics that were asked for and a column that numbers them; otherwise they are different
    measurements, and which one was meant can't be known.

    Args:
        output: The text.
        names: The names that must be there.
    """
    start, text = output.tail(JSON_LIMIT)
    lines = [line.rstrip("\r") for line in text.split("\n")]
    before = output.line(start)
    header_at = _header(lines, names)
    if header_at is None:
        separated = next((c for c in (";", "\t") if any(c in line for line in lines[-50:])), None)
        output.fail(
            f"{output.label} has no CSV header with {', '.join(names) or 'a metric'}",
            expected="a first row with the metrics' names, or `metric,value`",
            hint="separate the columns by commas" if separated else None,
        )
    end = next((i for i in range(header_at, len(lines)) if not lines[i].strip()), len(lines))
    reader = csv.reader(lines[header_at:end])
    header = [cell.strip() for cell in next(reader)]
    rows: list[tuple[int, list[Text]]] = []
    for row in reader:
        at = before + header_at + reader.line_num - 1
        if len(row) != len(header):
            output.fail(
                f"the row {quote(','.join(row))} has {len(row)} cells under {len(header)} columns",
                line=at,
                expected=f"{len(header)} cells separated by commas",
                hint="a decimal comma splits a cell in two: print a decimal point (LC_ALL=C)",
            )
        rows.append((at, [Text(cell.strip()) for cell in row]))
    if not rows:
        output.fail(f"the CSV table in {output.label} has no row", line=before + header_at)
    if _is_long(header):
        return _long(header, rows)
    twice = next((name for name in header if header.count(name) > 1), None)
    if twice is not None:
        output.fail(f"the CSV header has the column '{twice}' twice", line=before + header_at)
    others = [name for name in header if name not in names and name.lower() not in REPEAT_COLUMNS]
    if len(rows) > 1 and others:
        output.fail(
            f"the CSV table in {output.label} has {len(rows)} rows, which the column"
            f" '{others[0]}' tells apart",
            line=rows[1][0],
            expected="one row; or repeats, with no columns but metrics and `repeat`",
            hint="print the row that is the result, or `metric,value` rows",
        )
    table = Table()
    for column, name in enumerate(header):
        cells = [row[column] for _, row in rows]
        if name.lower() in REPEAT_COLUMNS and name not in names:
            continue
        entry = Entry(cells[0] if len(cells) == 1 else cells, partial(int, rows[0][0]))
        if name.startswith("effective.") and name not in names:
            table.effective[name.removeprefix("effective.")] = entry
        else:
            table.entries[name] = entry
    return table


def _is_long(header: Sequence[str]) -> bool:
    return any(kind <= {name.lower() for name in header} for kind in LONG_HEADERS)


def _header(lines: Sequence[str], names: Sequence[str]) -> int | None:
    """Number of the last line that is a header: it has every name, or `metric,value`."""
    for number in range(len(lines) - 1, -1, -1):
        line = lines[number]
        if len(line) > 64 * 1024 or not any(name in line for name in (*names, "alue", "ALUE")):
            continue
        cells = [cell.strip() for cell in next(csv.reader([line]), [])]
        if any(NUMBER.fullmatch(cell) for cell in cells):
            continue  # a row: in a table of `metric,value` each one names a metric
        if _is_long(cells) or (names and set(names) <= set(cells)):
            return number
    return None


def _long(header: Sequence[str], rows: Sequence[tuple[int, list[Text]]]) -> Table:
    lower = [name.lower() for name in header]
    name_at = lower.index("metric") if "metric" in lower else lower.index("name")
    value_at = lower.index("value")
    table = Table()
    for line, row in rows:
        name, into = str(row[name_at]), table.entries
        if name.startswith("effective."):
            into, name = table.effective, name.removeprefix("effective.")
        _add(into, name, row[value_at], partial(int, line))
    return table


def _add(into: dict[str, Entry], name: str, value: Text, line: Callable[[], int] | None) -> None:
    """Note a value; a second, other one is noted as its clash."""
    old = into.get(name)
    if old is None:
        into[name] = Entry(value, line)
    elif old.value != value and old.clash is None:
        into[name] = Entry(value, line, (old.value,))


def nearest(name: str, names: Sequence[str]) -> str | None:
    """The known name that is most like this one, where one is."""
    found = get_close_matches(name, names, 1)
    if found:
        return found[0]
    return next((other for other in names if other.endswith(f".{name}")), None)

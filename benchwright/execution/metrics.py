"""Reads a measure stage's metrics (gate 2, rule 10: what is no finite number is no measurement).

Nothing is guessed: `1,25` is neither 125 nor 1, a name given two values has none, and a set-up
line never stands in for a result. Each refusal names the metric, the file and the line, and quotes
what was found.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import NoReturn

from benchwright.errors import StageFailed
from benchwright.execution.formats import (
    EXTRA_LIMIT,
    NUMBER,
    Entry,
    Output,
    Overflow,
    Table,
    Text,
    has_json,
    nearest,
    quote,
    read_csv,
    read_json,
    read_key_value,
)
from benchwright.execution.sample import Measurement
from benchwright.spec.model import EffectiveFrom, MetricsFormat, MetricsFrom, Stage
from benchwright.spec.values import Scalar, Value

_EXPLANATIONS: Sequence[tuple[re.Pattern[str], str, str]] = (
    (
        re.compile(r"[+-]?\d+,\d+"),
        "has a comma, which may be a decimal or a thousands separator",
        "print it with a decimal point and no separator: run the program under LC_ALL=C",
    ),
    (
        re.compile(r"[+-]?\d{1,3}(?:[.,'_ \u00a0\u202f\u2009]\d{3})+(?:[.,]\d+)?"),
        "has thousands separators",
        "print the digits alone: run the program under LC_ALL=C",
    ),
    (
        re.compile(
            rf"(?:{NUMBER.pattern})\s*[^\W\d][\w/%^*.-]*|(?:{NUMBER.pattern})\s*[%µ\u03bc].*"
        ),
        "has a unit behind the number",
        "print the number alone, and give the unit in the configuration (metrics: unit)",
    ),
)
"""Texts that are nearly a number: what is wrong with them, and what to do. In this order."""


def read_measurement(
    stage: Stage, *, stdout: Path, cwd: Path, expected: Sequence[str]
) -> Measurement:
    """Read what one replicate of a measure stage gave.

    Args:
        stage: The stage; without `metrics_from` its standard output is read.
        stdout: The file that holds its standard output.
        cwd: The folder that it ran in.
        expected: Names of the configuration's metrics. Those in `metrics_from.fields`, or all
            where that is empty, must be there. One that is there must be a finite number.

    Returns:
        Every expected metric that is there, and further finite numbers beside them.

    Raises:
        StageFailed: A metric is missing or isn't a finite number, or the output can't be read.
    """
    source = stage.metrics_from or MetricsFrom(stdout=True)
    if source.file is None:
        label, path = "its standard output", stdout
        hint = "print the metrics, or name the file that has them: metrics_from: {file: PATH}"
    else:
        label, path = f"its metrics file {source.file}", cwd / source.file
        hint = f"metrics_from.file is looked for in {cwd}"
    output = Output.read(_who(stage), path, label, hint=hint)
    needed = source.fields or tuple(expected)
    names = tuple(dict.fromkeys((*needed, *expected)))
    table = _read(output, source.format, names=names, needed=needed)
    measurement = _measurement(table, output, needed=needed, names=names)
    if stage.effective_from is None:
        return measurement
    declared = _effective_file(_who(stage), stage.effective_from, cwd)
    for name, value in measurement.effective.items():
        if name in declared and declared[name] != value:
            output.fail(
                f"the effective value of '{name}' is {value!r} here and {declared[name]!r} in"
                f" {stage.effective_from.file}",
                expected="one value in use",
                hint="leave one of the two out",
            )
    return Measurement(
        metrics=measurement.metrics,
        values=measurement.values,
        items=measurement.items,
        effective={**declared, **measurement.effective},
    )


def measurement_from_result(
    stage: Stage, result: object, *, expected: Sequence[str]
) -> Measurement:
    """The measurement in what a stage's Python function returned.

    Args:
        stage: The stage.
        result: A dict in the same form as JSON on standard output.
        expected: Names of the configuration's metrics; see `read_measurement`.

    Raises:
        StageFailed: As `read_measurement`.
    """
    path = Path(stage.function or stage.name)
    output = Output(_who(stage), path, "what it returned", b"", 0)
    if not isinstance(result, Mapping):
        output.fail(
            f"{stage.function} returned {_describe(result)}, which holds no metrics",
            expected='a dict of metrics, such as {"p50_ms": 1.25}',
        )
    source = stage.metrics_from
    needed = source.fields if source and source.fields else tuple(expected)
    names = tuple(dict.fromkeys((*needed, *expected)))
    text = json.dumps(result)
    table = read_json(Output(_who(stage), path, "what it returned", text.encode(), 0))
    table.entries = {name: Entry(entry.value) for name, entry in table.entries.items()}
    table.effective = {name: Entry(entry.value) for name, entry in table.effective.items()}
    return _measurement(table, output, needed=needed, names=names)


def read_effective(effective_from: EffectiveFrom, cwd: Path) -> dict[str, Value]:
    """Read the parameter values that a system says it used, by dotted name.

    A JSON file is taken whole, or its `effective` object where it has one; a text file as
    `name: value` lines; a CSV file as `metric,value` (or `name,value`) rows.

    Raises:
        StageFailed: The file isn't there or can't be read.
    """
    return _effective_file("the system under test", effective_from, cwd)


def _who(stage: Stage) -> str:
    return f"stage '{stage.name}'"


def _effective_file(who: str, source: EffectiveFrom, cwd: Path) -> dict[str, Value]:
    output = Output.read(
        who,
        cwd / source.file,
        f"its file of effective values {source.file}",
        hint=f"effective_from.file is looked for in {cwd}",
    )
    if source.format is MetricsFormat.JSON:
        table = read_json(output)
        entries = table.effective or table.entries
    elif source.format is MetricsFormat.CSV:
        table = read_csv(output, ())
        entries = {**table.entries, **table.effective}
    else:
        entries = _plain_lines(output)
    return _effective(entries, output)


def _plain_lines(output: Output) -> dict[str, Entry]:
    """Every `name: value` line, text values too."""
    found: dict[str, Entry] = {}
    for number, line in enumerate(output.data.decode("utf-8", "replace").split("\n"), 1):
        match = re.fullmatch(r"\s*([^\s:=#][^:=]*?)\s*[:=]\s*(.*?)\s*", line)
        if not match:
            continue
        name, value = match[1].removeprefix("effective."), Text(match[2])
        old = found.get(name)
        clash = None if old is None or old.value == value else (old.value,)
        found[name] = Entry(value, partial(int, number), clash)
    return found


def _read(
    output: Output, form: MetricsFormat | None, *, names: Sequence[str], needed: Sequence[str]
) -> Table:
    if form is MetricsFormat.CSV:
        return read_csv(output, needed)
    if form is MetricsFormat.JSON or (form is None and has_json(output)):
        return read_json(output)
    return read_key_value(output, names)


def _measurement(
    table: Table, output: Output, *, needed: Sequence[str], names: Sequence[str]
) -> Measurement:
    items = _items(table.items, output)
    metrics: dict[str, float] = {}
    values: dict[str, tuple[float, ...]] = {}
    for name in names:
        entry = table.entries.get(name)
        if entry is not None:
            metrics[name] = _take(name, entry, output, values)
        elif name in items:
            # Repeats of an item are averaged first: the item is the unit (gate 2, rule 1).
            metrics[name] = _mean([_mean(outcomes) for outcomes in items[name].values()])
        elif name in needed:
            _missing(name, table, output, needed)
    asked = len(metrics)
    for name, entry in table.entries.items():
        if len(metrics) - asked == EXTRA_LIMIT:
            break
        if name not in metrics:
            # Nobody asked for it, so it may be anything: a version, a time stamp, a note.
            with suppress(StageFailed):
                metrics[name] = _take(name, entry, output, values)
    return Measurement(metrics, values, items, _effective(table.effective, output))


def _missing(name: str, table: Table, output: Output, needed: Sequence[str]) -> NoReturn:
    near = nearest(name, tuple(table.entries))
    hint = table.hints.get(name)
    if hint is None and near is not None:
        hint = f"it has '{near}': name the metric so, or print '{name}'"
    found = ", ".join(list(table.entries)[:8])
    output.fail(
        f"{output.label} has no '{name}'",
        expected=", ".join(needed),
        hint=hint or (f"it has {found}" if found else "it has no metric at all"),
    )


def _take(name: str, entry: Entry, output: Output, values: dict[str, tuple[float, ...]]) -> float:
    """The number of an entry; repeats are put in `values`. Raises StageFailed for no number."""
    try:
        if entry.clash is not None:
            raise _NoNumber(
                f"is given twice, as {_describe(entry.clash[0])} and as {_describe(entry.value)}",
                "print each metric once; give set-up and warm-up figures names of their own",
            )
        repeats = _repeats(entry.value)
        if repeats is None:
            return _number(entry.value)
        mean = _mean(repeats)
        if not math.isfinite(mean):
            raise _NoNumber("is a list whose mean no double holds")
    except _NoNumber as problem:
        output.fail(
            f"'{name}' {problem.found}",
            line=entry.line,
            expected="a finite number, such as 1.25",
            hint=problem.hint,
        )
    values[name] = repeats
    return mean


class _NoNumber(Exception):
    """What was found in the place of a number, as the end of a sentence, and what to do."""

    def __init__(self, found: str, hint: str | None = None) -> None:
        super().__init__(found)
        self.found = found
        self.hint = hint


def _repeats(value: object) -> tuple[float, ...] | None:
    """The numbers of a list; None for what is no list. Raises _NoNumber."""
    if isinstance(value, Text) and value.startswith("["):
        try:
            value = json.loads(value)
        except (ValueError, RecursionError):
            raise _NoNumber(f"is {quote(value)}, which is no list of numbers") from None
    if not isinstance(value, list):
        return None
    if not value:
        raise _NoNumber("is an empty list")
    return tuple(_number(part) for part in value)


def _number(value: object) -> float:
    """A finite number. Raises _NoNumber for anything else."""
    if isinstance(value, Text):
        return _number_of_text(value)
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise _NoNumber(f"is {_describe(value)}")
    try:
        number = float(value)
    except OverflowError:
        number = math.inf
    if not math.isfinite(number):
        raise _NoNumber(f"is {_describe(value)}")
    return number


def _number_of_text(text: Text) -> float:
    if NUMBER.fullmatch(text):
        number = float(text)
        if math.isfinite(number):
            return number
        raise _NoNumber(f"is {quote(text)}, which no double holds")
    if not text:
        raise _NoNumber("has no value")
    for pattern, wrong, hint in _EXPLANATIONS:
        if pattern.fullmatch(text):
            raise _NoNumber(f"is {quote(text)}, which {wrong}", hint)
    raise _NoNumber(f"is {quote(text)}, which is no number")


def _mean(numbers: Sequence[float]) -> float:
    """The arithmetic mean; infinite where the sum is more than a double holds."""
    try:
        return math.fsum(numbers) / len(numbers)
    except OverflowError:
        return math.inf


def _describe(value: object) -> str:
    """A value that is no number, in the words of the format that it came in."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, Overflow):
        return f"{quote(value.text)}, which no double holds"
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    if isinstance(value, Text):
        return quote(value)
    if isinstance(value, str):
        return f"the text {quote(value)}"
    if isinstance(value, list):
        return f"a list of {len(value)}"
    if isinstance(value, Mapping):
        return "an object"
    return quote(value)


def _items(found: object, output: Output) -> dict[str, dict[str, tuple[float, ...]]]:
    """Outcomes by metric and item: `{"accuracy": {"q1": 1, "q2": [0, 1]}}`, `true` as 1."""
    if found is None:
        return {}
    items: dict[str, dict[str, tuple[float, ...]]] = {}
    assert isinstance(found, Mapping), "a reader gives an object or None"
    for metric, outcomes in found.items():
        if not isinstance(outcomes, Mapping) or not outcomes:
            output.fail(
                f"'items.{metric}' is {_describe(outcomes) if outcomes else 'empty'}",
                expected='an outcome for each item, such as {"q1": 1, "q2": 0}',
            )
        clashes = getattr(outcomes, "clashes", {})
        scores: dict[str, tuple[float, ...]] = {}
        for item, outcome in outcomes.items():
            try:
                if item in clashes:
                    raise _NoNumber("is there twice", "give each item an id of its own")
                scores[item] = _outcomes(outcome)
            except _NoNumber as problem:
                output.fail(
                    f"item {quote(item)} of '{metric}' {problem.found}",
                    expected="0 or 1, a finite score, or a list of them",
                    hint=problem.hint,
                )
        items[metric] = scores
    return items


def _outcomes(outcome: object) -> tuple[float, ...]:
    """What an item scored, once for each repeat. Here `true` is an outcome: it is right."""
    parts = outcome if isinstance(outcome, list) else [outcome]
    if not parts:
        raise _NoNumber("is an empty list")
    return tuple(float(part) if isinstance(part, bool) else _number(part) for part in parts)


def _effective(entries: Mapping[str, Entry], output: Output) -> dict[str, Value]:
    return {name: _effective_value(name, entry, output) for name, entry in entries.items()}


def _effective_value(name: str, entry: Entry, output: Output) -> Value:
    if entry.clash is not None:
        output.fail(
            f"the effective value of '{name}' is given twice, as {_describe(entry.clash[0])} and"
            f" as {_describe(entry.value)}",
            line=entry.line,
            expected="one value in use",
        )
    value = entry.value
    if isinstance(value, Text):
        return _scalar_of_text(value)
    parts = value if isinstance(value, list) else [value]
    scalars: list[Scalar] = []
    for part in parts:
        not_finite = isinstance(part, float) and not math.isfinite(part)
        if not_finite or isinstance(part, Overflow | list | Mapping):
            output.fail(
                f"the effective value of '{name}' is {_describe(part)}",
                line=entry.line,
                expected="text, a finite number, true, false, null, or a list of them",
            )
        scalars.append(part)
    return tuple(scalars) if isinstance(value, list) else scalars[0]


def _scalar_of_text(text: Text) -> Scalar:
    """What a text stands for where its format has no types: JSON's scalars, else itself."""
    words: Mapping[str, Scalar] = {"true": True, "false": False, "null": None}
    if text in words:
        return words[text]
    if re.fullmatch(r"[+-]?(?:0|[1-9]\d{0,300})", text):
        return int(text)
    if NUMBER.fullmatch(text) and not re.match(r"[+-]?0\d", text):
        number = float(text)
        return number if math.isfinite(number) else str(text)
    return str(text)

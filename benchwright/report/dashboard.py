"""The dashboard of a suite: one page that opens offline, with a sparkline for each metric.

No script and nothing to fetch: the lines are SVG in the page. What a colour says, a word and a
shape say too.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from benchwright.judgement.history import Change, History, Standing
from benchwright.report import numbers
from benchwright.report.markdown import escape
from benchwright.report.plain import cut, one_line
from benchwright.report.suite import (
    Board,
    EntryBoard,
    Series,
    closer,
    commits_command,
)

WIDTH, HEIGHT = 300, 56
_LEFT, _RIGHT, _TOP, _BOTTOM = 6.0, 6.0, 8.0, 14.0

MOST_SHOWN = 90
"""Nights in a sparkline: a quarter of a year, three pixels each."""

_TABLE_NIGHTS = 30
"""Nights in the table that unfolds."""

MOST_BYTES = 5000
"""Size of the Markdown summary."""

_ORDER = (
    Standing.WORSE,
    Standing.WATCH,
    Standing.MISSING,
    Standing.NEW,
    Standing.BETTER,
    Standing.STEADY,
)
"""What a person wants to see first."""


@dataclass(frozen=True, slots=True)
class Mark:
    """A change in a sparkline.

    Attributes:
        x, y: Its place.
        worse: A full triangle that points down where it is worse; else an open one, up.
        title: What it says when pointed at.
    """

    x: float
    y: float
    worse: bool
    title: str


@dataclass(frozen=True, slots=True)
class Sparkline:
    """The geometry of a series of nights.

    Attributes:
        paths: Lines through consecutive nights that have a value.
        dots: (x, y, title) of each night.
        levels: (x1, x2, y) of each level.
        grounds: (x, title) where the environment changed.
        gaps: (x, title) of nights without a value.
        marks: The changes.
        alt: What it shows, in a sentence.
        first, last: Dates at its ends.
    """

    paths: tuple[str, ...]
    dots: tuple[tuple[float, float, str], ...]
    levels: tuple[tuple[float, float, float], ...]
    grounds: tuple[tuple[float, str], ...]
    gaps: tuple[tuple[float, str], ...]
    marks: tuple[Mark, ...]
    alt: str
    first: str
    last: str


@dataclass(frozen=True, slots=True)
class Row:
    """A series as the page shows it."""

    series: Series
    line: Sparkline
    level: str
    change: str
    commits: str
    commands: tuple[tuple[str, str], ...]
    nights: tuple[tuple[str, ...], ...]


def sparkline(history: History) -> Sparkline:
    """The latest nights of a series as lines, dots and marks."""
    nights = history.nights
    begin = max(0, len(nights) - MOST_SHOWN)
    unit = history.metric.unit
    values = [n.value for n in nights[begin:] if n.value is not None and math.isfinite(n.value)]
    low, high = (min(values), max(values)) if values else (0.0, 1.0)
    if low == high:
        room = abs(low) * 0.01 or 1.0
        low, high = low - room, high + room
    many = max(len(nights) - begin - 1, 1)

    def across(index: float) -> float:
        return round(_LEFT + (index - begin) / many * (WIDTH - _LEFT - _RIGHT), 1)

    def up(value: float) -> float:
        return round(_TOP + (high - value) / (high - low) * (HEIGHT - _TOP - _BOTTOM), 1)

    dots, gaps, paths = [], [], []
    starts = {segment.first for segment in history.segments}
    path: list[str] = []
    for index in range(begin, len(nights)):
        night = nights[index]
        x = across(index)
        if index in starts and path:
            paths.append("".join(path))
            path = []
        if night.value is None:
            gaps.append((x, f"{night.date}: {night.why}"))
            continue
        y = up(night.value)
        path.append(f"{'L' if path else 'M'}{x} {y}")
        commit = f", {night.commit}" if night.commit else ""
        dots.append((x, y, f"{night.date}: {numbers.quantity(night.value, unit)}{commit}"))
    if path:
        paths.append("".join(path))
    marks = []
    for change in history.changes:
        if change.first >= begin:
            value = nights[change.first].value
            y = up(value if value is not None else change.after)
            marks.append(Mark(across(change.first), y, change.worse, change_words(history, change)))
    grounds = [
        (across(segment.first - 0.5), "environment changed: " + "; ".join(segment.changed))
        for segment in history.segments[1:]
        if segment.first >= begin
    ]
    return Sparkline(
        paths=tuple(paths),
        dots=tuple(dots),
        levels=tuple(
            (across(first), across(last), up(min(max(level, low), high)))
            for first, last, level in _levels(history)
            if last >= begin and level is not None
            for first in (max(first, begin),)
        ),
        grounds=tuple(grounds),
        gaps=tuple(gaps),
        marks=tuple(marks),
        alt=_alt(history, low, high, bool(values)),
        first=nights[begin].date if nights else "",
        last=nights[-1].date if nights else "",
    )


def _levels(history: History) -> list[tuple[int, int, float | None]]:
    """First and last night of each level, and its median."""
    from benchwright.judgement.statistics import median

    cuts = sorted(
        {segment.first for segment in history.segments}
        | {change.first for change in history.changes}
    )
    ends = [*cuts[1:], len(history.nights)]
    levels = []
    for first, end in zip(cuts, ends, strict=True):
        values = [n.value for n in history.nights[first:end] if n.value is not None]
        levels.append((first, end - 1, median(values) if values else None))
    return levels


def _alt(history: History, low: float, high: float, any_value: bool) -> str:
    metric = history.metric
    if not any_value:
        return f"{metric.name}: no night measured it."
    span = f"{numbers.quantity(low, metric.unit)} to {numbers.quantity(high, metric.unit)}"
    said = [f"{metric.name} over {len(history.nights)} nights, {span}. {history.said}"]
    said += [change_words(history, change) for change in history.changes[-3:]]
    if len(history.segments) > 1:
        said.append(f"The environment changed {len(history.segments) - 1} times.")
    return one_line(" ".join(said))


def change_words(history: History, change: Change) -> str:
    """A change in a sentence."""
    metric = history.metric
    return (
        f"{'Worse' if change.worse else 'Better'} since {history.nights[change.first].date}:"
        f" {numbers.quantity(change.before, metric.unit)} to"
        f" {numbers.quantity(change.after, metric.unit)},"
        f" {numbers.effect(change.effect, metric)}"
        f" ({numbers.interval(change.interval, metric)})"
        + (", a drift" if change.shape == "drift" else "")
        + f", certain on {history.nights[change.found].date}."
    )


def _row(series: Series, board: Board) -> Row:
    history = series.history
    unit = history.metric.unit
    level = numbers.quantity(history.level, unit)
    if history.band is not None:
        low, high = (numbers.figure(end) for end in history.band)
        level += f" (a night: {low} to {high})"
    change = history.open or (history.changes[-1] if history.changes else None)
    commands = []
    if change is not None:
        if listing := commits_command(change):
            commands.append((listing, "The commits between"))
        if change.run_before and change.run_after:
            commands.append((closer(change, board.folder.home), "Compare the runs on both sides"))
    return Row(
        series=series,
        line=sparkline(history),
        level=level,
        change=change_words(history, change) if change is not None else "",
        commits=_range(change),
        commands=tuple(commands),
        nights=tuple(
            (
                night.date,
                numbers.quantity(night.value, unit) if night.value is not None else "none",
                night.commit or numbers.UNKNOWN,
                night.run_id or "none",
                night.why,
            )
            for night in reversed(history.nights[-_TABLE_NIGHTS:])
        ),
    )


def _range(change: Change | None) -> str:
    if change is None:
        return ""
    if change.commits is None:
        return "commits unknown"
    first, last = change.commits
    return f"{first}..{last}" if first != last else f"{first} on both sides: not the code"


def _sorted(entries: Sequence[EntryBoard]) -> list[EntryBoard]:
    """Entries in the suite's order; their series by what a person wants to see first."""
    return [
        EntryBoard(
            board.entry,
            board.latest,
            tuple(
                sorted(
                    board.series,
                    key=lambda one: (not one.watched, _ORDER.index(one.history.standing)),
                )
            ),
        )
        for board in entries
    ]


def headline(board: Board) -> str:
    """The suite in one sentence."""
    if not board.night:
        return "No night has run yet."
    counts = [
        (board.count(Standing.WORSE), "worse"),
        (board.count(Standing.WATCH), "with one bad night"),
        (sum(entry.failed for entry in board.entries), "without a result"),
        (board.count(Standing.STEADY) + board.count(Standing.BETTER), "steady or better"),
        (board.count(Standing.NEW), "with too few nights"),
    ]
    said = ", ".join(f"{many} {words}" for many, words in counts if many)
    return f"Night of {board.night}: {said or 'nothing is watched'}."


def render_dashboard(board: Board) -> str:
    """The page: one file, no script, nothing fetched."""
    from benchwright.report.html import render_page

    entries = _sorted(board.entries)
    return render_page(
        "dashboard.html.j2",
        (),
        title=f"Nightly: {board.suite.name}",
        board=board,
        headline=headline(board),
        entries=[(entry, [_row(series, board) for series in entry.series]) for entry in entries],
        news=[regression.summary() for regression in board.regressions()],
        width=WIDTH,
        height=HEIGHT,
        grounds=_grounds(board),
    )


def _grounds(board: Board) -> list[tuple[str, str, str]]:
    """Every change of an environment: entry, date, what changed."""
    found: dict[tuple[str, str, str], None] = {}
    for entry in board.entries:
        for series in entry.series:
            for segment in series.history.segments[1:]:
                date = series.history.nights[segment.first].date
                found[entry.entry.name, date, "; ".join(segment.changed)] = None
    return sorted(found, key=lambda row: row[1], reverse=True)


def render_summary(board: Board) -> str:
    """The night in a few lines of Markdown, for Prefect's pages; less than 5 kB."""
    parts = [f"## Nightly: {escape(board.suite.name)}", escape(headline(board))]
    for regression in board.regressions():
        lines = [f"- **worse**: {escape(cut(regression.summary(), 400))}"]
        if command := commits_command(regression.change):
            lines.append(f"  - `{command}`")
        lines.append(f"  - `{closer(regression.change, board.folder.home)}`")
        parts.append("\n".join(lines))
    rows = ["| Entry | Host | Night | Worse | Result |", "| --- | --- | --- | ---: | --- |"]
    for entry in board.entries:
        worse = sum(one.watched and one.history.standing is Standing.WORSE for one in entry.series)
        latest = entry.latest
        result = "has not run" if latest is None else latest.tag or latest.status
        if latest is not None and latest.error:
            result += f": {cut(one_line(latest.error), 100)}"
        cells = (
            entry.entry.name,
            entry.entry.host,
            latest.night if latest else "",
            str(worse),
            result,
        )
        rows.append("| " + " | ".join(escape(cut(cell, 140)) for cell in cells) + " |")
    text = "\n\n".join([*parts, ""])
    end = f"\n\nDashboard: {escape(str(board.folder.dashboard))}\n"
    room = MOST_BYTES - len((text + end).encode())
    table = _fitting(rows, room)
    metrics = _fitting(_metric_rows(board), room - len(table.encode()) - len("\n\n"))
    return text + table + (f"\n\n{metrics}" if metrics else "") + end


def _metric_rows(board: Board) -> list[str]:
    """A table of the watched metrics, those first that a person wants to see first."""
    rows = ["| Metric | State | This night | Level |", "| --- | --- | ---: | --- |"]
    watched = [(entry, one) for entry in board.entries for one in entry.series if one.watched]
    for entry, one in sorted(watched, key=lambda pair: _ORDER.index(pair[1].history.standing)):
        history = one.history
        unit = history.metric.unit
        latest = history.nights[-1].value if history.nights else None
        cells = (
            f"{entry.entry.name}: {one.name}",
            history.standing.value,
            numbers.quantity(latest, unit) if latest is not None else "none",
            numbers.quantity(history.level, unit),
        )
        rows.append("| " + " | ".join(escape(cut(cell, 140)) for cell in cells) + " |")
    return rows


def _fitting(rows: Sequence[str], room: int) -> str:
    """A table's first rows, as many as fit in so many bytes; nothing where not even one does."""
    more = "\n\nand more in the dashboard"
    for last in range(len(rows), 2, -1):
        text = "\n".join(rows[:last]) + (more if last < len(rows) else "")
        if len(text.encode()) <= room:
            return text
    return ""

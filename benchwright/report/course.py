"""A metric's course over runs: read from their results, drawn in the terminal and in HTML."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchwright.errors import BadInput, Where
from benchwright.judgement.words import count
from benchwright.record.index import read_index
from benchwright.record.store import RunFolder
from benchwright.report import numbers
from benchwright.report.plain import cut, one_line

if TYPE_CHECKING:
    from benchwright.judgement.verdict import ArmSummary
    from benchwright.record.index import IndexRow
    from benchwright.report.figures import Figure
    from benchwright.spec.model import Metric

MOST_RUNS = 100
"""Latest runs that a course shows; older ones are a page of history away."""

_HEIGHT = 11
_WIDTH = 72
_MARKS = {"RELIABLE": "●", "QUALIFIED": "◆", "EXPLORATORY": "○", "UNRELIABLE": "×"}
_UNTAGGED = "·"
_DASHES = ("solid", "dash", "dot", "dashdot")
"""Lines of the arms, which colour alone mustn't tell apart."""
_PLOTLY_MARKS = {
    "RELIABLE": "circle",
    "QUALIFIED": "diamond",
    "EXPLORATORY": "circle-open",
    "UNRELIABLE": "x-thin-open",
}


@dataclass(frozen=True, slots=True)
class Point:
    """One run's value of the metric in one arm.

    Attributes:
        run_id, created, tag, arm: Whose value it is; the tag is the one of today.
        value: Mean of the arm's units.
        low, high: 95 % interval of the mean; None where there is one unit.
        n: Units.
    """

    run_id: str
    created: str
    tag: str
    arm: str
    value: float
    low: float | None
    high: float | None
    n: int


@dataclass(frozen=True, slots=True)
class Course:
    """A metric over runs.

    Attributes:
        metric: The metric, as the newest run that has it declares it.
        points: Oldest run first; in a run by arm.
        left_out: Sentences on runs that aren't shown.
    """

    metric: Metric
    points: tuple[Point, ...]
    left_out: tuple[str, ...] = ()

    def by_arm(self) -> dict[str, list[Point]]:
        """The points of each arm, in the order in which the newest run has them."""
        newest = [p.arm for p in self.points if p.run_id == self.points[-1].run_id]
        arms = dict.fromkeys([*newest, *(point.arm for point in self.points)])
        return {arm: [point for point in self.points if point.arm == arm] for arm in arms}


def course_of(home: Path, run_ids: Sequence[str], metric: str) -> Course:
    """The course of a metric over these runs, the oldest first.

    Raises:
        BadInput: None of them measured it; names the metrics that they did measure.
    """

    shown = run_ids[-MOST_RUNS:]
    left_out = [f"{len(run_ids) - len(shown)} older runs"] if len(run_ids) > len(shown) else []
    rows = {row.run_id: row for row in read_index(home)}
    found: list[tuple[IndexRow, ArmSummary]] = []
    others: dict[str, None] = {}
    for run_id in shown:
        try:
            summaries = RunFolder(home, run_id).summaries()
        except BadInput as problem:
            left_out.append(f"{run_id} can't be read: {problem.what}")
            continue
        for of_arm in summaries.values():
            others.update(dict.fromkeys(of_arm))
            if metric in of_arm and of_arm[metric].mean is not None and run_id in rows:
                found.append((rows[run_id], of_arm[metric]))
    if not found:
        raise BadInput(
            f"none of {len(run_ids)} runs measured {metric!r}",
            where=Where(key="--metric"),
            expected=f"one of {', '.join(others)}" if others else "a metric of a judged run",
        )
    declared = _declared(home, found[-1][0].run_id, metric)
    points = tuple(_point(row, summary, declared) for row, summary in found)
    return Course(declared, points, tuple(left_out))


def _declared(home: Path, run_id: str, name: str) -> Metric:
    """The metric as this run declares it; without unit and role where it doesn't."""
    from benchwright.spec.model import Metric, Role

    try:
        return RunFolder(home, run_id).config().metric(name)
    except (BadInput, KeyError):
        return Metric(name=name, role=Role.SECONDARY)


def _point(row: IndexRow, summary: ArmSummary, metric: Metric) -> Point:
    from benchwright.judgement.decide import mean_interval_of

    low, high = mean_interval_of(summary, metric.scale)
    assert summary.mean is not None
    return Point(
        run_id=row.run_id,
        created=row.created,
        tag=row.tag,
        arm=summary.arm,
        value=summary.mean,
        low=low,
        high=high,
        n=summary.n,
    )


def render_course(course: Course, *, color: bool = False) -> str:
    """The course as a plot in characters, one for each arm."""
    parts = []
    for arm, points in course.by_arm().items():
        unit = f" ({course.metric.unit})" if course.metric.unit else ""
        heading = one_line(f"{course.metric.name}{unit} with {arm}, {count(len(points), 'run')}")
        parts.append(f"\x1b[1m{heading}\x1b[0m" if color else heading)
        parts += _plot(points)
        parts.append("")
    marks = "  ".join(f"{mark} {tag}" for tag, mark in _MARKS.items())
    parts.append(f"{marks}  ░ 95 % interval of the mean")
    parts += [f"not shown: {one_line(reason)}" for reason in course.left_out]
    return "\n".join(parts) + "\n"


def _plot(points: Sequence[Point]) -> list[str]:
    """Rows of a plot: values upwards, runs to the right, the interval as a band behind."""
    hidden = len(points) - _WIDTH
    points = points[-_WIDTH:]
    ends = [end for p in points for end in (p.low, p.value, p.high) if end is not None]
    low, high = min(ends), max(ends)
    if low == high:
        room = abs(low) * 0.05 or 1.0
        low, high = low - room, high + room
    step = max(1, min(6, _WIDTH // len(points)))

    def row_of(value: float) -> int:
        return round((high - value) / (high - low) * (_HEIGHT - 1))

    grid = [[" "] * (step * len(points)) for _ in range(_HEIGHT)]
    for number, point in enumerate(points):
        if point.low is not None and point.high is not None:
            for row in range(row_of(point.high), row_of(point.low) + 1):
                for column in range(number * step, number * step + step):
                    grid[row][column] = "░"
        grid[row_of(point.value)][number * step + step // 2] = _MARKS.get(point.tag, _UNTAGGED)
    labels = {
        0: numbers.figure(high),
        _HEIGHT // 2: numbers.figure((low + high) / 2),
        _HEIGHT - 1: numbers.figure(low),
    }
    width = max(map(len, labels.values()))
    rows = [
        f"{labels.get(number, ''):>{width}} ┤{''.join(row)}".rstrip()
        for number, row in enumerate(grid)
    ]
    rows.append(f"{'':>{width}} └{'─' * (step * len(points))}")
    first, last = points[0].created[:10], points[-1].created[:10]
    between = max(1, step * len(points) - len(first) - len(last))
    dates = first if first == last else f"{first}{'':{between}}{last}"
    rows.append(f"{'':>{width}}  {dates}" + (f"  ({hidden} older)" if hidden > 0 else ""))
    return rows


def render_course_html(course: Course) -> str:
    """The course as one self-contained page."""
    from benchwright.report.html import render_page

    return render_page(
        "course.html.j2",
        drawn := tuple(_figures(course)),
        title=one_line(f"Course of {course.metric.name}"),
        figures_shown=drawn,
        meaning=course.metric.meaning,
        table=_table(course),
        left_out=course.left_out,
    )


def _figures(course: Course) -> Iterable[Figure]:
    from benchwright.report.figures import Figure, axis, label, layout, style, with_unit

    data: list[dict[str, Any]] = []
    for index, (arm, points) in enumerate(course.by_arm().items()):
        colour, _ = style(index)
        times = [point.created for point in points]
        banded = [p for p in points if p.low is not None and p.high is not None]
        data.append(
            {
                "type": "scatter",
                "mode": "lines",
                "x": [p.created for p in banded] + [p.created for p in reversed(banded)],
                "y": [p.high for p in banded] + [p.low for p in reversed(banded)],
                "fill": "toself",
                "fillcolor": colour,
                "opacity": 0.18,
                "line": {"width": 0},
                "hoverinfo": "skip",
                "showlegend": False,
            }
        )
        data.append(
            {
                "type": "scatter",
                "mode": "lines+markers",
                "name": label(arm),
                "x": times,
                "y": [point.value for point in points],
                "text": [
                    f"{label(point.run_id)}<br>{label(point.tag or 'not judged')}<br>"
                    f"{label(numbers.quantity(point.value, course.metric.unit))}"
                    for point in points
                ],
                "hoverinfo": "text",
                "line": {"color": colour, "width": 1.5, "dash": _DASHES[index % len(_DASHES)]},
                "marker": {
                    "color": colour,
                    "size": 10,
                    "line": {"color": colour, "width": 2},
                    "symbol": [_PLOTLY_MARKS.get(point.tag, "circle-dot") for point in points],
                },
            }
        )
    yield Figure(
        key="course",
        caption=(
            "Mean of each run with the 95 % interval of the mean as a band. Full circle: "
            "RELIABLE, diamond: QUALIFIED, open circle: EXPLORATORY, cross: UNRELIABLE."
        ),
        alt=f"{course.metric.name} over {len(course.points)} runs and arms; see the table below.",
        data=tuple(data),
        layout=layout(
            420,
            showlegend=True,
            xaxis=axis("start of the run"),
            yaxis=axis(with_unit(course.metric)),
        ),
        height=420,
    )


def _table(course: Course) -> Any:
    from benchwright.report.sections import Table, moment

    unit = course.metric.unit
    return Table(
        "Every run",
        ("Run", "Started", "Tag", "Arm", "n", "Mean", "95 % interval"),
        tuple(
            (
                point.run_id,
                moment(point.created),
                point.tag or "not judged",
                cut(point.arm, 60),
                str(point.n),
                numbers.quantity(point.value, unit),
                numbers.UNKNOWN
                if point.low is None
                else f"{numbers.quantity(point.low, unit)} to {numbers.quantity(point.high, unit)}",
            )
            for point in course.points
        ),
        frozenset({4, 5, 6}),
    )

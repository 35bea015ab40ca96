"""The figures of a report, as plain data for plotly.js.

Made without plotly's Python side, which takes longer to import than a report to render. Colours
are those of Okabe and Ito (jfly.uni-koeln.de/color), which people with any colour vision can tell
apart, and each arm has a marker of its own shape besides.
"""

from __future__ import annotations

import html
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from benchwright.execution.sample import Sample
from benchwright.judgement.verdict import Decision, Verdict
from benchwright.record.run import RunRecord
from benchwright.report import numbers
from benchwright.report.plain import cut
from benchwright.report.sections import arm_names, metric_of
from benchwright.spec.model import Direction, Metric, Role, Scale

COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
MARKERS = ("circle", "square", "diamond", "triangle-up", "cross", "x", "star")
INK, FAINT, BAND = "#1b1f24", "#d9dde2", "rgba(120, 130, 140, 0.18)"
FONT = "system-ui, -apple-system, 'Segoe UI', Roboto, sans-serif"

MOST_POINTS = 1000
"""Points in one figure; more are thinned evenly, and the caption says so."""

_MOST_METRICS = 4
_LOG_FROM = 4.0
"""From this ratio of the largest to the smallest value on, an axis is logarithmic."""

_LABEL = 44


@dataclass(frozen=True, slots=True)
class Figure:
    """One figure.

    Attributes:
        key: Its id in the page.
        caption: What it shows and how to read it.
        alt: What it says, for someone who can't see it.
        data, layout: As plotly.js takes them.
        height: In pixels.
    """

    key: str
    caption: str
    alt: str
    data: tuple[Mapping[str, Any], ...]
    layout: Mapping[str, Any]
    height: int


def label(text: str) -> str:
    """A text in a figure: plotly.js takes `<b>` and `<a>` for markup, so nothing is left of it."""
    return html.escape(cut(text, _LABEL), quote=False)


def layout(height: int, **more: Any) -> dict[str, Any]:
    """What all figures have in common."""
    return {
        "height": height,
        "margin": {"l": 12, "r": 12, "t": 12, "b": 44},
        "font": {"family": FONT, "size": 13, "color": INK},
        "paper_bgcolor": "white",
        "plot_bgcolor": "white",
        "hovermode": "closest",
        "showlegend": False,
        "legend": {"orientation": "h", "x": 0, "y": 1.02, "yanchor": "bottom"},
        **more,
    }


def axis(title: str = "", **more: Any) -> dict[str, Any]:
    """An axis: a thin line, faint grid, its title given."""
    return {
        "title": {"text": title, "standoff": 8, "font": {"size": 13}},
        "gridcolor": FAINT,
        "linecolor": "#8a929b",
        "zeroline": False,
        "automargin": True,
        "ticks": "outside",
        "tickcolor": "#8a929b",
        **more,
    }


def with_unit(metric: Metric) -> str:
    """A metric's name for an axis."""
    return label(metric.name + (f" ({metric.unit})" if metric.unit else ""))


def style(index: int) -> tuple[str, str]:
    """Colour and marker of the arm with this index."""
    return COLOURS[index % len(COLOURS)], MARKERS[index % len(MARKERS)]


def figures(record: RunRecord) -> dict[str, tuple[Figure, ...]]:
    """The figures by the title of the section they belong to."""
    return {
        "Primary metrics": (*_replicates(record), *_effects(record)),
        "What went wrong or remained unknown": (*_courses(record), *_resources(record)),
    }


def primary_metrics(record: RunRecord) -> tuple[Metric, ...]:
    """The primary metrics that were measured; where none is named, the first ones measured."""
    seen = dict.fromkeys(
        name
        for sample in record.view.samples
        if sample.measurement is not None
        for name in sample.measurement.metrics
    )
    primary = [m for m in record.view.config.metrics if m.role is Role.PRIMARY and m.name in seen]
    return tuple((primary or [metric_of(record, name) for name in seen])[:_MOST_METRICS])


def _analysed(record: RunRecord, arm: str, metric: str) -> list[tuple[Sample, float]]:
    """The replicates of an arm that count, with their value."""
    return [
        (sample, sample.measurement.metrics[metric])
        for sample in record.view.samples
        if sample.arm == arm
        and not sample.warmup
        and sample.measurement is not None
        and metric in sample.measurement.metrics
    ]


def thin(points: Sequence[Any], most: int) -> Sequence[Any]:
    """At most `most` of the points, evenly taken."""
    step = -(-len(points) // most) if points else 1
    return points[::step]


def _thinned(record: RunRecord, points: int) -> str:
    return " Of many replicates, evenly chosen ones are shown." if points > MOST_POINTS else ""


def _scaled(values: Iterable[float]) -> str:
    """The kind of axis on which these values can all be seen."""
    known = list(values)
    low, high = min(known, default=1.0), max(known, default=1.0)
    return "log" if low > 0 and high / low >= _LOG_FROM else "linear"


def _replicates(record: RunRecord) -> Iterable[Figure]:
    """Each replicate as a point, by arm, with the mean and the interval of the effect."""
    arms = arm_names(record)
    for number, metric in enumerate(primary_metrics(record)):
        data: list[dict[str, Any]] = []
        said: list[str] = []
        everything = [value for arm in arms for _, value in _analysed(record, arm, metric.name)]
        for index, arm in enumerate(arms):
            found = thin(_analysed(record, arm, metric.name), MOST_POINTS // len(arms))
            colour, marker = style(index)
            spread = max((sample.block for sample, _ in found), default=0) or 1
            data.append(
                {
                    "type": "scatter",
                    "mode": "markers",
                    "x": [value for _, value in found],
                    # Set apart by block, so that equal values don't hide each other.
                    "y": [index - 0.26 + 0.36 * sample.block / spread for sample, _ in found],
                    "text": [
                        f"{label(arm)}, block {sample.block}: "
                        f"{label(numbers.quantity(value, metric.unit))}"
                        for sample, value in found
                    ],
                    "hoverinfo": "text",
                    "marker": {"color": colour, "symbol": marker, "size": 8, "opacity": 0.75},
                }
            )
            said.append(_said(record, arm, metric))
            data += _mean_and_interval(record, metric, arm, index, colour)
        under = (
            "; the bar under a treatment is where the interval of the effect puts it, seen from "
            "the baseline's mean"
            if len(arms) > 1
            else ""
        )
        yield Figure(
            key=f"replicates-{number}",
            caption=(
                f"{metric.name}: every analysed replicate, one row an arm. The upright stroke is "
                f"the arm's mean{under}.{_thinned(record, len(everything))}"
            ),
            alt=f"Replicates of {metric.name} by arm. " + " ".join(said),
            data=tuple(data),
            layout=layout(
                110 + 74 * len(arms),
                xaxis=axis(with_unit(metric), type=_scaled(everything)),
                yaxis=axis(
                    tickvals=list(range(len(arms))),
                    ticktext=[label(arm) for arm in arms],
                    range=[len(arms) - 0.45, -0.55],
                    showgrid=False,
                ),
            ),
            height=110 + 74 * len(arms),
        )


def _said(record: RunRecord, arm: str, metric: Metric) -> str:
    judgement = record.view.judgement
    summary = judgement.summaries.get(arm, {}).get(metric.name) if judgement else None
    if summary is None:
        return f"{arm}: unknown."
    return (
        f"{arm}: mean {numbers.quantity(summary.mean, metric.unit)} from "
        f"{numbers.quantity(summary.min, metric.unit)} to "
        f"{numbers.quantity(summary.max, metric.unit)} in {summary.n}."
    )


def _mean_and_interval(
    record: RunRecord, metric: Metric, arm: str, index: int, colour: str
) -> Iterable[dict[str, Any]]:
    judgement = record.view.judgement
    if judgement is None:
        return
    summary = judgement.summaries.get(arm, {}).get(metric.name)
    if summary is None or summary.mean is None:
        return
    yield {
        "type": "scatter",
        "mode": "markers",
        "x": [summary.mean],
        "y": [index - 0.08],
        "text": [f"mean {label(numbers.quantity(summary.mean, metric.unit))}"],
        "hoverinfo": "text",
        "marker": {"symbol": "line-ns", "size": 30, "line": {"color": INK, "width": 2}},
    }
    for verdict in judgement.verdicts:
        if verdict.metric.name == metric.name and verdict.treatment.arm == arm:
            ends = _projected(verdict)
            if ends is not None:
                low, high = ends
                yield {
                    "type": "scatter",
                    "mode": "lines+markers",
                    "x": [low, high],
                    "y": [index + 0.3] * 2,
                    "text": [
                        f"{numbers.level(verdict.interval)} interval: "
                        f"{label(numbers.interval(verdict.interval, metric))}"
                    ]
                    * 2,
                    "hoverinfo": "text",
                    "line": {"color": colour, "width": 4},
                    "marker": {
                        "symbol": "line-ns",
                        "size": 12,
                        "line": {"color": colour, "width": 2},
                    },
                }


def _projected(verdict: Verdict) -> tuple[float, float] | None:
    """The interval of the effect in the metric's unit, seen from the baseline's mean."""
    low, high, base = verdict.interval.low, verdict.interval.high, verdict.baseline.mean
    if low is None or high is None or base is None:
        return None
    if verdict.metric.scale is Scale.RATIO:
        return base * low, base * high
    return base + low, base + high


def _effects(record: RunRecord) -> Iterable[Figure]:
    """Each effect with its interval against the smallest effect that matters."""
    judgement = record.view.judgement
    known = [verdict for verdict in (judgement.verdicts if judgement else ()) if _drawable(verdict)]
    ratios = [verdict for verdict in known if verdict.metric.scale is Scale.RATIO]
    if ratios:
        yield _forest("effects-ratio", ratios, "ratio to the baseline")
    others = [verdict for verdict in known if verdict.metric.scale is not Scale.RATIO]
    for number, name in enumerate(dict.fromkeys(verdict.metric.name for verdict in others)):
        rows = [verdict for verdict in others if verdict.metric.name == name]
        unit = rows[0].metric.unit
        yield _forest(
            f"effects-{number}", rows, "difference to the baseline" + (f" ({unit})" if unit else "")
        )


def _drawable(verdict: Verdict) -> bool:
    return None not in (verdict.effect, verdict.interval.low, verdict.interval.high)


_DECISION_MARKERS = {
    Decision.BETTER: "triangle-up",
    Decision.WORSE: "triangle-down",
    Decision.EQUIVALENT: "square",
    Decision.INCONCLUSIVE: "circle-open",
    Decision.NO_VERDICT: "circle-open",
}


def _forest(key: str, verdicts: Sequence[Verdict], title: str) -> Figure:
    ratio = verdicts[0].metric.scale is Scale.RATIO
    neutral = 1.0 if ratio else 0.0
    ends = [
        float(end)
        for verdict in verdicts
        for end in (verdict.interval.low, verdict.interval.high, verdict.effect)
        if end is not None
    ]
    logarithmic = ratio and (min(ends) <= 0.5 or max(ends) >= 2) and min(ends) > 0
    data: list[dict[str, Any]] = []
    shapes: list[dict[str, Any]] = []
    for row, verdict in enumerate(verdicts):
        metric, effect = verdict.metric, verdict.effect or 0.0
        low, high = verdict.interval.low or 0.0, verdict.interval.high or 0.0
        shapes.append(
            {
                "type": "rect",
                "layer": "below",
                "x0": neutral - metric.min_effect,
                "x1": neutral + metric.min_effect,
                "y0": row - 0.38,
                "y1": row + 0.38,
                "fillcolor": BAND,
                "line": {"width": 0},
            }
        )
        text = (
            f"{label(metric.name)}: {label(numbers.effect(verdict.effect, metric))} "
            f"({label(numbers.interval(verdict.interval, metric))}), {verdict.decision}"
        )
        data.append(
            {
                "type": "scatter",
                "mode": "markers",
                "x": [effect],
                "y": [row],
                "error_x": {
                    "type": "data",
                    "symmetric": False,
                    "array": [high - effect],
                    "arrayminus": [effect - low],
                    "color": INK,
                    "thickness": 2,
                    "width": 6,
                },
                "text": [text],
                "hoverinfo": "text",
                "marker": {
                    "symbol": _DECISION_MARKERS[verdict.decision],
                    "size": 12,
                    "color": INK,
                    "line": {"color": INK, "width": 2},
                },
            }
        )
    shapes.append(
        {
            "type": "line",
            "layer": "below",
            "x0": neutral,
            "x1": neutral,
            "y0": -0.6,
            "y1": len(verdicts) - 0.4,
            "line": {"color": "#6b747d", "width": 1.5, "dash": "dot"},
        }
    )
    height = 96 + 46 * len(verdicts)
    names = [f"{label(v.metric.name)}<br>{label(v.treatment.arm)}" for v in verdicts]
    return Figure(
        key=key,
        caption=(
            "Effect and interval of each verdict. The dotted line is no change, the grey band "
            "what is too small to matter. Upward triangle: better, downward: worse, square: "
            "equivalent, open circle: undecided."
        ),
        alt=" ".join(
            f"{v.metric.name} with {v.treatment.arm}: {numbers.effect(v.effect, v.metric)}, "
            f"interval {numbers.interval(v.interval, v.metric)}, {v.decision}."
            for v in verdicts
        ),
        data=tuple(data),
        layout=layout(
            height,
            shapes=shapes,
            xaxis=axis(
                f"{label(title)}; {_better_side(verdicts)}",
                type="log" if logarithmic else "linear",
                range=_around(neutral, ends, verdicts, logarithmic),
            ),
            yaxis=axis(
                tickvals=list(range(len(verdicts))),
                ticktext=names,
                range=[len(verdicts) - 0.4, -0.6],
                showgrid=False,
            ),
        ),
        height=height,
    )


def _better_side(verdicts: Sequence[Verdict]) -> str:
    ways = {verdict.metric.direction for verdict in verdicts}
    if len(ways) > 1:
        return "which side is better depends on the metric"
    return "better to the left" if ways == {Direction.LOWER} else "better to the right"


def _around(
    neutral: float, ends: Sequence[float], verdicts: Sequence[Verdict], logarithmic: bool
) -> list[float]:
    """A range that has all intervals, the neutral line and the bands in it."""
    import math

    widest = max(verdict.metric.min_effect for verdict in verdicts)
    low = min([*ends, neutral - 1.5 * widest])
    high = max([*ends, neutral + 1.5 * widest])
    if logarithmic and low > 0:
        low, high = math.log10(low), math.log10(high)
    room = 0.06 * (high - low)
    return [low - room, high + room]


def _courses(record: RunRecord) -> Iterable[Figure]:
    """Each primary metric over the blocks, with what failed."""
    arms = arm_names(record)
    failed = [s for s in record.view.samples if not s.ok and not s.warmup]
    for number, metric in enumerate(primary_metrics(record)):
        data: list[dict[str, Any]] = []
        values: list[float] = []
        for index, arm in enumerate(arms):
            found = thin(_analysed(record, arm, metric.name), MOST_POINTS // len(arms))
            found = sorted(found, key=lambda pair: (pair[0].block, pair[0].order))
            values += [value for _, value in found]
            colour, marker = style(index)
            data.append(
                {
                    "type": "scatter",
                    "mode": "lines+markers",
                    "name": label(arm),
                    "x": [sample.block for sample, _ in found],
                    "y": [value for _, value in found],
                    "text": [
                        f"{label(arm)}, block {sample.block}: "
                        f"{label(numbers.quantity(value, metric.unit))}"
                        for sample, value in found
                    ],
                    "hoverinfo": "text",
                    "line": {"color": colour, "width": 1.5},
                    "marker": {"color": colour, "symbol": marker, "size": 8},
                }
            )
        marks = [
            {
                "x": sample.block,
                "y": 0,
                "yref": "paper",
                "yanchor": "bottom",
                "showarrow": False,
                "text": "✕",
                "hovertext": f"{label(sample.arm)} failed in block {sample.block}",
                "font": {"size": 15, "color": style(arms.index(sample.arm))[0]},
            }
            for sample in failed[:MOST_POINTS]
        ]
        yield Figure(
            key=f"course-{number}",
            caption=(
                f"{metric.name} over the {'randomised ' if len(arms) > 1 else ''}blocks, in the "
                "order of time: a slope would be drift."
                + (" A cross marks a replicate that failed." if marks else "")
            ),
            alt=(
                f"Course of {metric.name} over the blocks for {len(arms)} arms; "
                f"{len(failed)} replicates failed."
            ),
            data=tuple(data),
            layout=layout(
                300,
                showlegend=True,
                annotations=marks,
                xaxis=axis(
                    "block", dtick=_step(max((s.block for s in record.view.samples), default=0))
                ),
                yaxis=axis(with_unit(metric), type=_scaled(values)),
            ),
            height=300,
        )


def _step(last: int) -> int:
    """Distance of the ticks on an axis of whole numbers up to `last`."""
    return next((step for step in (1, 2, 5, 10, 20, 50, 100, 200, 500) if last / step <= 12), 1000)


_MINUTES_FROM_S = 180.0
"""From this many seconds on, an axis of time is in minutes."""


def _resources(record: RunRecord) -> Iterable[Figure]:
    """Memory and processor time of each replicate over the time of the run."""
    arms = arm_names(record)
    timed = list(_timed(record))
    if not timed:
        return
    unit = "minutes" if max(moment for moment, _ in timed) >= _MINUTES_FROM_S else "seconds"
    if unit == "minutes":
        timed = [(moment / 60, sample) for moment, sample in timed]
    panels: list[tuple[str, Callable[[Sample], float | None]]] = [
        ("peak memory (MB)", _memory),
        ("CPU time (s)", _cpu),
    ]
    data: list[dict[str, Any]] = []
    known = 0
    for panel, (_, read) in enumerate(panels, start=1):
        for index, arm in enumerate(arms):
            found = [
                (moment, sample, read(sample))
                for moment, sample in thin(timed, MOST_POINTS)
                if sample.arm == arm and read(sample) is not None
            ]
            # The legend shows the first marker: a full one, not a warm-up's.
            found.sort(key=lambda entry: entry[1].warmup)
            known += len(found)
            colour, marker = style(index)
            suffix = "" if panel == 1 else str(panel)
            data.append(
                {
                    "type": "scatter",
                    "mode": "markers",
                    "name": label(arm),
                    "legendgroup": label(arm),
                    "showlegend": panel == 1,
                    "xaxis": "x",
                    "yaxis": f"y{suffix}",
                    "x": [moment for moment, _, _ in found],
                    "y": [value for _, _, value in found],
                    "text": [
                        f"{label(arm)}, {'warm-up' if sample.warmup else 'block'} {sample.block}: "
                        f"{numbers.figure(value)}"
                        for _, sample, value in found
                    ],
                    "hoverinfo": "text",
                    "marker": {
                        "color": colour,
                        "symbol": [
                            f"{marker}-open" if sample.warmup else marker for _, sample, _ in found
                        ],
                        "size": 8,
                    },
                }
            )
    if not known:
        return
    yield Figure(
        key="resources",
        caption=(
            "What the process of each replicate used, over the time of the run. Open markers are "
            "warm-ups, which are left out of the analysis."
        ),
        alt="Peak memory and CPU time of each replicate over the time of the run.",
        data=tuple(data),
        layout=layout(
            380,
            showlegend=True,
            xaxis=axis(f"{unit} since the run started", anchor="y2", rangemode="tozero"),
            yaxis=axis(panels[0][0], domain=[0.56, 1], rangemode="tozero"),
            yaxis2=axis(panels[1][0], domain=[0, 0.44], rangemode="tozero"),
        ),
        height=380,
    )


def _memory(sample: Sample) -> float | None:
    return sample.usage.peak_memory_mb


def _cpu(sample: Sample) -> float | None:
    user, system = sample.usage.cpu_user_s, sample.usage.cpu_system_s
    return None if user is None or system is None else user + system


def _timed(record: RunRecord) -> Iterable[tuple[float, Sample]]:
    """The replicates with the seconds since the run started, where the times can be read."""
    try:
        begun = datetime.fromisoformat(record.view.created)
    except ValueError:
        return
    for sample in record.view.samples:
        try:
            started = datetime.fromisoformat(sample.started)
            yield (started - begun).total_seconds(), sample
        except (ValueError, TypeError):
            continue

"""The speed report: Markdown in its fixed shape, summary.csv, JSON, and HTML with its plot."""

from __future__ import annotations

import csv
import html
import io
import math
from collections.abc import Sequence
from typing import Any

from domains.serving.load_results import INTERVAL_UNITS, P99_REQUESTS, PEAK_WINDOW_S, Summary
from domains.serving.probe import UNKNOWN, Probe
from domains.serving.report import fence, figure, row, status_lines, unique
from domains.serving.request import LoadOptions, SpeedRequest
from domains.serving.speed import LoadRun, SpeedValidation, radix_cache

COLUMNS = (
    "Max Concurrency",
    "Input tok/s",
    "Output tok/s",
    "Peak output tok/s",
    "Total tok/s",
    "Mean E2E ms",
    "Mean TTFT ms",
    "Mean TPOT ms",
    "Mean ITL ms",
    "P99 ITL ms",
)
"""The columns of summary.csv, in their fixed order."""

OPEN_COLUMNS = ("Request rate (req/s)", *COLUMNS[1:])

NOT_CARRIED = "n/a"
"""A percentile that too few requests stand behind, or an interval of too few replicates."""


def summary_csv(summaries: Sequence[Summary], loop: str) -> str:
    """The rows of one kind of load; empty where it has none. A failed point has no row."""
    rows = [
        _cells(summary)
        for summary in summaries
        if summary.point.loop == loop and summary.means is not None
    ]
    if not rows:
        return ""
    text = io.StringIO()
    table = csv.writer(text, lineterminator="\n")
    table.writerow(COLUMNS if loop == "closed" else OPEN_COLUMNS)
    table.writerows(rows)
    return text.getvalue()


def _cells(summary: Summary) -> tuple[str, ...]:
    means = summary.means
    assert means is not None, "a row is of a point that was measured"
    p99 = NOT_CARRIED if summary.p99_itl_ms is None else f"{summary.p99_itl_ms:.2f}"
    peak = means.peak_output_tok_s
    rates = (
        _number(means.input_tok_s),
        _number(means.output_tok_s),
        NOT_CARRIED if peak is None else _number(peak),
        _number(means.total_tok_s),
    )
    times = (
        means.e2e_ms,
        means.ttft_ms,
        means.tpot_ms,
        means.itl_ms,
    )
    return (f"{summary.point.value:g}", *rates, *(_number(value) for value in times), p99)


def _number(value: float | None, digits: int = 2) -> str:
    return UNKNOWN if value is None else f"{value:.{digits}f}"


def markdown(
    request: SpeedRequest, before: Probe | None, run: LoadRun | None, verdict: SpeedValidation
) -> str:
    """The report in its fixed shape and order."""
    load = request.load
    lines = [
        "# Benchmark",
        "",
        *status_lines(
            verdict.state,
            before,
            request.target.endpoint.url,
            evalscope=None,
            radix_cache=radix_cache(before),
        ),
        "## Speed Benchmark",
        "",
    ]
    if run is not None and run.command:
        lines += fence(run.command)
    measured = sum(summary.means is not None for summary in verdict.summaries)
    has_rows = bool(summary_csv(verdict.summaries, "closed"))
    lines += [
        f"- Status: {verdict.state} ({measured} of {len(verdict.summaries)} points measured)",
        f"- Output dir: {run.work_dir if run else UNKNOWN}",
        f"- Summary CSV: {'summary.csv' if has_rows else 'none'}",
        f"- Backend: {run.backend if run else load.backend}"
        + (f" {run.backend_version}" if run and run.backend_version else ""),
        f"- Dataset: {load.dataset}" + (" (words)" if _words(load) else ""),
        f"- Workload shape: {_shape(load)}",
        f"- Cache hit rate: {_hit_rate(verdict.summaries)}",
        f"- Goodput: {goodput_line(load, verdict.summaries)}",
        "- Metrics:",
        "",
        *_tables(verdict.summaries),
        f"- Artifacts: {run.artifacts if run and run.artifacts else 'none'}",
        "",
        "## Notes",
        "",
    ]
    lines += [f"- {note}" for note in unique(verdict.notes)] or ["None"]
    return "\n".join(lines) + "\n"


def _words(load: LoadOptions) -> bool:
    return load.backend == "evalscope" and load.dataset == "random" and load.tokenizer is None


def _shape(load: LoadOptions) -> str:
    shape = (
        f"{load.input_tokens} input {'words' if _words(load) else 'tokens'},"
        f" {load.output_tokens} output tokens; {_times(load.replicates, 'replicate')} of each"
        f" point after {_times(load.warmup, 'warm-up')}, in random order (seed {load.seed})"
    )
    if load.closed_loop:
        shape += (
            f"; closed loop: {_times(load.requests_per_slot, 'request')} for each one in flight"
        )
    if load.rates:
        shape += f"; open loop: {_times(load.requests_per_rate, 'request')} at each rate"
    return shape


def _times(count: int, what: str) -> str:
    return f"{count or 'no'} {what}{'' if count <= 1 else 's'}"


def _hit_rate(summaries: Sequence[Summary]) -> str:
    known = [s for s in summaries if s.cache_hit_share is not None]
    if not known:
        return UNKNOWN
    return ", ".join(f"{s.cache_hit_share:.1%} at {s.point.label}" for s in known)


def goodput_line(load: LoadOptions, summaries: Sequence[Summary]) -> str:
    """The most good requests a second that any point reached, and where."""
    limits = [
        f"{name} <= {limit:g} ms"
        for name, limit in (
            ("time to first token", load.ttft_limit_ms),
            ("time per output token", load.tpot_limit_ms),
        )
        if limit is not None
    ]
    if not limits:
        return "no limit was given (ttft_limit_ms, tpot_limit_ms)"
    known = [
        (s.means.goodput_per_s, s.means.good_share, s)
        for s in summaries
        if s.means is not None and s.means.goodput_per_s is not None
    ]
    if not known:
        return f"{UNKNOWN} ({' and '.join(limits)})"
    best, share, summary = max(known, key=lambda entry: entry[0])
    return (
        f"{best:.2f} good requests/s at {summary.point.label}, {share or 0:.1%} of those sent"
        f" ({' and '.join(limits)})"
    )


def _tables(summaries: Sequence[Summary]) -> list[str]:
    lines = []
    for loop, columns in (("closed", COLUMNS), ("open", OPEN_COLUMNS)):
        shown = [s for s in summaries if s.point.loop == loop and s.means is not None]
        if shown:
            lines += [row(*columns), row(*("---" for _ in columns))]
            lines += [row(*_cells(summary)) for summary in shown] + [""]
    if not summaries:
        return lines
    lines += [
        "| Point | Replicates | Requests | Failed | Output tok/s, 95 % | Mean E2E ms, 95 % |"
        " Mean TTFT ms, 95 % |",
        "| --- | --- | --- | --- | --- | --- | --- |",
    ]
    lines += [
        row(
            summary.point.label,
            str(summary.replicates),
            str(summary.sent),
            str(summary.failed),
            *(_interval(summary, name) for name in ("output_tok_s", "e2e_ms", "ttft_ms")),
        )
        for summary in summaries
    ]
    lines.append("")
    if any(s.replicates < INTERVAL_UNITS for s in summaries):
        lines += [
            f"An interval stands only where at least {INTERVAL_UNITS} replicates carry it.",
            "",
        ]
    if any(s.means is not None and s.means.peak_output_tok_s is None for s in summaries):
        least = (
            f"A peak stands only where a replicate lasts longer than {PEAK_WINDOW_S:g} s, and its"
            " load program says when each request started."
        )
        lines += [least, ""]
    fewer = [s for s in summaries if s.means is not None and s.p99_itl_ms is None]
    if fewer:
        lines += [
            f"P99 ITL stands only where at least {P99_REQUESTS} requests carry it; fewer here: "
            + ", ".join(f"{s.p99_requests} at {s.point.label}" for s in fewer)
            + ".",
            "",
        ]
    return lines


def _interval(summary: Summary, name: str) -> str:
    if name not in summary.intervals:
        return NOT_CARRIED
    low, high = summary.intervals[name]
    return f"{low:.1f} to {high:.1f}"


def facts(
    request: SpeedRequest, before: Probe | None, run: LoadRun | None, verdict: SpeedValidation
) -> dict[str, Any]:
    """The report as JSON values."""
    return {
        "state": verdict.state.value,
        "endpoint": request.target.endpoint.url,
        "server": before.model_dump(mode="json") if before else None,
        "radix_cache": radix_cache(before),
        "backend": run.backend if run else request.load.backend,
        "backend_version": run.backend_version if run else None,
        "command": run.command if run else None,
        "work_dir": run.work_dir if run else None,
        "load": request.load.model_dump(mode="json"),
        "points": [summary.model_dump(mode="json") for summary in verdict.summaries],
        "goodput": goodput_line(request.load, verdict.summaries),
        "checks": [check.model_dump(mode="json") for check in verdict.checks],
        "notes": unique(verdict.notes),
    }


WIDTH, HEIGHT, MARGIN = 640, 340, 64
COLOURS = {"closed": "#0969da", "open": "#9a6700"}


def plot(summaries: Sequence[Summary]) -> str:
    """Latency against throughput, a line for each kind of load, as a self-contained SVG.

    Each point has its interval both ways, where it has one.
    """
    shown = [s for s in summaries if s.means is not None]
    if not shown:
        return ""
    x_ticks, y_ticks = _ticks(_highest(shown, "output_tok_s")), _ticks(_highest(shown, "e2e_ms"))

    def x(value: float) -> float:
        return MARGIN + max(value, 0.0) / x_ticks[-1] * (WIDTH - MARGIN - 24)

    def y(value: float) -> float:
        return HEIGHT - 48 - max(value, 0.0) / y_ticks[-1] * (HEIGHT - 48 - 20)

    parts = [
        f'<svg role="img" aria-label="mean end-to-end latency against output throughput"'
        f' width="{WIDTH}" height="{HEIGHT}" viewBox="0 0 {WIDTH} {HEIGHT}">'
    ]
    for tick in x_ticks:
        parts.append(
            f'<line x1="{x(tick):.1f}" x2="{x(tick):.1f}" y1="20" y2="{HEIGHT - 48}"'
            f' stroke="#eaeef2"/><text x="{x(tick):.1f}" y="{HEIGHT - 32}"'
            f' text-anchor="middle">{tick:g}</text>'
        )
    for tick in y_ticks:
        parts.append(
            f'<line x1="{MARGIN}" x2="{WIDTH - 24}" y1="{y(tick):.1f}" y2="{y(tick):.1f}"'
            f' stroke="#eaeef2"/><text x="{MARGIN - 8}" y="{y(tick) + 4:.1f}"'
            f' text-anchor="end">{tick:g}</text>'
        )
    parts.append(
        f'<text x="{(WIDTH + MARGIN) / 2:.0f}" y="{HEIGHT - 10}" text-anchor="middle">output'
        f' tokens a second</text><text x="14" y="{HEIGHT / 2:.0f}" text-anchor="middle"'
        f' transform="rotate(-90 14 {HEIGHT / 2:.0f})">mean end-to-end latency, ms</text>'
    )
    for loop, colour in COLOURS.items():
        line = [s for s in shown if s.point.loop == loop]
        line.sort(key=lambda s: s.point.value)
        ends = " ".join(
            f"{x(s.means.output_tok_s):.1f},{y(s.means.e2e_ms):.1f}" for s in line if s.means
        )
        parts.append(f'<polyline points="{ends}" fill="none" stroke="{colour}"/>')
        for summary in line:
            assert summary.means is not None, "only measured points are shown"
            at_x, at_y = summary.means.output_tok_s, summary.means.e2e_ms
            low, high = summary.intervals.get("output_tok_s", (at_x, at_x))
            bottom, top = summary.intervals.get("e2e_ms", (at_y, at_y))
            label = html.escape(summary.point.label)
            parts.append(
                f'<path d="M{x(low):.1f} {y(at_y):.1f}H{x(high):.1f}M{x(at_x):.1f}'
                f' {y(bottom):.1f}V{y(top):.1f}" stroke="{colour}" stroke-width="1.5"/>'
                f'<circle cx="{x(at_x):.1f}" cy="{y(at_y):.1f}" r="4" fill="{colour}">'
                f"<title>{label}: {at_x:.1f} tok/s, {at_y:.1f} ms</title></circle>"
                f'<text x="{x(at_x) - 8:.1f}" y="{y(at_y) - 8:.1f}" text-anchor="end">'
                f"{label}</text>"
            )
    caption = (
        "Mean latency of a whole answer against throughput; the bars are 95 % intervals over the"
        " replicates, blue a closed loop, brown an open one"
    )
    return figure("".join(parts) + "</svg>", caption)


def _highest(summaries: Sequence[Summary], name: str) -> float:
    """The upper end of the drawing: the intervals', unless one is far wider than its mean."""
    means = [float(getattr(s.means, name)) for s in summaries]
    ends = [
        s.intervals.get(name, (mean, mean))[1] for s, mean in zip(summaries, means, strict=True)
    ]
    return min(max(ends), 2 * max(means))


def _ticks(most: float) -> list[float]:
    """Round values from zero to at least `most`, about five of them."""
    raw = max(most, 1e-9) / 5
    power = 10.0 ** math.floor(math.log10(raw))
    step = next(factor * power for factor in (1, 2, 2.5, 5, 10) if factor * power >= raw)
    count = math.ceil(max(most, 1e-9) / step)
    return [step * index for index in range(count + 1)]

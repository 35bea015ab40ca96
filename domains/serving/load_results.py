"""What the load programs measured, request by request, and the figures made of it."""

from __future__ import annotations

import json
import math
import sqlite3
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean

from domains.serving.load import Point, Slot, points_of
from domains.serving.request import LoadOptions, Record
from domains.serving.results import telling_line

P99_REQUESTS = 100
"""Fewest requests that carry a 99th percentile: with fewer, none is expected beyond it, and the
figure is just the largest value seen."""

PEAK_WINDOW_S = 1.0
"""Width of the window in which the peak rate of output tokens is counted."""


class Sent(Record):
    """One request. Times in seconds; `start` on the load program's clock, None: not recorded."""

    start: float | None
    ttft: float | None
    latency: float
    gaps: tuple[float, ...]
    """Times between its chunks after the first."""
    input_tokens: int
    output_tokens: int

    @property
    def tpot(self) -> float | None:
        """Time for each output token after the first."""
        if self.ttft is None or self.output_tokens < 2:
            return None
        return (self.latency - self.ttft) / (self.output_tokens - 1)


class Replicate(Record):
    """What one slot gave. `problem`: why it gave nothing."""

    slot: Slot
    exit: str
    """Exit code of the load program, or `server down`, or `not run`."""
    problem: str = ""
    sent: int = 0
    failed: int = 0
    duration_s: float = 0.0
    requests: tuple[Sent, ...] = ()
    """Those that succeeded: failed ones are counted and enter no figure."""
    cache_hit_share: float | None = None

    @property
    def ok(self) -> bool:
        """Whether it has figures."""
        return not self.problem and bool(self.requests) and self.duration_s > 0


class Figures(Record):
    """The figures of one replicate of one point."""

    requests_per_s: float
    input_tok_s: float
    output_tok_s: float
    peak_output_tok_s: float | None
    total_tok_s: float
    e2e_ms: float
    ttft_ms: float | None
    tpot_ms: float | None
    itl_ms: float | None
    good_share: float | None
    """Share of all sent requests, failed ones included, that kept both limits."""
    goodput_per_s: float | None


class Summary(Record):
    """One point over its replicates: means, and a 95 % interval of what people compare."""

    point: Point
    replicates: int
    sent: int
    failed: int
    means: Figures | None
    intervals: dict[str, tuple[float, float]]
    p99_itl_ms: float | None
    p99_requests: int
    cache_hit_share: float | None
    problems: tuple[str, ...]


def read_replicate(folder: Path, slot: Slot, load: LoadOptions) -> Replicate:
    """Read one slot's folder; what can't be understood is a problem, never a zero."""
    exit_file = folder / "exit"
    code = exit_file.read_text(encoding="utf-8").strip() if exit_file.is_file() else "not run"
    if code == "server down":
        return Replicate(slot=slot, exit=code, problem="the server accepted no connection")
    if code == "not run":
        return Replicate(slot=slot, exit=code, problem="it was not run")
    try:
        if load.backend == "sgl-jax":
            found = _read_sgl_jax(folder, slot, code)
        else:
            found = _read_evalscope(folder, slot, code)
    except (OSError, ValueError, KeyError, TypeError, IndexError, sqlite3.Error) as problem:
        return Replicate(slot=slot, exit=code, problem=_why(folder, code, repr(problem)))
    if code != "0":
        return found.model_copy(update={"problem": _why(folder, code, "")})
    if not found.requests:
        return found.model_copy(update={"problem": f"all {found.sent} requests failed"})
    return found


def _why(folder: Path, code: str, fault: str) -> str:
    words = {"124": "it passed its deadline", "137": "it passed its deadline and was killed"}
    text = words.get(code, f"the load program ended with exit code {code}")
    log = folder / "log"
    said = telling_line(log.read_text("utf-8", "replace")) if log.is_file() else ""
    if code not in words and said:
        text += f": {said}"
    return f"{text} ({fault})" if fault and code == "0" else text


def _read_evalscope(folder: Path, slot: Slot, code: str) -> Replicate:
    """From the table of requests that `evalscope perf` keeps.

    Its column of responses is a pickle and is never read: the file comes from a host under test.
    """
    databases = sorted((folder / "out").rglob("benchmark_data.db"))
    if not databases:
        raise FileNotFoundError("no table of requests was written")
    with sqlite3.connect(f"file:{databases[0]}?mode=ro&immutable=1", uri=True) as table:
        rows = table.execute(
            "SELECT success, start_time, completed_time, latency, first_chunk_latency,"
            " inter_token_latencies, prompt_tokens, completion_tokens FROM result"
        ).fetchall()
    summary_file = databases[0].parent / "benchmark_summary.json"
    summary = json.loads(summary_file.read_text(encoding="utf-8")) if summary_file.is_file() else {}
    good = [row for row in rows if row[0]]
    requests = tuple(
        Sent(
            start=float(start),
            ttft=_positive(first),
            latency=float(latency),
            gaps=tuple(float(gap) for gap in json.loads(gaps or "[]")),
            input_tokens=int(prompt or 0),
            output_tokens=int(completed or 0),
        )
        for _, start, _, latency, first, gaps, prompt, completed in good
    )
    # From the first start to the last end, failed requests included: what they kept the server
    # busy with is part of the time.
    begun = min((float(row[1]) for row in rows if row[1]), default=0.0)
    ended = max((float(row[2]) for row in rows if row[2]), default=0.0)
    hit = summary.get("KV Cache Hit Rate (%)")
    return Replicate(
        slot=slot,
        exit=code,
        sent=len(rows),
        failed=len(rows) - len(good),
        duration_s=max(ended - begun, 0.0),
        requests=requests,
        cache_hit_share=float(hit) / 100 if isinstance(hit, int | float) else None,
    )


def _read_sgl_jax(folder: Path, slot: Slot, code: str) -> Replicate:
    """From the last line of `bench_serving`'s output file, with its details.

    A request that failed has no output tokens, and often no error text either: HTTP/2 has no
    reason phrase, and some servers send none.
    """
    said = json.loads((folder / "bench.jsonl").read_text(encoding="utf-8").splitlines()[-1])
    requests = []
    errors = said["errors"]
    for index, error in enumerate(errors):
        if error or said["output_lens"][index] == 0:
            continue
        gaps = tuple(float(gap) for gap in said["itls"][index])
        first = float(said["ttfts"][index])
        requests.append(
            Sent(
                start=None,
                ttft=_positive(first),
                latency=first + math.fsum(gaps),
                gaps=gaps,
                input_tokens=int(said["input_lens"][index]),
                output_tokens=int(said["output_lens"][index]),
            )
        )
    return Replicate(
        slot=slot,
        exit=code,
        sent=len(errors),
        failed=len(errors) - len(requests),
        duration_s=float(said["duration"]),
        requests=tuple(requests),
    )


def _positive(value: object) -> float | None:
    return float(value) if isinstance(value, int | float) and value > 0 else None


def figures_of(replicate: Replicate, load: LoadOptions) -> Figures:
    """The figures of one replicate; rates over its whole duration, from successful requests."""
    requests, seconds = replicate.requests, replicate.duration_s
    tokens_in = sum(request.input_tokens for request in requests)
    tokens_out = sum(request.output_tokens for request in requests)
    good = None
    if load.ttft_limit_ms is not None or load.tpot_limit_ms is not None:
        good = sum(_is_good(request, load) for request in requests)
    return Figures(
        requests_per_s=len(requests) / seconds,
        input_tok_s=tokens_in / seconds,
        output_tok_s=tokens_out / seconds,
        peak_output_tok_s=_peak(requests),
        total_tok_s=(tokens_in + tokens_out) / seconds,
        e2e_ms=1000 * fmean(request.latency for request in requests),
        ttft_ms=_mean_ms([request.ttft for request in requests]),
        tpot_ms=_mean_ms([request.tpot for request in requests]),
        itl_ms=_mean_ms([gap for request in requests for gap in request.gaps]),
        good_share=None if good is None or not replicate.sent else good / replicate.sent,
        goodput_per_s=None if good is None else good / seconds,
    )


def _is_good(request: Sent, load: LoadOptions) -> bool:
    """Whether a request kept both limits; one whose time wasn't seen kept none."""
    for seconds, limit in ((request.ttft, load.ttft_limit_ms), (request.tpot, load.tpot_limit_ms)):
        if limit is not None and (seconds is None or 1000 * seconds > limit):
            return False
    return True


def _mean_ms(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return 1000 * fmean(known) if known else None


def _peak(requests: Sequence[Sent]) -> float | None:
    """Most output tokens in any second, counted from the first token on; None: a shorter run."""
    arrivals: list[tuple[float, float]] = []
    for request in requests:
        if request.start is None or request.ttft is None:
            continue
        # Servers put one or more tokens in a chunk: a chunk counts as its share of the tokens.
        weight = request.output_tokens / (len(request.gaps) + 1)
        at = request.start + request.ttft
        arrivals.append((at, weight))
        for gap in request.gaps:
            at += gap
            arrivals.append((at, weight))
    if not arrivals:
        return None
    begun = min(at for at, _ in arrivals)
    if max(at for at, _ in arrivals) - begun < PEAK_WINDOW_S:
        return None  # shorter than one window: there is no peak, only the rate
    windows: dict[int, float] = {}
    for at, weight in arrivals:
        window = int((at - begun) / PEAK_WINDOW_S)
        windows[window] = windows.get(window, 0.0) + weight
    return max(windows.values()) / PEAK_WINDOW_S


INTERVAL_UNITS = 3
"""With fewer replicates an interval spans orders of magnitude and tells nothing."""

INTERVALS = ("output_tok_s", "total_tok_s", "e2e_ms", "ttft_ms", "tpot_ms", "goodput_per_s")


def summarise(replicates: Sequence[Replicate], load: LoadOptions) -> tuple[Summary, ...]:
    """Each point over its replicates, warm-ups left out; the unit is the replicate."""
    return tuple(
        _summary(
            point,
            [r for r in replicates if r.slot.point == point and not r.slot.warmup],
            load,
        )
        for point in points_of(load)
    )


def _summary(point: Point, replicates: Sequence[Replicate], load: LoadOptions) -> Summary:
    good = [replicate for replicate in replicates if replicate.ok]
    each = [figures_of(replicate, load) for replicate in good]
    columns = {name: [getattr(one, name) for one in each] for name in Figures.model_fields}
    known = {
        name: [float(value) for value in values if value is not None]
        for name, values in columns.items()
    }
    means = None
    if each:
        means = Figures(
            **{name: fmean(values) if values else None for name, values in known.items()}
        )
    gaps = sorted(gap for replicate in good for r in replicate.requests for gap in r.gaps)
    carrying = sum(len(replicate.requests) for replicate in good)
    hits = [r.cache_hit_share for r in good if r.cache_hit_share is not None]
    return Summary(
        point=point,
        replicates=len(good),
        sent=sum(replicate.sent for replicate in replicates),
        failed=sum(replicate.failed for replicate in replicates),
        means=means,
        intervals={
            name: _interval(known[name])
            for name in INTERVALS
            if len(known[name]) >= INTERVAL_UNITS and min(known[name]) > 0
        },
        p99_itl_ms=1000 * _percentile(gaps, 0.99) if gaps and carrying >= P99_REQUESTS else None,
        p99_requests=carrying,
        cache_hit_share=fmean(hits) if hits else None,
        problems=tuple(f"{r.slot.name}: {r.problem}" for r in replicates if r.problem),
    )


def _interval(values: Sequence[float]) -> tuple[float, float]:
    """Student's t on the logarithms: a rate or a time is positive, and so are its bounds."""
    from benchwright.judgement.statistics import exp, mean_interval

    low, high = mean_interval([math.log(value) for value in values])
    return exp(low), exp(high)


def _percentile(ordered: Sequence[float], share: float) -> float:
    """Linear between the two nearest of the ordered values."""
    place = share * (len(ordered) - 1)
    low = math.floor(place)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (place - low) * (ordered[high] - ordered[low])

"""Whether measurements are steady enough to stand on (gate 2, rule 6).

Each check looks at the units of one metric in one arm, in the order of their blocks, and says
what it saw with its number and its limit. The limits are set so that a quiet machine is left in
peace: of normal noise at most 1 in 100 is remarked on by any one of them.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Sequence
from itertools import pairwise

from benchwright.execution.sample import Sample
from benchwright.judgement import words
from benchwright.judgement.statistics import NO_SPREAD, deviation, mean, median
from benchwright.judgement.units import Units, analysed, is_number, pair
from benchwright.judgement.verdict import Finding
from benchwright.spec.model import Direction, Metric, Role, Scale

SPREAD_LIMIT = 0.10
"""Coefficient of variation. pyperf calls a benchmark unstable from 10 % on (pyperf/_cli.py)."""

ONE_PER_CENT = 2.576
"""Two-sided 1 % point of the standard normal distribution."""

OUTLIER_LIMIT = 7.0
"""Modified z-score (Iglewicz and Hoaglin, How to Detect and Handle Outliers, 1993). Their 3.5 is
for large samples: of ten normal values, one set in ten has a value beyond it. Beyond 7.0 it is
1 in 100 (simulated, 20,000 sets)."""

MODES_LIMIT = 6.5
"""Ashman's D of the best split into two groups (Ashman, Bird and Zepf, Detecting Bimodality in
Astronomical Datasets, Astronomical Journal 108, 1994). The best split of ten normal values
exceeds 6.4 once in 100 sets, of twenty 4.5 (simulated, 20,000 sets); two modes that lie ten
deviations apart are beyond 6.5 nine times in ten."""

SMALLEST_MODE = 0.2
"""A mode is a fifth of the values or more; fewer are outliers."""

MIN_FOR_SHAPE = 10
"""Values that it takes to speak of outliers, modes and autocorrelation."""

MIN_FOR_TREND = 8
"""Values from which the normal approximation of Kendall's S serves (Kendall, Rank Correlation
Methods, 1975)."""

SHORTEST_PROCESS_S = 0.005
"""hyperfine warns below 5 ms (MIN_EXECUTION_TIME, src/benchmark/mod.rs): starting the process
takes as long as what it does."""

WARM_UP_LIMIT = 0.05
"""How far the first value inside a process may lie above the rest of it."""

TIED_LIMIT = 0.5
"""Share of equal values from which a clock is called coarse."""

_TIME_UNITS = frozenset({"s", "ms", "us", "µs", "ns", "min"})


def stability(
    metric: Metric, units: Units, samples: Sequence[Sample], warmup: int
) -> tuple[Finding, ...]:
    """What there is to say of one metric in one arm.

    Args:
        metric: The metric; only a primary one that is unsteady keeps a run from RELIABLE.
        units: Its units in block order: processes or seeds.
        samples: The run's samples, for what repeats inside a process.
        warmup: Warm-up replicates that were run.
    """
    values = units.values
    checks: tuple[Callable[[Metric, str, Sequence[float]], Finding | None], ...] = (
        no_spread,
        spread,
        ties,
        trend,
        outliers,
        modes,
        autocorrelation,
    )
    found = [check(metric, units.arm, values) for check in checks]
    found.append(first_block(metric, units.arm, values, warmup))
    found.append(warm_up_inside(metric, units.arm, samples))
    found.append(too_short(metric, units.arm, samples))
    return tuple(finding for finding in found if finding is not None)


def _decides(metric: Metric) -> bool:
    """Whether the metric's steadiness bears on the run's tag."""
    return metric.role is Role.PRIMARY


def _constant(values: Sequence[float]) -> bool:
    return deviation(values) <= NO_SPREAD * max(abs(value) for value in values)


def _logs(metric: Metric, values: Sequence[float]) -> list[float]:
    """The values on the scale that they are compared on; differences scaled to at most 1."""
    if metric.scale is Scale.RATIO and min(values) > 0:
        return [math.log(value) for value in values]
    largest = max(abs(value) for value in values) or 1.0
    return [value / largest for value in values]


def no_spread(metric: Metric, arm: str, values: Sequence[float]) -> Finding | None:
    """Values that are all the same, of a metric that isn't declared exact; or the reverse."""
    if len(values) < 2:
        return None
    constant = _constant(values)
    if metric.exact and not constant:
        return Finding(
            "not-exact",
            f"{metric.name} is declared exact, but its {len(values)} values in {arm} run from "
            f"{words.amount(metric, min(values))} to {words.amount(metric, max(values))}.",
            caveat=_decides(metric),
            metric=metric.name,
            arm=arm,
        )
    if metric.exact or not constant or metric.scale is Scale.PROPORTION or not any(values):
        return None
    return Finding(
        "no-spread",
        f"All {len(values)} values of {metric.name} in {arm} are "
        f"{words.amount(metric, values[0])}: either it is exact (declare `exact: true`), or the "
        "clock is too coarse.",
        number=0.0,
        caveat=_decides(metric),
        metric=metric.name,
        arm=arm,
    )


def spread(metric: Metric, arm: str, values: Sequence[float]) -> Finding | None:
    """A spread between the units that is large against their mean."""
    if metric.scale is not Scale.RATIO or len(values) < 2 or min(values) <= 0:
        return None
    relative = deviation(values) / mean(values)
    if not relative > SPREAD_LIMIT or math.isinf(relative):
        return None
    return Finding(
        "spread",
        f"{metric.name} in {arm} spreads by {words.percent(relative)} between replicates; up to "
        f"{words.percent(SPREAD_LIMIT)} is steady.",
        number=relative,
        limit=SPREAD_LIMIT,
        caveat=_decides(metric),
        metric=metric.name,
        arm=arm,
    )


def ties(metric: Metric, arm: str, values: Sequence[float]) -> Finding | None:
    """Many equal values: the clock, or the count, is coarse against the spread."""
    if metric.exact or metric.scale is Scale.PROPORTION or len(values) < MIN_FOR_SHAPE:
        return None
    share = 1 - len(set(values)) / len(values)
    if share < TIED_LIMIT or _constant(values):
        return None
    return Finding(
        "ties",
        f"The {len(values)} values of {metric.name} in {arm} are only {len(set(values))} "
        "different ones: its resolution is coarse against its spread.",
        number=share,
        limit=TIED_LIMIT,
        metric=metric.name,
        arm=arm,
    )


def kendall_z(values: Sequence[float]) -> float:
    """Mann-Kendall test of a trend: standard normal without one.

    Mann, Nonparametric Tests Against Trend, Econometrica 13, 1945. Ties count as neither up nor
    down, without their correction, which makes the test milder.
    """
    n = len(values)
    score = sum(
        (late > early) - (late < early)
        for place, early in enumerate(values)
        for late in values[place + 1 :]
    )
    if score == 0:
        return 0.0
    return (score - math.copysign(1, score)) / math.sqrt(n * (n - 1) * (2 * n + 5) / 18)


def trend(metric: Metric, arm: str, values: Sequence[float]) -> Finding | None:
    """A drift over the blocks. Both arms of a block share it, so it is no caveat by itself."""
    if len(values) < MIN_FOR_TREND:
        return None
    score = kendall_z(values)
    if abs(score) <= ONE_PER_CENT:
        return None
    third = max(len(values) // 3, 1)
    before, after = median(values[:third]), median(values[-third:])
    return Finding(
        "trend",
        f"{metric.name} in {arm} {'rose' if score > 0 else 'fell'} over the blocks, from "
        f"{words.amount(metric, before)} in the first third to {words.amount(metric, after)} in "
        f"the last (Mann-Kendall z {words.number(score, 3)}, limit {ONE_PER_CENT}). The blocks "
        "hold both arms, so it doesn't favour one.",
        number=score,
        limit=ONE_PER_CENT,
        metric=metric.name,
        arm=arm,
    )


def trend_of_effect(metric: Metric, baseline: Units, treatment: Units) -> Finding | None:
    """A drift of the effect itself, which blocks do not cancel."""
    pairs = pair(baseline, treatment)
    if len(pairs.keys) < MIN_FOR_TREND:
        return None
    before, after = _logs_of_pairs(metric, pairs.baseline, pairs.treatment)
    gaps = [late - early for early, late in zip(before, after, strict=True)]
    if not all(math.isfinite(gap) for gap in gaps):
        return None
    score = kendall_z(gaps)
    if abs(score) <= ONE_PER_CENT:
        return None
    return Finding(
        "trend-of-effect",
        f"The effect of {treatment.arm} on {metric.name} {'rose' if score > 0 else 'fell'} over "
        f"the blocks (Mann-Kendall z {words.number(score, 3)}, limit {ONE_PER_CENT}): it was not "
        "the same at the end as at the start.",
        number=score,
        limit=ONE_PER_CENT,
        caveat=_decides(metric),
        metric=metric.name,
        arm=treatment.arm,
    )


def _logs_of_pairs(
    metric: Metric, baseline: Sequence[float], treatment: Sequence[float]
) -> tuple[Sequence[float], Sequence[float]]:
    if metric.scale is Scale.RATIO and min((*baseline, *treatment)) > 0:
        return [math.log(v) for v in baseline], [math.log(v) for v in treatment]
    return baseline, treatment


def modified_z(values: Sequence[float]) -> list[float] | None:
    """Distance of each value from the median, in units of the median distance; None where 0.

    A distance that is too large for a number is the largest one.
    """
    middle = median(values)
    distances = [abs(value - middle) for value in values]
    typical = median(distances)
    if typical == 0 or not math.isfinite(max(distances)):
        return None
    return [min(0.6745 * distance / typical, sys.float_info.max) for distance in distances]


def outliers(metric: Metric, arm: str, values: Sequence[float]) -> Finding | None:
    """Values far from the others."""
    if len(values) < MIN_FOR_SHAPE or _constant(values):
        return None
    scores = modified_z(_logs(metric, values))
    if scores is None or not max(scores) > OUTLIER_LIMIT:
        return None
    far = [value for value, score in zip(values, scores, strict=True) if score > OUTLIER_LIMIT]
    shown = words.listed([words.amount(metric, value) for value in far], 3)
    return Finding(
        "outlier",
        f"{words.count(len(far), 'value')} of {metric.name} in {arm} "
        f"{'lies' if len(far) == 1 else 'lie'} far from the others ({shown}; median "
        f"{words.amount(metric, median(values))}; modified z-score "
        f"{words.number(max(scores), 3)}, limit {words.number(OUTLIER_LIMIT)}). "
        "Nothing was left out.",
        number=max(scores),
        limit=OUTLIER_LIMIT,
        metric=metric.name,
        arm=arm,
    )


def ashman_d(values: Sequence[float]) -> float:
    """Separation of the best split of sorted values into two groups, in pooled deviations."""
    ordered = sorted(values)
    smallest = max(2, math.ceil(len(ordered) * SMALLEST_MODE))
    best, least = 0.0, math.inf
    for place in range(smallest, len(ordered) - smallest + 1):
        low, high = ordered[:place], ordered[place:]
        spreads = deviation(low) ** 2, deviation(high) ** 2
        within = spreads[0] * (len(low) - 1) + spreads[1] * (len(high) - 1)
        if within < least:
            least = within
            pooled = math.sqrt(spreads[0] + spreads[1])
            apart = math.sqrt(2) * (mean(high) - mean(low))
            best = apart / pooled if pooled else 0.0
    return best


def modes(metric: Metric, arm: str, values: Sequence[float]) -> Finding | None:
    """Two groups of values instead of one. Groups of equal values are a coarse clock's: `ties`."""
    if len(values) < MIN_FOR_SHAPE or _constant(values):
        return None
    separation = ashman_d(_logs(metric, values))
    if not MODES_LIMIT < separation < math.inf:
        return None
    return Finding(
        "modes",
        f"The values of {metric.name} in {arm} fall into two groups (Ashman's D "
        f"{words.number(separation, 3)}, limit {MODES_LIMIT}): the process has two speeds, and "
        "the mean is the speed of neither. Look for what differs between them.",
        number=separation,
        limit=MODES_LIMIT,
        caveat=_decides(metric),
        metric=metric.name,
        arm=arm,
    )


def lag_one(values: Sequence[float]) -> float:
    """Correlation of each value with the next (Box, Jenkins and Reinsel, Time Series Analysis,
    1994, chapter 2); 0 where the values have no spread."""
    centre = mean(values)
    gaps = [value - centre for value in values]
    total = math.fsum(gap * gap for gap in gaps)
    shared = math.fsum(one * following for one, following in pairwise(gaps))
    return shared / total if total else 0.0


def autocorrelation(metric: Metric, arm: str, values: Sequence[float]) -> Finding | None:
    """Neighbouring blocks that resemble each other."""
    if len(values) < MIN_FOR_SHAPE or _constant(values):
        return None
    limit = ONE_PER_CENT / math.sqrt(len(values))
    lag = lag_one(_logs(metric, values))
    if not lag > limit:
        return None
    return Finding(
        "autocorrelation",
        f"Neighbouring values of {metric.name} in {arm} resemble each other (lag-1 correlation "
        f"{words.number(lag, 2)}, limit {words.number(limit, 2)}): the machine changes slower than "
        "the blocks. Pairing by block takes that out of the effect.",
        number=lag,
        limit=limit,
        metric=metric.name,
        arm=arm,
    )


def first_block(metric: Metric, arm: str, values: Sequence[float], warmup: int) -> Finding | None:
    """A first measured value that is far on the bad side of the others."""
    if len(values) < MIN_FOR_SHAPE or _constant(values):
        return None
    scores = modified_z(_logs(metric, values))
    bad = (
        values[0] > median(values)
        if metric.direction is Direction.LOWER
        else (values[0] < median(values))
    )
    if scores is None or not bad or not scores[0] > OUTLIER_LIMIT:
        return None
    return Finding(
        "warm-up",
        f"The first measured value of {metric.name} in {arm}, "
        f"{words.amount(metric, values[0])}, is far from the rest (modified z-score "
        f"{words.number(scores[0], 3)}, limit {words.number(OUTLIER_LIMIT)}): "
        f"{words.count(warmup, 'warm-up replicate')} may be too few.",
        number=scores[0],
        limit=OUTLIER_LIMIT,
        metric=metric.name,
        arm=arm,
    )


def warm_up_inside(metric: Metric, arm: str, samples: Sequence[Sample]) -> Finding | None:
    """A first value inside each process that is worse than the rest of it."""
    excesses = []
    for sample in analysed(samples, arm):
        repeats = sample.measurement.values.get(metric.name, ()) if sample.measurement else ()
        if len(repeats) >= 3 and all(is_number(value) and value > 0 for value in repeats):
            rest = median(repeats[1:])
            lower = metric.direction is Direction.LOWER
            excesses.append((repeats[0] / rest if lower else rest / repeats[0]) - 1)
    if len(excesses) < MIN_FOR_SHAPE // 2 or min(excesses) <= 0:
        return None
    typical = median(excesses)
    if not WARM_UP_LIMIT < typical < math.inf:
        return None
    return Finding(
        "warm-up-inside",
        f"Inside each process of {arm} the first value of {metric.name} is worse than the rest, "
        f"by {words.percent(typical)} in the median (limit {words.percent(WARM_UP_LIMIT)}): the "
        "process's own warm-up is part of the result.",
        number=typical,
        limit=WARM_UP_LIMIT,
        metric=metric.name,
        arm=arm,
    )


def too_short(metric: Metric, arm: str, samples: Sequence[Sample]) -> Finding | None:
    """A timing of processes that are over before a clock gets hold of them."""
    if metric.unit not in _TIME_UNITS:
        return None
    durations = [
        sample.duration_s
        for sample in analysed(samples, arm)
        if sample.measurement is not None and metric.name in sample.measurement.metrics
    ]
    if not durations or not 0 < median(durations) < SHORTEST_PROCESS_S:
        return None
    typical = median(durations)
    return Finding(
        "too-short",
        f"The process that gives {metric.name} in {arm} takes "
        f"{words.number(1000 * typical, 3)} ms; "
        f"below {words.number(1000 * SHORTEST_PROCESS_S)} ms its start takes as long as its work. "
        "Let it do more in one go.",
        number=typical,
        limit=SHORTEST_PROCESS_S,
        caveat=_decides(metric),
        metric=metric.name,
        arm=arm,
    )

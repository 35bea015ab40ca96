"""The decision on one metric, read off its interval (gate 2, rules 3 and 5).

A `Contrast` holds one metric of one treatment arm against the baseline. `decide` takes all
contrasts of a run together, because they share the family's 5 %.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from benchwright.judgement import words
from benchwright.judgement.detectable import detectable, units_needed
from benchwright.judgement.statistics import (
    LEVEL,
    Estimate,
    deviation,
    exp,
    finite,
    mean,
    median,
    paired_difference,
    paired_ratio,
    paired_share,
    t_quantile,
    unpaired_difference,
    unpaired_ratio,
)
from benchwright.judgement.units import UnitKind, Units, pair
from benchwright.judgement.verdict import ArmSummary, Decision, Interval, Verdict
from benchwright.spec.model import Direction, Metric, Scale

MIN_UNITS = 5
"""Fewer units an arm give no verdict (gate 2, rule 5)."""


@dataclass(frozen=True, slots=True)
class Contrast:
    """One metric of one treatment arm against the baseline, before the decision.

    Attributes:
        metric: The metric.
        baseline, treatment: The arms' units.
        paired: How many units an arm the estimate stands on.
        estimate: The effect; None where it can't be had.
        obstacle: A sentence on why there can be no verdict; empty where there can.
    """

    metric: Metric
    baseline: Units
    treatment: Units
    paired: int
    estimate: Estimate | None
    obstacle: str = ""


def reach(metric: Metric) -> float:
    """Half width of what doesn't matter, on the working scale.

    For a ratio it is log(1 + min_effect) to both sides, so that swapping the arms swaps the
    decision: with 1 % it runs from 0.9901 to 1.01.
    """
    return math.log1p(metric.min_effect) if metric.scale is Scale.RATIO else metric.min_effect


def summarise(units: Units, scale: Scale) -> ArmSummary:
    """One arm's units of one metric in figures; None where there are too few for one."""
    values = units.values
    if not values:
        return ArmSummary(units.arm, 0, None, None, None, None, None)
    middle = mean(values)
    spread: float | None = None
    if len(values) > 1:
        absolute = deviation(values)
        if scale is not Scale.RATIO:
            spread = finite(absolute)
        elif middle > 0:
            spread = finite(absolute / middle)
    return ArmSummary(
        arm=units.arm,
        n=len(values),
        mean=finite(middle),
        median=finite(median(values)),
        min=min(values),
        max=max(values),
        spread=spread,
    )


def mean_interval_of(
    summary: ArmSummary, scale: Scale, level: float = LEVEL
) -> tuple[float | None, float | None]:
    """Student's t interval of an arm's mean, from the figures that `summarise` gave.

    Returns:
        Its ends; None for both with fewer units than a verdict takes, or without a spread.
    """
    if summary.n < MIN_UNITS or not summary.spread or summary.mean is None:
        return None, None
    absolute = summary.spread * (abs(summary.mean) if scale is Scale.RATIO else 1.0)
    half = t_quantile(summary.n - 1, 0.5 + level / 2) * absolute / math.sqrt(summary.n)
    return finite(summary.mean - half), finite(summary.mean + half)


def contrast(
    metric: Metric, baseline: Units, treatment: Units, *, interleaved: bool = True
) -> Contrast:
    """Estimate the effect of one arm on one metric.

    Args:
        metric: What is compared, and on which scale.
        baseline, treatment: Units of the two arms.
        interleaved: Whether units with the same block number ran side by side. Items and seeds
            are paired in any case: the same item is the same item in another run.
    """
    if baseline.kind is not treatment.kind:
        return Contrast(
            metric,
            baseline,
            treatment,
            0,
            None,
            f"{metric.name} has {baseline.kind.plural} as units in {baseline.arm} and "
            f"{treatment.kind.plural} in {treatment.arm}: they can't be compared.",
        )
    if interleaved or baseline.kind is not UnitKind.PROCESS:
        pairs = pair(baseline, treatment)
        left, right, paired = pairs.baseline, pairs.treatment, len(pairs.keys)
    else:
        left, right = baseline.values, treatment.values
        paired = min(len(left), len(right))
    obstacle = _obstacle(metric, baseline, left, right, paired)
    estimate = None
    if paired >= 2 and not _not_positive(metric, left, right):
        estimate = _estimate(metric, baseline.kind, left, right, interleaved)
        if estimate is None and not obstacle:
            obstacle = f"The values of {metric.name} are too large to be compared."
    return Contrast(metric, baseline, treatment, paired, estimate, obstacle)


def _estimate(
    metric: Metric,
    kind: UnitKind,
    baseline: Sequence[float],
    treatment: Sequence[float],
    interleaved: bool,
) -> Estimate | None:
    """The estimator of the metric's scale and of the kind of unit."""
    paired = interleaved or kind is not UnitKind.PROCESS
    if metric.scale is Scale.RATIO:
        return (paired_ratio if paired else unpaired_ratio)(baseline, treatment)
    shares = all(0.0 <= value <= 1.0 for value in (*baseline, *treatment))
    if metric.scale is Scale.PROPORTION and kind is UnitKind.ITEM and shares:
        return paired_share(baseline, treatment)
    return (paired_difference if paired else unpaired_difference)(baseline, treatment)


def _not_positive(metric: Metric, *arms: Sequence[float]) -> bool:
    """Whether a ratio is asked for of values that have none."""
    return metric.scale is Scale.RATIO and any(value <= 0 for arm in arms for value in arm)


def _obstacle(
    metric: Metric, units: Units, left: Sequence[float], right: Sequence[float], paired: int
) -> str:
    """Why there can be no verdict, as a sentence; empty where there can."""
    if paired < MIN_UNITS:
        noun = units.kind.plural if paired != 1 else units.kind.value
        return (
            f"{paired} {noun} an arm with {metric.name} {words.be(paired)} too few for a verdict: "
            f"it takes at least {MIN_UNITS}."
        )
    if _not_positive(metric, left, right):
        lowest = min((*left, *right))
        return (
            f"{metric.name} has values that are not positive ({words.number(lowest)}), and these "
            "have no ratio: give the metric `scale: difference`."
        )
    if _repeats_itself(metric, units, left, right):
        return (
            f"Each replicate gave the same {metric.name}: a score that repeats the same items "
            "is one measurement, however often it is made. Report the outcome of each item "
            '(`"items"`), or draw a seed for each replicate.'
        )
    return ""


def _repeats_itself(
    metric: Metric, units: Units, left: Sequence[float], right: Sequence[float]
) -> bool:
    """Whether a score without items is the same evaluation over and over (gate 2, rule 1)."""
    return (
        metric.scale is Scale.PROPORTION
        and not metric.exact
        and units.kind is UnitKind.PROCESS
        and len(set(left)) == 1
        and len(set(right)) == 1
    )


def decide(contrasts: Sequence[Contrast], level: float = LEVEL) -> tuple[Verdict, ...]:
    """The verdict of each contrast; the family's error stays at 1 - level (Holm).

    Holm's procedure (A Simple Sequentially Rejective Multiple Test Procedure, Scandinavian
    Journal of Statistics 6, 1979), said in intervals: of m contrasts, those that decide with an
    interval of level 1 - 0.05/m are decided; the rest shares the 5 % anew, until none decides.
    A single contrast has the plain 95 % interval.

    Args:
        contrasts: All that one run, or one comparison, decides on.
        level: Confidence of the family.
    """
    levels = _holm(contrasts, level)
    family = sum(not contrast.obstacle for contrast in contrasts)
    return tuple(
        _verdict(contrast, confidence, family)
        for contrast, confidence in zip(contrasts, levels, strict=True)
    )


def _holm(contrasts: Sequence[Contrast], level: float) -> list[float]:
    """The level of each contrast's interval."""
    levels = [level] * len(contrasts)
    waiting = [index for index, one in enumerate(contrasts) if not one.obstacle]
    while waiting:
        shared = 1 - (1 - level) / len(waiting)
        for index in waiting:
            levels[index] = shared
        undecided = [
            index for index in waiting if _read(contrasts[index], shared) is Decision.INCONCLUSIVE
        ]
        if len(undecided) == len(waiting):
            break
        waiting = undecided
    return levels


def _read(contrast: Contrast, level: float) -> Decision:
    """Read the decision off the interval (gate 2, rule 3)."""
    estimate, metric = contrast.estimate, contrast.metric
    if contrast.obstacle or estimate is None:
        return Decision.NO_VERDICT
    edge = reach(metric)
    low, high = estimate.ends(level)
    if estimate.constant:
        # Without spread the interval is a point, which would make a win of any two constants,
        # also of two that a coarse clock rounded. They decide only where declared exact.
        low = high = estimate.observed
        if abs(low) >= edge and not metric.exact:
            return Decision.INCONCLUSIVE
    if -edge < low and high < edge:
        return Decision.EQUIVALENT
    falls, rises = high < -edge, low > edge
    if not (falls or rises):
        return Decision.INCONCLUSIVE
    good = falls if metric.direction is Direction.LOWER else rises
    return Decision.BETTER if good else Decision.WORSE


def _leans(contrast: Contrast, level: float) -> str:
    """The side that an inconclusive effect lies on, where it isn't in the middle."""
    estimate = contrast.estimate
    if estimate is None:
        return ""
    low, high = estimate.ends(level)
    if abs(estimate.observed) < reach(contrast.metric) and low <= 0 <= high:
        return ""
    falls = estimate.observed < 0
    return "better" if falls is (contrast.metric.direction is Direction.LOWER) else "worse"


def _verdict(contrast: Contrast, level: float, family: int) -> Verdict:
    """The verdict of one contrast at its level."""
    metric, estimate = contrast.metric, contrast.estimate
    decision = _read(contrast, level)
    effect = estimate.effect if estimate else _single_effect(contrast)
    interval = _interval(contrast, decision, level)
    informative = estimate is not None and not estimate.constant
    smallest = _detectable(metric, estimate, level) if estimate and informative else None
    needed = _replicates_needed(metric, estimate, level) if estimate and informative else None
    leans = _leans(contrast, level) if decision is Decision.INCONCLUSIVE else ""
    verdict = Verdict(
        metric=metric,
        baseline=summarise(contrast.baseline, metric.scale),
        treatment=summarise(contrast.treatment, metric.scale),
        effect=effect,
        interval=interval,
        decision=decision,
        units=contrast.paired,
        detectable=smallest,
        replicates_needed=needed,
        leans=leans,
        method=estimate.method if estimate else "none",
    )
    return _with_reasons(verdict, contrast, family)


def _single_effect(contrast: Contrast) -> float | None:
    """The effect seen with a single pair, which has no interval."""
    if contrast.paired != 1:
        return None
    metric = contrast.metric
    pairs = pair(contrast.baseline, contrast.treatment)
    before = (pairs.baseline or contrast.baseline.values)[0]
    after = (pairs.treatment or contrast.treatment.values)[0]
    if _not_positive(metric, [before], [after]):
        return None
    if metric.scale is Scale.RATIO:
        return finite(exp(math.log(after) - math.log(before)))
    return finite(after - before)


def _interval(contrast: Contrast, decision: Decision, level: float) -> Interval:
    """The interval to show; unknown where there are too few units, or nothing to make it of."""
    estimate = contrast.estimate
    if estimate is None or decision is Decision.NO_VERDICT:
        return Interval(None, None, level)
    if estimate.constant:
        point = estimate.effect if decision is not Decision.INCONCLUSIVE else None
        return Interval(point, point, level)
    low, high = estimate.ends(level)
    return Interval(estimate.to_effect(low), estimate.to_effect(high), level)


def _in_terms(metric: Metric, value: float) -> float | None:
    """A distance on the working scale in the metric's terms: relative for a ratio."""
    return finite(exp(value) - 1 if metric.scale is Scale.RATIO else value)


def _detectable(metric: Metric, estimate: Estimate, level: float) -> float | None:
    """The smallest effect told from none with 80 % power, in the metric's terms."""
    return _in_terms(metric, detectable(estimate.error, estimate.freedom, level))


def _replicates_needed(metric: Metric, estimate: Estimate, level: float) -> int | None:
    """How many units an arm tell `min_effect` from none; None where nobody runs so many."""
    needed = units_needed(estimate.spread, reach(metric), level)
    return None if needed is None else max(needed, MIN_UNITS)


def _with_reasons(verdict: Verdict, contrast: Contrast, family: int) -> Verdict:
    """The verdict with its sentences, the headline first."""
    reasons = [_headline(verdict, contrast)]
    if not contrast.obstacle and family > 1:
        reasons.append(
            f"The interval is at {words.level(verdict.interval.level)}: {family} comparisons share "
            f"the {words.percent(1 - LEVEL)} of error (Holm)."
        )
    kind = contrast.treatment.kind.plural
    smallest = words.size(verdict.metric, verdict.metric.min_effect)
    if verdict.detectable is not None:
        needed = (
            f"it takes {verdict.replicates_needed} {kind} an arm to see {smallest}"
            if verdict.replicates_needed is not None
            else f"no practicable number of {kind} would show {smallest}"
        )
        reasons.append(
            f"{verdict.units} {kind} an arm could tell a change of "
            f"{words.size(verdict.metric, verdict.detectable)} from none (80 % power); {needed}."
        )
    return replace(verdict, reasons=tuple(reasons))


def _headline(verdict: Verdict, contrast: Contrast) -> str:
    """The first sentence: what was found, with the interval and the limit."""
    if contrast.obstacle:
        return contrast.obstacle
    metric, estimate = verdict.metric, contrast.estimate
    arm, smallest = verdict.treatment.arm, words.size(metric, metric.min_effect)
    if estimate is not None and estimate.constant:
        return _constant_headline(verdict, estimate)
    shown = "too large to be written" if verdict.effect is None else words.number(verdict.effect)
    kind = "ratio" if metric.scale is Scale.RATIO else "difference"
    figures = f"{kind} {shown}, {words.span(verdict.interval)}"
    moved = "changed" if verdict.effect is None else words.change(metric, verdict.effect)
    match verdict.decision:
        case Decision.BETTER | Decision.WORSE:
            return (
                f"{metric.name} is {moved} with {arm} ({figures}): {verdict.decision}, the whole "
                f"interval lies beyond the {smallest} that matters."
            )
        case Decision.EQUIVALENT:
            return (
                f"{metric.name} is the same with {arm} ({figures}): the whole interval lies "
                f"within the {smallest} that matters."
            )
        case _:
            lean = f"; it leans {verdict.leans}" if verdict.leans else ""
            return (
                f"{metric.name} is {moved} with {arm} ({figures}), but the interval reaches "
                f"across the limit of {smallest}, so the run can't decide{lean}."
            )


def _constant_headline(verdict: Verdict, estimate: Estimate) -> str:
    """The first sentence where the replicates have no spread."""
    metric, arm = verdict.metric, verdict.treatment.arm
    if estimate.observed == 0:
        return f"{metric.name} is the same with {arm} in every replicate: equivalent."
    moved = "changed" if verdict.effect is None else words.change(metric, verdict.effect)
    if metric.exact:
        return (
            f"{metric.name} is {moved} with {arm} in every replicate: {verdict.decision}. "
            "It is declared exact, so no interval is needed."
        )
    if verdict.decision is Decision.EQUIVALENT:
        return (
            f"{metric.name} is {moved} with {arm} in every replicate, within the "
            f"{words.size(metric, metric.min_effect)} that matters: equivalent."
        )
    return (
        f"{metric.name} is {moved} with {arm} in every replicate, without any spread to judge it "
        "by: a clock that is too coarse looks like that. If the value is a count or a size that "
        "the same code always gives, declare the metric `exact: true`; otherwise measure longer."
    )

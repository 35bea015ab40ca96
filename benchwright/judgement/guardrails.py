"""Whether a guardrail held (gate 2, rule 4).

A guardrail has the benefit of the doubt on its side: it held only where the value and the bad end
of its interval both keep to the limit. Where the value keeps to it and the interval does not, the
run can't tell, and a win doesn't count either. Guardrails are not part of the Holm family: all of
them have to hold, which needs no correction (Berger, Multiparameter Hypothesis Testing and
Acceptance Sampling, Technometrics 24, 1982).
"""

from __future__ import annotations

import math

from benchwright.judgement import words
from benchwright.judgement.decide import MIN_UNITS, Contrast
from benchwright.judgement.statistics import LEVEL, exp, mean, mean_interval, wilson
from benchwright.judgement.units import UnitKind, Units
from benchwright.judgement.verdict import GuardrailResult
from benchwright.spec.model import Direction, Metric, Scale


def guard(contrast: Contrast) -> tuple[GuardrailResult, ...]:
    """What became of a guardrail in one treatment arm: one result for each limit it has."""
    metric = contrast.metric
    results = []
    if metric.floor is not None:
        results.append(floor(metric, contrast.treatment))
    if metric.max_regression is not None:
        results.append(regression(contrast))
    return tuple(results)


def floor(metric: Metric, units: Units) -> GuardrailResult:
    """Whether an arm's value keeps to the guardrail's floor (a ceiling where lower is better)."""
    limit = metric.floor
    if limit is None:
        raise ValueError(f"{metric.name} has no floor")
    lower = metric.direction is Direction.LOWER
    text = f"{'at most' if lower else 'at least'} {words.amount(metric, limit)}"
    values = units.values
    if not values:
        return GuardrailResult(
            metric, units.arm, None, None, text, f"{metric.name} was not measured in {units.arm}."
        )
    observed = mean(values)
    if len(values) < 2:
        low, high = -math.inf, math.inf
    elif (
        metric.scale is Scale.PROPORTION
        and units.kind is UnitKind.ITEM
        and min(values) >= 0
        and max(values) <= 1
    ):
        low, high = wilson(observed, len(values))
    else:
        low, high = mean_interval(values)
    return _result(
        metric=metric,
        arm=units.arm,
        observed=observed,
        worst=high if lower else low,
        limit=limit,
        text=text,
        shown=words.amount(metric, observed),
        too_few=len(values) < 2,
    )


def regression(contrast: Contrast) -> GuardrailResult:
    """Whether the loss against the baseline keeps to the guardrail's limit."""
    metric, arm, estimate = contrast.metric, contrast.treatment.arm, contrast.estimate
    allowed = metric.max_regression
    if allowed is None:
        raise ValueError(f"{metric.name} has no max_regression")
    lower = metric.direction is Direction.LOWER
    text = f"at most {words.size(metric, allowed)} {'higher' if lower else 'lower'}"
    if estimate is None:
        why = contrast.obstacle or f"{metric.name} has too few units to be compared."
        return GuardrailResult(metric, arm, None, None, text, why)
    ratio = metric.scale is Scale.RATIO
    none = 1.0 if ratio else 0.0
    limit = none + allowed if lower else none - allowed
    low, high = (estimate.observed,) * 2 if estimate.constant else estimate.ends(LEVEL)
    worst = high if lower else low
    observed = exp(estimate.observed) if ratio else estimate.observed
    return _result(
        metric=metric,
        arm=arm,
        observed=observed,
        worst=exp(worst) if ratio else worst,
        limit=limit,
        text=text,
        shown=words.change(metric, observed) if math.isfinite(observed) else "beyond measure",
        too_few=contrast.paired < MIN_UNITS,
    )


def _result(
    *,
    metric: Metric,
    arm: str,
    observed: float,
    worst: float,
    limit: float,
    text: str,
    shown: str,
    too_few: bool,
) -> GuardrailResult:
    """Read the result off the value and the bad end of its interval."""
    sign = 1 if metric.direction is Direction.LOWER else -1
    seen = observed if math.isfinite(observed) else None
    if sign * observed > sign * limit:
        return GuardrailResult(
            metric, arm, False, seen, text, f"{metric.name} with {arm} is {shown}; allowed: {text}."
        )
    if too_few:
        return GuardrailResult(
            metric,
            arm,
            None,
            seen,
            text,
            f"{metric.name} with {arm} is {shown}, from too few units to say more; "
            f"allowed: {text}.",
        )
    if sign * worst > sign * limit:
        return GuardrailResult(
            metric,
            arm,
            None,
            seen,
            text,
            f"{metric.name} with {arm} is {shown}, but its interval reaches to "
            f"{words.number(worst)}, past the limit; allowed: {text}.",
        )
    return GuardrailResult(
        metric, arm, True, seen, text, f"{metric.name} with {arm} is {shown}; allowed: {text}."
    )

"""How sure a score is, and whether two scores differ: pure arithmetic on the outcomes of items.

A score's unit is an item of the evaluation set. Repeats of an item are averaged first, never
pooled: ten answers to one question say little about the other questions.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import NormalDist, fmean, stdev

LEVEL = 0.95
"""Confidence level of every interval here."""

FEWEST_UNITS = 5
"""Below this many items no difference is called one (gate 2, rule 5)."""

Outcomes = Mapping[str, Sequence[float]]
"""The outcomes in [0, 1] of each item by item id; several where repeats share an item."""


@dataclass(frozen=True, slots=True)
class Score:
    """The mean outcome with its interval.

    Attributes:
        value: The mean over items of the item's mean outcome; None for no items.
        low, high: The 95 % interval; None: unknown.
        items: Number of items.
        samples: Number of outcomes, repeats counted.
        correct: Sum of the outcomes, where each is 0 or 1; None for graded outcomes.
        method: How the interval was made.
    """

    value: float | None
    low: float | None
    high: float | None
    items: int
    samples: int
    correct: int | None
    method: str


@dataclass(frozen=True, slots=True)
class PairedDifference:
    """The difference of two scores on the items that both answered.

    Attributes:
        difference: Mean of (treatment - baseline) over those items; None for no common item.
        low, high: Its 95 % interval; None: unknown.
        p: Two-sided p-value of no difference; None: unknown.
        items: Number of items that both answered.
        only_baseline, only_treatment: Number of items that one of the two answered alone.
        gained, lost: Items whose mean outcome rose, and fell.
        differs: Whether a difference may be claimed at the 5 % level.
        method: How interval and p-value were made.
    """

    difference: float | None
    low: float | None
    high: float | None
    p: float | None
    items: int
    only_baseline: int
    only_treatment: int
    gained: int
    lost: int
    differs: bool
    method: str


def wilson(correct: float, n: int, level: float = LEVEL) -> tuple[float, float]:
    """Wilson's score interval of a proportion.

    Source: E. B. Wilson, JASA 22 (1927) 209-212. Unlike the normal one it is right near 0 and 1,
    and never has zero width.

    Args:
        correct: Number of successes, 0 <= correct <= n.
        n: Number of trials, at least 1.
        level: Confidence level.
    """
    z = NormalDist().inv_cdf(0.5 + level / 2)
    share = correct / n
    centre = (share + z * z / (2 * n)) / (1 + z * z / n)
    half = z / (1 + z * z / n) * math.sqrt(share * (1 - share) / n + z * z / (4 * n * n))
    # The formula's ends are exactly 0 and 1 for none and all; rounding must not take them outside.
    low = 0.0 if correct == 0 else max(0.0, centre - half)
    high = 1.0 if correct == n else min(1.0, centre + half)
    return low, high


def score(outcomes: Outcomes) -> Score:
    """The mean outcome and its interval.

    One 0/1 outcome an item: Wilson. Otherwise the items are the clusters: a t interval over the
    items' means, and where those don't vary at all, Wilson with the number of items (an interval
    of zero width would claim certainty). One item alone with a graded outcome: unknown.
    """
    means = [fmean(values) for values in outcomes.values() if values]
    flat = [value for values in outcomes.values() for value in values]
    binary = all(value in (0, 1) for value in flat)
    correct = round(sum(flat)) if binary and flat else None
    n = len(means)
    if n == 0:
        return Score(None, None, None, 0, 0, None, "no item")
    value = fmean(means)
    if binary and len(flat) == n:
        low, high = wilson(sum(flat), n)
        return Score(value, low, high, n, n, correct, "Wilson")
    spread = stdev(means) if n > 1 else 0.0
    if spread == 0.0:
        if not binary:
            return Score(value, None, None, n, len(flat), correct, "unknown: no spread over items")
        low, high = wilson(value * n, n)
        return Score(value, low, high, n, len(flat), correct, "Wilson over items")
    half = _t_quantile(n - 1) * spread / math.sqrt(n)
    low, high = max(0.0, value - half), min(1.0, value + half)
    return Score(value, low, high, n, len(flat), correct, "t over items")


def paired_difference(baseline: Outcomes, treatment: Outcomes) -> PairedDifference:
    """Judge a change by the items that both answered.

    One 0/1 outcome an item: the exact McNemar test (the binomial test on the items whose outcome
    changed), with the interval that it implies: Clopper and Pearson's for the share of gains among
    the changed items, scaled by the share of changed items. The interval excludes zero exactly
    where p < 0.05, so the two never disagree. Otherwise (repeats, graded outcomes): a t interval
    over the items' differences.

    Source: Q. McNemar, Psychometrika 12 (1947) 153-157; C. J. Clopper, E. S. Pearson, Biometrika
    26 (1934) 404-413.
    """
    common = [item for item in baseline if treatment.get(item) and baseline[item]]
    only_baseline = sum(1 for item in baseline if item not in treatment)
    only_treatment = sum(1 for item in treatment if item not in baseline)
    changes = [fmean(treatment[item]) - fmean(baseline[item]) for item in common]
    gained, lost = sum(c > 0 for c in changes), sum(c < 0 for c in changes)
    n = len(changes)
    single = all(
        len(side[item]) == 1 and side[item][0] in (0, 1)
        for item in common
        for side in (baseline, treatment)
    )
    low = high = p = None
    if n == 0:
        method = "no item in common"
    elif single:
        low, high, p = _mcnemar(gained, lost, n)
        method = "exact McNemar"
    elif n > 1:
        low, high, p = _paired_t(changes)
        method = "paired t over items"
    else:
        method = "unknown: one item"
    return PairedDifference(
        difference=fmean(changes) if changes else None,
        low=low,
        high=high,
        p=p,
        items=n,
        only_baseline=only_baseline,
        only_treatment=only_treatment,
        gained=gained,
        lost=lost,
        differs=p is not None and p < 1 - LEVEL and n >= FEWEST_UNITS,
        method=method,
    )


def _mcnemar(gained: int, lost: int, n: int) -> tuple[float, float, float]:
    from scipy.stats import beta, binom

    changed = gained + lost
    if changed == 0:
        # No item changed: the share of changed items itself is bounded (the rule of three's exact
        # form), and so is the difference.
        bound = 1 - ((1 - LEVEL) / 2) ** (1 / n)
        return -bound, bound, 1.0
    tail = (1 - LEVEL) / 2
    share_low = beta.ppf(tail, gained, lost + 1) if gained else 0.0
    share_high = beta.ppf(1 - tail, gained + 1, lost) if lost else 1.0
    scale = changed / n
    p = min(1.0, 2 * float(binom.cdf(min(gained, lost), changed, 0.5)))
    return float(scale * (2 * share_low - 1)), float(scale * (2 * share_high - 1)), p


def _paired_t(changes: Sequence[float]) -> tuple[float | None, float | None, float | None]:
    from scipy.stats import t

    n, spread, mean = len(changes), stdev(changes), fmean(changes)
    if spread == 0.0:
        return (None, None, None) if mean else (0.0, 0.0, 1.0)
    error = spread / math.sqrt(n)
    half = _t_quantile(n - 1) * error
    return mean - half, mean + half, float(2 * t.sf(abs(mean) / error, n - 1))


def _t_quantile(freedom: int) -> float:
    from scipy.stats import t

    return float(t.ppf(0.5 + LEVEL / 2, freedom))

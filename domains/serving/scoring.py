"""How sure a score is, and whether two scores differ: arithmetic on the outcomes of items.

A score's unit is an item of the evaluation set. Repeats of an item are averaged first, never
pooled: ten answers to one question say little about the other questions. The intervals are the
engine's (`benchwright.judgement.statistics`), so that a report and a comparison never disagree.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean

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
        items: Number of items that both answered.
        only_baseline, only_treatment: Number of items that one of the two answered alone.
        gained, lost: Items whose mean outcome rose, and fell.
        differs: Whether a difference may be claimed: the interval excludes zero.
        method: How the interval was made.
    """

    difference: float | None
    low: float | None
    high: float | None
    items: int
    only_baseline: int
    only_treatment: int
    gained: int
    lost: int
    differs: bool
    method: str


def score(outcomes: Outcomes) -> Score:
    """The mean outcome and its interval.

    One 0/1 outcome an item: Wilson, which is right near 0 and 1 and never has zero width.
    Otherwise the items are the clusters: Student's t over the items' means, and where those don't
    vary at all, Wilson over the number of items (an interval of zero width would claim certainty).
    A graded outcome without any spread: unknown.
    """
    from benchwright.judgement.statistics import mean_interval, wilson

    means = [fmean(values) for values in outcomes.values() if values]
    flat = [value for values in outcomes.values() for value in values]
    n, samples = len(means), len(flat)
    if n == 0:
        return Score(None, None, None, 0, 0, None, "no item")
    binary = all(value in (0, 1) for value in flat)
    correct = round(sum(flat)) if binary else None
    value = fmean(means)
    if binary and (samples == n or len(set(means)) == 1):
        low, high = wilson(value, n)
        method = "Wilson" if samples == n else "Wilson over items"
        return Score(value, low, high, n, samples, correct, method)
    if len(set(means)) == 1:
        return Score(value, None, None, n, samples, correct, "unknown: no spread over items")
    low, high = mean_interval(means)
    return Score(value, max(low, 0.0), min(high, 1.0), n, samples, correct, "t over items")


def paired_difference(baseline: Outcomes, treatment: Outcomes) -> PairedDifference:
    """Judge a change by the items that both answered; see `statistics.paired_share`."""
    from benchwright.judgement.statistics import LEVEL, paired_share

    common = [item for item in baseline if baseline[item] and treatment.get(item)]
    before = [fmean(baseline[item]) for item in common]
    after = [fmean(treatment[item]) for item in common]
    alone = {
        "only_baseline": sum(1 for item in baseline if not treatment.get(item)),
        "only_treatment": sum(1 for item in treatment if not baseline.get(item)),
    }
    if not common:
        return PairedDifference(
            None, None, None, 0, **alone, gained=0, lost=0, differs=False, method="no common item"
        )
    found = paired_share(before, after)
    low, high = found.ends(LEVEL)
    changes = [right - left for left, right in zip(before, after, strict=True)]
    return PairedDifference(
        difference=found.observed,
        low=low,
        high=high,
        items=len(common),
        **alone,
        gained=sum(change > 0 for change in changes),
        lost=sum(change < 0 for change in changes),
        differs=len(common) >= FEWEST_UNITS and (low > 0 or high < 0),
        method=found.method,
    )

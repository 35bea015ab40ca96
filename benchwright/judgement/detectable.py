"""Which effect a run can detect, and how many units the next one needs (gate 2, rule 5).

An effect is detected where its interval excludes "no change". The smallest one that is detected
with 80 % power is (t_level + t_power) standard errors: Bloom, Minimum Detectable Effects,
Evaluation Review 19(5), 1995. All on the working scale: log ratios, or differences.
"""

from __future__ import annotations

import math

from benchwright.judgement.statistics import LEVEL, t_quantile

POWER = 0.80
"""Chance with which a detectable effect is detected. The usual 80 % (Cohen, Statistical Power
Analysis for the Behavioral Sciences, 1988)."""

MOST_UNITS = 1_000_000
"""Numbers of units beyond this are not said: nobody runs them."""


def detectable(error: float, freedom: float, level: float = LEVEL) -> float:
    """The smallest effect that is told from none with 80 % power.

    Args:
        error: Standard error of the effect.
        freedom: Its degrees of freedom.
        level: Confidence of the interval.
    """
    return (t_quantile(freedom, 0.5 + level / 2) + t_quantile(freedom, POWER)) * error


def units_needed(spread: float, target: float, level: float = LEVEL) -> int | None:
    """How many pairs tell an effect from none with 80 % power.

    Args:
        spread: Standard deviation of the effect between pairs.
        target: The effect looked for; positive.
        level: Confidence of the interval.

    Returns:
        2 or more; None where it takes more than `MOST_UNITS`, or the target is none.
    """

    def enough(units: int) -> bool:
        return detectable(spread / math.sqrt(units), units - 1, level) <= target

    if target <= 0 or not enough(MOST_UNITS):
        return None
    few, many = 1, 2
    while not enough(many):
        few, many = many, 2 * many
    while many - few > 1:
        middle = (few + many) // 2
        few, many = (few, middle) if enough(middle) else (middle, many)
    return min(many, MOST_UNITS)

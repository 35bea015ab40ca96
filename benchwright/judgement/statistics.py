"""The arithmetic of a judgement: estimates of an effect, and their intervals. Pure functions.

The interval of a ratio or a difference is Student's t on what was paired: the logarithms of the
ratios, or the differences, of the blocks. Both arms of a block are drawn alike, so these paired
values are close to symmetric about the effect whatever the noise looks like, and the t interval
keeps its 95 % (benchmarks/belief.py measures it for normal, lognormal, heavy-tailed and bimodal
noise). Where one unit in ten is an outlier and there are five, it is too wide rather than too
narrow: it then covers 98 %.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

LEVEL = 0.95
"""Confidence of an interval, and of a whole family of them (gate 2, rule 3)."""

NO_SPREAD = 1e-9
"""Below this relative spread, values are taken as constant: what is left is rounding. No clock
resolves a part in 10^9 of what it times."""


@lru_cache(maxsize=4096)
def t_quantile(freedom: float, probability: float) -> float:
    """Quantile of Student's t with `freedom` degrees; of the normal where that is infinite."""
    from scipy.special import ndtri, stdtrit

    if math.isinf(freedom):
        return float(ndtri(probability))
    return float(stdtrit(freedom, probability))


def mean(values: Sequence[float]) -> float:
    """Arithmetic mean of at least one finite value, without overflow on the way."""
    scale = max(abs(value) for value in values) or 1.0
    return math.fsum(value / scale for value in values) / len(values) * scale


def deviation(values: Sequence[float]) -> float:
    """Standard deviation (n - 1) of at least two finite values, without overflow on the way.

    Returns:
        The deviation; infinite where it doesn't fit a float.
    """
    scale = max(abs(value) for value in values) or 1.0
    scaled = [value / scale for value in values]
    centre = math.fsum(scaled) / len(scaled)
    squares = math.fsum((value - centre) ** 2 for value in scaled)
    return math.sqrt(squares / (len(scaled) - 1)) * scale


def median(values: Sequence[float]) -> float:
    """Median of at least one finite value."""
    ordered = sorted(values)
    middle = len(ordered) // 2
    if len(ordered) % 2:
        return ordered[middle]
    low, high = ordered[middle - 1], ordered[middle]
    return low + (high - low) / 2 if low * high > 0 else (low + high) / 2


def finite(value: float) -> float | None:
    """The value, or None where it is not a finite number."""
    return value if math.isfinite(value) else None


def exp(value: float) -> float:
    """`math.exp`, infinite instead of an error where it doesn't fit a float."""
    try:
        return math.exp(value)
    except OverflowError:
        return math.inf


@dataclass(frozen=True, slots=True)
class Estimate:
    """An effect with its uncertainty, on the scale it was worked out on.

    Attributes:
        observed: The effect: mean log ratio, or mean difference, treatment against baseline.
        centre: Middle of the interval: the same, but for the interval of shares.
        error: Its standard error; 0 where the units have no spread.
        freedom: Degrees of freedom of `error`; infinite for a normal interval.
        units: Pairs that it stands on; the smaller arm's units where they are not paired.
        logarithmic: Whether the scale is that of log ratios.
        constant: Whether the units show no spread beyond rounding, so that `error` says nothing.
        method: How it was made, in a few words.
    """

    observed: float
    centre: float
    error: float
    freedom: float
    units: int
    logarithmic: bool
    constant: bool
    method: str

    @property
    def effect(self) -> float | None:
        """The ratio or the difference; None where it doesn't fit a float."""
        return self.to_effect(self.observed)

    def to_effect(self, value: float) -> float | None:
        """A point of the working scale as ratio or difference; None where it fits no float."""
        return finite(exp(value) if self.logarithmic else value)

    def half_width(self, level: float) -> float:
        """Half of the interval's width on the working scale."""
        return t_quantile(self.freedom, 0.5 + level / 2) * self.error

    def ends(self, level: float) -> tuple[float, float]:
        """The interval on the working scale."""
        half = self.half_width(level)
        return self.centre - half, self.centre + half

    @property
    def spread(self) -> float:
        """Standard deviation of the effect between pairs: the error that a single one has."""
        return self.error * math.sqrt(self.units)


def _paired(gaps: Sequence[float], size: float, logarithmic: bool, method: str) -> Estimate | None:
    """Student's t on one value for each pair; `size` is what their spread is relative to."""
    centre, spread = mean(gaps), deviation(gaps)
    if not (math.isfinite(centre) and math.isfinite(spread)):
        return None
    return Estimate(
        observed=centre,
        centre=centre,
        error=spread / math.sqrt(len(gaps)),
        freedom=len(gaps) - 1,
        units=len(gaps),
        logarithmic=logarithmic,
        constant=spread <= NO_SPREAD * size,
        method=method,
    )


def _size(*arms: Sequence[float]) -> float:
    """The largest magnitude in the arms: what a difference's rounding is relative to."""
    return max((abs(value) for arm in arms for value in arm), default=0.0)


def paired_ratio(baseline: Sequence[float], treatment: Sequence[float]) -> Estimate | None:
    """The ratio treatment / baseline of pairs, as geometric mean with a t interval on logs.

    Args:
        baseline, treatment: Positive values, of the same length of 2 or more; pair i is
            (baseline[i], treatment[i]).
    """
    logs = [math.log(t) - math.log(b) for b, t in zip(baseline, treatment, strict=True)]
    return _paired(logs, 1.0, True, "t interval on paired log ratios")


def paired_difference(baseline: Sequence[float], treatment: Sequence[float]) -> Estimate | None:
    """The difference treatment - baseline of pairs, with a t interval.

    Args:
        baseline, treatment: Finite values, of the same length of 2 or more.

    Returns:
        The estimate; None where a difference doesn't fit a float.
    """
    gaps = [t - b for b, t in zip(baseline, treatment, strict=True)]
    if not all(math.isfinite(gap) for gap in gaps):
        return None
    return _paired(gaps, _size(baseline, treatment), False, "t interval on paired differences")


def paired_share(baseline: Sequence[float], treatment: Sequence[float]) -> Estimate:
    """The difference of two shares over the same items, each item's outcome in [0, 1].

    The adjusted Wald interval of Bonett and Price (Adjusted Wald Confidence Interval for a
    Difference of Binomial Proportions Based on Paired Data, Journal of Educational and
    Behavioral Statistics 37(4), 2012): one pair more that only the treatment got right, and one
    that only the baseline did, then the normal interval. It stays honest where no item, or all,
    changed. An item that was answered several times enters once, with its mean (a cluster).

    Args:
        baseline, treatment: Outcome of each item, of the same length of 1 or more.
    """
    gaps = [t - b for b, t in zip(baseline, treatment, strict=True)]
    count = len(gaps) + 2
    total = math.fsum(gaps)
    squares = math.fsum(gap * gap for gap in gaps) + 2.0
    variance = squares / count - (total / count) ** 2
    return Estimate(
        observed=total / len(gaps),
        centre=total / count,
        error=math.sqrt(max(variance, 0.0) / count),
        freedom=math.inf,
        units=len(gaps),
        logarithmic=False,
        constant=False,
        method="Bonett-Price interval on items answered by both",
    )


def _unpaired(
    baseline: Sequence[float], treatment: Sequence[float], size: float, logarithmic: bool, name: str
) -> Estimate | None:
    """Welch's interval; its degrees of freedom after Satterthwaite."""
    spreads = [deviation(baseline), deviation(treatment)]
    counts = [len(baseline), len(treatment)]
    centre = mean(treatment) - mean(baseline)
    scale = max(spreads)
    if not (math.isfinite(centre) and math.isfinite(scale)):
        return None
    shares = [
        (spread / scale) ** 2 / count if scale else 0.0
        for spread, count in zip(spreads, counts, strict=True)
    ]
    total = math.fsum(shares)
    below = math.fsum(s * s / (n - 1) for s, n in zip(shares, counts, strict=True))
    return Estimate(
        observed=centre,
        centre=centre,
        error=scale * math.sqrt(total),
        freedom=total * total / below if below else min(counts) - 1,
        units=min(counts),
        logarithmic=logarithmic,
        constant=scale <= NO_SPREAD * size,
        method=name,
    )


def unpaired_ratio(baseline: Sequence[float], treatment: Sequence[float]) -> Estimate | None:
    """The ratio of two arms that were not interleaved: Welch's t interval on logs.

    Args:
        baseline, treatment: Positive values, 2 or more each.
    """
    logs = [[math.log(value) for value in arm] for arm in (baseline, treatment)]
    return _unpaired(logs[0], logs[1], 1.0, True, "Welch interval on log values, not paired")


def unpaired_difference(baseline: Sequence[float], treatment: Sequence[float]) -> Estimate | None:
    """The difference of two arms that were not interleaved: Welch's t interval.

    Args:
        baseline, treatment: Finite values, 2 or more each.

    Returns:
        The estimate; None where the difference doesn't fit a float.
    """
    size = _size(baseline, treatment)
    return _unpaired(baseline, treatment, size, False, "Welch interval, not paired")


def mean_interval(values: Sequence[float], level: float = LEVEL) -> tuple[float, float]:
    """Student's t interval of the mean of 2 or more values; a point where they are constant."""
    centre, spread = mean(values), deviation(values)
    if spread <= NO_SPREAD * _size(values):
        return centre, centre
    half = t_quantile(len(values) - 1, 0.5 + level / 2) * spread / math.sqrt(len(values))
    return centre - half, centre + half


def wilson(share: float, items: int, level: float = LEVEL) -> tuple[float, float]:
    """Wilson's score interval of a proportion.

    Wilson, Probable Inference, the Law of Succession, and Statistical Inference, JASA 22, 1927.

    Args:
        share: Observed share in [0, 1]; the mean of the items' outcomes.
        items: Number of items, 1 or more.
        level: Confidence.
    """
    z = t_quantile(math.inf, 0.5 + level / 2)
    shrink = 1 + z * z / items
    centre = (share + z * z / (2 * items)) / shrink
    inside = max(share * (1 - share), 0.0) / items + z * z / (4 * items * items)
    half = z * math.sqrt(inside) / shrink
    return max(centre - half, 0.0), min(centre + half, 1.0)

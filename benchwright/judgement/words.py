"""How numbers of a judgement are said in a sentence."""

from __future__ import annotations

from benchwright.judgement.verdict import Interval
from benchwright.spec.model import Metric, Scale

TIMES_FROM = 2.0
"""From this ratio on a rise is said as "2.3 times", below it in per cent."""


def number(value: float, digits: int = 4) -> str:
    """A number with so many significant digits: `0.9174`, `12.5`, `3e+09`."""
    text = f"{value:.{digits}g}"
    return "0" if text == "-0" else text


def percent(share: float, digits: int = 3) -> str:
    """A share as per cent: `0.083` is `8.3 %`."""
    return f"{number(100 * share, digits)} %"


def amount(metric: Metric, value: float) -> str:
    """A value of the metric with its unit."""
    return f"{number(value)} {metric.unit}".rstrip()


def size(metric: Metric, value: float) -> str:
    """The size of an effect in the metric's terms: per cent for a ratio, with unit otherwise."""
    return percent(value) if metric.scale is Scale.RATIO else amount(metric, value)


def change(metric: Metric, effect: float) -> str:
    """An effect as a change: `8.3 % lower`, `2.3 times as high`, `0.02 higher`, `unchanged`."""
    if metric.scale is Scale.RATIO:
        if effect == 1:
            return "unchanged"
        if effect >= TIMES_FROM:
            return f"{number(effect, 3)} times as high"
        return f"{percent(abs(effect - 1))} {'lower' if effect < 1 else 'higher'}"
    if effect == 0:
        return "unchanged"
    return f"{amount(metric, abs(effect))} {'lower' if effect < 0 else 'higher'}"


def level(confidence: float) -> str:
    """A confidence as per cent: `95 %`, `97.5 %`."""
    return f"{number(100 * confidence)} %"


def span(interval: Interval) -> str:
    """An interval: `95 % interval 0.905 to 0.929`."""
    low = "unknown" if interval.low is None else number(interval.low)
    high = "unknown" if interval.high is None else number(interval.high)
    return f"{level(interval.level)} interval {low} to {high}"


def be(many: int) -> str:
    """`is` or `are`, after a number of things."""
    return "is" if many == 1 else "are"


def count(many: int, noun: str, plural: str = "") -> str:
    """A number with its noun: `1 replicate`, `3 replicates`."""
    return f"{many} {noun if many == 1 else plural or noun + 's'}"


def listed(names: list[str] | tuple[str, ...], limit: int = 5) -> str:
    """Names in a sentence, the first few of many: `a, b and 3 more`."""
    if len(names) > limit:
        return f"{', '.join(names[:limit])} and {len(names) - limit} more"
    if len(names) > 1:
        return f"{', '.join(names[:-1])} and {names[-1]}"
    return "".join(names)

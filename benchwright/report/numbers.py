"""How a report writes numbers: with their unit, with sensible digits, and `unknown` for none."""

from __future__ import annotations

import math

from benchwright.judgement.verdict import Interval
from benchwright.judgement.words import TIMES_FROM, number
from benchwright.spec.model import Metric, Scale

UNKNOWN = "unknown"
"""What stands where a number can't be given; never NaN, never an empty cell."""

_GROUPED_FROM = 1e4
_GROUPED_TO = 1e15
_MINUS = "\N{MINUS SIGN}"


def _known(value: float | None) -> bool:
    return value is not None and math.isfinite(value)


def figure(value: float | None, digits: int = 4) -> str:
    """A number with so many significant digits; large ones in full, in groups of three."""
    if value is None or not math.isfinite(value):
        return UNKNOWN
    if _GROUPED_FROM <= abs(value) < _GROUPED_TO:
        return _signed(f"{value:,.0f}")
    return _signed(number(value, digits))


def quantity(value: float | None, unit: str, digits: int = 4) -> str:
    """A number with its unit: `11.82 ms`."""
    text = figure(value, digits)
    return text if text == UNKNOWN or not unit else f"{text} {unit}"


def share(value: float | None, digits: int = 3) -> str:
    """A share as per cent: `2.9 %`."""
    text = figure(None if value is None else 100 * value, digits)
    return text if text == UNKNOWN else f"{text} %"


def spread(value: float | None, metric: Metric) -> str:
    """A spread: per cent of the mean for a ratio, in the metric's unit otherwise."""
    return share(value) if metric.scale is Scale.RATIO else quantity(value, metric.unit, 3)


def effect(value: float | None, metric: Metric) -> str:
    """An effect as a signed change: `-89.8 %`, `x2.31`, `+0.02`; `0 %` where there is none."""
    if value is None or not math.isfinite(value):
        return UNKNOWN
    if metric.scale is not Scale.RATIO:
        return f"{_plus(value)}{quantity(value, metric.unit)}"
    if value >= TIMES_FROM:
        return f"×{figure(value, 3)}"
    return f"{_plus(value - 1)}{share(value - 1)}"


def size(value: float | None, metric: Metric) -> str:
    """The size of an effect in the metric's terms, without a sign."""
    return share(value) if metric.scale is Scale.RATIO else quantity(value, metric.unit)


def interval(given: Interval, metric: Metric) -> str:
    """An interval of effects: `-90.1 % to -89.5 %`; `unknown` where neither end is known."""
    if not _known(given.low) and not _known(given.high):
        return UNKNOWN
    return f"{effect(given.low, metric)} to {effect(given.high, metric)}"


def level(given: Interval) -> str:
    """An interval's confidence: `95 %`."""
    return f"{number(100 * given.level)} %"


def duration(seconds: float | None) -> str:
    """Seconds for people: `0.4 s`, `2 min 10 s`, `1 h 5 min`."""
    if seconds is None or not math.isfinite(seconds) or seconds < 0:
        return UNKNOWN
    if seconds < 60:
        return f"{number(seconds, 3)} s"
    whole = round(seconds)
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s"
    return f"{whole // 3600} h {whole % 3600 // 60} min"


def _plus(value: float) -> str:
    return "+" if value > 0 else ""


def _signed(text: str) -> str:
    return text.replace("-", _MINUS, 1) if text.startswith("-") else text

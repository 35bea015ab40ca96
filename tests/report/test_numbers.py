"""Numbers for people: a unit, sensible digits, and a word where there is none."""

from __future__ import annotations

import math

import pytest

from benchwright.judgement.verdict import Interval
from benchwright.report import numbers
from benchwright.spec.model import Metric, Scale

RATIO = Metric(name="p50_ms", unit="ms")
SHARE = Metric(name="accuracy", scale=Scale.PROPORTION)
GAP = Metric(name="drift", unit="mV", scale=Scale.DIFFERENCE)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (11.9342, "11.93 ms"),
        (0.00012345, "0.0001234 ms"),
        (-3.0, "−3 ms"),
        (0.0, "0 ms"),
        (-0.0, "0 ms"),
        (12345.678, "12,346 ms"),
        (9876543.0, "9,876,543 ms"),
        (1e300, "1e+300 ms"),
    ],
)
def test_a_quantity_has_its_unit_and_four_digits(value: float, text: str) -> None:
    assert numbers.quantity(value, "ms") == text


@pytest.mark.parametrize("value", [None, math.nan, math.inf, -math.inf])
def test_what_is_no_number_is_the_word_unknown(value: float | None) -> None:
    assert numbers.quantity(value, "ms") == "unknown"
    assert numbers.share(value) == "unknown"
    assert numbers.effect(value, RATIO) == "unknown"
    assert numbers.effect(value, GAP) == "unknown"
    assert numbers.spread(value, RATIO) == "unknown"
    assert numbers.duration(value) == "unknown"
    assert numbers.interval(Interval(value, value), RATIO) == "unknown"


@pytest.mark.parametrize(
    ("metric", "effect", "text"),
    [
        (RATIO, 0.102, "−89.8 %"),
        (RATIO, 1.0, "0 %"),
        (RATIO, 1.034, "+3.4 %"),
        (RATIO, 2.31, "×2.31"),
        (SHARE, 0.021, "+0.021"),
        (GAP, -0.5, "−0.5 mV"),
        (GAP, 0.0, "0 mV"),
    ],
)
def test_an_effect_is_a_signed_change(metric: Metric, effect: float, text: str) -> None:
    assert numbers.effect(effect, metric) == text


def test_an_interval_that_is_open_at_one_end_says_so() -> None:
    assert numbers.interval(Interval(0.9, None), RATIO) == "−10 % to unknown"


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.41, "0.41 s"),
        (59.0, "59 s"),
        (130.0, "2 min 10 s"),
        (3900.0, "1 h 5 min"),
        (-1, "unknown"),
    ],
)
def test_a_duration_is_said_in_the_units_of_a_clock(seconds: float, text: str) -> None:
    assert numbers.duration(seconds) == text

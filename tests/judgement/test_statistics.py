"""The arithmetic, held against scipy and against published figures."""

from __future__ import annotations

import math
import random

import pytest
from scipy import stats

from benchwright.judgement import statistics
from benchwright.judgement.detectable import detectable, units_needed

DRAW = random.Random(12)
BEFORE = [DRAW.lognormvariate(0, 0.2) for _ in range(12)]
AFTER = [DRAW.lognormvariate(0.1, 0.2) for _ in range(9)]


def test_a_paired_ratio_is_scipys_t_interval_of_the_logs() -> None:
    pairs = list(zip(BEFORE, AFTER, strict=False))
    estimate = statistics.paired_ratio([b for b, _ in pairs], [a for _, a in pairs])
    assert estimate is not None
    logs = [math.log(a / b) for b, a in pairs]
    expected = stats.ttest_1samp(logs, 0).confidence_interval(0.95)
    assert estimate.ends(0.95) == pytest.approx((expected.low, expected.high))


def test_an_unpaired_difference_is_scipys_welch_interval() -> None:
    estimate = statistics.unpaired_difference(BEFORE, AFTER)
    assert estimate is not None
    expected = stats.ttest_ind(AFTER, BEFORE, equal_var=False).confidence_interval(0.99)
    assert estimate.ends(0.99) == pytest.approx((expected.low, expected.high))


def test_wilsons_interval_is_scipys() -> None:
    for right, items in ((0, 10), (7, 10), (1000, 1319), (5, 5)):
        expected = stats.binomtest(right, items).proportion_ci(0.95, method="wilson")
        assert statistics.wilson(right / items, items) == pytest.approx(
            (expected.low, expected.high)
        )


def test_paired_shares_have_the_adjusted_wald_interval() -> None:
    # 12 items only the first got right, 1 only the second, of 15; worked out by hand from
    # the formula: ((1 + 1) - (12 + 1)) / 17 +- z * sqrt((2 + 13) / 17 - (11 / 17)^2) / sqrt(17).
    first = [1.0] * 12 + [0.0] * 3
    second = [0.0] * 12 + [1.0] + [0.0] * 2
    estimate = statistics.paired_share(first, second)
    half = 1.959964 * math.sqrt((15 / 17 - (11 / 17) ** 2) / 17)
    assert estimate.ends(0.95) == pytest.approx((-11 / 17 - half, -11 / 17 + half), abs=1e-6)
    assert estimate.effect == pytest.approx(-11 / 15)


def test_paired_shares_are_covered_also_where_few_items_change() -> None:
    # 2,000 draws scatter by 0.5 points. Where next to nothing changes the interval is too wide.
    draw = random.Random(9)
    for rates, most in (((0.02, 0.02), 0.985), ((0.10, 0.05), 0.97), ((0.01, 0.0), 1.0)):
        held = 0
        for _ in range(2000):
            gaps = [_gap(draw.random(), *rates) for _ in range(200)]
            before = [0.0 if gap > 0 else 1.0 for gap in gaps]
            after = [b + gap for b, gap in zip(before, gaps, strict=True)]
            low, high = statistics.paired_share(before, after).ends(0.95)
            held += low <= rates[0] - rates[1] <= high
        assert 0.935 <= held / 2000 <= most, rates


def _gap(uniform: float, gain: float, loss: float) -> float:
    return 1.0 if uniform < gain else -1.0 if uniform > 1 - loss else 0.0


def test_sums_do_not_overflow_on_the_way() -> None:
    huge = [1.7e308] * 4
    assert statistics.mean(huge) == pytest.approx(1.7e308)
    assert statistics.deviation(huge) == 0
    assert statistics.median([-1.7e308, 1.7e308]) == 0
    assert statistics.median([1.6e308, 1.7e308]) == pytest.approx(1.65e308)
    assert statistics.paired_difference([-1.7e308] * 2, [1.7e308] * 2) is None


def test_the_units_needed_are_the_fewest_that_detect() -> None:
    for spread, target in ((0.03, 0.01), (0.5, 0.01), (0.001, 0.01), (1.0, 2.0)):
        units = units_needed(spread, target)
        assert units is not None

        def seen(count: int, spread: float = spread) -> float:
            return detectable(spread / math.sqrt(count), count - 1)

        assert seen(units) <= target
        assert units == 2 or seen(units - 1) > target
    assert units_needed(1.0, 1e-6) is None
    assert units_needed(1.0, 0.0) is None


def test_a_detectable_effect_is_detected_four_times_in_five() -> None:
    # 2,000 draws: 80 % within 4 standard errors (3.6 points); the formula is an approximation.
    draw = random.Random(10)
    effect = detectable(0.02 * math.sqrt(2 / 10), 9)
    found = 0
    for _ in range(2000):
        gaps = [draw.gauss(effect, 0.02 * math.sqrt(2)) for _ in range(10)]
        low, _ = statistics.mean_interval(gaps)
        found += low > 0
    assert 0.76 <= found / 2000 <= 0.84

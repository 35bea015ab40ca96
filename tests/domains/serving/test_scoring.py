"""How sure a score is, and whether two builds differ: on the items that both answered."""

from __future__ import annotations

import numpy as np
import pytest

from domains.serving.scoring import Outcomes, paired_difference, score

ITEMS = 1319
"""Size of GSM8K's test set."""


def outcomes(values: object) -> Outcomes:
    return {f"q{index}": (float(value),) for index, value in enumerate(values)}  # type: ignore[arg-type]


def build(draw: np.random.Generator, first: np.ndarray, gained: float, lost: float) -> np.ndarray:
    """A second build: each wrong item of the first turns right, each right one wrong, at a rate."""
    change = draw.random(first.size)
    return np.where(first == 1, (change >= lost).astype(int), (change < gained).astype(int))


def pair(seed: int, difference: float) -> tuple[np.ndarray, np.ndarray]:
    """Two builds near 60 % right that disagree on about one item in ten."""
    draw = np.random.default_rng(seed)
    first = (draw.random(ITEMS) < 0.60).astype(int)
    # Of all items a share of 5 % + difference/2 is gained, and 5 % - difference/2 lost.
    second = build(draw, first, (0.05 + difference / 2) / 0.40, (0.05 - difference / 2) / 0.60)
    return first, second


def test_a_score_has_wilsons_interval_and_never_zero_width() -> None:
    found = score(outcomes([1] * 8 + [0] * 2))
    assert (found.value, found.items, found.correct) == (0.8, 10, 8)
    assert found.low == pytest.approx(0.4902, abs=1e-4)
    assert found.high == pytest.approx(0.9433, abs=1e-4)
    none = score(outcomes([0] * 5))
    assert none.low == 0.0
    assert none.high is not None
    assert none.high > 0.4


def test_no_item_and_a_graded_outcome_without_spread_have_no_interval() -> None:
    assert score({}).value is None
    assert score({}).low is None
    graded = score(outcomes([0.5, 0.5]))
    assert graded.value == 0.5
    assert graded.low is None
    assert graded.method.startswith("unknown")


def test_repeats_of_an_item_are_one_unit_and_not_several() -> None:
    once = {f"q{n}": (float(n % 2),) for n in range(20)}
    repeated = {item: values * 8 for item, values in once.items()}
    single, several = score(once), score(repeated)
    assert several.items == 20
    assert several.samples == 160
    assert single.low is not None
    assert several.low is not None
    # Eight copies of each answer add nothing: the interval must not shrink.
    assert several.low <= single.low


def test_a_difference_of_three_points_is_told_apart_where_the_intervals_overlap() -> None:
    told = overlapping = 0
    for seed in range(100):
        first, second = pair(seed, 0.03)
        left, right = score(outcomes(first)), score(outcomes(second))
        assert left.high is not None
        assert right.low is not None
        overlap = left.high > right.low
        overlapping += overlap
        found = paired_difference(outcomes(first), outcomes(second))
        told += overlap and found.differs and (found.difference or 0) > 0
    assert overlapping >= 95
    assert told >= 85


def test_no_difference_is_called_one_in_at_most_five_percent() -> None:
    runs = 600
    false = sum(
        paired_difference(*(outcomes(side) for side in pair(10_000 + seed, 0.0))).differs
        for seed in range(runs)
    )
    # 5 % of them, and three standard errors of that count.
    assert false <= 50 + 3 * (runs * 0.05 * 0.95) ** 0.5


def test_items_that_one_side_alone_answered_are_counted_and_left_out() -> None:
    left = {"a": (1.0,), "b": (0.0,), "c": (1.0,)}
    right = {"b": (1.0,), "c": (1.0,), "d": (0.0,)}
    found = paired_difference(left, right)
    assert (found.items, found.only_baseline, found.only_treatment) == (2, 1, 1)
    assert (found.gained, found.lost) == (1, 0)
    assert not found.differs


def test_items_of_another_version_of_a_set_have_other_ids_and_nothing_is_compared() -> None:
    found = paired_difference({"main/0#aaaa": (1.0,)}, {"main/0#bbbb": (1.0,)})
    assert found.items == 0
    assert found.difference is None
    assert not found.differs

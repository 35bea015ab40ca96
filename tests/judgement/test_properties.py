"""What must hold for any numbers at all."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import asdict

from hypothesis import assume, example, given, settings
from hypothesis import strategies as st

from benchwright.judgement.decide import contrast, decide
from benchwright.judgement.judge import judge_run
from benchwright.judgement.units import UnitKind, Units
from benchwright.judgement.verdict import Decision, Verdict
from benchwright.spec.model import Direction, Metric, Scale
from tests.judgement.views import P50, config, view

FINITE = st.floats(allow_nan=False, allow_infinity=False)
ORDINARY = st.floats(min_value=0.01, max_value=1000)
PAIRS = st.lists(st.tuples(ORDINARY, ORDINARY), min_size=1, max_size=15)
SCALES = st.sampled_from(list(Scale))
DIRECTIONS = st.sampled_from(list(Direction))

OPPOSITE = {
    Decision.BETTER: Decision.WORSE,
    Decision.WORSE: Decision.BETTER,
    Decision.EQUIVALENT: Decision.EQUIVALENT,
    Decision.INCONCLUSIVE: Decision.INCONCLUSIVE,
    Decision.NO_VERDICT: Decision.NO_VERDICT,
}
LEANING = {"better": "worse", "worse": "better", "": ""}


def metric(scale: Scale = Scale.RATIO, direction: Direction = Direction.LOWER) -> Metric:
    return Metric(name="p50_ms", scale=scale, direction=direction)


def verdict(
    one: Metric,
    baseline: Sequence[float],
    treatment: Sequence[float],
    kind: UnitKind = UnitKind.PROCESS,
    interleaved: bool = True,
) -> Verdict:
    arms = [
        Units(name, one.name, kind, dict(enumerate(values)))
        for name, values in (("off", baseline), ("on", treatment))
    ]
    return decide([contrast(one, *arms, interleaved=interleaved)])[0]


def split(pairs: Sequence[tuple[float, float]]) -> tuple[list[float], list[float]]:
    return [before for before, _ in pairs], [after for _, after in pairs]


@given(PAIRS, SCALES, DIRECTIONS, st.booleans())
@settings(max_examples=150, deadline=None)
def test_swapping_the_arms_swaps_the_decision(
    pairs: list[tuple[float, float]], scale: Scale, direction: Direction, interleaved: bool
) -> None:
    before, after = split(pairs)
    one = metric(scale, direction)
    there = verdict(one, before, after, interleaved=interleaved)
    back = verdict(one, after, before, interleaved=interleaved)
    assert back.decision is OPPOSITE[there.decision]
    assert back.leans == LEANING[there.leans]
    assert back.replicates_needed == there.replicates_needed


@given(PAIRS, st.integers(min_value=-20, max_value=20))
@settings(max_examples=100, deadline=None)
def test_another_unit_of_the_values_changes_no_ratio(
    pairs: list[tuple[float, float]], power: int
) -> None:
    before, after = split(pairs)
    factor = 10.0**power
    there = verdict(metric(), before, after)
    assume(not near_an_edge(there))
    scaled = verdict(metric(), [factor * v for v in before], [factor * v for v in after])
    assert scaled.decision is there.decision
    assert scaled.effect is None or math.isclose(scaled.effect, there.effect or 0, rel_tol=1e-9)


def near_an_edge(said: Verdict) -> bool:
    """Whether rounding could carry an end of the interval, or a spread, across a limit."""
    ends = [end for end in (said.interval.low, said.interval.high, said.effect) if end]
    edges = (1 / 1.01, 1.0, 1.01)
    return any(math.isclose(end, edge, rel_tol=1e-9) for end in ends for edge in edges)


@given(PAIRS, st.randoms(use_true_random=False), SCALES)
@settings(max_examples=100, deadline=None)
def test_the_order_of_the_blocks_does_not_matter(
    pairs: list[tuple[float, float]], shuffle: object, scale: Scale
) -> None:
    shuffled = list(pairs)
    shuffle.shuffle(shuffled)  # type: ignore[attr-defined]
    there, again = (verdict(metric(scale), *split(one)) for one in (pairs, shuffled))
    assert again.decision is there.decision
    assert again.interval == there.interval


@given(PAIRS, DIRECTIONS)
@settings(max_examples=60, deadline=None)
def test_the_other_direction_turns_better_into_worse(
    pairs: list[tuple[float, float]], direction: Direction
) -> None:
    other = Direction.HIGHER if direction is Direction.LOWER else Direction.LOWER
    there = verdict(metric(direction=direction), *split(pairs))
    back = verdict(metric(direction=other), *split(pairs))
    assert back.decision is OPPOSITE[there.decision]


@given(
    st.lists(FINITE, min_size=1, max_size=14),
    st.lists(FINITE, min_size=1, max_size=14),
    SCALES,
    DIRECTIONS,
    st.booleans(),
)
@example([0.0], [0.0] * 5 + [1.0] * 4 + [1.3e308], Scale.RATIO, Direction.LOWER, False)
@settings(max_examples=120, deadline=None)
def test_any_finite_numbers_give_a_word_and_no_nan(
    before: list[float], after: list[float], scale: Scale, direction: Direction, exact: bool
) -> None:
    one = P50.model_copy(update={"scale": scale, "direction": direction, "exact": exact})
    judgement = judge_run(view({"off": before, "on": after}, config(metrics=[one], replicates=14)))
    assert judgement.verdicts[0].decision in Decision
    assert judgement.tag_reason
    json.dumps(asdict(judgement), allow_nan=False, default=str)
    for kind in UnitKind:
        said = verdict(one, before, after, kind, interleaved=False)
        json.dumps(asdict(said), allow_nan=False, default=str)


@given(st.lists(st.sampled_from([0.0, 1.0, 2.0]), min_size=5, max_size=14), SCALES)
@settings(max_examples=100, deadline=None)
def test_a_series_against_itself_is_never_a_win(values: list[float], scale: Scale) -> None:
    for interleaved in (True, False):
        said = verdict(metric(scale), values, values, interleaved=interleaved)
        assert said.decision not in (Decision.BETTER, Decision.WORSE)


@given(PAIRS)
@settings(max_examples=60, deadline=None)
def test_more_comparisons_never_make_a_decision_out_of_none(
    pairs: list[tuple[float, float]],
) -> None:
    before, after = split(pairs)
    arms = [
        Units(name, "p50_ms", UnitKind.PROCESS, dict(enumerate(values)))
        for name, values in (("off", before), ("on", after))
    ]
    one = contrast(metric(), *arms)
    alone, among = decide([one])[0], decide([one, one, one])[0]
    if alone.decision is Decision.INCONCLUSIVE:
        assert among.decision is Decision.INCONCLUSIVE

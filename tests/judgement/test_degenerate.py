"""Too few values, constants, zeros, ties: a word, never NaN, a crash, or a win by accident."""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Sequence
from dataclasses import asdict, replace

import pytest

from benchwright.judgement.judge import judge_run
from benchwright.judgement.verdict import Decision, Judgement, Tag
from benchwright.spec.model import Direction, Metric, Scale
from tests.judgement.views import P50, codes, config, view

DIFFERENCE = P50.model_copy(update={"scale": Scale.DIFFERENCE})
SHARE = Metric(name="p50_ms", scale=Scale.PROPORTION, direction=Direction.HIGHER)
EXACT = P50.model_copy(update={"exact": True})

SERIES: dict[str, tuple[float, ...]] = {
    "one": (3.0,),
    "two": (3.0, 4.0),
    "constant": (5.0,) * 8,
    "other constant": (4.0,) * 8,
    "zeros": (0.0,) * 8,
    "ones": (1.0,) * 8,
    "one zero": (0.0, *(5.0,) * 7),
    "two values": (1.0, 2.0) * 4,
    "negative": (-5.0, -3.0, -4.0, -5.0, -3.5, -4.5, -5.0, -3.0),
    "tiny": (5e-324,) * 8,
    "huge": (1.7e308,) * 8,
    "tiny and huge": (5e-324, 1.7e308) * 4,
    "varied": (1.0, 1.1, 0.9, 1.05, 0.95, 1.02, 0.98, 1.0),
}


def judge(before: Sequence[float], after: Sequence[float], metric: Metric = P50) -> Judgement:
    run = view({"off": before, "on": after}, config(metrics=[metric], replicates=8))
    return judge_run(run)


@pytest.mark.parametrize("metric", [P50, DIFFERENCE, SHARE, EXACT], ids=lambda m: f"{m.scale}")
def test_every_pair_of_degenerate_series_gets_a_word_and_finite_numbers(metric: Metric) -> None:
    for before, after in itertools.product(SERIES, SERIES):
        judgement = judge(SERIES[before], SERIES[after], metric)
        said = judgement.verdicts[0]
        assert said.decision in Decision
        assert said.reasons[0].endswith("."), (before, after)
        # Strict JSON has neither NaN nor infinities.
        json.dumps(asdict(judgement), allow_nan=False, default=str)


def test_no_replicate_at_all_is_exploratory_and_has_no_verdict() -> None:
    run = view({"off": (1.0,), "on": (1.0,)}, config(replicates=8))
    empty = judge_run(replace(run, samples=()))
    assert empty.verdicts[0].decision is Decision.NO_VERDICT
    assert empty.tag is Tag.EXPLORATORY


@pytest.mark.parametrize("count", [1, 2, 4])
def test_few_replicates_give_no_verdict_and_exploratory(count: int) -> None:
    judgement = judge(SERIES["varied"][:count], SERIES["constant"][:count])
    assert judgement.verdicts[0].decision is Decision.NO_VERDICT
    assert judgement.tag is Tag.EXPLORATORY


def test_equal_constants_are_equivalent_and_the_missing_spread_is_said() -> None:
    judgement = judge(SERIES["constant"], SERIES["constant"])
    assert judgement.verdicts[0].decision is Decision.EQUIVALENT
    assert "no-spread" in codes(judgement.findings)


def test_constants_that_differ_are_no_win_but_shown_with_the_way_they_lean() -> None:
    said = judge(SERIES["constant"], SERIES["other constant"]).verdicts[0]
    assert (said.decision, said.leans) == (Decision.INCONCLUSIVE, "better")
    assert said.effect == pytest.approx(0.8)
    assert "exact: true" in said.reasons[0]


def test_constants_of_an_exact_metric_decide() -> None:
    judgement = judge(SERIES["constant"], SERIES["other constant"], EXACT)
    said = judgement.verdicts[0]
    assert said.decision is Decision.BETTER
    assert said.interval.low == said.interval.high == said.effect
    assert "no-spread" not in codes(judgement.findings)


def test_an_exact_metric_that_varies_is_a_caveat() -> None:
    judgement = judge(SERIES["varied"], SERIES["constant"], EXACT)
    assert "not-exact" in codes(judgement.findings)


def test_rounding_is_no_spread() -> None:
    before = [0.1 + 0.2, 0.3, 0.1 + 0.2, 0.3, 0.3, 0.3, 0.3, 0.3]
    said = judge(before, [2 * value for value in before]).verdicts[0]
    assert said.decision is Decision.INCONCLUSIVE


def test_pairs_that_all_have_one_ratio_are_no_win() -> None:
    said = judge(SERIES["varied"], [0.5 * value for value in SERIES["varied"]]).verdicts[0]
    assert said.decision is Decision.INCONCLUSIVE


def test_a_constant_against_a_noisy_arm_decides_on_the_noise_there_is() -> None:
    said = judge((2.0,) * 8, SERIES["varied"]).verdicts[0]
    assert said.decision is Decision.BETTER


def test_all_zeros_are_equivalent_as_a_difference_and_have_no_ratio() -> None:
    assert judge(SERIES["zeros"], SERIES["zeros"], DIFFERENCE).verdicts[0].decision is (
        Decision.EQUIVALENT
    )
    assert judge(SERIES["zeros"], SERIES["zeros"]).verdicts[0].decision is Decision.NO_VERDICT


def test_unknown_figures_are_none_not_zero() -> None:
    judgement = judge(SERIES["one"], SERIES["one"])
    summary = judgement.summaries["balancing=on"]["p50_ms"]
    assert summary.spread is None
    assert judgement.verdicts[0].detectable is None
    assert not any(
        isinstance(value, float) and math.isnan(value) for value in asdict(summary).values()
    )

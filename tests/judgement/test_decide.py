"""The decision on one metric, read off its interval."""

from __future__ import annotations

import math
import random

import pytest

from benchwright.judgement.decide import MIN_UNITS, Contrast, contrast, decide
from benchwright.judgement.units import UnitKind, Units
from benchwright.judgement.verdict import Decision, Verdict
from benchwright.spec.model import Direction, Metric, Scale

TIME = Metric(name="p50_ms", unit="ms")
RATE = Metric(name="qps", unit="1/s", direction=Direction.HIGHER)
GAP = Metric(name="drift", unit="mm", scale=Scale.DIFFERENCE, min_effect=0.5)
NOISE = (1.0, 1.004, 0.996, 1.002, 0.998, 1.001, 0.999, 1.003, 0.997, 1.0)


def units(
    arm: str, values: list[float] | tuple[float, ...], kind: UnitKind = UnitKind.PROCESS
) -> Units:
    return Units(arm, "p50_ms", kind, dict(enumerate(values)))


def pairs(metric: Metric, baseline: list[float], treatment: list[float]) -> Contrast:
    return contrast(metric, units("off", baseline), units("on", treatment))


def verdict(metric: Metric, baseline: list[float], treatment: list[float]) -> Verdict:
    return decide([pairs(metric, baseline, treatment)])[0]


def noisy(level: float, shift: int = 0) -> list[float]:
    return [level * NOISE[(place + shift) % 10] for place in range(10)]


def test_gate_2_rule_3_the_decision_is_read_off_the_interval() -> None:
    for factor, expected in (
        (0.90, Decision.BETTER),
        (1.10, Decision.WORSE),
        (1.00, Decision.EQUIVALENT),
        (1.01, Decision.INCONCLUSIVE),
    ):
        said = verdict(TIME, noisy(10), noisy(10 * factor, 3))
        assert said.decision is expected
        low, high = said.interval.low, said.interval.high
        assert low is not None
        assert high is not None
        inside = low > 1 / 1.01 and high < 1.01
        beyond = high < 1 / 1.01 or low > 1.01
        assert (inside, beyond) == (
            expected is Decision.EQUIVALENT,
            expected in (Decision.BETTER, Decision.WORSE),
        )


def test_gate_2_rule_3_the_smallest_effect_that_matters_decides_not_zero() -> None:
    slightly = noisy(9.95, 3)
    assert verdict(TIME, noisy(10), slightly).decision is Decision.EQUIVALENT
    strict = TIME.model_copy(update={"min_effect": 0.0005})
    assert verdict(strict, noisy(10), slightly).decision is Decision.BETTER


def test_gate_2_rule_3_the_effect_is_paired_by_block() -> None:
    levels = [10, 20, 40, 80, 10, 20, 40, 80, 10, 20]
    before = [level * noise for level, noise in zip(levels, NOISE, strict=True)]
    after = [0.95 * level * noise for level, noise in zip(levels, NOISE[::-1], strict=True)]
    assert verdict(TIME, before, after).decision is Decision.BETTER
    unpaired = contrast(TIME, units("off", before), units("on", after), interleaved=False)
    assert decide([unpaired])[0].decision is Decision.INCONCLUSIVE


def test_gate_2_rule_3_a_difference_serves_where_values_are_negative() -> None:
    before = [-5.0, -5.1, -4.9, -5.05, -4.95, -5.0]
    after = [-3.0, -3.1, -2.9, -3.02, -2.98, -3.0]
    said = verdict(GAP, before, after)
    assert said.effect == pytest.approx(2.0)
    assert said.decision is Decision.WORSE
    higher = GAP.model_copy(update={"direction": Direction.HIGHER})
    assert verdict(higher, before, after).decision is Decision.BETTER


def test_gate_2_rule_3_several_arms_share_the_five_per_cent_after_holm() -> None:
    clear = pairs(TIME, noisy(10), noisy(8, 3))
    dull = pairs(TIME, noisy(10), noisy(10.09, 3))
    alone = decide([dull])[0]
    first, second, third = decide([dull, clear, dull])
    assert alone.interval.level == 0.95
    assert first.interval.level == pytest.approx(1 - 0.05 / 2)
    assert second.interval.level == pytest.approx(1 - 0.05 / 3)
    assert third.interval.level == first.interval.level
    assert second.decision is Decision.BETTER
    assert any("Holm" in reason for reason in second.reasons)


def test_holm_rejects_what_bonferroni_would_leave_open() -> None:
    level = pairs(TIME, noisy(10), noisy(10, 3)).estimate
    assert level is not None
    # Beyond the limit at 95 %, not at the level that four comparisons have each.
    beyond = (level.half_width(0.95) + level.half_width(1 - 0.05 / 4)) / 2
    edge = pairs(TIME, noisy(10), noisy(10 * 1.01 * math.exp(beyond), 3))
    clear = [pairs(TIME, noisy(10), noisy(8, shift)) for shift in (3, 5, 7)]
    assert decide([edge])[0].decision is Decision.WORSE
    assert decide([edge, edge, edge, edge])[0].decision is Decision.INCONCLUSIVE
    assert decide([edge, *clear])[0].decision is Decision.WORSE


def test_gate_2_rule_5_fewer_than_five_units_give_no_verdict() -> None:
    four = verdict(TIME, noisy(10)[:4], noisy(8)[:4])
    assert four.decision is Decision.NO_VERDICT
    assert four.interval.low is None
    assert "too few" in four.reasons[0]
    assert four.effect == pytest.approx(0.8)
    assert verdict(TIME, noisy(10)[:5], noisy(8, 3)[:5]).decision is Decision.BETTER


def test_gate_2_rule_5_says_what_could_be_seen_and_how_many_replicates_it_takes() -> None:
    draw = random.Random(5)
    before = [10 * draw.lognormvariate(0, 0.03) for _ in range(10)]
    after = [10 * draw.lognormvariate(0, 0.03) for _ in range(10)]
    said = verdict(TIME, before, after)
    assert said.detectable is not None
    assert said.replicates_needed is not None
    assert 0.02 < said.detectable < 0.08
    # The error shrinks with the root of the number, up to Student's t.
    rough = 10 * (math.log1p(said.detectable) / math.log1p(0.01)) ** 2
    assert 0.6 * rough < said.replicates_needed <= rough + 1
    assert f"{said.replicates_needed} processes" in said.reasons[1]


def test_three_units_still_say_how_many_the_next_run_needs() -> None:
    said = verdict(TIME, [10.0, 10.3, 9.8], [10.1, 9.9, 10.2])
    assert said.decision is Decision.NO_VERDICT
    assert said.replicates_needed is not None
    assert said.replicates_needed >= MIN_UNITS
    assert said.detectable is not None


def test_an_inconclusive_one_says_which_way_it_leans() -> None:
    before = [10.0, 14.0, 8.0, 11.0, 9.0, 12.0]
    after = [15.0, 9.0, 16.0, 10.0, 14.0, 13.0]
    said = verdict(TIME, before, after)
    assert (said.decision, said.leans) == (Decision.INCONCLUSIVE, "worse")
    said = verdict(RATE, before, after)
    assert (said.decision, said.leans) == (Decision.INCONCLUSIVE, "better")
    said = verdict(
        TIME, noisy(10, 0), [v * f for v, f in zip(noisy(10), (0.9, 1.1) * 5, strict=True)]
    )
    assert (said.decision, said.leans) == (Decision.INCONCLUSIVE, "")


def test_a_ratio_of_values_that_are_not_positive_has_no_verdict_and_says_what_to_do() -> None:
    for value in (0.0, -3.0):
        said = verdict(TIME, [*noisy(10)[:9], value], noisy(8))
        assert said.decision is Decision.NO_VERDICT
        assert "scale: difference" in said.reasons[0]


def test_units_of_two_kinds_are_not_compared() -> None:
    one = contrast(TIME, units("off", noisy(10)), units("on", noisy(8), UnitKind.ITEM))
    assert decide([one])[0].decision is Decision.NO_VERDICT


def test_items_are_paired_even_between_runs() -> None:
    right = [float(place % 3 > 0) for place in range(600)]
    better = [1.0 if place % 20 == 0 else value for place, value in enumerate(right)]
    share = Metric(name="p50_ms", direction=Direction.HIGHER, scale=Scale.PROPORTION)
    one = contrast(
        share,
        units("a", right, UnitKind.ITEM),
        units("b", better, UnitKind.ITEM),
        interleaved=False,
    )
    said = decide([one])[0]
    assert said.decision is Decision.INCONCLUSIVE
    finer = share.model_copy(update={"min_effect": 0.002})
    assert decide([contrast(finer, one.baseline, one.treatment)])[0].decision is Decision.BETTER
    assert "Bonett-Price" in said.method


def test_items_that_all_agree_are_equivalent_only_where_there_are_enough_of_them() -> None:
    share = Metric(name="p50_ms", direction=Direction.HIGHER, scale=Scale.PROPORTION)

    def same(count: int) -> Decision:
        outcomes = [float(place % 2) for place in range(count)]
        arms = units("a", outcomes, UnitKind.ITEM), units("b", outcomes, UnitKind.ITEM)
        return decide([contrast(share, *arms)])[0].decision

    assert same(20) is Decision.INCONCLUSIVE
    assert same(1000) is Decision.EQUIVALENT


def test_a_score_that_repeats_the_same_items_is_one_measurement() -> None:
    share = Metric(name="p50_ms", direction=Direction.HIGHER, scale=Scale.PROPORTION)
    said = verdict(share, [0.80] * 10, [0.82] * 10)
    assert said.decision is Decision.NO_VERDICT
    assert "items" in said.reasons[0]

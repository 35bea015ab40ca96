"""Guardrails: a win that breaks one is no win (gate 2, rule 4)."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from benchwright.judgement.guardrails import floor
from benchwright.judgement.judge import judge_run
from benchwright.judgement.units import UnitKind, Units
from benchwright.judgement.verdict import Decision, HypothesisVerdict, Judgement
from benchwright.spec.model import Direction, Metric, Role, Scale
from tests.judgement.views import FAST, P50, SLOW, codes, config, view

RECALL = Metric(
    name="recall@10",
    direction=Direction.HIGHER,
    role=Role.GUARDRAIL,
    scale=Scale.PROPORTION,
    floor=0.9,
)
MEMORY = Metric(name="peak_mb", unit="MB", role=Role.GUARDRAIL, max_regression=0.05)


def guarded(metric: Metric, before: Sequence[float], after: Sequence[float]) -> Judgement:
    """A run whose treatment is 17 % faster, with this guardrail beside it."""
    asked = config(metrics=[P50, metric], hypothesis="p50_ms falls by 10 %")
    return judge_run(
        view(
            {
                "off": {"p50_ms": SLOW, metric.name: before},
                "on": {"p50_ms": FAST, metric.name: after},
            },
            asked,
        )
    )


def test_gate_2_rule_4_a_win_whose_guardrails_held_is_a_win() -> None:
    judgement = guarded(RECALL, [0.97] * 10, [0.96] * 10)
    assert judgement.verdicts[0].decision is Decision.BETTER
    assert judgement.verdicts[0].win
    assert judgement.guardrails[0].held is True
    assert judgement.hypothesis is HypothesisVerdict.PASS


def test_gate_2_rule_4_a_win_that_breaks_a_guardrail_is_no_win() -> None:
    judgement = guarded(RECALL, [0.97] * 10, [0.85] * 10)
    verdict = judgement.verdicts[0]
    assert verdict.decision is Decision.BETTER
    assert not verdict.win
    assert any("No win" in reason and "0.85" in reason for reason in verdict.reasons)
    assert judgement.guardrails[0].held is False
    assert judgement.hypothesis is HypothesisVerdict.FAIL
    assert "guardrail" in codes(judgement.findings)


def test_gate_2_rule_4_a_guardrail_that_can_not_be_told_is_no_win_either() -> None:
    shaky = [0.99, 0.82, 0.95, 0.99, 0.84, 0.97, 0.81, 0.99, 0.96, 0.85]
    judgement = guarded(RECALL, [0.97] * 10, shaky)
    assert judgement.guardrails[0].held is None
    assert judgement.guardrails[0].observed == pytest.approx(0.917)
    assert not judgement.verdicts[0].win
    assert judgement.hypothesis is HypothesisVerdict.INCONCLUSIVE


def test_gate_2_rule_4_a_regression_limit_is_held_against_the_baseline() -> None:
    noise = [1.0, 1.01, 0.99, 1.005, 0.995, 1.0, 1.01, 0.99, 1.005, 0.995]
    before = [2000 * value for value in noise]
    for factor, held in ((1.02, True), (1.045, None), (1.2, False), (0.5, True)):
        after = [factor * 2000 * value for value in noise[3:] + noise[:3]]
        (result,) = guarded(MEMORY, before, after).guardrails
        assert result.held is held, factor
        assert result.limit == "at most 5 % higher"


def test_a_ceiling_is_the_floor_of_a_metric_that_is_better_low() -> None:
    errors = Metric(
        name="errors", role=Role.GUARDRAIL, scale=Scale.DIFFERENCE, floor=0.0, tolerance=1
    )
    assert guarded(errors, [0] * 10, [0] * 10).guardrails[0].held is True
    broken = guarded(errors, [0] * 10, [0] * 9 + [1]).guardrails[0]
    assert (broken.held, broken.limit) == (False, "at most 0")


def test_throughput_may_rise_without_an_alarm() -> None:
    qps = Metric(
        name="qps",
        unit="1/s",
        direction=Direction.HIGHER,
        role=Role.GUARDRAIL,
        max_regression=0.05,
    )
    assert guarded(qps, FAST, SLOW).guardrails[0].held is True
    assert guarded(qps, SLOW, FAST).guardrails[0].held is False


def test_a_floor_over_items_is_held_against_wilsons_interval() -> None:
    share = RECALL.model_copy(update={"floor": 0.8})

    def held(right: int, items: int) -> bool | None:
        outcomes = {f"q{number}": float(number < right) for number in range(items)}
        return floor(share, Units("on", "recall@10", UnitKind.ITEM, outcomes)).held

    assert held(17, 20) is None
    assert held(1700, 2000) is True
    assert held(15, 20) is False


def test_too_few_units_leave_a_guardrail_open() -> None:
    one = floor(RECALL, Units("on", "recall@10", UnitKind.PROCESS, {0: 0.99}))
    assert (one.held, one.observed) == (None, 0.99)
    none = floor(RECALL, Units("on", "recall@10", UnitKind.PROCESS, {}))
    assert (none.held, none.observed) == (None, None)


def test_a_run_of_one_arm_has_its_floors_judged() -> None:
    run = view(
        {"only": {"p50_ms": FAST, "recall@10": [0.95] * 10}},
        config(metrics=[P50, RECALL], treatment=()),
    )
    (result,) = judge_run(run).guardrails
    assert (result.arm, result.held) == ("only", True)

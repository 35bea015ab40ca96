"""The comparison of two runs."""

from __future__ import annotations

from dataclasses import replace

import pytest

from benchwright.errors import GateRefused
from benchwright.judgement.compare import compare_runs
from benchwright.judgement.verdict import Decision, Tag
from benchwright.judgement.view import RunView
from benchwright.spec.model import Direction, Metric, Replication, Scale
from tests.judgement.views import FAST, P50, SLOW, again, codes, config, judged, measured, view

ARMS = judged(view({"off": FAST, "on": SLOW}))


def plain(values: tuple[float, ...], balancing: str = "off", number: int = 1) -> RunView:
    """A QUALIFIED run of one arm."""
    asked = config(treatment=(), params={"numa": {"balancing": balancing}, "threads": 8})
    run = again(view({"only": values}, asked), number)
    return replace(judged(run), tag=Tag.QUALIFIED)


def test_run_b_is_judged_against_run_a() -> None:
    a, b = plain(SLOW), plain(FAST, "on", 2)
    (verdict,) = compare_runs(a, b).verdicts
    assert (verdict.decision, verdict.win) == (Decision.BETTER, True)
    assert verdict.effect == pytest.approx(1 / 1.2)
    assert (verdict.baseline.arm, verdict.treatment.arm) == (a.run_id, b.run_id)
    assert compare_runs(b, a).verdicts[0].decision is Decision.WORSE


def test_runs_were_not_interleaved_which_is_said_and_makes_it_qualified_at_best() -> None:
    first = judged(again(ARMS, 1))
    a = judged(again(ARMS, 2), [first])
    b = judged(again(ARMS, 3), [first, a])
    assert (a.tag, b.tag) == (Tag.RELIABLE, Tag.RELIABLE)
    comparison = compare_runs(a, b)
    assert comparison.tag is Tag.QUALIFIED
    assert "not-interleaved" in codes(comparison.findings)
    assert "not paired" in comparison.verdicts[0].method


def test_arms_of_the_same_name_are_compared_with_each_other() -> None:
    other = judged(again(view({"off": FAST, "on": FAST[::-1]}), 2))
    comparison = compare_runs(ARMS, other)
    said = {v.treatment.arm.split()[1]: v.decision for v in comparison.verdicts}
    assert said == {"balancing=off": Decision.EQUIVALENT, "balancing=on": Decision.BETTER}
    assert comparison.treatment == ""
    assert "nothing-differs" in codes(comparison.findings)
    # Two comparisons share the 5 %.
    assert comparison.verdicts[1].interval.level > 0.95


def test_a_run_compared_with_itself_is_no_win() -> None:
    comparison = compare_runs(ARMS, ARMS)
    assert {v.decision for v in comparison.verdicts} == {Decision.EQUIVALENT}
    assert "same-run" in codes(comparison.findings)


def test_an_unreliable_run_is_never_compared() -> None:
    bad = replace(plain(FAST, number=2), tag=Tag.UNRELIABLE)
    for pair in ((bad, plain(FAST)), (plain(FAST), bad)):
        with pytest.raises(GateRefused) as refused:
            compare_runs(*pair)
        assert refused.value.differences[0].field == "tag"
        assert refused.value.exit_code == 3


def test_an_exploratory_baseline_leaves_the_comparison_exploratory() -> None:
    a = replace(plain(SLOW), tag=Tag.EXPLORATORY)
    comparison = compare_runs(a, plain(FAST, "on", 2))
    assert comparison.tag is Tag.EXPLORATORY
    assert "may serve as a baseline" in comparison.tag_reason


def test_a_qualified_run_brings_its_caveat_along() -> None:
    a, b = ARMS, judged(again(ARMS, 2))
    findings = compare_runs(a, b).findings
    assert f"{a.run_id} is QUALIFIED: {a.judgement.tag_reason}" in {f.message for f in findings}


def test_too_few_units_are_exploratory() -> None:
    few = judged(again(view({"off": FAST[:4], "on": SLOW[:4]}), 2))
    a = replace(few, tag=Tag.QUALIFIED)
    comparison = compare_runs(a, replace(again(few, 3), tag=Tag.QUALIFIED))
    assert comparison.tag is Tag.EXPLORATORY
    assert {v.decision for v in comparison.verdicts} == {Decision.NO_VERDICT}


def test_one_name_for_two_quantities_is_refused() -> None:
    other = config(metrics=[P50.model_copy(update={"unit": "s", "direction": Direction.HIGHER})])
    b = judged(again(view({"off": FAST, "on": SLOW}, other), 2))
    with pytest.raises(GateRefused) as refused:
        compare_runs(ARMS, b)
    assert {row.field for row in refused.value.differences} == {
        "metrics.p50_ms.unit",
        "metrics.p50_ms.direction",
    }


def test_no_metric_in_common_is_refused() -> None:
    other = config(metrics=[Metric(name="qps")])
    run = view({"off": {"qps": FAST}, "on": {"qps": SLOW}}, other)
    with pytest.raises(GateRefused, match="metrics"):
        compare_runs(ARMS, judged(again(run, 2)))


def scored(changed: int, items: int = 1319, number: int = 1) -> RunView:
    """A run over items, of which the first `changed` wrong answers are right."""
    metric = Metric(
        name="accuracy", direction=Direction.HIGHER, scale=Scale.PROPORTION, min_effect=0.005
    )
    outcomes = {f"q{item}": (float(item % 3 > 0 or item < 3 * changed),) for item in range(items)}
    asked = config(metrics=[metric], treatment=(), replication=Replication(replicates=1, warmup=0))
    run = view(
        {"only": {"accuracy": [0.5]}},
        asked,
        change=lambda sample: measured(sample, items={"accuracy": outcomes}),
    )
    return replace(judged(again(run, number)), tag=Tag.QUALIFIED)


def test_scores_are_compared_by_the_items_both_answered() -> None:
    (verdict,) = compare_runs(scored(0), scored(40, number=2)).verdicts
    assert verdict.decision is Decision.BETTER
    assert verdict.units == 1319
    assert verdict.effect == pytest.approx(40 / 1319)


def test_gate_2_rule_9_scores_over_other_items_are_refused() -> None:
    with pytest.raises(GateRefused) as refused:
        compare_runs(scored(0), scored(0, items=1300, number=2))
    assert refused.value.differences[0].field == "items of accuracy"


def test_trainings_are_paired_by_seed_between_runs() -> None:
    metric = Metric(
        name="score", direction=Direction.HIGHER, scale=Scale.DIFFERENCE, min_effect=0.001
    )
    asked = config(
        metrics=[metric],
        treatment=(),
        replication=Replication(replicates=8, warmup=0, seeds_as_replicates=True),
    )
    luck = [0.80, 0.90, 0.70, 0.85, 0.75, 0.95, 0.65, 0.80]
    gains = [0.010, 0.012, 0.008, 0.011, 0.009, 0.010, 0.012, 0.008]
    a = judged(view({"only": {"score": luck}}, asked))
    better = [value + gain for value, gain in zip(luck, gains, strict=True)]
    b = judged(again(view({"only": {"score": better}}, asked), 2), [a])
    assert compare_runs(a, b).verdicts[0].decision is Decision.BETTER

"""Gate 2: measurements that can be compared. One test, at least, for each rule.

Rule 3 and rule 5 are in `test_decide`, rule 4 in `test_guardrails`, rule 6 in `test_stability`.
"""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from benchwright.errors import GateRefused
from benchwright.execution.launch import EndReason
from benchwright.execution.sample import Measurement
from benchwright.identity.fingerprint import UNKNOWN, Fingerprint
from benchwright.judgement.compare import compare_runs
from benchwright.judgement.judge import judge_run
from benchwright.judgement.units import UnitKind, pair, units_of
from benchwright.judgement.verdict import Decision, Finding, Tag
from benchwright.judgement.view import RunView
from benchwright.spec.model import Direction, Metric, Replication, Scale
from tests.judgement.views import (
    FAST,
    FINGERPRINT,
    P50,
    SLOW,
    again,
    codes,
    config,
    failed,
    judged,
    measured,
    view,
)

SCORE = Metric(name="accuracy", direction=Direction.HIGHER, scale=Scale.PROPORTION)


def test_gate_2_rule_1_what_repeats_inside_a_process_is_averaged_not_pooled() -> None:
    draw = random.Random(1)

    def repeated(level: float) -> list[float]:
        return [level * draw.gauss(1, 0.001) for _ in range(50)]

    # Two processes an arm, 50 values in each: pooled they would look like 100 units.
    run = view(
        {"off": [10.0, 10.4], "on": [9.0, 9.1]},
        change=lambda sample: measured(
            sample, values={"p50_ms": tuple(repeated(sample.measurement.metrics["p50_ms"]))}
        ),
    )
    assert len(units_of(run.samples, "balancing=on", "p50_ms")) == 2
    assert judge_run(run).verdicts[0].decision is Decision.NO_VERDICT


def test_gate_2_rule_1_two_measurements_of_one_block_are_one_unit() -> None:
    run = view({"off": FAST, "on": SLOW})
    twice = replace(run, samples=tuple(s for s in run.samples for _ in range(2)))
    units = units_of(twice.samples, "balancing=off", "p50_ms")
    assert (len(units), units.kind) == (10, UnitKind.PROCESS)


def scored(outcomes: dict[str, dict[str, tuple[float, ...]]]) -> RunView:
    """A run of five replicates an arm whose stage gave these outcomes by arm and item."""
    asked = config(metrics=[SCORE], replicates=5)
    return view(
        {"off": {"accuracy": [0.5] * 5}, "on": {"accuracy": [0.5] * 5}},
        asked,
        change=lambda sample: measured(
            sample, items={"accuracy": outcomes[sample.arm.rpartition("=")[2]]}
        ),
    )


def test_gate_2_rule_1_an_item_is_the_unit_of_a_score_and_its_repeats_are_a_cluster() -> None:
    run = scored({arm: {"q1": (1.0, 0.0), "q2": (1.0, 1.0)} for arm in ("off", "on")})
    units = units_of(run.samples, "balancing=on", "accuracy")
    assert units.kind is UnitKind.ITEM
    # Five replicates of two repeats are still two items.
    assert dict(units.by_key) == {"q1": 0.5, "q2": 1.0}


def test_gate_2_rule_1_warm_ups_and_failed_replicates_are_no_units() -> None:
    asked = config(warmup=2)
    run = view({"off": FAST, "on": SLOW}, asked)
    assert sum(sample.warmup for sample in run.samples) == 4
    assert len(units_of(run.samples, "balancing=off", "p50_ms")) == 10
    samples = [failed(s) if s.block == 3 and not s.warmup else s for s in run.samples]
    assert len(units_of(samples, "balancing=off", "p50_ms")) == 9


def test_units_are_paired_by_block_and_what_one_arm_lacks_is_left_out() -> None:
    run = view({"off": FAST, "on": SLOW})
    samples = [failed(s) if s.block == 3 and s.arm.endswith("on") else s for s in run.samples]
    pairs = pair(
        units_of(samples, "balancing=off", "p50_ms"), units_of(samples, "balancing=on", "p50_ms")
    )
    assert 3 not in pairs.keys
    assert pairs.left_out == (3,)
    assert len(pairs.baseline) == len(pairs.treatment) == 9


def test_gate_2_rule_2_arms_that_ran_one_after_the_other_are_unreliable() -> None:
    run = view({"off": FAST, "on": SLOW})
    assert judge_run(run).tag is Tag.QUALIFIED
    in_turn = sorted(run.samples, key=lambda sample: (sample.arm, sample.block))
    blocked = replace(
        run, samples=tuple(replace(s, order=place) for place, s in enumerate(in_turn))
    )
    judgement = judge_run(blocked)
    assert judgement.tag is Tag.UNRELIABLE
    assert "order" in codes(judgement.findings)
    assert judgement.verdicts[0].decision is Decision.NO_VERDICT


def test_gate_2_rule_2_blocks_in_another_order_than_drawn_are_a_caveat() -> None:
    run = view({"off": FAST, "on": SLOW})
    fixed = sorted(run.samples, key=lambda sample: (sample.block, sample.arm))
    run = replace(run, samples=tuple(replace(s, order=place) for place, s in enumerate(fixed)))
    assert "order-not-drawn" in codes(judge_run(run).findings)


def test_gate_2_rule_2_a_failed_replicate_does_not_disturb_the_order() -> None:
    run = view({"off": FAST, "on": SLOW})
    cut = replace(run, samples=run.samples[:-3])
    assert not {"order", "order-not-drawn"} & codes(judge_run(cut).findings)


def test_gate_2_rule_7_a_fingerprint_that_differs_refuses_the_comparison_field_by_field() -> None:
    a = judged(view({"off": FAST, "on": SLOW}))
    other = Fingerprint(
        {**FINGERPRINT.fields, "machine.governor": "powersave", "code.commit": "9b7"}
    )
    b = judged(again(view({"off": FAST, "on": SLOW}, fingerprint=other)), [a])
    with pytest.raises(GateRefused) as refused:
        compare_runs(a, b)
    rows = {row.field: (row.left, row.right) for row in refused.value.differences}
    assert rows == {
        "machine.governor": ("performance", "powersave"),
        "code.commit": ("4f2c1d0", "9b7"),
    }
    assert "--allow machine.governor" in str(refused.value)
    with pytest.raises(GateRefused):
        compare_runs(a, b, allow=["machine.governor"])


def test_gate_2_rule_7_an_allowed_field_makes_it_qualified_at_best_and_is_named() -> None:
    a = judged(view({"off": FAST, "on": SLOW}))
    other = Fingerprint({**FINGERPRINT.fields, "code.commit": "9b7"})
    b = judged(again(view({"off": FAST, "on": SLOW}, fingerprint=other)), [a])
    comparison = compare_runs(a, b, allow=["code.commit"])
    assert comparison.tag is Tag.QUALIFIED
    assert [row.field for row in comparison.allowed] == ["code.commit"]
    assert comparison.treatment == "code.commit"
    assert {"allowed-difference", "no-code-evidence"} <= codes(comparison.findings)


def test_gate_2_rule_7_unknown_never_equals_unknown_silently() -> None:
    blind = Fingerprint({**FINGERPRINT.fields, "machine.governor": UNKNOWN})
    a = judged(view({"off": FAST, "on": SLOW}, fingerprint=blind))
    b = judged(again(a), [a])
    (finding,) = [f for f in compare_runs(a, b).findings if f.code == "unknown-field"]
    assert finding.caveat
    assert "machine.governor" in finding.message


def test_gate_2_rule_7_a_field_that_says_what_it_ran_on_is_a_caveat_when_unknown() -> None:
    blind = Fingerprint({**FINGERPRINT.fields, "machine.cpu_model": UNKNOWN})
    first = judged(view({"off": FAST, "on": SLOW}, fingerprint=blind))
    second = judged(again(first), [first])
    assert second.tag is Tag.QUALIFIED
    assert "unknown-identity" in codes(second.judgement.findings)


def test_a_laptop_without_a_governor_file_can_have_a_reliable_run_that_says_so() -> None:
    blind = Fingerprint({**FINGERPRINT.fields, "machine.governor": UNKNOWN})
    first = judged(view({"off": FAST, "on": SLOW}, fingerprint=blind))
    second = judged(again(first), [first])
    assert second.tag is Tag.RELIABLE
    assert "unknown-field" in codes(second.judgement.findings)


def trained(seeds_as_replicates: bool = True) -> RunView:
    score = Metric(
        name="score", direction=Direction.HIGHER, scale=Scale.DIFFERENCE, min_effect=0.001
    )
    draw = random.Random(8)
    asked = config(
        metrics=[score],
        replication=Replication(
            replicates=10, warmup=0, seeds_as_replicates=seeds_as_replicates, seed=7
        ),
    )
    items = {"q1": (1.0,), "q2": (0.0,)}
    return view(
        {arm: {"score": [draw.gauss(0.8, 0.01) for _ in range(10)]} for arm in ("off", "on")},
        asked,
        change=lambda sample: measured(sample, items={"score": items}),
    )


def test_gate_2_rule_8_where_training_is_random_the_seed_is_the_unit() -> None:
    run = trained()
    units = units_of(run.samples, "balancing=on", "score", seeds=True)
    assert units.kind is UnitKind.SEED
    assert list(units.by_key) == list(range(7, 17))
    said = judge_run(run).verdicts[0]
    assert said.units == 10
    assert said.decision is not Decision.BETTER
    assert units_of(run.samples, "balancing=on", "score").kind is UnitKind.ITEM


def test_gate_2_rule_8_a_seed_drawn_twice_is_one_draw() -> None:
    run = trained()
    same = replace(run, samples=tuple(replace(s, seed=7 if s.block < 2 else s.seed) for s in
                                      run.samples))  # fmt: skip
    judgement = judge_run(same)
    assert "seed-repeated" in codes(judgement.findings)
    assert judgement.tag is Tag.UNRELIABLE


def suite(version: str, name: str = "gsm8k") -> RunView:
    asked = config(
        treatment=(),
        params={"numa": {"balancing": "off"}, "eval_suite": name, "eval_suite_version": version},
    )
    return view({"only": FAST}, asked)


def test_gate_2_rule_9_another_suite_or_version_is_never_compared() -> None:
    a = judged(suite("1"))
    for other in (suite("2"), suite("1", "mmlu")):
        with pytest.raises(GateRefused) as refused:
            compare_runs(a, judged(again(other), [a]))
        assert "never compared" in refused.value.differences[0].why


def test_gate_2_rule_9_the_version_that_the_evaluator_reports_counts() -> None:
    a = judged(suite("1"))
    newer = view(
        {"only": FAST},
        a.config,
        change=lambda sample: measured(sample, effective={"evaluator_version": "1.15.0"}),
    )
    with pytest.raises(GateRefused) as refused:
        compare_runs(a, judged(again(newer), [a]))
    assert refused.value.differences[0].field == "evaluator_version"


def test_gate_2_rule_9_an_evaluation_is_no_treatment() -> None:
    asked = config(
        params={"eval_suite": "gsm8k"},
        treatment_variable="eval_suite",
        treatment_values=("mmlu",),
    )
    judgement = judge_run(view({"gsm8k": FAST, "mmlu": SLOW}, asked))
    assert judgement.tag is Tag.UNRELIABLE
    assert judgement.verdicts[0].decision is Decision.NO_VERDICT


def test_gate_2_rule_9_items_that_only_one_arm_answered_are_another_evaluation() -> None:
    whole = {f"q{number}": (float(number % 2),) for number in range(20)}
    run = scored({"off": whole, "on": dict(list(whole.items())[:15])})
    judgement = judge_run(run)
    assert "items-differ" in codes(judgement.findings)
    assert judgement.tag is Tag.UNRELIABLE


@pytest.mark.parametrize(
    "value", [float("nan"), float("inf"), float("-inf"), True, None, "12", "NaN"]
)
def test_gate_2_rule_10_a_value_that_is_not_a_finite_number_is_no_measurement(
    value: object,
) -> None:
    run = view({"off": FAST, "on": SLOW})
    samples = [
        replace(s, measurement=Measurement({"p50_ms": value}, effective=s.measurement.effective))  # type: ignore[dict-item]
        if s.block == 4 and s.arm.endswith("on")
        else s
        for s in run.samples
    ]
    judgement = judge_run(replace(run, samples=tuple(samples)))
    assert judgement.tag is Tag.UNRELIABLE
    (finding,) = [f for f in judgement.findings if f.code == "not-finite"]
    assert "p50_ms of balancing=on" in finding.message
    assert judgement.summaries["balancing=on"]["p50_ms"].n == 9


def test_failed_replicates_and_skipped_work_and_a_guards_end_are_unreliable() -> None:
    run = view({"off": FAST, "on": SLOW}, expected=20)
    assert judge_run(run).tag is Tag.QUALIFIED
    bad = replace(run, samples=(failed(run.samples[0]), *run.samples[1:]))
    assert judge_run(bad).tag is Tag.UNRELIABLE
    assert "1 replicate of search" in judge_run(bad).tag_reason
    killed = replace(
        run, samples=(failed(run.samples[0], EndReason.MEMORY, "over 2000 MB"), *run.samples[1:])
    )
    assert "ended by the guard: over 2000 MB" in judge_run(killed).tag_reason
    short = replace(run, samples=run.samples[:18])
    assert "18 of 20 replicates ran" in judge_run(short).tag_reason
    assert judge_run(short).tag is Tag.UNRELIABLE


def test_a_failed_warm_up_is_a_caveat() -> None:
    run = view({"off": FAST, "on": SLOW}, config(warmup=1))
    first = next(s for s in run.samples if s.warmup)
    samples = tuple(failed(s) if s is first else s for s in run.samples)
    judgement = judge_run(replace(run, samples=samples))
    assert judgement.tag is Tag.QUALIFIED
    assert "warm-up replicate" in judgement.tag_reason


def test_a_primary_metric_that_an_arm_never_gave_is_unreliable() -> None:
    qps = P50.model_copy(update={"name": "qps"})
    judgement = judge_run(view({"off": FAST, "on": SLOW}, config(metrics=[P50, qps])))
    assert judgement.tag is Tag.UNRELIABLE
    assert "not-measured" in codes(judgement.findings)


def test_gate_2_rule_10_a_warm_up_that_ends_the_run_is_named_as_its_failure() -> None:
    whole = view({"off": FAST, "on": SLOW}, config(warmup=1))
    first = failed(whole.samples[0], error="'p50_ms' is NaN")
    judgement = judge_run(replace(whole, samples=(first,), expected=22))
    assert judgement.tag is Tag.UNRELIABLE
    assert "'p50_ms' is NaN" in judgement.tag_reason


def test_a_run_that_failed_a_gate_has_no_wins() -> None:
    run = view({"off": SLOW, "on": FAST})
    assert judge_run(run).verdicts[0].win
    broken = replace(run, findings=(Finding("vram", "The guard lost sight.", failure=True),))
    (verdict,) = judge_run(broken).verdicts
    assert not verdict.win
    assert "No win: the run failed a gate. The guard lost sight." in verdict.reasons


def test_gate_2_rule_7_a_script_that_was_swapped_refuses_the_comparison() -> None:
    field = "code.measured_by.search"
    a = judged(view({"off": FAST, "on": SLOW}, fingerprint=with_field(field, "aa")))
    b = judged(again(view({"off": FAST, "on": SLOW}, fingerprint=with_field(field, "bb"))))
    with pytest.raises(GateRefused) as refused:
        compare_runs(a, b)
    (row,) = refused.value.differences
    assert (row.field, row.left, row.right) == (field, "aa", "bb")
    assert "script" in row.why
    assert f"benchwright compare {a.run_id} {b.run_id} --allow {field}" in str(refused.value)


def with_field(name: str, value: str) -> Fingerprint:
    return Fingerprint({**FINGERPRINT.fields, name: value})


def test_an_unreliable_run_is_refused_with_the_reason_of_the_person_who_lowered_it() -> None:
    a = judged(view({"off": FAST, "on": SLOW}))
    lowered = replace(a, tag=Tag.UNRELIABLE, lowered="a backup ran beside it")
    with pytest.raises(GateRefused) as refused:
        compare_runs(lowered, judged(again(a)))
    assert "a backup ran beside it" in refused.value.differences[0].why

"""What a sceptic asks of a plan before it runs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from benchwright.identity.fingerprint import Fingerprint
from benchwright.judgement.challenge import Challenge, challenge
from benchwright.judgement.verdict import Tag
from benchwright.judgement.view import RunView
from benchwright.spec.manifest import Manifest
from benchwright.spec.model import (
    BenchmarkConfig,
    Direction,
    Metric,
    MetricsFrom,
    Replication,
    Role,
    Scale,
    Stage,
    StageKind,
)
from tests.judgement.views import FAST, FINGERPRINT, P50, SLOW, again, config, judged, view

FIRST = judged(view({"off": FAST, "on": SLOW}))
RELIABLE = judged(again(FIRST), [FIRST])
RECALL = Metric(
    name="recall@10",
    direction=Direction.HIGHER,
    role=Role.GUARDRAIL,
    scale=Scale.PROPORTION,
    floor=0.9,
)


def asked(plan: BenchmarkConfig, priors: Sequence[RunView] = ()) -> dict[str, Challenge]:
    found = challenge(plan, Manifest(), plan.stages, priors)
    for one in found:
        assert one.argument.endswith(".")
        assert one.reason.endswith(".")
        assert one.hint
    return {one.code: one for one in found}


def test_a_sound_plan_is_not_challenged() -> None:
    plan = config(metrics=[P50, RECALL], hypothesis="p50_ms falls by 20 %")
    assert asked(plan) == {}
    assert asked(config()) == {}


def test_a_treatment_equal_to_the_baseline_is_challenged() -> None:
    assert "treatment-equals-baseline" in asked(config(treatment=("on", "off")))
    assert "treatment-equals-baseline" in asked(config(treatment=("on", "on")))
    one = asked(config(treatment=("off",)))["treatment-equals-baseline"]
    assert one.argument == "The treatment numa.balancing: off is the baseline's own."


def test_a_treatment_without_values_is_challenged() -> None:
    plan = config().model_copy(update={"treatment_values": ()})
    assert "no-treatment" in asked(plan)


def test_a_hypothesis_on_a_metric_that_is_not_measured_is_challenged() -> None:
    one = asked(config(hypothesis="p99_ms falls by 20 %"))["unmeasured-hypothesis"]
    assert "p99_ms" in one.argument
    assert "p50_ms" in one.hint
    stage = Stage(
        name="search",
        kind=StageKind.MEASURE,
        cmd="search",
        metrics_from=MetricsFrom(stdout=True, fields=("qps",)),
    )
    plan = config(metrics=[P50, RECALL], hypothesis="p50_ms falls", stages=(stage,))
    assert "p50_ms" in asked(plan)["unmeasured-hypothesis"].argument


def test_a_hypothesis_that_names_no_metric_is_challenged() -> None:
    one = asked(config(hypothesis="it gets faster"))["unmeasured-hypothesis"]
    assert "p50_ms falls by" in one.hint


def test_a_parameter_named_in_the_hypothesis_is_no_metric() -> None:
    plan = config(
        metrics=[P50, RECALL],
        params={"numa": {"balancing": "off"}, "n_docs": 5},
        hypothesis="with n_docs 5 p50_ms falls",
    )
    assert asked(plan) == {}


def test_a_speed_claim_without_a_guardrail_is_challenged() -> None:
    assert "no-guardrail" in asked(config(hypothesis="p50_ms falls"))
    assert "no-guardrail" not in asked(config(metrics=[P50, RECALL], hypothesis="p50_ms falls"))
    size = Metric(name="index", unit="MB")
    assert "no-guardrail" not in asked(config(metrics=[size], hypothesis="index falls"))


def test_what_a_reliable_run_answered_is_challenged() -> None:
    assert RELIABLE.tag is Tag.RELIABLE
    one = asked(config(), [FIRST, RELIABLE])["already-answered"]
    assert RELIABLE.run_id in one.argument
    assert "p50_ms worse" in one.argument
    assert "already-answered" not in asked(config(), [FIRST])
    assert "already-answered" not in asked(config(treatment=("auto",)), [RELIABLE])
    more = config(replication=Replication(replicates=20))
    assert "already-answered" in asked(more, [RELIABLE])


def test_a_run_on_another_machine_answers_nothing() -> None:
    elsewhere = Fingerprint({**FINGERPRINT.fields, "machine.cpu_model": "Xeon"})
    found = challenge(config(), Manifest(), (), [RELIABLE], elsewhere)
    assert "already-answered" not in {one.code for one in found}
    found = challenge(config(), Manifest(), (), [RELIABLE], FINGERPRINT)
    assert "already-answered" in {one.code for one in found}


def test_more_than_one_treatment_is_challenged() -> None:
    plan = config(params={"numa": {"balancing": "off"}, "threads": 16})
    one = asked(plan, [RELIABLE])["more-than-one-treatment"]
    assert one.argument.startswith("numa.balancing and threads change at once")
    told = plan.model_copy(update={"justified": {"threads": "a larger machine"}})
    assert "more-than-one-treatment" not in asked(told, [RELIABLE])


def test_a_run_of_one_arm_with_two_changes_is_challenged_even_if_justified() -> None:
    plan = config(
        treatment=(),
        params={"numa": {"balancing": "on"}, "threads": 16},
        justified={"threads": "a larger machine"},
    )
    assert "more-than-one-treatment" in asked(plan, [RELIABLE])


def test_several_values_of_one_treatment_are_one_treatment() -> None:
    assert "more-than-one-treatment" not in asked(config(treatment=("on", "auto")), [RELIABLE])


FACTORS = (1.0, 1.3, 0.8, 1.1, 0.9) * 2
WILD = tuple(value * factor for value, factor in zip(FAST, FACTORS, strict=True))
NOISY = replace(judged(view({"off": WILD, "on": WILD[3:] + WILD[:3]})), tag=Tag.QUALIFIED)


def test_too_few_replicates_for_the_effect_looked_for_are_challenged() -> None:
    plan = config(metrics=[P50, RECALL], hypothesis="p50_ms falls by 10 %")
    one = asked(plan, [NOISY])["too-few-replicates"]
    number = int(one.hint.removeprefix("--replicates "))
    assert number > 10
    enough = plan.model_copy(update={"replication": Replication(replicates=number)})
    assert "too-few-replicates" not in asked(enough, [NOISY])
    short = plan.model_copy(update={"replication": Replication(replicates=number - 1)})
    assert "too-few-replicates" in asked(short, [NOISY])


def test_an_effect_that_was_seen_before_needs_no_more_replicates_than_it_took() -> None:
    assert "too-few-replicates" not in asked(config(), [FIRST])
    large = config(metrics=[P50, RECALL], hypothesis="p50_ms falls by 60 %")
    assert "too-few-replicates" not in asked(large, [NOISY])


@pytest.mark.parametrize("name", ["eval_suite", "bench.evaluator_version"])
def test_an_evaluation_as_treatment_is_challenged(name: str) -> None:
    plan = config(
        params={"eval_suite": "a", "bench": {"evaluator_version": "1"}},
        treatment_variable=name,
    )
    assert "evaluation-as-treatment" in asked(plan)

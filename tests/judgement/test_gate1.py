"""Gate 1: the same experiment but for the treatment. One test, at least, for each rule."""

from __future__ import annotations

from dataclasses import replace

import pytest

from benchwright.errors import GateRefused
from benchwright.execution.sample import LOG_EVIDENCE, Measurement, Sample
from benchwright.judgement import gate1
from benchwright.judgement.compare import compare_runs
from benchwright.judgement.judge import judge_run
from benchwright.judgement.verdict import Decision, Finding, Tag
from benchwright.judgement.view import RunView
from benchwright.spec.manifest import Manifest, ManifestEntry
from benchwright.spec.model import CodeEvidence, MetricsFrom, Resources
from tests.judgement.views import FAST, SLOW, again, codes, config, judged, measured, view

MANIFEST = Manifest(
    entries=(
        ManifestEntry(
            name="threads",
            reason="Throughput follows the number of threads.",
            default=4,
            verify="effective: threads",
            impact="A factor of two for each doubling.",
        ),
        ManifestEntry(name="numa.balancing", reason="Pages wander.", default="on", verify="cat x"),
    )
)


def reliable(run: RunView | None = None) -> RunView:
    """A run that an earlier one confirmed."""
    first = judged(run or view({"off": FAST, "on": SLOW}))
    second = judged(again(first), [first])
    assert second.tag is Tag.RELIABLE
    return second


def plain(threads: int = 8, balancing: str = "off", **more: object) -> RunView:
    """A run of one arm."""
    asked = config(
        treatment=(),
        params={"numa": {"balancing": balancing}, "threads": threads},
        **more,
    )
    return view({"only": FAST}, asked)


def test_gate_1_rule_1_a_configuration_that_changed_after_planning_is_unreliable() -> None:
    run = view({"off": FAST, "on": SLOW})
    assert "config-changed" not in codes(judge_run(run).findings)
    changed = replace(run, config=run.config.model_copy(update={"hypothesis": "p50_ms rises"}))
    judgement = judge_run(changed)
    assert judgement.tag is Tag.UNRELIABLE
    assert "config-changed" in codes(judgement.findings)
    assert judgement.verdicts[0].decision is Decision.NO_VERDICT


def test_gate_1_rule_2_a_missing_parameter_is_refused_with_the_last_reliable_value() -> None:
    before = reliable()
    asked = config(params={"numa": {"balancing": "off"}})
    (row,) = gate1.missing_parameters(asked, MANIFEST, [before])
    assert (row.field, row.left) == ("threads", "not declared")
    assert row.right == f"8 (in {before.run_id})"
    assert "Throughput follows" in row.why
    assert "factor of two" in row.why
    with pytest.raises(GateRefused) as refused:
        gate1.require_declared(asked, MANIFEST, [before])
    assert refused.value.differences == (row,)
    assert "threads: 8" in str(refused.value)


def test_gate_1_rule_2_without_a_reliable_run_the_default_is_named() -> None:
    (row,) = gate1.missing_parameters(
        config(params={"numa": {"balancing": "off"}}), MANIFEST, [judged(view({"off": FAST}))]
    )
    assert row.right == "4 (the default)"


def test_gate_1_rule_2_a_parameter_declared_at_its_default_is_declared() -> None:
    asked = config(params={"numa": {"balancing": "on"}, "threads": 4})
    assert gate1.missing_parameters(asked, MANIFEST, []) == ()
    gate1.require_declared(asked, MANIFEST, [])


def test_gate_1_rule_2_names_the_provenance_that_a_manifest_leaves_out() -> None:
    entries = [ManifestEntry(name=f"model.{name}", reason="r") for name in gate1.PROVENANCE[:-1]]
    assert gate1.missing_provenance(Manifest(entries=tuple(entries))) == ("eval_suite",)


def test_gate_1_rule_2_what_nothing_verifies_is_a_caveat_not_a_failure() -> None:
    judgement = judge_run(view({"off": FAST, "on": SLOW}, manifest=MANIFEST))
    (finding,) = [f for f in judgement.findings if f.code == "unverified"]
    assert "threads" in finding.message
    assert "numa.balancing" not in finding.message
    assert judgement.tag is Tag.QUALIFIED
    told = view(
        {"off": FAST, "on": SLOW},
        manifest=MANIFEST,
        change=lambda sample: with_effective(sample, threads=8),
    )
    assert "unverified" not in codes(judge_run(told).findings)
    asked = view(
        {"off": FAST, "on": SLOW},
        manifest=MANIFEST,
        findings=(Finding("verified", "threads"),),
    )
    assert not {"unverified", "verified"} & codes(judge_run(asked).findings)


def test_gate_1_rule_3_a_parameter_is_inherited_the_treatment_or_justified() -> None:
    before = reliable()
    asked = config(params={"numa": {"balancing": "on"}, "threads": 16}, treatment=("off",))
    (row,) = gate1.unjustified(asked, MANIFEST, before)
    assert (row.field, row.left, row.right) == ("threads", "16", f"8 (in {before.run_id})")
    assert row.why == "Throughput follows the number of threads."
    with pytest.raises(GateRefused, match="threads differs"):
        gate1.require_justified(asked, MANIFEST, [before])
    told = asked.model_copy(update={"justified": {"threads": "a larger machine"}})
    assert gate1.unjustified(told, MANIFEST, before) == ()
    gate1.require_justified(told, MANIFEST, [before])
    blank = asked.model_copy(update={"justified": {"threads": " "}})
    assert len(gate1.unjustified(blank, MANIFEST, before)) == 1


def test_gate_1_rule_3_a_parameter_that_is_gone_is_a_change() -> None:
    asked = config(params={"numa": {"balancing": "off"}})
    (row,) = gate1.unjustified(asked, Manifest(), reliable())
    assert (row.field, row.left) == ("threads", gate1.ABSENT)


def test_gate_1_rule_3_only_the_latest_reliable_run_of_the_same_recipe_counts() -> None:
    run = reliable()
    other = replace(run, config=run.config.model_copy(update={"recipe": "another"}))
    lowered = replace(run, tag=Tag.QUALIFIED)
    assert gate1.latest_reliable(config(), [other, lowered]) is None
    later = replace(again(run, 9), tag=Tag.RELIABLE)
    assert gate1.latest_reliable(config(), [later, run]) is later


def with_effective(sample: Sample, **values: object) -> Sample:
    assert sample.measurement is not None
    return measured(sample, effective={**sample.measurement.effective, **values})


def test_gate_1_rule_4_an_effective_value_other_than_declared_is_unreliable() -> None:
    drifted = view(
        {"off": FAST, "on": SLOW},
        change=lambda sample: with_effective(sample, threads=4 if sample.block == 3 else 8),
    )
    judgement = judge_run(drifted)
    assert judgement.tag is Tag.UNRELIABLE
    assert judgement.verdicts[0].decision is Decision.NO_VERDICT
    messages = {finding.message for finding in judgement.findings if finding.code == "drift"}
    assert messages == {
        "threads was declared as 8, but balancing=off ran with 4 in 1 replicate.",
        "threads was declared as 8, but balancing=on ran with 4 in 1 replicate.",
    }
    assert "threads was declared as 8" in judgement.tag_reason


def test_gate_1_rule_4_a_drifted_run_is_never_compared() -> None:
    good = judged(plain())
    bad = judged(view({"only": FAST}, config(treatment=()),
                      change=lambda sample: with_effective(sample, threads=4)))  # fmt: skip
    with pytest.raises(GateRefused) as refused:
        compare_runs(good, again(bad, 5))
    assert "threads was declared as 8" in refused.value.differences[0].why


def test_gate_1_rule_4_a_treatment_with_one_effective_value_never_ran() -> None:
    same = view(
        {"off": FAST, "on": SLOW},
        change=lambda sample: measured(sample, effective={"numa.balancing": "off"}),
    )
    judgement = judge_run(same)
    assert judgement.tag is Tag.UNRELIABLE
    assert "treatment-never-ran" in codes(judgement.findings)
    assert judgement.verdicts[0].decision is Decision.NO_VERDICT


def test_gate_1_rule_4_a_treatment_that_no_stage_reports_is_a_caveat() -> None:
    judgement = judge_run(view({"off": FAST, "on": SLOW}, effective=False))
    assert judgement.tag is Tag.QUALIFIED
    assert "treatment-unread" in codes(judgement.findings)
    assert judgement.verdicts[0].decision is Decision.WORSE
    ended = replace(view({"off": FAST, "on": SLOW}), samples=())
    assert "treatment-unread" not in codes(judge_run(ended).findings)


def test_gate_1_rule_5_two_runs_compare_where_exactly_the_treatment_differs() -> None:
    a = judged(plain())
    b = judged(again(plain(balancing="on")), [a])
    assert compare_runs(a, b).treatment == "numa.balancing"


def test_gate_1_rule_5_more_than_one_difference_is_refused_with_the_list() -> None:
    a = judged(plain())
    b = judged(again(plain(threads=16, balancing="on")), [a])
    with pytest.raises(GateRefused) as refused:
        compare_runs(a, b)
    rows = {row.field: (row.left, row.right) for row in refused.value.differences}
    assert rows == {"numa.balancing": ("off", "on"), "threads": ("8", "16")}


def test_gate_1_rule_5_a_stage_that_does_something_else_is_a_difference() -> None:
    a = judged(plain())
    other = plain(balancing="on")
    stage = other.config.stages[0].model_copy(update={"cmd": "search --fast"})
    b = judged(again(view({"only": FAST}, other.config.model_copy(update={"stages": (stage,)}))))
    with pytest.raises(GateRefused) as refused:
        compare_runs(a, b)
    assert "stages.search.cmd" in {row.field for row in refused.value.differences}


COUNTER = config(code_evidence=CodeEvidence(counter="fast_path"))


def counted(in_baseline: int, in_treatment: int) -> RunView:
    return view(
        {"off": FAST, "on": SLOW},
        COUNTER,
        change=lambda sample: with_effective(
            sample, fast_path=in_treatment if sample.arm.endswith("on") else in_baseline
        ),
    )


def test_gate_1_rule_6_evidence_is_in_the_treatment_and_not_in_the_baseline() -> None:
    assert "code-evidence" not in codes(judge_run(counted(0, 7)).findings)
    for baseline, treatment in ((0, 0), (3, 7), (3, 0)):
        judgement = judge_run(counted(baseline, treatment))
        assert judgement.tag is Tag.UNRELIABLE
        assert "code-evidence" in codes(judgement.findings)


def test_gate_1_rule_6_evidence_that_one_replicate_lacks_is_missing() -> None:
    run = counted(0, 7)
    holes = [
        measured(s, effective={"numa.balancing": "on"}) if s.arm.endswith("on") and s.block == 4
        else s
        for s in run.samples
    ]  # fmt: skip
    judgement = judge_run(replace(run, samples=tuple(holes)))
    assert judgement.tag is Tag.UNRELIABLE
    assert "1 of 10 replicates" in judgement.tag_reason


def test_gate_1_rule_6_a_change_of_code_without_evidence_is_a_caveat() -> None:
    asked = config(
        params={"code": {"commit": "a1"}, "threads": 8},
        treatment_variable="code.commit",
        treatment_values=("b2",),
    )
    judgement = judge_run(view({"a1": FAST, "b2": SLOW}, asked))
    assert "no-code-evidence" in codes(judgement.findings)
    assert judgement.tag is Tag.QUALIFIED
    assert "no-code-evidence" not in codes(judge_run(view({"off": FAST, "on": SLOW})).findings)


def test_gate_1_rule_6_a_line_of_the_log_counts_as_evidence() -> None:
    asked = config(code_evidence=CodeEvidence(log_line="using the fast path"))
    run = view(
        {"off": FAST, "on": SLOW},
        asked,
        change=lambda sample: with_effective(
            sample, **{LOG_EVIDENCE: int(sample.arm.endswith("on"))}
        ),
    )
    assert "code-evidence" not in codes(judge_run(run).findings)


def test_gate_1_rule_6_without_its_evidence_a_run_decides_nothing() -> None:
    (verdict,) = judge_run(counted(3, 7)).verdicts
    assert verdict.decision is Decision.NO_VERDICT
    assert "ran in the baseline" in verdict.reasons[0]


def test_gate_1_rule_6_a_chain_shows_the_evidence_in_one_of_its_stages() -> None:
    run = counted(0, 7)
    trained = [replace(s, stage="train", measurement=Measurement(metrics={})) for s in run.samples]
    chain = replace(run, samples=(*trained, *run.samples))
    assert "code-evidence" not in codes(judge_run(chain).findings)


def coded(commit: str, hits: int | None, number: int, **more: object) -> RunView:
    """A citable run of one arm on a commit, with its count of the changed path."""
    asked = config(treatment=(), params={"engine": {"commit": commit}, "threads": 8}, **more)
    told = {} if hits is None else {"fast_path": hits}
    run = view({"only": FAST}, asked, change=lambda sample: with_effective(sample, **told))
    return replace(judged(again(run, number)), tag=Tag.QUALIFIED)


def test_gate_1_rule_6_two_runs_that_differ_in_code_show_the_evidence_in_one_only() -> None:
    named = {"code_evidence": CodeEvidence(counter="fast_path")}
    new = coded("b2", 5, 2, **named)
    assert not {"code-evidence", "no-code-evidence"} & codes(
        compare_runs(coded("a1", 0, 1), new).findings
    )
    same_path = compare_runs(coded("a1", 4, 1), new)
    assert same_path.tag is Tag.UNRELIABLE
    assert "code-evidence" in codes(same_path.findings)
    blind = compare_runs(coded("a1", None, 1), new)
    assert blind.tag is Tag.QUALIFIED
    assert "no-code-evidence" in codes(blind.findings)
    assert "no-code-evidence" in codes(compare_runs(coded("a1", 0, 1), coded("b2", 5, 2)).findings)


def test_gate_1_rule_1_a_record_that_was_changed_afterwards_is_never_compared() -> None:
    a, b = judged(plain()), judged(again(plain(balancing="on"), 2))
    edited = replace(
        b, config=b.config.model_copy(update={"notes": "b", "params": a.config.params})
    )
    with pytest.raises(GateRefused, match="UNRELIABLE") as refused:
        compare_runs(a, edited)
    assert "changed after it was planned" in refused.value.differences[0].why


def test_gate_1_rule_3_without_a_recipe_runs_of_other_stages_are_another_experiment() -> None:
    run = reliable(view({"off": FAST, "on": SLOW}, config(recipe=None)))
    other = config(recipe=None, params={"numa": {"balancing": "off"}, "depth": 3})
    assert gate1.latest_reliable(other, [run]) is run
    stage = other.stages[0].model_copy(update={"name": "load"})
    elsewhere = other.model_copy(update={"stages": (stage,)})
    assert gate1.latest_reliable(elsewhere, [run]) is None
    gate1.require_justified(elsewhere, Manifest(), [run])


def test_gate_1_rule_4_two_arms_with_one_value_fail_though_a_third_is_silent() -> None:
    run = view(
        {"off": FAST, "on": SLOW, "auto": SLOW},
        change=lambda s: measured(
            s, effective={} if s.arm.endswith("auto") else {"numa.balancing": "off"}
        ),
    )
    judgement = judge_run(run)
    assert {"treatment-never-ran", "treatment-unread"} <= codes(judgement.findings)
    assert judgement.tag is Tag.UNRELIABLE


def test_gate_1_rule_4_a_replicate_that_does_not_report_the_treatment_is_a_caveat() -> None:
    run = view(
        {"off": FAST, "on": SLOW},
        change=lambda s: measured(s, effective={}) if s.order == 3 else s,
    )
    judgement = judge_run(run)
    assert "treatment-unread" in codes(judgement.findings)
    assert judgement.tag is Tag.QUALIFIED


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"metrics_from": MetricsFrom(file="other.json")}, "stages.search.metrics_from"),
        ({"resources": Resources(gpus=2)}, "stages.search.resources.gpus"),
    ],
)
def test_gate_1_rule_5_another_reading_or_another_device_is_a_difference(
    change: dict[str, object], field: str
) -> None:
    a, other = judged(plain()), plain(balancing="on")
    stage = other.config.stages[0].model_copy(update=change)
    b = judged(again(view({"only": FAST}, other.config.model_copy(update={"stages": (stage,)}))))
    with pytest.raises(GateRefused) as refused:
        compare_runs(a, b)
    assert field in {row.field for row in refused.value.differences}

"""The sceptic's reading of a finished run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from benchwright.execution.launch import EndReason
from benchwright.judgement.sceptic import analyze
from benchwright.judgement.verdict import Finding, Tag
from benchwright.judgement.view import RunView
from benchwright.spec.model import Metric, Role
from tests.judgement.views import (
    FAST,
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

FIRST = judged(view({"off": SLOW, "on": FAST}))


def scaled(values: Sequence[float], factor: float) -> list[float]:
    return [value * factor for value in values]


def read(run: RunView, priors: Sequence[RunView] = ()) -> dict[str, Finding]:
    return {finding.code: finding for finding in analyze(run, priors)}


def test_a_quiet_run_is_told_with_number_and_limit() -> None:
    said = read(again(FIRST), [FIRST])
    assert said["steady"].number is not None
    assert said["steady"].limit == 0.10
    assert said["detectable"].limit == 0.01
    assert "nothing-found" in said
    assert said["next"].message.startswith("Nothing is open")


def test_every_finding_is_a_sentence_and_each_step_has_a_command() -> None:
    runs = [
        FIRST,
        view({"off": SLOW[:3], "on": FAST[:3]}),
        view({"off": FAST, "on": SLOW}, change=lambda s: failed(s) if s.order == 2 else s),
        view({"only": FAST}, config(treatment=())),
        view({"off": FAST, "on": SLOW}, change=lambda s: measured(s, effective={"threads": 1})),
    ]
    for run in runs:
        found = analyze(run)
        steps = [finding for finding in found if finding.code == "next"]
        assert steps
        assert steps == list(found[-len(steps) :])
        assert all("benchwright " in step.command for step in steps)
        assert not any("benchwright" in step.message for step in steps)
        for finding in found:
            if finding.code != "next":
                assert finding.message[0].isupper() or finding.message[0].isalnum()
                assert finding.message.endswith("."), finding


def test_failures_come_first() -> None:
    run = view({"off": FAST, "on": SLOW}, change=lambda s: failed(s) if s.order == 2 else s)
    assert analyze(run)[0].failure


def test_an_effect_far_larger_than_any_before_gets_more_scrutiny() -> None:
    run = again(view({"off": SLOW, "on": scaled(FAST, 0.4)}))
    said = read(run, [FIRST])
    assert said["surprising"].number is not None
    assert said["surprising"].number > said["surprising"].limit == 2.0
    assert "surprising" not in read(again(FIRST), [FIRST])


def test_a_factor_of_ten_asks_whether_both_arms_did_the_work() -> None:
    run = view({"off": SLOW, "on": scaled(FAST, 0.05)})
    assert "same work" in read(run)["too-good"].message
    assert "too-good" not in read(FIRST)


def test_a_win_over_a_baseline_that_got_worse_is_seen_through() -> None:
    run = again(view({"off": scaled(SLOW, 1.3), "on": FAST}))
    finding = read(run, [FIRST])["weak-baseline"]
    assert FIRST.run_id in finding.message
    assert "weak-baseline" not in read(again(FIRST), [FIRST])


def test_later_runs_and_unreliable_ones_are_no_yardstick() -> None:
    run = view({"off": SLOW, "on": scaled(FAST, 0.4)})
    assert "surprising" not in read(run, [again(FIRST)])
    assert "surprising" not in read(again(run), [replace(FIRST, tag=Tag.UNRELIABLE)])


def test_an_inconclusive_run_is_told_how_many_replicates_decide() -> None:
    wild = [value * factor for value, factor in zip(FAST, (1.0, 1.06) * 5, strict=True)]
    run = view({"off": wild, "on": wild[1:] + wild[:1]})
    steps = [f.command for f in analyze(run, (), "benchwright run x.yaml")]
    assert any(step.startswith("benchwright run x.yaml --replicates ") for step in steps)


def test_too_few_replicates_are_told_how_many_it_takes() -> None:
    steps = [f.command for f in analyze(view({"off": SLOW[:3], "on": FAST[:3]}))]
    assert any("--replicates" in step for step in steps)


def test_a_guards_end_points_at_the_logs() -> None:
    run = view(
        {"off": FAST, "on": SLOW},
        change=lambda s: failed(s, EndReason.MEMORY, "2,100 of 2,000 MB") if s.order == 2 else s,
    )
    found = analyze(run)
    assert "guard-ended" in codes(found)
    assert f"benchwright status {run.run_id}" in [step.command for step in found]


def test_a_restless_secondary_metric_sends_nobody_to_the_doctor() -> None:
    tail = Metric(name="p99_ms", unit="ms", role=Role.SECONDARY)
    wild = [value * factor for value, factor in zip(FAST, (1, 3) * 5, strict=True)]
    run = view(
        {"off": {"p50_ms": SLOW, "p99_ms": wild}, "on": {"p50_ms": FAST, "p99_ms": wild}},
        config(metrics=[P50, tail]),
    )
    found = analyze(judged(run))
    assert "spread" in codes(found)
    steps = " ".join(f"{step.message} {step.command}" for step in found if step.code == "next")
    assert "doctor" not in steps
    assert "Run it once more, unchanged" in steps


def test_a_run_of_one_arm_is_told_with_which_run_to_compare_it() -> None:
    asked = config(treatment=())
    first = replace(judged(view({"only": FAST}, asked)), tag=Tag.QUALIFIED)
    found = analyze(again(view({"only": FAST[::-1]}, asked), 2), [first])
    assert any(step.command.startswith(f"benchwright compare {first.run_id} ") for step in found)


def test_an_answered_question_is_run_again_only_with_a_reason() -> None:
    step = read(judged(again(FIRST), [FIRST]), [FIRST])["next"]
    assert "--because" in step.command


def test_a_tag_that_stood_on_a_run_lowered_since_is_said_not_to_stand_any_more() -> None:
    second = judged(again(FIRST), [FIRST])
    assert second.tag is Tag.RELIABLE
    assert "tag-of-today" not in read(second, [FIRST])
    found = read(second, [replace(FIRST, tag=Tag.UNRELIABLE)])
    assert "RELIABLE, and with what is known today it would be QUALIFIED" in (
        found["tag-of-today"].message
    )


def test_what_is_too_good_is_looked_into_first_and_is_not_called_clean() -> None:
    found = analyze(view({"off": SLOW, "on": scaled(FAST, 0.05)}))
    assert "nothing-found" not in codes(found)
    steps = [finding.message for finding in found if finding.code == "next"]
    assert "both arms" in steps[0]


def test_a_run_that_failed_is_mended_before_it_is_made_longer() -> None:
    run = view({"off": SLOW[:3], "on": FAST[:3]}, change=lambda s: failed(s) if s.order else s)
    steps = [finding for finding in analyze(run) if finding.code == "next"]
    assert not any("--replicates" in step.command for step in steps)
    assert any(step.message == "Mend what failed, then run it again" for step in steps)

"""The tags: the table of the fairness rules, row by row."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from benchwright.errors import BadInput, GateRefused
from benchwright.identity.fingerprint import Fingerprint
from benchwright.judgement.judge import judge_run
from benchwright.judgement.reclassify import LOWER, check_lowering, parse_tag
from benchwright.judgement.tags import TABLE, Evidence, tag
from benchwright.judgement.verdict import Finding, Tag
from benchwright.judgement.view import RunView
from tests.judgement.views import FAST, FINGERPRINT, SLOW, again, config, judged, view

FIRST = judged(view({"off": FAST, "on": SLOW}))


def later(before: Sequence[float], after: Sequence[float], number: int = 2) -> RunView:
    return again(view({"off": before, "on": after}), number)


def scaled(values: Sequence[float], factor: float) -> list[float]:
    return [value * factor for value in values]


def test_a_first_run_that_passes_both_gates_is_qualified() -> None:
    assert FIRST.tag is Tag.QUALIFIED
    assert "no earlier run" in FIRST.judgement.tag_reason


def test_a_run_that_an_earlier_one_confirms_is_reliable() -> None:
    judgement = judge_run(later(SLOW[:0] + FAST[::-1], SLOW[::-1]), [FIRST])
    assert judgement.tag is Tag.RELIABLE
    assert FIRST.run_id in judgement.tag_reason


def test_another_configuration_hash_confirms_nothing() -> None:
    other = replace(FIRST, config_hash="0" * 64)
    assert judge_run(later(FAST, SLOW), [other]).tag is Tag.QUALIFIED


def test_another_machine_confirms_nothing() -> None:
    elsewhere = Fingerprint({**FINGERPRINT.fields, "machine.cpu_model": "Xeon"})
    judgement = judge_run(later(FAST, SLOW), [replace(FIRST, fingerprint=elsewhere)])
    assert judgement.tag is Tag.QUALIFIED
    assert judgement.tag_reason == (
        f"Both gates passed; {FIRST.run_id} has the same configuration and can't confirm it, for "
        "machine.cpu_model is not the same."
    )


@pytest.mark.parametrize("label", [Tag.UNRELIABLE, Tag.EXPLORATORY, None])
def test_only_a_citable_run_confirms(label: Tag | None) -> None:
    assert judge_run(later(FAST, SLOW), [replace(FIRST, tag=label)]).tag is Tag.QUALIFIED


def test_a_run_does_not_confirm_itself_or_an_earlier_one() -> None:
    assert judge_run(FIRST, [FIRST]).tag is Tag.QUALIFIED
    assert judge_run(FIRST, [judged(later(FAST, SLOW))]).tag is Tag.QUALIFIED


def test_the_latest_earlier_run_is_asked_not_the_one_that_agrees() -> None:
    off = judged(later(scaled(FAST, 1.07), scaled(SLOW, 1.07)))
    assert judge_run(later(FAST, SLOW, 3), [FIRST, off]).tag is Tag.QUALIFIED


def test_a_control_within_twice_its_tolerance_is_a_caveat() -> None:
    judgement = judge_run(later(scaled(FAST, 1.08), scaled(SLOW, 1.08)), [FIRST])
    assert judgement.tag is Tag.QUALIFIED
    assert "The control p50_ms in balancing=off" in judgement.tag_reason
    assert "1.6 times its tolerance" in judgement.tag_reason


def test_a_control_beyond_twice_its_tolerance_is_unreliable() -> None:
    judgement = judge_run(later(scaled(FAST, 1.2), scaled(SLOW, 1.2)), [FIRST])
    assert judgement.tag is Tag.UNRELIABLE
    assert "the ground moved" in judgement.tag_reason


def test_a_treatment_outside_its_tolerance_is_not_reproduced() -> None:
    judgement = judge_run(later(FAST, scaled(SLOW, 1.1)), [FIRST])
    assert judgement.tag is Tag.QUALIFIED
    assert "not reproduced" in judgement.tag_reason


def test_another_decision_is_not_reproduced() -> None:
    close = judged(view({"off": FAST, "on": scaled(FAST[3:] + FAST[:3], 1.03)}))
    judgement = judge_run(later(FAST, FAST[3:] + FAST[:3]), [close])
    assert judgement.tag is Tag.QUALIFIED
    assert "decided otherwise" in judgement.tag_reason


def test_a_first_run_of_one_arm_has_nothing_to_compare_to() -> None:
    alone = judged(view({"only": FAST}, config(treatment=())))
    assert alone.tag is Tag.EXPLORATORY
    second = judged(again(alone), [alone])
    assert second.tag is Tag.QUALIFIED
    third = judge_run(again(alone, 3), [alone, second])
    assert third.tag is Tag.RELIABLE


def test_more_than_one_treatment_is_exploratory() -> None:
    run = view({"off": FAST, "on": SLOW}, overrides={"more-than-one-treatment": "no time"})
    judgement = judge_run(run)
    assert judgement.tag is Tag.EXPLORATORY
    assert any("no time" in finding.message for finding in judgement.findings)


def test_what_was_seen_while_it_ran_counts() -> None:
    killed = Finding("guard", "The guard ended the run at 2,100 of 2,000 MB.", failure=True)
    assert judge_run(view({"off": FAST, "on": SLOW}, findings=(killed,))).tag is Tag.UNRELIABLE
    gap = Finding("monitoring-gap", "Memory wasn't watched for 3 s.", caveat=True)
    first = view({"off": FAST, "on": SLOW}, findings=(gap,))
    judgement = judge_run(again(first), [judged(first)])
    assert judgement.tag is Tag.QUALIFIED
    assert judgement.tag_reason == gap.message


def test_a_failure_outweighs_all_else_and_too_few_units_outweigh_a_caveat() -> None:
    failure = Finding("x", "It failed.", failure=True)
    caveat = Finding("y", "It is doubtful.", caveat=True)
    assert tag(Evidence([caveat, failure], fewest=2)) == (Tag.UNRELIABLE, "It failed.")
    assert tag(Evidence([caveat], fewest=2))[0] is Tag.EXPLORATORY
    assert tag(Evidence([caveat], fewest=5)) == (Tag.QUALIFIED, "It is doubtful.")
    assert TABLE[-1].applies(Evidence([], fewest=0))


def test_a_tag_is_lowered_only() -> None:
    order = [Tag.RELIABLE, Tag.QUALIFIED, Tag.EXPLORATORY, Tag.UNRELIABLE]
    for place, now in enumerate(order):
        for other, to in enumerate(order):
            if other > place:
                check_lowering(now, to)
            else:
                with pytest.raises(GateRefused, match="by running again") as refused:
                    check_lowering(now, to)
                assert refused.value.exit_code == 3
    assert set(LOWER) == set(Tag)


def test_a_run_without_a_tag_has_none_to_lower() -> None:
    with pytest.raises(GateRefused, match="no tag yet"):
        check_lowering(None, Tag.UNRELIABLE)


def test_a_tag_is_read_in_any_case_and_a_wrong_one_is_refused() -> None:
    assert parse_tag(" qualified ") is Tag.QUALIFIED
    with pytest.raises(BadInput, match="there is no tag 'GOOD'"):
        parse_tag("GOOD")

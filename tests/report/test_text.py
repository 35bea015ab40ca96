"""What the terminal shows, and the JSON and the artifact beside it."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest

from benchwright.errors import BadInput, Difference
from benchwright.judgement.compare import Comparison
from benchwright.judgement.verdict import Finding, Tag
from benchwright.record.index import read_index
from benchwright.record.run import RunRecord, Status
from benchwright.report.artifact import MOST_BYTES, render_artifact
from benchwright.report.course import course_of, render_course, render_course_html
from benchwright.report.json import comparison_json, run_json
from benchwright.report.outcome import condensed
from benchwright.report.text import (
    render_analysis,
    render_comparison,
    render_history,
    render_run,
)
from tests.record.test_index import _row
from tests.record.test_store import finish, start
from tests.report.planted import planted
from tests.report.sample_record import bare_record, record

ESCAPE = "\x1b"


def words(text: str) -> str:
    """The text without the line ends that wrapping put in."""
    return " ".join(text.split())


def test_a_run_ends_with_its_arms_its_verdict_its_tag_and_why() -> None:
    text = words(render_run(record()))
    for said in (
        "p50_ms (ms) max_num_segments=16 10 11.93 11.87 11.35 12.68 3.42 %",
        "max_num_segments=1 9 1.228 1.222 1.183 1.284 2.26 %",
        "better p50_ms is 89.8 % lower with max_num_segments=1 (ratio 0.1024, 95 % interval 0.0994",
        "could tell a change of 4.15 % from none",
        "held guardrail: recall@10 with max_num_segments=1 is unchanged; allowed: at most",
        "hypothesis PARTIAL: the numbers hold",
        "UNRELIABLE a replicate failed: max_num_segments=1 in block 6",
        "database is locked",
    ):
        assert said in text


def test_the_report_is_named_once_it_is_there(tmp_path: Path) -> None:
    folder = start(tmp_path)
    finish(folder)
    assert "report  " not in render_run(folder.read())
    path = folder.write_report("report.html", "x")
    assert f"report        {path}\n" in render_run(folder.read())
    assert run_json(folder.read())["report_html"] == str(path)


def test_without_a_terminal_there_is_no_colour_and_with_one_no_word_is_lost() -> None:
    plain, coloured = render_run(record()), render_run(record(), color=True)
    assert ESCAPE not in plain
    assert ESCAPE in coloured
    stripped = re.sub(r"\x1b\[[0-9;]*m", "", coloured)
    assert set(plain.split()) <= set(stripped.split())


@pytest.mark.parametrize("whole", [planted(), bare_record()])
def test_what_a_stage_printed_moves_no_cursor(whole: RunRecord) -> None:
    text = render_run(whole) + render_artifact(whole)
    assert not re.search(r"[\x00-\x09\x0b-\x1f\x7f-\x9f\u202e]", text)


def test_an_analysis_gives_each_number_with_its_limit_and_ends_with_a_command() -> None:
    view = record().view
    assert view.judgement is not None
    step = Finding("next", "Run it once more", command="cd '/a b' && benchwright run x.yaml")
    printed = render_analysis(view, (*view.judgement.findings, step))
    text = words(printed)
    assert (
        "p50_ms in max_num_segments=16 spreads by 3.4 % between replicates. (0.034, limit 0.1)"
        in text
    )
    assert "caveat unverified:" in text
    assert "next Run it once more:" in text
    assert any(line.strip() == step.command for line in printed.splitlines()), "to be copied"


def test_an_analysis_without_an_objection_says_so() -> None:
    assert "Nothing to object to" in render_analysis(record().view, ())


def compared() -> Comparison:
    """Two runs of the sample's two arms, one kernel apart."""
    said = record().view.judgement
    assert said is not None
    return Comparison(
        left="2026-03-01_x_aa11bb",
        right="2026-03-02_x_3fa91c",
        treatment="forcemerge.max_num_segments",
        verdicts=said.verdicts,
        guardrails=(replace(said.guardrails[0], held=None, reason="recall@10 is unknown."),),
        tag=Tag.QUALIFIED,
        tag_reason="the runs were not interleaved",
        findings=(Finding("not-interleaved", "They were not interleaved.", caveat=True),),
        allowed=(Difference("machine.kernel", "6.8", "6.9", "another scheduler"),),
    )


def test_a_comparison_says_its_verdict_its_caveats_and_what_was_allowed() -> None:
    text = words(render_comparison(compared()))
    for said in (
        "2026-03-02_x_3fa91c against 2026-03-01_x_aa11bb",
        "what differs: forcemerge.max_num_segments",
        "better p50_ms is 89.8 % lower",
        "unknown guardrail: recall@10 is unknown.",
        "QUALIFIED the runs were not interleaved",
        "allowed machine.kernel: 6.8 against 6.9. another scheduler",
        "caveat not-interleaved: They were not interleaved.",
    ):
        assert said in text
    data = json.loads(json.dumps(comparison_json(compared()), allow_nan=False))
    assert (data["baseline"], data["tag"]) == ("2026-03-01_x_aa11bb", "QUALIFIED")
    assert data["verdicts"][0]["decision"] == "better"
    assert data["guardrails"][0]["held"] is None
    assert data["allowed"] == [
        {
            "field": "machine.kernel",
            "baseline": "6.8",
            "treatment": "6.9",
            "why": "another scheduler",
        }
    ]


def test_history_is_a_table_that_lines_up() -> None:
    lines = render_history([_row(1), _row(2, status="INTERRUPTED", note="x")]).splitlines()
    assert lines[0].split() == ["run", "status", "tag", "result", "note"]
    assert len({line.index("QUALIFIED") for line in lines[1:]}) == 1
    assert "no run that fits is recorded here" in render_history([])


def test_json_has_what_a_script_needs_and_no_nan() -> None:
    whole = record()
    said = json.loads(json.dumps(run_json(whole), allow_nan=False))
    assert said["run_id"] == whole.view.run_id
    assert (said["status"], said["tag"]) == ("COMPLETED", "UNRELIABLE")
    assert said["cache"] == {"hits": 1, "misses": 1}
    arm = said["arms"]["max_num_segments=1"]["p50_ms"]
    assert arm["n"] == 9
    assert {"n", "mean", "median", "min", "max"} <= set(arm)
    (verdict,) = said["verdicts"]
    assert (verdict["decision"], verdict["effect"]) == ("better", 0.1024)
    assert verdict["interval"] == {"low": 0.0994, "high": 0.1055, "level": 0.95}
    assert said["replicates"] == {"expected": 22, "finished": 21, "failed": 1}
    assert said["report"] is None


def test_json_of_a_run_that_was_not_judged_has_the_same_keys() -> None:
    bare = run_json(bare_record())
    assert set(bare) == set(run_json(record()))
    assert (bare["tag"], bare["arms"], bare["verdicts"]) == (None, {}, [])


@pytest.mark.parametrize("whole", [record(), bare_record(), planted()])
def test_the_artifact_is_short_and_says_what_went_wrong(whole: RunRecord) -> None:
    text = render_artifact(whole)
    assert len(text.encode()) < MOST_BYTES
    assert "What went wrong or remained unknown:\n\n- " in text


def test_the_artifact_stays_short_with_many_long_verdicts() -> None:
    whole = record()
    said = whole.view.judgement
    assert said is not None
    arm = replace(said.verdicts[0].treatment, arm="&<>" * 300)
    verdicts = (replace(said.verdicts[0], treatment=arm),) * 100
    view = replace(whole.view, judgement=replace(said, verdicts=verdicts, tag_reason="&" * 9000))
    text = render_artifact(replace(whole, view=view, error="<" * 9000))
    assert len(text.encode()) < MOST_BYTES
    assert "and 92 more in the report" in text


def test_the_artifact_of_a_run_that_compares_nothing_has_its_figures() -> None:
    whole = record()
    said = whole.view.judgement
    assert said is not None
    view = replace(whole.view, judgement=replace(said, verdicts=()))
    text = render_artifact(replace(whole, view=view)).replace("\\", "")
    assert "| p50_ms | max_num_segments=16 | 10 | 11.93" in text
    one = next(iter(said.summaries.values()))
    many = {f"{'&<>' * 20}{number}": one for number in range(100)}
    view = replace(whole.view, judgement=replace(said, verdicts=(), summaries=many))
    text = render_artifact(replace(whole, view=view, error="<" * 9000))
    assert len(text.encode()) < MOST_BYTES
    shown = sum(line.startswith("| p50") for line in text.replace("\\", "").splitlines())
    assert f"and {len(many) - shown} more in the report" in text


def history_of(home: Path, factors: list[float]) -> list[str]:
    """Runs whose means are the sample's times a factor, tagged in turn."""
    tags = list(Tag)
    for number, factor in enumerate(factors):
        folder = start(home)
        whole = finish(folder)
        said = whole.view.judgement
        assert said is not None
        summaries = {
            arm: {name: replace(s, mean=(s.mean or 0) * factor) for name, s in of_arm.items()}
            for arm, of_arm in said.summaries.items()
        }
        judgement = replace(said, summaries=summaries, tag=tags[number % len(tags)])
        folder.write_results(replace(whole, view=replace(whole.view, judgement=judgement)))
    return [row.run_id for row in read_index(home)]


def test_a_metrics_course_is_drawn_with_its_band_for_each_arm(tmp_path: Path) -> None:
    ids = history_of(tmp_path, [1.0, 1.0, 1.2, 1.2])
    course = course_of(tmp_path, ids, "p50_ms")
    assert [point.run_id for point in course.points[::2]] == ids
    first = course.points[0]
    assert first.low is not None
    assert first.high is not None
    assert first.low < first.value < first.high
    # t(0.975; 9) = 2.262: mean 11.93, spread 3.42 % of it, 10 units.
    assert first.high - first.value == pytest.approx(2.262 * 0.0342 * 11.93 / 10**0.5, rel=2e-3)
    text = render_course(course)
    for mark in "●◆○×░":
        assert mark in text
    assert "p50_ms (ms) with max_num_segments=16, 4 runs" in text
    top = text.splitlines()[1]
    assert float(top.split()[0]) == pytest.approx(
        course.points[-2].high or course.points[-1].high, rel=0.2
    )
    page = render_course_html(course)
    assert '<div class="plot" id="course"' in page
    assert ids[-1] in page


def test_a_course_of_one_run_or_of_equal_values_is_drawn(tmp_path: Path) -> None:
    ids = history_of(tmp_path, [1.0])
    course = course_of(tmp_path, ids, "recall@10")
    assert "0.98" in render_course(course)


def test_a_metric_that_no_run_has_is_refused_with_those_that_there_are(tmp_path: Path) -> None:
    ids = history_of(tmp_path, [1.0])
    with pytest.raises(BadInput, match=r"(?s)--metric: none of 1 runs measured 'p99'.*p50_ms"):
        course_of(tmp_path, ids, "p99")


def test_a_damaged_run_is_left_out_of_a_course_and_said(tmp_path: Path) -> None:
    ids = history_of(tmp_path, [1.0, 1.0])
    (tmp_path / "runs" / ids[0] / "results.yaml").write_text("arms: [\n")
    course = course_of(tmp_path, ids, "p50_ms")
    assert {point.run_id for point in course.points} == {ids[1]}
    assert f"not shown: {ids[0]} can't be read" in render_course(course)


def test_remarks_of_one_kind_on_secondary_metrics_are_one_line() -> None:
    def spread(metric: str, number: float, *, caveat: bool = False) -> Finding:
        said = f"{metric} spreads by {number}."
        return Finding("spread", said, number=number, caveat=caveat, metric=metric)

    config = record().view.config
    findings = [
        spread("p95_ms", 0.2),
        spread("p50_ms", 0.3),
        spread("p99_ms", 0.6),
        spread("qps", 0.4),
        spread("p95_ms", 0.5, caveat=True),
    ]
    assert list(condensed(findings, config)) == [
        "p99_ms spreads by 0.6. Likewise p95_ms and qps.",
        "p50_ms spreads by 0.3.",
        "p95_ms spreads by 0.5.",
    ]


def test_a_run_that_measured_nothing_shows_what_ended_it_and_no_empty_table() -> None:
    whole = record()
    said = whole.view.judgement
    assert said is not None
    empty = {
        arm: {name: replace(one, n=0) for name, one in of_arm.items()}
        for arm, of_arm in said.summaries.items()
    }
    view = replace(whole.view, judgement=replace(said, summaries=empty))
    text = render_run(replace(whole, view=view, status=Status.FAILED, error="bash: no such file"))
    assert "bash: no such file" in text
    assert "UNRELIABLE" in text
    for noise in ("unknown", "median", "guardrail", "hypothesis", "unclear"):
        assert noise not in text


def test_what_the_tag_says_is_said_once() -> None:
    whole = record()
    said = whole.view.judgement
    assert said is not None
    trust = "Nothing says which value the treatment used."
    judged = replace(
        said,
        findings=(Finding("unverified", trust, caveat=True),),
        tag=Tag.QUALIFIED,
        tag_reason=f"{trust} (1 more caveat)",
        hypothesis_reason=f"Expected: p50_ms better; seen: 9 % lower. Unexplained: {trust}",
    )
    view = replace(whole.view, judgement=judged, tag=Tag.QUALIFIED)
    text = words(render_run(replace(whole, view=view)))
    assert text.count(trust) == 1
    assert "Unexplained: see below." in text

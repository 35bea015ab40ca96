"""`report.md`: the ten sections in their order, and nothing in it but what we wrote."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import replace

import pytest
from markdown_it import MarkdownIt

from benchwright.identity.fingerprint import Fingerprint
from benchwright.judgement.gate1 import VERIFIED
from benchwright.judgement.statistics import deviation
from benchwright.judgement.verdict import Decision, Finding, Tag
from benchwright.judgement.view import RunView
from benchwright.record.lessons import Entry
from benchwright.record.run import RunRecord, Status
from benchwright.report.background import Background
from benchwright.report.markdown import escape, render_markdown
from benchwright.report.outcome import went_wrong
from benchwright.report.sections import TITLES
from tests.judgement.views import FAST, again, config, judged, view
from tests.report.planted import planted
from tests.report.sample_record import FINGERPRINT, TREATMENT, bare_record, record, steps_record

RENDERER = MarkdownIt("commonmark", {"html": True}).enable(["table", "strikethrough"])


def section(text: str, title: str) -> str:
    """What stands below a heading."""
    return text.partition(f"\n## {title}\n")[2].partition("\n## ")[0]


@pytest.mark.parametrize(
    "whole",
    [
        record(),
        steps_record(),
        bare_record(),
        bare_record(Status.IN_PROGRESS),
        bare_record(Status.INTERRUPTED),
    ],
)
def test_fairness_every_report_has_its_sections_in_order(whole: RunRecord) -> None:
    assert TITLES == (
        "Run summary",
        "Primary metrics",
        "Verdict and why",
        "What went well",
        "What went wrong or remained unknown",
        "Risks and limits",
        "Comparison with prior runs",
        "Lessons",
        "Next steps",
        "How to run it again",
    )
    text = render_markdown(whole)
    assert tuple(re.findall(r"^## (.*)$", text, re.MULTILINE)) == TITLES
    for title in TITLES:
        assert section(text, title).strip(), title


def test_primary_metrics_show_expected_observed_prior_change_and_interval() -> None:
    prior = replace(record().view, run_id="2026-03-01_retrieval-index_aa11bb", tag=Tag.RELIABLE)
    text = section(render_markdown(record(), Background(priors=(prior,))), "Primary metrics")
    assert "| Expected | Baseline | Observed | Prior | Change | 95 % interval | Decision |" in text
    assert (
        "| p50_ms | max_num_segments=1 | better, 80 % lower | 11.93 ms | 1.228 ms | 1.228 ms "
        "| −89.8 % | −90.1 % to −89.5 % | better |"
    ) in text


def test_a_prior_that_may_not_be_cited_gives_no_prior_value() -> None:
    prior = replace(record().view, tag=Tag.UNRELIABLE)
    text = section(render_markdown(record(), Background(priors=(prior,))), "Primary metrics")
    assert "| none | −89.8 % |" in text


def test_what_the_steps_of_a_graph_without_arms_returned_is_shown() -> None:
    text = section(render_markdown(steps_record()), "Run summary")
    assert '| Step research | {"size_gb": 0.5, "note": "&lt;b>small&lt;/b>"} |' in text
    assert '| Step execute | "ok" |' in text
    assert "| Treatment | none: one arm |" in text


def test_earlier_runs_stand_beside_this_one_with_what_differs_on_the_ground() -> None:
    view = record().view
    moved = Fingerprint({**FINGERPRINT.fields, "machine.kernel": "6.9.0"})
    earlier = replace(view, run_id="2026-03-01_x_aa11bb", fingerprint=moved, config_hash="0" * 64)
    text = section(
        render_markdown(record(), Background(priors=(earlier,))), "Comparison with prior runs"
    )
    first, last = text.strip().splitlines()[-2:]
    assert first.startswith("| 2026-03-01_x_aa11bb | UNRELIABLE | another | differs: ")
    assert "machine.kernel" in first
    assert first.endswith("| 11.93 ms | 1.228 ms |")
    assert "| this run | this run | 11.93 ms | 1.228 ms |" in last


def test_fairness_what_went_wrong_has_failures_first_then_caveats_then_remarks() -> None:
    text = section(render_markdown(record()), "What went wrong or remained unknown")
    order = [
        "1 replicate of search in max_num_segments=1 failed",
        "The manifest asks for corpus.n_docs",
        "machine.governor and accelerator.driver could not be read",
        "spreads by 3.4 %",
        "It was not reproduced by a second run yet.",
    ]
    places = [text.index(said) for said in order]
    assert places == sorted(places)


def test_fairness_what_went_wrong_in_a_run_that_was_not_judged_is_read_off_the_record() -> None:
    whole = record()
    lost = replace(
        whole,
        view=replace(whole.view, judgement=None, tag=None, samples=whole.view.samples[:18]),
        status=Status.INTERRUPTED,
        error="the process that ran it ended without a word",
    )
    text = section(render_markdown(lost), "What went wrong or remained unknown")
    for said in (
        "The run ended as INTERRUPTED: the process that ran it ended without a word.",
        "in block 6 failed (failed, exit code 1): exit code 1: database is locked",
        "4 replicates of 22 did not run.",
        "The challenge guardrails was overridden: recall is checked by another run",
        "Could not be read: machine.governor and accelerator.driver.",
        "was not in the cache and was built in 12.8 s: no earlier signature",
        "Nothing was judged.",
    ):
        assert said in text


def test_fairness_what_went_wrong_is_never_empty_for_a_run_without_a_fault() -> None:
    whole = record()
    judgement = whole.view.judgement
    assert judgement is not None
    clean = replace(
        whole,
        view=replace(
            whole.view,
            samples=tuple(s for s in whole.view.samples if s.ok),
            expected=21,
            fingerprint=Fingerprint({"machine.cpu_model": "x"}),
            prep=(),
            overrides={},
            tag=Tag.RELIABLE,
            judgement=replace(judgement, findings=(), tag=Tag.RELIABLE),
        ),
    )
    text = section(render_markdown(clean), "What went wrong or remained unknown").strip()
    assert text == (
        "- Nothing was seen to go wrong in 21 replicates. Not looked at: other machines, other "
        "inputs and other loads than this one."
    )


def test_many_failures_are_counted_after_the_first_few() -> None:
    whole = record()
    failed = next(s for s in whole.view.samples if not s.ok)
    view = replace(whole.view, samples=(failed,) * 30, expected=30, judgement=None, tag=None)
    many = replace(whole, view=view)
    text = section(render_markdown(many), "What went wrong or remained unknown")
    assert "25 more replicates failed." in text
    assert text.count("\n- ") < 20


def test_flags_and_the_audit_stand_in_the_report() -> None:
    text = render_markdown(
        replace(record(), flagged=("it was compared with X",), audit=("lowered by ann: why",))
    )
    assert "| Flagged | it was compared with X |" in section(text, "Run summary")
    assert "| Tag | UNRELIABLE: lowered by ann: why |" in section(text, "Run summary")
    assert "compared with X" in section(text, "What went wrong or remained unknown")


def test_lessons_and_risks_that_were_applied_stand_in_their_sections() -> None:
    around = Background(
        notes=(
            Entry("L0001", "2026-01-02", "Merge before you measure."),
            Entry("R0003", "2026-01-03", "The disk may be shared."),
        )
    )
    text = render_markdown(record(), around)
    assert "L0001 (2026-01-02): Merge before you measure." in section(text, "Lessons")
    assert "R0003 (2026-01-03): The disk may be shared." in section(text, "Risks and limits")


@pytest.mark.parametrize(
    ("status", "tag", "command"),
    [
        (Status.IN_PROGRESS, None, "benchwright status 2026-03-02_retrieval-index_3fa91c --follow"),
        (Status.INTERRUPTED, None, "benchwright resume 2026-03-02_retrieval-index_3fa91c"),
        (Status.FAILED, None, "benchwright status 2026-03-02_retrieval-index_3fa91c"),
        (Status.COMPLETED, Tag.QUALIFIED, "benchwright run experiment.yaml -p corpus.n_docs=20000"),
        (Status.COMPLETED, Tag.RELIABLE, "benchwright analyze 2026-03-02_retrieval-index_3fa91c"),
    ],
)
def test_next_steps_are_commands_that_fit_the_outcome(
    status: Status, tag: Tag | None, command: str
) -> None:
    whole = replace(record(), status=status)
    text = section(render_markdown(replace(whole, view=replace(whole.view, tag=tag))), "Next steps")
    assert f"```sh\n{command}\n```" in text


def test_an_undecided_run_says_how_many_replicates_the_next_one_needs() -> None:
    whole = record()
    said = whole.view.judgement
    assert said is not None
    undecided = replace(said.verdicts[0], decision=Decision.INCONCLUSIVE, replicates_needed=58)
    whole = replace(whole, view=replace(whole.view, judgement=replace(said, verdicts=(undecided,))))
    text = render_markdown(whole)
    assert "--replicates 58\n" in section(text, "Next steps")


def test_the_last_section_runs_the_same_again_from_the_same_folder() -> None:
    text = section(render_markdown(record()), "How to run it again")
    command = "cd /srv/experiment && benchwright run experiment.yaml -p corpus.n_docs=20000"
    assert f"```sh\n{command}\n```" in text
    assert "| Seed | 20250101 |" in text


def test_no_number_is_nan_or_none() -> None:
    whole = record()
    said = whole.view.judgement
    assert said is not None
    unknown = {
        arm: {name: replace(s, mean=None, spread=float("nan")) for name, s in of_arm.items()}
        for arm, of_arm in said.summaries.items()
    }
    verdict = replace(
        said.verdicts[0], effect=None, detectable=None, treatment=unknown[TREATMENT]["p50_ms"]
    )
    text = render_markdown(
        replace(
            whole,
            view=replace(
                whole.view, judgement=replace(said, summaries=unknown, verdicts=(verdict,))
            ),
        )
    )
    assert not re.search(r"\b(nan|NaN|None|inf|Infinity)\b", text)
    assert "unknown" in section(text, "Primary metrics")


def test_planted_markup_is_only_text() -> None:
    text = render_markdown(planted())
    shown = RENDERER.render(text)
    for element in ("<script", "<img", "<svg", "<a ", "<em>", "<del>"):
        assert element not in shown
    assert re.findall(r"<h([1-6])>", shown) == ["1", *["2"] * len(TITLES)]
    # Bold are our own captions only.
    assert set(re.findall(r"<strong>(.*?)</strong>", shown)) == {
        "The treatment against the baseline",
        "Every metric in each arm",
        "Guardrails",
    }
    assert not re.search(r"[\x00-\x09\x0b-\x1f\x7f\u202e]", text)


@pytest.mark.parametrize(
    "text",
    [
        "# a", "- a", "+ a", "1. a", "12) a", "> a", "=== a", "*a*", "_a_", "__a__", "`a`", "~~a~~",
        "[a](b)", "![a](b)", "<b>a</b>", "&amp;", "a | b", "a\\", "***", "- - -", "a_b_c", "p50_ms",
        "<https://example.org>", "a<!-- b", "1.5 ms", "[a]: b", "    code", "a  \nb",
    ],
)  # fmt: skip
def test_escaped_text_shows_as_itself(text: str) -> None:
    line = " ".join(text.split())
    assert RENDERER.render(escape(text)) == f"<p>{_html(line)}</p>\n"
    cell = RENDERER.render(f"| x |\n| --- |\n| {escape(text)} |")
    assert f"<td>{_html(line)}</td>" in cell


def _html(text: str) -> str:
    text = text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    return re.sub(r"(https)(?=:)", r"\1<!-- -->", text)


def test_ordinary_names_stay_readable() -> None:
    assert (
        escape("p50_ms of corpus.n_docs=20000: 1.5 ms") == "p50_ms of corpus.n_docs=20000: 1.5 ms"
    )


def test_what_was_verified_is_not_told_as_something_that_went_wrong() -> None:
    run = record()
    verified = replace(run.view, findings=(*run.view.findings, Finding(VERIFIED, "threads")))
    assert went_wrong(replace(run, view=verified)) == went_wrong(run)


def test_a_result_that_is_too_good_is_told_among_what_remained_unknown() -> None:
    run = record()
    assert run.view.judgement is not None
    verdict = replace(run.view.judgement.verdicts[0], effect=0.01)
    said = replace(run.view.judgement, verdicts=(verdict,))
    found = went_wrong(replace(run, view=replace(run.view, judgement=said, tag=Tag.QUALIFIED)))
    assert any("both arms did the same work" in line for line in found)


def test_a_run_of_one_arm_shows_its_change_since_the_prior_and_the_interval_of_its_mean() -> None:
    def one_arm(factor: float, number: int) -> RunView:
        asked = config(treatment=(), recipe=None)
        return judged(again(view({"only": [value * factor for value in FAST]}, asked), number))

    before, now = one_arm(1.0, 1), one_arm(1.1, 2)
    run = RunRecord(now, Status.COMPLETED)
    said = render_markdown(run, Background(priors=(replace(before, tag=Tag.QUALIFIED),)))
    assert said.startswith("# command: p50_ms of search\n")
    row = next(line for line in section(said, "Primary metrics").splitlines() if "| only |" in line)
    assert "+10 %" in row
    assert now.judgement is not None
    low, high = mean_interval(now.judgement.summaries["only"]["p50_ms"].mean, FAST, 1.1)
    assert f"| {low:.4g} to {high:.4g} ms |" in row


def mean_interval(middle: float | None, values: Sequence[float], factor: float) -> list[float]:
    """Student's t interval of the mean of ten values."""
    assert middle is not None
    error = 2.2622 * deviation(values) * factor / math.sqrt(len(values))
    return [middle - error, middle + error]

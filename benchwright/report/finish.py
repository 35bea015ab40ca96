"""The end of a run: recorded, judged, reported, and only then said to have ended.

What it gave is recorded before anything is judged or rendered: a fault in a picture costs no
result. Its status comes last: a run whose process is killed meanwhile has not ended, and `resume`
judges and reports it from what it gave.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from typing import Any

from benchwright.execution.sample import PrepResult, Sample
from benchwright.identity.fingerprint import Fingerprint
from benchwright.judgement.judge import judge_run
from benchwright.judgement.reproduction import confirming
from benchwright.judgement.verdict import Finding
from benchwright.record.audit import record_comparison
from benchwright.record.prior import priors
from benchwright.record.run import RunRecord, Status
from benchwright.record.store import RunFolder
from benchwright.report.background import background
from benchwright.report.html import render_html
from benchwright.report.markdown import render_markdown


def finish_run(
    folder: RunFolder,
    record: RunRecord,
    *,
    status: Status,
    error: str,
    samples: Sequence[Sample],
    prep: Sequence[PrepResult],
    steps: Mapping[str, Any],
    findings: Sequence[Finding],
    fingerprint: Fingerprint,
) -> RunRecord:
    """Judge a run, write its results, its report and its row in the index.

    Args:
        folder: The run's folder.
        record: The run as it was when it started.
        status, error: How it ended.
        samples, prep, steps, findings: What it gave.
        fingerprint: What it ran on.

    Returns:
        The finished record.
    """
    view = replace(
        record.view,
        samples=tuple(samples),
        prep=tuple(prep),
        findings=tuple(findings),
        fingerprint=fingerprint,
    )
    finished = replace(
        record,
        view=view,
        status=status,
        error=error,
        finished=datetime.now().astimezone().isoformat(timespec="seconds"),
        steps=dict(steps),
    )
    folder.write_results(replace(finished, status=Status.IN_PROGRESS, error="", finished=""))
    earlier = [
        prior
        for prior in priors(
            folder.home,
            view.config.domain,
            view.config.recipe,
            config_hash=view.config_hash,
            like=view.config,
        )
        if prior.run_id != view.run_id
    ]
    judgement = judge_run(view, earlier)
    finished = replace(finished, view=replace(view, judgement=judgement, tag=judgement.tag))
    held_against = confirming(view, earlier)
    if held_against is not None:
        # Lowering that run's tag later has to flag this one: its own stands on it.
        record_comparison(folder.home, held_against.run_id, view.run_id, "reproduction")
    around = background(finished)
    folder.write_report("report.md", render_markdown(finished, around))
    folder.write_report("report.html", render_html(finished, around))
    folder.write_results(finished)
    return finished

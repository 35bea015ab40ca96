"""The last task of every run: judge it, write its record and its report, show a summary."""

from __future__ import annotations

from prefect import task
from prefect.artifacts import create_markdown_artifact
from prefect.cache_policies import NO_CACHE

from benchwright.record.run import RunRecord, Status
from benchwright.report.artifact import render_artifact
from benchwright.report.finish import finish_run
from tasks.session import RunSession, session


@task(name="report", persist_result=False, cache_policy=NO_CACHE)
def report(status: str, error: str) -> None:
    """Judge the run, write its record and report, and show a summary in Prefect's pages."""
    run = session()
    finished = conclude(run, Status(status), error)
    create_markdown_artifact(
        key=artifact_key(run.folder.run_id),
        markdown=render_artifact(finished),
        description=f"Result of {run.folder.run_id}",
    )


def conclude(run: RunSession, status: Status, error: str) -> RunRecord:
    """What of a run's end needs no Prefect server: judge it, write its record and its report."""
    run.finished = finish_run(
        run.folder,
        run.record,
        status=status,
        error=error,
        samples=run.samples,
        prep=run.prep,
        steps=run.steps,
        findings=run.findings,
        fingerprint=run.fingerprint,
    )
    run.folder.event({"kind": "run_done", "status": run.finished.status.value})
    return run.finished


def artifact_key(run_id: str) -> str:
    """Key of a run's summary."""
    return f"report-{plain_key(run_id)}"


def plain_key(text: str) -> str:
    """A text as a part of a key: Prefect's have lower-case letters, digits and dashes only."""
    return "".join(c if c.isascii() and c.isalnum() else "-" for c in text.lower())

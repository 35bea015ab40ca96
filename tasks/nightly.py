"""The tasks of the nightly suite: close an entry's night, tell of what got worse."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from prefect import get_run_logger, task
from prefect.artifacts import create_markdown_artifact
from prefect.cache_policies import NO_CACHE
from prefect.events import emit_event
from prefect.runtime import flow_run

from benchwright.record import clock
from benchwright.record.nights import SuiteFolder
from benchwright.report.dashboard import headline, render_summary
from benchwright.report.night import Ended, close_night
from benchwright.report.suite import REGRESSION, Regression, make_board
from benchwright.spec.suite import read_suite
from tasks.report import plain_key


@task(name="judge", persist_result=False, cache_policy=NO_CACHE)
def judge(
    suite_file: str,
    home: str,
    night: str,
    entry: str,
    started: str,
    status: str,
    run_id: str = "",
    error: str = "",
) -> dict[str, Any]:
    """Compare an entry's run with the last RELIABLE one and with its history, and record both.

    Sends the event `benchwright.regression` for each metric that is now surely worse.
    """
    suite = read_suite(suite_file)
    ended = Ended(night, entry, started, status, run_id, error)
    board = close_night(suite, Path(home), ended)
    found = board.regressions(entry) if status == "COMPLETED" else ()
    for regression in found:
        get_run_logger().warning(regression.summary())
        tell(regression, Path(home))
    return {
        "entry": entry,
        "status": status,
        "run_id": run_id,
        "error": error,
        "regressions": [regression.summary() for regression in found],
    }


def tell(regression: Regression, home: Path) -> None:
    """Send the event that automations listen for."""
    related = []
    if flow_run.id:
        related.append(
            {
                "prefect.resource.id": f"prefect.flow-run.{flow_run.id}",
                "prefect.resource.role": "flow-run",
            }
        )
    emit_event(
        event=REGRESSION,
        resource={
            "prefect.resource.id": regression.resource,
            "prefect.resource.name": f"{regression.suite}/{regression.entry}:"
            f" {regression.series.name}",
        },
        related=related,
        payload=regression.payload(home),
    )


@task(name="summary", persist_result=False, cache_policy=NO_CACHE)
def summary(suite_file: str, home: str) -> str:
    """Show the night in Prefect's pages; returns its headline."""
    suite = read_suite(suite_file)
    board = make_board(suite, SuiteFolder(Path(home), suite.name), clock.now_text())
    create_markdown_artifact(
        key=f"nightly-{plain_key(suite.name)}",
        markdown=render_summary(board),
        description=f"The suite {suite.name} on {board.night}",
    )
    return headline(board)

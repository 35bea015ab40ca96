"""`benchwright nightly` and `benchwright dashboard`: a suite, run and shown."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from cli.options import home_option, json_option, open_home
from cli.output import print_json, print_table

if TYPE_CHECKING:
    from benchwright.record.nights import NightRow
    from benchwright.report.suite import Board
    from benchwright.spec.suite import Suite

REGRESSED = 3
"""Exit code with --fail-on-regression where something is newly worse: a gate that refuses."""

_CODES = {
    "COMPLETED": 0,
    "REFUSED": 3,
    "ABORTED_PREFLIGHT": 3,
    "FAILED": 4,
    "ABORTED_GUARDRAIL": 5,
    "INTERRUPTED": 130,
    "SKIPPED": 130,
}
"""Exit code for what became of an entry, by the status of its row; the worst one counts."""


@click.command(
    epilog="\b\nExamples:\n"
    "  benchwright nightly suite.yaml --once\n"
    "  benchwright nightly suite.yaml --once --only gsm8k --json\n"
    "  benchwright nightly suite.yaml\n"
    "\b\nExit codes of --once: 0 done, 2 bad input, 3 an entry was refused (or, with\n"
    "--fail-on-regression, something is newly worse), 4 an entry failed, 5 a guard or a budget\n"
    "ended one, 130 interrupted."
)
@click.argument("target", metavar="SUITE")
@click.option("--once", is_flag=True, help="Run it now, and leave. Default: wait for its schedule.")
@click.option("--only", multiple=True, metavar="ENTRY", help="Run this entry; can be repeated.")
@click.option("--fail-on-regression", is_flag=True, help="Leave with 3 where something got worse.")
@home_option
@json_option
def nightly(
    target: str,
    once: bool,
    only: tuple[str, ...],
    fail_on_regression: bool,
    home: str | None,
    as_json: bool,
) -> int:
    """Run a suite's experiments and checks, and say what got worse.

    Without --once this terminal serves the suite: its schedule stands in Prefect's pages, and
    each night runs in a process of its own until Ctrl-C. With workers, use a deployment instead:
    `prefect deployment run nightly/nightly -p suite=FILE`.
    """
    from benchwright.errors import Where
    from benchwright.spec.suite import chosen

    place = open_home(home)
    file, suite = find_suite(target, place)
    chosen(suite, only, Where(file, key="--only"))
    if not once:
        if only or as_json or fail_on_regression:
            raise click.UsageError("--only, --json and --fail-on-regression need --once")
        serve(file, suite, place, home)
        return 0
    return run_once(file, suite, only, place, home, fail_on_regression, as_json)


def find_suite(target: str, home: Path) -> tuple[Path, Suite]:
    """The file and the suite. Raises BadInput."""
    from benchwright.spec.suite import read_suite, suite_files
    from domains.suites import suite_folders

    file = suite_files(target, suite_folders(home)).resolve()
    return file, read_suite(file)


def run_once(
    file: Path,
    suite: Suite,
    only: Sequence[str],
    place: Path,
    home: str | None,
    fail_on_regression: bool,
    as_json: bool,
) -> int:
    """Run the suite in this process, and say what came of it."""
    from benchwright.errors import BenchwrightError
    from benchwright.record.nights import SuiteFolder
    from cli.server import at_server

    folder = SuiteFolder(place, suite.name)
    before = len(folder.rows())
    with at_server(home):
        from flows.nightly import PROGRESS, nightly

        PROGRESS.set(lambda text: click.echo(text, err=True))
        state: Any = nightly(suite=str(file), only=tuple(only), home=str(place), return_state=True)
    rows = folder.rows()[before:]
    if not rows:
        raise BenchwrightError(
            f"the suite {suite.name} did not run: {state.name}: {state.message or ''}"
        )
    board = board_of(suite, place)
    tonight = {row.entry for row in rows}
    news = [one for one in board.regressions() if one.entry in tonight]
    code = max((_CODES.get(row.status, 1) for row in rows), default=0)
    if not code and news and fail_on_regression:
        code = REGRESSED
    if as_json:
        print_json({**board_json(board), "ran": [_row_json(row) for row in rows]})
    else:
        show(board)
    return code


def serve(file: Path, suite: Suite, place: Path, home: str | None) -> None:
    """Keep the suite's schedule in Prefect's pages, and run its nights, until Ctrl-C."""
    from cli.server import at_server

    with at_server(home) as server:
        if server.local:
            from deployments.local.state import LocalHome

            LocalHome(place.absolute()).keep.touch()  # it may not end between two nights
        from prefect.client.schemas.objects import (
            ConcurrencyLimitConfig,
            ConcurrencyLimitStrategy,
        )
        from prefect.schedules import Cron

        from flows.nightly import nightly as flow

        click.echo(
            f"{suite.name}: {suite.schedule.cron} ({suite.schedule.timezone}),"
            f" {server.api_url.removesuffix('/api')}/deployments; Ctrl-C ends it",
            err=True,
        )
        flow.serve(
            name=suite.name,
            schedules=[Cron(suite.schedule.cron, timezone=suite.schedule.timezone)],
            parameters={"suite": str(file), "home": str(place)},
            tags=["benchwright", "nightly", f"suite:{suite.name}"],
            description=suite.description or None,
            global_limit=ConcurrencyLimitConfig(
                limit=1, collision_strategy=ConcurrencyLimitStrategy.CANCEL_NEW
            ),
            print_starting_message=False,
        )


@click.command(
    epilog="\b\nExamples:\n"
    "  benchwright dashboard suite.yaml\n"
    "  benchwright dashboard suite.yaml --html site/nightly.html"
)
@click.argument("target", metavar="SUITE")
@click.option("--html", metavar="FILE", help="Write the page there, too.")
@home_option
@json_option
def dashboard(target: str, html: str | None, home: str | None, as_json: bool) -> int:
    """Show where each metric of a suite stands, and make its page again."""
    from benchwright.report.dashboard import render_dashboard

    place = open_home(home)
    _, suite = find_suite(target, place)
    board = board_of(suite, place)
    if board.night:
        from benchwright.report.night import write_page

        write_page(board)
    if html is not None:
        Path(html).write_text(render_dashboard(board), encoding="utf-8")
    if as_json:
        print_json(board_json(board))
    else:
        show(board, html)
    return 0


def board_of(suite: Suite, place: Path) -> Board:
    """The suite as it is recorded. Raises BadInput."""
    from benchwright.record import clock
    from benchwright.record.nights import SuiteFolder
    from benchwright.report.suite import make_board

    return make_board(suite, SuiteFolder(place, suite.name), clock.now_text())


def show(board: Board, html: str | None = None) -> None:
    """Print the board as a table, what is news first."""
    from benchwright.report import numbers
    from benchwright.report.dashboard import change_words, headline
    from benchwright.report.plain import cut, one_line
    from benchwright.report.suite import closer, commits_command

    click.echo(headline(board))
    for regression in board.regressions():
        click.echo(f"worse: {one_line(regression.summary())}")
        for command in (commits_command(regression.change),
                        closer(regression.change, board.folder.home)):  # fmt: skip
            if command:
                click.echo(f"  {command}")
    rows = []
    for entry in board.entries:
        latest = entry.latest
        if entry.failed and latest is not None:
            rows.append((entry.entry.name, "", latest.status, "", cut(latest.error, 80)))
        elif latest is None:
            rows.append((entry.entry.name, "", "has not run", "", ""))
        for one in entry.series:
            if not one.watched:
                continue
            history = one.history
            change = history.open or (history.changes[-1] if history.changes else None)
            rows.append(
                (
                    entry.entry.name,
                    one_line(one.name),
                    str(history.standing),
                    numbers.quantity(history.level, history.metric.unit),
                    change_words(history, change) if change else history.said,
                )
            )
    print_table(("entry", "metric", "state", "level", "last change"), rows)
    if board.night:
        click.echo(html or str(board.folder.dashboard), err=not sys.stdout.isatty())


def board_json(board: Board) -> dict[str, Any]:
    """The board as one JSON object."""
    home = board.folder.home
    return {
        "suite": board.suite.name,
        "night": board.night,
        "dashboard": str(board.folder.dashboard),
        "regressions": [one.payload(home) for one in board.regressions()],
        "entries": [
            {
                "entry": entry.entry.name,
                "host": entry.entry.host,
                "latest": _row_json(entry.latest) if entry.latest else None,
                "series": [
                    {
                        "metric": one.history.metric.name,
                        "arm": one.arm,
                        "watched": one.watched,
                        "standing": str(one.history.standing),
                        "said": one.history.said,
                        "level": one.history.level,
                        "against": one.against,
                        "nights": len(one.history.nights),
                    }
                    for one in entry.series
                ],
            }
            for entry in board.entries
        ],
    }


def _row_json(row: NightRow) -> dict[str, Any]:
    return {
        "entry": row.entry,
        "night": row.night,
        "status": row.status,
        "run_id": row.run_id,
        "tag": row.tag,
        "error": row.error,
        "against": row.against.run_id,
    }

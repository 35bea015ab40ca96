"""`benchwright status`: what is running, or where one run stands."""

from __future__ import annotations

from pathlib import Path

import click

from cli.options import home_option, json_option, open_home
from cli.output import print_json, print_table


@click.command(epilog="\b\nExamples:\n  benchwright status\n  benchwright status a1b2c3 --follow")
@click.argument("run", required=False)
@click.option("--follow", "-f", "following", is_flag=True, help="Follow it to its end.")
@home_option
@json_option
def status(run: str | None, following: bool, home: str | None, as_json: bool) -> int:
    """Show what is running, or where RUN stands.

    RUN is a run's id, or a part of it that names one run.
    """
    from benchwright.record.run_id import find_run
    from benchwright.record.store import RunStore

    place = open_home(home, reading=True)
    if run is None:
        return _running(place, as_json)
    folder = RunStore(place).open(find_run(place, run))
    if following and folder.alive():
        from cli.follow import Progress, wait_for_end

        with Progress() as progress:
            wait_for_end(folder, progress)
    folder.settle()
    from cli.run import show_result

    show_result(folder.read(), as_json)
    return 0


def _running(home: Path, as_json: bool) -> int:
    from benchwright.record.index import read_index
    from benchwright.record.store import RunStore

    ended = RunStore(home).settle_lost()
    rows = [
        row for row in read_index(home) if row.status == "IN_PROGRESS" and row.run_id not in ended
    ]
    if as_json:
        print_json({"running": [row.run_id for row in rows]})
    elif rows:
        print_table(
            ("run", "since", "domain", "recipe"),
            [(row.run_id, row.created, row.domain, row.recipe) for row in rows],
        )
    else:
        click.echo("nothing is running; earlier runs: benchwright history")
    return 0

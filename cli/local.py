"""`benchwright up` and `down`: the local Prefect server and engine."""

from __future__ import annotations

import click

from cli.options import home_option, json_option, open_home
from cli.output import print_json


@click.command(epilog="\b\nExample:\n  benchwright up")
@home_option
@json_option
def up(home: str | None, as_json: bool) -> None:
    """Start the local Prefect server and engine, and keep them until `down`.

    The first run starts them too; they then end by themselves after an hour without a run.
    """
    from cli.follow import Progress
    from deployments.local.client import up as start

    with Progress() as progress:
        engine = start(open_home(home), progress.say)
    if as_json:
        print_json({"api_url": engine.api_url, "ui_url": engine.ui_url})
    else:
        click.echo(f"Prefect's pages: {engine.ui_url}")


@click.command(epilog="\b\nExample:\n  benchwright down")
@click.option("--cancel-runs", is_flag=True, help="Cancel runs that are in progress.")
@home_option
@json_option
def down(cancel_runs: bool, home: str | None, as_json: bool) -> None:
    """End the local Prefect server and engine; refused while a run is in progress."""
    from deployments.local.client import down as end

    ended = end(open_home(home), cancel_runs=cancel_runs)
    if as_json:
        print_json({"ended": ended})
    else:
        click.echo(f"ended {ended} process(es)" if ended else "nothing was running")

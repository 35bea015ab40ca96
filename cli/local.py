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

    with Progress(quiet=as_json) as progress:
        engine = start(open_home(home), progress.say)
    if as_json:
        print_json({"api_url": engine.api_url, "ui_url": engine.ui_url})
    else:
        click.echo(f"Prefect's pages: {engine.ui_url}")


@click.command(epilog="\b\nExample:\n  benchwright down")
@home_option
@json_option
def down(home: str | None, as_json: bool) -> None:
    """End the local Prefect server and engine. Runs in progress are cancelled."""
    from deployments.local.client import down as end

    ended = end(open_home(home))
    if as_json:
        print_json({"ended": list(ended)})
    else:
        click.echo("ended: " + ", ".join(ended) if ended else "nothing was running")

"""`benchwright deploy`: tell a Prefect server all that there is."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import click

from cli.options import home_option, json_option, open_home
from cli.output import print_json, print_table

if TYPE_CHECKING:
    from deployments.register import Change

WOULD_CHANGE = 1
"""Exit code of `--check` where something would change."""


@click.command(
    epilog="\b\nExamples:\n"
    "  benchwright deploy\n"
    "  benchwright deploy --check\n"
    "  PREFECT_API_URL=http://127.0.0.1:4200/api benchwright deploy --pool lab\n"
    "\b\nExit codes: 0 done (with --check: nothing would change), 1 with --check: something would\n"
    "change, 2 bad input, 3 refused: the server isn't protected."
)
@click.option("--check", is_flag=True, help="Only say what would change.")
@click.option("--pool", metavar="NAME", help="Work pool of the deployments. Default: benchwright.")
@click.option(
    "--insecure",
    is_flag=True,
    help="Use a server that others reach and that isn't protected; a tag says so.",
)
@home_option
@json_option
def deploy(check: bool, pool: str | None, insecure: bool, home: str | None, as_json: bool) -> int:
    """Tell a Prefect server all that there is: block types, limits, automations, deployments.

    The server is that of $PREFECT_API_URL, else the local one. Repeating it changes nothing that
    is as it should be.
    """
    from cli.server import at_server
    from deployments.security import INSECURE_TAG, is_loopback

    with at_server(home, insecure=insecure) as server:
        from deployments.register import POOL, register
        from flows.submission import DEPLOYED_HOME

        env = {}
        if is_loopback(server.api_url):
            # One machine: a worker that names no home of its own writes where this terminal looks.
            env[DEPLOYED_HOME] = str(open_home(home))
        with quiet_progress() as say:
            changes = register(
                pool=pool or POOL,
                env=env,
                tags=[INSECURE_TAG] if server.insecure else [],
                check=check,
                on_change=lambda change: say(f"{change.kind} {change.name}"),
            )
        changed = [change for change in changes if change.what]
        if as_json:
            print_json(
                {
                    "api_url": server.api_url,
                    "changed": len(changed),
                    "changes": [asdict(change) for change in changes],
                }
            )
        else:
            show(changes, check=check)
            if not check:
                click.echo(f"server: {server.api_url}", err=True)
                if server.local:
                    click.echo(f"next: export PREFECT_API_URL={server.api_url}", err=True)
                click.echo(
                    f"next: prefect worker start --pool {pool or POOL} --type process", err=True
                )
    return WOULD_CHANGE if check and changed else 0


def show(changes: tuple[Change, ...], *, check: bool) -> None:
    """Print what was changed, or would be."""
    changed = [change for change in changes if change.what]
    if changed:
        print_table(
            ("what", "name", "would be" if check else "is", "differs"),
            [(one.kind, one.name, one.what, ", ".join(one.fields)) for one in changed],
        )
    same = len(changes) - len(changed)
    click.echo(f"{len(changed)} {'to change' if check else 'changed'}, {same} as they are")


@contextmanager
def quiet_progress() -> Iterator[Any]:
    """A line that says what is looked at, on a terminal only."""
    import sys

    from cli.follow import Progress

    with Progress() as progress:
        yield progress.say if sys.stderr.isatty() else lambda _text: None

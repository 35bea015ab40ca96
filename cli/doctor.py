"""`benchwright doctor`: what runs stand on, checked, and mended where that can be done."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from cli.options import home_option, json_option, open_home
from cli.output import print_json, print_table

if TYPE_CHECKING:
    from benchwright.planning.health.check import Check

BROKEN = 4
"""Exit code where something is broken."""


@click.command(
    epilog="\b\nExamples:\n"
    "  benchwright doctor\n"
    "  benchwright doctor --fix\n"
    "\b\nExit codes: 0 nothing is broken (there may be warnings), 2 bad input, 4 something is."
)
@click.option("--fix", is_flag=True, help="Mend what can be mended, and look again.")
@home_option
@json_option
def doctor(fix: bool, home: str | None, as_json: bool) -> int:
    """Check the server, the engine, the records, the machine and its noise.

    What isn't right is said with the next command. --fix gives back slots of dead runs, settles
    stale runs, ends orphaned processes, and makes the index again; it removes no result.
    """
    from benchwright.planning.health.check import is_healthy
    from cli.deploy import quiet_progress
    from deployments.doctor import examine_all

    place = open_home(home)
    with quiet_progress() as say:
        checks = examine_all(place, fix=fix, on_start=say)
    healthy = is_healthy(checks)
    if as_json:
        print_json({"healthy": healthy, "checks": [check_json(check) for check in checks]})
    else:
        show(checks)
    return 0 if healthy else BROKEN


def check_json(check: Check) -> dict[str, str | None]:
    """A check as data."""
    return {
        "name": check.name,
        "state": check.seen.state.value,
        "seen": check.seen.sentence,
        "next": check.seen.command or None,
        "mended": check.mended or None,
    }


def show(checks: tuple[Check, ...]) -> None:
    """Print a table, and below it what to do."""
    print_table(
        ("check", "state", "what was seen"),
        [
            (
                check.name,
                check.seen.state.value,
                check.seen.sentence + (f" (mended: {check.mended})" if check.mended else ""),
            )
            for check in checks
        ],
    )
    advice = [check for check in checks if check.seen.command]
    if advice:
        click.echo("\nnext:")
        width = max(len(check.name) for check in advice)
        for check in advice:
            click.echo(f"  {check.name:<{width}}  {check.seen.command}")

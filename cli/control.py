"""`benchwright cancel` and `resume`: ending a run, and going on with one."""

from __future__ import annotations

import getpass
import os
from pathlib import Path

import click

from benchwright.errors import BadInput, Where
from cli.options import home_option, json_option, open_home
from cli.output import print_json


@click.command(epilog="\b\nExample:\n  benchwright cancel 1a2b3c")
@click.argument("run")
@home_option
@json_option
def cancel(run: str, home: str | None, as_json: bool) -> None:
    """End RUN and everything that it started; it is recorded as interrupted."""
    from benchwright.record.run_id import find_run
    from benchwright.record.store import RunStore
    from deployments.local.client import attach
    from deployments.local.orphan import end_without_engine

    place = open_home(home)
    folder = RunStore(place).open(find_run(place, run))
    if not folder.alive():
        raise BadInput(f"{folder.run_id} isn't running: it is {folder.settle().value}")
    submission = attach(place, folder.run_id)
    if submission is None:
        end_without_engine(folder)
    else:
        submission.cancel()
        submission.follow()
    status = folder.settle()
    if as_json:
        print_json({"run_id": folder.run_id, "status": status.value})
    else:
        click.echo(f"{folder.run_id}: {status.value}")


@click.command(
    epilog="\b\nExamples:\n"
    "  benchwright resume 1a2b3c\n"
    "  benchwright resume 1a2b3c --max-cost 4    (it had spent what was approved)"
)
@click.argument("run")
@click.option("--detach", is_flag=True, help="Return at once.")
@click.option(
    "--max-cost",
    type=click.FloatRange(0),
    metavar="USD",
    help="Approve up to this cost for the whole run, with what it has spent already.",
)
@click.option(
    "--on",
    default="",
    metavar="HOST",
    help="With $PREFECT_API_URL: the host that has the record. Default: this one.",
)
@home_option
@json_option
def resume(
    run: str, detach: bool, max_cost: float | None, on: str, home: str | None, as_json: bool
) -> int:
    """Go on with RUN: what is finished is kept, the rest is run.

    With $PREFECT_API_URL the worker of its host does it; of a run on another host, RUN is the
    whole id.

    Refused where the machine, the code or the scripts have changed in between: half a run on one
    machine and half on another is no run.
    """
    from benchwright.execution.host import host_name
    from benchwright.planning.resume import prepare_resume
    from benchwright.record.consent import Consent, write_consent
    from benchwright.record.run_id import find_run
    from benchwright.record.store import RunStore
    from cli.follow import Progress, follow
    from cli.run import print_detached, show_result
    from deployments.local.client import ensure_local, submit, wait_for_last_steps
    from deployments.local.state import LocalHome

    place = open_home(home)
    elsewhere = bool(on) and on != host_name()
    if elsewhere and max_cost is not None:
        raise BadInput(
            f"an approval stands in the run's record, which is on {on}",
            where=Where(key="--max-cost"),
            hint=f"on that host: benchwright resume {run} --max-cost {max_cost:g}",
        )
    run_id = run if elsewhere else find_run(place, run)
    served = elsewhere or bool(os.environ.get("PREFECT_API_URL"))
    if not served:
        wait_for_last_steps(LocalHome(place))  # of the process that it had before
        prepare_resume(RunStore(place).open(run_id), os.environ)
    if max_cost is not None:
        consent = Consent.now(getpass.getuser(), max_cost, "unattended")
        write_consent(RunStore(place).open(run_id).path, consent)
    if served:
        from cli.server import at_server
        from cli.submit import resume_deployment

        with at_server(home):
            return resume_deployment(run_id, on or host_name(), detach=detach, as_json=as_json)
    folder = RunStore(place).open(run_id)
    with Progress() as progress:
        engine = ensure_local(place, progress.say)
        submission = submit(engine, folder.path, cwd=Path.cwd(), env=dict(os.environ))
        if detach:
            submission.detach()
            print_detached(folder.run_id, as_json)
            return 0
        code = follow(folder, submission, progress)
    show_result(folder.read(), as_json)
    return code

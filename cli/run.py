"""`benchwright run`: plan, start, follow, and say what came of it."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from cli.options import experiment_options, home_option, json_option, open_home, resolve_target
from cli.output import in_color, print_json

if TYPE_CHECKING:
    from benchwright.planning.quote import Quote
    from benchwright.record.consent import Consent
    from benchwright.record.run import RunRecord
    from benchwright.record.store import RunFolder
    from benchwright.spec.resolve import Resolved


@click.command(
    epilog="\b\nExamples:\n"
    "  benchwright run retrieval-index\n"
    "  benchwright run experiment.yaml -p corpus.n_docs=50000 --replicates 20\n"
    "  benchwright run experiment.yaml --json > result.json\n"
    "\b\nExit codes: 0 done, 2 bad input, 3 a gate refused, 4 a stage failed,\n"
    "5 a guard or a budget ended it, 130 interrupted."
)
@experiment_options
@click.option("--detach", is_flag=True, help="Return at once with the run's id.")
@click.option(
    "--max-cost",
    type=click.FloatRange(0),
    metavar="USD",
    help="Approve up to this cost beforehand; without it, what costs something is asked.",
)
@click.option(
    "--deployment",
    metavar="NAME",
    help="Submit to this deployment of $PREFECT_API_URL, else of the local server, and follow it."
    " Default with PREFECT_API_URL: benchmark/benchmark.",
)
@click.option(
    "--on",
    default="",
    metavar="HOST",
    help="With a deployment: run on this host. Default: any that has what the stages ask for.",
)
@click.option(
    "--insecure",
    is_flag=True,
    help="Use a server that others reach and that isn't protected; a tag says so.",
)
@home_option
@json_option
def run(
    target: str,
    overrides: tuple[str, ...],
    replicates: int | None,
    because: str | None,
    detach: bool,
    max_cost: float | None,
    deployment: str | None,
    on: str,
    insecure: bool,
    home: str | None,
    as_json: bool,
) -> int:
    """Run an experiment and say what came of it.

    Prep stages come from the cache where nothing they depend on has changed. Measure stages run
    in fresh processes, in randomised blocks over the arms. The terminal follows; Ctrl-C ends
    everything that was started, and the run is recorded as interrupted.
    """
    from benchwright.errors import BadInput, Where

    resolved = resolve_target(target, overrides, replicates, because=because)
    if deployment or os.environ.get("PREFECT_API_URL"):
        from cli.server import at_server
        from cli.submit import DEFAULT_DEPLOYMENT, run_deployment
        from deployments.security import INSECURE_TAG

        with at_server(home, insecure=insecure) as server:
            return run_deployment(
                target,
                resolved,
                deployment or DEFAULT_DEPLOYMENT,
                overrides=overrides,
                replicates=replicates,
                because=because,
                max_cost=max_cost,
                tags=[INSECURE_TAG] if server.insecure else [],
                detach=detach,
                as_json=as_json,
                on=on,
            )
    if on:
        raise BadInput(
            f"the run stays on this machine: no server is named that knows a host '{on}'",
            where=Where(key="--on"),
            hint="set PREFECT_API_URL, or name a --deployment",
        )
    place = open_home(home)
    folder, code = run_here(resolved, place, because=because, max_cost=max_cost, detach=detach)
    if code is None:
        print_detached(folder.run_id, as_json)
        return 0
    show_result(folder.read(), as_json)
    return code


def run_here(
    resolved: Resolved,
    home: Path,
    *,
    because: str | None,
    max_cost: float | None,
    detach: bool,
) -> tuple[RunFolder, int | None]:
    """Plan a run, have the local engine run it, and follow it to its end.

    Returns:
        The run's folder and exit code; no code for a run that goes on without this terminal.

    Raises:
        BenchwrightError: It is refused, or can't be started.
    """
    from benchwright.planning.plan import make_plan, refuse_challenged
    from benchwright.planning.quoting import quote_plan
    from benchwright.planning.start import create_run
    from benchwright.record.consent import write_consent
    from deployments.local.client import ensure_local, submit

    made = make_plan(resolved, home, os.environ)
    refuse_challenged(made, because)
    quote = quote_plan(made, os.environ)
    consent = consent_to(quote, max_cost, home)

    from cli.follow import Progress, follow

    with Progress() as progress:
        engine = ensure_local(home, progress.say)
        folder = create_run(made, home, because=because)
        if consent is not None:
            write_consent(folder.path, consent)
        submission = submit(engine, folder.path, cwd=Path.cwd(), env=dict(os.environ))
        if detach:
            submission.detach()
            return folder, None
        progress.expect(made)
        return folder, follow(folder, submission, progress)


def consent_to(quote: Quote | None, max_cost: float | None, home: Path) -> Consent | None:
    """What the run may spend; asked at this terminal, where there is something to ask.

    The policy is the local server's. It is looked up only where money is at stake: that takes the
    seconds that importing Prefect takes.
    """
    from benchwright.planning.policy import CostPolicy
    from cli.consent import agree

    policy, left = CostPolicy(), None
    if quote is not None:
        from benchwright.record.consent import spent_this_month
        from cli.server import at_server

        with at_server(str(home)):
            from blocks.policy import cost_policy

            policy = cost_policy()
        if policy.month_usd is not None:
            left = max(0.0, policy.month_usd - spent_this_month(home))
    return agree(quote, max_cost, policy, left)


def print_detached(run_id: str, as_json: bool) -> None:
    """Say how to find a run that goes on without this terminal."""
    if as_json:
        print_json({"run_id": run_id, "status": "IN_PROGRESS"})
    else:
        click.echo(run_id)
        click.echo(f"follow it with: benchwright status {run_id} --follow", err=True)


def show_result(record: RunRecord, as_json: bool) -> None:
    """Print a finished run."""
    if as_json:
        from benchwright.report.json import run_json

        print_json(run_json(record))
        return
    from benchwright.report.text import render_run

    click.echo(render_run(record, color=in_color(sys.stdout)), nl=False)

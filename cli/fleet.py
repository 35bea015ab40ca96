"""`benchwright server` and `worker`: one server for many machines, and a worker on each host."""

from __future__ import annotations

import getpass
import os
from pathlib import Path

import click

from cli.options import home_option, open_home


@click.command(
    epilog="\b\nExamples:\n"
    "  benchwright server --env-file server.env\n"
    "  benchwright server --listen 0.0.0.0 --url http://bench.example:4200 --unit\n"
    "\b\nThe file has mode 0600 and these lines:\n"
    "  PREFECT_API_DATABASE_CONNECTION_URL=postgresql+asyncpg://USER:PASSWORD@HOST/NAME\n"
    "  PREFECT_SERVER_API_AUTH_STRING=USER:PASSWORD"
)
@click.option("--listen", default="127.0.0.1", metavar="ADDRESS", show_default=True)
@click.option("--port", type=click.IntRange(1, 65535), default=4200, show_default=True)
@click.option("--url", metavar="URL", help="Where its users reach it, such as http://host:4200.")
@click.option(
    "--env-file",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Variables with its secrets, beside those of the environment.",
)
@click.option("--insecure", is_flag=True, help="Start it without protection.")
@click.option("--unit", is_flag=True, help="Print a unit file for systemd, and start nothing.")
def server(
    listen: str, port: int, url: str | None, env_file: Path | None, insecure: bool, unit: bool
) -> None:
    """Run a Prefect server on PostgreSQL, in the foreground.

    One server for many machines: each host runs `benchwright worker`. For one machine nothing of
    this is needed.
    """
    from deployments.fleet.server import become, plan_server, read_env_file

    if unit:
        from deployments.fleet.units import server_unit

        options = ["--listen", listen, "--port", str(port)]
        options += ["--url", url] if url else []
        options += ["--insecure"] if insecure else []
        click.echo(server_unit(options, getpass.getuser()), nl=False)
        return
    environ = dict(os.environ) | (read_env_file(env_file) if env_file else {})
    plan = plan_server(environ, listen=listen, port=port, url=url, insecure=insecure)
    become(plan.argv, plan.env)


@click.command(
    epilog="\b\nExamples:\n"
    "  PREFECT_API_URL=http://bench.example:4200/api benchwright worker\n"
    "  benchwright worker --env-file worker.env --accelerators-only\n"
    "  benchwright worker --unit > benchwright-worker.service"
)
@click.option("--pool", default="benchwright", metavar="NAME", show_default=True)
@click.option(
    "--limit", type=click.IntRange(1), default=4, show_default=True, help="Runs in hand at once."
)
@click.option(
    "--accelerators-only",
    is_flag=True,
    help="Leave experiments that ask for no accelerator to other hosts.",
)
@click.option(
    "--env-file",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Variables such as PREFECT_API_AUTH_STRING, beside those of the environment.",
)
@click.option(
    "--insecure",
    is_flag=True,
    help="Work for a server that others reach and that isn't protected.",
)
@click.option("--unit", is_flag=True, help="Print a unit file for systemd, and start nothing.")
@home_option
def worker(
    pool: str,
    limit: int,
    accelerators_only: bool,
    env_file: Path | None,
    insecure: bool,
    unit: bool,
    home: str | None,
) -> None:
    """Take experiments from $PREFECT_API_URL and run them on this host, in the foreground.

    It takes what this host can serve: its own queue (`--on HOST`), those of as many GPUs and TPUs
    as it has, and experiments that ask for none. Measurements on one host never overlap.
    """
    from benchwright.errors import BadInput, Where

    if unit:
        from deployments.fleet.units import worker_unit

        options = ["--pool", pool, "--limit", str(limit), "--home", str(open_home(home))]
        options += ["--accelerators-only"] if accelerators_only else []
        options += ["--insecure"] if insecure else []
        click.echo(worker_unit(options, getpass.getuser()), nl=False)
        return
    from deployments.fleet.server import become, read_env_file

    os.environ.update(read_env_file(env_file) if env_file else {})
    if not os.environ.get("PREFECT_API_URL"):
        raise BadInput(
            "nothing says which server to work for",
            where=Where(key="$PREFECT_API_URL"),
            expected="the server's address, which ends in /api",
            hint="without a server of your own nothing of this is needed: benchwright run",
        )
    from benchwright.execution.accelerators import read_machine
    from benchwright.execution.host import host_name
    from cli.server import at_server
    from deployments.fleet.worker import absolute_home, clear_up, plan_worker

    place = absolute_home(open_home(home))
    ended, lost = clear_up(place)
    if ended:
        click.echo(f"ended {ended} process(es) that stages had left", err=True)
    for run_id in lost:
        click.echo(f"{run_id} is interrupted; go on with it: benchwright resume {run_id}", err=True)
    with at_server(home, insecure=insecure):
        from prefect.client.orchestration import get_client

        from deployments.fleet.queues import ensure_queues

        plan = plan_worker(
            os.environ,
            home=place,
            host=host_name(),
            machine=read_machine(os.environ),
            pool=pool,
            limit=limit,
            accelerators_only=accelerators_only,
        )
        with get_client(sync_client=True) as client:
            ensure_queues(client, pool, plan.queues)
    click.echo(f"{host_name()} takes from: {', '.join(plan.queues)}", err=True)
    become(plan.argv, plan.env)

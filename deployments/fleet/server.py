"""A Prefect server that other machines reach: on PostgreSQL, with its protection on."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from benchwright.errors import BadInput, Difference, GateRefused, Where
from deployments.security import AUTH_SETTING, CSRF_SETTING, is_loopback

DATABASE = "PREFECT_API_DATABASE_CONNECTION_URL"
"""Setting of the server's database; it may hold a password, so it is no option."""

DRIVER = "postgresql+asyncpg"

PORT = 4200


@dataclass(frozen=True, slots=True)
class ServerPlan:
    """How a server is started.

    Attributes:
        argv: Its command line; nothing secret is in it.
        env: Its whole environment.
    """

    argv: tuple[str, ...]
    env: Mapping[str, str]


def plan_server(
    environ: Mapping[str, str], *, listen: str, port: int, url: str | None, insecure: bool
) -> ServerPlan:
    """How to start a server for many machines.

    Args:
        environ: Where its secrets are: the database's address and the auth string.
        listen: Address that it listens on.
        port: Its port.
        url: Where its users reach it, without `/api`; what its pages ask.
        insecure: Start it without protection where others reach it.

    Raises:
        BadInput: No PostgreSQL is named.
        GateRefused: Others reach it, and it isn't protected.
    """
    database = environ.get(DATABASE, "")
    if not database.startswith("postgresql"):
        raise BadInput(
            "no PostgreSQL database is named"
            if not database
            else "the server's database is no PostgreSQL: many machines are too many for SQLite",
            where=Where(key=f"${DATABASE}"),
            expected=f"{DRIVER}://USER:PASSWORD@HOST/NAME",
            hint="put it into a file of mode 0600, and name that: --env-file FILE",
        )
    if not database.startswith(f"{DRIVER}:"):
        raise BadInput(
            f"Prefect speaks to PostgreSQL through {DRIVER}",
            where=Where(key=f"${DATABASE}"),
            expected=f"{DRIVER}://USER:PASSWORD@HOST/NAME",
        )
    open_to_others = not is_loopback(f"http://{listen}:{port}/api")
    if open_to_others and not environ.get(AUTH_SETTING) and not insecure:
        raise GateRefused(
            f"a server on {listen} is reached by other machines, and would ask nobody who they are",
            differences=[
                Difference(
                    AUTH_SETTING,
                    "not set",
                    "user:password",
                    "whoever reaches it reads every secret and starts any command",
                )
            ],
            where=Where(key=f"${AUTH_SETTING}"),
            hint="set it in --env-file; in a network that you trust: --insecure",
        )
    env = {
        CSRF_SETTING: "true",
        # In memory, slots would stay taken for ever once the server was restarted.
        "PREFECT_SERVER_CONCURRENCY_LEASE_STORAGE": (
            "prefect.server.concurrency.lease_storage.filesystem"
        ),
        "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
        "PREFECT_SERVER_UI_SHOW_PROMOTIONAL_CONTENT": "false",
        "DO_NOT_TRACK": "1",
        **environ,
    }
    if url:
        env["PREFECT_UI_API_URL"] = f"{url.rstrip('/')}/api"
    # The server's own client (its services) must not ask another one.
    env.pop("PREFECT_API_URL", None)
    argv = (
        *(sys.executable, "-m", "prefect", "server", "start"),
        *("--host", listen, "--port", str(port), "--analytics-off"),
    )
    return ServerPlan(argv, env)


def read_env_file(file: Path) -> dict[str, str]:
    """Variables of a file as systemd's `EnvironmentFile=` takes it: `NAME=value` lines.

    Raises:
        BadInput: It can't be read, others may read it, or a line is none.
    """
    try:
        mode, text = file.stat().st_mode, file.read_text()
    except OSError as problem:
        raise BadInput(f"it can't be read: {problem.strerror}", where=Where(file)) from problem
    if mode & 0o077:
        raise BadInput(
            "it holds passwords, and other users may read it",
            where=Where(file),
            hint=f"chmod 600 {file}",
        )
    values = {}
    for number, line in enumerate(text.splitlines(), 1):
        line = line.strip()
        if not line or line.startswith(("#", ";")):
            continue
        name, equals, value = line.partition("=")
        if not equals or not name.strip().isidentifier():
            raise BadInput("this is no `NAME=value`", where=Where(file, number))
        value = value.strip()
        if len(value) >= 2 and value[0] == value[-1] and value[0] in "'\"":
            value = value[1:-1]
        values[name.strip()] = value
    return values


def become(plan_argv: tuple[str, ...], env: Mapping[str, str]) -> None:
    """Replace this process by a command: what started us sees its end, and signals reach it."""
    sys.stdout.flush()
    sys.stderr.flush()
    os.execve(plan_argv[0], plan_argv, dict(env))

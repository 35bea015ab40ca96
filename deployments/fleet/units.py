"""Unit files for systemd: a server, and a worker that starts with its host."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Sequence
from pathlib import Path

SERVER_FILE = Path("/etc/benchwright/server.env")
WORKER_FILE = Path("/etc/benchwright/worker.env")

SERVER = """\
# /etc/systemd/system/benchwright-server.service
# {file} holds, with mode 0600:
#   PREFECT_API_DATABASE_CONNECTION_URL=postgresql+asyncpg://USER:PASSWORD@HOST/NAME
#   PREFECT_SERVER_API_AUTH_STRING=USER:PASSWORD
[Unit]
Description=Prefect server of Benchwright
After=network-online.target postgresql.service
Wants=network-online.target

[Service]
User={user}
EnvironmentFile={file}
Environment=PREFECT_HOME={state}
ExecStart={command}
Restart=always
RestartSec=2

[Install]
WantedBy=multi-user.target
"""

WORKER = """\
# /etc/systemd/system/benchwright-worker.service
# {file} holds, with mode 0600:
#   PREFECT_API_URL=http://SERVER:4200/api
#   PREFECT_API_AUTH_STRING=USER:PASSWORD
[Unit]
Description=Worker of Benchwright
After=network-online.target
Wants=network-online.target

[Service]
User={user}
EnvironmentFile={file}
Environment=PREFECT_HOME={state}
ExecStart={command}
Restart=always
RestartSec=2
# Runs are processes of the worker's group: they go on when the worker is restarted.
KillMode=process
# Gives each stage a memory limit of the kernel's own.
Delegate=yes

[Install]
WantedBy=multi-user.target
"""


def command_line(verb: str, options: Sequence[str]) -> str:
    """The verb as a unit starts it, with absolute paths."""
    program = Path(sys.executable).with_name("benchwright")
    # systemd takes % and $ for its own.
    words = [str(program), verb, *options]
    return " ".join(shlex.quote(word) for word in words).replace("%", "%%").replace("$", "$$")


def server_unit(options: Sequence[str], user: str, file: Path = SERVER_FILE) -> str:
    """The server's unit file."""
    return SERVER.format(
        file=file,
        user=user,
        state="/var/lib/benchwright-server",
        command=command_line("server", options),
    )


def worker_unit(options: Sequence[str], user: str, file: Path = WORKER_FILE) -> str:
    """A worker's unit file."""
    return WORKER.format(
        file=file,
        user=user,
        state="/var/lib/benchwright-worker",
        command=command_line("worker", options),
    )

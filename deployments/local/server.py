"""The local Prefect server: one process, SQLite, on this machine's loopback only.

`start` is the starter's side and needs no Prefect; `main` is the process itself.
"""

from __future__ import annotations

import argparse
import contextlib
import http.client
import os
import platform
import socket
import sys
import time
from pathlib import Path
from typing import Any

from benchwright.errors import BenchwrightError, Where
from deployments.local import launch, template
from deployments.local.environment import prefect_version, server_environment
from deployments.local.state import (
    LocalHome,
    ServerRecord,
    birth,
    end_process,
    idle_for,
    is_named,
    open_lock,
    read_record,
    read_server,
    take,
    write_record,
)

HOST = "127.0.0.1"

HEALTH_S = 10.0
"""How long a server may take to answer before it counts as unhealthy (seconds); its event loop
was seen to be busy for 1 s after a run of 20 tasks."""

STOP_S = 10.0
"""Grace period for a server that is asked to end (seconds); it takes 0.2 s."""

SETTLE_S = 0.1
"""A server that handled no event for so long has handled all (seconds); one takes 0.01 s."""

SETTLE_LIMIT_S = 5.0
"""How long an ending server handles events at most (seconds)."""

RETRY_AFTER_S = 0.05
"""What the server tells a client to wait when SQLite was busy (seconds). Prefect's client waits
2 s, then 4, if it isn't told."""


def find(home: LocalHome) -> ServerRecord | None:
    """The server that lives, is of the installed version, and answers; None otherwise.

    Raises:
        BenchwrightError: The home is on a disk that another machine runs its server on.
    """
    record = read_server(home)
    if record is None:
        return None
    if record.host != platform.node():
        raise BenchwrightError(
            f"the local server of this home runs on another machine, {record.host}",
            where=Where(file=home.server_record),
            hint="run there, name another --home, or set PREFECT_API_URL to a shared server",
        )
    if record.version != prefect_version():
        return None
    # Its starter may have been interrupted, and it is on its way up: that is waited for.
    age_s = time.time() - home.server_record.stat().st_mtime
    within_s = max(HEALTH_S, launch.START_LIMIT_S - age_s)
    return record if is_healthy(record.port, within_s) else None


def is_healthy(port: int, within_s: float = HEALTH_S) -> bool:
    """Whether a Prefect server answers on this port of the loopback address."""
    connection = http.client.HTTPConnection(HOST, port, timeout=within_s)
    try:
        connection.request("GET", "/api/health")
        answer = connection.getresponse()
        return answer.status == 200 and answer.read().strip() == b"true"
    except (OSError, http.client.HTTPException):
        return False
    finally:
        connection.close()


def start(home: LocalHome, idle_s: float) -> tuple[launch.Starting, int]:
    """Start a server; the caller holds the start lock alone, and none lives.

    The socket is bound here and handed to the new process with its lock: so its port can't be
    taken by another in between, is known before Prefect is imported, and nobody else can answer
    on it.

    Returns:
        What to wait for, and the port.
    """
    lock = take_server_lock(home)
    listener = bind_port(home)
    port: int = listener.getsockname()[1]
    home.server_record.unlink(missing_ok=True)
    try:
        starting = launch.start(
            "Prefect server",
            "deployments.local.server",
            [
                *("--home", str(home.root), "--idle", str(idle_s)),
                *("--listen", str(listener.fileno()), "--lock", str(lock)),
            ],
            environment=server_environment(home, os.environ),
            log=home.server_log,
            inherit=(listener.fileno(), lock),
        )
    finally:
        listener.close()
        os.close(lock)
    return starting, port


def take_server_lock(home: LocalHome, within_s: float = 5.0) -> int:
    """The server's lock, taken; waits a little, since who looks at it holds it for a moment."""
    fd = open_lock(home.server_lock)
    deadline = time.monotonic() + within_s
    while not take(fd):
        if time.monotonic() > deadline:
            os.close(fd)
            raise BenchwrightError(
                "another process holds the lock of the local server",
                where=Where(file=home.server_lock),
                hint="benchwright down, and if that doesn't help: fuser -v on that file",
            )
        time.sleep(0.01)
    return fd


def bind_port(home: LocalHome) -> socket.socket:
    """A listening socket on the port that the last server had, or on any free one.

    The same port again, so that a page that is open in a browser goes on working.
    """
    last = read_record(home.server_record) or {}
    for port in (last.get("port", 0), 0):
        listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind((HOST, port))
            listener.listen(128)
        except (OSError, OverflowError, TypeError):
            listener.close()
            continue
        return listener
    raise BenchwrightError(
        f"no port of {HOST} can be bound",
        hint="see whether the network namespace has a loopback device: ip addr show lo",
    )


def stop(home: LocalHome) -> bool:
    """End the server if one lives; True where there was one."""
    record = read_server(home)
    if record is None:
        return False
    end_process(record.pid, record.born, home.server_lock, STOP_S)
    return True


def main() -> None:
    """The server process."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--home", type=Path, required=True)
    parser.add_argument("--idle", type=float, required=True)
    parser.add_argument("--listen", type=int, required=True)
    parser.add_argument("--lock", type=int, required=True)
    parser.add_argument("--news", type=int, required=True)
    options = parser.parse_args()
    launch.step_out()
    import asyncio

    for fd in (options.listen, options.lock, options.news):
        os.set_inheritable(fd, False)
    home = LocalHome(options.home)
    news = launch.Announcer(options.news)
    listener = socket.socket(fileno=options.listen)
    try:
        asyncio.run(serve(home, listener, options.lock, options.idle, news))
    except Exception as error:
        news.failed(f"{type(error).__name__}: {error}")
        raise


async def serve(
    home: LocalHome,
    listener: socket.socket,
    lock: int,
    idle_s: float,
    news: launch.Announcer,
) -> None:
    """Serve until asked to end, idle for too long, or without a home."""
    import asyncio

    write_record(
        home.server_record,
        ServerRecord(
            pid=os.getpid(),
            born=birth(os.getpid()),
            port=listener.getsockname()[1],
            version=prefect_version(),
            host=platform.node(),
        ),
    )
    news.step("loading")
    import uvicorn
    from prefect.server.api.server import create_app

    begin_to_write_at_once()
    if not home.database.exists() and not template.copy_to(home.database):
        news.step("making its database, once for this version of Prefect")
        await template.make(home.database)
    application = create_app(final=True)
    server = settling_server(
        uvicorn.Config(
            RetrySoon(application),
            log_level="warning",
            lifespan="on",
            # An open page holds a connection for ever: don't wait for it.
            timeout_graceful_shutdown=2,
        )
    )
    watch = asyncio.create_task(end_when_unused(server, home, lock, idle_s, news))
    await server.serve(sockets=[listener])
    watch.cancel()
    if not server.started:
        news.failed("it could not set up its database, see the log")
        sys.exit(1)


async def end_when_unused(
    server: Any, home: LocalHome, lock: int, idle_s: float, news: launch.Announcer
) -> None:
    """Say when the server is up; ask it to end when its home is gone or idle."""
    import asyncio

    while not server.started:
        await asyncio.sleep(0.005)
    news.ready()
    while True:
        await asyncio.sleep(min(10.0, idle_s / 4))
        if not is_named(lock, home.server_lock):
            server.should_exit = True
            return
        with contextlib.suppress(OSError), idle_for(home, idle_s) as idle:
            if idle:
                # The locks are held until the port is closed: who comes now starts a new one.
                server.should_exit = True
                while server.servers and any(one.is_serving() for one in server.servers):
                    await asyncio.sleep(0.005)
                return


def settling_server(config: Any) -> Any:
    """A uvicorn server that handles the events it has taken before it ends.

    A flow's last events reach the server when the flow ends, and are stored 0.5 s later; Prefect
    drops what is waiting when it is asked to end, and its pages show such tasks as running.
    """
    import asyncio

    import uvicorn
    from prefect.server.utilities.messaging.memory import METRICS

    class Settling(uvicorn.Server):
        async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
            deadline = time.monotonic() + SETTLE_LIMIT_S
            handled = -1
            while handled != (now := sum(topic["consumed"] for topic in METRICS.values())):
                handled = now
                if time.monotonic() > deadline:
                    break
                await asyncio.sleep(SETTLE_S)
            await super().shutdown(sockets)

    return Settling(config)


def begin_to_write_at_once() -> None:
    """Make the server's transactions take SQLite's write lock when they begin.

    Prefect begins most of them as readers, and SQLite refuses to let a reader write when another
    wrote in between, without waiting ("database is locked", PrefectHQ/prefect#18934). The server
    answers 503, its client waits 2 s or more: seen for each run that starts while the events of
    the one before are being stored. A transaction that waits for its turn takes milliseconds.
    """
    from prefect.server.database.configurations import AioSqliteConfiguration

    begin = AioSqliteConfiguration.begin_transaction

    def begin_transaction(
        self: AioSqliteConfiguration, session: Any, with_for_update: bool = False
    ) -> Any:
        return begin(self, session, with_for_update=True)

    AioSqliteConfiguration.begin_transaction = begin_transaction  # type: ignore[method-assign]


class RetrySoon:
    """Adds `Retry-After` to each 503: what is busy here is free again in milliseconds."""

    def __init__(self, application: Any) -> None:
        self.application = application

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Serve one request (ASGI)."""

        async def send_with_header(message: Any) -> None:
            if message["type"] == "http.response.start" and message["status"] == 503:
                header = (b"retry-after", str(RETRY_AFTER_S).encode())
                message = {**message, "headers": [*message.get("headers", ()), header]}
            await send(message)

        await self.application(
            scope, receive, send_with_header if scope["type"] == "http" else send
        )


if __name__ == "__main__":
    main()

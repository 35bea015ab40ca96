"""What `benchwright doctor` looks at from a terminal: the server, the engine, and all the rest."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import urllib.error
import urllib.request
from base64 import b64encode
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchwright.errors import BadInput
from benchwright.planning.health.check import (
    Check,
    Examination,
    Place,
    Seen,
    broken,
    examine,
    ok,
    warning,
)
from benchwright.planning.health.home import HOME
from benchwright.planning.health.machine import MACHINE
from benchwright.planning.health.noise import NOISE
from benchwright.record.run import Status
from benchwright.record.store import RunFolder
from deployments.local import client, engine, protocol, server
from deployments.local.crash import mark_crashed, unfinished_flow_runs
from deployments.local.environment import EngineIdentity, prefect_overlay, prefect_version
from deployments.local.state import LocalHome, read_engine, read_server, runs_in_progress
from deployments.security import is_loopback, protection

ANSWER_S = 10.0
"""How long a server may take to answer (seconds)."""


def examine_all(
    home: Path,
    *,
    fix: bool = False,
    on_start: Callable[[str], None] = lambda _name: None,
) -> tuple[Check, ...]:
    """Run every check that makes sense here.

    Prefect is imported only where a server is up: its limits are asked for with its own client.

    Args:
        home: `$BENCHMARK_HOME`; need not exist.
        fix: Mend what can be mended.
        on_start: Called with the name of each check.
    """
    place = Place(home, dict(os.environ))
    named = os.environ.get("PREFECT_API_URL", "")
    asked = NAMED_SERVER if named else LOCAL
    checks = list(examine(place, asked, fix=fix, on_start=on_start))
    record = read_server(LocalHome(home.absolute()))
    api_url = named or (record.api_url if record is not None else "")
    if api_url and any(check.name == "server" and is_up(check) for check in checks):
        if not named:
            overlay = prefect_overlay(LocalHome(home.absolute()), api_url, os.environ)
            os.environ.update(overlay)
        os.environ.setdefault("PREFECT_LOGGING_LEVEL", "ERROR")
        os.environ.setdefault("DO_NOT_TRACK", "1")
        from flows.doctor import SLOTS

        checks += examine(place, SLOTS, fix=fix, on_start=on_start)
        if not named:
            checks += examine(place, PAGES, fix=fix, on_start=on_start)
    checks += examine(place, (*HOME, *MACHINE, *NOISE), fix=fix, on_start=on_start)
    return tuple(checks)


def is_up(check: Check) -> bool:
    """Whether a server answers that further checks can ask."""
    return check.seen.state.value in ("ok", "warning") and "isn't up" not in check.seen.sentence


# The server that PREFECT_API_URL names


def named_server(place: Place) -> Seen:
    """Whether the named server answers, and speaks as this installation does."""
    api_url = place.environ["PREFECT_API_URL"].rstrip("/")
    try:
        version = _get(f"{api_url}/admin/version", place.environ)
    except urllib.error.HTTPError as refusal:
        if refusal.code in (401, 403):
            return broken(
                f"the server at {api_url} asks for credentials",
                "export PREFECT_API_AUTH_STRING=user:password",
            )
        return broken(f"the server at {api_url} answers {refusal}", f"curl {api_url}/health")
    except (OSError, ValueError) as problem:
        return broken(f"no server answers at {api_url}: {problem}", f"curl {api_url}/health")
    if version != prefect_version():
        return warning(
            f"the server at {api_url} is Prefect {version}, here it is {prefect_version()}",
            f"pip install prefect=={version}",
        )
    return ok(f"Prefect {version} answers at {api_url}")


def named_protection(place: Place) -> Seen:
    """Whether a server that others reach asks who they are."""
    api_url = place.environ["PREFECT_API_URL"]
    if is_loopback(api_url):
        return ok("only this machine reaches the server")
    try:
        found = protection(api_url, place.environ.get("PREFECT_API_AUTH_STRING", ""))
    except BadInput as problem:
        return broken(problem.what, f"curl {api_url}/health")
    missing = [
        setting
        for setting, there in (
            ("PREFECT_SERVER_API_AUTH_STRING=user:password", found.auth),
            ("PREFECT_SERVER_API_CSRF_PROTECTION_ENABLED=true", found.csrf),
        )
        if not there
    ]
    if not missing:
        return ok("the server asks who speaks to it")
    return broken(
        "other machines reach the server, and it isn't protected",
        f"where the server is started: export {' '.join(missing)}",
    )


def _get(url: str, environ: dict[str, str]) -> Any:
    headers = {"Accept": "application/json"}
    auth = environ.get("PREFECT_API_AUTH_STRING", "")
    if auth:
        headers["Authorization"] = f"Basic {b64encode(auth.encode()).decode()}"
    request = urllib.request.Request(url, headers=headers)
    with urllib.request.urlopen(request, timeout=ANSWER_S) as answer:
        return json.loads(answer.read())


# The local server and engine


def local_server(place: Place) -> Seen:
    """Whether the local server answers and is of the installed version."""
    record = read_server(LocalHome(place.home.absolute()))
    if record is None:
        return ok("the local server isn't up: the next run starts it")
    again = "benchwright down && benchwright up"
    if record.host != os.uname().nodename:
        return broken(
            f"the local server of this home runs on another machine, {record.host}",
            "export BENCHMARK_HOME=/a/folder/of/this/machine",
        )
    if not server.is_healthy(record.port):
        return broken(f"the local server (process {record.pid}) doesn't answer", again)
    if record.version != prefect_version():
        return warning(
            f"the local server is Prefect {record.version}, installed is {prefect_version()}",
            again,
        )
    return ok(f"Prefect {record.version} answers at {record.api_url}")


def replace_server(place: Place) -> str:
    """Start it anew, on the same database and port."""
    return f"started it anew: {client.ensure_server(place.home)}"


def local_engine(place: Place) -> Seen:
    """Whether each local engine answers and runs today's code."""
    home = LocalHome(place.home.absolute())
    identity = EngineIdentity.now(os.environ, extra=protocol.DEFAULT_ENTRY)
    living = [record for key in home.engine_keys() if (record := read_engine(home, key))]
    silent = [record for record in living if not client.answers(home, record.key)]
    if silent:
        return broken(
            f"an engine doesn't answer (process {silent[0].pid})", "benchwright doctor --fix"
        )
    old = [record for record in living if record.code != identity.code]
    if old:
        return warning(
            f"{len(old)} engine(s) run older code than is installed: the next run starts a new one",
            "benchwright doctor --fix",
        )
    return ok(f"{len(living)} engine(s) up" if living else "none is up: the next run starts one")


def replace_engines(place: Place) -> str:
    """End those that don't answer, and let those of older code end after their last run."""
    home = LocalHome(place.home.absolute())
    ended = 0
    for key in home.engine_keys():
        if read_engine(home, key) is not None and not client.answers(home, key):
            engine.stop(home, key)
            ended += 1
    client.retire_outdated(home, EngineIdentity.now(os.environ, extra=protocol.DEFAULT_ENTRY))
    return f"ended {ended} engine(s); those of older code end after their last run"


def stale_flow_runs(place: Place) -> list[str]:
    """Ids of runs of this home that Prefect's pages show as running, and that have ended."""
    record = read_server(LocalHome(place.home.absolute()))
    if record is None:
        return []
    ended = []
    for name in unfinished_flow_runs(record.api_url):
        folder = RunFolder(place.home, name)
        if folder.path.is_dir() and not folder.alive():
            with contextlib.suppress(BadInput):
                if folder.status is not Status.IN_PROGRESS:
                    ended.append(name)
    return ended


def pages(place: Place) -> Seen:
    """Whether Prefect's pages show runs as running that have ended."""
    try:
        stale = stale_flow_runs(place)
    except (OSError, http.client.HTTPException) as problem:
        return broken(f"the local server doesn't answer: {problem}", "benchwright doctor --fix")
    if not stale:
        return ok("Prefect's pages show no run as running that has ended")
    return warning(
        f"Prefect's pages show {len(stale)} run(s) as running that have ended:"
        f" {', '.join(stale[:3])}",
        "benchwright doctor --fix",
    )


def mark_pages(place: Place) -> str:
    """Mark them as crashed, and what they had begun."""
    record = read_server(LocalHome(place.home.absolute()))
    assert record is not None
    stale = stale_flow_runs(place)
    count = sum(mark_crashed(record.api_url, name, "The run's process is gone.") for name in stale)
    return f"marked {count} flow and task run(s) as crashed"


def held_slots(place: Place) -> Seen:
    """Slots that nobody can hold: no run lives."""
    taken = _taken_slots(place)
    if not taken:
        return ok("no slot of a limit is taken without a run")
    return warning(
        f"slots are taken and no run lives: {', '.join(taken)}", "benchwright doctor --fix"
    )


def _taken_slots(place: Place) -> list[str]:
    from prefect.client.orchestration import get_client

    home = LocalHome(place.home.absolute())
    record = read_server(home)
    # A worker may run flows on this server, too: none may be under way.
    if record is None or runs_in_progress(home) or unfinished_flow_runs(record.api_url):
        return []
    with get_client(sync_client=True) as asked:
        answer = asked.request("POST", "/v2/concurrency_limits/filter", json={}).json()
    return [
        limit["name"]
        for limit in answer
        if limit["active_slots"] and limit["name"].startswith(("measure:", "gpu:"))
    ]


def free_held_slots(place: Place) -> str:
    """Set their limits to nobody: no flow run is under way that could hold one."""
    from prefect.client.orchestration import get_client

    from tasks.limits import reset_limit

    names = _taken_slots(place)
    with get_client(sync_client=True) as asked:
        for name in names:
            reset_limit(asked, name)
    return f"freed {', '.join(names)}"


NAMED_SERVER: tuple[Examination[Place], ...] = (
    Examination("server", named_server),
    Examination("protection", named_protection),
)
"""Checks of the server that PREFECT_API_URL names."""

LOCAL: tuple[Examination[Place], ...] = (
    Examination("server", local_server, replace_server),
    Examination("engine", local_engine, replace_engines),
)
"""Checks of what is started for this home."""

PAGES: tuple[Examination[Place], ...] = (
    Examination("Prefect's pages", pages, mark_pages),
    Examination("held slots", held_slots, free_held_slots),
)
"""Checks of the local server's memory, where it is up."""

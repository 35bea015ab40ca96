"""The flow that examines a worker's machine, its home and its server.

prefect deployment run doctor/doctor -p fix=true --watch
"""

from __future__ import annotations

import os
from typing import Any

from prefect import flow
from prefect.artifacts import create_table_artifact
from prefect.client.orchestration import get_client
from prefect.client.schemas.objects import State
from prefect.states import Completed, Failed

from benchwright.execution.host import host_name
from benchwright.planning.health.check import (
    Check,
    Examination,
    Place,
    Seen,
    broken,
    examine,
    is_healthy,
    ok,
    warning,
)
from benchwright.planning.health.check import State as CheckState
from benchwright.planning.health.home import HOME
from benchwright.planning.health.machine import MACHINE
from benchwright.planning.health.noise import NOISE
from benchwright.record.home import Layout
from benchwright.record.store import RunFolder
from flows.submission import flow_home
from tasks.limits import LEASES, free_leaked, gpu_limit, measure_limit, read_leases, read_limit
from tasks.report import plain_key


@flow(
    name="doctor",
    flow_run_name=lambda: f"doctor {host_name()}",
    description=__doc__,
    persist_result=False,
)
def doctor(fix: bool = False, home: str | None = None) -> State[Any]:
    """Look at what runs on this host stand on, and say what to do about what isn't right.

    Args:
        fix: Mend what can be mended: leaked slots, stale runs, orphans, the index.
        home: The benchmark home; default `$BENCHMARK_HOME` of the worker.
    """
    place = Place(flow_home(home), dict(os.environ))
    checks = examine(place, (*SLOTS, *HOME, *MACHINE, *NOISE), fix=fix)
    create_table_artifact(
        key=f"doctor-{plain_key(host_name())}",
        table=[row(check) for check in checks],
        description=f"What doctor saw on {host_name()}",
    )
    wrong = [check for check in checks if check.seen.state is CheckState.BROKEN]
    if is_healthy(checks):
        warnings = sum(check.seen.state is CheckState.WARNING for check in checks)
        return Completed(message=f"nothing is broken; {warnings} warning(s)")
    said = "; ".join(f"{check.name}: {check.seen.sentence}" for check in wrong)
    return Failed(message=said[:500])


def row(check: Check) -> dict[str, str]:
    """A check as a row for people and as data."""
    return {
        "check": check.name,
        "state": check.seen.state.value,
        "seen": check.seen.sentence,
        "next": check.seen.command,
        "mended": check.mended,
    }


def dead_leases(place: Place) -> dict[str, int]:
    """How many leases each run of this home has that is dead, by run id."""
    found = {}
    for file in Layout(place.home).runs.glob(f"*/{LEASES}"):
        count = len(read_leases(file))
        if count and not RunFolder(place.home, file.parent.name).alive():
            found[file.parent.name] = count
    return found


def leaked_slots(place: Place) -> Seen:
    """Slots that runs took with them when they died, until their leases end."""
    dead = dead_leases(place)
    if not dead:
        return ok("no run that ended holds slots of a limit")
    return warning(
        f"{sum(dead.values())} lease(s) of run(s) that died are not given back:"
        f" {', '.join(list(dead)[:3])}",
        "benchwright doctor --fix",
    )


def free_slots(place: Place) -> str:
    """Give them back."""
    with get_client(sync_client=True) as client:
        return f"gave back the slots of {len(free_leaked(client, place.home))} run(s)"


def limits(place: Place) -> Seen:
    """Whether the limits of this host hold anybody back."""
    host = host_name()
    said = []
    with get_client(sync_client=True) as client:
        for name in (measure_limit(host), gpu_limit(host)):
            found = read_limit(client, name)
            if found is None:
                continue
            if not found["active"]:
                return broken(
                    f"the limit {name} is switched off: it holds nobody back",
                    f"prefect gcl enable {name}",
                )
            if name == measure_limit(host) and found["limit"] != 1:
                return broken(
                    f"the limit {name} lets {found['limit']} stages measure at once",
                    f"prefect gcl update {name} --limit 1",
                )
            said.append(f"{name}: {found['active_slots']} of {found['limit']} taken")
    return ok("; ".join(said) or "no run has set up limits for this host yet")


SLOTS: tuple[Examination[Place], ...] = (
    Examination("leaked slots", leaked_slots, free_slots),
    Examination("limits", limits),
)
"""What the server holds for this host; asked of the server of Prefect's current settings."""

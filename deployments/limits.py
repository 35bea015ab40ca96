"""Set-up and repair of a host's limits on a Prefect server, from outside a run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from prefect.client.orchestration import SyncPrefectClient, get_client
from prefect.settings import PREFECT_API_URL, temporary_settings

from benchwright.execution.accelerators import read_machine
from benchwright.execution.host import host_name
from benchwright.record.store import RunStore
from tasks.limits import (
    QUEUE_SLOTS,
    ensure_limits,
    free_leaked,
    gpu_limit,
    measure_limit,
    queue_limit,
    read_limit,
    reset_limit,
)


@dataclass(frozen=True, slots=True)
class LimitState:
    """A limit as the server has it.

    Attributes:
        name: Such as `measure:box`.
        slots: How many there are.
        taken: How many are held.
        switched_off: It holds nobody back.
    """

    name: str
    slots: int
    taken: int
    switched_off: bool


def set_up(api_url: str, host: str | None = None, gpus: int | None = None) -> Mapping[str, int]:
    """Create the limits of a host where they are missing.

    Args:
        api_url: The server.
        host: The host; default this machine.
        gpus: How many GPUs it has; default what this machine has.

    Returns:
        The slots of each limit. A host without GPUs has no `gpu:` limit.

    Raises:
        BenchwrightError: One was switched off.
    """
    name = host or host_name()
    devices = gpus if gpus is not None else 0 if host else len(read_machine({}).gpus)
    wanted = {measure_limit(name): 1, queue_limit(name): QUEUE_SLOTS}
    if devices:
        wanted[gpu_limit(name)] = devices
    with _client(api_url) as client:
        return ensure_limits(client, wanted)


def limits_of(api_url: str, host: str | None = None) -> list[LimitState]:
    """The limits of a host, those that are there."""
    name = host or host_name()
    found = []
    with _client(api_url) as client:
        for limit in (measure_limit(name), gpu_limit(name)):
            state = read_limit(client, limit)
            if state is not None:
                found.append(
                    LimitState(limit, state["limit"], state["active_slots"], not state["active"])
                )
    return found


def free_slots(api_url: str, home: Path, host: str | None = None) -> list[str]:
    """Free what runs of this home left taken when they died; and, where none lives, all of it.

    Args:
        api_url: The server.
        home: The benchmark home.
        host: The host whose limits are set to free where no run of this home lives; None: only
            what the dead runs wrote down is freed. Runs of other homes on the same server aren't
            seen from here.

    Returns:
        What was freed: ids of runs, and names of limits.
    """
    with _client(api_url) as client:
        freed = free_leaked(client, home)
        if host is None or any(folder.alive() for folder in RunStore(home).folders()):
            return freed
        for limit in (measure_limit(host), gpu_limit(host), queue_limit(host)):
            state = read_limit(client, limit)
            if state is not None and state["active_slots"]:
                reset_limit(client, limit)
                freed.append(limit)
    return freed


def _client(api_url: str) -> SyncPrefectClient:
    with temporary_settings({PREFECT_API_URL: api_url}):
        return get_client(sync_client=True)

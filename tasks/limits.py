"""The limits of a host on the Prefect server: who may measure, and who may have its GPUs.

`measure:<host>` has one slot. `gpu:<host>` has as many as there are devices, and a stage occupies
as many as it asks for. Prefect passes a limit that doesn't exist, or that was switched off,
without a word; here both are errors.
"""

from __future__ import annotations

import contextlib
import contextvars
import json
import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from http import HTTPStatus
from pathlib import Path
from typing import Any

from prefect.client.orchestration import SyncPrefectClient, get_client
from prefect.exceptions import ObjectAlreadyExists, ObjectNotFound, PrefectHTTPStatusError

from benchwright.errors import BenchwrightError, GateRefused, Where
from benchwright.record.home import Layout
from benchwright.record.store import RunFolder

MOST_LIMITS = 200
"""As many as one request gives; of a server with more, one may be among the rest."""

QUEUE_SLOTS = 1000
"""More than will ever wait for one host."""

TAG_PREFIX = "tag:"
"""Of the names of limits that Prefect applies to tasks with a tag."""

LEASES = ".leases"
"""File in a run's folder with the leases that it holds, for who finds it dead."""


def measure_limit(host: str) -> str:
    """Name of the limit by which one stage at a time is measured on a host."""
    return f"measure:{host}"


def queue_limit(host: str) -> str:
    """Name of the limit by which runs that wait to measure are counted; it holds nobody back.

    The server says who was denied a slot to nobody else, so those who wait say it here.
    """
    return f"measure:{host}:waiting"


def gpu_limit(host: str) -> str:
    """Name of the limit of a host's GPUs."""
    return f"gpu:{host}"


@dataclass(frozen=True, slots=True)
class KnownLimits:
    """The limits of a server at one moment.

    Attributes:
        named: Each by name, as the server has it (`limit`, `active`, `active_slots`).
        tagged: Whether a tag is limited, or may be: the server has too many limits to tell.
    """

    named: Mapping[str, Mapping[str, Any]]
    tagged: bool


def read_limits(client: SyncPrefectClient) -> KnownLimits:
    """What limits there are, by two requests."""
    named = client.request(
        "POST", "/v2/concurrency_limits/filter", json={"limit": MOST_LIMITS, "offset": 0}
    ).json()
    # Limits of tags from before Prefect kept them with the others.
    older = client.request(
        "POST", "/concurrency_limits/filter", json={"limit": 1, "offset": 0}
    ).json()
    by_name = {str(limit["name"]): limit for limit in named}
    tagged = any(name.startswith(TAG_PREFIX) for name in by_name)
    return KnownLimits(by_name, tagged or bool(older) or len(named) >= MOST_LIMITS)


class LimitsAhead:
    """Asks a server for its limits while other things are done."""

    def __init__(self) -> None:
        self._known: KnownLimits | None = None
        context = contextvars.copy_context()  # Prefect's settings are in it
        self._thread = threading.Thread(
            target=context.run, args=(self._ask,), name="limits", daemon=True
        )
        self._thread.start()

    def known(self) -> KnownLimits | None:
        """What it answered; None where it didn't."""
        self._thread.join()
        return self._known

    def _ask(self) -> None:
        with contextlib.suppress(Exception), get_client(sync_client=True) as client:
            self._known = read_limits(client)


def ensure_limits(
    client: SyncPrefectClient, wanted: Mapping[str, int], known: KnownLimits | None = None
) -> dict[str, int]:
    """Create the limits that are missing; one request for each that is there and not known.

    A limit above what is wanted is lowered: there can't be more devices than there are. One
    below stays: somebody keeps the rest for others.

    Args:
        client: To the server.
        wanted: Slots by name of the limit.
        known: What the server was asked already.

    Returns:
        The slots that each has now.

    Raises:
        BenchwrightError: One was switched off, so that it would hold nobody back.
    """
    there: dict[str, int] = {}
    for name, slots in wanted.items():
        found = known.named.get(name) if known is not None else None
        found = dict(found) if found is not None else read_limit(client, name)
        if found is None:
            with contextlib.suppress(ObjectAlreadyExists, PrefectHTTPStatusError):
                client.request(
                    "POST", "/v2/concurrency_limits/", json={"name": name, "limit": slots}
                )
            found = read_limit(client, name)
        if found is None:
            raise BenchwrightError(
                f"the limit {name} could not be created on the Prefect server",
                hint=f"create it: prefect gcl create {name} --limit {slots}",
            )
        if not found["active"]:
            raise BenchwrightError(
                f"the limit {name} is switched off on the Prefect server, and would hold nobody"
                " back",
                hint=f"prefect gcl enable {name}",
            )
        if found["limit"] > slots:
            _change(client, name, {"limit": slots})
            found["limit"] = slots
        there[name] = int(found["limit"])
    return there


def read_limit(client: SyncPrefectClient, name: str) -> dict[str, Any] | None:
    """A limit as the server has it (`limit`, `active`, `active_slots`)."""
    try:
        found: dict[str, Any] = client.request(
            "GET", "/v2/concurrency_limits/{id_or_name}", path_params={"id_or_name": name}
        ).json()
    except ObjectNotFound:
        return None
    except PrefectHTTPStatusError as error:
        if error.response.status_code == HTTPStatus.NOT_FOUND:
            return None
        raise
    return found


def _change(client: SyncPrefectClient, name: str, changes: Mapping[str, int]) -> None:
    client.request(
        "PATCH",
        "/v2/concurrency_limits/{id_or_name}",
        path_params={"id_or_name": name},
        json=dict(changes),
    )


def refuse_above(limits: Mapping[str, int], name: str, asked: int, stage: str) -> None:
    """Refuse a stage that asks for more slots than there are: it would never get them.

    Raises:
        GateRefused: It does.
    """
    if asked > limits.get(name, asked):
        raise GateRefused(
            f"stage '{stage}' asks for {asked} GPUs, and the server's limit {name} has"
            f" {limits[name]}",
            where=Where(key=f"stages.{stage}.resources.gpus"),
            expected=f"at most {limits[name]}",
            hint=f"ask for fewer, or: prefect gcl update {name} --limit {asked}",
        )


def free_leaked(client: SyncPrefectClient, home: Path) -> list[str]:
    """Give back the slots of runs of this home that died with them.

    By their leases, so that the slots of nobody else are touched. (Setting a limit's active slots
    to zero leaves the dead run's lease behind: once that expires, it takes a slot from whoever
    has it by then.)

    Returns:
        Ids of the runs.
    """
    freed: list[str] = []
    for file in Layout(home).runs.glob(f"*/{LEASES}"):
        if RunFolder(home, file.parent.name).alive():
            continue
        for lease in read_leases(file):
            give_back(client, lease)
        file.unlink(missing_ok=True)
        freed.append(file.parent.name)
    return freed


def reset_limit(client: SyncPrefectClient, name: str) -> None:
    """Set a limit's active slots to zero: for a server whose leases were lost.

    Only where nobody holds one: see `free_leaked`.
    """
    _change(client, name, {"active_slots": 0})


def give_back(client: SyncPrefectClient, lease: str) -> None:
    """Free what a lease holds; one that is gone already is passed over."""
    with contextlib.suppress(ObjectNotFound):
        try:
            client.request(
                "POST", "/v2/concurrency_limits/decrement-with-lease", json={"lease_id": lease}
            )
        except PrefectHTTPStatusError as error:
            if error.response.status_code not in (HTTPStatus.NOT_FOUND, HTTPStatus.GONE):
                raise


def read_leases(file: Path) -> list[str]:
    """The leases that a run wrote down; none in a file that was torn."""
    return list(_lines(file))


def _lines(file: Path) -> Iterator[str]:
    try:
        text = file.read_text()
    except OSError:
        return
    for line in text.splitlines():
        with contextlib.suppress(ValueError):
            yield str(json.loads(line))

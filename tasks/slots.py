"""Slots of a run: taken from the server's limits, held by leases, given back.

Prefect's own context manager was measured at 145 ms for a slot that is taken and given back, on a
busy machine where the two requests alone took 23 ms: it opens a client and a thread each time.
Here a run has one client and one thread, and keeps its measuring slot over consecutive replicates
while nobody waits: such a replicate pays nothing. The order is the same everywhere, so that nobody
waits in a circle: the machine's lock (`execution.host`), the measuring slot, GPU slots, the
devices' locks.

A run that is killed gives nothing back: another run of the same home frees its slots at once
(`limits.free_leaked`), the server after `LEASE_S` and up to 15 s more.
"""

from __future__ import annotations

import contextlib
import contextvars
import json
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from http import HTTPStatus
from pathlib import Path
from uuid import UUID

from prefect.client.orchestration import SyncPrefectClient, get_client
from prefect.exceptions import ObjectNotFound, PrefectHTTPStatusError

from benchwright.errors import BenchwrightError, GateRefused, Interrupted
from benchwright.execution.accelerators import read_machine
from benchwright.execution.host import host_name
from benchwright.spec.model import Stage, StageKind
from tasks.limits import (
    LEASES,
    QUEUE_SLOTS,
    LimitsAhead,
    ensure_limits,
    free_leaked,
    give_back,
    gpu_limit,
    measure_limit,
    queue_limit,
    read_leases,
    read_limit,
    refuse_above,
)

LEASE_S = 60.0
"""The shortest lease that the server gives (seconds): a dead run's slots are back soon."""

RENEW_S = 20.0
"""Two renewals may fail before a lease is lost."""

HOLD_S = 5.0
"""A slot is kept for so long over consecutive replicates; then others may have it."""

FIRST_POLL_S, LONGEST_POLL_S = 0.02, 0.2
"""How often a run that waits asks again. The server's own advice (up to 30 s) is for crowds."""

GIVE_WAY_S = 2 * LONGEST_POLL_S
"""A run leaves its slot free for so long where others wait, for one of them to ask again."""


@dataclass(slots=True)
class Lease:
    """Slots that are held.

    Attributes:
        id: The server's.
        name: The limit.
        taken: Monotonic time.
        lost: Whether the server took them back because it wasn't renewed in time.
    """

    id: str
    name: str
    taken: float
    lost: bool = False


@dataclass(slots=True)
class Slots:
    """The slots of one run.

    Attributes:
        home: The benchmark home.
        run_dir: The run's folder: its leases stand there, for who finds it dead.
        cancelled: Ends the waiting when it is set.
        on_wait: Called with a sentence where another run has the slots.
        on_lost: Called with a sentence where the server took slots back while they were in use.
        holder: The flow run's id, for Prefect's pages.
        limits: Asks which limits there are, if that was begun already.
    """

    home: Path
    run_dir: Path
    cancelled: threading.Event
    on_wait: Callable[[str], None]
    on_lost: Callable[[str], None]
    holder: UUID | None = None
    limits: LimitsAhead | None = None
    _client: SyncPrefectClient | None = None
    _leases: dict[str, Lease] = field(default_factory=dict)
    _kept: dict[str, Lease] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _done: threading.Event = field(default_factory=threading.Event)
    _renewal: threading.Thread | None = None
    _closing: threading.Thread | None = None

    def ensure(self, stages: Sequence[Stage]) -> None:
        """Make sure that every limit that these stages need is there, and large enough.

        Raises:
            GateRefused: A stage asks for more GPUs than the limit has.
            BenchwrightError: A limit is switched off, or that of another host's GPUs is missing.
        """
        wanted: dict[str, int] = {}
        for stage in stages:
            host = stage.host or host_name()
            if stage.kind is StageKind.MEASURE:
                wanted |= {measure_limit(host): 1, queue_limit(host): QUEUE_SLOTS}
            if stage.resources.gpus and stage.host is None:
                # All that are there, not only those that this run may see.
                wanted[gpu_limit(host)] = len(read_machine({}).gpus)
        self._free_past()
        known = self.limits.known() if self.limits is not None else None
        there = ensure_limits(self.client, wanted, known)
        for stage in stages:
            name = gpu_limit(stage.host or host_name())
            if not stage.resources.gpus:
                continue
            if name not in there:
                there[name] = self._limit_of(name, stage)
            refuse_above(there, name, stage.resources.gpus, stage.name)

    @contextmanager
    def measuring(self, stage: Stage) -> Iterator[None]:
        """Hold the measuring slot of a stage's host, and the GPU slots that the stage asks for."""
        host = stage.host or host_name()
        name = measure_limit(host)
        kept = self._kept.pop(name, None)
        if kept is not None and (kept.lost or time.monotonic() - kept.taken > HOLD_S):
            self._give_way(kept, queue_limit(host))
            kept = None
        lease = kept or self._take(name, 1, queue_limit(host))
        try:
            with self.gpus(stage):
                yield
        except BaseException:
            self._free(lease)
            raise
        self._kept[name] = lease

    @contextmanager
    def gpus(self, stage: Stage) -> Iterator[None]:
        """Hold as many GPU slots as a stage asks for."""
        if not stage.resources.gpus:
            yield
            return
        lease = self._take(gpu_limit(stage.host or host_name()), stage.resources.gpus)
        try:
            yield
        finally:
            self._free(lease)

    def let_go(self) -> None:
        """Give back what is kept for the next replicate: somebody waits, or there is none."""
        while self._kept:
            self._free(self._kept.popitem()[1])

    def close(self) -> None:
        """Give everything back, and end the connection."""
        if self._closing is not None:
            self._closing.join()
        else:
            self._close()

    def _close(self) -> None:
        self.let_go()
        for lease in list(self._leases.values()):
            self._free(lease)
        self._done.set()
        if self._renewal is not None:
            self._renewal.join()
        if self._client is not None:
            self._client.__exit__(None, None, None)
            self._client = None

    def close_behind(self) -> None:
        """Begin to give everything back; `close` waits for it."""
        context = contextvars.copy_context()
        self._closing = threading.Thread(
            target=context.run, args=(self._close,), name="slots-closing", daemon=True
        )
        self._closing.start()

    @property
    def client(self) -> SyncPrefectClient:
        """The connection to the server, opened when it is first needed."""
        if self._client is None:
            self._client = get_client(sync_client=True)
            self._client.__enter__()
        return self._client

    def _free_past(self) -> None:
        """Give back what an earlier process of this run held when it died: it is resumed now."""
        file = self.run_dir / LEASES
        for lease in read_leases(file):
            with contextlib.suppress(PrefectHTTPStatusError):  # in the worst case it runs out
                give_back(self.client, lease)
        file.unlink(missing_ok=True)

    def _limit_of(self, name: str, stage: Stage) -> int:
        found = read_limit(self.client, name)
        if found is None or not found["active"]:
            raise BenchwrightError(
                f"stage '{stage.name}' asks for GPUs of the host '{stage.host}', and the server"
                f" has no limit {name}, or it is switched off",
                hint=f"prefect gcl create {name} --limit NUMBER_OF_DEVICES",
            )
        return int(found["limit"])

    def _take(self, name: str, slots: int, queue: str | None = None) -> Lease:
        """Take slots; waits while others have them, and counts itself in `queue` meanwhile.

        Raises:
            Interrupted: It was cancelled while it waited.
            BenchwrightError: The limit is missing.
            GateRefused: It has fewer slots.
        """
        answer = self._ask(name, slots)
        if answer is None and free_leaked(self.client, self.home):
            answer = self._ask(name, slots)
        if answer is not None:
            return self._remember(answer, name)
        self.on_wait(f"{name}, which another run has")
        place = self._remember(self._ask(queue, 1), queue) if queue is not None else None
        pause = FIRST_POLL_S
        try:
            while not self.cancelled.wait(pause):
                answer = self._ask(name, slots)
                if answer is not None:
                    return self._remember(answer, name)
                pause = min(2 * pause, LONGEST_POLL_S)
        finally:
            if place is not None:
                self._free(place)
        raise Interrupted(f"the run was cancelled while it waited for {name}")

    def _ask(self, name: str, slots: int) -> Mapping[str, object] | None:
        """Ask once; None where others have them."""
        holder = {"type": "flow_run", "id": str(self.holder)} if self.holder else None
        try:
            answer: Mapping[str, object] = self.client.request(
                "POST",
                "/v2/concurrency_limits/increment-with-lease",
                json={
                    "names": [name],
                    "slots": slots,
                    "mode": "concurrency",
                    "lease_duration": LEASE_S,
                    "holder": holder,
                },
            ).json()
        except PrefectHTTPStatusError as error:
            code = error.response.status_code
            if code == HTTPStatus.LOCKED:
                return None
            if code == HTTPStatus.UNPROCESSABLE_ENTITY:
                raise GateRefused(
                    f"{slots} slots of {name} were asked for, and it has fewer",
                    hint=f"ask for fewer, or: prefect gcl update {name} --limit {slots}",
                ) from error
            raise
        if not answer["limits"]:  # it doesn't exist, and so nobody is held back
            give_back(self.client, str(answer["lease_id"]))
            raise BenchwrightError(
                f"the limit {name} is missing on the Prefect server",
                hint=f"run again, or: prefect gcl create {name} --limit {slots}",
            )
        return answer

    def _remember(self, answer: Mapping[str, object] | None, name: str) -> Lease:
        assert answer is not None, f"all slots of {name} are taken"
        lease = Lease(str(answer["lease_id"]), name, time.monotonic())
        with self._lock:
            self._leases[lease.id] = lease
            self._write()
        if self._renewal is None:
            self._renewal = threading.Thread(target=self._renew, name="slots", daemon=True)
            self._renewal.start()
        return lease

    def _free(self, lease: Lease) -> None:
        """Give slots back. Where the server doesn't answer, their lease runs out by itself."""
        with self._lock:
            if self._leases.pop(lease.id, None) is None:
                return
        if not lease.lost:
            with contextlib.suppress(Exception):
                give_back(self.client, lease.id)
        with self._lock:
            self._write()

    def _give_way(self, lease: Lease, queue: str) -> None:
        """Free slots, and leave them free for a moment where others wait for them."""
        waiting = False
        with contextlib.suppress(Exception):
            found = read_limit(self.client, queue)
            waiting = found is not None and bool(found["active_slots"])
        self._free(lease)
        if waiting:
            self.cancelled.wait(GIVE_WAY_S)

    def _write(self) -> None:
        file = self.run_dir / LEASES
        with contextlib.suppress(OSError):  # a full disk: the leases expire by themselves
            if self._leases:
                file.write_text("".join(f"{json.dumps(id)}\n" for id in self._leases))
            else:
                file.unlink(missing_ok=True)

    def _renew(self) -> None:
        while not self._done.wait(RENEW_S):
            with self._lock:
                leases = list(self._leases.values())
            for lease in leases:
                self._renew_one(lease)

    def _renew_one(self, lease: Lease) -> None:
        try:
            self.client.renew_concurrency_lease(UUID(lease.id), LEASE_S)
            return
        except ObjectNotFound:
            gone = True
        except PrefectHTTPStatusError as error:
            gone = error.response.status_code in (HTTPStatus.NOT_FOUND, HTTPStatus.GONE)
        except Exception:  # it doesn't answer: asked again in a while
            gone = False
        if gone and lease.id in self._leases and not lease.lost:
            lease.lost = True
            self.on_lost(
                f"The Prefect server took {lease.name} back while it was in use: another run may"
                " have used the host at the same time."
            )

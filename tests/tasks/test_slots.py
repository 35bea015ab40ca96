"""Slots on a real Prefect server: one measurement at a time, GPUs by number, nothing leaked."""

from __future__ import annotations

import threading
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from benchwright.errors import BenchwrightError, GateRefused, Interrupted
from benchwright.record.run import Status
from benchwright.record.store import RunFolder, RunStore
from benchwright.spec.manifest import Manifest
from benchwright.spec.model import BenchmarkConfig, Resources, Stage, StageKind
from tasks import slots as module
from tasks.limits import (
    LEASES,
    ensure_limits,
    free_leaked,
    gpu_limit,
    measure_limit,
    queue_limit,
    read_limit,
    reset_limit,
)
from tasks.slots import Lease, Slots
from tests.nvml import StandIn, nvml  # noqa: F401 - a fixture

Make = Callable[..., Slots]


@pytest.fixture
def host(monkeypatch: pytest.MonkeyPatch) -> str:
    """A host of this test's own, so that it meets no other run of the session's server."""
    name = f"host-{uuid.uuid4().hex[:8]}"
    monkeypatch.setattr(module, "host_name", lambda: name)
    return name


def new_run(home: Path) -> RunFolder:
    return RunStore(home).create(
        BenchmarkConfig(domain="command"), "slots", Manifest(), config_hash="ab" * 32
    )


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[RunFolder]:
    """A run that lives."""
    made = new_run(tmp_path / "home")
    with made.lock():
        yield made


@pytest.fixture
def make(prefect_api: str, folder: RunFolder) -> Iterator[Make]:
    made: list[Slots] = []

    def one(
        cancelled: threading.Event | None = None,
        on_wait: Callable[[str], None] = lambda _: None,
        on_lost: Callable[[str], None] = lambda _: None,
        run: RunFolder | None = None,
    ) -> Slots:
        place = run or folder
        slots = Slots(place.home, place.path, cancelled or threading.Event(), on_wait, on_lost)
        made.append(slots)
        assert slots.client  # opened here: a new thread doesn't know the test's server
        return slots

    yield one
    for slots in made:
        slots.close()


def stage(gpus: int = 0, host: str | None = None, kind: StageKind = StageKind.MEASURE) -> Stage:
    return Stage(name="s", kind=kind, cmd="x", host=host, resources=Resources(gpus=gpus))


def active(slots: Slots, name: str) -> int:
    found = read_limit(slots.client, name)
    assert found is not None
    return int(found["active_slots"])


def test_limits_are_created_once_and_lowered_but_never_raised(make: Make, host: str) -> None:
    client = make().client
    wanted = {measure_limit(host): 1, gpu_limit(host): 4}
    assert ensure_limits(client, wanted) == wanted
    assert ensure_limits(client, wanted | {gpu_limit(host): 2}) == wanted | {gpu_limit(host): 2}
    # Somebody keeps two devices for others.
    assert ensure_limits(client, wanted)[gpu_limit(host)] == 2


def test_a_limit_that_was_switched_off_is_an_error(make: Make, host: str) -> None:
    client = make().client
    name = measure_limit(host)
    ensure_limits(client, {name: 1})
    client.request(
        "PATCH",
        "/v2/concurrency_limits/{id_or_name}",
        path_params={"id_or_name": name},
        json={"active": False},
    )
    with pytest.raises(BenchwrightError, match="switched off"):
        ensure_limits(client, {name: 1})


def test_a_missing_limit_is_an_error_and_no_pass(make: Make, host: str) -> None:
    slots = make()
    with (
        pytest.raises(BenchwrightError, match=f"measure:{host} is missing"),
        slots.measuring(stage()),
    ):
        pytest.fail("it was passed")


def test_two_runs_never_measure_at_the_same_time(make: Make, host: str) -> None:
    first, second = make(), make()
    first.ensure([stage()])
    inside: list[str] = []
    most: list[int] = []

    def run(slots: Slots, name: str) -> None:
        for _ in range(4):
            with slots.measuring(stage()):
                inside.append(name)
                most.append(len(inside))
                time.sleep(0.01)
                inside.remove(name)
            slots.let_go()

    threads = [
        threading.Thread(target=run, args=(slots, name))
        for slots, name in ((first, "a"), (second, "b"))
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert most == [1] * 8


def test_a_slot_is_kept_over_replicates_until_somebody_waits(make: Make, host: str) -> None:
    slots = make()
    slots.ensure([stage()])
    with slots.measuring(stage()):
        pass
    (lease,) = slots._leases
    with slots.measuring(stage()):
        assert list(slots._leases) == [lease]
    assert active(slots, measure_limit(host)) == 1
    slots.let_go()
    assert active(slots, measure_limit(host)) == 0


def test_a_slot_is_offered_to_others_after_a_while(
    make: Make, host: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run on this host but in another container isn't seen by the machine's lock."""
    monkeypatch.setattr(module, "HOLD_S", 0.0)
    greedy, other = make(), make()
    greedy.ensure([stage()])
    got = threading.Event()

    def wait() -> None:
        with other.measuring(stage()):
            got.set()
        other.let_go()

    with greedy.measuring(stage()):
        thread = threading.Thread(target=wait)
        thread.start()
        while not active(greedy, queue_limit(host)):
            time.sleep(0.01)
    with greedy.measuring(stage()):
        assert got.is_set()
    thread.join(30)


def test_a_stage_occupies_as_many_gpu_slots_as_it_asks_for(
    make: Make,
    host: str,
    nvml: StandIn,  # noqa: F811
) -> None:
    slots = make()
    step = stage(gpus=2, kind=StageKind.STEP)
    slots.ensure([step])
    waited: list[str] = []
    cancelled = threading.Event()
    late = make(cancelled, on_wait=lambda text: (waited.append(text), cancelled.set())[0])
    with slots.gpus(step):
        assert active(slots, gpu_limit(host)) == 2
        with pytest.raises(Interrupted), late.gpus(stage(gpus=1, kind=StageKind.STEP)):
            pytest.fail("there was no slot")
    assert waited == [f"gpu:{host}, which another run has"]
    assert active(slots, gpu_limit(host)) == 0


def test_more_gpus_than_the_limit_has_are_refused_at_once(
    make: Make,
    host: str,
    nvml: StandIn,  # noqa: F811
) -> None:
    slots = make()
    ensure_limits(slots.client, {gpu_limit(host): 1})  # one of two is kept for others
    with pytest.raises(GateRefused, match=f"asks for 2 GPUs, and the server's limit gpu:{host}"):
        slots.ensure([stage(gpus=2)])


def test_gpus_of_another_host_need_a_limit_that_somebody_made(make: Make, host: str) -> None:
    slots = make()
    away = stage(gpus=2, host=f"{host}-far")
    with pytest.raises(BenchwrightError, match="prefect gcl create") as refused:
        slots.ensure([away])
    assert f"gpu:{host}-far" in str(refused.value)
    ensure_limits(slots.client, {gpu_limit(f"{host}-far"): 2})
    slots.ensure([away])


def test_a_failure_inside_gives_every_slot_back(
    make: Make,
    host: str,
    nvml: StandIn,  # noqa: F811
    folder: RunFolder,
) -> None:
    slots = make()
    both = stage(gpus=1)
    slots.ensure([both])
    seen: list[int] = []

    def fail() -> None:
        seen.append(active(slots, gpu_limit(host)))
        seen.append(len((folder.path / LEASES).read_text().splitlines()))
        raise ValueError

    with pytest.raises(ValueError), slots.measuring(both):
        fail()
    assert seen == [1, 2]
    assert active(slots, measure_limit(host)) == 0
    assert active(slots, gpu_limit(host)) == 0
    assert not (folder.path / LEASES).exists()


def test_the_slots_of_a_killed_run_are_freed_by_the_next_one(
    make: Make, host: str, folder: RunFolder
) -> None:
    killed = new_run(folder.home)
    dead = make(run=killed)
    dead.ensure([stage()])
    dead._take(measure_limit(host), 1)
    held = set(dead._leases)
    dead._leases.clear()  # it can give nothing back any more
    assert (killed.path / LEASES).exists()
    began = time.monotonic()
    slots = make()
    with slots.measuring(stage()):
        assert not held & set(slots._leases)
    assert time.monotonic() - began < 20  # the lease would have held it for a minute
    assert not (killed.path / LEASES).exists()


def test_a_run_that_is_resumed_has_back_what_its_dead_process_held(make: Make, host: str) -> None:
    waits: list[str] = []
    killed, resumed = make(), make(on_wait=waits.append)
    killed.ensure([stage()])
    killed._take(measure_limit(host), 1)
    killed._leases.clear()  # it dies here: nothing is renewed or given back, its file stays
    resumed.ensure([stage()])
    assert active(resumed, measure_limit(host)) == 0
    assert not (resumed.run_dir / LEASES).exists()
    with resumed.measuring(stage()):
        assert active(resumed, measure_limit(host)) == 1
    assert waits == []


def test_a_living_runs_slots_are_nobody_elses_to_free(
    make: Make, host: str, folder: RunFolder
) -> None:
    slots = make()
    slots.ensure([stage()])
    with slots.measuring(stage()):
        assert folder.status is Status.IN_PROGRESS
        assert free_leaked(slots.client, folder.home) == []
        assert active(slots, measure_limit(host)) == 1


def test_a_limit_can_be_set_to_free(make: Make, host: str) -> None:
    slots = make()
    slots.ensure([stage()])
    slots._take(measure_limit(host), 1)
    reset_limit(slots.client, measure_limit(host))
    assert active(slots, measure_limit(host)) == 0


def test_a_lease_that_the_server_took_back_is_told_and_not_used_again(
    make: Make, host: str
) -> None:
    told: list[str] = []
    slots = make(on_lost=told.append)
    slots.ensure([stage()])
    with slots.measuring(stage()):
        (lease,) = slots._leases.values()
        slots.client.release_concurrency_slots_with_lease(uuid.UUID(lease.id))
        slots._renew_one(lease)
        slots._renew_one(lease)
    assert len(told) == 1
    assert "took measure:" in told[0]
    with slots.measuring(stage()):
        assert lease.id not in slots._leases


def test_a_lease_is_renewed(make: Make, host: str) -> None:
    told: list[str] = []
    slots = make(on_lost=told.append)
    slots.ensure([stage()])
    with slots.measuring(stage()):
        (lease,) = slots._leases.values()
        slots._renew_one(lease)
        assert not lease.lost
    slots._renew_one(Lease("00000000-0000-4000-8000-000000000000", "x", 0.0))
    assert told == []

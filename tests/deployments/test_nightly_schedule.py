"""The nightly schedule: its times over a change of clocks, and a real worker that keeps it."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from prefect.client.orchestration import SyncPrefectClient, get_client
from prefect.client.schemas.actions import WorkPoolCreate
from prefect.client.schemas.filters import (
    FlowRunFilter,
    FlowRunFilterDeploymentId,
    FlowRunFilterId,
)
from prefect.client.schemas.objects import FlowRun
from prefect.server.schemas.schedules import CronSchedule
from prefect.states import Scheduled

from benchwright.record.nights import SuiteFolder
from benchwright.report.suite import REGRESSION
from deployments.automations import REGRESSION_EVENT
from deployments.register import PREFECT_YAML, deployment, read_entries
from tests.cli.conftest import experiment

BERLIN = ZoneInfo("Europe/Berlin")


def shipped() -> dict[str, Any]:
    """The nightly entry of prefect.yaml."""
    return next(entry for entry in read_entries(PREFECT_YAML) if entry["name"] == "nightly")


def fires(cron: str, zone: str, after: datetime, count: int) -> list[datetime]:
    """When Prefect's own scheduler would start a run, in local time."""
    schedule = CronSchedule(cron=cron, timezone=zone)
    times = asyncio.run(schedule.get_dates(n=count, start=after))
    return [time.astimezone(ZoneInfo(zone)) for time in times]


@pytest.mark.parametrize(
    "change",
    [datetime(2026, 3, 29, tzinfo=BERLIN), datetime(2026, 10, 25, tzinfo=BERLIN)],
    ids=["spring", "autumn"],
)
@pytest.mark.parametrize("cron", ["30 1 * * *", "0 4 * * *"])
def test_the_hour_stays_the_hour_of_the_clocks_when_they_change(
    change: datetime, cron: str
) -> None:
    times = fires(cron, "Europe/Berlin", change - timedelta(days=2), 5)
    minute, hour = (int(part) for part in cron.split()[:2])
    assert [(time.hour, time.minute) for time in times] == [(hour, minute)] * 5
    dates = [time.date() for time in times]
    assert dates == [dates[0] + timedelta(days=number) for number in range(5)]
    offsets = {time.utcoffset() for time in times}
    assert offsets == {timedelta(hours=1), timedelta(hours=2)}


@pytest.mark.parametrize(
    ("change", "cron"),
    [
        (datetime(2026, 3, 29, tzinfo=BERLIN), "30 2 * * *"),
        (datetime(2026, 10, 25, tzinfo=BERLIN), "30 2 * * *"),
    ],
    ids=["an hour that is missing", "an hour that comes twice"],
)
def test_every_night_is_run_once_whatever_the_clocks_do(change: datetime, cron: str) -> None:
    times = fires(cron, "Europe/Berlin", change - timedelta(days=2), 5)
    dates = [time.date() for time in times]
    assert dates == [dates[0] + timedelta(days=number) for number in range(5)]
    assert len({time.astimezone(UTC) for time in times}) == 5


def test_the_shipped_schedule_is_one_a_night_and_cancels_what_would_overlap() -> None:
    entry = shipped()
    (schedule,) = entry["schedules"]
    times = fires(schedule["cron"], schedule["timezone"], datetime(2026, 3, 1, tzinfo=UTC), 3)
    assert [time.day for time in times] == [1, 2, 3]
    assert entry["concurrency_limit"] == {"limit": 1, "collision_strategy": "CANCEL_NEW"}
    assert "nightly" in entry["tags"]


def test_the_automations_listen_for_the_event_that_the_suite_sends() -> None:
    assert REGRESSION_EVENT == REGRESSION


# A real worker


def wait_for(found: Callable[[], Any], what: str, seconds: float = 240.0) -> Any:
    deadline = time.monotonic() + seconds
    while not (value := found()):
        assert time.monotonic() < deadline, f"waited in vain for {what}"
        time.sleep(0.5)
    return value


@pytest.fixture
def client(prefect_api: str) -> Iterator[SyncPrefectClient]:
    with get_client(sync_client=True) as made:
        yield made


@pytest.fixture
def pool(client: SyncPrefectClient) -> Iterator[str]:
    name = f"pool-{uuid.uuid4().hex[:8]}"
    client.create_work_pool(WorkPoolCreate(name=name, type="process"))
    yield name
    client.delete_work_pool(name)


@pytest.fixture
def worker(pool: str, local_api_url: str, tmp_path: Path) -> Iterator[Callable[[], None]]:
    """Starts a process worker on the pool; it is ended with the test."""
    started: list[subprocess.Popen[bytes]] = []

    def start() -> None:
        environ = {name: v for name, v in os.environ.items() if not name.startswith("PREFECT_")}
        environ |= {
            "PREFECT_API_URL": local_api_url,
            "PREFECT_HOME": str(tmp_path / "worker"),
            "PREFECT_WORKER_QUERY_SECONDS": "1",
            "PREFECT_WORKER_PREFETCH_SECONDS": "0",
            "DO_NOT_TRACK": "1",
        }
        with (tmp_path / "worker.log").open("wb") as log:
            started.append(
                subprocess.Popen(
                    [
                        *(sys.executable, "-m", "prefect", "worker", "start"),
                        *("--pool", pool, "--type", "process", "--name", "here"),
                    ],
                    env=environ,
                    stdout=log,
                    stderr=log,
                    cwd=tmp_path,
                )
            )

    yield start
    for process in started:
        process.terminate()
        process.wait(30)


def runs_of(client: SyncPrefectClient, deployment_id: uuid.UUID) -> list[FlowRun]:
    return client.read_flow_runs(
        flow_run_filter=FlowRunFilter(
            deployment_id=FlowRunFilterDeploymentId(any_=[deployment_id])
        ),
        limit=50,
    )


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_schedule_in_the_near_future_fires_and_missed_nights_are_made_up_for_once(
    tmp_path: Path,
    client: SyncPrefectClient,
    pool: str,
    worker: Callable[[], None],
) -> None:
    home = tmp_path / "home"
    experiment(tmp_path / "e", replication={"replicates": 2, "warmup": 0})
    name = f"s{uuid.uuid4().hex[:8]}"
    suite = tmp_path / "suite.yaml"
    entries = [
        {"name": "here", "experiment": "e/experiment.yaml"},
        {
            "name": "there",
            "experiment": "e/experiment.yaml",
            "params": {"size": 7},
            "replicates": 3,
            "host": "gpu-a",
        },
    ]
    hosts = {"gpu-a": {"deployment": f"benchmark/{name}"}}
    suite.write_text(json.dumps({"name": name, "hosts": hosts, "entries": entries}))
    benchmark = next(one for one in read_entries(PREFECT_YAML) if one["name"] == "benchmark")
    soon = datetime.now(UTC) + timedelta(seconds=40)
    nightly = {
        **shipped(),
        "name": name,
        "parameters": {"suite": str(suite)},
        "schedules": [
            {"interval": 86400, "anchor_date": soon.isoformat(), "timezone": "UTC", "slug": "soon"}
        ],
    }
    for entry in ({**benchmark, "name": name}, nightly):
        deployment(
            client,
            entry,
            file=PREFECT_YAML,
            pool=pool,
            env={"BENCHMARK_HOME": str(home)},
            tags=(),
        ).write()

    there = client.read_deployment_by_name(f"nightly/{name}")
    assert [schedule.active for schedule in there.schedules] == [True]
    planned = wait_for(
        lambda: [
            run
            for run in runs_of(client, there.id)
            if run.expected_start_time
            and abs(run.expected_start_time - soon) < timedelta(seconds=2)
        ],
        "the scheduled run to be visible",
    )
    assert planned[0].auto_scheduled
    missed = [
        client.create_flow_run_from_deployment(
            there.id, state=Scheduled(scheduled_time=datetime.now(UTC) - timedelta(days=days))
        )
        for days in (1, 2)
    ]
    worker()

    def states(ids: list[uuid.UUID]) -> list[str]:
        runs = client.read_flow_runs(flow_run_filter=FlowRunFilter(id=FlowRunFilterId(any_=ids)))
        ended = [run.state.name for run in runs if run.state and run.state.is_final()]
        return sorted(str(one) for one in ended) if len(ended) == len(ids) else []

    everything = [planned[0].id, *(run.id for run in missed)]
    ended = wait_for(lambda: states(everything), "the nights to end", 400)
    rows = SuiteFolder(home, name).rows()
    assert ended in (
        ["Cancelled", "Cancelled", "Completed"],
        ["Cancelled", "Completed", "Completed"],
    ), (
        rows,
        (tmp_path / "worker.log").read_text()[-3000:],
    )
    nights = ended.count("Completed")
    assert [row.status for row in rows] == ["COMPLETED"] * 2 * nights
    assert {row.entry for row in rows} == {"here", "there"}
    far = next(row for row in rows if row.entry == "there")
    assert far.figures["size=7"]["t_ms"].n == 3
    assert SuiteFolder(home, name).dashboard.exists()
    for one in (f"nightly/{name}", f"benchmark/{name}"):
        client.delete_deployment(client.read_deployment_by_name(one).id)

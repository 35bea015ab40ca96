"""One server on a real PostgreSQL, and two workers that stand for two hosts."""

from __future__ import annotations

import json
import os
import shutil
import signal
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from benchmarks.crashes import (
    LAUNCHES,
    Reported,
    index_differs,
    stage_groups,
    stage_processes,
    unreadable,
    write_experiment,
)
from benchmarks.many_machines import (
    HOSTS,
    Fleet,
    make_fleet,
    measured,
    overlaps,
    overlaps_within,
    postgres_programs,
    wait_for,
)
from benchwright.execution import tree
from benchwright.record.run import Status
from benchwright.record.store import RunFolder
from tests.nvml import _build
from tests.support import require

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

GPUS = ("device GPU-a NVIDIA_Test 8000 100", "device GPU-b NVIDIA_Test 8000 100")


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    """Server, database and workers; the host `beta` has two GPUs, made up."""
    require(postgres_programs() is not None, "PostgreSQL (initdb, pg_ctl, postgres)")
    library = _build(tmp_path_factory.mktemp("nvml"))
    place = Path(tempfile.mkdtemp(prefix="benchwright-fleet-"))
    devices = place / "devices"
    devices.write_text("".join(f"{line}\n" for line in GPUS))
    # The same on both: what a stage inherits belongs to the signature of what it builds.
    libraries = {"LD_LIBRARY_PATH": str(library.parent)}
    made = make_fleet(
        place, extra={"alpha": libraries, "beta": {**libraries, "NVML_STANDIN": str(devices)}}
    )
    try:
        made.create()
        yield made
    finally:
        made.close()
        shutil.rmtree(place, ignore_errors=True)


def experiment(fleet: Fleet, name: str, sleep_s: float = 0.1, **resources: int) -> Path:
    """An experiment whose measure stage asks for these."""
    file = write_experiment(fleet.folder / name, name, sleep_s)
    config: dict[str, Any] = json.loads(file.read_text())
    config["stages"][1]["resources"] = resources
    file.write_text(json.dumps(config))
    return file


def test_an_experiment_goes_to_the_host_that_has_what_it_asks_for(fleet: Fleet) -> None:
    asks_gpus = fleet.submit(experiment(fleet, "two-gpus", gpus=2))
    on_alpha = fleet.submit(experiment(fleet, "plain"), "--on", "alpha")
    for flow_run, host in ((asks_gpus, "beta"), (on_alpha, "alpha")):
        ended = fleet.ended(flow_run)
        assert ended["state_name"] == "Completed", ended["state"]["message"]
        where, folder = fleet.folder_of(flow_run)
        assert (where, folder.read().host) == (host, host)
    code, said = fleet.call(
        "run", str(experiment(fleet, "three-gpus", gpus=3)), "--deployment", "benchmark", "--json"
    )
    assert (code, "the largest host has 2" in said["error"]["what"]) == (2, True)
    code, said = fleet.call(
        *("run", str(experiment(fleet, "nowhere")), "--deployment", "benchmark", "--json"),
        *("--on", "gamma"),
    )
    assert (code, said["error"]["expected"]) == (2, "one of alpha, beta")


def test_what_one_host_built_the_other_takes_from_the_store(fleet: Fleet) -> None:
    file = experiment(fleet, "shared")
    first = fleet.submit(file, "--on", "alpha")
    assert fleet.ended(first)["state_name"] == "Completed"
    second = fleet.submit(file, "--on", "beta")
    assert fleet.ended(second)["state_name"] == "Completed"
    built = fleet.folder_of(first)[1].read().view.prep
    taken = fleet.folder_of(second)[1].read().view.prep
    assert [prep.cached for prep in built] == [False, False]
    assert [prep.cached for prep in taken] == [True, True]
    assert all("another machine" in prep.reason for prep in taken)
    assert [prep.signature for prep in taken] == [prep.signature for prep in built]


def test_measurements_of_one_host_never_overlap_and_those_of_two_hosts_do(fleet: Fleet) -> None:
    before = {host: len(measured(fleet.home(host))) for host in HOSTS}
    files = [experiment(fleet, f"overlap-{number}", sleep_s=1.0) for number in range(4)]
    runs = [
        fleet.queue(file, f"host-{host}")
        for file, host in zip(files, (*HOSTS, *HOSTS), strict=True)
    ]
    for flow_run in runs:
        assert fleet.ended(flow_run)["state_name"] == "Completed"
    rows = {host: measured(fleet.home(host))[before[host] :] for host in HOSTS}
    assert {host: len(row) for host, row in rows.items()} == dict.fromkeys(HOSTS, 2 * LAUNCHES)
    assert {host: overlaps_within(row) for host, row in rows.items()} == dict.fromkeys(HOSTS, 0)
    assert overlaps(*rows.values()) > 0


# What is lost when something is killed: nothing that was finished


def begun(fleet: Fleet, name: str, host: str) -> tuple[str, RunFolder]:
    """A run on that host that has finished two replicates, and has more to do."""
    flow_run = fleet.submit(experiment(fleet, name, sleep_s=1.0), "--on", host)
    _, folder = fleet.folder_of(flow_run)
    wait_for(lambda: len(folder.samples()) >= 2, "two finished replicates")
    return flow_run, folder


def whole(fleet: Fleet, folder: RunFolder, reported: Reported) -> None:
    """The run is complete, has what was reported, and nothing of it is left."""
    assert folder.status is Status.COMPLETED, folder.read().error
    assert reported.missing_in(folder) == []
    assert len(Reported.of(folder).samples) == LAUNCHES
    for host in HOSTS:
        assert unreadable(fleet.home(host)) == index_differs(fleet.home(host)) == []
    wait_for(lambda: not stage_processes(folder.home), "no process of a stage", 10)
    wait_for(lambda: not stage_groups(folder.home), "no control group of a stage", 10)


def go_on(fleet: Fleet, folder: RunFolder, host: str) -> None:
    """Have the host's worker go on with a run, as `docs/many-machines.md` says."""
    code, said = fleet.call("resume", folder.run_id, "--on", host, "--json")
    assert (code, said["state"]) == (0, "Completed"), said


def test_a_killed_worker_ends_no_run(fleet: Fleet) -> None:
    flow_run, folder = begun(fleet, "worker-killed", "alpha")
    worker = fleet.workers["alpha"]
    pid = folder.owner()
    assert pid is not None
    assert os.getsid(pid) == pid, "what its terminal tells a worker is the worker's alone"
    worker.send_signal(signal.SIGKILL)
    worker.wait()
    reported = Reported.of(folder)
    fleet.start_worker("alpha")
    wait_for(lambda: folder.status is not Status.IN_PROGRESS, "the end of the run")
    whole(fleet, folder, reported)
    assert fleet.ended(flow_run)["state_name"] == "Completed"


def test_a_run_that_is_cancelled_on_the_server_ends_with_its_stage(fleet: Fleet) -> None:
    flow_run, folder = begun(fleet, "cancelled", "beta")
    reported = Reported.of(folder)
    cancelling = {"state": {"type": "CANCELLING", "message": "by a person"}}
    fleet.ask("POST", f"flow_runs/{flow_run}/set_state", cancelling)
    assert fleet.ended(flow_run)["state_name"] == "Cancelled"
    wait_for(lambda: not folder.alive(), "the end of the run's process", 30)
    assert folder.read().status is Status.INTERRUPTED
    assert reported.missing_in(folder) == []
    wait_for(lambda: not stage_processes(folder.home), "no process of a stage", 10)


def test_a_host_that_goes_down_loses_no_finished_replicate(fleet: Fleet) -> None:
    _, folder = begun(fleet, "host-down", "alpha")
    worker, pid = fleet.workers["alpha"], folder.owner()
    assert pid is not None
    down = [worker.pid, pid, *tree.descendants([worker.pid, pid])]
    reported = Reported.of(folder)
    tree.tell(down, signal.SIGKILL)
    worker.wait()
    fleet.start_worker("alpha")  # what starts with the host again
    wait_for(lambda: folder.status is Status.INTERRUPTED, "the run is known to be lost", 30)
    go_on(fleet, folder, "alpha")
    whole(fleet, folder, reported)


@pytest.mark.parametrize("killed", ["the run", "what stands for it at the worker"])
def test_a_killed_flow_is_gone_on_with_on_its_host(fleet: Fleet, killed: str) -> None:
    _, folder = begun(fleet, f"flow-killed-{len(killed)}", "beta")
    pid = folder.owner()
    assert pid is not None
    assert b"deployments.fleet.template" in command(pid), "it was forked"
    if killed != "the run":
        children = tree.descendants([fleet.workers["beta"].pid])
        [pid] = [one for one in children if b"deployments.fleet.flow_run" in command(one)]
    reported = Reported.of(folder)
    os.kill(pid, signal.SIGKILL)
    wait_for(lambda: not folder.alive(), "the process is gone", 30)
    assert folder.settle() is Status.INTERRUPTED
    wait_for(lambda: not stage_processes(folder.home), "no process of a stage", 10)
    go_on(fleet, folder, "beta")
    whole(fleet, folder, reported)


def command(pid: int) -> bytes:
    """A process's command line."""
    return tree.read_proc(f"/proc/{pid}/cmdline") or b""


def settled(fleet: Fleet, folder: RunFolder, host: str) -> None:
    """Wait for the run's end; where it didn't survive, it is gone on with."""
    wait_for(lambda: not folder.alive(), "the end of the run's process", 300)
    if folder.settle() is not Status.COMPLETED:
        go_on(fleet, folder, host)


def test_a_server_that_is_killed_and_restarted_loses_no_finished_replicate(fleet: Fleet) -> None:
    _, folder = begun(fleet, "server-killed", "beta")
    assert fleet.server is not None
    fleet.server.send_signal(signal.SIGKILL)
    fleet.server.wait()
    reported = Reported.of(folder)
    fleet.start_server()
    settled(fleet, folder, "beta")
    whole(fleet, folder, reported)


def test_a_database_that_goes_away_and_comes_back_loses_no_finished_replicate(
    fleet: Fleet,
) -> None:
    _, folder = begun(fleet, "database-killed", "alpha")
    fleet.postgres.stop()
    reported = Reported.of(folder)
    time.sleep(2.0)  # the time that a database takes to restart: longer than one request
    fleet.postgres.start()
    settled(fleet, folder, "alpha")
    whole(fleet, folder, reported)


def test_no_secret_stands_in_a_process_or_a_record(fleet: Fleet) -> None:
    secret = b"s3cret"
    mine = {process.pid for process in (*fleet.workers.values(), fleet.server) if process}
    for pid in {*mine, *tree.descendants(list(mine))}:
        assert secret not in (tree.read_proc(f"/proc/{pid}/cmdline") or b"")
    for host in HOSTS:
        for file in fleet.home(host).rglob("*"):
            if file.is_file():
                assert secret not in file.read_bytes(), file

"""Which host an experiment goes to, and how a server and a worker are started."""

from __future__ import annotations

import shlex
import uuid
import warnings
from pathlib import Path
from typing import Any

import pytest

from benchwright.errors import BadInput, GateRefused
from benchwright.execution.accelerators import Machine
from benchwright.execution.device import Device, Vendor
from benchwright.execution.host import host_name
from benchwright.spec.model import BenchmarkConfig
from deployments.fleet.queues import DEFAULT, queue_of, queues_for, route
from deployments.fleet.server import DATABASE, plan_server, read_env_file
from deployments.fleet.units import server_unit, worker_unit
from deployments.fleet.worker import BRIDGED, plan_worker
from deployments.security import AUTH_SETTING, CSRF_SETTING

URL = "postgresql+asyncpg://bench:pw@db.example/bench"


def config(**resources: int) -> BenchmarkConfig:
    """An experiment whose second stage asks for these."""
    stages: list[dict[str, Any]] = [
        {"name": "build", "kind": "prep", "cmd": "true", "produces": ["x"]},
        {
            "name": "search",
            "kind": "measure",
            "cmd": "true",
            "metrics_from": {"stdout": True},
            "resources": resources,
        },
    ]
    return BenchmarkConfig.model_validate(
        {"domain": "command", "stages": stages, "metrics": [{"name": "t", "unit": "s"}]}
    )


def machine(gpus: int = 0, tpus: int = 0) -> Machine:
    def devices(count: int, vendor: Vendor) -> tuple[Device, ...]:
        return tuple(Device(f"{vendor}-{n}", "x", n, vendor) for n in range(count))

    return Machine(devices(gpus, Vendor.NVIDIA), devices(tpus, Vendor.TPU))


def test_an_experiment_is_queued_by_the_most_that_a_stage_asks_for() -> None:
    assert queue_of(config()) == DEFAULT
    assert queue_of(config(gpus=2)) == "gpus-2"
    assert queue_of(config(tpus=4)) == "tpus-4"


def test_a_stage_on_a_host_of_its_own_asks_nothing_of_the_worker() -> None:
    asked = config(gpus=2).model_dump(mode="json", exclude_unset=True)
    asked["stages"][1]["host"] = "elsewhere"
    assert queue_of(BenchmarkConfig.model_validate(asked)) == DEFAULT


def test_a_worker_takes_what_its_host_can_serve_the_most_special_first() -> None:
    assert queues_for("a", machine()) == ("host-a", "default")
    assert queues_for("a", machine(gpus=2)) == ("host-a", "gpus-2", "gpus-1", "default")
    assert queues_for("a", machine(tpus=1), accelerators_only=True) == ("host-a", "tpus-1")


class Queues:
    """A server that knows these queues."""

    def __init__(self, *names: str) -> None:
        self.names = names

    def read_work_queues(self, work_pool_name: str) -> list[Any]:
        from types import SimpleNamespace

        return [SimpleNamespace(name=name) for name in self.names]


def routed(*names: str, on: str = "", **resources: int) -> str:
    return route(Queues(*names), "lab", config(**resources), on)  # type: ignore[arg-type]


def test_an_experiment_goes_to_a_host_that_has_what_it_asks_for() -> None:
    fleet = ("default", "host-a", "host-b", "gpus-1", "gpus-2")
    assert routed(*fleet) == "default"
    assert routed(*fleet, gpus=2) == "gpus-2"
    assert routed(*fleet, on="b", gpus=1) == "host-b"
    with pytest.raises(BadInput, match=r"3 GPUs.*the largest host has 2"):
        routed(*fleet, gpus=3)
    with pytest.raises(BadInput, match="no worker of a host 'c'") as refused:
        routed(*fleet, on="c")
    assert "a, b" in str(refused.value)


def test_where_no_worker_was_ever_started_the_default_queue_waits_for_one() -> None:
    assert routed() == "default"
    with pytest.raises(BadInput, match="no host of the pool"):
        routed(gpus=1)


def test_a_host_is_named_by_its_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BENCHWRIGHT_HOST", " Alpha ")
    assert host_name() == "alpha"
    monkeypatch.delenv("BENCHWRIGHT_HOST")
    assert host_name() != "alpha"


def plan(environ: dict[str, str], listen: str = "0.0.0.0", **options: Any) -> Any:
    said = {"listen": listen, "port": 4200, "url": None, "insecure": False, **options}
    return plan_server(environ, **said)


def test_a_server_for_many_machines_needs_postgresql() -> None:
    for database in ("", "sqlite+aiosqlite:///x.db", "postgresql://bench:pw@db/bench"):
        with pytest.raises(BadInput) as refused:
            plan({DATABASE: database, AUTH_SETTING: "a:b"})
        assert "pw" not in str(refused.value).replace("PASSWORD", "")


def test_a_server_that_others_reach_asks_who_they_are() -> None:
    with pytest.raises(GateRefused) as refused:
        plan({DATABASE: URL})
    assert refused.value.differences[0].field == AUTH_SETTING
    assert plan({DATABASE: URL}, insecure=True)
    assert plan({DATABASE: URL}, listen="127.0.0.1")
    made = plan({DATABASE: URL, AUTH_SETTING: "a:b"}, url="http://bench.example:4200/")
    assert made.env[CSRF_SETTING] == "true"
    assert made.env["PREFECT_UI_API_URL"] == "http://bench.example:4200/api"
    assert "filesystem" in made.env["PREFECT_SERVER_CONCURRENCY_LEASE_STORAGE"]


def test_no_secret_stands_on_a_command_line_or_in_a_unit() -> None:
    environ = {DATABASE: URL, AUTH_SETTING: "user:s3cret"}
    made = plan(environ)
    assert "pw" not in " ".join(made.argv)
    assert "s3cret" not in " ".join(made.argv)
    for unit in (server_unit(["--port", "4200"], "bench"), worker_unit(["--limit", "4"], "bench")):
        assert "EnvironmentFile=" in unit
        assert "Restart=always" in unit
    assert "KillMode=process" in worker_unit([], "bench")
    assert "Delegate=yes" in worker_unit([], "bench")


def test_a_home_with_odd_letters_survives_systemds_own_signs() -> None:
    unit = worker_unit(["--home", "/data/50% of $X"], "bench")
    assert "'/data/50%% of $$X'" in unit


def test_a_file_of_secrets_is_read_as_systemd_reads_it(tmp_path: Path) -> None:
    file = tmp_path / "x.env"
    file.write_text("# note\nA=1\nB = \"two words\"\n\nC='it=is'\n")
    file.chmod(0o600)
    assert read_env_file(file) == {"A": "1", "B": "two words", "C": "it=is"}
    file.chmod(0o644)
    with pytest.raises(BadInput, match="other users may read it"):
        read_env_file(file)
    file.chmod(0o600)
    file.write_text("A=1\nnonsense\n")
    with pytest.raises(BadInput) as refused:
        read_env_file(file)
    assert refused.value.where is not None
    assert refused.value.where.line == 2
    assert "nonsense" not in str(refused.value), "it may be a password"
    with pytest.raises(BadInput, match="can't be read"):
        read_env_file(tmp_path / "none")


def test_a_workers_runs_bridge_a_restart_of_the_database(tmp_path: Path) -> None:
    made = plan_worker(
        {"PREFECT_API_URL": "http://bench.example/api"},
        home=tmp_path,
        host="a",
        machine=machine(gpus=1),
        pool="lab",
        limit=3,
    )
    assert made.env["PREFECT_CLIENT_RETRY_EXTRA_CODES"] == BRIDGED
    assert made.env["BENCHMARK_HOME"] == str(tmp_path)
    words = " ".join(made.argv)
    assert "--name a --limit 3" in words
    assert words.endswith("--work-queue host-a --work-queue gpus-1 --work-queue default")


def test_a_workers_run_starts_the_interpreter_once_unless_its_deployment_says_how() -> None:
    """Prefect's own worker imports Prefect in two processes, one after the other."""
    from prefect.client.schemas.objects import FlowRun

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        from deployments.fleet.run_worker import RUN, RunConfiguration, RunWorker

    run = FlowRun(flow_id=uuid.uuid4(), name="a")
    ours, theirs = RunConfiguration(), RunConfiguration(command="sh -c true")
    for configuration in (ours, theirs):
        configuration.prepare_for_flow_run(run)
    assert ours.command == shlex.join(RUN)
    assert theirs.command == "sh -c true"
    assert ours._command_configured, "Prefect starts it as it is"
    assert RunWorker.type == "process"
    assert RunWorker.job_configuration is RunConfiguration

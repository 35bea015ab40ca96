"""Every deployment of prefect.yaml, on a clean server, started by Prefect's own command with
nothing but parameters, each to a true end."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from benchwright.record.nights import SuiteFolder
from benchwright.record.run import RunRecord, Status
from benchwright.record.store import RunStore
from deployments.register import PREFECT_YAML, read_entries
from tests.approvals import until
from tests.cli.conftest import experiment
from tests.domains.serving import serving_parts as parts
from tests.nights import ITEMS, PASSES, POINTS, accuracy, speed, suite_of_each
from tests.served import Site, deployed, site, worker

__all__ = ["deployed", "site", "worker"]

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

RUN_ID = re.compile(r"\d{4}-\d\d-\d\d_[a-z-]+_[0-9a-f]{6}")
STARTED: set[str] = set()
"""Deployments that a test of this module has started."""


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Iterator[parts.Server]:
    """A served model that knows its answers."""
    answers = parts.write_gsm8k(tmp_path_factory.mktemp("answers"), ITEMS) / "test.jsonl"
    with parts.standin(answers=answers) as served:
        yield served


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the tests' files are: the nightly suite names those that the checks used."""
    return tmp_path_factory.mktemp("place")


def start(site: Site, name: str, cwd: Path, **parameters: Any) -> dict[str, Any]:
    """`prefect deployment run NAME/NAME -p ... --watch`; the flow run as the server has it."""
    words = []
    for key, value in parameters.items():
        words += ["-p", f"{key}={value if isinstance(value, str) else json.dumps(value)}"]
    said = site.prefect("deployment", "run", f"{name}/{name}", *words, "--watch", cwd=cwd)
    STARTED.add(name)
    assert said.returncode == 0, said.stdout + said.stderr
    [flow_run] = set(re.findall(r"flow-run/([0-9a-f-]{36})", said.stdout))
    found = site.server.call(f"/flow_runs/{flow_run}")
    assert isinstance(found, dict)
    return found


def record(site: Site, flow_run: dict[str, Any]) -> RunRecord:
    """The record of a flow run, which is named after it."""
    return RunStore(site.home).open(flow_run["name"]).read()


def summary(site: Site, flow_run: dict[str, Any]) -> str:
    """What a run's page shows of its result, without Markdown's escapes."""
    key = "report-" + str(flow_run["name"]).replace("_", "-")
    return site.server.artifact(key).replace("\\", "")


def test_benchmark_runs_an_experiment_that_is_named_by_its_path(worker: Site, place: Path) -> None:
    config = experiment(place, replication={"replicates": 2, "warmup": 0})
    ended = start(worker, "benchmark", place, path=str(config))
    assert ended["state"]["name"] == "Completed", ended["state"]["message"]
    assert record(worker, ended).status is Status.COMPLETED


def test_benchmark_runs_an_experiment_that_is_a_parameter(worker: Site, place: Path) -> None:
    config = experiment(place, replication={"replicates": 1, "warmup": 0})
    ended = start(
        worker,
        "benchmark",
        place,
        config=json.loads(config.read_text()),
        folder=str(place),
        because="a test asks again",
    )
    assert ended["state"]["name"] == "Completed", ended["state"]["message"]
    assert len(record(worker, ended).view.samples) == 2, "one replicate of each arm"


def test_compare_shows_two_runs_beside_each_other(worker: Site, place: Path) -> None:
    runs = [
        start(worker, "benchmark", place, path=str(experiment(place)), because="to compare")
        for _ in range(2)
    ]
    a, b = (run["name"] for run in runs)
    ended = start(worker, "compare", place, a=a, b=b)
    assert ended["state"]["type"] == "COMPLETED", ended["state"]["message"]
    assert "t_ms" in worker.server.artifact(f"compare-{a.replace('_', '-')}-{b.replace('_', '-')}")


def test_accuracy_scores_a_served_model(worker: Site, place: Path, model: parts.Server) -> None:
    ended = start(worker, "accuracy", place, request=accuracy(model.port, place))
    assert ended["state"]["name"] == "Completed", ended["state"]["message"]
    assert RUN_ID.fullmatch(ended["name"]), "it is named after its run"
    assert {f"run:{ended['name']}", "domain:accuracy"} <= set(ended["tags"])
    found = record(worker, ended)
    [sample] = found.view.samples
    assert sample.measurement is not None
    assert sample.measurement.metrics["score.gsm8k"] == 1.0
    assert len(sample.measurement.items["score.gsm8k"]) == ITEMS
    assert f"| score.gsm8k | only | {ITEMS} | 1 |" in summary(worker, ended)


def test_speed_loads_the_model_server_that_a_block_names(
    worker: Site, place: Path, model: parts.Server
) -> None:
    save_server(worker, "lab", model.port)
    request = speed(1, place)  # nobody listens there: the block's port goes over it
    ended = start(worker, "speed", place, server="lab", request=request)
    assert ended["state"]["name"] == "Completed", ended["state"]["message"]
    assert {f"run:{ended['name']}", "domain:speed"} <= set(ended["tags"])
    found = record(worker, ended)
    assert len(found.view.samples) == PASSES
    for sample in found.view.samples:
        assert sample.measurement is not None
        assert all(value > 0 for value in sample.measurement.metrics.values())
    for point in ("c2", "c4"):
        assert f"| output_tok_s.{point} | only | {PASSES} |" in summary(worker, ended)


def save_server(site: Site, name: str, port: int) -> None:
    """A model-server block, as a person makes one in Prefect's pages."""
    from prefect.settings import PREFECT_API_URL, temporary_settings

    from blocks.hosts import ModelServer

    with temporary_settings({PREFECT_API_URL: site.api_url}):
        ModelServer(endpoint_port=port).save(name, overwrite=True, _sync=True)  # type: ignore[call-arg]


def test_nightly_runs_an_experiment_an_accuracy_check_and_a_speed_check(
    worker: Site, place: Path, model: parts.Server
) -> None:
    """The home's own suite, which the deployment takes where it is told nothing."""
    suite = worker.home / "suites" / "nightly.yaml"
    suite.parent.mkdir(exist_ok=True)
    suite.write_text(json.dumps(suite_of_each(place, model.port)))
    ended = start(worker, "nightly", place)
    assert ended["state"]["name"] == "Completed", ended["state"]["message"]
    folder = SuiteFolder(worker.home, "nightly")
    rows = {row.entry: row for row in folder.rows()}
    assert {name: row.status for name, row in rows.items()} == dict.fromkeys(
        ("search", "right", "fast"), "COMPLETED"
    ), [row.error for row in rows.values()]
    assert rows["search"].figures["size=5"]["t_ms"].n == 2
    [right] = rows["right"].figures.values()
    [fast] = rows["fast"].figures.values()
    assert right["score.gsm8k"].mean == 1.0
    rates = {name: figure.mean for name, figure in fast.items() if "output_tok_s" in name}
    assert len(rates) == POINTS
    assert all(rate > 0 for rate in rates.values())
    page = folder.dashboard.read_text()
    artifact = worker.server.artifact("nightly-nightly").replace("\\", "")  # Markdown's escapes
    for metric in ("search: t_ms", "right: score.gsm8k", *(f"fast: {name}" for name in rates)):
        assert metric.partition(": ")[2] in page
        assert f"| {metric} " in artifact


def test_doctor_examines_the_host_of_its_worker(worker: Site, place: Path) -> None:
    ended = start(worker, "doctor", place)
    assert ended["state"]["type"] == "COMPLETED", ended["state"]["message"]
    [text] = [
        one["data"]
        for one in worker.server.call(
            "/artifacts/filter", {"artifacts": {"flow_run_id": {"any_": [ended["id"]]}}}
        )
    ]
    assert "disk" in text


def test_each_has_been_started(worker: Site) -> None:
    """A new entry of prefect.yaml asks for a test here; nightly's schedule is on the server."""
    assert {entry["name"] for entry in read_entries(PREFECT_YAML)} == STARTED
    [schedule] = worker.deployment("nightly/nightly")["schedules"]
    assert (schedule["active"], schedule["schedule"]["cron"]) == (True, "0 2 * * *")

    def planned() -> Any:
        return worker.server.call(
            "/flow_runs/filter",
            {
                "deployments": {"name": {"any_": ["nightly"]}},
                "flow_runs": {"state": {"type": {"any_": ["SCHEDULED"]}}},
            },
        )

    assert until(planned, 90)

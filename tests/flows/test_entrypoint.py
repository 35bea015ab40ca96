"""The flow as a deployment calls it: by its entrypoint, with a configuration or a file's digest."""

from __future__ import annotations

import hashlib
import json
import time
from pathlib import Path
from typing import Any

import pytest
from prefect.client.orchestration import get_client
from prefect.client.schemas.filters import FlowRunFilter, FlowRunFilterId
from prefect.flows import load_flow_from_entrypoint

from benchwright.record.index import read_index
from flows.benchmark import benchmark
from tests.cli.conftest import experiment

ROOT = Path(__file__).parents[2]


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return experiment(tmp_path / "experiment", replication={"replicates": 1, "warmup": 0})


def _call(home: Path, **parameters: Any) -> Any:
    return benchmark(home=str(home), because="again", return_state=True, **parameters)


def test_the_entrypoint_is_the_flow() -> None:
    loaded = load_flow_from_entrypoint(f"{ROOT / 'flows' / 'benchmark.py'}:benchmark")
    assert loaded.name == "benchmark"
    assert {"config", "path", "digest"} <= set(loaded.parameters.properties)


def test_a_configuration_as_data_and_a_file_with_its_digest_give_the_same_run(
    prefect_api: str, file: Path, tmp_path: Path
) -> None:
    config = json.loads(file.read_text())
    sha = hashlib.sha256(file.read_bytes()).hexdigest()
    first = _call(tmp_path / "home", config=config, folder=str(file.parent))
    second = _call(tmp_path / "home", path=str(file), digest=sha)
    assert (first.name, second.name) == ("Completed", "Completed"), (first.message, second.message)
    rows = read_index(tmp_path / "home")
    assert len(rows) == 2
    assert len({row.config for row in rows}) == 1


@pytest.mark.parametrize(
    ("parameters", "said"),
    [
        ({"path": "FILE", "digest": "0" * 64}, "is not the one that was asked for"),
        ({}, "no experiment"),
        ({"path": "FILE", "config": {"domain": "command"}}, "config and path"),
        ({"path": "gone.yaml"}, "there is no such file"),
    ],
    ids=["another digest", "nothing", "both", "no file"],
)
def test_what_can_not_be_run_ends_with_its_reason_and_leaves_nothing(
    parameters: dict[str, Any], said: str, prefect_api: str, file: Path, tmp_path: Path
) -> None:
    given = {key: str(file) if value == "FILE" else value for key, value in parameters.items()}
    state = _call(tmp_path / "home", **given)
    assert state.name == "BadInput"
    assert said in (state.message or "")
    assert not (tmp_path / "home").exists()


def test_prefect_knows_which_build_a_replicate_waited_for(
    prefect_api: str, file: Path, tmp_path: Path
) -> None:
    state = _call(tmp_path / "home", path=str(file))
    ours = FlowRunFilter(id=FlowRunFilterId(any_=[state.state_details.flow_run_id]))
    end = time.monotonic() + 30
    with get_client(sync_client=True) as client:
        found: dict[str, Any] = {}
        while sum(name.startswith("search") for name in found) < 2:
            assert time.monotonic() < end, f"not told yet: {sorted(found)}"
            time.sleep(0.05)
            found = {run.name: run for run in client.read_task_runs(flow_run_filter=ours)}
    built = {name: run.id for name, run in found.items() if name.startswith("build")}
    assert len(built) == 2
    waited = {
        name: [str(entry.id) for entry in run.task_inputs["wait_for"]]
        for name, run in found.items()
        if name.startswith("search")
    }
    assert sorted(waited.values()) == sorted([str(one)] for one in built.values())

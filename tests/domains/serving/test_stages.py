"""The two domains: their graphs, and their stages as the flow calls them."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from benchwright import BadInput, BenchmarkConfig, Scale, StageContext, StageKind
from benchwright.spec.values import flatten
from domains.serving import stages
from domains.serving.accuracy_domain import AccuracyDomain
from domains.serving.request import Record, accuracy_request, speed_request
from domains.serving.speed_domain import SpeedDomain
from tests.domains.serving import serving_parts as parts


def context(asked: Record, run_dir: Path, results: dict[str, Any]) -> StageContext:
    run_dir.mkdir(parents=True, exist_ok=True)
    return StageContext(
        params=flatten(asked.model_dump(mode="json")),
        inputs={},
        outputs={},
        results=json.loads(json.dumps(results)),
        run_dir=run_dir,
        seed=1,
        arm="only",
    )


def run_stages(domain: str, asked: Record, run_dir: Path) -> dict[str, Any]:
    results: dict[str, Any] = {}
    for name in ("probe", "evaluate", "validate"):
        function = getattr(stages, f"{domain}_{name}")
        results[name] = function(context(asked, run_dir, results))
    validated: dict[str, Any] = results["validate"]
    return validated


@pytest.mark.parametrize("domain", [AccuracyDomain(), SpeedDomain()])
def test_the_graph_is_probe_evaluate_validate_and_every_parameter_is_declared(
    domain: AccuracyDomain | SpeedDomain,
) -> None:
    params = domain.defaults()["params"]
    config = BenchmarkConfig(domain=domain.name, params=params)
    domain.check(config)
    graph = domain.stages(config)
    assert [(s.name, s.kind, s.needs) for s in graph] == [
        ("probe", StageKind.STEP, ()),
        ("evaluate", StageKind.STEP, ("probe",)),
        ("validate", StageKind.STEP, ("probe", "evaluate")),
    ]
    declared = flatten(params)
    assert {entry.name for entry in domain.manifest().entries} <= set(declared)
    read = accuracy_request if domain.name == "accuracy" else speed_request
    assert read(declared) == read({})


def test_a_parameter_that_is_not_known_is_refused_with_the_nearest() -> None:
    config = BenchmarkConfig(domain="accuracy", params={"evaluate": {"datasts": ["gsm8k"]}})
    with pytest.raises(BadInput, match=r"evaluate\.datasts") as caught:
        AccuracyDomain().check(config)
    assert "did you mean `datasets`?" in str(caught.value)


def test_each_set_has_its_score_as_a_share_with_thresholds_in_points() -> None:
    config = BenchmarkConfig(domain="accuracy", params={"evaluate": {"datasets": ["everyday"]}})
    first, *shares = AccuracyDomain().metrics(config)
    assert (first.name, first.scale, first.min_effect) == (
        "score.everyday",
        Scale.PROPORTION,
        0.01,
    )
    assert [metric.name for metric in shares] == [
        "errors.everyday",
        "empty.everyday",
        "truncated.everyday",
    ]


def test_the_accuracy_stages_hand_on_json_and_end_in_a_measurement(tmp_path: Path) -> None:
    answers = parts.write_gsm8k(tmp_path / "gsm8k") / "test.jsonl"
    with parts.standin(answers=answers) as server:
        asked = parts.request(server.port, tmp_path)
        found = run_stages("accuracy", asked, tmp_path / "home" / "runs" / "one")
    assert found["state"] == "success", found["notes"]
    assert found["measurement"]["metrics"]["score.gsm8k"] == 1.0
    assert len(found["measurement"]["items"]["score.gsm8k"]) == 12
    assert found["fingerprint"]["server.model"] == "org/standin"
    declared = {metric.name for metric in AccuracyDomain().metrics(_config("accuracy", asked))}
    assert set(found["measurement"]["metrics"]) == declared
    events = (tmp_path / "home" / "runs" / "one" / "events.jsonl").read_text().splitlines()
    progress = [json.loads(line) for line in events]
    assert progress[-1]["text"] == "gsm8k: 12 samples"
    assert {event["kind"] for event in progress} == {"step_progress"}


def test_the_speed_stages_end_in_a_measurement_for_each_block(tmp_path: Path) -> None:
    with parts.standin() as server:
        asked = parts.speed(server.port, tmp_path, load__batch_sizes=[2], load__warmup=0)
        found = run_stages("speed", asked, tmp_path / "home" / "runs" / "one")
    assert found["state"] == "success", found["notes"]
    assert len(found["measurements"]) == 3
    declared = {metric.name for metric in SpeedDomain().metrics(_config("speed", asked))}
    assert declared <= set(found["measurements"][0]["metrics"])


@pytest.mark.parametrize("domain", ["accuracy", "speed"])
def test_without_a_server_the_stages_still_write_the_report(tmp_path: Path, domain: str) -> None:
    asked: Record = parts.request(1, tmp_path) if domain == "accuracy" else parts.speed(1, tmp_path)
    found = run_stages(domain, asked, tmp_path / "home" / "runs" / "one")
    assert found["state"] == "failed"
    assert found["measurement"] is None
    report = tmp_path / "home" / "runs" / "one" / domain / "report.md"
    assert "no healthy server" in report.read_text()


def _config(domain: str, asked: Record) -> BenchmarkConfig:
    return BenchmarkConfig(domain=domain, params=asked.model_dump(mode="json"))


CHILD = """
import json, sys
from pathlib import Path
from domains.serving import stages
from tests.domains.serving import serving_parts as parts
from tests.domains.serving.test_stages import context
tmp = Path(sys.argv[2])
asked = parts.request(int(sys.argv[1]), tmp)
probe = stages.accuracy_probe(context(asked, tmp / "home/runs/one", {}))
stages.accuracy_evaluate(context(asked, tmp / "home/runs/one", {"probe": probe}))
"""


def test_a_stage_that_is_terminated_ends_what_runs_on_the_host(tmp_path: Path) -> None:
    answers = parts.write_gsm8k(tmp_path / "gsm8k") / "test.jsonl"
    with parts.standin("slow:5", answers=answers) as server:
        child = subprocess.Popen([sys.executable, "-c", CHILD, str(server.port), str(tmp_path)])
        deadline = time.monotonic() + 30
        while server.completions() < 1:
            assert time.monotonic() < deadline
            time.sleep(0.05)
        child.send_signal(signal.SIGTERM)
        child.wait(timeout=20)
        assert parts.marked_processes(tmp_path) == []

"""Accuracy runs as Prefect flows: recorded, compared by the items both answered, deployed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from benchwright.record.run import RunRecord, Status
from benchwright.record.store import RunStore
from benchwright.spec.model import BenchmarkConfig
from cli.main import call
from domains.serving.request import AccuracyRequest
from tests.domains.serving import serving_parts as parts
from tests.domains.serving.sshd import Sshd
from tests.support import shared_folder


def config(asked: AccuracyRequest) -> BenchmarkConfig:
    return BenchmarkConfig(domain="accuracy", params=asked.model_dump(mode="json"))


def run_flow(asked: AccuracyRequest, home: Path) -> RunRecord:
    from flows.benchmark import benchmark

    home.mkdir(exist_ok=True)
    before = set((home / "runs").glob("*"))
    benchmark(
        config=config(asked), home=str(home), folder=str(home), because="a test", return_state=True
    )
    (made,) = set((home / "runs").glob("*")) - before
    return RunStore(home).open(made.name).read()


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_two_builds_are_compared_by_the_items_that_both_answered(
    prefect_api: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    home = tmp_path / "home"
    answers = parts.write_gsm8k(tmp_path / "gsm8k", count=80) / "test.jsonl"
    records = []
    port = 0
    for skill in ("0.9", "0.5"):
        # The same command line on the same port: what differs is what a new build answers.
        monkeypatch.setenv("STANDIN_SKILL", skill)
        server = parts.start_server("--answers", str(answers), port=port)
        port = server.port
        try:
            records.append(run_flow(parts.request(port, tmp_path), home))
        finally:
            server.process.kill()
            server.process.wait()
    first, second = records
    assert [record.status for record in records] == [Status.COMPLETED] * 2, first.error
    (sample,) = first.view.samples
    assert sample.measurement is not None
    assert len(sample.measurement.items["score.gsm8k"]) == 80
    assert first.view.fingerprint.fields["suite.gsm8k.scoring"] == "v1.1"
    words = ["compare", first.view.run_id, second.view.run_id, "--home", str(home), "--json"]
    # `--port 0` first, then the port that was given: the launch arguments differ in that alone.
    assert call([*words, "--allow", "server.launch_args"]) == 0
    said = json.loads(capsys.readouterr().out)
    text = json.dumps(said)
    assert "items answered by both" in text
    verdict = next(v for v in said["verdicts"] if v["metric"] == "score.gsm8k")
    assert verdict["decision"] == "worse"
    assert verdict["units"] == 80


def test_a_failed_evaluation_is_a_failed_run_with_its_reason_and_its_report(
    prefect_api: str, tmp_path: Path
) -> None:
    record = run_flow(parts.request(1, tmp_path), tmp_path / "home")
    assert record.status is Status.FAILED
    assert "no healthy server" in record.error
    folder = tmp_path / "home" / "runs" / record.view.run_id
    assert "- State: failed" in (folder / "accuracy" / "report.md").read_text()


@pytest.mark.real
@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_deployment_evaluates_a_real_model_over_ssh(
    local_home: Path,
    local_api_url: str,
    tmp_path: Path,
    evalscope_dir: Path,
    real_model: int,
    sshd: Sshd,
) -> None:
    home = tmp_path / "home"
    asked = parts.request(
        real_model,
        tmp_path,
        evaluate__evalscope=None,
        evaluate__tool_dir=str(evalscope_dir),
        evaluate__datasets=["everyday", f"gsm8k={shared_folder('data', 'gsm8k')}"],
        evaluate__limit=3,
        evaluate__work_root=str(sshd.home / "runs"),
        generation__max_tokens=48,
        limits__truncated_share=1.0,
    )
    target = asked.target.model_copy(update={"ssh": sshd.target()})
    asked = asked.model_copy(update={"target": target})
    programs = Path(sys.executable).parent
    env = {
        **os.environ,
        "PREFECT_API_URL": local_api_url,
        "PREFECT_HOME": str(tmp_path / "prefect"),
        "BENCHMARK_HOME": str(home),
    }
    subprocess.run(
        [str(programs / "benchwright"), "deploy"], env=env, check=True, cwd=tmp_path, timeout=300
    )
    worker = subprocess.Popen(
        [
            *(str(programs / "prefect"), "worker", "start"),
            *("--pool", "benchwright", "--type", "process", "--limit", "1"),
        ],
        env=env,
        cwd=tmp_path,
    )
    said = config(asked).model_dump(mode="json", exclude_unset=True)
    parameters = {"config": said, "home": str(home)}
    try:
        subprocess.run(
            [
                *(str(programs / "prefect"), "deployment", "run", "benchmark/benchmark"),
                *("--params", json.dumps(parameters), "--watch"),
            ],
            env=env,
            check=True,
            cwd=tmp_path,
            timeout=600,
        )
    finally:
        worker.terminate()
        worker.wait(timeout=60)
    (folder,) = (home / "runs").iterdir()
    facts: dict[str, Any] = json.loads((folder / "accuracy" / "report.json").read_text())
    assert facts["state"] == "success", facts["notes"]
    assert [entry["n"] for entry in facts["datasets"]] == [3, 3]
    deadline = time.monotonic() + 30
    while RunStore(home).open(folder.name).read().status is Status.IN_PROGRESS:
        assert time.monotonic() < deadline
        time.sleep(0.2)

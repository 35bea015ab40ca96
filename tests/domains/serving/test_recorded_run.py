"""Accuracy runs as Prefect flows: recorded, compared by the items both answered, deployed."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from benchwright.record.run import RunRecord, Status
from benchwright.record.store import RunStore
from benchwright.spec.model import BenchmarkConfig
from cli.main import call
from domains.serving.request import AccuracyRequest, SpeedRequest
from tests.domains.serving import serving_parts as parts
from tests.domains.serving.sshd import Sshd
from tests.served import PREFECT, Site, deployed, site, worker

__all__ = ["deployed", "site", "worker"]


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


def asked_of(request: AccuracyRequest | SpeedRequest) -> str:
    """What a request says beside its target, which the block names."""
    said = request.model_dump(mode="json", exclude_unset=True)
    del said["target"]
    return json.dumps(said)


@pytest.mark.real
@pytest.mark.slow
@pytest.mark.timeout(900)
def test_deployments_measure_a_real_model_over_ssh(
    worker: Site, tmp_path: Path, evalscope_dir: Path, real_model: int, sshd: Sshd
) -> None:
    from prefect.settings import PREFECT_API_URL, temporary_settings

    from blocks.hosts import ModelServer
    from blocks.ssh import SshHostBlock

    ssh = SshHostBlock.model_validate(sshd.target().model_dump())
    with temporary_settings({PREFECT_API_URL: worker.api_url}):
        block = ModelServer(ssh=ssh, endpoint_port=real_model)
        block.save("lab", overwrite=True, _sync=True)  # type: ignore[call-arg]
    accuracy = parts.request(
        real_model,
        tmp_path,
        evaluate__evalscope=None,
        evaluate__tool_dir=str(evalscope_dir),
        evaluate__datasets=["everyday"],
        evaluate__limit=3,
        evaluate__work_root=str(sshd.home / "runs"),
        generation__max_tokens=48,
        limits__truncated_share=1.0,
    )
    speed = parts.speed(
        real_model,
        tmp_path,
        load__evalscope=None,
        load__tool_dir=str(evalscope_dir),
        load__batch_sizes=[2],
        load__requests_per_slot=1,
        load__replicates=1,
        load__warmup=0,
        load__timeout_s=300.0,
        load__work_root=str(sshd.home / "runs"),
    )
    facts = {}
    for verb, request in (("accuracy", accuracy), ("speed", speed)):
        ended = subprocess.run(
            [
                *(*PREFECT, "deployment", "run", f"{verb}/{verb}", "-p", "server=lab"),
                *("-p", f"request={asked_of(request)}", "--watch"),
            ],
            env=worker.environ(),
            check=False,
            capture_output=True,
            text=True,
            cwd=tmp_path,
            timeout=400,
        )
        assert ended.returncode == 0, ended.stdout + ended.stderr
        (report,) = worker.home.glob(f"runs/*/{verb}/report.json")
        facts[verb] = json.loads(report.read_text())
        assert facts[verb]["state"] == "success", facts[verb]["notes"]
    (everyday,) = facts["accuracy"]["datasets"]
    assert everyday["n"] == 3
    (point,) = facts["speed"]["points"]
    assert (point["sent"], point["failed"]) == (2, 0)
    assert parts.marked_processes(sshd.home) == []

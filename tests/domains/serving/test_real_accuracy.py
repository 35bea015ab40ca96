"""The real evaluator, on a stand-in with faults, and on a real model behind a real sshd."""

from __future__ import annotations

import json
from importlib.metadata import version
from pathlib import Path

import pytest

from domains.serving.request import AccuracyRequest
from domains.serving.runner import run_accuracy
from domains.serving.validate import State
from tests.domains.serving import serving_parts as parts
from tests.domains.serving.sshd import Sshd
from tests.support import shared_folder

pytestmark = [pytest.mark.real, pytest.mark.slow, pytest.mark.timeout(600)]

GSM8K = ("data", "gsm8k")


def request(port: int, tmp: Path, tools: Path, **changes: object) -> AccuracyRequest:
    values: dict[str, object] = {
        "evaluate__evalscope": None,
        "evaluate__tool_dir": str(tools),
        "evaluate__datasets": [f"gsm8k={shared_folder(*GSM8K)}"],
        "evaluate__limit": 6,
    }
    return parts.request(port, tmp, **(values | changes))


def test_evalscope_counts_failed_samples_and_leaves_them_out_of_the_score(
    tmp_path: Path, evalscope_dir: Path, locked: str
) -> None:
    answers = shared_folder(*GSM8K) / "test.jsonl"
    # Three requests for each try of a sample: a share of them fails for good.
    with parts.standin("400:3", answers=answers, args=("--skill", "0.6")) as server:
        asked = request(server.port, tmp_path, evalscope_dir, target__endpoint__key_env=locked)
        result = run_accuracy(asked, tmp_path / "run")
    assert parts.holding(tmp_path) == []
    assert result.state is State.PARTIAL, result.validation.notes
    assert result.evaluation is not None
    (found,) = result.evaluation.datasets
    assert found.requested == 6
    assert found.errored is not None
    assert found.errored >= 1
    assert len(found.items) == 6 - found.errored
    assert found.evaluation_version.startswith("v")
    assert found.effective["generation.max_tokens"] == 64
    assert f"{found.errored} of 6 samples ended in an error" in "\n".join(result.validation.notes)


def test_evalscope_with_every_request_refused_is_a_failed_run(
    tmp_path: Path, evalscope_dir: Path
) -> None:
    answers = shared_folder(*GSM8K) / "test.jsonl"
    with parts.standin("400:1", answers=answers) as server:
        asked = request(server.port, tmp_path, evalscope_dir, evaluate__limit=2)
        result = run_accuracy(asked, tmp_path / "run")
    assert result.state is State.FAILED
    assert "no sample was scored" in "\n".join(result.validation.notes)


def test_two_organisations_with_one_model_name_keep_their_own_reports(
    tmp_path: Path, evalscope_dir: Path
) -> None:
    answers = shared_folder(*GSM8K) / "test.jsonl"
    scores = {}
    for model, skill in (("orgA/m", "1"), ("orgB/m", "0")):
        with parts.standin(answers=answers, model=model, args=("--skill", skill)) as server:
            asked = request(server.port, tmp_path, evalscope_dir, evaluate__limit=2)
            run = tmp_path / model.replace("/", "-")
            result = run_accuracy(asked, run)
        assert result.measurement is not None, result.validation.notes
        scores[model] = result.measurement["metrics"]["score.gsm8k"]
        assert list(run.glob(f"artifacts/gsm8k/attempt-1/out/reports/{model.replace('/', '--')}"))
    assert scores == {"orgA/m": 1.0, "orgB/m": 0.0}


def test_a_real_model_on_a_real_host_gives_a_report_that_a_person_would_accept(
    tmp_path: Path, evalscope_dir: Path, real_model: int, sshd: Sshd, sudo: None
) -> None:
    asked = request(
        real_model,
        tmp_path,
        evalscope_dir,
        evaluate__datasets=[f"gsm8k={shared_folder(*GSM8K)}", "everyday"],
        evaluate__limit=4,
        evaluate__batch_size=2,
        evaluate__work_root=str(sshd.home / "benchwright runs"),
        target__model="HuggingFaceTB/SmolLM2-135M-Instruct",
        generation__max_tokens=96,
        limits__truncated_share=1.0,
    )
    target = asked.target.model_copy(update={"ssh": sshd.target()})
    result = run_accuracy(asked.model_copy(update={"target": target}), tmp_path / "run")
    assert result.state is State.SUCCESS, result.validation.notes
    text = (tmp_path / "run" / "accuracy" / "report.md").read_text()
    assert "### gsm8k" in text
    assert "### everyday" in text
    assert "- Server: healthy" in text
    assert "1.14.1, v1.1 | 1.0, sha256:" in text
    # Another user's server: its process, its arguments and its environment are read with sudo.
    assert "- Server id: pid " in text
    assert f"serve_model.py --port {real_model}" in text
    assert f"  - llama.cpp: {version('xllamacpp')} @ unknown (unknown)" in text
    notes = text.partition("## Notes")[2].strip().splitlines()
    assert notes == [
        "- truncated answers: up to 100% were allowed for this run; the usual limit is 10%",
        "- commit: nothing on the host tells it",
        "- branch: nothing on the host tells it",
    ]
    assert result.measurement is not None
    assert {name: len(items) for name, items in result.measurement["items"].items()} == {
        "score.gsm8k": 4,
        "score.everyday": 4,
    }
    facts = json.loads((tmp_path / "run" / "accuracy" / "report.json").read_text())
    assert [entry["n"] for entry in facts["datasets"]] == [4, 4]
    low, high = facts["datasets"][0]["interval"]
    assert 0 <= low <= facts["datasets"][0]["score"] <= high <= 1
    page = (tmp_path / "run" / "accuracy" / "report.html").read_text()
    assert "<svg" in page
    assert "http" not in page.replace("http://127.0.0.1", "").replace("http://www.w3.org", "")
    assert parts.marked_processes(sshd.home) == []

"""Runs on a machine with two made-up GPUs, from the command line to the record."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from benchwright.record.store import RunStore
from deployments.local import client
from tests.cli.conftest import experiment
from tests.cli.support import benchwright, json_of
from tests.nvml import StandIn, nvml  # noqa: F401 - a fixture

pytestmark = pytest.mark.slow

MEASURE = """#!/bin/sh
# Says which device it was given, and holds some memory on it for a moment.
held=${HELD:-300}
echo "process $CUDA_VISIBLE_DEVICES $$ $held" >> "$NVML_STANDIN"
sleep "${RUNS_S:-0.6}"
sed -i "/ $$ /d" "$NVML_STANDIN"
echo "{\\"t_ms\\": 1.$(($$ % 10)), \\"effective\\": {\\"size\\": $1}}"
"""


@pytest.fixture(scope="module")
def gpu_home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    home = tmp_path_factory.mktemp("gpu") / "home"
    yield home
    client.down(home, cancel_runs=True)


@pytest.fixture
def gpu_run(nvml: StandIn, gpu_home: Path) -> Callable[..., Any]:  # noqa: F811
    def call(*args: str, cwd: Path, **env: str) -> Any:
        return benchwright(*args, cwd=cwd, home=gpu_home, **nvml.environ, **env)

    return call


def gpu_experiment(folder: Path, *, env: dict[str, Any] | None = None, **changes: Any) -> Path:
    folder.mkdir(exist_ok=True)
    script = folder / "measure.sh"
    script.write_text(MEASURE)
    script.chmod(0o755)
    resources = {"gpus": 1, "vram_mb": 500, **changes.pop("resources", {})}
    stage = {
        "name": "infer",
        "kind": "measure",
        "cmd": "./measure.sh {size}",
        "metrics_from": {"stdout": True},
        "env": {"NVML_STANDIN": None, **(env or {})},
        "resources": resources,
    }
    return experiment(folder, stages=[stage], replication={"replicates": 2, "warmup": 0}, **changes)


def accounting_of(home: Path, run_id: str) -> dict[str, Any]:
    results = yaml.safe_load((RunStore(home).open(run_id).path / "results.yaml").read_text())
    sums = results["extra"]["accounting"]
    assert isinstance(sums, dict)
    return sums


def test_a_stage_is_pinned_watched_and_accounted_for(
    tmp_path: Path,
    gpu_run: Callable[..., Any],
    gpu_home: Path,
    nvml: StandIn,  # noqa: F811
) -> None:
    nvml.add("process GPU-a 1 100")  # somebody else's
    prices = tmp_path / "prices.yaml"
    prices.write_text("date: 2026-11\nproviders: {local: {gpus: {NVIDIA*: 3.6}}}\n")
    config = gpu_experiment(tmp_path / "e", resources={"est_gpu_hours": 0.001})
    mine = {"BENCHWRIGHT_PRICES": str(prices)}
    done = json_of(gpu_run("run", str(config), "--max-cost", "1", "--json", cwd=tmp_path, **mine))
    assert done.get("status") == "COMPLETED", done
    folder = RunStore(gpu_home).open(done["run_id"])
    usages = [sample.usage for sample in folder.samples()]
    assert [usage.vram_peak_mb for usage in usages] == [300.0] * 4
    assert all(usage.gpu_seconds >= 0.5 for usage in usages)
    sums = done["accounting"]
    assert sums == accounting_of(gpu_home, done["run_id"])
    (row,) = sums["stages"]
    seconds = sum(usage.gpu_seconds for usage in usages)
    assert row["devices"] == ["NVIDIA Test"]
    assert row["launches"] == 4
    assert row["estimated_gpu_hours"] == pytest.approx(0.004)
    assert row["gpu_hours"] == pytest.approx(seconds / 3600)
    assert row["usd"] == pytest.approx(seconds / 1000)
    assert row["estimated_usd"] == pytest.approx(0.0144)
    assert "2026-11" in sums["prices"]
    assert sums["domain"]["runs"] == 1
    spent = (folder.path / "spending.jsonl").read_text()
    assert "GPU-b" in spent
    assert "GPU-a" not in spent
    report = folder.report.read_text()
    assert "GPU-hours estimated" in report
    assert "prices of 2026-11" in report
    planned = json_of(gpu_run("plan", str(config), "--json", cwd=tmp_path, **mine))
    assert planned["estimate"]["gpu_hours"] == pytest.approx(4 * seconds / 4 / 3600, rel=0.3)


def test_a_stage_over_its_gpu_memory_ends_the_run_at_once_with_code_5(
    tmp_path: Path, gpu_run: Callable[..., Any], gpu_home: Path
) -> None:
    config = gpu_experiment(tmp_path / "e", env={"HELD": 900, "RUNS_S": 30})
    finished = gpu_run("run", str(config), "--json", cwd=tmp_path)
    assert finished.returncode == 5, finished.stderr
    result = json_of(finished)
    assert result["status"] == "ABORTED_GUARDRAIL"
    for words in ("asked for 500 MB", "held 900 MB", "MB are free"):
        assert words in result["error"], result["error"]
    samples = RunStore(gpu_home).open(result["run_id"]).samples()
    assert [sample.reason.value for sample in samples] == ["vram"]


def test_too_few_devices_are_refused_before_anything_runs(
    tmp_path: Path, gpu_run: Callable[..., Any], gpu_home: Path
) -> None:
    config = gpu_experiment(tmp_path / "e", resources={"gpus": 3})
    finished = gpu_run("run", str(config), cwd=tmp_path)
    assert finished.returncode == 3
    assert "stage 'infer' asks for 3 GPUs with 500 MB free on each" in finished.stderr
    assert "2 of the 2 here can be had" in finished.stderr
    assert not (tmp_path / "e" / "searches.log").exists()


def test_a_machine_without_a_driver_is_refused_with_the_reason(
    tmp_path: Path, gpu_run: Callable[..., Any]
) -> None:
    config = gpu_experiment(tmp_path / "e")
    finished = benchwright(
        "run", str(config), cwd=tmp_path, home=tmp_path / "home", NVML_STANDIN="nowhere"
    )
    assert finished.returncode == 3
    assert "there is no GPU here" in finished.stderr


def test_a_budget_of_gpu_hours_ends_the_run_cleanly_and_keeps_what_was_finished(
    tmp_path: Path, gpu_run: Callable[..., Any], gpu_home: Path
) -> None:
    # Three launches of 0.6 s fit, the fourth doesn't; that can't be known before the first run.
    stages = {"budget": {"gpu_hours": 2.3 / 3600}, "resources": {"est_gpu_hours": 2e-4}}
    config = gpu_experiment(tmp_path / "e", **stages)
    challenged = gpu_run("run", str(config), cwd=tmp_path)
    assert challenged.returncode == 3
    assert "over-budget-gpu-hours" in challenged.stderr
    finished = gpu_run("run", str(config), "--because", "a test", "--json", cwd=tmp_path)
    assert finished.returncode == 5, finished.stderr
    result = json_of(finished)
    assert result["status"] == "ABORTED_GUARDRAIL"
    assert "GPU-hours" in result["error"]
    samples = RunStore(gpu_home).open(result["run_id"]).samples()
    assert 1 <= sum(sample.ok for sample in samples) < 4
    assert result["accounting"]["gpu_hours"] <= 2.3 / 3600 * 1.05
    assert Path(result["report"]).is_file()

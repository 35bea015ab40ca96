"""A machine that slows down half-way through (sharkdp/hyperfine#483): heat picks no winner."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from benchwright.record.store import RunStore
from tests.cli.support import BENCHWRIGHT
from tests.support import require

WORK = """import json, sys, time
begun = time.perf_counter()
sum(n * n for n in range(300_000))
took = 1000 * (time.perf_counter() - begun)
print(json.dumps({"t_ms": took, "effective": {"label": sys.argv[1]}}))
"""

REPLICATES = 8


@contextmanager
def burners() -> Iterator[None]:
    """Busy loops, four for each processor: each process gets a fifth of one at most."""
    burn = [sys.executable, "-c", "while True: pass"]
    busy = [subprocess.Popen(burn) for _ in range(4 * (os.cpu_count() or 1))]
    try:
        yield
    finally:
        for one in busy:
            one.kill()
            one.wait()


@pytest.mark.slow
def test_hyperfine_483_a_burner_in_the_second_half_makes_no_winner_of_one_command(
    tmp_path: Path, home: Path
) -> None:
    (tmp_path / "work.py").write_text(WORK)
    config = {
        "domain": "command",
        "params": {"label": "one"},
        "stages": [
            {
                "name": "burnt",
                "kind": "measure",
                "cmd": "python3 -S work.py {label}",
                "metrics_from": {"stdout": True},
            }
        ],
        "treatment_variable": "label",
        "treatment_values": ["other"],
        "metrics": [{"name": "t_ms", "unit": "ms", "min_effect": 0.05}],
        "replication": {"replicates": REPLICATES, "warmup": 1},
    }
    (tmp_path / "experiment.yaml").write_text(json.dumps(config))
    run = subprocess.Popen(
        [*BENCHWRIGHT, "run", "experiment.yaml", "--json"],
        cwd=tmp_path,
        env={k: v for k, v in os.environ.items() if not k.startswith("PREFECT_")}
        | {"BENCHMARK_HOME": str(home)},
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    try:
        wait_for_samples(home, "burnt", 2 + REPLICATES, run)
        with burners():
            printed, _ = run.communicate(timeout=300)
    finally:
        if run.poll() is None:
            run.kill()
            run.wait()
    assert run.returncode == 0
    result = json.loads(printed)
    (verdict,) = result["verdicts"]
    assert verdict["decision"] not in ("better", "worse"), verdict["reasons"]
    samples = RunStore(home).open(result["run_id"]).samples()
    ran = [s.measurement.metrics["t_ms"] for s in samples if s.measurement and not s.warmup]
    assert len(ran) == 2 * REPLICATES
    half = len(ran) // 2
    slower = sum(ran[half:]) / sum(ran[:half])
    require(slower > 1.1, f"a machine that isn't busy already: the burners made it {slower:.2f}")


def wait_for_samples(home: Path, stage: str, count: int, run: subprocess.Popen[str]) -> None:
    """Until a run of that stage has so many samples on disk, or has ended."""
    deadline = time.monotonic() + 200
    while time.monotonic() < deadline and run.poll() is None:
        for folder in RunStore(home).folders():
            samples = folder.samples()
            if len(samples) >= count and samples[0].stage == stage:
                return
        time.sleep(0.05)
    raise AssertionError("half of the replicates never came")

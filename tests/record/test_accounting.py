"""Sums of what was spent: launch by launch on disk, a stage, a run, a domain."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from benchwright.execution.spending import Spending
from benchwright.record.accounting import (
    SPENDING,
    Estimate,
    account,
    account_for_domain,
    append_spending,
    findings_of,
    read_spending,
)
from benchwright.record.store import RunFolder, RunStore
from benchwright.spec.manifest import Manifest
from benchwright.spec.model import BenchmarkConfig, StageKind


def spent(stage: str = "train", seconds: float = 1800.0, **changes: Any) -> Spending:
    row: dict[str, Any] = {
        "stage": stage,
        "arm": "only",
        "kind": StageKind.MEASURE,
        "devices": ("GPU-a",),
        "models": ("NVIDIA H200",),
        "gpu_seconds": seconds,
        "usd": seconds / 1000,
        "vram_peak_mb": 500.0,
    }
    return Spending(**(row | changes))


def run(home: Path, domain: str = "llm") -> RunFolder:
    return RunStore(home).create(
        BenchmarkConfig(domain=domain), "train", Manifest(), config_hash="ab" * 32
    )


def test_what_was_appended_is_read_back_and_a_torn_line_isnt_counted(tmp_path: Path) -> None:
    folder = run(tmp_path)
    assert read_spending(folder) == ()
    rows = [spent(), spent("eval", usd=None, vram_peak_mb=None, notes=("said so",))]
    for row in rows:
        append_spending(folder, row)
    with (folder.path / SPENDING).open("a") as file:
        file.write('{"stage": "tr')
    assert read_spending(folder) == tuple(rows)


def test_estimated_stands_beside_real_for_each_stage_and_the_run() -> None:
    sums = account(
        [spent(), spent(), spent("eval", 3600.0)],
        {"train": Estimate(0.9, 3.0), "eval": Estimate(1.5, 5.0)},
        "prices of 2026-10",
    )
    train, evaluate = sums["stages"]
    assert (train["launches"], train["gpu_hours"], train["usd"]) == (2, 1.0, 3.6)
    assert (train["estimated_gpu_hours"], train["estimated_usd"]) == (0.9, 3.0)
    assert train["devices"] == ["NVIDIA H200"]
    assert evaluate["gpu_hours"] == 1.0
    assert (sums["gpu_hours"], sums["estimated_gpu_hours"]) == (2.0, pytest.approx(2.4))
    assert (sums["usd"], sums["estimated_usd"]) == (pytest.approx(7.2), 8.0)


def test_one_unknown_makes_a_sum_unknown() -> None:
    sums = account([spent(), spent(usd=None, vram_peak_mb=None)], {}, "")
    assert sums["usd"] is None
    assert sums["estimated_gpu_hours"] is None
    assert sums["stages"][0]["vram_peak_mb"] is None
    assert sums["gpu_hours"] == 1.0


def test_a_stage_that_never_started_is_listed_with_nothing_spent() -> None:
    (row,) = account([], {"train": Estimate(1.0, None)}, "")["stages"]
    assert (row["launches"], row["gpu_hours"], row["usd"]) == (0, 0.0, 0)


def test_a_run_without_accelerators_has_no_account() -> None:
    assert account([], {}, "") == {}


def test_a_domain_is_all_its_runs_those_that_died_too(tmp_path: Path) -> None:
    for domain in ("llm", "llm", "other", "llm"):
        folder = run(tmp_path, domain)
        append_spending(folder, spent())
    run(tmp_path)  # spent nothing
    total = account_for_domain(tmp_path, "llm")
    assert (total.runs, total.gpu_hours, total.usd) == (3, 1.5, pytest.approx(5.4))
    assert account_for_domain(tmp_path, "none").runs == 0


def test_replicates_on_different_devices_are_a_caveat() -> None:
    moved = [spent(), spent(devices=("GPU-b",)), spent("prep", kind=StageKind.PREP)]
    (finding,) = findings_of(moved)
    assert finding.code == "device-changed"
    assert finding.caveat
    assert "GPU-a; GPU-b" in finding.message
    assert findings_of([spent(), spent()]) == ()

"""The sample experiment with its two shell scripts, which users copy from the documentation."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from benchwright.execution.metrics import read_measurement
from benchwright.spec.model import MetricsFrom, Stage, StageKind

SAMPLE = Path(__file__).parent / "sample"


def run(name: str, *arguments: object, **environment: str) -> str:
    done = subprocess.run(
        [f"./{name}", *map(str, arguments)],
        cwd=SAMPLE,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize("segments", [1, 5])
def test_the_sample_builds_and_searches_with_full_recall(tmp_path, segments):
    built = tmp_path / "an index with spaces"
    run("build_index.sh", "--docs", 300, "--segments", segments, "--out", built)
    assert len(list((built / "segments").iterdir())) == segments
    stdout = tmp_path / "out"
    stdout.write_text(run("search_bench.sh", "--index", built, "--queries", 50))
    stage = Stage(
        name="search",
        kind=StageKind.MEASURE,
        cmd="true",
        metrics_from=MetricsFrom(stdout=True, fields=("p50_ms", "recall@10")),
    )
    found = read_measurement(stage, stdout=stdout, cwd=tmp_path, expected=["p50_ms", "recall@10"])
    assert found.metrics["p50_ms"] > 0
    assert found.metrics["recall@10"] == 1.0


def test_the_samples_recall_falls_when_a_segment_is_lost(tmp_path):
    run("build_index.sh", "--docs", 300, "--segments", 2, "--out", tmp_path / "index")
    for file in (tmp_path / "index" / "segments" / "1").iterdir():
        file.unlink()
    out = run("search_bench.sh", "--index", tmp_path / "index", "--queries", 50)
    recall = float(out.rpartition("recall@10: ")[2])
    assert 0.2 < recall < 0.8


def test_the_samples_numbers_have_a_decimal_point_under_any_locale(tmp_path):
    run("build_index.sh", "--docs", 100, "--segments", 1, "--out", tmp_path / "index")
    arguments = ("--index", tmp_path / "index", "--queries", 10)
    out = run("search_bench.sh", *arguments, LC_ALL="de_DE.UTF-8", LANG="de_DE.UTF-8")
    assert "," not in out
    assert "p50_ms: 0." in out


def test_a_misspelled_option_ends_the_sample_with_an_error(tmp_path):
    done = subprocess.run(
        ["./build_index.sh", "--dcos", "3"], cwd=SAMPLE, capture_output=True, text=True, check=False
    )
    assert done.returncode == 2
    assert "unknown option --dcos" in done.stderr

"""Sixty-four runs at once on one machine: nothing is mixed up, and none disturbs another."""

from __future__ import annotations

import json
import subprocess
import sys
from itertools import pairwise
from pathlib import Path

import pytest

from benchwright.record.index import read_index, rebuild_index
from benchwright.record.store import RunStore
from tests.cli.conftest import experiment

RUNS = 64

SPAN = """#!/bin/sh
start=$(cut -d' ' -f1 /proc/uptime)
sleep 0.02
echo "$start $(cut -d' ' -f1 /proc/uptime)" >> spans.log
echo '{"t_ms": 1.0}'
"""


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_sixty_four_runs_at_once_have_ids_rows_and_measurements_of_their_own(
    tmp_path: Path, home: Path
) -> None:
    config = experiment(tmp_path, replication={"replicates": 1, "warmup": 0})
    script = tmp_path / "search.sh"
    script.write_text(SPAN)
    before = {row.run_id for row in read_index(home)}
    crowd = [
        subprocess.Popen(
            [sys.executable, "-m", "cli.main", "run", str(config), "--json", "--home", str(home)],
            cwd=tmp_path,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for _ in range(RUNS)
    ]
    said = [one.communicate() for one in crowd]
    assert [one.returncode for one in crowd] == [0] * RUNS, [
        err[-500:] for one, (_, err) in zip(crowd, said, strict=True) if one.returncode
    ]
    results = [json.loads(out) for out, _ in said]
    assert [result["status"] for result in results] == ["COMPLETED"] * RUNS
    ids = {result["run_id"] for result in results}
    assert len(ids) == RUNS
    rows = {row.run_id for row in read_index(home)}
    assert rows - before == ids
    assert read_index(home) == rebuild_index(home)
    spans = sorted(
        tuple(float(part) for part in line.split())
        for line in (tmp_path / "spans.log").read_text().splitlines()
    )
    assert len(spans) == 2 * RUNS, "two arms each"
    for (_, end), (start, _) in pairwise(spans):
        assert end <= start, "two measure stages of one host overlapped"
    builds = (tmp_path / "builds.log").read_text().splitlines()
    assert len(builds) == 2, "each signature was built once"
    for run_id in ids:
        assert len(RunStore(home).open(run_id).samples()) == 2

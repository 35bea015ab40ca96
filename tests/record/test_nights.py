"""A suite's nights on disk, and what becomes of a run's figures there."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from benchwright.errors import BadInput, BenchwrightError
from benchwright.record.nights import (
    Figure,
    NightRow,
    SuiteFolder,
    commit_of,
    figures_of,
    ground_of,
    nights_of,
)
from tests.report.sample_record import record

ROW = NightRow(
    night="2026-03-02",
    entry="search",
    host="here",
    started="2026-03-02T02:00:00.000+01:00",
    finished="2026-03-02T02:01:00.000+01:00",
    status="COMPLETED",
    run_id="2026-03-02_search_aaaaaa",
    figures={"only": {"p50_ms": Figure(12.5, 0.1, 10)}},
)


def test_rows_come_back_as_they_were_written_with_what_they_ran_on(tmp_path: Path) -> None:
    folder = SuiteFolder(tmp_path, "nightly")
    assert folder.rows() == ()
    ground = {"machine.kernel": "6.1", "configuration": "aa"}
    written = [folder.append(replace(ROW, night=f"2026-03-0{n}"), ground) for n in (2, 3)]
    written.append(folder.append(replace(ROW, status="REFUSED", run_id="", figures={}), {}))
    assert folder.rows() == tuple(written)
    assert written[0].environment == written[1].environment != ""
    assert folder.ground(written[0].environment) == ground
    assert folder.ground("") == {}


def test_a_night_without_a_result_keeps_its_reason(tmp_path: Path) -> None:
    refused = replace(ROW, status="REFUSED", figures={}, error="no such parameter\n  next: x")
    other = replace(ROW, figures={"only": {"rss": Figure(1.0, None, 1)}})
    nights = nights_of([ROW, refused, other], "only", "p50_ms", {})
    assert [night.value for night in nights] == [12.5, None, None]
    assert nights[1].why == "REFUSED: no such parameter"
    assert "no such metric" in nights[2].why


def test_a_damaged_row_is_named_by_its_line(tmp_path: Path) -> None:
    folder = SuiteFolder(tmp_path, "nightly")
    folder.append(ROW, {})
    with folder.rows_file.open("a") as file:
        file.write('{"night": "2026-03-03"}\n')
    with pytest.raises(BadInput) as told:
        folder.rows()
    assert "nights.jsonl:2" in str(told.value)


def test_a_suite_that_is_running_is_not_started_twice(tmp_path: Path) -> None:
    folder = SuiteFolder(tmp_path, "nightly")
    script = (
        "import sys; from pathlib import Path\n"
        "from benchwright.record.nights import SuiteFolder\n"
        "lock = SuiteFolder(Path(sys.argv[1]), 'nightly').lock()\n"
        "print('held', flush=True); sys.stdin.read()\n"
    )
    holder = subprocess.Popen(
        [sys.executable, "-c", script, str(tmp_path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert holder.stdout is not None
    assert holder.stdout.readline() == "held\n"
    with pytest.raises(BenchwrightError, match="is running already"):
        folder.lock()
    holder.communicate("")
    folder.lock().release()


def test_a_runs_figures_are_the_mean_of_each_arm_with_its_error() -> None:
    view = record().view
    assert view.judgement is not None
    figures = figures_of(view.judgement.summaries, view)
    arm, metrics = next(iter(view.judgement.summaries.items()))
    summary = metrics["p50_ms"]
    figure = figures[arm]["p50_ms"]
    assert figure.mean == summary.mean
    assert summary.mean is not None
    assert summary.spread is not None
    assert figure.error == pytest.approx(summary.spread * summary.mean / summary.n**0.5)
    empty = replace(summary, n=0, mean=None, spread=None)
    assert figures_of({arm: {"p50_ms": empty}}, view) == {}
    single = replace(summary, n=1, spread=None)
    assert figures_of({arm: {"p50_ms": single}}, view)[arm]["p50_ms"].error is None


def test_the_code_is_no_part_of_the_ground_and_the_configuration_is() -> None:
    view = record().view
    ground = ground_of(view)
    assert not [name for name in ground if name.startswith("code.")]
    assert ground["configuration"] == view.config_hash[:12]
    fields = {**view.fingerprint.fields, "code.commit": "0123456789abcdef", "code.uncommitted": ""}
    dirty = {**fields, "code.uncommitted": "ab12"}
    unknown = {**fields, "code.commit": "unknown"}
    said = [
        commit_of(replace(view, fingerprint=replace(view.fingerprint, fields=one)))
        for one in (fields, dirty, unknown)
    ]
    assert said == ["0123456789ab", "0123456789ab+", ""]

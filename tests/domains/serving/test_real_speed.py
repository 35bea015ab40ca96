"""The real load program on a real model, over a real sshd."""

from __future__ import annotations

import csv
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest

from domains.serving.request import SpeedRequest
from domains.serving.speed_report import COLUMNS
from domains.serving.speed_runner import run_speed
from domains.serving.validate import State
from tests.domains.serving import serving_parts as parts
from tests.domains.serving.sshd import Sshd

pytestmark = [pytest.mark.real, pytest.mark.slow, pytest.mark.timeout(900)]


def request(port: int, tmp: Path, tools: Path, sshd: Sshd, **changes: Any) -> SpeedRequest:
    values: dict[str, Any] = {
        "load__evalscope": None,
        "load__tool_dir": str(tools),
        "load__replicates": 1,
        "load__timeout_s": 120.0,
        "load__work_root": str(sshd.home / "benchwright runs"),
    }
    asked = parts.speed(port, tmp, **(values | changes))
    target = asked.target.model_copy(update={"ssh": sshd.target()})
    return asked.model_copy(update={"target": target})


def test_a_real_model_gives_a_speed_report_over_closed_and_open_loops(
    tmp_path: Path, evalscope_dir: Path, real_model: int, sshd: Sshd, sudo: None
) -> None:
    asked = request(
        real_model,
        tmp_path,
        evalscope_dir,
        sshd,
        load__batch_sizes=[1, 2],
        # Each request on a connection of its own: this server closes one after a stream, at times
        # just as the next request is sent on it, which then fails.
        load__requests_per_slot=1,
        load__rates=[1.0],
        load__requests_per_rate=3,
        load__input_tokens=48,
        load__output_tokens=12,
        load__warmup=0,
        load__replicates=3,
        load__ttft_limit_ms=60_000.0,
    )
    result = run_speed(asked, tmp_path / "run")
    assert result.state is State.SUCCESS, result.validation.notes
    folder = tmp_path / "run" / "speed"
    rows = list(csv.DictReader((folder / "summary.csv").open()))
    assert tuple(rows[0]) == COLUMNS
    assert [row["Max Concurrency"] for row in rows] == ["1", "2"]
    for summary in result.validation.summaries:
        assert summary.means is not None
        # The server was told to ignore the end of sequence: every answer has its 12 tokens.
        assert summary.means.output_tok_s / summary.means.requests_per_s == pytest.approx(12)
        assert summary.means.ttft_ms is not None
        assert 0 < summary.means.ttft_ms < summary.means.e2e_ms
        assert summary.cache_hit_share is not None
        assert set(summary.intervals) >= {"output_tok_s", "e2e_ms", "ttft_ms"}
    text = (folder / "report.md").read_text()
    assert "- Server id: pid " in text
    assert "- Radix cache: enabled" in text
    assert f"  - engine: llama.cpp {version('xllamacpp')} @ unknown (unknown)" in text
    assert (folder / "report.html").read_text().count("<circle") == 3
    assert "| Request rate (req/s) |" in text
    assert "100.0% of those sent" in text
    assert parts.marked_processes(sshd.home) == []


def test_requests_that_the_real_load_program_sees_fail_are_counted(
    tmp_path: Path, evalscope_dir: Path, sshd: Sshd, locked: str
) -> None:
    with parts.standin("500:3") as server:
        asked = request(
            server.port,
            tmp_path,
            evalscope_dir,
            sshd,
            load__batch_sizes=[3],
            load__warmup=0,
            target__endpoint__key_env=locked,
        )
        result = run_speed(asked, tmp_path / "run")
    assert parts.holding(tmp_path, sshd.home) == []
    (summary,) = result.validation.summaries
    assert result.state is State.PARTIAL, result.validation.notes
    assert summary.sent == 9
    assert summary.failed >= 1
    assert summary.means is not None

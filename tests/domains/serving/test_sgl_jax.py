"""The sgl-jax bench: its command, its output, and a whole run with a stand-in for it."""

from __future__ import annotations

import json
import stat
import sys
from pathlib import Path
from typing import Any

import pytest

from benchwright.errors import BadInput
from domains.serving.load import Point, Slot, slot_command
from domains.serving.load_results import read_replicate
from domains.serving.probe import Health, Probe
from domains.serving.request import LoadOptions, SpeedRequest, speed_request
from domains.serving.results import Reporter
from domains.serving.speed_runner import run_speed
from domains.serving.validate import State
from tests.domains.serving import serving_parts as parts

SERVED = Probe(
    time="",
    epoch=0.0,
    health=Health(state="healthy", status=200, models=("qwen",), reason=""),
    model="qwen",
    process=None,
    model_path="/models/Qwen3-8B",
)


def slot(loop: str, value: float) -> Slot:
    return Slot(
        order=0,
        block=0,
        warmup=False,
        seed=7,
        point=Point.model_validate({"loop": loop, "value": value}),
    )


def command(the_slot: Slot, **load: Any) -> list[str]:
    request = speed_request({"load": {"backend": "sgl-jax", **load}})
    return slot_command(request, SERVED, the_slot, ("/opt/py",), "/w/slots/0")


def option(words: list[str], name: str) -> str:
    return words[words.index(name) + 1]


def test_the_bench_is_asked_for_its_details_with_the_servers_own_tokenizer() -> None:
    words = command(slot("closed", 8))
    assert words[:3] == ["/opt/py", "-m", "sgl_jax.bench_serving"]
    assert option(words, "--model") == "qwen"
    assert option(words, "--tokenizer") == "/models/Qwen3-8B"
    assert (option(words, "--max-concurrency"), option(words, "--num-prompts")) == ("8", "24")
    assert (option(words, "--dataset-name"), option(words, "--seed")) == ("random", "7")
    assert "--output-details" in words
    assert "--request-rate" not in words
    assert "--disable-ignore-eos" not in words


def test_an_open_loop_is_a_request_rate_without_a_ceiling() -> None:
    words = command(slot("open", 2.5), rates=[2.5], ignore_eos=False, dataset="random-ids")
    assert option(words, "--request-rate") == "2.5"
    assert "--max-concurrency" not in words
    assert "--disable-ignore-eos" in words
    assert option(words, "--dataset-name") == "random-ids"


def test_a_dataset_that_the_bench_does_not_know_is_refused() -> None:
    with pytest.raises(BadInput, match="the sgl-jax bench has no dataset 'openqa'"):
        speed_request({"load": {"backend": "sgl-jax", "dataset": "openqa"}})


LINE = {
    "backend": "sgl-jax",
    "dataset_name": "random",
    "request_rate": float("inf"),
    "max_concurrency": 2,
    "duration": 4.0,
    "completed": 2,
    "total_input_tokens": 2048,
    "total_output_tokens": 7,
    "mean_ttft_ms": 125.0,
    "accept_length": None,
    "input_lens": [1024, 1024, 1024, 1024],
    "output_lens": [4, 3, 0, 0],
    "ttfts": [0.1, 0.15, 0.0, 0.0],
    "itls": [[0.02, 0.02, 0.02], [0.03, 0.03], [], []],
    "generated_texts": ["a b c d", "a b c", "", ""],
    "errors": ["", "", "Service Unavailable", ""],
}
"""As the bench writes it: two of four requests succeeded, and the last failed without a reason."""


def test_a_failed_request_is_counted_even_where_its_error_has_no_text(tmp_path: Path) -> None:
    (tmp_path / "exit").write_text("0\n")
    # An earlier line is another run's: the file is appended to.
    (tmp_path / "bench.jsonl").write_text("{}\n" + json.dumps(LINE) + "\n")
    load = LoadOptions(backend="sgl-jax", batch_sizes=(2,))
    found = read_replicate(tmp_path, slot("closed", 2), load)
    assert (found.sent, found.failed, found.duration_s) == (4, 2, 4.0)
    first, second = found.requests
    assert (first.output_tokens, first.ttft) == (4, 0.1)
    assert first.latency == pytest.approx(0.16)
    assert second.tpot == pytest.approx(0.03)


def test_a_bench_that_wrote_no_details_is_a_problem_and_no_zero(tmp_path: Path) -> None:
    (tmp_path / "exit").write_text("0\n")
    short = {key: LINE[key] for key in ("duration", "completed")}
    (tmp_path / "bench.jsonl").write_text(json.dumps(short) + "\n")
    load = LoadOptions(backend="sgl-jax")
    found = read_replicate(tmp_path, slot("closed", 2), load)
    assert not found.ok
    assert "errors" in found.problem


def bench_python(folder: Path) -> str:
    """A Python that has the stand-in as its `sgl_jax.bench_serving`."""
    package = folder / "site" / "sgl_jax"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("")
    (package / "bench_serving.py").write_bytes((parts.HERE / "fake_sgl_jax.py").read_bytes())
    python = folder / "python"
    python.write_text(f'#!/bin/sh\nPYTHONPATH="{folder}/site" exec "{sys.executable}" "$@"\n')
    python.chmod(python.stat().st_mode | stat.S_IXUSR)
    return str(python)


def request(port: int, tmp: Path, **changes: Any) -> SpeedRequest:
    values: dict[str, Any] = {
        "load__backend": "sgl-jax",
        "load__bench_python": bench_python(tmp),
        "load__batch_sizes": [2],
        "load__rates": [20.0],
        "load__requests_per_rate": 4,
        "load__output_tokens": 5,
        "load__ttft_limit_ms": 5000.0,
    }
    return parts.speed(port, tmp, **(values | changes))


def test_a_run_with_the_bench_gives_the_whole_report(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STANDIN_KEY", "sk-planted-6fa0")
    monkeypatch.setenv("LAB_KEY", "sk-planted-6fa0")
    with parts.standin() as server:
        asked = request(server.port, tmp_path, target__endpoint__key_env="LAB_KEY")
        result = run_speed(asked, tmp_path / "run", reporter=Reporter())
    assert result.state is State.SUCCESS, result.validation.notes
    closed, opened = result.validation.summaries
    for summary in (closed, opened):
        assert summary.failed == 0
        assert summary.means is not None
        assert summary.means.output_tok_s / summary.means.requests_per_s == pytest.approx(5)
        assert summary.means.ttft_ms is not None
        assert 0 < summary.means.ttft_ms < summary.means.e2e_ms
    text = (tmp_path / "run" / "speed" / "report.md").read_text()
    assert "-m sgl_jax.bench_serving" in text
    assert "- Backend: sgl-jax" in text
    assert "- Cache hit rate: unknown" in text
    assert "100.0% of those sent" in text
    assert not [
        path
        for path in tmp_path.rglob("*")
        if path.is_file() and b"sk-planted-6fa0" in path.read_bytes()
    ]


def test_a_bench_that_every_request_failed_in_is_a_failed_run_with_its_words(
    tmp_path: Path,
) -> None:
    with parts.standin("busy") as server:
        asked = request(server.port, tmp_path, load__rates=[], load__replicates=1, load__warmup=0)
        result = run_speed(asked, tmp_path / "run")
    assert result.state is State.FAILED
    assert "exit code 1: IndexError" in "\n".join(result.validation.notes)

"""`benchwright run` from a terminal, on a real server and engine."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from benchwright.record.run import Status
from benchwright.record.store import RunStore
from tests.cli.conftest import experiment
from tests.cli.support import BENCHWRIGHT, json_of

Run = Callable[..., subprocess.CompletedProcess[str]]
SAMPLE = Path(__file__).parents[1] / "recipes" / "sample"


def _lines(path: Path) -> int:
    return len(path.read_text().splitlines()) if path.exists() else 0


def test_the_sample_of_two_scripts_and_a_file_runs(tmp_path: Path, run: Run) -> None:
    finished = run(
        "run", str(SAMPLE / "config.yaml"), "-p", "corpus.n_docs=500", "-p", "n_queries=20",
        "--replicates", "2", "--json", cwd=tmp_path,
    )  # fmt: skip
    result = json_of(finished)
    assert finished.returncode == 0
    assert result["status"] == "COMPLETED"
    assert set(result["arms"]) == {"max_num_segments=16", "max_num_segments=1"}
    for metrics in result["arms"].values():
        assert {"n", "mean", "median", "min", "max"} <= set(metrics["p50_ms"])
        assert metrics["p50_ms"]["n"] == 2
    assert result["tag"] == "EXPLORATORY", "two replicates are too few for a verdict"
    report = Path(result["report"])
    assert report.is_file()
    markdown = report.with_suffix(".md").read_text()
    assert "forcemerge.max_num_segments" in markdown
    assert "What went wrong or remained unknown" in markdown


def test_json_is_one_object_and_prefect_says_nothing(tmp_path: Path, run: Run) -> None:
    finished = run("run", str(experiment(tmp_path)), "--json", cwd=tmp_path)
    assert json_of(finished)["cache"] == {"hits": 0, "misses": 2}
    for noise in ("flow run", "task run", "prefect.", "traceback", "| info"):
        assert noise not in finished.stderr.lower()


def test_a_second_run_takes_the_build_from_the_cache_and_measures_anew(
    tmp_path: Path, run: Run
) -> None:
    config = str(experiment(tmp_path))
    run("run", config, "--json", cwd=tmp_path)
    assert (_lines(tmp_path / "builds.log"), _lines(tmp_path / "searches.log")) == (2, 8)
    second = json_of(run("run", config, "--json", cwd=tmp_path))
    assert second["cache"] == {"hits": 2, "misses": 0}
    assert (_lines(tmp_path / "builds.log"), _lines(tmp_path / "searches.log")) == (2, 16)


def test_an_artifact_that_was_altered_is_built_again_and_that_is_said(
    tmp_path: Path, run: Run, home: Path
) -> None:
    config = str(experiment(tmp_path))
    first = json_of(run("run", config, "--json", cwd=tmp_path))
    signature = RunStore(home).open(first["run_id"]).view().prep[0].signature
    artifact = home / "cache" / signature / "index"
    artifact.chmod(0o644)
    artifact.write_text("size 7777\n")
    second = run("run", config, "--json", cwd=tmp_path)
    result = json_of(second)
    assert result["cache"] == {"hits": 1, "misses": 1}
    assert "build, size=5: built" in second.stderr
    assert "index" in second.stderr, "which file was altered is said"
    assert _lines(tmp_path / "builds.log") == 3


@pytest.mark.parametrize(
    ("change", "code", "words"),
    [
        ({"treatment_values": [5]}, 3, "treatment_values"),
        ({"params": {"size": 5, "other": 1}, "treatment_variable": "other"}, 3, "params: [other]"),
        ({"treatment_variable": "sise"}, 2, "size"),
        ({"budget": {"wall_s": 0.01}}, 5, "budget"),
    ],
)
def test_exit_codes_say_who_refused(
    change: dict[str, Any], code: int, words: str, tmp_path: Path, run: Run
) -> None:
    finished = run("run", str(experiment(tmp_path, **change)), cwd=tmp_path)
    assert finished.returncode == code, finished.stderr
    assert words in finished.stderr + finished.stdout
    assert "Traceback" not in finished.stderr


def test_a_refused_run_writes_nothing(tmp_path: Path, run: Run, home: Path) -> None:
    before = {folder.run_id for folder in RunStore(home).folders()}
    run("run", str(experiment(tmp_path, treatment_variable="sise")), cwd=tmp_path)
    # Other tests run their experiments in the same home at the same time.
    new = [folder for folder in RunStore(home).folders() if folder.run_id not in before]
    assert str(tmp_path) not in [folder.read().cwd for folder in new]


def test_a_failing_stage_ends_with_code_4_and_the_tail_of_what_it_said(
    tmp_path: Path, run: Run
) -> None:
    config = experiment(tmp_path)
    (tmp_path / "fail").touch()
    finished = run("run", str(config), "--json", cwd=tmp_path)
    result = json_of(finished)
    assert finished.returncode == 4
    assert result["status"] == "FAILED"
    assert result["tag"] == "UNRELIABLE"
    assert "no such index" in result["error"]
    assert Path(result["report"]).is_file()


def _start(config: Path, home: Path, *options: str) -> subprocess.Popen[str]:
    environ = {k: v for k, v in os.environ.items() if not k.startswith("PREFECT_")}
    return subprocess.Popen(
        [*BENCHWRIGHT, "run", str(config), *options],
        cwd=config.parent,
        env=environ | {"BENCHMARK_HOME": str(home)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def _until(fact: Callable[[], bool], seconds: float = 60) -> None:
    end = time.monotonic() + seconds
    while not fact():
        assert time.monotonic() < end, "it didn't happen in time"
        time.sleep(0.02)


def _gone(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except OSError:
        return True


def test_ctrl_c_ends_what_was_started_and_records_the_run(tmp_path: Path, home: Path) -> None:
    config = experiment(tmp_path)
    (tmp_path / "hang").touch()
    process = _start(config, home, "--json")
    _until((tmp_path / "child").exists)
    process.send_signal(signal.SIGINT)
    out, _ = process.communicate(timeout=60)
    result = json.loads(out)
    assert process.returncode == 130
    assert result["status"] == "INTERRUPTED"
    assert _gone(int((tmp_path / "child").read_text()))


def test_a_run_goes_on_when_its_terminal_is_killed(tmp_path: Path, home: Path, run: Run) -> None:
    config = experiment(tmp_path, replication={"replicates": 8, "warmup": 0})
    process = _start(config, home)
    _until(lambda: _lines(tmp_path / "searches.log") >= 2)
    process.kill()
    process.communicate()
    _until(lambda: _lines(tmp_path / "searches.log") == 16)
    newest = RunStore(home).folders()
    mine = [f for f in newest if str(tmp_path) in f.read().folders.get("search", "")]
    _until(lambda: mine[-1].settle() is not Status.IN_PROGRESS)
    assert mine[-1].status is Status.COMPLETED


def test_a_detached_run_is_followed_and_cancelled_by_its_id(
    tmp_path: Path, run: Run, home: Path
) -> None:
    config = experiment(tmp_path)
    (tmp_path / "hang").touch()
    detached = json_of(run("run", str(config), "--detach", "--json", cwd=tmp_path))
    run_id = detached["run_id"]
    _until((tmp_path / "child").exists)
    assert run_id in json_of(run("status", "--json", cwd=tmp_path))["running"]
    cancelled = json_of(run("cancel", run_id, "--json", cwd=tmp_path))
    assert cancelled["status"] == "INTERRUPTED"
    assert _gone(int((tmp_path / "child").read_text()))
    assert run_id not in json_of(run("status", "--json", cwd=tmp_path))["running"]


def test_resume_keeps_finished_replicates_and_runs_the_rest(
    tmp_path: Path, run: Run, home: Path
) -> None:
    config = experiment(tmp_path, replication={"replicates": 4, "warmup": 0})
    run_id = json_of(run("run", str(config), "--detach", "--json", cwd=tmp_path))["run_id"]
    _until(lambda: _lines(tmp_path / "searches.log") >= 3)
    (tmp_path / "hang").touch()
    _until((tmp_path / "child").exists)
    run("cancel", run_id, cwd=tmp_path)
    (tmp_path / "hang").unlink()
    folder = RunStore(home).open(run_id)
    kept = [sample.started for sample in folder.samples() if sample.ok]
    assert kept
    finished = run("resume", run_id, "--json", cwd=tmp_path)
    assert json_of(finished)["status"] == "COMPLETED", finished.stderr
    good = [sample for sample in folder.samples() if sample.ok]
    assert len({sample.order for sample in good}) == 8
    assert [sample.started for sample in good][: len(kept)] == kept


def test_resume_is_refused_when_a_measuring_script_has_changed(
    tmp_path: Path, run: Run, home: Path
) -> None:
    config = experiment(tmp_path)
    (tmp_path / "hang").touch()
    run_id = json_of(run("run", str(config), "--detach", "--json", cwd=tmp_path))["run_id"]
    _until((tmp_path / "child").exists)
    run("cancel", run_id, cwd=tmp_path)
    script = tmp_path / "search.sh"
    script.write_text(script.read_text() + "# changed\n")
    finished = run("resume", run_id, cwd=tmp_path)
    assert finished.returncode == 3
    assert "measured_by.search" in finished.stderr


def test_two_runs_at_once_build_once_and_never_measure_at_the_same_time(
    tmp_path: Path, home: Path
) -> None:
    config = experiment(tmp_path)
    both = [_start(config, home, "--json") for _ in range(2)]
    results = [json.loads(process.communicate(timeout=100)[0]) for process in both]
    assert [result["status"] for result in results] == ["COMPLETED", "COMPLETED"]
    assert _lines(tmp_path / "builds.log") == 2
    assert results[0]["run_id"] != results[1]["run_id"]


HOSTILE = ["it's", "#hash", "100%", "a|b", "{x}", "$(id -u)", "`id`", "a\nb", "ünï", "", "-n", "\\"]


def test_values_reach_the_program_byte_for_byte(tmp_path: Path, run: Run) -> None:
    stages = [
        {
            "name": "show",
            "kind": "measure",
            "cmd": "printf '%s\\0' "
            + " ".join(f"{{v.a{n}}}" for n in range(len(HOSTILE)))
            + " > seen; awk '{print $1}' /dev/null; echo '{\"t_ms\": 1}'",
            "metrics_from": {"stdout": True},
        }
    ]
    config = experiment(
        tmp_path,
        params={"v": {f"a{n}": value for n, value in enumerate(HOSTILE)}},
        stages=stages,
        treatment_variable=None,
        treatment_values=[],
        replication={"replicates": 1, "warmup": 0},
    )
    finished = run("run", str(config), "--json", cwd=tmp_path)
    assert finished.returncode == 0, finished.stderr
    assert (tmp_path / "seen").read_text().split("\0")[:-1] == HOSTILE

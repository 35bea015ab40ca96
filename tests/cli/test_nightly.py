"""`benchwright nightly` and `benchwright dashboard` as a user calls them."""

from __future__ import annotations

import json
import signal
import subprocess
import time
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.cli.conftest import experiment
from tests.cli.support import BENCHWRIGHT, benchwright, json_of
from tests.report.sample_suite import SUITE, write_nights


def write_suite(folder: Path, entries: list[dict[str, Any]]) -> Path:
    """A suite with a name of its own: its home is shared."""
    path = folder / "suite.yaml"
    path.write_text(json.dumps({"name": f"s{uuid.uuid4().hex[:8]}", "entries": entries}))
    return path


def test_once_runs_the_suite_and_says_where_each_metric_stands(
    tmp_path: Path, home: Path, run: Callable[..., Any]
) -> None:
    experiment(tmp_path / "e", replication={"replicates": 2, "warmup": 0})
    suite = write_suite(
        tmp_path,
        [
            {"name": "good", "experiment": "e/experiment.yaml"},
            {"name": "wrong", "experiment": "e/experiment.yaml", "params": {"siz": 1}},
        ],
    )
    finished = run("nightly", str(suite), "--once", "--json", cwd=tmp_path)
    assert finished.returncode == 3, finished.stderr
    said = json_of(finished)
    assert [(row["entry"], row["status"]) for row in said["ran"]] == [
        ("good", "COMPLETED"),
        ("wrong", "REFUSED"),
    ]
    assert Path(said["dashboard"]).exists()
    assert "good: COMPLETED" in finished.stderr
    shown = run("dashboard", str(suite), "--html", str(tmp_path / "copy.html"), cwd=tmp_path)
    assert shown.returncode == 0, shown.stderr
    assert "t_ms (size=5)" in shown.stdout
    assert "1 of 13 nights" in shown.stdout
    assert "REFUSED" in shown.stdout
    assert (tmp_path / "copy.html").read_text().startswith("<!doctype html>")


def test_a_wrong_suite_is_refused_with_its_place_before_a_server_is_asked(tmp_path: Path) -> None:
    suite = tmp_path / "suite.yaml"
    suite.write_text("entries:\n  - name: a\n    experimnt: x.yaml\n")
    refused = benchwright("nightly", str(suite), "--once", cwd=tmp_path, home=tmp_path / "home")
    assert refused.returncode == 2
    assert f"{suite}:3" in refused.stderr
    assert "did you mean `experiment`" in refused.stderr
    assert "Traceback" not in refused.stderr
    assert not (tmp_path / "home").exists()
    unknown = benchwright("nightly", "nightli", "--once", cwd=tmp_path, home=tmp_path / "home")
    assert unknown.returncode == 2
    assert "did you mean `nightly`" in unknown.stderr
    misspelt = benchwright(
        "nightly", "nightly", "--once", "--only", "retrieval", cwd=tmp_path, home=tmp_path / "home"
    )
    assert misspelt.returncode == 2
    assert "did you mean `retrieval-index`" in misspelt.stderr
    useless = benchwright("nightly", "nightly", "--json", cwd=tmp_path, home=tmp_path / "home")
    assert useless.returncode == 2
    assert "--once" in useless.stderr


def test_the_dashboard_of_many_nights_names_the_change_and_the_commands(tmp_path: Path) -> None:
    home = tmp_path / "home"
    home.mkdir()
    write_nights(home)
    suite = tmp_path / "suite.yaml"
    suite.write_text(json.dumps(SUITE.model_dump(mode="json", exclude_defaults=True)))
    shown = benchwright("dashboard", str(suite), cwd=tmp_path, home=home)
    assert shown.returncode == 0, shown.stderr
    assert "1 worse" in shown.stdout
    assert "Worse since 2026-02-1" in " ".join(shown.stdout.split())
    said = json_of(benchwright("dashboard", str(suite), "--json", cwd=tmp_path, home=home))
    series = {(one["metric"], one["arm"]): one["standing"] for one in said["entries"][0]["series"]}
    assert series["p50_ms", "size=5"] == "worse"
    assert series["p50_ms", "size=9"] == "steady"


def test_the_dashboard_doesnt_import_prefect(tmp_path: Path) -> None:
    suite = tmp_path / "suite.yaml"
    suite.write_text("entries:\n  - {name: a, domain: accuracy}\n")
    program = (
        "import sys; from cli.main import call\n"
        f"code = call(['dashboard', {str(suite)!r}, '--home', {str(tmp_path / 'home')!r}])\n"
        "assert code == 0, code\n"
        "print('prefect' in sys.modules)"
    )
    done = subprocess.run(
        [BENCHWRIGHT[0], "-c", program], capture_output=True, text=True, check=True, timeout=60
    )
    assert done.stdout.splitlines()[-1] == "False"
    assert "No night has run yet" in done.stdout


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_served_suite_has_its_schedule_on_the_server_and_runs_when_it_is_asked_to(
    tmp_path: Path, home: Path, local_api_url: str
) -> None:
    experiment(tmp_path / "e", replication={"replicates": 2, "warmup": 0})
    suite = write_suite(tmp_path, [{"name": "good", "experiment": "e/experiment.yaml"}])
    name = json.loads(suite.read_text())["name"]
    with (tmp_path / "log").open("wb") as log:
        serving = subprocess.Popen(
            [*BENCHWRIGHT, "nightly", str(suite), "--home", str(home)],
            cwd=tmp_path,
            stdout=log,
            stderr=log,
        )
    try:
        found = _wait(lambda: _deployment(local_api_url, name))
        (schedule,) = found["schedules"]
        assert schedule["schedule"]["cron"] == "0 2 * * *"
        assert schedule["active"]
        assert found["concurrency_options"]["collision_strategy"] == "CANCEL_NEW"
        httpx.post(
            f"{local_api_url}/deployments/{found['id']}/create_flow_run", json={}, timeout=30
        ).raise_for_status()
        rows = home / "nightly" / name / "nights.jsonl"
        _wait(lambda: rows.exists() and '"COMPLETED"' in rows.read_text())
    finally:
        serving.send_signal(signal.SIGINT)
        serving.wait(60)
    assert "Traceback" not in (tmp_path / "log").read_text()


def _deployment(api_url: str, name: str) -> Any:
    answer = httpx.get(f"{api_url}/deployments/name/nightly/{name}", timeout=30)
    return answer.json() if answer.status_code == 200 else None


def _wait(found: Callable[[], Any], seconds: float = 120.0) -> Any:
    deadline = time.monotonic() + seconds
    while not (value := found()):
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.2)
    return value

"""The nightly flow on a real server: order, failures, comparison, events, cancellation."""

from __future__ import annotations

import json
import os
import signal
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Any

import httpx
import pytest
from prefect.client.orchestration import get_client

from benchwright.judgement.history import CHANGED_NIGHTS
from benchwright.record.nights import Figure, NightRow, SuiteFolder
from benchwright.record.store import RunFolder
from deployments.automations import REGRESSION_EVENT
from flows.nightly import nightly
from tests.cli.conftest import experiment
from tests.support import require

ARM = "size=5"
SEEDED = 24
"""Earlier nights: enough that three worse ones are a change."""


@pytest.fixture
def home(tmp_path: Path, prefect_api: str) -> Path:
    """A home of its own; the server is the one that all tests share."""
    return tmp_path / "home"


def write_suite(folder: Path, entries: list[dict[str, Any]], **more: Any) -> Path:
    path = folder / "suite.yaml"
    path.write_text(
        json.dumps({"name": f"s{abs(hash(folder)) % 10**8}", "entries": entries} | more)
    )
    return path


def run(suite: Path, home: Path, **parameters: Any) -> Any:
    return nightly(suite=str(suite), home=str(home), return_state=True, **parameters)


def rows_of(suite: Path, home: Path) -> tuple[NightRow, ...]:
    return SuiteFolder(home, json.loads(suite.read_text())["name"]).rows()


def times(home: Path, row: NightRow) -> tuple[datetime, datetime]:
    """When the first stage of an entry's run started, and when its row was written."""
    events, _ = RunFolder(home, row.run_id).events()
    return datetime.fromisoformat(str(events[0]["t"])), datetime.fromisoformat(row.finished)


def wait_for(found: Callable[[], Any], seconds: float = 30.0) -> Any:
    deadline = time.monotonic() + seconds
    while not (value := found()):
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.05)
    return value


def events(api_url: str, suite: str) -> list[dict[str, Any]]:
    """The regressions of a suite that the server knows of."""
    answer = httpx.post(
        f"{api_url}/events/filter",
        json={"filter": {"event": {"name": [REGRESSION_EVENT]}}, "limit": 50},
        timeout=30,
    )
    answer.raise_for_status()
    return [one for one in answer.json()["events"] if one["payload"]["suite"] == suite]


def test_a_suite_goes_on_after_failures_and_runs_one_at_a_time_on_a_host(
    tmp_path: Path, home: Path
) -> None:
    good = experiment(tmp_path / "good")
    failing = experiment(tmp_path / "failing")
    (failing.parent / "fail").touch()
    suite = write_suite(
        tmp_path,
        [
            {"name": "failing", "experiment": "failing/experiment.yaml", "host": "gpu-a"},
            {"name": "good", "experiment": "good/experiment.yaml", "host": "gpu-a"},
            {
                "name": "refused",
                "experiment": "good/experiment.yaml",
                "params": {"sizee": 7},
            },
            {
                "name": "other",
                "experiment": "good/experiment.yaml",
                "params": {"size": 7},
                "replicates": 2,
            },
        ],
        hosts={"gpu-a": {}},
    )
    assert good.exists()
    state = run(suite, home)
    assert state.is_failed()
    assert "2 of 4 entries without a result" in state.message
    rows = {row.entry: row for row in rows_of(suite, home)}
    assert {name: row.status for name, row in rows.items()} == {
        "failing": "FAILED",
        "good": "COMPLETED",
        "refused": "REFUSED",
        "other": "COMPLETED",
    }
    assert "no such index" in rows["failing"].error
    assert not rows["failing"].figures
    assert f"{suite}:1: entries.refused.params.sizee" in rows["refused"].error
    assert "did you mean `size`" in rows["refused"].error
    assert set(rows["good"].figures) == {"size=5", "size=9"}
    assert set(rows["other"].figures) == {"size=7", "size=9"}
    assert rows["other"].figures["size=7"]["t_ms"].n == 2
    # On one host the second begins when the first has ended; the other host didn't wait.
    assert times(home, rows["good"])[0] >= times(home, rows["failing"])[1]
    assert times(home, rows["other"])[0] < times(home, rows["good"])[1]
    page = SuiteFolder(home, json.loads(suite.read_text())["name"]).dashboard.read_text()
    for name in rows:
        assert f'<h2 id="{name}">' in page


def test_a_night_is_compared_with_the_last_reliable_run_of_its_own_entry(
    tmp_path: Path, home: Path
) -> None:
    """A neighbour with another parameter neither stands in its way nor is its baseline."""
    size = {"name": "t_ms", "unit": "MB", "tolerance": 0.5}
    experiment(tmp_path / "e", metrics=[size], replication={"replicates": 5, "warmup": 0})
    suite = write_suite(
        tmp_path,
        [
            {"name": "e", "experiment": "e/experiment.yaml"},
            {"name": "f", "experiment": "e/experiment.yaml", "params": {"size": 7}},
        ],
    )
    for _ in range(3):
        assert run(suite, home).is_completed()
    for entry, arm in (("e", "size=5"), ("f", "size=7")):
        first, second, third = (row for row in rows_of(suite, home) if row.entry == entry)
        assert "no RELIABLE run" in first.against.why
        assert second.tag == "RELIABLE"
        assert third.against.run_id == second.run_id
        assert {one["metric"] for one in third.against.decisions} == {"t_ms"}
        assert {one["arm"] for one in third.against.decisions} == {arm, "size=9"}


def seed_nights(suite: Path, home: Path, nights: int, factor: float) -> NightRow:
    """Copy the one row that there is to so many earlier nights, with other figures."""
    folder = SuiteFolder(home, json.loads(suite.read_text())["name"])
    (row,) = folder.rows()
    ground = folder.ground(row.environment)
    folder.rows_file.unlink()
    for number in range(nights):
        wiggle = 1 + 0.002 * ((number * 7) % 5 - 2)
        figures = {
            arm: {
                name: Figure(figure.mean * factor * wiggle, None, figure.n)
                for name, figure in metrics.items()
            }
            for arm, metrics in row.figures.items()
        }
        night = f"2026-01-{number + 1:02d}"
        folder.append(replace(row, night=night, figures=figures, commit=f"c{number}"), ground)
    return row


def test_a_regression_is_told_once_as_an_event_that_says_what_to_do(
    tmp_path: Path, home: Path, prefect_api: str
) -> None:
    experiment(tmp_path / "e", replication={"replicates": 2, "warmup": 0})
    suite = write_suite(tmp_path, [{"name": "e", "experiment": "e/experiment.yaml"}])
    name = json.loads(suite.read_text())["name"]
    assert run(suite, home).is_completed()
    earlier = seed_nights(suite, home, SEEDED, factor=0.7)
    states = [run(suite, home) for _ in range(CHANGED_NIGHTS)]
    assert [state.name for state in states] == [
        *["Completed"] * (CHANGED_NIGHTS - 1),
        "Regressed",
    ]
    told = wait_for(lambda: events(prefect_api, name))
    assert {event["payload"]["arm"] for event in told} == {"size=5", "size=9"}
    event = next(one for one in told if one["payload"]["arm"] == ARM)
    payload = event["payload"]
    assert payload["before"] == pytest.approx(0.7 * earlier.figures[ARM]["t_ms"].mean, rel=0.01)
    assert payload["nights_after"] == CHANGED_NIGHTS
    assert payload["run_after"] == rows_of(suite, home)[-1].run_id
    assert payload["look_closer"].startswith(f"benchwright compare {payload['run_before']} ")
    assert event["resource"]["prefect.resource.id"].startswith(f"benchwright.suite.{name}.e.t_ms")
    assert any(one["prefect.resource.role"] == "flow-run" for one in event["related"])
    assert run(suite, home).name == "Completed"
    assert len(events(prefect_api, name)) == len(told), "the next night isn't news again"
    with get_client(sync_client=True) as client:
        artifacts = client.read_artifacts(limit=200)
    summaries = [one for one in artifacts if one.key == f"nightly-{name}"]
    summary = max(summaries, key=lambda one: str(one.created))
    assert "worse" in str(summary.data)


def test_only_what_is_asked_for_runs_and_a_wrong_name_is_refused(
    tmp_path: Path, home: Path
) -> None:
    experiment(tmp_path / "e")
    suite = write_suite(
        tmp_path,
        [
            {"name": "one", "experiment": "e/experiment.yaml"},
            {"name": "two", "experiment": "e/experiment.yaml", "params": {"size": 7}},
        ],
    )
    state = run(suite, home, only=("tow",))
    assert state.name == "BadInput"
    assert "did you mean `two`" in state.message
    assert run(suite, home, only=("two",)).is_completed()
    assert [row.entry for row in rows_of(suite, home)] == ["two"]
    missing = run(tmp_path / "suit.yaml", home)
    assert missing.name == "BadInput"
    assert "did you mean" in missing.message


def test_a_suite_that_runs_already_is_not_started_beside_it(tmp_path: Path, home: Path) -> None:
    experiment(tmp_path / "e")
    suite = write_suite(tmp_path, [{"name": "one", "experiment": "e/experiment.yaml"}])
    with SuiteFolder(home, json.loads(suite.read_text())["name"]).lock():
        state = run(suite, home)
    assert state.name == "NotStarted"
    assert "is running already" in state.message
    assert not rows_of(suite, home)


@pytest.mark.parametrize("hosts", [1, 2])
def test_a_signal_ends_the_run_in_progress_and_skips_the_rest(
    tmp_path: Path, home: Path, hosts: int
) -> None:
    require(
        threading.current_thread() is threading.main_thread(), "signals reach the main thread only"
    )
    for name in ("hangs", "other"):
        (tmp_path / name).mkdir()
        experiment(tmp_path / name)
        (tmp_path / name / "hang").touch()
    entries: list[dict[str, Any]] = [
        {"name": "hangs", "experiment": "hangs/experiment.yaml"},
        {"name": "after", "experiment": "other/experiment.yaml"},
    ]
    if hosts == 2:
        entries.append({"name": "there", "experiment": "other/experiment.yaml", "host": "gpu-a"})
    suite = write_suite(tmp_path, entries, hosts={"gpu-a": {}})
    child = tmp_path / "hangs" / "child"

    def interrupt() -> None:
        other = tmp_path / "other" / "child"
        wait_for(lambda: child.exists() or other.exists(), 60)
        os.kill(os.getpid(), signal.SIGTERM)

    helper = threading.Thread(target=interrupt)
    helper.start()
    state = run(suite, home)
    helper.join()
    assert state.is_cancelled()
    rows = {row.entry: row for row in rows_of(suite, home)}
    assert rows["hangs"].status == "INTERRUPTED"
    assert rows["after"].status == "SKIPPED"
    if hosts == 2:
        assert rows["there"].status == "INTERRUPTED"
    for file in tmp_path.glob("*/child"):
        assert not Path(f"/proc/{file.read_text().strip()}").exists()

"""Ending a run whose engine was killed."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from benchwright.record.store import RunStore
from deployments.local import client
from deployments.local.state import LocalHome, read_engine
from tests.cli.conftest import experiment
from tests.cli.support import BENCHWRIGHT, benchwright, json_of

pytestmark = pytest.mark.slow


@pytest.fixture
def own_home(tmp_path: Path) -> Iterator[Path]:
    """A home of its own: the shared engine is others', too."""
    home = tmp_path / "home"
    yield home
    client.down(home, cancel_runs=True)


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


def _kill_engines(home: Path) -> None:
    place = LocalHome(home)
    for key in place.engine_keys():
        engine = read_engine(place, key)
        assert engine is not None
        os.kill(engine.pid, signal.SIGKILL)
    _until(lambda: all(read_engine(place, key) is None for key in place.engine_keys()))


def test_a_run_whose_engine_was_killed_goes_on_and_is_cancelled_by_its_id(
    tmp_path: Path, own_home: Path
) -> None:
    config = experiment(tmp_path / "experiment")
    (config.parent / "hang").touch()

    def call(*args: str) -> dict[str, object]:
        return json_of(benchwright(*args, "--json", cwd=config.parent, home=own_home))

    run_id = str(call("run", str(config), "--detach")["run_id"])
    child = config.parent / "child"
    _until(lambda: child.exists() and child.read_text().strip() != "")
    _kill_engines(own_home)
    assert call("status")["running"] == [run_id], "it goes on without its engine"
    assert call("cancel", run_id)["status"] == "INTERRUPTED"
    assert RunStore(own_home).open(run_id).owner() is None
    assert _gone(int(child.read_text()))
    assert call("status")["running"] == []


def test_ctrl_c_ends_a_run_whose_engine_was_killed(tmp_path: Path, own_home: Path) -> None:
    config = experiment(tmp_path / "experiment")
    (config.parent / "hang").touch()
    child = config.parent / "child"
    terminal = subprocess.Popen(
        [*BENCHWRIGHT, "run", str(config), "--home", str(own_home)],
        cwd=config.parent,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    _until(lambda: child.exists() and child.read_text().strip() != "")
    _kill_engines(own_home)
    assert terminal.poll() is None, "it still follows"
    terminal.send_signal(signal.SIGINT)
    out, err = terminal.communicate(timeout=60)
    assert terminal.returncode == 130, err
    assert "INTERRUPTED" in out
    assert err.count("build, size=5: built") == 1, "nothing is shown twice"
    assert _gone(int(child.read_text()))

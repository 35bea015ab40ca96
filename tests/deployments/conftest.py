"""Engines and servers under test."""

from __future__ import annotations

import contextlib
import os
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from deployments.local import client, engine, launch
from deployments.local.environment import EngineIdentity
from deployments.local.state import LocalHome, locked

ENTRY = "local_entries:entry"
HERE = Path(__file__).parent
NO_SERVER = "http://127.0.0.1:9/api"

MakeRun = Callable[[Path, str], Path]


@pytest.fixture(autouse=True, scope="session")
def entries_on_the_path() -> Iterator[None]:
    """Engines find `local_entries` as they find a user's own package."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(HERE), prepend=os.pathsep)
        yield


@pytest.fixture
def home(tmp_path: Path) -> Iterator[Path]:
    """A home of its own, with nothing left running at the end."""
    place = tmp_path / "home"
    yield place
    client.down(place, cancel_runs=True)


def start_engine(home: Path, idle_s: float = 600.0) -> client.LocalEngine:
    """An engine without a server: what it does for a run that has no flow needs none."""
    place = LocalHome(home)
    place.prepare()
    identity = EngineIdentity.now(os.environ, extra=ENTRY)
    with locked(place.start_lock):
        place.runs_lock.touch(mode=0o600)
        starting = engine.start(place, identity, NO_SERVER, idle_s, ENTRY)
        launch.wait_ready([starting], client.quiet)
    return client.LocalEngine(place, identity.key, NO_SERVER)


@pytest.fixture(scope="module")
def local(tmp_path_factory: pytest.TempPathFactory) -> Iterator[client.LocalEngine]:
    """An engine that the tests of a module share."""
    # Longer than the 108 bytes that a socket's name may have.
    home = tmp_path_factory.mktemp("h") / ("long-" * 24) / "home"
    yield start_engine(home)
    client.down(home, cancel_runs=True)


def make_run(home: Path, action: str) -> Path:
    """A run's folder for `local_entries`."""
    run_dir = home / "runs" / f"2026-01-01_test_{uuid.uuid4().hex[:6]}"
    run_dir.mkdir(parents=True)
    (run_dir / "action").write_text(action)
    return run_dir


def submit(local: client.LocalEngine, action: str, **options: object) -> client.Submission:
    """A run of `local_entries`, handed over."""
    run_dir = make_run(local.home.root, action)
    return client.submit(local, run_dir, entry=ENTRY, **options)  # type: ignore[arg-type]


def run(local: client.LocalEngine, action: str, **options: object) -> tuple[Path, client.Ended]:
    """A run of `local_entries` from hand-over to end."""
    submission = submit(local, action, **options)
    with contextlib.closing(submission):
        return submission.run_dir, submission.follow()


def wait_until(fact: Callable[[], bool], within_s: float = 10.0) -> None:
    """Wait for a fact; fails where it doesn't come true."""
    deadline = time.monotonic() + within_s
    while not fact():
        assert time.monotonic() < deadline, f"not so within {within_s} s: {fact}"
        time.sleep(0.005)


def lives(pid: int) -> bool:
    """Whether a process lives (a zombie doesn't)."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except FileNotFoundError:
        return False
    return text.rpartition(")")[2].split()[0] != "Z"

"""Real parts that tests of several rooms share."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import settings

from deployments.local import client
from deployments.local.state import locked, open_lock, take

# Prefect's client sends usage data when it is imported, unless it finds this.
os.environ["DO_NOT_TRACK"] = "1"

# The same examples each time, where a change is judged: what random ones find is no fault of its
# own. Everywhere else they are drawn anew.
settings.register_profile("ci", derandomize=True)
if os.environ.get("BENCHWRIGHT_CI"):
    settings.load_profile("ci")

# A session that was started in the background of a script has Ctrl-C ignored, and hands that on to
# every command that it tests.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

TEST_IDLE_S = 600.0
"""What a test session starts ends by itself, should the session be killed (seconds)."""


LAST_WORDS_S = 10.0
"""For what flows of a test's process have still to tell a server; one of them may be gone."""


@pytest.fixture(scope="session")
def local_home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A home folder with a real Prefect server, one for all of a session's worker processes.

    A test that hands runs over calls `deployments.local.client.ensure_local(local_home)`, or the
    command line with `--home`; the engine is started by the first that does. The last worker to
    finish ends all of it.
    """
    base = tmp_path_factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        base = base.parent
    home = base / "local-home"
    users = base / "local-home.users"
    with locked(users, shared=True):
        client.ensure_server(home, idle_s=TEST_IDLE_S)
        yield home
        send_last_words()
    fd = open_lock(users)
    try:
        if take(fd):
            client.down(home, cancel_runs=True)
    finally:
        os.close(fd)


def send_last_words() -> None:
    """Send what flows of this process have still to tell their server, while there is one."""
    if "prefect.events.worker" in sys.modules:
        from prefect.events.worker import EventsWorker
        from prefect.logging.handlers import APILogWorker

        EventsWorker.drain_all(timeout=LAST_WORDS_S)
        APILogWorker.drain_all(timeout=LAST_WORDS_S)


@pytest.fixture(scope="session")
def local_api_url(local_home: Path) -> str:
    """Address of that server, for `PREFECT_API_URL`."""
    return client.ensure_server(local_home, idle_s=TEST_IDLE_S)


@pytest.fixture
def prefect_api(local_home: Path, local_api_url: str) -> Iterator[str]:
    """Flows that the test calls in its own process run on that server."""
    from prefect.settings import (
        PREFECT_API_URL,
        PREFECT_FLOWS_HEARTBEAT_FREQUENCY,
        PREFECT_HOME,
        temporary_settings,
    )

    with temporary_settings(
        {
            PREFECT_API_URL: local_api_url,
            PREFECT_HOME: local_home / "prefect",
            PREFECT_FLOWS_HEARTBEAT_FREQUENCY: None,
        }
    ):
        yield local_api_url


@pytest.fixture(autouse=True, scope="session")
def own_settings(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """A developer's own Prefect settings reach no test, and runs elsewhere don't hold one up."""
    names = [name for name in os.environ if name.startswith("PREFECT_")]
    saved = {name: os.environ.pop(name) for name in names}
    base = tmp_path_factory.getbasetemp()
    locks = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "locks"
    locks.mkdir(exist_ok=True)
    os.environ["BENCHWRIGHT_LOCK_DIR"] = str(locks)
    yield
    del os.environ["BENCHWRIGHT_LOCK_DIR"]
    os.environ.update(saved)

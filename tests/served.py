"""A home with its own server, deployed to, and a worker of its pool."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from deployments.local import client
from tests.approvals import Server, until
from tests.cli.support import benchwright

PREFECT = (str(Path(sys.executable).with_name("prefect")),)
IDLE_S = 600.0


class Site:
    """A home of its own, its server, and a worker of its pool."""

    def __init__(self, home: Path, api_url: str) -> None:
        self.home, self.api_url, self.server = home, api_url, Server(api_url)

    def environ(self, **extra: str) -> dict[str, str]:
        """The environment of a user who works with this server."""
        kept = {k: v for k, v in os.environ.items() if not k.startswith(("PREFECT_", "BENCHMARK_"))}
        return kept | {
            "PREFECT_API_URL": self.api_url,
            "PREFECT_HOME": str(self.home / "user"),
            "DO_NOT_TRACK": "1",
            **extra,
        }

    def call(self, *args: str, cwd: Path, **env: str) -> subprocess.CompletedProcess[str]:
        """The command line, with this server named."""
        return benchwright(*args, cwd=cwd, home=self.home, PREFECT_API_URL=self.api_url, **env)

    def prefect(self, *args: str, cwd: Path) -> subprocess.CompletedProcess[str]:
        """Prefect's own command line."""
        return subprocess.run(
            [*PREFECT, *args],
            cwd=cwd,
            env=self.environ(),
            capture_output=True,
            text=True,
            stdin=subprocess.DEVNULL,
            timeout=110,
            check=False,
        )

    def deployment(self, name: str) -> dict[str, Any]:
        """A deployment as the server has it."""
        found = self.server.call(f"/deployments/name/{name}")
        assert isinstance(found, dict)
        return found


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    home = tmp_path_factory.mktemp("site") / "home"
    api_url = client.ensure_server(home, idle_s=IDLE_S)
    yield Site(home, api_url)
    client.down(home, cancel_runs=True)


@pytest.fixture(scope="module")
def deployed(site: Site, tmp_path_factory: pytest.TempPathFactory) -> Site:
    finished = site.call("deploy", cwd=tmp_path_factory.mktemp("deploy"))
    assert finished.returncode == 0, finished.stderr
    return site


@pytest.fixture(scope="module")
def worker(deployed: Site, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    log = tmp_path_factory.mktemp("worker") / "log"
    with log.open("w") as out:
        process = subprocess.Popen(
            [*PREFECT, "worker", "start", "--pool", "benchwright", "--type", "process"],
            cwd=log.parent,
            env=deployed.environ(PREFECT_WORKER_QUERY_SECONDS="1"),
            stdout=out,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    until(lambda: "started" in log.read_text())
    yield deployed
    process.send_signal(signal.SIGINT)
    try:
        process.wait(30)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()

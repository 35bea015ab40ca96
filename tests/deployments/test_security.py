"""Servers that others reach must ask who they are; and a secret that was planted is found nowhere
but where it was put."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, ClassVar

import psutil
import pytest

from benchwright.errors import BadInput, GateRefused
from benchwright.record.run import Status
from benchwright.record.store import RunStore
from deployments.local import client
from deployments.security import Protection, is_loopback, protection, require_protected
from tests.approvals import Server, until
from tests.cli.conftest import experiment
from tests.cli.support import BENCHWRIGHT, benchwright
from tests.support import require

AUTH = "admin:planted-auth-51c9"
SECRET = "planted-secret-83b1"


@pytest.mark.parametrize(
    ("url", "alone"),
    [
        ("http://127.0.0.1:4200/api", True),
        ("http://127.9.9.9:4200/api", True),
        ("http://localhost:4200/api", True),
        ("http://[::1]:4200/api", True),
        ("http://0.0.0.0:4200/api", False),
        ("http://192.168.1.5:4200/api", False),
        ("http://localhost.example.com:4200/api", False),
        ("http://127.0.0.1.example.com/api", False),
        ("http://bench:4200/api", False),
        ("", False),
    ],
)
def test_only_this_machine_reaches_a_loopback_address(url: str, alone: bool) -> None:
    assert is_loopback(url) is alone


def own_address() -> str:
    """An address of this machine that others reach."""
    addresses = [
        entry.address
        for entries in psutil.net_if_addrs().values()
        for entry in entries
        if entry.family is socket.AF_INET and not is_loopback(f"http://{entry.address}")
    ]
    require(bool(addresses), "a network address beside the loopback's")
    return addresses[0]


class _Unprotected(BaseHTTPRequestHandler):
    """Answers as a Prefect server with its default settings does."""

    answers: ClassVar[dict[str, tuple[int, Any]]] = {
        "/api/admin/version": (200, "3.9.1"),
        "/api/csrf-token?client=benchwright": (422, {"detail": "CSRF protection is disabled."}),
    }

    def do_GET(self) -> None:
        status, body = self.answers[self.path]
        self.send_response(status)
        self.end_headers()
        self.wfile.write(json.dumps(body).encode())

    def log_message(self, format: str, *args: Any) -> None: ...


@pytest.fixture
def open_server() -> Iterator[str]:
    """A server without protection, at an address that others reach."""
    address = own_address()
    server = ThreadingHTTPServer((address, 0), _Unprotected)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://{address}:{server.server_port}/api"
    server.shutdown()
    server.server_close()
    thread.join()


def test_an_unprotected_server_is_refused_with_what_is_missing(open_server: str) -> None:
    with pytest.raises(GateRefused) as refused:
        require_protected(open_server)
    assert [row.field for row in refused.value.differences] == [
        "PREFECT_SERVER_API_AUTH_STRING",
        "PREFECT_SERVER_API_CSRF_PROTECTION_ENABLED",
    ]
    assert "--insecure" in str(refused.value)


def test_it_is_used_where_somebody_says_so_and_that_is_said(open_server: str) -> None:
    assert require_protected(open_server, insecure=True) is True


def test_every_verb_that_speaks_to_it_is_refused(open_server: str, tmp_path: Path) -> None:
    config = str(experiment(tmp_path))
    for verb in (("deploy",), ("run", config)):
        finished = benchwright(*verb, cwd=tmp_path, home=tmp_path, PREFECT_API_URL=open_server)
        assert finished.returncode == 3, finished.stderr
        assert "isn't protected" in finished.stderr


def test_a_server_that_is_not_there_is_said_in_a_sentence() -> None:
    with pytest.raises(BadInput, match="no Prefect server answers"):
        require_protected("http://server.invalid:4200/api")


@pytest.fixture(scope="module")
def protected(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A real Prefect server with its protection on, at an address that others reach."""
    folder = tmp_path_factory.mktemp("protected")
    address = own_address()
    with socket.socket() as probe:
        probe.bind((address, 0))
        port = probe.getsockname()[1]
    kept = {k: v for k, v in os.environ.items() if not k.startswith("PREFECT_")}
    with (folder / "log").open("w") as log:
        process = subprocess.Popen(
            [
                *(sys.executable, "-m", "prefect", "server", "start"),
                *("--host", address, "--port", str(port), "--no-services"),
            ],
            env=kept
            | {
                "PREFECT_HOME": str(folder),
                "PREFECT_SERVER_API_AUTH_STRING": AUTH,
                "PREFECT_SERVER_API_CSRF_PROTECTION_ENABLED": "true",
                "DO_NOT_TRACK": "1",
                "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
            },
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )

    def answers() -> bool:
        assert process.poll() is None, (folder / "log").read_text()
        try:
            return protection(f"http://{address}:{port}/api", AUTH).auth
        except BadInput:
            return False

    until(answers, 100)
    yield f"http://{address}:{port}/api"
    os.killpg(process.pid, signal.SIGTERM)
    process.wait(30)


@pytest.mark.slow
def test_a_protected_server_is_seen_to_be_one_and_used(protected: str, tmp_path: Path) -> None:
    assert protection(protected, AUTH) == Protection(auth=True, csrf=True)
    assert require_protected(protected, AUTH) is False
    finished = benchwright(
        "deploy",
        cwd=tmp_path,
        home=tmp_path,
        PREFECT_API_URL=protected,
        PREFECT_API_AUTH_STRING=AUTH,
    )
    assert finished.returncode == 0, finished.stderr
    assert AUTH not in finished.stdout + finished.stderr
    again = benchwright(
        "deploy", "--check", cwd=tmp_path, home=tmp_path,
        PREFECT_API_URL=protected, PREFECT_API_AUTH_STRING=AUTH,
    )  # fmt: skip
    assert again.returncode == 0, again.stdout


@pytest.mark.slow
def test_without_its_password_nothing_is_done(protected: str, tmp_path: Path) -> None:
    finished = benchwright("deploy", cwd=tmp_path, home=tmp_path, PREFECT_API_URL=protected)
    assert finished.returncode == 2, finished.stderr
    assert "PREFECT_API_AUTH_STRING" in finished.stderr
    assert "Traceback" not in finished.stderr


# A planted secret.

HOLDER = """#!/bin/sh
test "$TOKEN" = "$(cat expected)" || exit 9
touch reached
while test -f hold; do sleep 0.05; done
echo "{\\"t_ms\\": 1.$1, \\"effective\\": {\\"size\\": $1}}"
"""


def command_lines() -> str:
    """The arguments of every process that can be seen."""
    found = []
    for process in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            found.append(process.read_bytes().decode(errors="replace"))
        except OSError:
            continue
    return "\n".join(found)


def everything(server: Server) -> str:
    """All that the server tells of runs: parameters, states, logs, artifacts, events, blocks."""
    said = [
        server.call(f"/{what}/filter", {})
        for what in ("flow_runs", "task_runs", "artifacts", "logs", "deployments", "variables")
    ]
    said.append(server.call("/events/filter", {"limit": 50}))
    said.append(server.call("/block_documents/filter", {}))
    return json.dumps(said)


@pytest.mark.slow
def test_a_secret_that_a_stage_is_handed_is_found_nowhere_else(
    tmp_path: Path, local_home: Path, local_api_url: str
) -> None:
    server = Server(local_api_url)
    script = tmp_path / "holder.sh"
    script.write_text(HOLDER)
    script.chmod(0o755)
    (tmp_path / "expected").write_text(SECRET)
    (tmp_path / "hold").touch()
    config = experiment(
        tmp_path,
        stages=[
            {
                "name": "build",
                "kind": "prep",
                "cmd": 'test "$TOKEN" = "$(cat expected)" && echo {size} > {index}',
                "produces": ["index"],
                "env": {"TOKEN": None},
            },
            {
                "name": "search",
                "kind": "measure",
                "needs": ["build"],
                "cmd": "./holder.sh {size}",
                "metrics_from": {"stdout": True},
                "env": {"TOKEN": None},
            },
        ],
        replication={"replicates": 1, "warmup": 0},
    )
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("PREFECT_", "BENCHMARK_"))}
    process = subprocess.Popen(
        [*BENCHWRIGHT, "run", str(config), "--json"],
        cwd=tmp_path,
        env=kept
        | {
            "BENCHMARK_HOME": str(local_home),
            "TOKEN": SECRET,
            "UNNAMED": SECRET,
            "PREFECT_API_KEY": SECRET,
            "PREFECT_API_AUTH_STRING": f"me:{SECRET}",
        },
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    until((tmp_path / "reached").exists, 90)
    running = command_lines()
    (tmp_path / "hold").unlink()
    out, err = process.communicate(timeout=90)
    assert process.returncode == 0, out + err
    run_id = json.loads(out)["run_id"]
    assert RunStore(local_home).open(run_id).status is Status.COMPLETED
    assert "holder.sh" in running, "the stage was looked at while it ran"
    assert SECRET not in running
    assert SECRET not in out + err
    until(lambda: run_id in everything(server))
    assert SECRET not in everything(server)
    for path in local_home.rglob("*"):
        if path.is_file():
            assert SECRET.encode() not in path.read_bytes(), path


@pytest.mark.slow
def test_what_a_stage_prints_of_its_environment_stays_with_its_owner(
    tmp_path: Path, local_home: Path, local_api_url: str
) -> None:
    """A stage that prints a secret has its log in 0600, and the server is told nothing of it."""
    config = experiment(
        tmp_path,
        stages=[
            {
                "name": "search",
                "kind": "measure",
                "cmd": 'env; echo "{\\"t_ms\\": 1.{size}}"',
                "metrics_from": {"stdout": True},
                "env": {"TOKEN": None},
            }
        ],
        replication={"replicates": 1, "warmup": 0},
    )
    finished = benchwright(
        "run", str(config), "--json", cwd=tmp_path, home=local_home, TOKEN=SECRET
    )
    assert finished.returncode == 0, finished.stderr
    folder = RunStore(local_home).open(json.loads(finished.stdout)["run_id"])
    holding = [
        path
        for path in folder.path.rglob("*")
        if path.is_file() and SECRET.encode() in path.read_bytes()
    ]
    assert holding, "the stage did print it"
    assert {path.parent.name for path in holding} == {"logs"}
    assert {path.stat().st_mode & 0o777 for path in holding} == {0o600}
    assert folder.logs.stat().st_mode & 0o777 == 0o700
    until(lambda: folder.run_id in everything(Server(local_api_url)))
    assert SECRET not in everything(Server(local_api_url))


@pytest.mark.slow
def test_the_engines_own_files_are_for_their_owner_only(local_home: Path) -> None:
    client.ensure_local(local_home)
    assert (local_home / "engine").stat().st_mode & 0o077 == 0, "nobody else gets into the folder"

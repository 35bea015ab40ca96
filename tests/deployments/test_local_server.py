"""The local Prefect server: started once, found again, replaced, ended."""

from __future__ import annotations

import json
import os
import signal
import socket
import sqlite3
import subprocess
import sys
import urllib.request
from pathlib import Path
from typing import Any

import pytest

from benchwright.errors import BenchwrightError
from deployments.local import client, server, template
from deployments.local.environment import prefect_version, server_environment
from deployments.local.state import (
    LocalHome,
    ServerRecord,
    is_held,
    locked,
    read_server,
    write_record,
)
from tests.deployments.conftest import ENTRY, lives, make_run, wait_until

BOTH = """
import json, sys, time
from pathlib import Path
from deployments.local import client
home, entry = sys.argv[1:]
local = client.ensure_local(Path(home), entry=entry)
found = client.describe(Path(home))
print(json.dumps([local.api_url, local.key, found["server"]["pid"]]))
"""

WITHOUT_PREFECT = """
import json, sys
from pathlib import Path
from deployments.local import client
home, run_dir, entry = sys.argv[1:]
local = client.ensure_local(Path(home), entry=entry)
submission = client.submit(local, Path(run_dir), entry=entry)
ended = submission.follow()
client.describe(Path(home))
print(json.dumps([ended.code, sorted(name for name in sys.modules if name.startswith("prefect"))]))
"""


def get(url: str, body: dict[str, Any] | None = None) -> Any:
    request = urllib.request.Request(
        url,
        data=None if body is None else json.dumps(body).encode(),
        headers={"Content-Type": "application/json"},
    )
    with urllib.request.urlopen(request, timeout=30) as answer:
        return json.loads(answer.read())


def server_of(home: Path) -> ServerRecord:
    record = read_server(LocalHome(home))
    assert record is not None
    return record


def test_a_second_call_finds_the_server_that_is_there(local_home: Path) -> None:
    before = server_of(local_home)
    said: list[str] = []
    assert client.ensure_server(local_home, said.append) == before.api_url
    assert server_of(local_home) == before
    assert said == []


def test_the_server_listens_on_the_loopback_alone(local_home: Path) -> None:
    found = subprocess.run(
        ["ss", "-Hltn", f"sport = :{server_of(local_home).port}"],
        capture_output=True,
        text=True,
        check=False,
    ).stdout.split()
    assert found[3] == f"127.0.0.1:{server_of(local_home).port}"


def test_the_server_we_start_sends_no_telemetry_and_keeps_leases_on_disk(
    local_home: Path, local_api_url: str
) -> None:
    settings = get(f"{local_api_url}/admin/settings")["server"]
    assert settings["analytics_enabled"] is False
    assert settings["ui"]["show_promotional_content"] is False
    assert (
        settings["concurrency"]["lease_storage"]
        == "prefect.server.concurrency.lease_storage.filesystem"
    )
    assert settings["services"]["triggers"]["enabled"] is True
    assert settings["services"]["event_persister"]["enabled"] is True
    # Of the process itself: the address is masked in the answer, the flag is no setting.
    environment = Path(f"/proc/{server_of(local_home).pid}/environ").read_bytes().split(b"\0")
    assert b"DO_NOT_TRACK=1" in environment
    database = f"sqlite+aiosqlite:///{local_home}/prefect/prefect.db"
    assert f"PREFECT_API_DATABASE_CONNECTION_URL={database}".encode() in environment


def test_a_users_own_prefect_settings_do_not_reach_the_server(tmp_path: Path) -> None:
    inherited = {
        "PREFECT_API_DATABASE_CONNECTION_URL": "postgresql://work",
        "PREFECT_SERVER_ANALYTICS_ENABLED": "true",
        "PREFECT_SERVER_API_AUTH_STRING": "user:password",
        "HOME": "/home/user",
        "PYTHONPATH": "relative",
    }
    environment = server_environment(LocalHome(tmp_path), inherited)
    assert environment["PREFECT_API_DATABASE_CONNECTION_URL"].startswith("sqlite+aiosqlite:///")
    assert environment["PREFECT_SERVER_ANALYTICS_ENABLED"] == "false"
    assert "PREFECT_SERVER_API_AUTH_STRING" not in environment
    assert environment["HOME"] == "/home/user"
    assert Path(environment["PYTHONPATH"]).is_absolute()


def test_a_flow_runs_from_a_terminal_that_never_imports_prefect(local_home: Path) -> None:
    run_dir = make_run(local_home, "tasks 20")
    arguments = [str(local_home), str(run_dir), ENTRY]
    ran = subprocess.run(
        [sys.executable, "-c", WITHOUT_PREFECT, *arguments],
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.stderr == ""
    assert json.loads(ran.stdout) == [0, []]
    api_url = server_of(local_home).api_url
    name = {"flow_runs": {"name": {"any_": [run_dir.name]}}}
    (flow_run,) = get(f"{api_url}/flow_runs/filter", name)
    assert flow_run["state_type"] == "COMPLETED"
    # The last events are on their way when the process ends; each of them arrives.
    by_run = {"flow_runs": {"id": {"any_": [flow_run["id"]]}}, "limit": 50}

    def states() -> list[str]:
        return [task["state_type"] for task in get(f"{api_url}/task_runs/filter", by_run)]

    wait_until(lambda: states() == ["COMPLETED"] * 20)


def test_runs_that_start_at_once_do_not_wait_for_a_locked_database(local_home: Path) -> None:
    local = client.ensure_local(local_home, entry=ENTRY)
    submissions = [
        client.submit(local, make_run(local_home, "tasks 20"), entry=ENTRY) for _ in range(5)
    ]
    assert [submission.follow().code for submission in submissions] == [0] * 5
    log = (local_home / "prefect" / "server.log").read_text()
    assert "database is locked" not in log


def test_a_run_that_was_killed_is_crashed_on_prefects_pages(local_home: Path) -> None:
    local = client.ensure_local(local_home, entry=ENTRY)
    submission = client.submit(local, make_run(local_home, "hang"), entry=ENTRY)
    wait_until((submission.run_dir / "begun").exists)
    api_url = local.api_url
    named = {"flow_runs": {"name": {"any_": [submission.run_dir.name]}}}
    wait_until(
        lambda: (
            [task["state_type"] for task in get(f"{api_url}/task_runs/filter", named)]
            == ["RUNNING"]
        )
    )
    os.kill(submission.pid, signal.SIGKILL)
    assert submission.follow() == client.Ended(code=-signal.SIGKILL)
    for kind in ("flow_runs", "task_runs"):
        wait_until(
            lambda kind=kind: (
                [  # type: ignore[misc]
                    one["state_type"] for one in get(f"{api_url}/{kind}/filter", named)
                ]
                == ["CRASHED"]
            )
        )


@pytest.mark.slow
def test_a_run_survives_the_death_of_its_server(home: Path) -> None:
    local = client.ensure_local(home, entry=ENTRY)
    submission = client.submit(local, make_run(home, "steps 3"), entry=ENTRY)
    wait_until((submission.run_dir / "begun").exists)
    killed = server_of(home)
    os.kill(killed.pid, signal.SIGKILL)
    wait_until(lambda: not is_held(LocalHome(home).server_lock))
    wait_until(lambda: read_server(LocalHome(home)) is not None)
    (submission.run_dir / "go").touch()
    assert submission.follow().code == 0
    replaced = server_of(home)
    assert replaced.pid != killed.pid
    assert replaced.port == killed.port
    named = {"flow_runs": {"name": {"any_": [submission.run_dir.name]}}}
    (flow_run,) = get(f"{local.api_url}/flow_runs/filter", named)
    assert flow_run["state_type"] == "COMPLETED"


@pytest.mark.slow
def test_two_first_starts_at_once_start_one_of_each(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    starters = [
        subprocess.Popen(
            [sys.executable, "-c", BOTH, str(home), ENTRY],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for _ in range(2)
    ]
    said = [starter.communicate() for starter in starters]
    assert [err for _, err in said] == ["", ""]
    first, second = (json.loads(out) for out, _ in said)
    assert first == second
    assert len(client.describe(home)["engines"]) == 1

    # A server that was killed is replaced, on the port that open pages know.
    killed = server_of(home)
    os.kill(killed.pid, signal.SIGKILL)
    wait_until(lambda: not is_held(LocalHome(home).server_lock))
    said_now: list[str] = []
    local = client.ensure_local(home, said_now.append, entry=ENTRY)
    replaced = server_of(home)
    assert replaced.pid != killed.pid
    assert local.api_url == killed.api_url
    assert any("Prefect server" in text for text in said_now)

    # So is one that doesn't answer, though it lives.
    os.kill(replaced.pid, signal.SIGSTOP)
    os.utime(LocalHome(home).server_record, (0, 0))
    monkeypatch.setattr(server, "HEALTH_S", 0.5)
    said_now.clear()
    client.ensure_server(home, said_now.append)
    monkeypatch.undo()
    assert server_of(home).pid != replaced.pid
    assert any("does not answer" in text for text in said_now)
    replaced = server_of(home)

    # One of another version of Prefect is replaced while it lives; this one ends by itself.
    old = ServerRecord(
        pid=replaced.pid,
        born=replaced.born,
        port=replaced.port,
        version="3.0.0",
        host=replaced.host,
    )
    write_record(LocalHome(home).server_record, old)
    client.ensure_server(home, idle_s=0.5)
    current = server_of(home)
    assert current.pid != replaced.pid
    assert current.version == prefect_version()
    wait_until(lambda: not lives(replaced.pid))
    wait_until(lambda: not lives(current.pid))
    wait_until(lambda: not is_held(LocalHome(home).server_lock))


@pytest.mark.slow
def test_down_leaves_no_process(home: Path) -> None:
    local = client.up(home, entry=ENTRY)
    found = client.describe(home)
    assert found["keep"] is True
    pids = [found["server"]["pid"], found["engines"][0]["pid"]]
    assert client.down(home) == 2
    assert [pid for pid in pids if lives(pid)] == []
    found = client.describe(home)
    assert (found["server"], found["engines"], found["keep"]) == (None, [], False)
    with pytest.raises(OSError):
        client.connect(local.home, local.key)


def test_a_port_that_was_taken_meanwhile_is_not_asked_for_again(tmp_path: Path) -> None:
    place = LocalHome(tmp_path)
    place.prepare()
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        write_record(place.server_record, ServerRecord(1, 1, port, "3", "here"))
        with server.bind_port(place) as listener:
            assert listener.getsockname()[0] == "127.0.0.1"
            assert listener.getsockname()[1] != port


def test_a_stranger_on_the_port_is_not_taken_for_a_server() -> None:
    with socket.create_server(("127.0.0.1", 0)) as stranger:
        port = stranger.getsockname()[1]
        assert not server.is_healthy(port, within_s=0.05)
    assert not server.is_healthy(port)


def test_a_home_whose_server_runs_on_another_machine_is_refused(tmp_path: Path) -> None:
    place = LocalHome(tmp_path)
    place.prepare()
    record = ServerRecord(1, 1, 4200, prefect_version(), "another-machine")
    write_record(place.server_record, record)
    with (
        locked(place.server_lock),
        pytest.raises(BenchwrightError, match="runs on another machine"),
    ):
        client.ensure_server(tmp_path)


@pytest.mark.slow
def test_a_server_that_cannot_start_says_why(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place = LocalHome(home)
    place.prepare()
    place.database.mkdir()
    with pytest.raises(BenchwrightError, match="Prefect server did not start") as caught:
        client.ensure_server(home)
    assert "unable to open database file" in place.server_log.read_text()
    assert caught.value.where is not None
    assert caught.value.where.file == place.server_log


def test_a_damaged_template_is_not_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    database = tmp_path / "prefect.db"
    assert template.copy_to(database) is False
    template.place().parent.mkdir(parents=True)
    template.place().write_bytes(b"SQLite format 3\0" + b"garbage" * 1000)
    assert template.copy_to(database) is False
    assert list(tmp_path.glob("*.db*")) == []
    template.place().unlink()
    with sqlite3.connect(template.place()) as kept:
        kept.execute("CREATE TABLE alembic_version (version_num TEXT)")
        kept.execute("INSERT INTO alembic_version VALUES ('abc')")
    kept.close()
    assert template.copy_to(database) is True
    with sqlite3.connect(database) as made:
        assert made.execute("SELECT version_num FROM alembic_version").fetchall() == [("abc",)]
    made.close()

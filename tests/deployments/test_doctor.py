"""What doctor says of a server and an engine, on real ones."""

from __future__ import annotations

import json
import os
import signal
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from benchwright.planning.health.check import Check, Examination, Place, State, examine
from benchwright.record.run import Status
from benchwright.record.store import RunFolder
from deployments import doctor
from deployments.local import client, protocol
from deployments.local.environment import EngineIdentity
from deployments.local.state import LocalHome, read_engine, read_server
from deployments.security import Protection
from tests.deployments.conftest import lives, start_engine, wait_until
from tests.record.test_store import finish, start

pytestmark = pytest.mark.slow

IDLE_S = 600.0


def look(
    home: Path,
    checks: tuple[Examination[Place], ...],
    name: str,
    *,
    fix: bool = False,
    **environ: str,
) -> Check:
    """One check."""
    wanted = [one for one in checks if one.name == name]
    (check,) = examine(Place(home, {**os.environ, **environ}), wanted, fix=fix)
    return check


def test_where_nothing_is_up_nothing_is_wrong_and_nothing_is_made(tmp_path: Path) -> None:
    home = tmp_path / "home"
    for name in ("server", "engine"):
        assert look(home, doctor.LOCAL, name).seen.state is State.OK
    assert not home.exists()


# Engines


def test_an_engine_that_answers_is_fine_one_of_older_code_is_retired(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    local = start_engine(home)
    assert look(home, doctor.LOCAL, "engine").seen.sentence == "1 engine(s) up"
    now = EngineIdentity(code="newer", key="newer")
    monkeypatch.setattr(EngineIdentity, "now", lambda *_args, **_options: now)
    seen = look(home, doctor.LOCAL, "engine").seen
    assert (seen.state, "older code" in seen.sentence) == (State.WARNING, True)
    look(home, doctor.LOCAL, "engine", fix=True)
    wait_until(lambda: read_engine(local.home, local.key) is None)
    assert look(home, doctor.LOCAL, "engine").seen.state is State.OK


def test_an_engine_that_does_not_answer_is_broken_and_replaced(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    local = start_engine(home)
    record = read_engine(local.home, local.key)
    assert record is not None
    monkeypatch.setattr(protocol, "ANSWER_S", 0.2)
    os.kill(record.pid, signal.SIGSTOP)
    seen = look(home, doctor.LOCAL, "engine").seen
    assert (seen.state, str(record.pid) in seen.sentence) == (State.BROKEN, True)
    check = look(home, doctor.LOCAL, "engine", fix=True)
    assert (check.seen.state, check.mended.startswith("ended 1")) == (State.OK, True)
    assert not lives(record.pid)


# The server that is named


def test_a_named_server_is_asked_for_its_version(
    local_api_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def seen(url: str) -> Any:
        return look(tmp_path, doctor.NAMED_SERVER, "server", PREFECT_API_URL=url).seen

    assert seen(local_api_url).state is State.OK
    nowhere = seen("http://127.0.0.1:9/api")
    assert (nowhere.state, nowhere.command) == (State.BROKEN, "curl http://127.0.0.1:9/api/health")
    assert seen(f"{local_api_url}/nonsense").state is State.BROKEN
    monkeypatch.setattr(doctor, "prefect_version", lambda: "0.0.1")
    other = seen(local_api_url)
    assert other.state is State.WARNING
    assert other.command.startswith("pip install prefect==3")


@pytest.mark.parametrize(
    ("url", "found", "state"),
    [
        ("http://127.0.0.1:4200/api", Protection(auth=False, csrf=False), State.OK),
        ("http://bench.example:4200/api", Protection(auth=True, csrf=True), State.OK),
        ("http://bench.example:4200/api", Protection(auth=True, csrf=False), State.BROKEN),
        ("http://bench.example:4200/api", Protection(auth=False, csrf=False), State.BROKEN),
    ],
)
def test_a_server_that_others_reach_has_to_ask_who_they_are(
    url: str, found: Protection, state: State, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(doctor, "protection", lambda *_: found)
    seen = look(tmp_path, doctor.NAMED_SERVER, "protection", PREFECT_API_URL=url).seen
    assert seen.state is state
    if not found.csrf and state is State.BROKEN:
        assert "CSRF" in seen.command


# The local server


@pytest.fixture(scope="module")
def own(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A home with a server that no other test uses: its limits are set to nobody here."""
    home = tmp_path_factory.mktemp("doctor") / "home"
    client.ensure_server(home, idle_s=IDLE_S)
    yield home
    client.down(home, cancel_runs=True)


@pytest.fixture
def at_own_server(own: Path) -> Iterator[str]:
    """Prefect's settings name that server."""
    from prefect.settings import PREFECT_API_URL, PREFECT_HOME, temporary_settings

    api_url = client.ensure_server(own, idle_s=IDLE_S)
    with temporary_settings({PREFECT_API_URL: api_url, PREFECT_HOME: own / "prefect"}):
        yield api_url


def post(api_url: str, path: str, body: dict[str, Any]) -> Any:
    request = urllib.request.Request(
        f"{api_url}/{path}", json.dumps(body).encode(), {"Content-Type": "application/json"}
    )
    with urllib.request.urlopen(request, timeout=30) as answer:
        return json.loads(answer.read() or b"null")


def test_a_local_server_is_fine_out_of_date_or_silent(
    own: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    api_url = client.ensure_server(own, idle_s=IDLE_S)
    seen = look(own, doctor.LOCAL, "server").seen
    assert (seen.state, api_url in seen.sentence) == (State.OK, True)
    with monkeypatch.context() as patch:
        patch.setattr(doctor, "prefect_version", lambda: "0.0.1")
        assert look(own, doctor.LOCAL, "server").seen.state is State.WARNING
    record = read_server(LocalHome(own))
    assert record is not None
    monkeypatch.setattr("deployments.local.server.HEALTH_S", 0.5)
    monkeypatch.setattr("deployments.local.launch.START_LIMIT_S", 0.5)
    monkeypatch.setattr("deployments.local.server.is_healthy.__defaults__", (0.5,))
    os.kill(record.pid, signal.SIGSTOP)
    assert look(own, doctor.LOCAL, "server").seen.state is State.BROKEN
    monkeypatch.setattr("deployments.local.launch.START_LIMIT_S", 180.0)
    os.utime(LocalHome(own).server_record, (0, 0))  # it is not on its way up any more
    check = look(own, doctor.LOCAL, "server", fix=True)
    assert check.mended.startswith("started it anew")
    assert not lives(record.pid)


def test_a_run_that_prefect_takes_for_running_is_marked(own: Path, at_own_server: str) -> None:
    ended, waiting = start(own), start(own)
    finish(ended)
    flow = post(at_own_server, "flows/", {"name": "benchmark"})["id"]
    for folder in (ended, waiting):
        body = {"flow_id": flow, "name": folder.run_id, "state": {"type": "RUNNING"}}
        post(at_own_server, "flow_runs/", body)
    with waiting.lock():
        seen = look(own, doctor.PAGES, "Prefect's pages").seen
        assert seen.state is State.WARNING
        assert ended.run_id in seen.sentence
        assert waiting.run_id not in seen.sentence
        check = look(own, doctor.PAGES, "Prefect's pages", fix=True)
    assert (check.seen.state, check.mended.startswith("marked 1")) == (State.OK, True)
    named = {"flow_runs": {"name": {"any_": [ended.run_id, waiting.run_id]}}}
    states = {
        row["name"]: row["state_type"] for row in post(at_own_server, "flow_runs/filter", named)
    }
    assert states == {ended.run_id: "CRASHED", waiting.run_id: "RUNNING"}
    waiting.settle()
    look(own, doctor.PAGES, "Prefect's pages", fix=True)


def take_slot(api_url: str, name: str) -> str:
    """A slot of a new limit; the lease's id."""
    post(api_url, "v2/concurrency_limits/", {"name": name, "limit": 1})
    body = {"names": [name], "slots": 1, "mode": "concurrency", "lease_duration": 300.0}
    lease = post(api_url, "v2/concurrency_limits/increment-with-lease", body)["lease_id"]
    assert isinstance(lease, str)
    return lease


def taken(api_url: str, name: str) -> int:
    from prefect.client.orchestration import get_client

    from tasks.limits import read_limit

    with get_client(sync_client=True) as asked:
        found = read_limit(asked, name)
    assert found is not None
    return int(found["active_slots"])


def test_slots_of_a_dead_run_are_found_and_given_back(own: Path, at_own_server: str) -> None:
    from flows.doctor import SLOTS
    from tasks.limits import LEASES

    assert look(own, SLOTS, "leaked slots").seen.state is State.OK
    folder: RunFolder = start(own)
    lease = take_slot(at_own_server, "measure:dead")
    (folder.path / LEASES).write_text(json.dumps(lease) + "\n")
    with folder.lock():
        assert look(own, SLOTS, "leaked slots").seen.state is State.OK, "its run lives"
    seen = look(own, SLOTS, "leaked slots").seen
    assert (seen.state, folder.run_id in seen.sentence) == (State.WARNING, True)
    assert taken(at_own_server, "measure:dead") == 1
    assert look(own, SLOTS, "leaked slots", fix=True).seen.state is State.OK
    assert taken(at_own_server, "measure:dead") == 0
    assert folder.settle() is Status.INTERRUPTED


def test_slots_that_nobody_can_hold_are_found_and_freed(own: Path, at_own_server: str) -> None:
    assert look(own, doctor.PAGES, "held slots").seen.state is State.OK
    take_slot(at_own_server, "gpu:nobody")
    seen = look(own, doctor.PAGES, "held slots").seen
    assert (seen.state, "gpu:nobody" in seen.sentence) == (State.WARNING, True)
    check = look(own, doctor.PAGES, "held slots", fix=True)
    assert (check.seen.state, check.mended) == (State.OK, "freed gpu:nobody")
    assert taken(at_own_server, "gpu:nobody") == 0


def test_a_limit_that_holds_nobody_back_is_broken(
    own: Path, at_own_server: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from flows import doctor as flow_doctor
    from tasks.limits import measure_limit

    monkeypatch.setattr(flow_doctor, "host_name", lambda: "here")
    name = measure_limit("here")
    checks = flow_doctor.SLOTS
    assert look(own, checks, "limits").seen.state is State.OK
    post(at_own_server, "v2/concurrency_limits/", {"name": name, "limit": 1})
    assert f"{name}: 0 of 1" in look(own, checks, "limits").seen.sentence

    def change(**values: Any) -> None:
        request = urllib.request.Request(
            f"{at_own_server}/v2/concurrency_limits/{name}",
            json.dumps(values).encode(),
            {"Content-Type": "application/json"},
            method="PATCH",
        )
        urllib.request.urlopen(request, timeout=30).close()

    change(limit=4)
    seen = look(own, checks, "limits").seen
    assert (seen.state, seen.command) == (State.BROKEN, f"prefect gcl update {name} --limit 1")
    change(limit=1, active=False)
    seen = look(own, checks, "limits").seen
    assert (seen.state, seen.command) == (State.BROKEN, f"prefect gcl enable {name}")


def test_the_flow_of_a_worker_says_what_is_broken(own: Path, at_own_server: str) -> None:
    from flows.doctor import doctor as flow

    folder = start(own)
    folder.lock().release()
    state = flow(home=str(own), return_state=True)
    assert state.is_failed()
    assert "stale runs" in (state.message or "")
    state = flow(home=str(own), fix=True, return_state=True)
    assert state.is_completed(), state.message
    assert folder.status is Status.INTERRUPTED

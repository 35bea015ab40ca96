"""The engine: a process for each run, and nothing of a run in its own."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from benchwright.errors import BenchwrightError
from benchwright.record.run import Status
from benchwright.record.store import UNCLAIMED, RunStore
from deployments.local import client, engine, protocol
from deployments.local.environment import EngineIdentity
from deployments.local.state import LocalHome, birth, read_engine, runs_in_progress
from tests.deployments.conftest import (
    ENTRY,
    lives,
    make_run,
    run,
    start_engine,
    submit,
    wait_until,
)
from tests.report.sample_record import CONFIG, MANIFEST
from tests.support import require


def found_by(local: client.LocalEngine, **options: object) -> dict[str, Any]:
    run_dir, ended = run(local, "describe", **options)
    assert ended.code == 0, (run_dir / "logs" / "flow.log").read_text()
    found: dict[str, Any] = json.loads((run_dir / "found.json").read_text())
    return found


def test_a_run_gives_its_exit_code(local: client.LocalEngine) -> None:
    assert run(local, "give 0")[1] == client.Ended(code=0)
    assert run(local, "give 7")[1] == client.Ended(code=7)


def test_a_run_leaves_by_the_normal_way(local: client.LocalEngine) -> None:
    run_dir, ended = run(local, "leave 4")
    assert ended.code == 4
    assert (run_dir / "left").read_text() == "thread, then exit function"
    assert "printed last" in (run_dir / "logs" / "flow.log").read_text()


def test_a_run_has_the_folder_and_the_environment_of_who_asked(
    local: client.LocalEngine, tmp_path: Path
) -> None:
    odd = "a 'quoted' \"value\" $(id) \n \udcff"
    found = found_by(local, cwd=tmp_path, env={"ODD": odd, "PATH": "/bin"})
    assert found["cwd"] == str(tmp_path)
    assert found["env"]["ODD"] == odd
    assert found["env"]["PATH"] == "/bin"
    assert "HOME" not in found["env"]


def test_a_run_reaches_the_local_server_and_no_other(local: client.LocalEngine) -> None:
    foreign = {
        "PREFECT_API_URL": "https://elsewhere.example/api",
        "PREFECT_API_KEY": "secret",
        "PREFECT_PROFILE": "work",
        "PREFECT_LOGGING_LEVEL": "DEBUG",
    }
    env = found_by(local, env=foreign)["env"]
    assert env["PREFECT_API_URL"] == local.api_url
    assert env["PREFECT_HOME"] == str(local.home.prefect)
    assert "PREFECT_API_KEY" not in env
    assert "PREFECT_PROFILE" not in env
    assert env["PREFECT_LOGGING_LEVEL"] == "DEBUG"
    assert env["DO_NOT_TRACK"] == "1"


def test_a_proxy_is_not_asked_for_the_loopback(local: client.LocalEngine) -> None:
    env = {"HTTPS_PROXY": "http://proxy.example:3128", "NO_PROXY": "intranet"}
    assert found_by(local, env=env)["env"]["NO_PROXY"] == "intranet,127.0.0.1,localhost"
    assert "NO_PROXY" not in found_by(local, env={})["env"]


def test_a_run_has_a_session_of_its_own_and_only_its_own_files(
    local: client.LocalEngine,
) -> None:
    found = found_by(local)
    assert found["session"] == found["pid"]
    assert found["stdin"] == "/dev/null"
    assert found["stdout"].endswith("/logs/flow.log")
    kept = {found["stdin"], found["stdout"], str(local.home.runs_lock)}
    # The listing of the open files is itself one of them while it is made.
    assert {name for name in found["fds"] if not name.startswith("/proc/")} == kept


def test_a_run_has_the_mask_limits_and_processors_of_who_asked(
    local: client.LocalEngine,
) -> None:
    script = (
        "import os, resource, sys; from pathlib import Path\n"
        "from deployments.local import client\n"
        "from deployments.local.state import LocalHome\n"
        "os.umask(0o027); os.sched_setaffinity(0, [min(os.sched_getaffinity(0))])\n"
        "resource.setrlimit(resource.RLIMIT_NOFILE, (200, 200))\n"
        "home, key, run_dir, entry = sys.argv[1:]\n"
        "local = client.LocalEngine(LocalHome(Path(home)), key, 'http://127.0.0.1:9/api')\n"
        "sys.exit(client.submit(local, Path(run_dir), entry=entry).follow().code)\n"
    )
    run_dir = make_run(local.home.root, "describe")
    arguments = [str(local.home.root), local.key, str(run_dir), ENTRY]
    subprocess.run([sys.executable, "-c", script, *arguments], check=True)
    found = json.loads((run_dir / "found.json").read_text())
    assert found["umask"] == 0o027
    assert found["nofile"] == 200
    assert found["processors"] == [min(os.sched_getaffinity(0))]


def test_events_arrive_once_each_and_in_order(local: client.LocalEngine) -> None:
    submission = submit(local, "events 500")
    seen: list[dict[str, Any]] = []
    assert submission.follow(seen.append).code == 0
    submission.detach()
    assert [event["number"] for event in seen] == list(range(500))


def test_who_has_its_answer_does_not_wait_for_the_runs_last_steps(
    local: client.LocalEngine,
) -> None:
    submission = submit(local, "tell leave")
    assert submission.follow(last="all_done") == client.Ended(code=None, told=True)
    assert not (submission.run_dir / "finished").exists()
    (submission.run_dir / "leave").touch()
    assert submission.follow() == client.Ended(code=0)


def test_an_answer_from_before_a_run_was_resumed_is_not_its_answer(
    local: client.LocalEngine,
) -> None:
    run_dir = make_run(local.home.root, "give 3")
    (run_dir / "events.jsonl").write_text('{"kind": "all_done"}\n')
    submission = client.submit(local, run_dir, entry=ENTRY)
    assert submission.follow(last="all_done") == client.Ended(code=3)


def test_five_runs_at_once_each_have_their_own_end(local: client.LocalEngine) -> None:
    codes: dict[int, int | None] = {}

    def follow(number: int) -> None:
        codes[number] = run(local, f"give {number}")[1].code

    threads = [threading.Thread(target=follow, args=[number]) for number in range(5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert codes == {number: number for number in range(5)}


def test_forked_runs_share_no_random_numbers(local: client.LocalEngine) -> None:
    folders = [run(local, "rise")[0] for _ in range(2)]
    first, second = [(folder / "random").read_text().split() for folder in folders]
    assert first[0] != second[0]
    assert first[1] != second[1]


def test_a_mistake_of_the_application_stands_in_the_log_of_the_run(
    local: client.LocalEngine, capfd: pytest.CaptureFixture[str]
) -> None:
    run_dir, ended = run(local, "fail")
    assert ended.code == 1
    assert "a mistake of the application" in (run_dir / "logs" / "flow.log").read_text()
    assert capfd.readouterr() == ("", "")


def test_cancel_interrupts_a_run_as_ctrl_c_would(local: client.LocalEngine) -> None:
    submission = submit(local, "interrupted")
    wait_until((submission.run_dir / "begun").exists)
    submission.cancel()
    assert submission.follow().code == 130
    assert (submission.run_dir / "interrupted").exists()


def test_a_run_that_ignores_signals_is_ended_by_asking_again(local: client.LocalEngine) -> None:
    submission = submit(local, "stubborn")
    wait_until((submission.run_dir / "begun").exists)
    for _ in engine.CANCEL_SIGNALS:
        submission.cancel()
    assert submission.follow().code == -signal.SIGKILL


def test_follow_goes_on_after_an_interruption(local: client.LocalEngine) -> None:
    submission = submit(local, "events 3")

    def interrupt(event: dict[str, Any]) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        submission.follow(interrupt)
    seen: list[dict[str, Any]] = []
    assert submission.follow(seen.append).code == 0
    assert [event["number"] for event in seen] == [1, 2]


def test_a_run_outlives_the_client_that_asked_for_it(local: client.LocalEngine) -> None:
    run_dir = make_run(local.home.root, "wait done")
    script = (
        "import os, sys; from pathlib import Path\n"
        "from deployments.local import client\n"
        "from deployments.local.state import LocalHome\n"
        "home, key, run_dir, entry = sys.argv[1:]\n"
        "local = client.LocalEngine(LocalHome(Path(home)), key, 'http://127.0.0.1:9/api')\n"
        "client.submit(local, Path(run_dir), entry=entry)\n"
        "os.kill(os.getpid(), 9)\n"
    )
    arguments = [str(local.home.root), local.key, str(run_dir), ENTRY]
    died = subprocess.run([sys.executable, "-c", script, *arguments], check=False)
    assert died.returncode == -signal.SIGKILL
    wait_until((run_dir / "begun").exists)
    assert [one["run_id"] for one in client.runs(local.home)] == [run_dir.name]
    watching = client.attach(local.home.root, run_dir.name)
    assert watching is not None
    (run_dir / "done").touch()
    assert watching.follow() == client.Ended(code=0)
    assert (run_dir / "finished").exists()
    assert client.attach(local.home.root, run_dir.name) is None


def test_a_run_is_refused_while_it_is_in_progress(local: client.LocalEngine) -> None:
    first = submit(local, "wait done")
    with pytest.raises(BenchwrightError, match="in progress already"):
        client.submit(local, first.run_dir, entry=ENTRY)
    (first.run_dir / "done").touch()
    assert first.follow().code == 0


@pytest.mark.parametrize(
    "message",
    [
        b"not json\n",
        b"[]\n",
        b'{"v": 1, "do": "run", "run_dir": "/nowhere"}\n',
        b'{"v": 1, "do": "run"}\n',
        b'{"v": 1, "do": "dance"}\n',
        b'{"v": 99, "do": "ping"}\n',
        b'{"v": 1, "do": "cancel", "run_id": "../x"}\n',
    ],
)
def test_nonsense_is_refused_and_the_engine_goes_on(
    local: client.LocalEngine, message: bytes
) -> None:
    with client.connect(local.home, local.key) as connection:
        connection.sendall(message)
        answer = connection.recv(1 << 16)
    assert answer == b"" or json.loads(answer)["event"] == "refused"
    assert client.answers(local.home, local.key)


def test_folder_and_socket_are_closed_to_others(local: client.LocalEngine) -> None:
    assert local.home.engine.stat().st_mode & 0o777 == 0o700
    assert local.address.stat().st_mode & 0o777 == 0o600


def test_another_user_gets_no_answer(local: client.LocalEngine) -> None:
    require(os.geteuid() == 0, "only root can try as another user")
    script = (
        "import os, socket, sys\n"
        "folder, name, user = sys.argv[1:]\n"
        "os.chdir(folder); os.setgroups([]); os.setgid(int(user)); os.setuid(int(user))\n"
        "s = socket.socket(socket.AF_UNIX); s.settimeout(10); s.connect(name)\n"
        's.sendall(b\'{"v": 1, "do": "status"}\\n\'); print(s.recv(100))\n'
    )
    local.home.engine.chmod(0o755)
    local.address.chmod(0o777)
    try:
        answers = {}
        for user in ("0", "65534"):
            arguments = [str(local.home.engine), local.address.name, user]
            asked = subprocess.run(
                [sys.executable, "-c", script, *arguments],
                capture_output=True,
                text=True,
                check=False,
            )
            answers[user] = asked.stdout.strip() or asked.stderr.strip()
    finally:
        local.home.engine.chmod(0o700)
        local.address.chmod(0o600)
    assert '"event": "runs"' in answers["0"]
    # Closed before the request was read, or while it was sent.
    assert answers["65534"] == "b''" or answers["65534"].endswith(
        ("Connection reset by peer", "Broken pipe")
    )


def test_an_engine_of_another_user_is_not_asked(
    local: client.LocalEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(protocol, "peer_user", lambda connection: os.geteuid() + 1)
    run_dir = make_run(local.home.root, "give 0")
    with pytest.raises(PermissionError, match="another user"):
        client.submit(local, run_dir, entry=ENTRY)


def test_an_engine_folder_of_another_user_is_refused(tmp_path: Path) -> None:
    require(os.geteuid() == 0, "only root can make a folder of another user")
    place = LocalHome(tmp_path)
    place.engine.mkdir()
    os.chown(place.engine, 65534, 65534)
    with pytest.raises(BenchwrightError, match="belongs to another user"):
        place.prepare()


def test_a_run_goes_on_when_its_engine_is_killed(home: Path) -> None:
    local = start_engine(home)
    submission = submit(local, "wait done")
    wait_until((submission.run_dir / "begun").exists)
    record = read_engine(local.home, local.key)
    assert record is not None
    os.kill(record.pid, signal.SIGKILL)
    assert submission.follow() == client.Ended(code=None, lost=True)
    assert lives(submission.pid)
    assert runs_in_progress(local.home)
    again = start_engine(home)
    assert again.key == local.key
    (submission.run_dir / "done").touch()
    wait_until((submission.run_dir / "finished").exists)
    wait_until(lambda: not runs_in_progress(local.home))


def test_an_engine_of_older_code_finishes_its_runs_and_takes_no_more(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    old = start_engine(home)
    submission = submit(old, "wait done")
    wait_until((submission.run_dir / "begun").exists)
    monkeypatch.setattr("deployments.local.environment.code_digest", lambda: "changed")
    identity = EngineIdentity.now(os.environ, extra=ENTRY)
    assert identity.key != old.key
    client.retire_outdated(old.home, identity)
    with pytest.raises(BenchwrightError, match="takes no more runs"):
        submit(old, "give 0")
    new = start_engine(home)
    assert run(new, "give 5")[1].code == 5
    (submission.run_dir / "done").touch()
    assert submission.follow().code == 0
    wait_until(lambda: read_engine(old.home, old.key) is None)


def test_an_edited_source_file_changes_the_digest_of_the_code(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = tmp_path / "roomless"
    (package / "inner").mkdir(parents=True)
    (package / "__init__.py").touch()
    source = package / "inner" / "subject.py"
    source.write_text("a = 1\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr("deployments.local.environment.ROOMS", ("roomless",))
    before = EngineIdentity.now({})
    assert EngineIdentity.now({}) == before
    source.write_text("a = 22\n")
    edited = EngineIdentity.now({})
    assert edited.code != before.code
    assert EngineIdentity.now({"PYTHONHASHSEED": "1"}).code == edited.code
    assert EngineIdentity.now({"PYTHONHASHSEED": "1"}).key != edited.key
    assert EngineIdentity.now({"EDITOR": "vi"}) == edited


def test_an_idle_engine_ends_by_itself_unless_it_is_kept(home: Path) -> None:
    local = start_engine(home, idle_s=0.2)
    local.home.keep.touch()
    record = read_engine(local.home, local.key)
    assert record is not None
    assert run(local, "give 0")[1].code == 0
    submission = submit(local, "wait done")
    local.home.keep.unlink()
    os.utime(local.home.runs_lock, (0, 0))
    # A run in progress keeps it, however long ago it began.
    assert client.answers(local.home, local.key)
    (submission.run_dir / "done").touch()
    assert submission.follow().code == 0
    wait_until(lambda: not lives(record.pid))
    assert not local.address.exists()


def test_an_engine_whose_home_was_removed_ends(tmp_path: Path) -> None:
    local = start_engine(tmp_path / "home", idle_s=0.2)
    local.home.keep.touch()
    record = read_engine(local.home, local.key)
    assert record is not None
    (tmp_path / "home").rename(tmp_path / "elsewhere")
    wait_until(lambda: not lives(record.pid))


def test_an_engine_that_cannot_load_the_application_says_why(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tests.deployments.conftest.ENTRY", "no_such_module:entry")
    with pytest.raises(BenchwrightError, match="No module named 'no_such_module'"):
        start_engine(home)


def test_down_refuses_while_a_run_is_in_progress_and_can_cancel_it(home: Path) -> None:
    local = start_engine(home)
    record = read_engine(local.home, local.key)
    assert record is not None
    submission = submit(local, "interrupted")
    wait_until((submission.run_dir / "begun").exists)
    with pytest.raises(client.RunsInProgress, match=submission.run_dir.name):
        client.down(home)
    assert lives(record.pid)
    assert client.down(home, cancel_runs=True) == 1
    assert submission.follow().code == 130
    assert not lives(record.pid)
    assert not lives(submission.pid)
    assert client.down(home) == 0


def test_down_where_nothing_was_started_makes_nothing(tmp_path: Path) -> None:
    assert client.down(tmp_path / "nowhere") == 0
    assert not (tmp_path / "nowhere").exists()


def test_a_process_id_that_was_used_again_is_not_taken_for_the_engine(tmp_path: Path) -> None:
    place = LocalHome(tmp_path)
    place.prepare()
    me = {"pid": os.getpid(), "born": birth(os.getpid()), "key": "k", "code": "c"}
    place.engine_file("k", "json").write_text(json.dumps(me))
    place.engine_file("k", "lock").touch()
    assert read_engine(place, "k") is None


def test_messages_are_put_together_from_any_pieces() -> None:
    lines = protocol.Lines()
    whole = protocol.encode({"a": "\udcff"}) + protocol.encode({"b": 2})
    found = [message for byte in whole for message in lines.feed(bytes([byte]))]
    assert found == [{"a": "\udcff"}, {"b": 2}]


def test_the_kernel_names_the_peer() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        assert protocol.peer_user(ours) == os.geteuid()


def test_a_run_whose_process_ended_before_it_took_it_up_is_settled_at_once(
    local: client.LocalEngine,
) -> None:
    folder = RunStore(local.home.root).create(CONFIG, "test", MANIFEST, config_hash="0" * 64)
    (folder.path / "action").write_text("give 3")
    with contextlib.closing(client.submit(local, folder.path, entry=ENTRY)) as submission:
        assert submission.follow().code == 3
    wait_until(lambda: folder.status is Status.INTERRUPTED)
    assert folder.read().error == UNCLAIMED

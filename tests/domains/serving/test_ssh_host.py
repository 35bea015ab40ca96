"""SSH against a real daemon: each fault in its words, and nothing spoilt by paths or banners."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from benchwright.errors import BadInput
from domains.serving import job
from domains.serving.host import HostRefused, HostUnreachable
from domains.serving.request import AccuracyRequest
from domains.serving.results import Reporter
from domains.serving.runner import AccuracyResult, run_accuracy
from domains.serving.ssh_host import SshHost
from domains.serving.validate import State
from tests.domains.serving import serving_parts as parts
from tests.domains.serving.sshd import Sshd

pytestmark = pytest.mark.real


@pytest.fixture
def host(sshd: Sshd) -> Iterator[SshHost]:
    found = SshHost(sshd.target())
    yield found
    found.close()


def test_a_script_runs_as_the_other_user_and_its_code_and_streams_come_back(
    sshd: Sshd, host: SshHost
) -> None:
    ran = host.run("id -un; echo problem >&2; exit 7")
    assert (ran.code, ran.text, ran.error_text) == (7, f"{sshd.user}\n", "problem")


def test_input_and_output_larger_than_every_buffer_do_not_hang(host: SshHost) -> None:
    data = bytes(range(256)) * 40_000
    assert host.run("cat", stdin=data).stdout == data


def test_a_script_that_passes_its_deadline_is_ended_on_the_host(host: SshHost) -> None:
    ran = host.run("sleep 61.7 & wait", timeout_s=0.5)
    assert ran.code == 124
    assert host.run("pgrep -u $(id -u) -f 'sleep 61.7'").text == ""


def test_files_travel_below_a_folder_with_spaces_and_quotes(host: SshHost, tmp_path: Path) -> None:
    made = host.run("""d=$(mktemp -d "$HOME/it's a \\"path\\" \\$(x).XXXXXX"); echo "$d" """)
    folder = made.text.strip()
    files: dict[str, bytes | Path] = {"a b/'c'.txt": b"\xff\x00 text", "d": b""}
    host.put(files, folder)
    host.get(folder, tmp_path)
    found = {
        str(p.relative_to(tmp_path)): p.read_bytes() for p in tmp_path.rglob("*") if p.is_file()
    }
    assert found == files


def test_a_login_shell_that_prints_a_banner_spoils_neither_output_nor_files(
    sshd: Sshd, host: SshHost, tmp_path: Path
) -> None:
    (sshd.home / ".bash_profile").write_text("seq 20000; echo '=== WELCOME ==='; echo hm >&2\n")
    (sshd.home / ".bashrc").write_text("echo from bashrc\n")
    try:
        ran = host.run("echo out; echo err >&2")
        assert (ran.text, ran.error_text) == ("out\n", "err")
        folder = host.run("mktemp -d").text.strip()
        host.put({"x": b"1"}, folder)
        host.get(folder, tmp_path)
        assert (tmp_path / "x").read_bytes() == b"1"
    finally:
        (sshd.home / ".bash_profile").unlink()
        (sshd.home / ".bashrc").unlink()


def test_a_login_shell_that_ends_is_said(sshd: Sshd, host: SshHost) -> None:
    (sshd.home / ".bash_profile").write_text("echo no entry >&2; exit 3\n")
    try:
        with pytest.raises(HostRefused, match=r"login shell.*ended before our script") as caught:
            host.run("echo hello")
        assert "no entry" in str(caught.value)
    finally:
        (sshd.home / ".bash_profile").unlink()


def fails(sshd: Sshd, tmp_path: Path, **changes: object) -> AccuracyResult:
    asked = parts.request(30000, tmp_path)
    target = asked.target.model_copy(update={"ssh": sshd.target(**changes)})
    result = run_accuracy(asked.model_copy(update={"target": target}), tmp_path / "run")
    assert result.state is State.FAILED
    assert "- State: failed" in (tmp_path / "run" / "accuracy" / "report.md").read_text()
    return result


def test_an_unknown_host_key_is_refused_and_not_added(sshd: Sshd, tmp_path: Path) -> None:
    empty = tmp_path / "known"
    empty.write_text("")
    result = fails(sshd, tmp_path, known_hosts=str(empty))
    assert "is not known" in result.validation.notes[0]
    assert "connect once by hand and compare the key" in result.validation.notes[0]
    assert empty.read_text() == ""


def test_another_host_key_than_the_known_one_is_refused(sshd: Sshd, tmp_path: Path) -> None:
    wrong = tmp_path / "known"
    key = (sshd.folder / "stranger.pub").read_text().split()
    wrong.write_text(f"[127.0.0.1]:{sshd.port} {key[0]} {key[1]}\n")
    result = fails(sshd, tmp_path, known_hosts=str(wrong))
    assert "shows another host key than the one that is known" in result.validation.notes[0]
    assert f"ssh-keygen -R [127.0.0.1]:{sshd.port}" in result.validation.notes[0]


def test_a_key_that_the_host_does_not_know_is_refused(sshd: Sshd, tmp_path: Path) -> None:
    result = fails(sshd, tmp_path, key=str(sshd.folder / "stranger"))
    assert "didn't accept our key" in result.validation.notes[0]
    assert "authorized_keys" in result.validation.notes[0]


def test_a_dead_port_is_unreachable(sshd: Sshd, tmp_path: Path) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        dead = free.getsockname()[1]
    result = fails(sshd, tmp_path, port=dead)
    assert f"nothing accepts connections at 127.0.0.1 port {dead}" in result.validation.notes[0]


def test_a_private_key_that_is_not_there_is_bad_input(sshd: Sshd, tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="the private key isn't there"):
        fails(sshd, tmp_path, key=str(tmp_path / "none"))


def test_a_connection_cut_under_a_script_is_said_and_the_next_one_connects_again(
    sshd: Sshd, host: SshHost
) -> None:
    host.run("true")
    cutter = threading.Timer(0.3, sshd.cut)
    cutter.start()
    begun = time.monotonic()
    with pytest.raises(HostUnreachable, match=r"connection to .* was lost"):
        host.run("sleep 30", timeout_s=60)
    assert time.monotonic() - begun < 10
    assert host.run("echo again").text == "again\n"


def test_a_job_outlives_its_connection_and_is_cancelled_with_nothing_left(
    sshd: Sshd, host: SshHost
) -> None:
    base = host.run("mktemp -d").text.strip()
    # A daemon that left the process group and its parents: only the mark finds it.
    command = "(setsid sleep 62.3 &) ; exec sleep 62.4"
    running = job.new_job(f"{base}/job")
    job.start(host, running, command, owner="", lock="", deadline_s=120)
    sshd.cut()
    seen = job.look(host, running)
    assert seen.status is job.JobStatus.RUNNING
    assert len(host.run("pgrep -u $(id -u) sleep").text.split()) >= 2
    job.cancel(host, running)
    assert host.run("pgrep -u $(id -u) -f 'sleep 62.[34]'").text == ""
    ended = job.look(host, running)
    assert (ended.status, ended.code) == (job.JobStatus.ENDED, 143)


def ssh_request(sshd: Sshd, port: int, tmp_path: Path, **changes: object) -> AccuracyRequest:
    tool = parts.shared_fake_tool(sshd.folder)
    asked = parts.request(
        port,
        tmp_path,
        evaluate__evalscope=tool,
        evaluate__work_root=str(sshd.home / 'it\'s "my" work'),
        **changes,
    )
    return asked.model_copy(
        update={"target": asked.target.model_copy(update={"ssh": sshd.target()})}
    )


def test_a_run_over_ssh_below_a_path_with_spaces_and_quotes_and_behind_a_banner(
    sshd: Sshd, tmp_path: Path
) -> None:
    (sshd.home / ".bash_profile").write_text("echo '# welcome'\n")
    answers = parts.write_gsm8k(tmp_path / "gsm8k") / "test.jsonl"
    try:
        with parts.standin(answers=answers) as server:
            result = run_accuracy(ssh_request(sshd, server.port, tmp_path), tmp_path / "run")
    finally:
        (sshd.home / ".bash_profile").unlink()
    assert result.state is State.SUCCESS, result.validation.notes
    assert result.evaluation is not None
    assert 'it\'s "my" work' in result.evaluation.work_dir
    assert result.measurement is not None
    assert len(result.measurement["items"]["score.gsm8k"]) == 12


def test_a_connection_lost_half_way_is_made_again_and_the_evaluation_found(
    sshd: Sshd, tmp_path: Path
) -> None:
    said: list[str] = []
    answers = parts.write_gsm8k(tmp_path / "gsm8k") / "test.jsonl"
    with parts.standin("slow:0.7", answers=answers) as server:

        def cut_when_busy() -> None:
            while server.completions() < 5:
                time.sleep(0.05)
            sshd.cut()

        cutter = threading.Thread(target=cut_when_busy, daemon=True)
        cutter.start()
        result = run_accuracy(
            ssh_request(sshd, server.port, tmp_path),
            tmp_path / "run",
            reporter=Reporter(say=said.append),
        )
        cutter.join(timeout=5)
        assert server.completions() == 12
    assert result.state is State.SUCCESS, result.validation.notes
    assert any("lost, the evaluation goes on there" in line for line in said)
    assert any("the evaluation is found" in line for line in said)


def test_a_host_that_stays_away_ends_the_run_and_says_where_it_goes_on(
    sshd: Sshd, tmp_path: Path
) -> None:
    answers = parts.write_gsm8k(tmp_path / "gsm8k") / "test.jsonl"
    gone = threading.Event()
    with parts.standin("slow:1.5", answers=answers) as server:
        asked = ssh_request(sshd, server.port, tmp_path, evaluate__reconnect_s=0.5)
        relay = parts.Relay(sshd.port)
        target = asked.target
        assert target.ssh is not None
        ssh = target.ssh.model_copy(update={"port": relay.port})
        known = tmp_path / "known"
        known.write_text(sshd.known_hosts.read_text().replace(f":{sshd.port}", f":{relay.port}"))
        ssh = ssh.model_copy(update={"known_hosts": str(known)})
        asked = asked.model_copy(update={"target": target.model_copy(update={"ssh": ssh})})

        def vanish() -> None:
            while server.completions() < 2:
                time.sleep(0.05)
            relay.close()
            gone.set()

        cutter = threading.Thread(target=vanish, daemon=True)
        cutter.start()
        result = run_accuracy(asked, tmp_path / "run")
        cutter.join(timeout=5)
        assert gone.is_set()
        assert result.state is State.FAILED
        said = "\n".join(result.validation.notes)
        assert "gave no answer for" in said
        assert "may still run there" in said
        # The same run, asked again once the host answers, finds the job and ends well.
        back = asked.target.model_copy(update={"ssh": sshd.target()})
        again = run_accuracy(asked.model_copy(update={"target": back}), tmp_path / "run")
        assert again.state is State.SUCCESS, again.validation.notes
        assert server.completions() == 12

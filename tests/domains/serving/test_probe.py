"""What is read of a server at the point of use, and what is refused."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from domains.serving.host import LocalHost
from domains.serving.probe import Probe, probe
from domains.serving.request import Endpoint, Target
from domains.serving.runner import run_accuracy
from domains.serving.ssh_host import SshHost
from domains.serving.validate import State
from tests.domains.serving import serving_parts as parts
from tests.domains.serving.sshd import Sshd
from tests.support import require


def look(port: int, **changes: object) -> Probe:
    endpoint = Endpoint(port=port, wait_s=5)
    return probe(LocalHost(), Target.model_validate({"endpoint": endpoint, **changes}))


@contextmanager
def repository(folder: Path) -> Iterator[str]:
    """A working copy with one commit on the branch `tuned`; its commit."""

    def git(*words: str) -> str:
        names = ["-c", "user.name=t", "-c", "user.email=t@example.org"]
        done = subprocess.run(
            ["git", *names, *words], cwd=folder, check=True, capture_output=True, text=True
        )
        return done.stdout.strip()

    folder.mkdir()
    git("init", "-q", "-b", "tuned")
    (folder / "engine.py").write_text("x = 1\n")
    git("add", ".")
    git("commit", "-q", "-m", "one")
    yield git("rev-parse", "HEAD")


def test_process_experiment_versions_and_working_copy_are_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("EXP_ID", "exp-42")
    with repository(tmp_path / "engine") as commit, parts.standin() as server:
        seen = look(
            server.port,
            repository=str(tmp_path / "engine"),
            branch="tuned",
            commit=commit[:9],
            tpu_type="v6e-4",
            chips=4,
        )
    assert seen.failures == ()
    assert seen.process is not None
    assert (seen.process.pid, seen.process.found_by) == (server.process.pid, "user")
    assert seen.server.startswith(f"exp-42 (pid {server.process.pid}, started ")
    assert (seen.commit, seen.branch) == (commit, "tuned")
    assert seen.versions["python"] == sys.version.split()[0]
    assert seen.resource == "TPU v6e-4"
    assert seen.hardware == {"TPU type": "v6e-4", "Topology": "unknown", "Chips": "4"}
    # Each field that stays unknown has its line.
    assert "Topology: neither the server's environment nor the host tells it" in seen.notes
    assert "jax: not installed in the environment that the server runs in" in seen.notes


def test_another_commit_or_branch_than_asked_is_refused_and_changes_are_said(
    tmp_path: Path,
) -> None:
    place = tmp_path / "engine"
    with repository(place) as commit, parts.standin() as server:
        (place / "engine.py").write_text("x = 2\n")
        seen = look(server.port, repository=str(place), branch="main", commit="0" * 40)
    assert seen.failures == (
        f"{place} is at commit {commit}, and {'0' * 40} was asked for",
        f"{place} is on branch tuned, and main was asked for",
    )
    assert any("has uncommitted changes" in note for note in seen.notes)


def test_a_repository_that_is_not_there_is_said(tmp_path: Path) -> None:
    with parts.standin() as server:
        seen = look(server.port, repository=str(tmp_path / "nowhere"))
    assert seen.commit == "unknown"
    assert any(note.startswith("repository: ") for note in seen.notes)


@pytest.mark.real
def test_a_port_of_another_user_is_looked_up_by_name_and_with_sudo_where_that_is_allowed(
    sshd: Sshd,
) -> None:
    require(os.geteuid() == 0 and shutil.which("sudo") is not None, "needs root, and sudo")
    rule = Path("/etc/sudoers.d") / sshd.user
    with parts.standin(model="vllm/standin") as server, SshHost(sshd.target()) as host:
        target = Target(endpoint=Endpoint(port=server.port))
        hidden = probe(host, target)
        assert hidden.process is None
        assert any(note.startswith("owner: the port's process belongs") for note in hidden.notes)
        rule.write_text(f"{sshd.user} ALL=(root) NOPASSWD: ALL\n")
        rule.chmod(0o440)
        try:
            seen = probe(host, target)
        finally:
            rule.unlink()
    assert seen.process is not None
    assert (seen.process.pid, seen.process.found_by) == (server.process.pid, "sudo")
    with SshHost(sshd.target()) as host:
        port = server.port
        named = parts.start_server(port=port, model="vllm/standin")
        try:
            seen = probe(host, Target(endpoint=Endpoint(port=port)))
        finally:
            named.process.kill()
            named.process.wait()
    assert seen.process is not None
    assert (seen.process.pid, seen.process.found_by) == (named.process.pid, "name")
    assert any("found by its command line" in note for note in seen.notes)


ENGINE_RUNNER = """
import argparse, json, sys
parser = argparse.ArgumentParser()
for name in ("base-url", "model", "eval-name", "num-threads", "max-tokens", "temperature",
             "num-examples"):
    parser.add_argument(f"--{name}")
args = parser.parse_args()
if "broken" in args.model:
    sys.exit("no data")
stem = f"/tmp/{args.eval_name}_{args.model.replace('/', '_')}"
open(stem + ".json", "w").write(json.dumps({"score": 0.75}))
open(stem + ".html", "w").write("<html></html>")
"""


@pytest.mark.parametrize("model", ["org/engine-works", "org/engine-broken"])
def test_the_engines_own_runner_is_believed_only_where_its_file_is_newer_than_the_start(
    tmp_path: Path, model: str
) -> None:
    runner = tmp_path / "engine" / "test" / "srt" / "run_eval.py"
    runner.parent.mkdir(parents=True)
    runner.write_text(ENGINE_RUNNER)
    old = Path(f"/tmp/gsm8k_{model.replace('/', '_')}.json")
    old.write_text('{"score": 0.99}')
    os.utime(old, (1, 1))
    try:
        with parts.standin(model=model) as server:
            asked = parts.request(
                server.port,
                tmp_path,
                evaluate__datasets=["gsm8k"],
                evaluate__evaluator="run_eval",
                evaluate__run_eval=str(runner),
            )
            result = run_accuracy(asked, tmp_path / "run")
    finally:
        old.unlink()
        old.with_suffix(".html").unlink(missing_ok=True)
    notes = "\n".join(result.validation.notes)
    if model == "org/engine-works":
        assert result.state is State.SUCCESS, notes
        assert result.measurement is not None
        assert result.measurement["metrics"]["score.gsm8k"] == 0.75
        assert "the number of samples can't be verified" in notes
    else:
        assert result.state is State.FAILED
        assert "no report was written" in notes
        assert "no data" in notes
        assert "0.99" not in (tmp_path / "run" / "accuracy" / "report.md").read_text()

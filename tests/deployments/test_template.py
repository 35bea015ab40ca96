"""The process that forks a worker's runs: whom it serves, and how it ends."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from deployments.fleet import flow_run
from deployments.fleet.template import Template, fixed_part

HOLDER = """
import os, sys
from deployments.fleet import template
template.start(os.environ)
print(os.environ[template.TEMPLATE], flush=True)
sys.stdin.read()
"""
"""Stands for a worker: it ends when its standard input does."""


@pytest.fixture(scope="module")
def holder() -> Iterator[tuple[subprocess.Popen[str], str]]:
    """A process with a template, and the template's socket."""
    environ = {name: value for name, value in os.environ.items() if name != "COLUMNS"}
    process = subprocess.Popen(
        [sys.executable, "-c", HOLDER],
        env=environ,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    yield process, process.stdout.readline().strip()
    process.kill()
    process.wait()


@pytest.fixture(autouse=True)
def own_handlers() -> Iterator[None]:
    """What stands for a run sets signal handlers."""
    before = {number: signal.getsignal(number) for number in flow_run.HANDED_ON}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


def test_a_run_is_forked_and_its_exit_code_handed_back(
    holder: tuple[subprocess.Popen[str], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PREFECT__FLOW_RUN_ID", "none")  # Prefect's engine ends with 1
    assert flow_run.forked(holder[1]) == 1


def test_a_run_whose_interpreter_would_start_otherwise_is_not_forked(
    holder: tuple[subprocess.Popen[str], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PREFECT__FLOW_RUN_ID", "none")
    monkeypatch.setenv("PYTHONHASHSEED", "7")
    assert flow_run.forked(holder[1]) is None


def test_without_a_template_a_run_starts_an_interpreter_of_its_own() -> None:
    assert flow_run.forked("") is None
    assert flow_run.forked("benchwright-nobody") is None
    done = subprocess.run(
        [sys.executable, "-m", "deployments.fleet.flow_run"],
        env={**os.environ, flow_run.TEMPLATE: "", "PREFECT__FLOW_RUN_ID": "none"},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 1
    assert "Invalid flow run id" in done.stderr + done.stdout


def test_a_run_of_other_code_than_was_imported_is_not_forked(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ours, theirs = os.pipe()
    with socket.socket(socket.AF_UNIX) as listener:
        made = Template(listener, ours)
        request = {"env": dict(os.environ)}
        assert made._refuses(request) == ""
        monkeypatch.setattr("deployments.fleet.template.code_digest", lambda: "another")
        assert "the code has changed" in made._refuses(request)
        made.close()
    os.close(ours)
    os.close(theirs)


def test_only_what_is_read_at_the_start_decides_whether_it_can_be_forked() -> None:
    assert fixed_part({"PYTHONPATH": "/a", "PREFECT_API_URL": "x", "LANG": "C"}) == {
        "PYTHONPATH": "/a",
        "LANG": "C",
    }


def test_it_ends_with_its_worker_and_leaves_nothing(
    holder: tuple[subprocess.Popen[str], str],
) -> None:
    process, name = holder
    process.kill()
    process.wait()
    deadline = time.monotonic() + 20
    while name in Path("/proc/net/unix").read_text():
        assert time.monotonic() < deadline, "it still listens"
        time.sleep(0.02)
    assert flow_run.forked(name) is None


def test_a_name_that_is_somebody_elses_by_now_is_told_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    name = f"benchwright-test-{os.getpid()}"
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as stranger:
        stranger.bind(flow_run.address(name))
        stranger.listen()
        monkeypatch.setattr(flow_run, "peer_user", lambda _connection: os.geteuid() + 1)
        assert flow_run.forked(name) is None
        heard, _ = stranger.accept()
        with heard:
            assert heard.recv(1) == b""

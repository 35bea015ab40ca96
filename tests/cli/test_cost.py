"""What a run may cost, asked and answered in a terminal."""

from __future__ import annotations

import os
import pty
import select
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from benchwright.planning.quoting import write_quote
from benchwright.record.consent import Consent, read_consent, spent_this_month, write_consent
from benchwright.record.run import Status
from benchwright.record.store import RunFolder, RunStore
from deployments.local import client
from tests.approvals import costly_run, quote
from tests.cli.conftest import experiment
from tests.cli.support import BENCHWRIGHT, benchwright

pytestmark = pytest.mark.slow


@pytest.fixture
def prices(tmp_path: Path) -> str:
    """A price file: this machine costs 36 USD an hour."""
    file = tmp_path / "prices.yaml"
    file.write_text("date: 2026-11\nproviders: {local: {machine_hour: 36}}\n")
    return str(file)


class Terminal:
    """A person at a terminal: what is shown, and what they type."""

    def __init__(self, argv: tuple[str, ...], cwd: Path, env: dict[str, str]) -> None:
        self.pid, self.fd = pty.fork()
        if self.pid == 0:
            os.chdir(cwd)
            os.execve(argv[0], argv, env)
        self.shown = ""

    def wait_for(self, words: str, seconds: float = 60) -> None:
        """Read on until something is shown."""
        end = time.monotonic() + seconds
        start = len(self.shown)
        while words not in self.shown[start:]:
            assert time.monotonic() < end, self.shown
            self._read()

    def type(self, line: str) -> None:
        os.write(self.fd, f"{line}\n".encode())

    def code(self) -> int:
        """Read to the end; returns the exit code."""
        while self._read():
            pass
        return os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])

    def _read(self) -> bool:
        if not select.select([self.fd], [], [], 0.2)[0]:
            return True
        try:
            chunk = os.read(self.fd, 1 << 16)
        except OSError:
            return False
        self.shown += chunk.decode(errors="replace")
        return bool(chunk)


@pytest.fixture
def terminal(tmp_path: Path, home: Path, prices: str) -> Iterator[Terminal]:
    """`benchwright run` of an experiment that costs something, at a terminal."""
    config = experiment(tmp_path, replication={"replicates": 1, "warmup": 0}, budget={"wall_s": 60})
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("PREFECT_", "BENCHMARK_"))}
    env = kept | {"BENCHMARK_HOME": str(home), "BENCHWRIGHT_PRICES": prices, "TERM": "dumb"}
    found = Terminal((*BENCHWRIGHT, "run", str(config)), tmp_path, env)
    yield found
    os.close(found.fd)


def test_enter_refuses_and_nothing_is_started(terminal: Terminal, tmp_path: Path) -> None:
    terminal.wait_for("Approve?")
    assert "this machine" in terminal.shown
    assert "2026-11" in terminal.shown
    terminal.type("")
    assert terminal.code() == 3
    assert "not approved" in terminal.shown
    assert not (tmp_path / "builds.log").exists()


def test_an_approval_is_handed_over_with_name_and_ceiling(
    terminal: Terminal, tmp_path: Path, home: Path
) -> None:
    before = spent_this_month(home)
    terminal.wait_for("Approve?")
    terminal.type("y")
    terminal.wait_for("Your name")
    terminal.type("Ana")
    terminal.wait_for("Ceiling")
    terminal.type("0")
    terminal.wait_for("not in the range")
    terminal.type("1.25")
    assert terminal.code() == 0, terminal.shown
    mine = [f for f in RunStore(home).folders() if f.read(samples=False).cwd == str(tmp_path)]
    consent = read_consent(mine[-1].path)
    assert consent is not None
    assert (consent.who, consent.max_usd, consent.how) == ("Ana", 1.25, "terminal")
    assert spent_this_month(home) > before


def test_unattended_only_what_is_free_or_allowed_starts(
    tmp_path: Path, home: Path, prices: str
) -> None:
    config = str(experiment(tmp_path, budget={"wall_s": 60}))

    def run(*options: str) -> int:
        finished = benchwright(
            "run", config, *options, cwd=tmp_path, home=home, BENCHWRIGHT_PRICES=prices
        )
        assert "Traceback" not in finished.stderr
        return finished.returncode

    assert run() == 3
    assert run("--max-cost", "0.001") == 3
    assert not (tmp_path / "builds.log").exists()
    assert run("--max-cost", "5") == 0


def test_a_run_that_spent_what_was_approved_goes_on_with_a_higher_ceiling(
    tmp_path: Path, home: Path
) -> None:
    config = experiment(tmp_path, replication={"replicates": 3, "warmup": 0})
    script = tmp_path / "search.sh"
    script.write_text(script.read_text().replace("size=$(cut", "sleep 1; size=$(cut"))
    folder = costly_run(tmp_path, home, replication={"replicates": 3, "warmup": 0})
    assert config.is_file()
    write_quote(folder.path, quote(1.5, usd_per_hour=3600.0))  # a dollar a second
    write_consent(folder.path, Consent.now("Ana", 3.0, "terminal"))
    resumed = submit_and_follow(folder, home)
    assert resumed == 5
    assert folder.read().status is Status.ABORTED_GUARDRAIL
    kept = [sample.started for sample in folder.samples() if sample.ok]
    assert kept, "what was finished before the ceiling is kept"
    write_quote(folder.path, quote(1.5, usd_per_hour=1.0))
    finished = benchwright(
        "resume", folder.run_id, "--max-cost", "9", "--json", cwd=tmp_path, home=home
    )
    assert finished.returncode == 0, f"{finished.stdout}\n{finished.stderr}"
    good = [sample.started for sample in folder.samples() if sample.ok]
    assert good[: len(kept)] == kept
    assert len(good) == 6


def submit_and_follow(folder: RunFolder, home: Path) -> int:
    """Run a run that was created, on the local engine; returns its exit code."""
    submission = client.submit(client.ensure_local(home), folder.path)
    submission.follow()
    return folder.settle().exit_code

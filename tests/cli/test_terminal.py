"""What the terminal gets: help, colours, closed pipes, full disks, progress."""

from __future__ import annotations

import os
import pty
import re
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from cli.follow import Progress
from cli.main import call
from tests.cli.support import BENCHWRIGHT

SAMPLE = Path(__file__).parents[1] / "recipes" / "sample" / "config.yaml"
COLOUR = re.compile(rb"\x1b\[[0-9;]*m")


def _on_a_terminal(*args: str, home: Path, **env: str) -> bytes:
    """All that the command writes to a terminal."""
    ours, theirs = pty.openpty()
    environ = {k: v for k, v in os.environ.items() if k not in ("NO_COLOR", "TERM")}
    process = subprocess.Popen(
        [*BENCHWRIGHT, *args],
        stdout=theirs,
        stderr=theirs,
        stdin=subprocess.DEVNULL,
        env=environ | {"BENCHMARK_HOME": str(home), "TERM": "xterm-256color"} | env,
    )
    os.close(theirs)
    written = b""
    try:
        while block := os.read(ours, 65536):
            written += block
    except OSError:  # Linux says EIO where the last writer has gone
        pass
    finally:
        os.close(ours)
        process.wait(timeout=60)
    return written


def test_without_a_verb_there_is_the_help(capsys: pytest.CaptureFixture[str]) -> None:
    assert call([]) == 2
    printed = capsys.readouterr()
    assert printed.err.startswith("Usage: benchwright")
    assert "error" not in printed.err


@pytest.mark.parametrize("args", [("plan", str(SAMPLE)), ("history",), ("plan", "no-such-recipe")])
def test_colours_are_for_a_terminal_without_no_color(args: tuple[str, ...], tmp_path: Path) -> None:
    shutil.copytree(SAMPLE.parent, tmp_path / "sample")
    if args != ("history",):  # an empty history has nothing to colour
        assert COLOUR.search(_on_a_terminal(*args, home=tmp_path / "home"))
    assert not COLOUR.search(_on_a_terminal(*args, home=tmp_path / "home", NO_COLOR="1"))


def test_a_closed_pipe_is_no_error(tmp_path: Path) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    try:
        finished = subprocess.run(
            [*BENCHWRIGHT, "plan", str(SAMPLE), "--home", str(tmp_path)],
            stdout=writing,
            stderr=subprocess.PIPE,
            text=True,
            timeout=60,
            check=False,
        )
    finally:
        os.close(writing)
    assert (finished.returncode, finished.stderr) == (0, "")


def test_a_result_that_the_disk_has_no_room_for_is_said_without_a_traceback(tmp_path: Path) -> None:
    with Path("/dev/full").open("w") as full:
        finished = subprocess.run(
            [*BENCHWRIGHT, "plan", str(SAMPLE), "--home", str(tmp_path)],
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            timeout=60,
            check=False,
        )
    assert finished.returncode == 1
    assert finished.stderr.startswith("error: the output could not be written: No space left")
    assert "Traceback" not in finished.stderr


def test_in_a_log_progress_is_a_line_in_a_while(capsys: pytest.CaptureFixture[str]) -> None:
    with Progress() as progress:
        for _ in range(50):
            progress.on_event({"kind": "waiting", "for": "another run on this machine"})
            progress.on_event({"kind": "replicate_done", "ok": True, "wall_s": 0.1})
    assert capsys.readouterr().err == "waiting for another run on this machine\n"


def test_a_parameter_that_differs_from_the_last_reliable_run_takes_a_reason_on_the_command_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from benchwright.judgement.verdict import Tag
    from benchwright.planning import plan as planning
    from cli.options import resolve_target
    from tests.judgement.views import view

    config = resolve_target(str(SAMPLE), (), None).config
    before = replace(view({"off": [1.0], "on": [1.0]}), config=config, tag=Tag.RELIABLE)
    monkeypatch.setattr(planning, "priors", lambda *_, **__: (before,))
    asked = ["plan", str(SAMPLE), "--home", str(tmp_path), "-p", "n_queries=70"]
    assert call(asked) == 3
    refusal = capsys.readouterr().err
    assert refusal.startswith("error: -p n_queries: n_queries differs from the latest RELIABLE")
    assert "--because" in refusal
    assert call([*asked, "--because", "a longer list of queries"]) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert "justified.n_queries a longer list of queries command line" in said

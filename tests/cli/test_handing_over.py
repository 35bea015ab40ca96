"""A run's command is carried out by a child of the engine that is up: as if it were here."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from benchwright.record.run import Status
from benchwright.record.store import RunStore
from cli import start
from deployments.local import client, protocol
from tests.cli.conftest import experiment
from tests.cli.support import BENCHWRIGHT

PROBE = """
import json, sys
from cli.start import hand_over
code = hand_over(sys.argv[1:])
heavy = sorted(name for name in ("click", "pydantic", "prefect") if name in sys.modules)
print(json.dumps([code, heavy]), file=sys.stderr)
"""


def environment(home: Path, **more: str) -> dict[str, str]:
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("PREFECT_", "BENCHMARK_"))}
    return kept | {"BENCHMARK_HOME": str(home)} | more


def handed_over(home: Path, cwd: Path, *args: str, **more: str) -> tuple[Any, list[str], str]:
    """Exit code (None: not handed over), what was imported here, and standard output."""
    done = subprocess.run(
        [sys.executable, "-c", PROBE, *args],
        cwd=cwd,
        env=environment(home, **more),
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    code, heavy = json.loads(done.stderr.splitlines()[-1])
    return code, heavy, done.stdout


def until(fact: Callable[[], Any], what: str, patience_s: float = 30.0) -> Any:
    end = time.monotonic() + patience_s
    while not (found := fact()):
        assert time.monotonic() < end, what
        time.sleep(0.02)
    return found


def test_a_run_imports_nothing_here_and_prints_here(home: Path, tmp_path: Path) -> None:
    config = experiment(tmp_path / "it is here")
    client.ensure_local(home)  # a test beside this one may have ended the shared engine
    code, imported, printed = handed_over(home, config.parent, "run", config.name, "--json")
    assert (code, imported) == (0, [])
    record = RunStore(home).open(json.loads(printed)["run_id"]).read()
    assert record.status is Status.COMPLETED
    assert record.cwd == str(config.parent)


def test_a_stage_runs_under_the_terminals_own_mask_and_limits(home: Path, tmp_path: Path) -> None:
    config = experiment(
        tmp_path / "x",
        stages=[
            {
                "name": "look",
                "kind": "measure",
                "cmd": 'echo "t_ms: 1"; echo $(umask) $(ulimit -n) > ../seen',
                "metrics_from": {"stdout": True, "format": "key_value", "fields": ["t_ms"]},
            }
        ],
        treatment_variable=None,
        treatment_values=[],
        params={},
        replication={"replicates": 1, "warmup": 0},
    )
    subprocess.run(
        [
            "sh",
            "-c",
            'umask 027; ulimit -Sn 500; exec "$@"',
            "sh",
            *BENCHWRIGHT,
            "run",
            config.name,
        ],
        cwd=config.parent,
        env=environment(home),
        check=True,
        capture_output=True,
    )
    assert (tmp_path / "seen").read_text().split() == ["0027", "500"]


def test_bad_input_has_its_words_and_its_code(home: Path, tmp_path: Path) -> None:
    done = subprocess.run(
        [*BENCHWRIGHT, "run", "nothing.yaml"],
        cwd=tmp_path,
        env=environment(home),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr.startswith("error: nothing.yaml: there is no such file")


@pytest.mark.parametrize(
    ("args", "more"),
    [
        (("run", "x.yaml", "--deployment", "benchmark/benchmark"), {}),
        (("run", "x.yaml", "--deployment=benchmark/benchmark"), {}),
        (("run", "x.yaml"), {"PREFECT_API_URL": "http://127.0.0.1:9/api"}),
        (("run", "--help"), {}),
        (("plan", "x.yaml"), {}),
        (("run", "x.yaml", "--home", "elsewhere"), {}),
        (("run", "x.yaml"), {"PYTHONHASHSEED": "7"}),
        ((), {}),
    ],
    ids=str,
)
def test_what_is_not_this_engines_is_done_here(
    home: Path, tmp_path: Path, args: tuple[str, ...], more: dict[str, str]
) -> None:
    assert handed_over(home, tmp_path, *args, **more)[0] is None


def test_an_engine_that_takes_no_more_commands_is_left_alone(tmp_path: Path) -> None:
    own = tmp_path / "home"
    try:
        engine = client.ensure_local(own)
        client.ask(engine.home, engine.key, {"do": "retire"})
        assert handed_over(own, tmp_path, "run", "x.yaml")[0] is None
    finally:
        client.down(own, cancel_runs=True)


def hanging(home: Path, folder: Path) -> tuple[subprocess.Popen[str], int]:
    """A terminal whose run hangs in its first replicate, and the process that hangs."""
    config = experiment(folder)
    (folder / "hang").touch()
    terminal = subprocess.Popen(
        [*BENCHWRIGHT, "run", config.name],
        cwd=folder,
        env=environment(home),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    child = folder / "child"
    until(lambda: child.exists() and child.read_text().strip(), "a stage that hangs")
    return terminal, int(child.read_text())


def gone(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except OSError:
        return True


def test_ctrl_c_here_ends_the_run_and_what_it_started(home: Path, tmp_path: Path) -> None:
    terminal, child = hanging(home, tmp_path / "experiment")
    terminal.send_signal(signal.SIGINT)
    _, said = terminal.communicate(timeout=60)
    assert terminal.returncode == 130
    assert "ending what was started" in said
    assert gone(child)


def test_ctrl_c_before_anybody_has_the_command_is_no_traceback(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupted(argv: list[str]) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(start, "hand_over", interrupted)
    monkeypatch.setattr(sys, "argv", ["benchwright", "run", "x.yaml"])
    with pytest.raises(SystemExit) as left:
        start.main()
    assert left.value.code == 130
    assert capsys.readouterr().err.startswith("error: interrupted")


def test_a_signal_that_was_to_be_ignored_here_is_ignored(home: Path, tmp_path: Path) -> None:
    config = experiment(tmp_path / "experiment", replication={"replicates": 1, "warmup": 0})
    hold = config.parent / "hold"
    hold.touch()
    script = (config.parent / "search.sh").read_text()
    wait = f"echo here > waits; while test -f {hold}; do sleep 0.02; done\n"
    (config.parent / "search.sh").write_text(script.replace("echo run", f"{wait}echo run", 1))
    terminal = subprocess.Popen(
        ["sh", "-c", 'trap "" INT; exec "$@"', "sh", *BENCHWRIGHT, "run", config.name],
        cwd=config.parent,
        env=environment(home),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    until((config.parent / "waits").exists, "a replicate under way")
    terminal.send_signal(signal.SIGINT)
    hold.unlink()
    assert terminal.wait(60) == 0


def test_a_run_outlives_its_terminal_and_the_command_does_not(home: Path, tmp_path: Path) -> None:
    terminal, child = hanging(home, tmp_path / "experiment")
    before = commands(home)
    assert before
    terminal.kill()
    terminal.communicate(timeout=60)
    until(lambda: len(commands(home)) < len(before), "the command's end")
    assert not gone(child)
    end_the_run(home, tmp_path, child)


def commands(home: Path) -> set[int]:
    """Children of this home's engine that are no runs: terminals' commands."""
    place = client.LocalHome(home)
    runs = {run["pid"] for run in client.runs(place)}
    found: set[int] = set()
    for key in place.engine_keys():
        engine = client.read_engine(place, key)
        if engine is not None:
            listed = Path(f"/proc/{engine.pid}/task/{engine.pid}/children").read_text()
            found |= {int(pid) for pid in listed.split()}
    return {pid for pid in found - runs if not gone(pid)}


def end_the_run(home: Path, folder: Path, child: int) -> None:
    """Find the one run below a folder, which goes on without its terminal, and cancel it."""
    (run,) = [r for r in client.runs(client.LocalHome(home)) if str(folder) in cwd_of(r["pid"])]
    submission = client.attach(home, run["run_id"])
    assert submission is not None
    submission.cancel()
    submission.follow()
    until(lambda: gone(child), "the end of what the run started")


def cwd_of(pid: int) -> str:
    return str(Path(f"/proc/{pid}/cwd").readlink())


def test_a_command_that_is_terminated_dies_of_that_signal(home: Path, tmp_path: Path) -> None:
    terminal, child = hanging(home, tmp_path / "experiment")
    terminal.terminate()
    terminal.communicate(timeout=60)
    assert terminal.returncode == -signal.SIGTERM
    end_the_run(home, tmp_path, child)


def test_a_command_without_its_descriptors_is_refused(home: Path) -> None:
    engine = client.ensure_local(home)
    with client.connect(engine.home, engine.key) as connection:
        connection.sendall(protocol.encode({"v": protocol.VERSION, "do": "talk"}))
        with pytest.raises(client.Refusal, match="three descriptors"):
            client.receive(connection, None)

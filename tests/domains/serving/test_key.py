"""An endpoint that asks for an API key: the key reaches it, and is found nowhere else."""

from __future__ import annotations

import os
import threading
import time
from pathlib import Path

import pytest

from benchwright import BadInput, BenchmarkConfig
from domains.serving.accuracy_domain import AccuracyDomain
from domains.serving.key import hide, hide_in_files, key_of
from domains.serving.request import Endpoint
from domains.serving.runner import run_accuracy
from domains.serving.speed_domain import SpeedDomain
from domains.serving.speed_runner import run_speed
from domains.serving.validate import State
from tests.domains.serving import serving_parts as parts
from tests.domains.serving.sshd import Sshd

VARIABLE = "LAB_KEY"


@pytest.fixture
def answers(tmp_path: Path) -> Path:
    return parts.write_gsm8k(tmp_path / "gsm8k") / "test.jsonl"


class Watch:
    """Looks at the arguments of every process, and at a host's files, as long as a run goes on."""

    def __init__(self, *folders: Path) -> None:
        self.folders = folders
        self.leaks: set[str] = set()
        self.seen: set[str] = set()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._look)

    def __enter__(self) -> Watch:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def _look(self) -> None:
        while not self._stop.is_set():
            for process in Path("/proc").glob("[0-9]*/cmdline"):
                try:
                    line = process.read_bytes().decode(errors="replace").replace("\0", " ")
                except OSError:
                    continue
                self.seen.add(line)
                if parts.SECRET in line:
                    self.leaks.add(line)
            for folder in self.folders:
                try:
                    self.leaks |= {str(path) for path in parts.holding(folder)}
                except OSError:
                    continue
            time.sleep(0.05)

    def saw(self, word: str) -> bool:
        return any(word in line for line in self.seen)


def said(folder: Path) -> str:
    return "\n".join(path.read_text() for path in folder.glob("report.*"))


@pytest.mark.parametrize("evaluator", ["evalscope", "run_eval"])
def test_an_evaluation_hands_the_key_over_and_leaves_it_nowhere(
    tmp_path: Path, answers: Path, locked: str, evaluator: str
) -> None:
    with parts.standin("slow:0.3", answers=answers) as server:
        asked = parts.request(
            server.port,
            tmp_path,
            target__endpoint__key_env=VARIABLE,
            evaluate__evaluator=evaluator,
        )
        with Watch(tmp_path) as watch:
            result = run_accuracy(asked, tmp_path / "run")
    assert result.state is State.SUCCESS, result.validation.notes
    assert watch.saw("run_eval.py" if evaluator == "run_eval" else "with_key.py")
    assert watch.leaks == set()
    assert parts.holding(tmp_path) == []
    assert parts.SECRET not in result.model_dump_json()


def test_a_load_hands_the_key_over_and_leaves_it_nowhere(tmp_path: Path, locked: str) -> None:
    with parts.standin() as server:
        asked = parts.speed(server.port, tmp_path, target__endpoint__key_env=VARIABLE)
        with Watch(tmp_path) as watch:
            result = run_speed(asked, tmp_path / "run")
    assert result.state is State.SUCCESS, result.validation.notes
    assert watch.saw("with_key.py")
    assert watch.leaks == set()
    assert parts.holding(tmp_path) == []
    assert parts.SECRET not in result.model_dump_json()


@pytest.mark.real
def test_over_ssh_the_key_is_in_no_file_and_no_argument_of_the_host(
    tmp_path: Path, answers: Path, locked: str, sshd: Sshd
) -> None:
    # A key of the host's user is for another service, and must not go to this one.
    (sshd.home / ".bash_profile").write_text("export OPENAI_API_KEY=another-service\n")
    try:
        with parts.standin("slow:0.3", answers=answers) as server:
            asked = parts.request(
                server.port,
                tmp_path,
                target__endpoint__key_env=VARIABLE,
                evaluate__evalscope=parts.shared_fake_tool(sshd.folder),
                evaluate__work_root=str(sshd.home / "locked work"),
            )
            target = asked.target.model_copy(update={"ssh": sshd.target()})
            with Watch(sshd.home / "locked work", tmp_path) as watch:
                result = run_accuracy(asked.model_copy(update={"target": target}), tmp_path / "run")
    finally:
        (sshd.home / ".bash_profile").unlink()
    assert result.state is State.SUCCESS, result.validation.notes
    assert watch.leaks == set()
    assert parts.holding(sshd.home, tmp_path) == []
    script = next((sshd.home / "locked work").rglob("command.sh"))
    assert script.stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize(
    ("key", "words"),
    [
        (None, "it asks for an API key (status 401): name the variable that holds it"),
        ("sk-another-one-9f", f"it doesn't accept the API key in {VARIABLE} (status 401)"),
    ],
)
def test_without_the_right_key_nothing_is_evaluated_and_the_reason_is_said(
    tmp_path: Path, locked: str, monkeypatch: pytest.MonkeyPatch, key: str | None, words: str
) -> None:
    with parts.standin() as server:
        changes: dict[str, object] = {}
        if key is not None:
            monkeypatch.setenv(VARIABLE, key)
            changes["target__endpoint__key_env"] = VARIABLE
        result = run_accuracy(parts.request(server.port, tmp_path, **changes), tmp_path / "run")
        assert server.completions() == 0
    assert result.state is State.FAILED
    assert words in "\n".join(result.validation.notes)
    assert key is None or key not in said(tmp_path / "run" / "accuracy")


def test_a_key_in_the_servers_own_arguments_is_not_repeated(
    tmp_path: Path, answers: Path, locked: str
) -> None:
    with parts.standin(answers=answers, args=("--api-key", parts.SECRET)) as server:
        asked = parts.request(server.port, tmp_path, target__endpoint__key_env=VARIABLE)
        result = run_accuracy(asked, tmp_path / "run")
    assert result.state is State.SUCCESS
    assert "--api-key '***'" in said(tmp_path / "run" / "accuracy")
    assert parts.holding(tmp_path) == []


def test_what_an_evaluator_printed_of_the_key_is_starred_when_it_is_fetched(
    tmp_path: Path,
) -> None:
    log, table = tmp_path / "job.log", tmp_path / "data.db"
    log.write_text(f"sent Bearer {parts.SECRET}\n")
    table.write_bytes(b"\x00\x01" + parts.SECRET.encode() + b"\xff")
    os.utime(log, (5, 5))
    hide_in_files(tmp_path, parts.SECRET)
    stars = "*" * len(parts.SECRET)
    assert log.read_text() == f"sent Bearer {stars}\n"
    assert table.read_bytes() == b"\x00\x01" + stars.encode() + b"\xff"
    assert log.stat().st_mtime == 5


def test_a_word_that_stands_for_no_key_is_left_in_texts() -> None:
    assert hide("--api-key EMPTY", "EMPTY") == "--api-key EMPTY"


@pytest.mark.parametrize("value", ["", "two words", "line\nbreak", "sch\u00f6n-genug"])
def test_a_variable_that_holds_no_key_is_refused_without_saying_what_it_holds(
    monkeypatch: pytest.MonkeyPatch, value: str
) -> None:
    monkeypatch.setenv(VARIABLE, value)
    with pytest.raises(BadInput, match=VARIABLE) as refused:
        key_of(Endpoint(key_env=VARIABLE))
    assert value == "" or value not in str(refused.value)


def test_a_key_given_in_the_place_of_a_name_is_refused_and_not_repeated(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="no name of an environment variable") as refused:
        parts.request(1, tmp_path, target__endpoint__key_env=parts.SECRET)
    assert parts.SECRET not in str(refused.value)


@pytest.mark.parametrize("domain", [AccuracyDomain(), SpeedDomain()])
def test_the_stages_that_ask_the_endpoint_are_handed_the_variable_by_its_name(
    domain: AccuracyDomain | SpeedDomain,
) -> None:
    params = {"target": {"endpoint": {"key_env": VARIABLE}}}
    graph = domain.stages(BenchmarkConfig(domain=domain.name, params=params))
    assert [dict(stage.env) for stage in graph] == [{VARIABLE: None}, {VARIABLE: None}, {}]

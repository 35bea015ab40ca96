"""Which folder is used, and which are refused."""

from __future__ import annotations

import multiprocessing
import os
import tempfile
from pathlib import Path

import pytest

from benchwright.errors import BadInput
from benchwright.record.home import benchmark_home

fork = multiprocessing.get_context("fork")


def test_the_option_wins_over_the_environment_and_that_over_the_default(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("BENCHMARK_HOME", raising=False)
    assert benchmark_home(None) == tmp_path / "benchmark_data"
    monkeypatch.setenv("BENCHMARK_HOME", str(tmp_path / "team"))
    assert benchmark_home(None) == tmp_path / "team"
    assert benchmark_home("mine") == tmp_path / "mine"
    assert list(tmp_path.iterdir()) == []


def test_a_home_that_is_a_file_or_below_one_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for name in ("file", "file/below"):
        with pytest.raises(BadInput, match=r"--home: .*is a file"):
            benchmark_home(str(tmp_path / name))


NOBODY = 65534


def _refused_to_nobody(folder: Path) -> None:
    if os.geteuid() == 0:
        os.setgid(NOBODY)
        os.setuid(NOBODY)
    with pytest.raises(BadInput, match=r"(?s)--home: can't write in .*next: name another folder"):
        benchmark_home(str(folder))


@pytest.mark.parametrize("below", ["", "deep/er"])
def test_a_home_that_cannot_be_written_is_refused(tmp_path: Path, below: str) -> None:
    closed = tmp_path / "closed"
    closed.mkdir(mode=0o500)
    child = fork.Process(target=_refused_to_nobody, args=(closed / below,))
    child.start()
    child.join()
    assert child.exitcode == 0


def _read_only(folder: Path) -> None:
    if os.geteuid() == 0:
        os.setgroups([])
        os.setresgid(NOBODY, NOBODY, NOBODY)
        os.setresuid(NOBODY, NOBODY, NOBODY)
    assert benchmark_home(str(folder), reading=True) == folder
    with pytest.raises(BadInput, match="can't write"):
        benchmark_home(str(folder))


def test_an_archive_that_can_only_be_read_can_be_read() -> None:
    with tempfile.TemporaryDirectory(dir="/tmp") as name:
        Path(name).chmod(0o555)
        child = fork.Process(target=_read_only, args=(Path(name),))
        child.start()
        child.join(30)
        assert child.exitcode == 0

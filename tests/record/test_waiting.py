"""A run that waits for a person has no process, and isn't lost."""

from __future__ import annotations

import time
from pathlib import Path

from benchwright.record import waiting
from benchwright.record.run import Status
from benchwright.record.store import RunFolder
from benchwright.record.waiting import GRACE_S, Waiting, go_on, read_waiting, suspend
from tests.approvals import costly_run


def _created(tmp_path: Path) -> RunFolder:
    (tmp_path / "home").mkdir()
    return costly_run(tmp_path / "x", tmp_path / "home")


def test_it_is_in_progress_as_long_as_it_may_wait(tmp_path: Path) -> None:
    folder = _created(tmp_path)
    suspend(folder.path, Waiting("an approval", time.time() + 100))
    assert folder.settle(unclaimed_after_s=0) is Status.IN_PROGRESS
    go_on(folder.path)
    assert folder.settle(unclaimed_after_s=0) is Status.INTERRUPTED


def test_one_that_nobody_answered_in_time_never_started(tmp_path: Path) -> None:
    folder = _created(tmp_path)
    suspend(folder.path, Waiting("an approval", time.time() - GRACE_S - 1))
    assert folder.settle(unclaimed_after_s=0) is Status.ABORTED_PREFLIGHT
    assert "nobody answered in time" in folder.read().error


def test_what_its_steps_returned_is_kept(tmp_path: Path) -> None:
    kept = {"probe": {"model": "m", "n": 3}}
    suspend(tmp_path, Waiting("an approval", 1.0, kept))
    found = read_waiting(tmp_path)
    assert found is not None
    assert found.kept == kept
    assert (tmp_path / waiting.WAITING).stat().st_mode & 0o777 == 0o600


def test_a_damaged_word_is_none(tmp_path: Path) -> None:
    (tmp_path / waiting.WAITING).write_text("{torn")
    assert read_waiting(tmp_path) is None
    assert read_waiting(tmp_path / "nowhere") is None

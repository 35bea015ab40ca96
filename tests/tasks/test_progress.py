"""A long step's progress is seen on its page."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchwright.record.store import RunFolder
from tasks import progress


class _Page:
    def __init__(self) -> None:
        self.lines: list[str] = []

    def info(self, form: str, *values: object) -> None:
        self.lines.append(form % values)


def test_what_a_step_says_while_it_runs_is_logged_and_nothing_older(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    page = _Page()
    monkeypatch.setattr(progress, "get_run_logger", lambda: page)
    folder = RunFolder(tmp_path, "2026-01-01_x_000000")
    folder.path.mkdir(parents=True)
    folder.event({"kind": "step_progress", "stage": "probe", "text": "of an earlier step"})
    with progress.progress_on_page(folder):
        folder.event({"kind": "step_progress", "stage": "evaluate", "text": "3 of 20 answered"})
        folder.event({"kind": "step_started", "stage": "other"})
    assert page.lines == ["evaluate: 3 of 20 answered"]

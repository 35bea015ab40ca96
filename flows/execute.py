"""The entry point of the local engine's children: one run, by its folder."""

from __future__ import annotations

from pathlib import Path

from benchwright.record import form
from benchwright.record.store import RunFolder
from benchwright.report import html
from flows.benchmark import benchmark


def warm_up() -> None:
    """What every run would do for itself, done once: the engine calls it before it forks runs."""
    form.prepare()
    html.prepare()


def run_folder(run_dir: Path) -> int:
    """Run a run that was created already, to its record and report.

    Returns:
        The exit code of `benchwright run`.
    """
    folder = RunFolder(run_dir.parent.parent, run_dir.name)
    benchmark(run_id=folder.run_id, home=str(folder.home), return_state=True)
    return folder.settle().exit_code

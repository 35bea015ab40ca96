"""The end of an entry's night: compared, recorded, judged with its history, shown."""

from __future__ import annotations

import threading
from dataclasses import dataclass, replace
from pathlib import Path

from benchwright.planning.against import against_earlier
from benchwright.record import clock
from benchwright.record.files import write_atomically
from benchwright.record.nights import (
    NightRow,
    SuiteFolder,
    commit_of,
    figures_of,
    ground_of,
)
from benchwright.record.store import RunStore
from benchwright.report.dashboard import render_dashboard
from benchwright.report.suite import Board, make_board
from benchwright.spec.suite import Suite

_ONE_AT_A_TIME = threading.Lock()
"""Hosts end their entries at the same time: the page of the last one must hold them all."""


@dataclass(frozen=True, slots=True)
class Ended:
    """What became of an entry.

    Attributes:
        night: ISO date on which the suite started.
        entry: The entry's name.
        started: Wall clock, ISO 8601.
        status: A run's `Status`, or `REFUSED` or `SKIPPED`.
        run_id: The run; empty where there was none.
        error: What went wrong, for a person.
    """

    night: str
    entry: str
    started: str
    status: str
    run_id: str = ""
    error: str = ""


def close_night(suite: Suite, home: Path, ended: Ended) -> Board:
    """Record what became of an entry, and bring the suite's page up to date.

    A run that completed is compared with the last RELIABLE one and gives its figures to the
    history. One that didn't gives none: half of its replicates are another experiment.

    Raises:
        BenchwrightError: The suite's folder can't be written or read.
    """
    entry = suite.entry(ended.entry)
    row = NightRow(
        night=ended.night,
        entry=ended.entry,
        host=entry.host,
        started=ended.started,
        finished=clock.now_text(),
        status=ended.status,
        run_id=ended.run_id,
        error=ended.error,
    )
    ground: dict[str, str] = {}
    if ended.run_id:
        record = RunStore(home).open(ended.run_id).read()
        view = record.view
        row = replace(row, tag=str(view.tag or ""), commit=commit_of(view))
        if ended.status == "COMPLETED" and view.judgement is not None:
            ground = ground_of(view)
            row = replace(
                row,
                figures=figures_of(view.judgement.summaries, view),
                against=against_earlier(home, view, entry.baseline),
            )
    folder = SuiteFolder(home, suite.name)
    with _ONE_AT_A_TIME:
        folder.append(row, ground)
        board = make_board(suite, folder, clock.now_text())
        write_page(board)
    return board


def write_page(board: Board) -> None:
    """Write a suite's page. Raises BenchwrightError where that can't be done."""
    board.folder.path.mkdir(parents=True, exist_ok=True)
    write_atomically(board.folder.dashboard, render_dashboard(board))

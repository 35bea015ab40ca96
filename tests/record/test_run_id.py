"""Run ids name one folder, and people can name a run by a part of its id."""

from __future__ import annotations

import re
from datetime import datetime
from pathlib import Path

import pytest

from benchwright.errors import BadInput
from benchwright.record.run_id import check_run_id, find_run, new_run_id

IDS = (
    "2026-03-01_retrieval-index_aa11bb",
    "2026-03-02_retrieval-index_3fa91c",
    "2026-03-02_seismic_3f0000",
)


@pytest.fixture
def home(tmp_path: Path) -> Path:
    for run_id in (*IDS, ".new-1-2", "notes"):
        (tmp_path / "runs" / run_id).mkdir(parents=True)
    return tmp_path


@pytest.mark.parametrize("name", ["retrieval-index", "../../x", "Größe: 3 %", "", "a" * 300])
def test_a_new_id_is_a_run_id_whatever_the_name(name: str) -> None:
    run_id = new_run_id(name, datetime(2026, 3, 2, 10, 15))
    assert re.fullmatch(r"2026-03-02_[a-z0-9][a-z0-9-]*_[0-9a-f]{6}", run_id)
    assert check_run_id(run_id) == run_id


def test_ids_of_one_instant_differ() -> None:
    now = datetime(2026, 3, 2, 10, 15)
    assert len({new_run_id("x", now) for _ in range(50)}) > 45


@pytest.mark.parametrize("text", [IDS[1], "2026-03-02_r", "3fa91c", "3fa", "91c"])
def test_a_run_is_found_by_its_id_its_beginning_or_its_last_digits(home: Path, text: str) -> None:
    assert find_run(home, text) == IDS[1]


def test_a_part_that_means_two_runs_is_refused_with_both(home: Path) -> None:
    with pytest.raises(BadInput, match=f"(?s)'3f' means 2 runs.*{IDS[1]}, {IDS[2]}"):
        find_run(home, "3f")


def test_an_unknown_run_is_refused_with_the_nearest(home: Path) -> None:
    with pytest.raises(BadInput, match=f"(?s)no run.*{IDS[0]}"):
        find_run(home, "2026-03-01_retrieval-indx_aa11bb")


def test_nothing_recorded_yet_is_said(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="no run was recorded here yet"):
        find_run(tmp_path, "abc")


@pytest.mark.parametrize("text", ["..", "../x", "/", "", "a/b", "a\0b", ".new-1-2", "a\n", "*"])
def test_a_run_id_cannot_leave_the_folder(home: Path, text: str) -> None:
    with pytest.raises(BadInput):
        find_run(home, text)
    with pytest.raises(BadInput):
        check_run_id(text)

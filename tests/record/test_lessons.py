"""Lessons and risks: appended, never lost, found again by what they are about."""

from __future__ import annotations

import multiprocessing
from pathlib import Path

import pytest

from benchwright.errors import BadInput
from benchwright.record.home import Layout
from benchwright.record.lessons import Entry, by_id, notebook

fork = multiprocessing.get_context("fork")


def test_an_entry_is_read_back_and_those_before_it_stay_byte_for_byte(tmp_path: Path) -> None:
    notebook(tmp_path, "lessons").add("Quiet the machine first.")
    before = Layout(tmp_path).lessons.read_bytes()
    text = "Merging needs twice the disk.\n\n## L9999 (2020-01-01)\n> - domain: `x`"
    entry = notebook(tmp_path, "lessons").add(
        text,
        domain="command",
        recipe="retrieval-index",
        params=("forcemerge.max_num_segments=1", "corpus.n_docs"),
    )
    assert Layout(tmp_path).lessons.read_bytes().startswith(before)
    assert notebook(tmp_path, "lessons").list()[1] == entry
    assert (entry.id, entry.text) == ("L0002", text)
    assert entry.params == ("forcemerge.max_num_segments=1", "corpus.n_docs")


def test_risks_are_kept_apart(tmp_path: Path) -> None:
    lesson, risk = notebook(tmp_path, "lessons").add("a"), notebook(tmp_path, "risks").add("b")
    assert (lesson.id, risk.id) == ("L0001", "R0001")
    assert notebook(tmp_path, "risks").list() == (risk,)
    assert by_id(tmp_path, ("R0001", "L0001")) == (lesson, risk)


def _add(home: Path, number: int, gate: object) -> None:
    gate.wait()  # type: ignore[attr-defined]
    notebook(home, "lessons").add(f"lesson {number}\nwith a second line")


def test_lessons_that_are_added_at_once_all_stay_under_ids_of_their_own(tmp_path: Path) -> None:
    gate = fork.Barrier(16)
    children = [fork.Process(target=_add, args=(tmp_path, n, gate)) for n in range(16)]
    for child in children:
        child.start()
    for child in children:
        child.join()
    found = notebook(tmp_path, "lessons").list()
    assert [entry.id for entry in found] == [f"L{n:04d}" for n in range(1, 17)]
    assert {entry.text for entry in found} == {f"lesson {n}\nwith a second line" for n in range(16)}
    assert Layout(tmp_path).lessons.read_text().count("# Lessons\n") == 1


@pytest.mark.parametrize(
    ("about", "matches"),
    [
        ({}, True),
        ({"domain": "command"}, True),
        ({"domain": "seismic"}, False),
        ({"recipe": "retrieval-index"}, True),
        ({"recipe": "other"}, False),
        ({"params": ("n=10",)}, True),
        ({"params": ("n=11",)}, False),
        ({"params": ("n",)}, True),
        ({"params": ("missing",)}, False),
        ({"params": ("flag=true",)}, True),
    ],
)
def test_an_entry_matches_where_all_that_it_names_agrees(
    about: dict[str, object], matches: bool
) -> None:
    entry = Entry("L0001", "2026-03-02", "x", **about)  # type: ignore[arg-type]
    assert entry.matches("command", "retrieval-index", {"n": 10, "flag": True}) is matches


def test_what_matches_is_found_in_the_file(tmp_path: Path) -> None:
    notebook(tmp_path, "risks").add("a", domain="seismic")
    wanted = notebook(tmp_path, "risks").add("b", domain="command", params=("n=10",))
    assert notebook(tmp_path, "risks").matching("command", None, {"n": 10}) == (wanted,)
    assert notebook(tmp_path, "lessons").matching("command", None, {"n": 10}) == ()


def test_what_people_write_between_the_entries_does_no_harm(tmp_path: Path) -> None:
    notebook(tmp_path, "lessons").add("a")
    with Layout(tmp_path).lessons.open("a") as file:
        file.write("\n## A chapter of ours\n\nwith words")
    assert notebook(tmp_path, "lessons").add("b").id == "L0002"
    assert [entry.text for entry in notebook(tmp_path, "lessons").list()] == ["a", "b"]


@pytest.mark.parametrize(
    ("text", "about"), [(" \n ", {}), ("a", {"domain": "x`y"}), ("a", {"params": ("n=1\n2",)})]
)
def test_an_entry_without_words_or_with_unwritable_names_is_refused(
    tmp_path: Path, text: str, about: dict[str, object]
) -> None:
    with pytest.raises(BadInput):
        notebook(tmp_path, "lessons").add(text, **about)  # type: ignore[arg-type]
    assert not Layout(tmp_path).lessons.exists()

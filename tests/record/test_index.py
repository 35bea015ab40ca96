"""The index: made from the folders, the same whoever wrote last, quick to read."""

from __future__ import annotations

import multiprocessing
import subprocess
import sys
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

import pytest

from benchwright.judgement.verdict import Tag
from benchwright.record.audit import record_comparison, record_reclassification
from benchwright.record.home import Layout
from benchwright.record.index import IndexRow, _line, _write, read_index, rebuild_index
from benchwright.record.run import Status
from tests.record.test_store import finish, start

fork = multiprocessing.get_context("fork")


def _row(number: int, **said: str) -> IndexRow:
    usual = {
        "run_id": f"2026-03-02_x_{number:06x}",
        "created": f"2026-03-02T10:{number // 60 % 60:02d}:{number % 60:02d}.000+01:00",
        "domain": "command",
        "recipe": "retrieval-index",
        "status": "COMPLETED",
        "tag": "QUALIFIED",
        "headline": "p50_ms 89.8 % lower with max_num_segments=1: better",
        "config": "3fa91c3fa91c",
        "host": "bench-1",
        "note": "",
    }
    return IndexRow(**{**usual, **said})


def write(home: Path, rows: Iterable[IndexRow]) -> None:
    _write(home, map(_line, rows))


def _one_run(home: Path, number: int, gate: object) -> None:
    gate.wait()  # type: ignore[attr-defined]
    folder = start(home, f"run-{number}")
    begun = folder.read()
    folder.write_results(replace(begun, status=Status.FAILED, error=f"end of {number}"))


def test_64_runs_at_once_have_64_rows_that_equal_the_rebuild(tmp_path: Path) -> None:
    gate = fork.Barrier(64)
    children = [fork.Process(target=_one_run, args=(tmp_path, n, gate)) for n in range(64)]
    for child in children:
        child.start()
    for child in children:
        child.join()
    assert [child.exitcode for child in children] == [0] * 64
    text = Layout(tmp_path).index.read_bytes()
    rows = read_index(tmp_path)
    assert len({row.run_id for row in rows}) == 64
    assert {row.status for row in rows} == {"FAILED"}
    assert rebuild_index(tmp_path) == rows
    assert Layout(tmp_path).index.read_bytes() == text


def test_a_running_run_is_in_the_index_from_its_first_moment(tmp_path: Path) -> None:
    folder = start(tmp_path)
    (row,) = read_index(tmp_path)
    assert (row.run_id, row.status, row.tag) == (folder.run_id, "IN_PROGRESS", "")


def test_a_finished_run_shows_its_verdict_its_tag_and_its_configuration(tmp_path: Path) -> None:
    folder = start(tmp_path)
    whole = finish(folder)
    (row,) = read_index(tmp_path)
    assert row.headline == "p50_ms 89.8 % lower with max_num_segments=1: better"
    assert (row.status, row.tag, row.recipe) == ("COMPLETED", "UNRELIABLE", "retrieval-index")
    assert whole.view.config_hash.startswith(row.config)
    assert len(row.config) == 12


@pytest.mark.parametrize(
    "text",
    ["a | b", "a\nb", "<br>", "&lt;br&gt;", "\\|", "| --- |", "`x` *y* [z](w)", "a | b | c |"],
)
def test_what_a_cell_says_is_read_back_and_never_ends_its_row(tmp_path: Path, text: str) -> None:
    rows = (_row(1), _row(2, headline=text, note=text), _row(3))
    write(tmp_path, rows)
    written = Layout(tmp_path).index.read_text()
    assert read_index(tmp_path) == rows
    assert len(written.splitlines()) == 6 + 3
    assert "<script>" not in written


def test_markup_in_a_value_is_no_markup_in_the_table(tmp_path: Path) -> None:
    from markdown_it import MarkdownIt

    write(tmp_path, (_row(1, headline="<script>alert(1)</script>", note="*a* [b](c) `d` a|b"),))
    html = MarkdownIt("commonmark", {"html": True}).enable("table")
    shown = html.render(Layout(tmp_path).index.read_text())
    assert "<script>" not in shown
    assert "<em>" not in shown
    assert "<a " not in shown
    assert "<td>*a* [b](c) `d` a|b</td>" in shown


def test_rows_are_in_the_order_of_creation_whatever_the_time_zone(tmp_path: Path) -> None:
    early = _row(1, created="2026-03-02T01:30:00.000+02:00")
    late = _row(2, created="2026-03-02T00:10:00.000+00:00")
    write(tmp_path, (late, early))
    assert [row.run_id for row in read_index(tmp_path)] == [early.run_id, late.run_id]


def test_ten_thousand_runs_are_listed_from_one_file(tmp_path: Path) -> None:
    rows = tuple(_row(number) for number in range(10_000))
    write(tmp_path, rows)
    opened: list[str] = []
    watching = True

    def watch(event: str, args: tuple[object, ...]) -> None:
        if watching and event in ("open", "os.listdir", "os.scandir"):
            opened.append(str(args[0]))

    sys.addaudithook(watch)
    listed = read_index(tmp_path)
    watching = False
    assert len(listed) == 10_000
    assert [name for name in opened if str(tmp_path) in name] == [str(Layout(tmp_path).index)]


def test_listing_imports_neither_pydantic_nor_a_yaml_parser(tmp_path: Path) -> None:
    write(tmp_path, (_row(1),))
    code = (
        "import sys; from pathlib import Path; from benchwright.record.index import read_index;"
        "print(len(read_index(Path(sys.argv[1]))),"
        "[m for m in ('pydantic', 'ruamel.yaml', 'numpy', 'prefect') if m in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path)], capture_output=True, text=True, check=True
    )
    assert done.stdout == "1 []\n"


def test_rows_are_filtered_by_tag_domain_recipe_and_status(tmp_path: Path) -> None:
    rows = (_row(1, tag="RELIABLE"), _row(2, domain="seismic"), _row(3, recipe="", status="FAILED"))
    write(tmp_path, rows)
    assert read_index(tmp_path, tag="RELIABLE") == rows[:1]
    assert read_index(tmp_path, domain="seismic") == rows[1:2]
    assert read_index(tmp_path, recipe="") == rows[2:]
    assert read_index(tmp_path, status="COMPLETED", domain="command") == rows[:1]


def test_an_index_that_is_missing_or_edited_is_made_again(tmp_path: Path) -> None:
    assert read_index(tmp_path) == ()
    folder = start(tmp_path)
    index = Layout(tmp_path).index
    for text in ("", "# My own page\n", index.read_text()[:-5], f"{index.read_text()}| x |\n"):
        index.write_text(text)
        assert [row.run_id for row in read_index(tmp_path)] == [folder.run_id]
    index.unlink()
    assert [row.run_id for row in read_index(tmp_path)] == [folder.run_id]


def test_a_damaged_run_is_listed_as_unreadable_and_hides_no_other(tmp_path: Path) -> None:
    good, bad, empty = start(tmp_path), start(tmp_path), start(tmp_path)
    (bad.path / "results.yaml").write_text("status: [\n")
    (empty.path / "results.yaml").unlink()
    rows = {row.run_id: row for row in rebuild_index(tmp_path)}
    assert rows[good.run_id].status == "IN_PROGRESS"
    assert rows[bad.run_id].status == rows[empty.run_id].status == "UNREADABLE"
    assert rows[bad.run_id].note.startswith("unreadable: results.yaml:")
    assert rows[empty.run_id].note == "unreadable: results.yaml: is missing"


def test_lowering_a_run_flags_those_that_were_compared_with_it_before(tmp_path: Path) -> None:
    baseline, compared, other = start(tmp_path), start(tmp_path), start(tmp_path)
    record_comparison(tmp_path, baseline.run_id, compared.run_id)
    flagged = record_reclassification(
        tmp_path, baseline.run_id, Tag.UNRELIABLE, "wrong dataset", was=Tag.RELIABLE, by="ann"
    )
    assert flagged == (compared.run_id,)
    (sentence,) = compared.read().flagged
    assert baseline.run_id in sentence
    assert "UNRELIABLE" in sentence
    assert "wrong dataset" in sentence
    assert other.read().flagged == baseline.read().flagged == ()
    # Whoever compares with it afterwards saw the tag, and isn't flagged.
    record_comparison(tmp_path, baseline.run_id, other.run_id)
    assert other.read().flagged == ()
    rows = read_index(tmp_path)
    assert rows == rebuild_index(tmp_path)
    notes = {row.run_id: row.note for row in rows}
    assert "wrong dataset" in notes[compared.run_id]
    assert notes[other.run_id] == ""


def test_a_tag_is_not_changed_without_a_reason_or_a_run(tmp_path: Path) -> None:
    from benchwright.errors import BadInput

    folder = start(tmp_path)
    with pytest.raises(BadInput, match="without a reason"):
        record_reclassification(tmp_path, folder.run_id, Tag.UNRELIABLE, " \n", was=None)
    with pytest.raises(BadInput, match="there is no run"):
        record_reclassification(tmp_path, "2026-01-01_x_000000", Tag.UNRELIABLE, "x", was=None)

"""`benchwright domain` as a person or a script calls it."""

from __future__ import annotations

from pathlib import Path

from tests.cli.support import benchwright, json_of


def test_what_is_written_can_be_planned_and_is_named(tmp_path: Path) -> None:
    written = json_of(benchwright("domain", "sorting", "--json", cwd=tmp_path))
    assert all((tmp_path / path).is_file() for path in written["written"])
    assert written["configuration"] in written["written"]
    planned = benchwright(
        "plan", written["configuration"], "--json", cwd=tmp_path, home=tmp_path / "home"
    )
    assert planned.returncode == 0, planned.stderr


def test_where_nothing_can_be_written_is_said_without_a_traceback(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    done = benchwright("domain", "x", "--yaml", "--into", "file/below", cwd=tmp_path)
    assert done.returncode == 2
    assert done.stderr.startswith("error: ")
    assert "another one with --into DIR" in done.stderr
    assert "Traceback" not in done.stderr

"""`benchwright doctor` as a user calls it."""

from __future__ import annotations

from pathlib import Path

from benchwright.record.run import Status
from tests.cli.support import benchwright, json_of
from tests.record.test_store import start

STATES = {"ok", "warning", "broken", "unknown"}


def test_each_check_has_a_name_a_state_a_sentence_and_its_next_command(tmp_path: Path) -> None:
    home = tmp_path / "home"
    finished = benchwright("doctor", "--json", cwd=tmp_path, home=home)
    said = json_of(finished)
    assert (finished.returncode, said["healthy"]) == (0, True), said
    names = [check["name"] for check in said["checks"]]
    assert len(names) == len(set(names)) >= 20
    for check in said["checks"]:
        assert set(check) == {"name", "state", "seen", "next", "mended"}
        assert check["state"] in STATES
        assert check["seen"]
        assert (check["next"] is not None) == (check["state"] in ("warning", "broken"))
    assert not home.exists(), "looking makes nothing"


def test_what_is_broken_gives_code_4_and_is_mended_on_request(tmp_path: Path) -> None:
    home = tmp_path / "home"
    folder = start(home)
    folder.lock().release()
    finished = benchwright("doctor", cwd=tmp_path, home=home)
    assert finished.returncode == 4
    assert "stale runs" in finished.stdout
    assert "benchwright doctor --fix" in finished.stdout
    assert finished.stderr == ""
    assert folder.status is Status.IN_PROGRESS
    mended = benchwright("doctor", "--fix", cwd=tmp_path, home=home)
    assert mended.returncode == 0, mended.stdout
    assert "mended: recorded 1 run(s) as interrupted" in " ".join(mended.stdout.split())
    assert folder.settle() is Status.INTERRUPTED

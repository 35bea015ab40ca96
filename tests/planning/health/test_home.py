"""A benchmark home that is not whole is seen, and mended where that can be done."""

from __future__ import annotations

import os
import secrets
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from benchwright.execution.orphans import VARIABLE, Mark, digest_of, pid_namespace
from benchwright.identity.cache import ArtifactCache
from benchwright.planning.health.check import (
    Check,
    Examination,
    Place,
    State,
    broken,
    examine,
    is_healthy,
    ok,
)
from benchwright.planning.health.home import HOME
from benchwright.record.run import Status
from benchwright.record.store import RunFolder
from tests.identity.test_cache import publish
from tests.record.test_store import finish, start


def look(home: Path, name: str, *, fix: bool = False) -> Check:
    """One check of a home."""
    wanted = [one for one in HOME if one.name == name]
    (check,) = examine(Place(home, {}), wanted, fix=fix)
    return check


def test_a_home_that_does_not_exist_is_fine_and_stays_so(tmp_path: Path) -> None:
    home = tmp_path / "none"
    checks = examine(Place(home, {}), HOME)
    assert {check.seen.state for check in checks} == {State.OK}
    assert not home.exists()


def test_a_whole_home_is_fine(tmp_path: Path) -> None:
    finish(start(tmp_path))
    checks = examine(Place(tmp_path, {}), HOME)
    assert {check.name: check.seen.state for check in checks} == {
        one.name: State.OK for one in HOME
    }


@pytest.fixture
def orphan(tmp_path: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A process that says it is of a stage whose supervisor is gone."""
    dead = subprocess.Popen(["true"])
    dead.wait()
    mark = Mark(digest_of(tmp_path), pid_namespace(), dead.pid, 1, secrets.token_hex(6), "run/x")
    left = subprocess.Popen(["sleep", "60"], env={VARIABLE: str(mark), "PATH": os.environ["PATH"]})
    yield left
    left.kill()
    left.wait()


def test_an_orphan_is_found_and_ended(tmp_path: Path, orphan: subprocess.Popen[bytes]) -> None:
    seen = look(tmp_path, "orphans").seen
    assert seen.state is State.BROKEN
    assert f"sleep ({orphan.pid})" in seen.sentence
    assert orphan.poll() is None, "looking ends nothing"
    assert look(tmp_path / "other", "orphans").seen.state is State.OK, "of another home"
    check = look(tmp_path, "orphans", fix=True)
    assert (check.seen.state, check.mended) == (State.OK, "ended 1 process(es)")
    assert orphan.wait() == -signal.SIGKILL


def lose(folder: RunFolder) -> None:
    """Its process took it up, and is gone."""
    folder.lock().release()


def test_a_run_whose_process_is_gone_is_found_and_settled(tmp_path: Path) -> None:
    waiting, lost = start(tmp_path), start(tmp_path)
    assert look(tmp_path, "stale runs").seen.state is State.OK, "both may still be taken up"
    lose(lost)
    seen = look(tmp_path, "stale runs").seen
    assert seen.state is State.BROKEN
    assert lost.run_id in seen.sentence
    assert waiting.run_id not in seen.sentence
    assert lost.status == Status.IN_PROGRESS, "looking changes nothing"
    with waiting.lock():
        check = look(tmp_path, "stale runs", fix=True)
        assert waiting.status is Status.IN_PROGRESS
    assert check.seen.state is State.OK
    assert "1 run(s) as interrupted" in check.mended
    assert lost.status is Status.INTERRUPTED


def test_an_index_that_was_changed_is_found_and_made_again(tmp_path: Path) -> None:
    finish(start(tmp_path))
    index = tmp_path / "results_index.md"
    whole = index.read_text()
    for damage in (whole.replace("COMPLETED", "FAILED"), whole[:-40], ""):
        index.write_text(damage)
        assert look(tmp_path, "index").seen.state is State.BROKEN
        assert index.read_text() == damage, "looking changes nothing"
    check = look(tmp_path, "index", fix=True)
    assert (check.seen.state, index.read_text()) == (State.OK, whole)


def test_a_run_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    folder = start(tmp_path)
    (folder.path / "results.yaml").write_text("{")
    look(tmp_path, "index", fix=True)
    seen = look(tmp_path, "records").seen
    assert seen.state is State.WARNING
    assert folder.run_id in seen.sentence


def test_an_altered_artifact_and_a_half_built_one_are_found(tmp_path: Path) -> None:
    artifact = publish(ArtifactCache(tmp_path / "cache")).paths["words"]
    assert look(tmp_path, "cache").seen.state is State.OK
    left = tmp_path / "cache" / ".staging" / f"{'0' * 64}-1234"
    left.mkdir(parents=True)
    assert look(tmp_path, "cache").seen.state is State.WARNING
    check = look(tmp_path, "cache", fix=True)
    assert (check.seen.state, left.exists(), artifact.exists()) == (State.OK, False, True)
    artifact.write_text("altered")
    seen = look(tmp_path, "cache").seen
    assert seen.state is State.WARNING
    assert "build" in seen.sentence


def test_a_check_that_fails_is_unknown_and_hides_no_other(tmp_path: Path) -> None:
    def fail(_place: Place) -> None:
        raise OSError(5, "Input/output error")

    checks = examine(
        Place(tmp_path, {}),
        [
            Examination("bad", fail),  # type: ignore[arg-type]
            Examination("good", lambda _place: ok("fine")),
        ],
    )
    assert [check.seen.state for check in checks] == [State.UNKNOWN, State.OK]
    assert "Input/output error" in checks[0].seen.sentence
    assert is_healthy(checks)


def test_mending_that_fails_is_said_and_leaves_it_broken(tmp_path: Path) -> None:
    def fail(_place: Place) -> str:
        raise PermissionError(1, "Operation not permitted")

    wrong = Examination("wrong", lambda _place: broken("it is", "do"), fail)
    (check,) = examine(Place(tmp_path, {}), [wrong], fix=True)
    assert check.seen.state is State.BROKEN
    assert "mending it failed" in check.seen.sentence
    assert not is_healthy([check])


def test_looking_costs_little(tmp_path: Path) -> None:
    for _ in range(20):
        finish(start(tmp_path))
    began = time.monotonic()
    examine(Place(tmp_path, {}), HOME)
    assert time.monotonic() - began < 5

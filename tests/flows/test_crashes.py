"""Processes are killed at random moments, and the disk fills up: what was finished is kept."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from benchmarks.crashes import (
    LAUNCHES,
    VICTIMS,
    Reported,
    Site,
    index_differs,
    summary,
    torn_lines,
    trials,
    unreadable,
    write_experiment,
)
from benchwright.record.run import Status
from benchwright.record.store import RunStore
from tests.support import require

pytestmark = pytest.mark.slow

KILLS = 2 * len(VICTIMS)
SEED = 20


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    """A home with processes of its own."""
    place = Site(tmp_path)
    yield place
    place.close()


@pytest.mark.timeout(900)
def test_kills_at_random_moments_lose_no_finished_replicate_and_leave_nothing(site: Site) -> None:
    done = list(trials(site, KILLS, SEED))
    assert not [f"{t.victim} at {t.at_s}: {t.problems}" for t in done if t.problems]
    table = summary(done)
    assert {victim: figures["kills"] for victim, figures in table.items()} == dict.fromkeys(
        VICTIMS, 2
    )
    assert all(trial.after == Status.COMPLETED for trial in done)


def test_a_damaged_record_is_seen_by_the_checks_that_follow_a_kill(site: Site) -> None:
    """The control: what the kills are tested with does find a loss."""
    file = write_experiment(site.folder / "experiment", "control")
    code, result = site.call("run", str(file))
    assert code == 0
    folder = RunStore(site.home).open(result["run_id"])
    reported = Reported.of(folder)
    assert len(reported.samples) == LAUNCHES
    assert reported.missing_in(folder) == unreadable(site.home) == index_differs(site.home) == []
    lines = (folder.path / "samples.jsonl").read_bytes().splitlines(keepends=True)
    (folder.path / "samples.jsonl").write_bytes(b"".join(lines[1:]))
    assert len(reported.missing_in(folder)) == 2, "not in the record, and was said to be done"
    (folder.path / "samples.jsonl").write_bytes(b"".join([b'{"torn\n', *lines]))
    assert torn_lines(folder.path / "samples.jsonl")
    assert unreadable(site.home)
    index = site.home / "results_index.md"
    index.write_text(index.read_text().replace("COMPLETED", "FAILED"))
    assert index_differs(site.home)


DISK_MB = 320
"""More than a run asks for before it starts (200 MB)."""

FILL = (
    'echo >> counted; test "$(wc -l < counted)" -eq 3 && test -d {home} &&'
    f" head -c {DISK_MB}M /dev/zero > {{home}}/fill"
)
"""A measure stage's third launch takes what the disk has, and no more than that of any disk."""


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Site]:
    """A site whose home has a small disk of its own."""
    home = tmp_path / "home"
    home.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", f"size={DISK_MB}m", "tmpfs", str(home)]
    can = os.geteuid() == 0 and subprocess.run(mount, check=False).returncode == 0
    require(can, "a disk of one's own (root, and a mount of tmpfs)")
    place = Site(tmp_path)
    yield place
    place.close()
    subprocess.run(["umount", "--lazy", str(home)], check=True)


@pytest.mark.timeout(300)
def test_a_disk_that_fills_up_ends_the_run_with_a_clear_error_and_a_readable_record(
    small_disk: Site,
) -> None:
    site = small_disk
    file = write_experiment(site.folder / "experiment", "full")
    search = file.with_name("search.sh")
    search.write_text(f"{search.read_text()}{FILL.format(home=site.home)}\n:\n")
    code, result = site.call("run", str(file))
    assert (code, result["status"]) == (4, "FAILED")
    assert "the disk is full" in result["error"]
    folder = RunStore(site.home).open(result["run_id"])
    assert folder.status is Status.FAILED
    finished = Reported.of(folder)
    assert len(finished.samples) == 2, "the two before the disk was full"
    assert site.call("status")[1] == {"running": []}
    assert index_differs(site.home) == []
    (site.home / "fill").unlink()
    code, result = site.call("resume", folder.run_id)
    assert (code, result["status"]) == (0, "COMPLETED")
    assert finished.missing_in(folder) == []
    assert len(Reported.of(folder).samples) == LAUNCHES

"""What a stage prints is counted whole and kept within its limit, whatever bytes it is."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.harm import stage
from benchwright.execution.launch import EndReason
from benchwright.execution.output import CappedFile
from benchwright.execution.supervisor import Supervisor


@pytest.fixture(scope="module")
def supervisor() -> Iterator[Supervisor]:
    with Supervisor() as running:
        yield running


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("output") / "out"


@settings(max_examples=50, deadline=None)
@given(st.lists(st.binary(max_size=60), max_size=20))
def test_all_is_kept_within_the_limit(file: Path, parts: list[bytes]) -> None:
    kept = CappedFile(file, 2000)
    for part in parts:
        kept.take(part)
    kept.close()
    assert file.read_bytes() == b"".join(parts)
    assert (kept.total, kept.dropped) == (len(b"".join(parts)), 0)


@settings(max_examples=50, deadline=None)
@given(st.lists(st.integers(1, 90), min_size=40, max_size=120), st.integers(100, 400))
def test_beyond_the_limit_the_beginning_and_the_end_are_kept(
    file: Path, sizes: list[int], limit: int
) -> None:
    lines = [b"%d:%s\n" % (number, b"x" * size) for number, size in enumerate(sizes)]
    text = b"".join(lines)
    kept = CappedFile(file, limit)
    for line in lines:
        kept.take(line)
    kept.close()
    assert kept.total == len(text)
    if len(text) <= limit:
        assert file.read_bytes() == text
        return
    left = file.read_bytes()
    gap = b"[benchwright: %d bytes were left out here]\n" % kept.dropped
    begin, end = left.split(gap)
    # A cut inside a line gets a line end of its own.
    assert len(begin) + len(end) + kept.dropped - len(text) in (0, 1)
    assert len(begin) + len(end) <= limit + 1
    # A line that doesn't fit into its part is cut; others are whole or left out.
    assert text.startswith(begin.removesuffix(b"\n"))
    assert text.endswith(end)
    if b"\n" in begin:
        assert begin.endswith(b"\n")


def test_200_mb_on_both_streams_neither_hang_nor_fill_the_disk(
    supervisor: Supervisor, tmp_path: Path
) -> None:
    script = (
        "echo first; head -c 200000000 /dev/zero & head -c 200000000 /dev/zero >&2; wait; "
        "echo; echo last"
    )
    outcome = supervisor.run(stage(tmp_path, "sh", "-c", script, output_limit_mb=1.0))
    assert outcome.ok
    assert outcome.usage.stdout_bytes == 200_000_000 + len("first\n\nlast\n")
    assert outcome.usage.stderr_bytes == 200_000_000
    for name in ("stdout.log", "stderr.log"):
        assert (tmp_path / name).stat().st_size <= 1_000_100
    kept = (tmp_path / "stdout.log").read_bytes()
    assert kept.startswith(b"first\n")
    assert kept.endswith(b"\nlast\n")
    assert len(outcome.notes) == 2
    assert "was cut at its limit of 1 MB" in outcome.notes[0]


def test_a_line_of_10_mb_and_bytes_that_are_no_text_are_kept(
    supervisor: Supervisor, tmp_path: Path
) -> None:
    script = "head -c 10000000 /dev/zero | tr '\\0' 'x'; printf '\\377\\376\\n' >&2; exit 1"
    outcome = supervisor.run(stage(tmp_path, "sh", "-c", script))
    assert outcome.reason is EndReason.FAILED
    assert outcome.detail.endswith("\ufffd\ufffd")
    assert (tmp_path / "stdout.log").stat().st_size == 10_000_000
    assert (tmp_path / "stderr.log").read_bytes() == b"\xff\xfe\n"


def test_a_script_that_writes_to_dev_stderr_empties_nothing(
    supervisor: Supervisor, tmp_path: Path
) -> None:
    """Opening /dev/stdout truncates it where it is a regular file: results were lost."""
    script = "echo result; echo note > /dev/stdout; echo end; echo note > /dev/stderr"
    assert supervisor.run(stage(tmp_path, "sh", "-c", script)).ok
    assert (tmp_path / "stdout.log").read_text() == "result\nnote\nend\n"


def test_both_streams_may_share_a_file(supervisor: Supervisor, tmp_path: Path) -> None:
    both = tmp_path / "both.log"
    launch = stage(tmp_path, "sh", "-c", "echo a; echo b >&2; echo c", stdout=both, stderr=both)
    outcome = supervisor.run(launch)
    assert both.read_text() == "a\nb\nc\n"
    assert outcome.usage.stdout_bytes == 6


def test_a_full_disk_fails_the_stage_and_says_so(supervisor: Supervisor, tmp_path: Path) -> None:
    full = tmp_path / "full"
    full.symlink_to("/dev/full")
    outcome = supervisor.run(stage(tmp_path, "sh", "-c", "echo 'p50_ms: 3'", stdout=full))
    assert (outcome.reason, outcome.exit_code) == (EndReason.FAILED, 0)
    assert "could not be written (No space left on device): 10 bytes" in outcome.detail


def test_each_of_200_000_flushed_lines_is_read_in_time(
    supervisor: Supervisor, tmp_path: Path
) -> None:
    script = "import os\nfor n in range(200000): os.write(1, b'line\\n')"
    outcome = supervisor.run(stage(tmp_path, sys.executable, "-S", "-c", script))
    assert outcome.usage.stdout_bytes == 1_000_000
    assert (tmp_path / "stdout.log").read_bytes() == b"line\n" * 200_000
    assert outcome.usage.wall_s < 5

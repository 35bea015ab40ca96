"""A lock is on the file that is there, not on one that was removed."""

from __future__ import annotations

import threading
from pathlib import Path

from benchwright.identity.locks import Lock, held, take


def test_an_exclusive_lock_keeps_all_others_out_and_shared_ones_each_other_in(
    tmp_path: Path,
) -> None:
    file = tmp_path / "lock"
    with held(file):
        assert take(file, wait=False) is None
        assert take(file, shared=True, wait=False) is None
    with held(file, shared=True), held(file, shared=True):
        assert take(file, wait=False) is None
    assert take(file, wait=False) is not None


def test_who_waits_for_a_lock_whose_file_is_removed_gets_one_on_the_new_file(
    tmp_path: Path,
) -> None:
    file = tmp_path / "lock"
    first = take(file)
    assert first is not None
    got: list[Lock | None] = []
    waiter = threading.Thread(target=lambda: got.append(take(file)))
    waiter.start()
    # /proc shows who waits for a lock, with an arrow.
    while f":{file.stat().st_ino} " not in waiting():
        assert waiter.is_alive()
    first.release(remove=True)
    waiter.join(10)
    assert got[0] is not None
    assert file.exists()
    assert take(file, wait=False) is None
    got[0].release()


def waiting() -> str:
    return "".join(
        line for line in Path("/proc/locks").read_text().splitlines(True) if "->" in line
    )

"""A file's digest is remembered only where its times can be trusted."""

from __future__ import annotations

import hashlib
import os
import time
from pathlib import Path

import pytest

from benchwright.identity.digests import RACY_NS, SMALL_BYTES, DigestMemo

BIG = b"x" * (SMALL_BYTES + 1)


@pytest.fixture
def later(monkeypatch: pytest.MonkeyPatch) -> None:
    """The clock is a little more than the racy time ahead."""
    now = time.time_ns
    monkeypatch.setattr(time, "time_ns", lambda: now() + RACY_NS + 10_000_000)


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What was read, by name."""
    names: list[str] = []
    real = hashlib.file_digest

    def counted(stream, name):  # type: ignore[no-untyped-def]
        names.append(Path(stream.name).name)
        return real(stream, name)

    monkeypatch.setattr(hashlib, "file_digest", counted)
    return names


def sha(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


@pytest.mark.usefixtures("later")
def test_a_large_file_is_read_once_and_known_by_a_later_process(
    tmp_path: Path, reads: list[str]
) -> None:
    (tmp_path / "big").write_bytes(BIG)
    memo = DigestMemo(tmp_path / "memo.json")
    assert memo.of(tmp_path / "big") == sha(BIG)
    memo.save()
    assert DigestMemo(tmp_path / "memo.json").of(tmp_path / "big") == sha(BIG)
    assert reads == ["big"]


@pytest.mark.usefixtures("later")
def test_a_file_is_known_again_in_a_folder_that_was_renamed(
    tmp_path: Path, reads: list[str]
) -> None:
    (tmp_path / "staging").mkdir()
    (tmp_path / "staging" / "big").write_bytes(BIG)
    memo = DigestMemo()
    memo.of(tmp_path / "staging" / "big")
    (tmp_path / "staging").rename(tmp_path / "entry")
    assert memo.of(tmp_path / "entry" / "big") == sha(BIG)
    assert reads == ["big"]


def test_a_file_changed_within_the_racy_time_is_read_again(
    tmp_path: Path, reads: list[str]
) -> None:
    (tmp_path / "big").write_bytes(BIG)
    memo = DigestMemo()
    assert memo.of(tmp_path / "big") == memo.of(tmp_path / "big")
    assert reads == ["big", "big"]


@pytest.mark.usefixtures("later")
def test_an_edit_of_the_same_size_with_its_time_put_back_is_seen(tmp_path: Path) -> None:
    big = tmp_path / "big"
    big.write_bytes(BIG)
    memo = DigestMemo()
    memo.of(big)
    before = big.stat()
    big.write_bytes(b"y" * len(BIG))
    os.utime(big, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert memo.of(big) == sha(b"y" * len(BIG))


@pytest.mark.usefixtures("later")
def test_a_fresh_reading_ignores_the_memo(tmp_path: Path, reads: list[str]) -> None:
    (tmp_path / "big").write_bytes(BIG)
    memo = DigestMemo()
    memo.of(tmp_path / "big")
    memo.of(tmp_path / "big", fresh=True)
    assert reads == ["big", "big"]


@pytest.mark.parametrize("content", ["", "{", "[[1]]", "null", '{"a": 1}'])
@pytest.mark.usefixtures("later")
def test_a_damaged_memo_is_an_empty_one(tmp_path: Path, content: str) -> None:
    (tmp_path / "big").write_bytes(BIG)
    (tmp_path / "memo.json").write_text(content)
    memo = DigestMemo(tmp_path / "memo.json")
    assert memo.of(tmp_path / "big") == sha(BIG)
    memo.save()
    assert sha(BIG) in (tmp_path / "memo.json").read_text()


@pytest.mark.usefixtures("later")
def test_two_processes_that_save_keep_what_both_learnt(tmp_path: Path) -> None:
    for name in ("one", "two"):
        (tmp_path / name).write_bytes(name.encode() + BIG)
    memos = [DigestMemo(tmp_path / "memo.json"), DigestMemo(tmp_path / "memo.json")]
    for memo, name in zip(memos, ("one", "two"), strict=True):
        memo.of(tmp_path / name)
    for memo in memos:
        memo.save()
    kept = (tmp_path / "memo.json").read_text()
    assert sha(b"one" + BIG) in kept
    assert sha(b"two" + BIG) in kept


@pytest.mark.usefixtures("later")
def test_a_memo_that_can_not_be_written_is_no_error(tmp_path: Path) -> None:
    (tmp_path / "big").write_bytes(BIG)
    memo = DigestMemo(tmp_path / "nowhere" / "memo.json")
    memo.of(tmp_path / "big")
    memo.save()
    assert not (tmp_path / "nowhere").exists()


@pytest.mark.usefixtures("later")
def test_a_file_that_changes_while_it_is_read_is_not_remembered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    big = tmp_path / "big"
    big.write_bytes(BIG)
    real = hashlib.file_digest

    def changing(stream, name):  # type: ignore[no-untyped-def]
        found = real(stream, name)
        with big.open("ab") as more:
            more.write(b"y")
        return found

    memo = DigestMemo(tmp_path / "memo.json")
    monkeypatch.setattr(hashlib, "file_digest", changing)
    memo.of(big)
    memo.save()
    assert not (tmp_path / "memo.json").exists()

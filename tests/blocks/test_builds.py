"""One machine builds, and another takes what it built from where both share it."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from benchwright.identity.cache import ArtifactCache
from blocks.builds import ARCHIVE, BUILDS, StoredBuilds
from blocks.store import LISTING, PlainStore
from tests.identity.test_cache import ONE, STAGE, publish


@pytest.fixture
def shared(tmp_path: Path) -> StoredBuilds:
    return StoredBuilds(PlainStore(str(tmp_path / "store"), {}))


def machine(
    tmp_path: Path, name: str, shared: StoredBuilds, said: Callable[[str], None] = print
) -> ArtifactCache:
    """The cache of a machine of its own."""
    return ArtifactCache(tmp_path / name, shared, said)


def test_what_one_machine_built_another_takes_as_it_was(
    tmp_path: Path, shared: StoredBuilds
) -> None:
    first, second = (machine(tmp_path, name, shared) for name in ("first", "second"))
    publish(first)
    with second.building(ONE, STAGE) as build:
        assert build.hit is not None
        assert build.hit.hit
        assert "another machine" in build.hit.reason
        index = build.hit.paths["index"]
    assert os.access(index / "tool", os.X_OK)
    assert (index / "empty").is_dir()
    assert (index / "latest").is_symlink()
    assert (index / "latest").stat().st_size == 100_000
    assert second.lookup(ONE).hit, "it is an entry like any other from now on"
    assert [problem for _, problem in second.verify()] == [""]
    assert second.leftovers() == first.leftovers() == ()


def test_modes_survive_that_an_archive_would_not_be_trusted_with(
    tmp_path: Path, shared: StoredBuilds
) -> None:
    first, second = (machine(tmp_path, name, shared) for name in ("first", "second"))
    with first.building(ONE, STAGE) as build:
        build.outputs["index"].mkdir()
        build.outputs["words"].write_text("x")
        build.outputs["words"].chmod(0o666)
        build.publish()
    with second.building(ONE, STAGE) as build:
        assert build.hit is not None
        assert build.hit.paths["words"].stat().st_mode & 0o777 == 0o666


def test_what_nobody_has_built_is_built_here(tmp_path: Path, shared: StoredBuilds) -> None:
    assert publish(machine(tmp_path, "first", shared)).reason == "built by this run"
    assert shared.store.names(BUILDS) == [f"{BUILDS}/{ONE.digest}"]


def other_content(archive: Path) -> None:
    """Another machine's archive, whole but of other content: the listing is made to fit."""
    import hashlib
    import json
    import tarfile

    folder = archive.parent / "unpacked"
    with tarfile.open(archive) as packed:
        packed.extractall(folder, filter="data")
    (folder / "words").write_text("one\ntwi\n")
    with tarfile.open(archive, "w") as packed:
        packed.add(folder, arcname=".")
    shutil.rmtree(folder)
    data = archive.read_bytes()
    (archive.parent / LISTING).write_text(
        json.dumps(
            {
                ARCHIVE: {
                    "size": len(data),
                    "sha256": hashlib.sha256(data).hexdigest(),
                    "mode": 0o644,
                }
            }
        )
    )


def outside(archive: Path) -> None:
    """An archive with a file that would land outside of the cache."""
    import hashlib
    import io
    import json
    import tarfile

    with tarfile.open(archive, "w") as packed:
        member = tarfile.TarInfo("../../../escaped")
        member.size = 1
        packed.addfile(member, io.BytesIO(b"x"))
    data = archive.read_bytes()
    row = {"size": len(data), "sha256": hashlib.sha256(data).hexdigest(), "mode": 0o644}
    (archive.parent / LISTING).write_text(json.dumps({ARCHIVE: row}))


def damaged(archive: Path) -> None:
    """A byte that rotted."""
    data = bytearray(archive.read_bytes())
    data[len(data) // 2] ^= 1
    archive.write_bytes(data)


@pytest.mark.parametrize(
    ("harm", "word"), [(damaged, "isn't the file"), (other_content, "words"), (outside, "archive")]
)
def test_what_is_not_what_was_built_is_refused_and_built_here(
    harm: Callable[[Path], None], word: str, tmp_path: Path, shared: StoredBuilds
) -> None:
    publish(machine(tmp_path, "first", shared))
    harm(tmp_path / "store" / BUILDS / ONE.digest / ARCHIVE)
    said: list[str] = []
    second = machine(tmp_path, "second", shared, said.append)
    assert publish(second).reason == "built by this run"
    assert word in said[0]
    assert second.lookup(ONE).hit
    assert not list(tmp_path.rglob("escaped"))
    assert second.leftovers() == ()


def test_a_place_that_cannot_be_used_costs_no_build(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("no folder")
    said: list[str] = []
    cache = machine(
        tmp_path, "first", StoredBuilds(PlainStore(str(tmp_path / "file" / "x"), {})), said.append
    )
    assert publish(cache).hit
    assert len(said) == 1
    assert "isn't shared" in said[0]

"""The results store: a folder is there whole, or it isn't there."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchwright.errors import BadInput, BenchwrightError
from benchwright.record.index import read_index
from benchwright.record.store import RunFolder
from blocks.store import LISTING, PlainStore, ResultsStore
from tests.approvals import costly_run


@pytest.fixture
def run(tmp_path: Path) -> RunFolder:
    (tmp_path / "home").mkdir()
    return costly_run(tmp_path / "x", tmp_path / "home")


@pytest.fixture(params=["folder", "memory"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> PlainStore:
    place = str(tmp_path / "shared") if request.param == "folder" else f"memory://{tmp_path}"
    return ResultsStore(place=place).plain()


def test_a_run_arrives_on_another_machine_and_is_listed_there(
    store: PlainStore, run: RunFolder, tmp_path: Path
) -> None:
    store.put_run(run)
    assert store.names("runs") == [f"runs/{run.run_id}"]
    there = store.get_run(run.run_id, tmp_path / "other")
    assert there.read().view.config_hash == run.read().view.config_hash
    assert [row.run_id for row in read_index(tmp_path / "other")] == [run.run_id]


def test_private_files_stay_private(store: PlainStore, run: RunFolder, tmp_path: Path) -> None:
    (run.logs / "search.out").write_text("what the environment held")
    (run.logs / "search.out").chmod(0o600)
    store.put_run(run)
    there = store.get_run(run.run_id, tmp_path / "other")
    modes = {path.name: path.stat().st_mode & 0o777 for path in there.logs.iterdir()}
    assert modes == {"search.out": 0o600}
    assert (there.path / "launch.json").stat().st_mode & 0o777 == 0o600


def test_a_folder_without_its_listing_is_not_there(store: PlainStore, tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "file").write_text("x")
    assert not store.has("builds/a")
    store.put(tmp_path / "a", "builds/a")
    assert store.has("builds/a")
    assert store.names("builds") == ["builds/a"]
    system, root = store._root()
    system.rm_file(f"{root}/builds/a/{LISTING}")
    assert not store.has("builds/a")
    with pytest.raises(BadInput, match="no builds/a"):
        store.get("builds/a", tmp_path / "b")
    assert not (tmp_path / "b").exists()


def test_a_file_that_was_altered_at_the_place_is_refused_and_nothing_appears(
    tmp_path: Path,
) -> None:
    store = PlainStore(str(tmp_path / "shared"), {})
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "file").write_text("right")
    store.put(tmp_path / "a", "builds/a")
    (tmp_path / "shared" / "builds" / "a" / "file").write_text("wrong")
    with pytest.raises(BenchwrightError, match="isn't the file that was put there"):
        store.get("builds/a", tmp_path / "b")
    assert not (tmp_path / "b").exists()
    assert not list(tmp_path.glob(".new-*"))


def test_a_listing_that_names_a_file_outside_is_refused(tmp_path: Path) -> None:
    store = PlainStore(str(tmp_path / "shared"), {})
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "file").write_text("x")
    store.put(tmp_path / "a", "builds/a")
    listing = tmp_path / "shared" / "builds" / "a" / LISTING
    listing.write_text(listing.read_text().replace('"file"', '"../../outside"'))
    with pytest.raises(BenchwrightError):
        store.get("builds/a", tmp_path / "b")
    assert not (tmp_path / "outside").exists()


@pytest.mark.parametrize("name", ["../x", "/etc", "a/../../b", ""])
def test_names_stay_below_the_place(name: str, tmp_path: Path) -> None:
    with pytest.raises(BadInput):
        PlainStore(str(tmp_path), {}).has(name)


def test_a_place_that_cannot_be_written_is_said_in_a_sentence(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    (tmp_path / "a").mkdir()
    store = PlainStore(str(tmp_path / "file" / "below"), {"auto_mkdir": True})
    with pytest.raises(BenchwrightError, match="results store can't be used"):
        store.put(tmp_path / "a", "builds/a")
    assert list((tmp_path / "a").iterdir()) == []


def test_links_are_not_followed(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "secret").write_text("s")
    (tmp_path / "a" / "link").symlink_to(tmp_path / "secret")
    (tmp_path / "a" / "file").write_text("x")
    store = PlainStore(str(tmp_path / "shared"), {})
    store.put(tmp_path / "a", "builds/a")
    assert not (tmp_path / "shared" / "builds" / "a" / "link").exists()

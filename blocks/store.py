"""A place that several machines share: the folders of runs, and built artifacts.

A folder is complete at the place, or it isn't there: its list of files, with their digests, is
written last, and a copy that doesn't match it is refused.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

from prefect.blocks.core import Block
from prefect.types import SecretDict
from pydantic import Field

from benchwright.errors import BadInput, BenchwrightError, Where
from benchwright.record.home import Layout
from benchwright.record.index import update_index
from benchwright.record.run_id import check_run_id
from benchwright.record.store import RunFolder

LISTING = ".files.json"
"""Beside a folder's files: name -> size, SHA-256 and mode. Written last."""

CHUNK = 1 << 20

RUNS = "runs"


@dataclass(frozen=True, slots=True)
class PlainStore:
    """A shared place as the engine knows it: any that fsspec can reach.

    Attributes:
        place: A folder, or an address such as `s3://bucket/benchwright`.
        options: What fsspec is given for it (credentials, endpoint); never shown.
    """

    place: str
    options: dict[str, Any]

    def put(self, folder: Path, name: str) -> None:
        """Copy a folder to the place under a name such as `runs/ID`.

        The files come first and their listing last; until then `has` says no. A copy that is
        there already is replaced, file by file.

        Raises:
            BenchwrightError: The place can't be reached or written.
        """
        with self._said(name):
            system, root = self._root()
            target = f"{root}/{_checked(name)}"
            listing = {}
            for path in _files(folder):
                relative = path.relative_to(folder).as_posix()
                there = f"{target}/{relative}"
                system.makedirs(str(PurePosixPath(there).parent), exist_ok=True)
                listing[relative] = {
                    "size": path.stat().st_size,
                    "sha256": _digest(path),
                    "mode": path.stat().st_mode & 0o777,
                }
                system.put_file(str(path), there)
            system.makedirs(target, exist_ok=True)
            system.pipe_file(f"{target}/{LISTING}", json.dumps(listing).encode())

    def has(self, name: str) -> bool:
        """Whether a complete folder of that name is there."""
        with self._said(name):
            system, root = self._root()
            return bool(system.exists(f"{root}/{_checked(name)}/{LISTING}"))

    def get(self, name: str, folder: Path) -> None:
        """Copy a folder from the place; `folder` appears whole, or not at all.

        Raises:
            BadInput: There is no such folder at the place, or `folder` is there already.
            BenchwrightError: The place can't be read, or a file isn't what was put there.
        """
        if folder.exists():
            raise BadInput("the folder is there already", where=Where(folder))
        with self._said(name):
            system, root = self._root()
            source = f"{root}/{_checked(name)}"
            if not system.exists(f"{source}/{LISTING}"):
                raise BadInput(f"there is no {name} in {self.place}")
            listing = json.loads(system.cat_file(f"{source}/{LISTING}"))
            folder.parent.mkdir(parents=True, exist_ok=True)
            building = Path(tempfile.mkdtemp(prefix=".new-", dir=folder.parent))
            try:
                for relative, said in listing.items():
                    path = building / _checked(relative)
                    path.parent.mkdir(parents=True, exist_ok=True)
                    system.get_file(f"{source}/{relative}", str(path))
                    if path.stat().st_size != said["size"] or _digest(path) != said["sha256"]:
                        raise BenchwrightError(
                            f"{relative} of {name} isn't the file that was put there",
                            where=Where(self.place),
                            hint="put the folder there again",
                        )
                    path.chmod(said["mode"])
                building.chmod(0o755)
                building.rename(folder)
            finally:
                shutil.rmtree(building, ignore_errors=True)

    def names(self, prefix: str) -> list[str]:
        """The complete folders below a prefix such as `runs`, sorted."""
        with self._said(prefix):
            system, root = self._root()
            base = f"{root}/{_checked(prefix)}"
            if not system.exists(base):
                return []
            found = [str(path).rstrip("/") for path in system.ls(base, detail=False)]
            return sorted(
                f"{prefix}/{PurePosixPath(path).name}"
                for path in found
                if system.exists(f"{path}/{LISTING}")
            )

    def put_run(self, folder: RunFolder) -> None:
        """Copy a run's folder to the place. See `put`."""
        self.put(folder.path, f"{RUNS}/{folder.run_id}")

    def get_run(self, run_id: str, home: Path) -> RunFolder:
        """Copy a run's folder from the place into a home, and list it in the home's index."""
        found = RunFolder(home, check_run_id(run_id))
        self.get(f"{RUNS}/{run_id}", Layout(home).runs / run_id)
        update_index(home, run_id)
        return found

    def _root(self) -> tuple[Any, str]:
        import fsspec

        place = self.place if "://" in self.place else Path(self.place).expanduser().as_uri()
        system, root = fsspec.core.url_to_fs(place, **self.options)
        return system, str(root).rstrip("/")

    def _said(self, name: str) -> _Said:
        return _Said(self.place, name)


class _Said:
    """Gives what a file system raises a sentence; our own errors pass."""

    def __init__(self, place: str, name: str) -> None:
        self.place, self.name = place, name

    def __enter__(self) -> None: ...

    def __exit__(self, kind: Any, value: BaseException | None, trace: Any) -> None:
        if isinstance(value, BenchwrightError) or not isinstance(value, Exception):
            return
        raise BenchwrightError(
            f"the results store can't be used for {self.name}: {value or type(value).__name__}",
            where=Where(self.place),
            hint="see the block results-store: its place and its options",
        ) from value


class ResultsStore(Block):
    """Where the folders of runs are copied to, so that other machines see them."""

    _block_type_name = "Results store"
    _block_type_slug = "results-store"
    _description = "Where the folders of runs are copied to, so that other machines see them."

    place: str = Field(
        default=...,
        title="Place",
        description="A folder, or an address that fsspec knows, such as `s3://bucket/benchwright`.",
    )
    options: SecretDict = Field(
        default_factory=lambda: SecretDict({}),
        title="Options",
        description="What fsspec is given for it, as a JSON object: credentials, an endpoint.",
    )

    def plain(self) -> PlainStore:
        """The store as the engine knows it."""
        return PlainStore(self.place, dict(self.options.get_secret_value()))


def _files(folder: Path) -> Iterator[Path]:
    for parent, _, names in os.walk(folder):
        for name in sorted(names):
            path = Path(parent) / name
            if path.is_file() and not path.is_symlink() and not name.startswith(".alive"):
                yield path


def _checked(name: str) -> str:
    """A name that stays below the place. Raises BadInput."""
    parts = PurePosixPath(name).parts
    if not parts or name.startswith("/") or ".." in parts:
        raise BadInput(f"{name!r} is no name of a folder in a results store")
    return name


def _digest(path: Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while chunk := file.read(CHUNK):
            digest.update(chunk)
    return digest.hexdigest()

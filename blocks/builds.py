"""Built artifacts at the results store: one machine builds, the others take it from there.

An entry travels as one archive, since links, empty folders and modes belong to an artifact and
not every place knows them.
"""

from __future__ import annotations

import shutil
import tarfile
from dataclasses import dataclass
from pathlib import Path

from benchwright.errors import BenchwrightError, Where
from benchwright.identity.artifact import MANIFEST
from blocks.store import PlainStore

BUILDS = "builds"
"""Folder of the entries at the place."""

ARCHIVE = "entry.tar"


@dataclass(frozen=True, slots=True)
class StoredBuilds:
    """The `SharedBuilds` of a results store.

    Attributes:
        store: The place.
    """

    store: PlainStore

    def fetch(self, name: str, folder: Path) -> bool:
        """See `SharedBuilds.fetch`."""
        if not self.store.has(f"{BUILDS}/{name}"):
            return False
        beside = folder.with_name(f"{folder.name}.taken")
        try:
            self.store.get(f"{BUILDS}/{name}", beside)
            _unpack(beside / ARCHIVE, folder)
        finally:
            shutil.rmtree(beside, ignore_errors=True)
        return True

    def offer(self, name: str, folder: Path) -> None:
        """See `SharedBuilds.offer`."""
        if self.store.has(f"{BUILDS}/{name}"):
            return
        # Beside the cache's own unfinished entries, which are swept by their signature.
        beside = folder.parent / ".staging" / f"{name}-offer"
        shutil.rmtree(beside, ignore_errors=True)
        try:
            beside.mkdir(parents=True)
            with tarfile.open(beside / ARCHIVE, "w", format=tarfile.PAX_FORMAT) as archive:
                archive.add(folder, arcname=".")
            self.store.put(beside, f"{BUILDS}/{name}")
        except OSError as problem:
            raise BenchwrightError(
                f"an archive can't be made: {problem.strerror or problem}", where=Where(beside)
            ) from problem
        finally:
            shutil.rmtree(beside, ignore_errors=True)


def _unpack(archive: Path, folder: Path) -> None:
    """Unpack an entry; nothing of it lands outside of the folder (PEP 706), and modes are kept.

    Raises:
        BenchwrightError: It is no such archive.
    """
    try:
        with tarfile.open(archive) as packed:
            packed.extractall(folder, filter="data")
            # The filter takes away rights of group and others, which belong to an artifact too.
            for member in packed.getmembers():
                path = folder / member.name
                if (member.isfile() or member.isdir()) and not path.is_symlink():
                    path.chmod(member.mode & 0o777)
    except (tarfile.TarError, OSError, EOFError) as problem:
        raise BenchwrightError(f"its archive can't be read: {problem}") from problem
    if not (folder / MANIFEST).is_file():
        raise BenchwrightError(f"its archive has no {MANIFEST}")

"""The artifact cache: what prep stages made, by the signature of all that it depends on.

    cache/<signature>/manifest.json   who made it, when, and the digest of each file
    cache/<signature>/<artifact>      a file or a folder
    cache/.staging/                   what is being built; of no one's use until it is renamed
    cache/.locks/                     `<signature>.lock` a builder's, `<signature>.use` readers'
    cache/.digests.json               digests of large files, so that a hit is told quickly

An entry appears whole, by one rename, or not at all. Artifacts stay writable: search engines
take write locks in their own index folder and would not start on a read-only one. So a stage that
alters an artifact isn't prevented but noticed: each lookup compares every file with the manifest,
and a run looks once more after its last replicate (`altered`).
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import secrets
import shutil
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchwright.errors import BadInput, BenchwrightError, StageFailed, Where
from benchwright.identity.artifact import MANIFEST, below, difference, inventory
from benchwright.identity.canonical import canonical_json, digest
from benchwright.identity.digests import DigestMemo
from benchwright.identity.locks import Lock, held, take
from benchwright.identity.signature import Signature, changed_parts, explain

if TYPE_CHECKING:
    from benchwright.identity.sharing import SharedBuilds
    from benchwright.spec.model import Stage

SCHEMA = 1
"""Version of `manifest.json`; an entry of another one is a miss."""

NEAREST_LOOKED_AT = 300
"""A miss is explained against the nearest of this many entries, the latest used first."""

MB = 1_000_000
"""Bytes in a megabyte, here as everywhere."""

_NO_SPACE = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}


@dataclass(frozen=True, slots=True)
class Lookup:
    """Whether a signature's artifacts are there.

    Attributes:
        hit: Whether they are, each file as its manifest says.
        paths: Path of each artifact by name; empty for a miss.
        reason: Why it is a hit or a miss, in words.
    """

    hit: bool
    paths: Mapping[str, Path]
    reason: str


@dataclass(frozen=True, slots=True)
class Entry:
    """One entry, for the listing.

    Attributes:
        signature: SHA-256 in hex.
        stage: Name of the stage that made it; empty where the manifest can't be read.
        artifacts: Names.
        created: Wall clock when it was published, ISO 8601; empty where unknown.
        used: Seconds since the epoch of its latest use by a run.
        size: Bytes of its files.
        path: Its folder.
        in_use: Whether a run uses it, or a build replaces it, at this moment.
        problem: What is wrong with it, where that shows without reading it; else empty.
    """

    signature: str
    stage: str
    artifacts: tuple[str, ...]
    created: str
    used: float
    size: int
    path: Path
    in_use: bool
    problem: str = ""


@dataclass(frozen=True, slots=True)
class Pruned:
    """What a prune removed, or would remove.

    Attributes:
        removed: The entries.
        in_use: Entries that it would have removed, were they not in use.
        freed: Bytes.
    """

    removed: tuple[Entry, ...]
    in_use: tuple[Entry, ...]
    freed: int


@dataclass(slots=True)
class Build:
    """One build of a stage's artifacts, while its lock is held.

    Attributes:
        outputs: The path that each artifact must be created at, by name.
        hit: The artifacts, where another run has built them meanwhile; then there is nothing to
            do. Else None.
        published: What `publish` returned; None before.
    """

    outputs: Mapping[str, Path]
    hit: Lookup | None = None
    published: Lookup | None = None
    _publish: Callable[[], Lookup] | None = field(default=None, repr=False)

    def publish(self) -> Lookup:
        """Check that the artifacts are there, and move them into the cache by one rename.

        Raises:
            StageFailed: An artifact is missing or can't be kept, or the disk is full. No entry
                is left then.
        """
        if self._publish is None:
            raise RuntimeError("nothing is being built: look at `hit`")
        self.published = self._publish()
        return self.published


class ArtifactCache:
    """The cache below one folder, shared by all runs of a home.

    Args:
        root: `$BENCHMARK_HOME/cache`; made when something is first built.
        shared: Where several machines share what they build; asked on a miss, and given what was
            built here. None: nowhere.
        on_unshared: Called with a sentence where that place could not be used: a build then takes
            its time, and no run fails for it.
    """

    def __init__(
        self,
        root: Path,
        shared: SharedBuilds | None = None,
        on_unshared: Callable[[str], None] = lambda _text: None,
    ) -> None:
        self.root = root
        self._shared = shared
        self._on_unshared = on_unshared
        self.memo = DigestMemo(root / ".digests.json")
        """Remembers the digests of large files; hand it to `sign` too."""

    # -- looking ---------------------------------------------------------------------------------

    def lookup(self, signature: Signature) -> Lookup:
        """Whether the artifacts are there and are what was published.

        A hit is verified: every file has the size, the digest and the mode that the manifest
        says, and there is none besides.
        """
        if not self._place(signature).is_dir():
            return Lookup(False, {}, self.nearest(signature))
        return self._checked(signature.digest)

    def altered(self, signature: Signature) -> str:
        """What has changed in an entry since it was published; empty: nothing.

        To be asked after the last measure stage, which had the artifacts in its hands.
        """
        found = self._checked(signature.digest)
        return "" if found.hit else found.reason

    def nearest(self, signature: Signature) -> str:
        """Why there is no entry: what changed since the nearest earlier signature of the stage."""
        best: tuple[int, Mapping[str, str]] | None = None
        for entry in self._folders()[:NEAREST_LOOKED_AT]:
            manifest = _read_manifest(entry)
            if isinstance(manifest, str) or manifest["stage"] != signature.stage:
                continue
            if entry.name == signature.digest:
                continue
            changes = len(changed_parts(signature.parts, manifest["parts"]))
            if best is None or changes < best[0]:
                best = (changes, manifest["parts"])
        if best is None:
            return f"no earlier build of stage '{signature.stage}' is in the cache"
        return explain(signature, best[1])

    def _checked(self, name: str, *, fresh: bool = False) -> Lookup:
        """The entry of that signature against its manifest."""
        place = self.root / name
        manifest = _read_manifest(place)
        if isinstance(manifest, str):
            return Lookup(False, {}, manifest)
        problem = difference(place, manifest["files"], self.memo, fresh=fresh)
        self.memo.save()
        if problem:
            return Lookup(False, {}, problem)
        paths = {artifact: place / artifact for artifact in manifest["artifacts"]}
        return Lookup(True, paths, f"built {manifest['created']}, every file as it was")

    # -- building --------------------------------------------------------------------------------

    @contextlib.contextmanager
    def building(
        self,
        signature: Signature,
        stage: Stage,
        *,
        on_wait: Callable[[str], None] | None = None,
    ) -> Iterator[Build]:
        """Build a stage's artifacts once, however many runs want them at this moment.

        Waits for another builder of the same signature. If that one has published them, `hit`
        says so; else `outputs` names paths in a fresh staging folder, to be filled and then
        published. Without `publish`, or after an exception, nothing is left.

        Args:
            signature: Of the stage.
            stage: Its `name` and `produces` are read.
            on_wait: Called once where another builder is waited for, with what is waited for.

        Raises:
            StageFailed: The disk is full, or the cache can't be written.
        """
        if stage.kind != "prep":
            raise ValueError(f"a {stage.kind} stage is never cached")
        try:
            self._make_folders()
            lock = self._builder_lock(signature, stage, on_wait)
        except OSError as error:
            raise _cannot_write(self.root, stage.name, error) from error
        staging: Path | None = None
        try:
            self._sweep_own(signature.digest)
            self._sweep()
            found = self._checked(signature.digest) if self._place(signature).is_dir() else None
            if found is not None and found.hit:
                yield Build({}, Lookup(True, found.paths, "built by a run beside this one"))
                return
            fetched = self._fetch(signature)
            if fetched is not None:
                yield Build({}, fetched)
                return
            try:
                lock.write(f"{os.getpid()} {stage.name}\n")
                staging = self._staging / f"{signature.digest}-{secrets.token_hex(4)}"
                staging.mkdir()
            except OSError as error:
                raise _cannot_write(self.root, stage.name, error) from error
            outputs = {artifact: staging / artifact for artifact in stage.produces}
            folder = staging
            yield Build(outputs, _publish=lambda: self._publish(signature, stage, folder))
        finally:
            if staging is not None:
                _discard(staging)
            lock.release(remove=True)

    def _builder_lock(
        self, signature: Signature, stage: Stage, on_wait: Callable[[str], None] | None
    ) -> Lock:
        file = self._lock_file(signature.digest)
        lock = take(file, wait=False)
        if lock is None:
            if on_wait is not None:
                holder = _first_word(file)
                on_wait(
                    f"another run{f' (process {holder})' if holder else ''}, which builds"
                    f" the same for stage '{stage.name}'"
                )
            lock = take(file)
        assert lock is not None  # it waited
        return lock

    def _publish(self, signature: Signature, stage: Stage, staging: Path) -> Lookup:
        try:
            files = inventory(stage, staging, self.memo)
            manifest = {
                "schema": SCHEMA,
                "signature": signature.digest,
                "stage": stage.name,
                "created": datetime.now(UTC).isoformat(timespec="seconds"),
                "artifacts": list(stage.produces),
                "parts": dict(signature.parts),
                "files": files,
            }
            _write_durably(staging / MANIFEST, json.dumps(manifest, indent=1))
            place = self._place(signature)
            aside = self._staging / f"{signature.digest}-{secrets.token_hex(4)}"
            # Two renames: a crash between them loses an entry that was no hit anyway.
            with contextlib.suppress(FileNotFoundError):
                place.rename(aside)
            staging.rename(place)
            _discard(aside)
        except OSError as error:
            raise _cannot_write(self.root, stage.name, error) from error
        if self._shared is not None:
            try:
                self._shared.offer(signature.digest, place)
            except BenchwrightError as problem:
                self._on_unshared(f"what stage '{stage.name}' built isn't shared: {problem.what}")
        paths = {artifact: place / artifact for artifact in stage.produces}
        return Lookup(True, paths, "built by this run")

    def _fetch(self, signature: Signature) -> Lookup | None:
        """Take an entry from where it is shared, as it was published; None where it isn't there.

        What doesn't match its own manifest is refused, and built here.
        """
        if self._shared is None:
            return None
        staging = self._staging / f"{signature.digest}-{secrets.token_hex(4)}"
        entry, place = staging / signature.digest, self._place(signature)
        try:
            staging.mkdir()
            if not self._shared.fetch(signature.digest, entry):
                return None
            manifest = _read_manifest(entry)
            if isinstance(manifest, str):
                raise BenchwrightError(manifest)
            problem = difference(entry, manifest["files"], self.memo, fresh=True)
            if problem:
                raise BenchwrightError(problem)
            aside = self._staging / f"{signature.digest}-{secrets.token_hex(4)}"
            with contextlib.suppress(FileNotFoundError):
                place.rename(aside)
            entry.rename(place)
            _discard(aside)
        except BenchwrightError as problem:
            self._on_unshared(
                f"what stage '{signature.stage}' needs can't be taken from where builds are"
                f" shared: {problem.what}"
            )
            return None
        except OSError as error:
            raise _cannot_write(self.root, signature.stage, error) from error
        finally:
            _discard(staging)
        paths = {artifact: place / artifact for artifact in manifest["artifacts"]}
        return Lookup(True, paths, f"built {manifest['created']} on another machine, and shared")

    def _sweep_own(self, name: str) -> None:
        """Remove what dead builders of a signature left; its lock is ours, so they are dead."""
        for leftover in self._leftovers():
            if _owner(leftover) == name:
                _discard(leftover)

    def _sweep(self) -> None:
        """Remove what dead builders of any signature left: those whose lock is free."""
        for leftover in self._leftovers():
            lock = take(self._lock_file(_owner(leftover)), wait=False)
            if lock is not None:
                _discard(leftover)
                lock.release(remove=True)

    def _leftovers(self) -> list[Path]:
        with contextlib.suppress(FileNotFoundError):
            return sorted(self._staging.iterdir())
        return []

    # -- using and keeping -----------------------------------------------------------------------

    @contextlib.contextmanager
    def holding(self, signature: Signature) -> Iterator[None]:
        """Keep an entry from being pruned while it's used; also before it is built.

        To be entered before `lookup` and left after the last stage that reads the artifacts.
        """
        try:
            self._make_folders()
            guard = held(self._use_file(signature.digest), shared=True)
        except OSError as error:
            raise _cannot_write(self.root, signature.stage, error) from error
        with guard:
            with contextlib.suppress(OSError):
                os.utime(self._place(signature))
            yield
            with contextlib.suppress(OSError):
                os.utime(self._place(signature))

    def entries(self) -> tuple[Entry, ...]:
        """All entries, the latest used first."""
        return tuple(self._entry(folder) for folder in self._folders())

    def verify(self) -> tuple[tuple[Entry, str], ...]:
        """Every entry with what is wrong with it, or an empty text. Reads every file again."""
        return tuple(
            (
                entry,
                "" if (found := self._checked(entry.signature, fresh=True)).hit else found.reason,
            )
            for entry in self.entries()
        )

    def leftovers(self) -> tuple[Path, ...]:
        """Staging folders whose builder is dead."""
        found = []
        for leftover in self._leftovers():
            lock = take(self._lock_file(_owner(leftover)), wait=False)
            if lock is not None:
                found.append(leftover)
                lock.release()
        return tuple(found)

    def prune(
        self,
        *,
        older_than_s: float | None = None,
        keep: int | None = None,
        max_size_mb: float | None = None,
        dry_run: bool = False,
    ) -> Pruned:
        """Remove entries, the longest unused first; never one that is in use.

        What dead builders left is removed too.

        Args:
            older_than_s: Remove what no run has used for this many seconds.
            keep: Keep at most this many entries.
            max_size_mb: Keep at most this many MB (10^6 bytes).
            dry_run: Only say what would be removed.

        Raises:
            BadInput: No limit is given, or a negative one.
        """
        limits = (older_than_s, keep, max_size_mb)
        if all(limit is None for limit in limits) or any(
            limit is not None and not limit >= 0 for limit in limits
        ):
            raise BadInput(
                "nothing says which entries to remove",
                where=Where(key="cache prune"),
                expected="an age, a number of entries or a size, zero or more",
                hint="for example `benchwright cache prune --keep 20`",
            )
        removed: list[Entry] = []
        in_use: list[Entry] = []
        kept_count, kept_size, now = 0, 0, time.time()
        for entry in self.entries():
            too_old = older_than_s is not None and now - entry.used >= older_than_s
            too_many = keep is not None and kept_count >= keep
            too_much = max_size_mb is not None and kept_size + entry.size > max_size_mb * MB
            if too_old or too_many or too_much:
                gone = not entry.in_use and (dry_run or self._remove(entry))
                (removed if gone else in_use).append(entry)
                if gone:
                    continue
            kept_count += 1
            kept_size += entry.size
        if not dry_run:
            self._sweep()
        return Pruned(tuple(removed), tuple(in_use), sum(entry.size for entry in removed))

    def _remove(self, entry: Entry) -> bool:
        """Remove an entry unless someone uses or builds it."""
        lock = take(self._lock_file(entry.signature), wait=False)
        if lock is None:
            return False
        use = take(self._use_file(entry.signature), wait=False)
        if use is None:
            lock.release()
            return False
        try:
            # Renamed first: a reader never meets half an entry, nor a crash half a removal.
            aside = self._staging / f"{entry.signature}-{secrets.token_hex(4)}"
            self._staging.mkdir(parents=True, exist_ok=True)
            entry.path.rename(aside)
            _discard(aside)
        except OSError:
            return False
        finally:
            use.release(remove=True)
            lock.release(remove=True)
        return True

    def _entry(self, folder: Path) -> Entry:
        manifest = _read_manifest(folder)
        in_use = self._is_locked(folder.name)
        used = _mtime(folder)
        if isinstance(manifest, str):
            return Entry(folder.name, "", (), "", used, _size(folder), folder, in_use, manifest)
        size = sum(row.get("size", 0) for row in manifest["files"])
        artifacts = tuple(manifest["artifacts"])
        return Entry(
            folder.name,
            manifest["stage"],
            artifacts,
            manifest["created"],
            used,
            size,
            folder,
            in_use,
        )

    def _is_locked(self, name: str) -> bool:
        for file in (self._lock_file(name), self._use_file(name)):
            if not file.exists():
                continue
            lock = take(file, wait=False)
            if lock is None:
                return True
            lock.release()
        return False

    # -- places ----------------------------------------------------------------------------------

    def _folders(self) -> list[Path]:
        """The entries' folders, the latest used first."""
        with contextlib.suppress(FileNotFoundError):
            found = [path for path in self.root.iterdir() if path.name[0] != "." and path.is_dir()]
            return sorted(found, key=lambda path: (-_mtime(path), path.name))
        return []

    def _place(self, signature: Signature) -> Path:
        return self.root / signature.digest

    @property
    def _staging(self) -> Path:
        return self.root / ".staging"

    def _lock_file(self, name: str) -> Path:
        return self.root / ".locks" / f"{name}.lock"

    def _use_file(self, name: str) -> Path:
        return self.root / ".locks" / f"{name}.use"

    def _make_folders(self) -> None:
        for folder in (self.root / ".locks", self._staging):
            folder.mkdir(parents=True, exist_ok=True)


def _owner(staging: Path) -> str:
    """The signature that a staging folder belongs to."""
    return staging.name.rpartition("-")[0]


def _read_manifest(place: Path) -> dict[str, Any] | str:
    """An entry's manifest, or what is wrong with it."""
    try:
        manifest = json.loads((place / MANIFEST).read_text())
        parts, name = manifest["parts"], manifest["signature"]
        readable = (
            manifest["schema"] == SCHEMA
            and isinstance(manifest["stage"], str)
            and isinstance(manifest["created"], str)
            and isinstance(manifest["artifacts"], list)
            and all(isinstance(row, dict) and "path" in row for row in manifest["files"])
        )
    except FileNotFoundError:
        return "the entry has no manifest.json"
    except (OSError, ValueError, KeyError, TypeError):
        return "the entry's manifest.json can't be read"
    if not readable:
        return "the entry's manifest.json is of another version"
    if name != place.name or digest(canonical_json(parts)) != name:
        return "the entry's manifest.json belongs to another signature"
    result: dict[str, Any] = manifest
    return result


def _write_durably(path: Path, text: str) -> None:
    with path.open("w") as stream:
        stream.write(text)
        stream.flush()
        os.fsync(stream.fileno())


def _discard(folder: Path) -> None:
    """Remove a folder; what can't be removed now is left to a later sweep."""
    # A program may leave folders that even their owner can't write into.
    for place, _, _ in os.walk(folder):
        with contextlib.suppress(OSError):
            Path(place).chmod(0o700)
    shutil.rmtree(folder, ignore_errors=True)


def _cannot_write(root: Path, stage: str, error: OSError) -> StageFailed:
    if error.errno in _NO_SPACE:
        return StageFailed(
            f"no space left for the artifacts of stage '{stage}'",
            where=Where(file=root),
            expected="room for the stage's artifacts",
            hint="free some space, for example with `benchwright cache prune --keep 10`",
        )
    return StageFailed(
        f"the artifacts of stage '{stage}' can't be kept: {error.strerror}",
        where=Where(file=error.filename or root),
        expected="a folder that can be written",
        hint="make it writable, or choose another home with `--home DIR`",
    )


def _mtime(path: Path) -> float:
    try:
        return path.stat().st_mtime
    except OSError:
        return 0.0


def _size(folder: Path) -> int:
    total = 0
    for path in below(folder):
        with contextlib.suppress(OSError):
            total += path.lstat().st_size if path.is_file() else 0
    return total


def _first_word(file: Path) -> str:
    try:
        return file.read_text().partition(" ")[0]
    except OSError:
        return ""

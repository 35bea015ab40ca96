"""Artifacts are built once, published whole, verified on each hit, and never lost while used."""

from __future__ import annotations

import contextlib
import json
import os
import random
import resource
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from benchwright.errors import BadInput, StageFailed
from benchwright.identity.cache import ArtifactCache, Lookup
from benchwright.identity.canonical import canonical_json, digest
from benchwright.identity.signature import Signature
from benchwright.spec.model import Stage
from tests.support import require

STAGE = Stage(name="build", kind="prep", cmd="true", produces=("index", "words"))


def signature(**parts: str) -> Signature:
    parts = {"domain": "command", **parts}
    return Signature(digest(canonical_json(parts)), parts, STAGE.name)


ONE = signature(command="./build.sh", **{"parameter corpus.n_docs": "20000"})


@pytest.fixture
def cache(tmp_path: Path) -> ArtifactCache:
    return ArtifactCache(tmp_path / "cache")


def fill(index: Path, words: Path) -> None:
    """A folder with a nested file, an executable, an empty folder and an inner link; and a file."""
    (index / "segments").mkdir(parents=True)
    (index / "empty").mkdir()
    (index / "segments" / "0.bin").write_bytes(b"x" * 100_000)
    (index / "tool").write_text("#!/bin/sh\n")
    (index / "tool").chmod(0o755)
    (index / "latest").symlink_to("segments/0.bin")
    words.write_text("one\ntwo\n")


def publish(cache: ArtifactCache, signed: Signature = ONE, stage: Stage = STAGE) -> Lookup:
    with cache.building(signed, stage) as build:
        if build.hit is not None:
            return build.hit
        fill(build.outputs["index"], build.outputs["words"])
        return build.publish()


def build(cache: ArtifactCache, make: Callable[[Path, Path], object]) -> Lookup:
    """Build with another filler."""
    with cache.building(ONE, STAGE) as built:
        make(built.outputs["index"], built.outputs["words"])
        return built.publish()


def nothing_is_left(cache: ArtifactCache) -> bool:
    return not list((cache.root / ".staging").iterdir()) and not cache.entries()


def test_what_was_published_is_found_again_with_its_paths(cache: ArtifactCache) -> None:
    assert not cache.lookup(ONE).hit
    publish(cache)
    found = ArtifactCache(cache.root).lookup(ONE)
    assert found.hit, found.reason
    assert found.paths["words"].read_text() == "one\ntwo\n"
    assert (found.paths["index"] / "latest").stat().st_size == 100_000
    assert os.access(found.paths["index"] / "tool", os.X_OK)


def test_an_entry_lies_at_its_signature_with_a_manifest_that_says_who_made_it(
    cache: ArtifactCache,
) -> None:
    publish(cache)
    manifest = json.loads((cache.root / ONE.digest / "manifest.json").read_text())
    assert (manifest["stage"], manifest["signature"]) == ("build", ONE.digest)
    assert manifest["parts"] == dict(ONE.parts)
    assert {row["path"] for row in manifest["files"]} == {
        "index", "index/empty", "index/latest", "index/segments", "index/segments/0.bin",
        "index/tool", "words",
    }  # fmt: skip


def damage(name: str, entry: Path) -> None:
    segment = entry / "index/segments/0.bin"
    if name == "truncated":
        os.truncate(segment, 99_999)
    elif name == "altered":
        segment.write_bytes(b"x" * 99_999 + b"y")
    elif name == "altered with its times put back":
        before = segment.stat()
        segment.write_bytes(b"x" * 99_999 + b"y")
        os.utime(segment, ns=(before.st_atime_ns, before.st_mtime_ns))
    elif name == "missing":
        segment.unlink()
    elif name == "missing artifact":
        (entry / "words").unlink()
    elif name == "added":
        (entry / "index/segments/1.bin").write_text("")
    elif name == "mode":
        (entry / "index/tool").chmod(0o644)
    elif name == "folder gone":
        (entry / "index/empty").rmdir()
    elif name == "link":
        (entry / "index/latest").unlink()
        (entry / "index/latest").symlink_to("tool")
    elif name == "no manifest":
        (entry / "manifest.json").unlink()
    elif name == "half a manifest":
        text = (entry / "manifest.json").read_text()
        (entry / "manifest.json").write_text(text[: len(text) // 2])
    elif name == "another's manifest":
        text = (entry / "manifest.json").read_text()
        (entry / "manifest.json").write_text(text.replace("20000", "50000"))


DAMAGES = {
    "truncated": "'index/segments/0.bin' was truncated: 99999 bytes, not 100000",
    "altered": "'index/segments/0.bin' was altered",
    "altered with its times put back": "'index/segments/0.bin' was altered",
    "missing": "'index/segments/0.bin' is missing",
    "missing artifact": "'words' is missing",
    "added": "'index/segments/1.bin' was added since it was built",
    "mode": "'index/tool' has mode 644, not 755",
    "folder gone": "'index/empty' is missing",
    "link": "'index/latest' is no longer the same link",
    "no manifest": "the entry has no manifest.json",
    "half a manifest": "the entry's manifest.json can't be read",
    "another's manifest": "the entry's manifest.json belongs to another signature",
}


@pytest.mark.parametrize("kind", DAMAGES)
def test_a_damaged_entry_is_a_miss_that_says_what_and_is_built_anew(
    cache: ArtifactCache, kind: str
) -> None:
    publish(cache)
    assert cache.lookup(ONE).hit
    damage(kind, cache.root / ONE.digest)
    found = cache.lookup(ONE)
    assert (found.hit, found.reason) == (False, DAMAGES[kind])
    assert cache.altered(ONE) == DAMAGES[kind]
    assert [reason for _, reason in cache.verify()] == [DAMAGES[kind]]
    publish(cache)
    assert cache.lookup(ONE).hit
    assert not list((cache.root / ".staging").iterdir())


def test_a_miss_is_explained_against_the_nearest_earlier_signature(cache: ArtifactCache) -> None:
    assert cache.lookup(ONE).reason == "no earlier build of stage 'build' is in the cache"
    publish(cache)
    publish(cache, signature(command="./other.sh", **{"parameter corpus.n_docs": "30000"}))
    changed = signature(command="./build.sh", **{"parameter corpus.n_docs": "50000"})
    assert cache.lookup(changed).reason == "parameter corpus.n_docs: 20000 -> 50000"


def test_another_stages_signature_explains_nothing(cache: ArtifactCache) -> None:
    publish(cache, stage=STAGE.model_copy(update={"name": "other"}))
    changed = signature(command="./build.sh", **{"parameter corpus.n_docs": "50000"})
    assert cache.nearest(changed) == "no earlier build of stage 'build' is in the cache"


def test_a_missing_artifact_fails_the_stage_by_name_and_leaves_nothing(
    cache: ArtifactCache,
) -> None:
    with pytest.raises(StageFailed, match="ended without making words"):
        build(cache, lambda index, words: index.mkdir())
    assert nothing_is_left(cache)


@pytest.mark.parametrize("error", [RuntimeError, KeyboardInterrupt])
def test_a_failed_build_leaves_nothing(cache: ArtifactCache, error: type[BaseException]) -> None:
    def make(index: Path, words: Path) -> None:
        fill(index, words)
        raise error

    with pytest.raises(error):
        build(cache, make)
    assert nothing_is_left(cache)


def test_a_build_that_is_not_published_leaves_nothing(cache: ArtifactCache) -> None:
    with cache.building(ONE, STAGE) as built:
        fill(built.outputs["index"], built.outputs["words"])
    assert nothing_is_left(cache)


@pytest.mark.parametrize(
    "target",
    ["/etc/hostname", "../words", "../../x", "segments/../../words", "segments/up/../words"],
)
def test_a_link_that_leads_out_of_its_artifact_is_refused(
    cache: ArtifactCache, target: str
) -> None:
    def make(index: Path, words: Path) -> None:
        fill(index, words)
        (index / "segments" / "up").symlink_to("..")
        (index / "out").symlink_to(target)

    with pytest.raises(StageFailed, match="leads out of its artifact"):
        build(cache, make)
    assert nothing_is_left(cache)


@pytest.mark.parametrize("target", ["segments/up/tool", "segments/not-there", "out"])
def test_a_link_inside_its_artifact_is_kept_wherever_it_leads(
    cache: ArtifactCache, target: str
) -> None:
    def make(index: Path, words: Path) -> None:
        fill(index, words)
        (index / "segments" / "up").symlink_to("..")
        (index / "out").symlink_to(target)

    build(cache, make)
    found = cache.lookup(ONE)
    assert found.hit, found.reason
    assert (found.paths["index"] / "out").readlink() == Path(target)


def test_an_artifact_that_is_itself_a_link_is_refused(cache: ArtifactCache) -> None:
    def make(index: Path, words: Path) -> None:
        index.mkdir()
        words.symlink_to("index")

    with pytest.raises(StageFailed, match="leads out of its artifact"):
        build(cache, make)


def test_a_pipe_in_an_artifact_is_refused(cache: ArtifactCache) -> None:
    def make(index: Path, words: Path) -> None:
        fill(index, words)
        os.mkfifo(index / "pipe")

    with pytest.raises(StageFailed, match="neither file, folder nor link"):
        build(cache, make)


# -- several processes ---------------------------------------------------------------------------

BUILDER = """
import sys, time
from pathlib import Path
from benchwright.identity.cache import ArtifactCache
from tests.identity.test_cache import ONE, STAGE, fill

root, mode = Path(sys.argv[1]), sys.argv[2]
def say(text):
    print(text, flush=True)

with ArtifactCache(root).building(ONE, STAGE, on_wait=say) as build:
    if build.hit:
        say(build.hit.reason)
    else:
        fill(build.outputs["index"], build.outputs["words"])
        say("building")
        if mode == "hang":
            import subprocess
            child = subprocess.Popen(["sleep", "60"])  # a stage's process, which outlives us
            say(child.pid)
            time.sleep(60)
        sys.stdin.readline()
        build.publish()
        say("published")
"""


@contextlib.contextmanager
def builder(cache: ArtifactCache, mode: str = "build") -> Iterator[subprocess.Popen[str]]:
    root = Path(__file__).parents[2]
    with subprocess.Popen(
        [sys.executable, "-c", BUILDER, str(cache.root), mode],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd=root,
        env={**os.environ, "PYTHONPATH": str(root)},
    ) as process:
        try:
            yield process
        finally:
            process.kill()


def line(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


def test_two_processes_that_want_one_signature_build_it_once(cache: ArtifactCache) -> None:
    with builder(cache) as first:
        assert line(first) == "building"
        with builder(cache) as second:
            assert line(second).startswith(f"another run (process {first.pid})")
            assert first.stdin is not None
            first.stdin.write("\n")
            first.stdin.flush()
            assert line(first) == "published"
            assert line(second) == "built by a run beside this one"
    assert cache.lookup(ONE).hit


def test_after_kill_9_of_a_builder_the_next_builds_at_once_and_nothing_is_left(
    cache: ArtifactCache,
) -> None:
    with builder(cache, "hang") as process:
        assert line(process) == "building"
        child = int(line(process))
        try:
            assert cache.leftovers() == ()  # it's alive: nothing of its is swept
            process.kill()
            process.wait()
            assert len(cache.leftovers()) == 1
            assert not cache.lookup(ONE).hit
            waited: list[str] = []
            with cache.building(ONE, STAGE, on_wait=waited.append) as build:
                assert waited == []  # the child has not inherited the lock
                assert len(list((cache.root / ".staging").iterdir())) == 1
                fill(build.outputs["index"], build.outputs["words"])
                build.publish()
        finally:
            os.kill(child, signal.SIGKILL)
    assert cache.lookup(ONE).hit
    assert not list((cache.root / ".staging").iterdir())


def test_a_dead_builders_leftovers_are_swept_by_the_next_build_of_another_signature(
    cache: ArtifactCache,
) -> None:
    with builder(cache, "hang") as process:
        line(process)
        child = int(line(process))
        process.kill()
        process.wait()
        os.kill(child, signal.SIGKILL)
    publish(cache, signature(command="other"))
    assert not list((cache.root / ".staging").iterdir())


def forked(work: Callable[[], object]) -> int:
    """Do it in a forked process, which ends without pytest's own clean-up; gives its id."""
    child = os.fork()
    if child == 0:
        with contextlib.suppress(BaseException):
            work()
            os._exit(0)
        os._exit(1)
    return child


def test_eight_processes_at_once_build_a_signature_once(
    cache: ArtifactCache, tmp_path: Path
) -> None:
    def want() -> None:
        with cache.holding(ONE), cache.building(ONE, STAGE) as built:
            if built.hit is None:
                with (tmp_path / "builds").open("a") as builds:
                    builds.write("x")
                fill(built.outputs["index"], built.outputs["words"])
                built.publish()
            assert cache.lookup(ONE).hit

    children = [forked(want) for _ in range(8)]
    assert [os.waitpid(child, 0)[1] for child in children] == [0] * 8
    assert (tmp_path / "builds").read_text() == "x"


def test_kill_9_at_any_moment_leaves_a_whole_entry_or_none(cache: ArtifactCache) -> None:
    draw = random.Random(20250101)

    def rebuild() -> None:
        while True:  # each round replaces the entry, as for a damaged one
            damage("altered", cache.root / ONE.digest)
            publish(cache)

    publish(cache)
    for _ in range(30):
        child = forked(rebuild)
        time.sleep(draw.uniform(0.001, 0.02))
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        found = cache.lookup(ONE)
        # The only damage is the one that the child itself did: never a part of a build.
        own = ("was altered", "was truncated", "no earlier build")
        assert found.hit or any(words in found.reason for words in own), found.reason
        publish(cache)
        assert cache.lookup(ONE).hit
        assert not list((cache.root / ".staging").iterdir())


def test_folders_that_no_one_may_write_into_are_removed_all_the_same() -> None:
    # A user's, not root's, who may do anything.
    with tempfile.TemporaryDirectory() as place:
        if os.geteuid() == 0:
            os.chown(place, 65534, 65534)

        def attempt() -> None:
            if os.geteuid() == 0:
                os.setuid(65534)
            own = ArtifactCache(Path(place) / "cache")

            def make(index: Path, words: Path) -> None:
                fill(index, words)
                (index / "segments").chmod(0o555)
                index.chmod(0o555)
                raise RuntimeError

            with contextlib.suppress(RuntimeError):
                build(own, make)
            assert nothing_is_left(own)

        child = forked(attempt)
        assert os.waitpid(child, 0)[1] == 0


# -- full disks ----------------------------------------------------------------------------------


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 1 MB."""
    place = tmp_path / "small"
    place.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=1m", "none", str(place)]
    mounted = os.geteuid() == 0 and subprocess.run(command, capture_output=True).returncode == 0
    require(mounted, "a tmpfs can only be mounted by root, outside most containers")
    try:
        yield place
    finally:
        subprocess.run(["umount", str(place)], check=True)


def test_a_full_disk_leaves_no_entry_and_says_so(small_disk: Path) -> None:
    cache = ArtifactCache(small_disk / "cache")
    filler = small_disk / "filler"

    def make(index: Path, words: Path) -> None:
        fill(index, words)
        with contextlib.suppress(OSError):
            filler.write_bytes(b"x" * 2_000_000)

    with pytest.raises(StageFailed, match="no space left for the artifacts of stage 'build'"):
        build(cache, make)
    filler.unlink()
    assert nothing_is_left(cache)
    assert publish(cache).hit


def test_a_file_size_limit_leaves_no_entry_and_says_so(cache: ArtifactCache) -> None:
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    ignored = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)

    def make(index: Path, words: Path) -> None:
        fill(index, words)
        resource.setrlimit(resource.RLIMIT_FSIZE, (16, limits[1]))

    try:
        with pytest.raises(StageFailed, match="no space left") as failure:
            build(cache, make)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        signal.signal(signal.SIGXFSZ, ignored)
    assert "benchwright cache prune" in str(failure.value)
    assert nothing_is_left(cache)


# -- keeping and pruning -------------------------------------------------------------------------


def aged(cache: ArtifactCache, *ages: float) -> list[Signature]:
    """One entry for each age, in seconds since its last use."""
    signed = []
    for age in ages:
        signed.append(signature(command=str(age)))
        publish(cache, signed[-1])
        used = time.time() - age
        os.utime(cache.root / signed[-1].digest, (used, used))
    return signed


def left(cache: ArtifactCache, signed: list[Signature]) -> list[int]:
    return [number for number, one in enumerate(signed) if cache.lookup(one).hit]


@pytest.mark.parametrize(
    ("limit", "kept"),
    [
        ({"older_than_s": 150}, [0]),
        ({"keep": 2}, [0, 1]),
        ({"max_size_mb": 0.15}, [0]),
        ({"max_size_mb": 0.25}, [0, 1]),
        ({"keep": 0}, []),
    ],
    ids=str,
)
def test_pruning_removes_the_longest_unused_beyond_a_limit(
    cache: ArtifactCache, limit: dict[str, float], kept: list[int]
) -> None:
    signed = aged(cache, 100, 200, 300)
    tried = cache.prune(**limit, dry_run=True)  # type: ignore[arg-type]
    assert left(cache, signed) == [0, 1, 2]
    done = cache.prune(**limit)  # type: ignore[arg-type]
    assert left(cache, signed) == kept
    assert [entry.signature for entry in tried.removed] == [e.signature for e in done.removed]
    assert done.freed == sum(entry.size for entry in done.removed) > 0


def test_an_entry_that_a_run_holds_is_never_pruned(cache: ArtifactCache) -> None:
    signed = aged(cache, 100, 200)
    with cache.holding(signed[1]):
        assert [entry.in_use for entry in cache.entries()] == [True, False]  # the latest used first
        done = cache.prune(keep=0)
        assert [entry.signature for entry in done.in_use] == [signed[1].digest]
        assert left(cache, signed) == [1]
    assert cache.prune(keep=0).removed
    assert left(cache, signed) == []


def test_an_entry_that_is_taken_into_use_while_pruning_is_kept(
    cache: ArtifactCache, monkeypatch: pytest.MonkeyPatch
) -> None:
    publish(cache)
    with cache.holding(ONE):
        monkeypatch.setattr(cache, "_is_locked", lambda name: False)  # as it was a moment ago
        assert cache.prune(keep=0).removed == ()
    assert cache.lookup(ONE).hit


def test_two_runs_may_hold_one_entry(cache: ArtifactCache) -> None:
    publish(cache)
    with cache.holding(ONE), cache.holding(ONE):
        assert cache.lookup(ONE).hit


def test_a_signature_can_be_held_before_it_is_built(cache: ArtifactCache) -> None:
    with cache.holding(ONE):
        publish(cache)
        assert cache.prune(keep=0).removed == ()
    assert cache.lookup(ONE).hit


def test_an_entry_that_is_being_rebuilt_is_not_pruned(cache: ArtifactCache) -> None:
    publish(cache)
    damage("altered", cache.root / ONE.digest)
    with cache.building(ONE, STAGE) as build:
        assert cache.prune(keep=0).removed == ()
        fill(build.outputs["index"], build.outputs["words"])
        build.publish()
    assert cache.lookup(ONE).hit


def test_pruning_leaves_no_lock_files(cache: ArtifactCache) -> None:
    aged(cache, 1, 2, 3)
    cache.prune(keep=0)
    assert not list((cache.root / ".locks").iterdir())


def test_pruning_without_a_limit_is_refused(cache: ArtifactCache) -> None:
    with pytest.raises(BadInput, match="which entries to remove"):
        cache.prune()


def test_a_cache_that_is_not_there_yet_is_an_empty_one(tmp_path: Path) -> None:
    cache = ArtifactCache(tmp_path / "nowhere" / "cache")
    assert (cache.entries(), cache.verify(), cache.leftovers()) == ((), (), ())
    assert not cache.lookup(ONE).hit
    assert cache.prune(keep=1).removed == ()
    assert not (tmp_path / "nowhere").exists()  # a plan writes nothing


@pytest.mark.parametrize("kind", ["measure", "step", "gate"])
def test_case_11_a_stage_that_always_runs_is_never_cached(cache: ArtifactCache, kind: str) -> None:
    stage = Stage(name="search", kind=kind, cmd="true")
    with pytest.raises(ValueError, match="never cached"), cache.building(ONE, stage):
        pass

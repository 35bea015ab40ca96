"""What a benchmark home remembers: whether it is whole, and agrees with itself."""

from __future__ import annotations

from benchwright.errors import BadInput
from benchwright.execution.orphans import find_orphans, sweep_orphans
from benchwright.identity.cache import ArtifactCache
from benchwright.planning.health.check import (
    Examination,
    Place,
    Seen,
    broken,
    ok,
    warning,
)
from benchwright.record.home import Layout
from benchwright.record.index import UNREADABLE, index_is_current, read_index, rebuild_index
from benchwright.record.run import Status
from benchwright.record.store import RunFolder, RunStore

NAMED = 3
"""Most runs that are named."""


def orphans(place: Place) -> Seen:
    """Processes of stages whose supervisor is gone."""
    found = find_orphans(place.home)
    if not found:
        return ok("no process of a stage was left behind")
    names = ", ".join(f"{one.name} ({one.pid})" for one in found[:NAMED])
    return broken(
        f"{len(found)} process(es) of stages outlived their supervisor: {names}",
        "benchwright doctor --fix",
    )


def end_orphans(place: Place) -> str:
    """End them."""
    return f"ended {len(sweep_orphans(place.home))} process(es)"


def lost_runs(place: Place) -> tuple[RunFolder, ...]:
    """Runs that are recorded as running and whose process is gone."""
    lost = []
    for folder in RunStore(place.home).folders():
        try:
            if folder.status is Status.IN_PROGRESS and not folder.alive() and not folder.waits():
                lost.append(folder)
        except BadInput:
            continue  # another check's
    return tuple(lost)


def stale_runs(place: Place) -> Seen:
    """Runs that are recorded as running and aren't."""
    lost = lost_runs(place)
    if not lost:
        return ok("every run that is recorded as running does")
    return broken(
        f"{len(lost)} run(s) are recorded as running, and their process is gone:"
        f" {_named([folder.run_id for folder in lost])}",
        "benchwright doctor --fix",
    )


def settle_runs(place: Place) -> str:
    """Record them as interrupted; what they finished is kept."""
    settled = [folder for folder in lost_runs(place) if folder.settle() is Status.INTERRUPTED]
    return f"recorded {len(settled)} run(s) as interrupted; benchwright resume goes on with one"


def index(place: Place) -> Seen:
    """Whether the index says what the folders say."""
    if not Layout(place.home).runs.is_dir():
        return ok("there are no runs yet")
    if index_is_current(place.home):
        return ok("the index says what the runs' folders say")
    return broken(
        "the index is another one than the runs' folders give", "benchwright doctor --fix"
    )


def make_index(place: Place) -> str:
    """Make it again from the folders."""
    return f"made the index again, of {len(rebuild_index(place.home))} run(s)"


def records(place: Place) -> Seen:
    """Whether every run can be read."""
    if not Layout(place.home).runs.is_dir():
        return ok("there are no runs yet")
    rows = read_index(place.home)
    bad = [row for row in rows if row.status == UNREADABLE]
    if not bad:
        return ok(f"{len(rows)} run(s), each can be read")
    return warning(
        f"{len(bad)} run(s) can't be read: {_named([row.run_id for row in bad])}"
        f" ({bad[0].note}); no other run depends on them",
        f"benchwright status {bad[0].run_id}",
    )


def artifacts(place: Place) -> Seen:
    """Whether every built artifact is what was built, and nothing half-built lies about."""
    cache = ArtifactCache(Layout(place.home).cache)
    entries = cache.verify()
    wrong = [(entry, problem) for entry, problem in entries if problem]
    left = cache.leftovers()
    if wrong:
        entry, problem = wrong[0]
        return warning(
            f"{len(wrong)} of {len(entries)} built artifact(s) were changed"
            f" ({entry.stage or entry.signature[:12]}: {problem}); they are built anew when they"
            " are needed",
            "benchwright cache verify",
        )
    if left:
        return warning(
            f"{len(left)} half-built artifact(s) were left by processes that died",
            "benchwright doctor --fix",
        )
    return ok(f"{len(entries)} built artifact(s), every file as it was built")


def sweep_cache(place: Place) -> str:
    """Remove what is half-built; what was built stays."""
    cache = ArtifactCache(Layout(place.home).cache)
    before = len(cache.leftovers())
    cache.prune(keep=len(cache.entries()))
    return f"removed {before} half-built artifact(s)"


def _named(names: list[str]) -> str:
    more = f" and {len(names) - NAMED} more" if len(names) > NAMED else ""
    return ", ".join(names[:NAMED]) + more


HOME: tuple[Examination[Place], ...] = (
    Examination("orphans", orphans, end_orphans),
    Examination("stale runs", stale_runs, settle_runs),
    Examination("index", index, make_index),
    Examination("records", records),
    Examination("cache", artifacts, sweep_cache),
)
"""What is remembered, checked one by one."""

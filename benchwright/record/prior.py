"""The runs before: what a new run inherits from and is held against."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from benchwright.errors import BadInput
from benchwright.judgement.kin import of_one_kind
from benchwright.record.index import IndexRow, config_prefix, read_index
from benchwright.record.run import Status
from benchwright.record.store import RunFolder

if TYPE_CHECKING:
    from benchwright.judgement.view import RunView
    from benchwright.spec.model import BenchmarkConfig

MOST_PRIORS = 20
"""Latest runs that are read: a record costs some tens of milliseconds, and older ones say less."""

CITABLE = ("RELIABLE", "QUALIFIED")
"""Tags of the runs that may be cited or serve as a baseline."""

MOST_STRANGERS = 200
"""Runs of another kind that are passed over in search of one's own; a configuration costs a few
milliseconds to read."""


def priors(
    home: Path,
    domain: str,
    recipe: str | None,
    *,
    config_hash: str | None = None,
    before: str | None = None,
    most: int = MOST_PRIORS,
    samples: bool = True,
    like: BenchmarkConfig | None = None,
) -> tuple[RunView, ...]:
    """The completed runs of a domain and recipe, the newest last.

    Only what is needed is read: the `most` latest, beside them the latest RELIABLE one, and the
    latest ones with the same configuration, however old they are.

    Args:
        home: The benchmark home.
        domain, recipe: What the runs are about; no recipe is a recipe of its own.
        config_hash: The configuration that may have been run before.
        before: A run id; only the runs that the index lists before it count.
        most: How many of the latest runs are read.
        samples: Whether to read the replicates.
        like: An experiment; without a recipe, runs of other kinds (`of_one_kind`) don't count.

    Returns:
        Views with the tags as they are now. A run that can't be read is left out.
    """
    rows = _rows(home, domain, recipe, before)
    same = config_prefix(config_hash) if config_hash is not None else None
    strange = like if recipe is None else None
    wanted: set[IndexRow] = set()
    latest = repeats = strangers = 0
    reliable = False
    for row in reversed(rows):
        repeat = row.config == same and repeats < most
        if not (repeat or latest < most or (row.tag == "RELIABLE" and not reliable)):
            continue
        if strange is not None and not repeat and not _is_kin(home, row, strange):
            strangers += 1
            if strangers == MOST_STRANGERS:
                break
            continue
        wanted.add(row)
        latest, repeats = latest + 1, repeats + repeat
        reliable = reliable or row.tag == "RELIABLE"
    views = (_view(home, row, samples) for row in rows if row in wanted)
    return tuple(view for view in views if view is not None)


def _is_kin(home: Path, row: IndexRow, like: BenchmarkConfig) -> bool:
    try:
        return of_one_kind(like, RunFolder(home, row.run_id).config())
    except BadInput:
        return False


def latest_reliable(
    home: Path, domain: str, recipe: str | None, *, before: str | None = None
) -> RunView | None:
    """The latest RELIABLE run, without its replicates; None: there is none."""
    for row in reversed(_rows(home, domain, recipe, before)):
        if row.tag == "RELIABLE":
            view = _view(home, row, samples=False)
            if view is not None:
                return view
    return None


def latest_citable(
    home: Path, domain: str, recipe: str | None, *, before: str | None = None
) -> RunView | None:
    """The latest run that may be cited (RELIABLE or QUALIFIED), with its replicates."""
    for row in reversed(_rows(home, domain, recipe, before)):
        if row.tag in CITABLE:
            view = _view(home, row, samples=True)
            if view is not None:
                return view
    return None


def _rows(home: Path, domain: str, recipe: str | None, before: str | None) -> tuple[IndexRow, ...]:
    rows = read_index(home, domain=domain, recipe=recipe or "", status=Status.COMPLETED)
    if before is None:
        return rows
    # The run itself may be there already, and others may have started since.
    everything = [row.run_id for row in read_index(home)]
    if before not in everything:
        return rows
    earlier = set(everything[: everything.index(before)])
    return tuple(row for row in rows if row.run_id in earlier)


def _view(home: Path, row: IndexRow, samples: bool) -> RunView | None:
    try:
        return RunFolder(home, row.run_id).view(samples=samples)
    except BadInput:
        return None

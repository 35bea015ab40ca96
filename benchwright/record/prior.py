"""The runs before: what a new run inherits from and is held against."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from benchwright.errors import BadInput
from benchwright.record.index import IndexRow, config_prefix, read_index
from benchwright.record.run import Status
from benchwright.record.store import RunFolder

if TYPE_CHECKING:
    from benchwright.judgement.view import RunView

MOST_PRIORS = 20
"""Latest runs that are read: a record costs some tens of milliseconds, and older ones say less."""

CITABLE = ("RELIABLE", "QUALIFIED")
"""Tags of the runs that may be cited or serve as a baseline."""


def priors(
    home: Path,
    domain: str,
    recipe: str | None,
    *,
    config_hash: str | None = None,
    before: str | None = None,
    most: int = MOST_PRIORS,
    samples: bool = True,
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

    Returns:
        Views with the tags as they are now. A run that can't be read is left out.
    """
    rows = _rows(home, domain, recipe, before)
    wanted = set(rows[-most:]) if most else set()
    wanted.update([row for row in rows if row.tag == "RELIABLE"][-1:])
    if config_hash is not None:
        same = config_prefix(config_hash)
        wanted.update([row for row in rows if row.config == same][-most:])
    views = (_view(home, row, samples) for row in rows if row in wanted)
    return tuple(view for view in views if view is not None)


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

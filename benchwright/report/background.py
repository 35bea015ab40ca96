"""What a report says beside its run: the runs before it, and the lessons that were applied."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from benchwright.record.lessons import Entry, by_id
from benchwright.record.prior import priors

if TYPE_CHECKING:
    from benchwright.judgement.view import RunView
    from benchwright.record.run import RunRecord

_PRIORS_SHOWN = 5


@dataclass(frozen=True, slots=True)
class Background:
    """What surrounds a run.

    Attributes:
        priors: Earlier completed runs of the same domain and recipe, the newest last.
        notes: The lessons and risks that were shown when it was planned.
    """

    priors: tuple[RunView, ...] = ()
    notes: tuple[Entry, ...] = ()


def background(record: RunRecord) -> Background:
    """What the benchmark home knows around this run; nothing for a record without a folder."""
    if record.folder is None:
        return Background()
    home, view = record.folder.parent.parent, record.view
    return Background(
        priors=priors(
            home,
            view.config.domain,
            view.config.recipe,
            before=view.run_id,
            most=_PRIORS_SHOWN,
            samples=False,
            like=view.config,
        ),
        notes=by_id(home, record.lessons),
    )

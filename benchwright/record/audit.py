"""What was said of a run after it ended: tags lowered, comparisons made, flags that follow.

Flags are worked out from the audit lines and the comparisons when they are asked for, and stand
in no file: a crash between two writes can't leave one out.
"""

from __future__ import annotations

import getpass
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchwright.errors import BadInput, Where
from benchwright.record import clock
from benchwright.record.documents import dump_line, load_lines
from benchwright.record.files import PUBLIC, append_line
from benchwright.record.home import Layout
from benchwright.record.run_id import check_run_id

if TYPE_CHECKING:
    from benchwright.judgement.verdict import Tag

_AUDIT = "audit.jsonl"


@dataclass(frozen=True, slots=True)
class Reclassification:
    """One line of a run's audit.

    Attributes:
        t: When, ISO 8601.
        was: The tag before; empty where it had none.
        tag: The tag after.
        reason: Why, in a person's words.
        by: Who.
    """

    t: str
    was: str
    tag: str
    reason: str
    by: str

    def __str__(self) -> str:
        return f"{self.t}: {self.was or 'no tag'} -> {self.tag} by {self.by}: {self.reason}"


@dataclass(frozen=True, slots=True)
class Comparison:
    """Two runs that were compared.

    Attributes:
        t: When, ISO 8601.
        baseline, treatment: Run ids.
        kind: What for: `compare`, `reproduction`, `prior`, ...
    """

    t: str
    baseline: str
    treatment: str
    kind: str


def _user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return "unknown"


def audit(folder: Path) -> tuple[Reclassification, ...]:
    """The reclassifications of the run in `folder`, oldest first. Raises BadInput."""
    path = folder / _AUDIT
    return tuple(
        Reclassification(**_fields(row, ("t", "was", "tag", "reason", "by"), path, line))
        for line, row in load_lines(path)[0]
    )


def audit_lines(folder: Path) -> tuple[str, ...]:
    """The same as sentences."""
    return tuple(str(entry) for entry in audit(folder))


def current_tag(folder: Path, judged: str) -> str:
    """The tag now: the last reclassification's, else what judgement said. Raises BadInput."""
    entries = audit(folder)
    return entries[-1].tag if entries else judged


def _fields(row: Mapping[str, Any], names: Sequence[str], path: Path, line: int) -> dict[str, str]:
    missing = [name for name in names if not isinstance(row.get(name), str)]
    if missing:
        raise BadInput(f"lacks {', '.join(missing)}", where=Where(path, line))
    return {name: row[name] for name in names}


def record_reclassification(
    home: Path, run_id: str, tag: Tag, reason: str, *, was: Tag | None, by: str | None = None
) -> tuple[str, ...]:
    """Record that a person lowered a tag; `judgement` has decided that it may be.

    Returns:
        Ids of the runs that are flagged by it: those that were compared with this one.

    Raises:
        BadInput: There is no such run, or the reason is empty.
    """
    from benchwright.record.index import update_index

    folder = Layout(home).runs / check_run_id(run_id)
    if not folder.is_dir():
        raise BadInput(f"there is no run {run_id}", where=Where(folder))
    if not reason.strip():
        raise BadInput(
            "a tag isn't changed without a reason",
            where=Where(key="--reason"),
            expected="a sentence that someone else can follow",
        )
    row = {
        "t": clock.now_text(),
        "was": str(was) if was else "",
        "tag": str(tag),
        "reason": " ".join(reason.split()),
        "by": by or _user(),
    }
    append_line(folder / _AUDIT, dump_line(row), mode=PUBLIC)
    others = tuple(sorted(compared_with(home).get(run_id, {})))
    update_index(home, run_id, *others)
    return others


def record_comparison(home: Path, baseline: str, treatment: str, kind: str = "compare") -> None:
    """Remember that two runs were compared, so that lowering one flags the other."""
    if check_run_id(baseline) == check_run_id(treatment):
        return
    row = {"t": clock.now_text(), "baseline": baseline, "treatment": treatment, "kind": kind}
    append_line(Layout(home).comparisons, dump_line(row), mode=PUBLIC)


def comparisons(home: Path) -> tuple[Comparison, ...]:
    """All comparisons, oldest first. Raises BadInput."""
    path = Layout(home).comparisons
    return tuple(
        Comparison(**_fields(row, ("t", "baseline", "treatment", "kind"), path, line))
        for line, row in load_lines(path)[0]
    )


def compared_with(home: Path) -> dict[str, dict[str, str]]:
    """For each run the runs that it was compared with, and when first. Raises BadInput."""
    found: dict[str, dict[str, str]] = {}
    for entry in comparisons(home):
        found.setdefault(entry.baseline, {}).setdefault(entry.treatment, entry.t)
        found.setdefault(entry.treatment, {}).setdefault(entry.baseline, entry.t)
    return found


def flags(
    home: Path, run_id: str, compared: Mapping[str, Mapping[str, str]] | None = None
) -> tuple[str, ...]:
    """Sentences on runs that were lowered since this one was compared with them.

    Args:
        home: The benchmark home.
        run_id: The run that may be flagged.
        compared: What `compared_with` says, for who asks about many runs.

    Raises:
        BadInput: An audit or the list of comparisons can't be read.
    """
    compared = compared_with(home) if compared is None else compared
    sentences = []
    for other, since in compared.get(run_id, {}).items():
        lowered = [entry for entry in audit(Layout(home).runs / other) if _after(entry.t, since)]
        if lowered:
            last = lowered[-1]
            sentences.append(
                f"it was compared with {other}, which is {last.tag} since {last.t}: {last.reason}"
            )
    return tuple(sentences)


def _after(moment: str, other: str) -> bool:
    from datetime import datetime

    return datetime.fromisoformat(moment) >= datetime.fromisoformat(other)

"""Who approved what a run may cost, and what runs have spent: beside the run, and for the month.

`approval.json` lies in the run's folder; `spending.jsonl` in the home has a line for each run that
cost something, and is what a month's budget is counted from.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from datetime import datetime
from pathlib import Path
from typing import ClassVar

from benchwright.errors import BadInput, GateRefused, GuardEnded, Where
from benchwright.record import clock
from benchwright.record.documents import dump_line, load_lines
from benchwright.record.files import PRIVATE, append_line, write_atomically

APPROVAL = "approval.json"
LEDGER = "spending.jsonl"

UNANSWERED = "nobody answered in time: nothing that needs the answer was started"
"""Reason of a run whose question got no answer."""


class Rejected(GateRefused):
    """A person said no, or nobody said yes in full."""

    state_name: ClassVar[str] = "Rejected"


class AnswerTimedOut(GateRefused):
    """Nobody answered in time."""

    state_name: ClassVar[str] = "ApprovalTimedOut"


class CeilingPassed(GuardEnded):
    """The run has spent what was approved."""

    state_name: ClassVar[str] = "CeilingPassed"


@dataclass(frozen=True, slots=True)
class Consent:
    """What a person allowed a run to spend.

    Attributes:
        who: The person's name, as they gave it.
        max_usd: The ceiling, in US dollars; 0: only what is free.
        how: `form`, `terminal`, or `unattended` (an option, or none: nobody can be asked).
        at: When, ISO 8601.
        note: Words that they added.
    """

    who: str
    max_usd: float
    how: str
    at: str
    note: str = ""

    @classmethod
    def now(cls, who: str, max_usd: float, how: str, note: str = "") -> Consent:
        """One that is given at this moment."""
        return cls(who=who, max_usd=max_usd, how=how, at=clock.now_text(), note=note)

    def __str__(self) -> str:
        said = f"up to {self.max_usd:.2f} USD, approved by {self.who} ({self.how}) at {self.at}"
        return f"{said}: {self.note}" if self.note else said


def write_consent(run_dir: Path, consent: Consent) -> None:
    """Lay an approval beside the run; a later one replaces it. Raises BenchwrightError."""
    write_atomically(run_dir / APPROVAL, json.dumps(asdict(consent), indent=2) + "\n", PRIVATE)


def read_consent(run_dir: Path) -> Consent | None:
    """The run's approval; None where there is none.

    Raises:
        BadInput: The file can't be understood.
    """
    path = run_dir / APPROVAL
    try:
        return Consent(**json.loads(path.read_text("utf-8")))
    except FileNotFoundError:
        return None
    except (ValueError, TypeError) as problem:
        raise BadInput(f"holds no approval: {problem}", where=Where(path)) from problem


def record_spending(home: Path, run_id: str, usd: float, consent: Consent | None) -> None:
    """Add what a run has spent to the home's list. Raises BenchwrightError."""
    row = {
        "t": clock.now_text(),
        "run_id": run_id,
        "usd": round(usd, 6),
        "approved_usd": consent.max_usd if consent else None,
        "who": consent.who if consent else None,
    }
    append_line(home / LEDGER, dump_line(row))


def spent_this_month(home: Path, moment: datetime | None = None) -> float:
    """What the runs of this home have spent in the calendar month, in US dollars."""
    month = clock.text(moment or clock.now())[:7]
    path = home / LEDGER
    if not path.exists():
        return 0.0
    rows, _ = load_lines(path)
    return sum(float(row["usd"]) for _, row in rows if str(row.get("t", "")).startswith(month))

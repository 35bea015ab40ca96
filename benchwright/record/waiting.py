"""A run that no process works on, because it waits for a person's answer.

Without this word beside it, a run whose process has gone would count as lost.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from benchwright.record.files import PRIVATE, write_atomically

WAITING = ".waiting"

GRACE_S = 600.0
"""How long an answered run may take to be taken up by a worker (seconds)."""


@dataclass(frozen=True, slots=True)
class Waiting:
    """What a suspended run waits for.

    Attributes:
        reason: What for, in a few words.
        until: When the wait is over, in seconds since the epoch.
        kept: What its steps returned so far, by stage name: they aren't run again.
    """

    reason: str
    until: float
    kept: Mapping[str, Any] = field(default_factory=dict)

    @property
    def over(self) -> bool:
        """Whether nobody has answered in time."""
        return time.time() > self.until + GRACE_S


def suspend(run_dir: Path, waiting: Waiting) -> None:
    """Say that a run waits. Raises BenchwrightError where it can't be written."""
    text = json.dumps(asdict(waiting), default=str)
    write_atomically(run_dir / WAITING, text, PRIVATE)


def read_waiting(run_dir: Path) -> Waiting | None:
    """What a run waits for; None where it doesn't."""
    try:
        return Waiting(**json.loads((run_dir / WAITING).read_text("utf-8")))
    except (FileNotFoundError, ValueError, TypeError):
        return None


def go_on(run_dir: Path) -> None:
    """Say that a run has its answer."""
    (run_dir / WAITING).unlink(missing_ok=True)

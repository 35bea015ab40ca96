"""A run as it is remembered: the content of its folder."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from benchwright.judgement.view import RunView

SCHEMA = 1
"""Version of `results.yaml`; a reader refuses a newer one."""


class Status(StrEnum):
    """Where a run stands."""

    IN_PROGRESS = "IN_PROGRESS"
    COMPLETED = "COMPLETED"
    FAILED = "FAILED"
    ABORTED_PREFLIGHT = "ABORTED_PREFLIGHT"
    ABORTED_GUARDRAIL = "ABORTED_GUARDRAIL"
    INTERRUPTED = "INTERRUPTED"

    @property
    def exit_code(self) -> int:
        """The exit code of `benchwright run` for a run that ended so."""
        return _EXIT_CODES[self]


_EXIT_CODES = {
    Status.IN_PROGRESS: 1,
    Status.COMPLETED: 0,
    Status.FAILED: 4,
    Status.ABORTED_PREFLIGHT: 3,
    Status.ABORTED_GUARDRAIL: 5,
    Status.INTERRUPTED: 130,
}


@dataclass(frozen=True, slots=True)
class RunRecord:
    """One run.

    Attributes:
        view: What judgement sees of it.
        status: Where it stands.
        finished: Wall clock at its end, ISO 8601; empty while it runs.
        error: What ended it, for a person; empty for a completed run.
        host: Name of the machine.
        folders: The folder that each stage's relative paths start from, by stage name.
        domain_version: Version of the domain when it ran.
        steps: What `step` and `gate` stages returned, by stage name (JSON values).
        lessons: Ids of the lessons and risks that were shown at plan time.
        expected_effect: Text of the expectation, from the hypothesis.
        audit: Lines of reclassification, oldest first.
        flagged: Sentences on baselines lowered since this run was compared with them.
        extra: What a domain adds, by its name (JSON values).
        command: The words with which it was started, for the report's last section.
        cwd: The folder in which it was started.
        folder: Where it was read from; no part of what two records have in common.
    """

    view: RunView
    status: Status
    finished: str = ""
    error: str = ""
    host: str = ""
    folders: Mapping[str, str] = field(default_factory=dict)
    domain_version: str = ""
    steps: Mapping[str, Any] = field(default_factory=dict)
    lessons: tuple[str, ...] = ()
    expected_effect: str = ""
    audit: tuple[str, ...] = ()
    flagged: tuple[str, ...] = ()
    extra: Mapping[str, Any] = field(default_factory=dict)
    command: tuple[str, ...] = ()
    cwd: str = ""
    folder: Path | None = field(default=None, compare=False)

"""Errors that a person reads: what was wrong, where, what was expected, what to do next.

Each class stands for one exit code of the command line. A mistake of the user's raises one of
these, never a bare exception: the terminal prints its text, without a traceback.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar


@dataclass(frozen=True, slots=True)
class Where:
    """The place that an error speaks of, as far as it is known.

    Attributes:
        file: The file that was read.
        line: Line in that file, counted from 1.
        key: Dotted key in that file, or the name of a command-line option.
    """

    file: Path | str | None = None
    line: int | None = None
    key: str | None = None

    def __str__(self) -> str:
        place = str(self.file) if self.file is not None else ""
        if self.line is not None:
            place += f":{self.line}"
        if self.key:
            place = f"{place}: {self.key}" if place else self.key
        return place


class BenchwrightError(Exception):
    """Base of all errors with a text for a person.

    Args:
        what: What was wrong, as a sentence without its full stop.
        where: The file, line and key, where known.
        expected: What would have been right.
        hint: What to do next, with the exact command where there is one.
    """

    exit_code: ClassVar[int] = 1

    def __init__(
        self,
        what: str,
        *,
        where: Where | None = None,
        expected: str | None = None,
        hint: str | None = None,
    ) -> None:
        super().__init__(what)
        self.what = what
        self.where = where
        self.expected = expected
        self.hint = hint

    def __str__(self) -> str:
        place = str(self.where) if self.where is not None else ""
        lines = [f"{place}: {self.what}" if place else self.what]
        if self.expected:
            lines.append(f"  expected: {self.expected}")
        if self.hint:
            lines.append(f"  next: {self.hint}")
        return "\n".join(lines)


class BadInput(BenchwrightError):
    """A file, a value or an option that can't be understood; nothing was run or written."""

    exit_code = 2


@dataclass(frozen=True, slots=True)
class Difference:
    """One row of a refusal: what differs, the two values, and why it matters.

    Attributes:
        field: A parameter's dotted name, or a fingerprint's field such as `machine.cpu_model`.
        left: The value on the first side (declared, or run A), as text.
        right: The value on the second side (effective, or run B), as text.
        why: Why the difference matters, as a sentence.
    """

    field: str
    left: str
    right: str
    why: str


class GateRefused(BenchwrightError):
    """A fairness gate or a plan-time challenge refused.

    Attributes:
        differences: Why, row by row.
        columns: What the rows' `left` and `right` are, as the heads of a table.
    """

    exit_code = 3

    def __init__(
        self,
        what: str,
        *,
        differences: Sequence[Difference] = (),
        where: Where | None = None,
        expected: str | None = None,
        hint: str | None = None,
        columns: tuple[str, str] = ("A", "B"),
    ) -> None:
        super().__init__(what, where=where, expected=expected, hint=hint)
        self.differences = tuple(differences)
        self.columns = columns


class StageFailed(BenchwrightError):
    """A stage ended without a result."""

    exit_code = 4


class GuardEnded(BenchwrightError):
    """A guard or a budget ended the run."""

    exit_code = 5


class Interrupted(BenchwrightError):
    """A person interrupted the run."""

    exit_code = 130

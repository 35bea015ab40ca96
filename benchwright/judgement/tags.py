"""The tag of a run: the table of the fairness rules as data, the first row that applies."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from benchwright.judgement import words
from benchwright.judgement.decide import MIN_UNITS
from benchwright.judgement.reproduction import Agreement, Reproduction
from benchwright.judgement.verdict import Finding, Tag

MORE_THAN_ONE_TREATMENT = "more-than-one-treatment"
"""Code of the challenge; a run that went on in spite of it is EXPLORATORY."""


@dataclass(frozen=True, slots=True)
class Evidence:
    """What the tag stands on.

    Attributes:
        findings: Everything that was seen.
        fewest: The smallest number of units of a primary metric in any arm.
        needed: The units that a verdict takes.
        alone: Whether there is neither a second arm nor an earlier run to compare to.
        treatments: Whether the plan had more than one treatment, and went on.
        reproduction: What an earlier run with the same configuration says; None: there is none.
        unconfirmed: Why an earlier run with the same configuration can't confirm it; empty where
            there is none, or where it can.
        uncitable: A reason why its baseline may not be one; empty for none.
    """

    findings: Sequence[Finding]
    fewest: int
    needed: int = MIN_UNITS
    alone: bool = False
    treatments: bool = False
    reproduction: Reproduction | None = None
    unconfirmed: str = ""
    uncitable: str = ""

    @property
    def failures(self) -> list[Finding]:
        """Findings that make it UNRELIABLE."""
        return [finding for finding in self.findings if finding.failure]

    @property
    def caveats(self) -> list[Finding]:
        """Findings that keep it from being more than QUALIFIED."""
        return [finding for finding in self.findings if finding.caveat and not finding.failure]

    @property
    def agreement(self) -> Agreement | None:
        """What the earlier run says, in one word."""
        return self.reproduction.agreement if self.reproduction else None


@dataclass(frozen=True, slots=True)
class Row:
    """One row of the table: the tag, when it applies, and the sentence that says why."""

    tag: Tag
    applies: Callable[[Evidence], bool]
    reason: Callable[[Evidence], str]


def _first(findings: Sequence[Finding], noun: str) -> str:
    more = f" ({words.count(len(findings) - 1, f'more {noun}')})" if len(findings) > 1 else ""
    return f"{findings[0].message}{more}"


def _said(evidence: Evidence) -> str:
    return evidence.reproduction.reason if evidence.reproduction else ""


TABLE: tuple[Row, ...] = (
    Row(Tag.UNRELIABLE, lambda e: bool(e.failures), lambda e: _first(e.failures, "failure")),
    Row(Tag.UNRELIABLE, lambda e: e.agreement is Agreement.CONTROL_LOST, _said),
    Row(
        Tag.EXPLORATORY,
        lambda e: e.fewest < e.needed,
        lambda e: (
            f"{words.count(e.fewest, 'unit')} an arm of a primary metric {words.be(e.fewest)} too"
            f" few: it takes at least {e.needed}."
        ),
    ),
    Row(Tag.EXPLORATORY, lambda e: bool(e.uncitable), lambda e: e.uncitable),
    Row(
        Tag.EXPLORATORY,
        lambda e: e.treatments,
        lambda e: "More than one thing was changed at once, so nothing says which one it was.",
    ),
    Row(
        Tag.EXPLORATORY,
        lambda e: e.alone,
        lambda e: "It is the first of its kind and has one arm: there is nothing to compare to.",
    ),
    Row(Tag.QUALIFIED, lambda e: bool(e.caveats), lambda e: _first(e.caveats, "caveat")),
    Row(Tag.RELIABLE, lambda e: e.agreement is Agreement.REPRODUCED, _said),
    Row(Tag.QUALIFIED, lambda e: e.reproduction is not None, _said),
    Row(
        Tag.QUALIFIED,
        lambda e: True,
        lambda e: (
            "Both gates passed; "
            + (e.unconfirmed or "no earlier run with the same configuration confirms it yet.")
        ),
    ),
)
"""From the strictest to the mildest; the first row that applies gives the tag."""


def tag(evidence: Evidence) -> tuple[Tag, str]:
    """The tag with its reason."""
    row = next(row for row in TABLE if row.applies(evidence))
    return row.tag, row.reason(evidence)

"""A suite after a night: for each entry and metric where it stands, as data that is shown."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchwright.errors import BenchwrightError
from benchwright.judgement.history import Change, History, Standing, judge_history
from benchwright.record.nights import MOST_NIGHTS, Against, NightRow, SuiteFolder, nights_of
from benchwright.record.store import RunFolder
from benchwright.report import numbers
from benchwright.spec.model import Metric, Role
from benchwright.spec.suite import Entry, Suite

REGRESSION = "benchwright.regression"
"""Name of the event."""


@dataclass(frozen=True, slots=True)
class Series:
    """One metric of one arm.

    Attributes:
        arm: The arm's name; empty for an entry without a treatment.
        history: What is known of it.
        against: What the comparison with the earlier run says, in a few words.
        watched: Whether it can raise an alarm.
    """

    arm: str
    history: History
    against: str
    watched: bool

    @property
    def name(self) -> str:
        """The metric, and the arm where there is one."""
        metric = self.history.metric.name
        return f"{metric} ({self.arm})" if self.arm else metric


@dataclass(frozen=True, slots=True)
class EntryBoard:
    """One entry.

    Attributes:
        entry: As the suite has it.
        latest: Its latest row; None: it has never run.
        series: The watched metrics first.
    """

    entry: Entry
    latest: NightRow | None
    series: tuple[Series, ...]

    @property
    def failed(self) -> bool:
        """Whether the latest night gave no result."""
        return self.latest is not None and self.latest.status != "COMPLETED"


@dataclass(frozen=True, slots=True)
class Regression:
    """A regression that tonight made certain: what the event carries."""

    suite: str
    entry: str
    host: str
    series: Series
    change: Change

    @property
    def resource(self) -> str:
        """The event's resource id."""
        parts = [self.suite, self.entry, self.series.history.metric.name, self.series.arm]
        return ".".join(["benchwright", "suite", *(_word(part) for part in parts if part)])

    def payload(self, home: Path) -> dict[str, Any]:
        """What a person needs to act on it, as JSON values."""
        metric, change = self.series.history.metric, self.change
        nights = self.series.history.nights
        return {
            "suite": self.suite,
            "entry": self.entry,
            "host": self.host,
            "metric": metric.name,
            "arm": self.series.arm,
            "unit": metric.unit,
            "better": str(metric.direction),
            "before": change.before,
            "after": change.after,
            "change": numbers.effect(change.effect, metric),
            "interval": numbers.interval(change.interval, metric),
            "effect": change.effect,
            "interval_low": change.interval.low,
            "interval_high": change.interval.high,
            "shape": str(change.shape),
            "since": nights[change.first].date,
            "certain_on": nights[change.found].date,
            "nights_before": change.nights_before,
            "nights_after": change.nights_after,
            "commits": list(change.commits) if change.commits else None,
            "run_before": change.run_before,
            "run_after": change.run_after,
            "summary": self.summary(),
            "look_closer": closer(change, home),
            "commits_command": commits_command(change),
        }

    def summary(self) -> str:
        """One sentence."""
        metric, change = self.series.history.metric, self.change
        nights = self.series.history.nights
        return (
            f"{self.suite}/{self.entry}: {self.series.name} went from"
            f" {numbers.quantity(change.before, metric.unit)} to"
            f" {numbers.quantity(change.after, metric.unit)}"
            f" ({numbers.effect(change.effect, metric)}, 95 % interval"
            f" {numbers.interval(change.interval, metric)}) since {nights[change.first].date}"
        )


@dataclass(frozen=True, slots=True)
class Board:
    """The whole suite.

    Attributes:
        suite: The suite.
        folder: Where its nights are kept.
        entries: In the suite's order.
        night: The latest night; empty before the first.
        made: When this was made, ISO 8601.
    """

    suite: Suite
    folder: SuiteFolder
    entries: tuple[EntryBoard, ...]
    night: str
    made: str

    def count(self, standing: Standing) -> int:
        """Watched series that stand so."""
        return sum(
            one.watched and one.history.standing is standing
            for entry in self.entries
            for one in entry.series
        )

    def regressions(self, entry: str | None = None) -> tuple[Regression, ...]:
        """What the latest night of each entry made certain, for the worse."""
        return tuple(
            Regression(self.suite.name, board.entry.name, board.entry.host, one, news)
            for board in self.entries
            if entry in (None, board.entry.name)
            for one in board.series
            if one.watched
            and (news := one.history.news) is not None
            and news.worse
            and one.history.open is not None
        )


def make_board(suite: Suite, folder: SuiteFolder, made: str) -> Board:
    """Judge every series of a suite.

    Raises:
        BadInput: The rows can't be read.
    """
    rows = folder.rows()
    by_entry = {
        entry.name: [row for row in rows if row.entry == entry.name][-MOST_NIGHTS:]
        for entry in suite.entries
    }
    grounds = {name: folder.ground(name) for name in {row.environment for row in rows}}
    metrics = {entry.name: _metrics(folder.home, by_entry[entry.name]) for entry in suite.entries}
    watched = {
        (entry.name, arm, metric.name)
        for entry in suite.entries
        for arm, metric in metrics[entry.name]
        if _watched(entry, metric)
    }
    boards = tuple(
        EntryBoard(
            entry=entry,
            latest=by_entry[entry.name][-1] if by_entry[entry.name] else None,
            series=tuple(
                sorted(
                    (
                        _series(entry, by_entry[entry.name], arm, metric, grounds, watched)
                        for arm, metric in metrics[entry.name]
                    ),
                    key=lambda one: not one.watched,
                )
            ),
        )
        for entry in suite.entries
    )
    night = max((row.night for row in rows), default="")
    return Board(suite, folder, boards, night, made)


def _series(
    entry: Entry,
    rows: Sequence[NightRow],
    arm: str,
    metric: Metric,
    grounds: Mapping[str, Mapping[str, str]],
    watched: set[tuple[str, str, str]],
) -> Series:
    from benchwright.spec.arms import ONLY_ARM

    history = judge_history(
        metric,
        nights_of(rows, arm, metric.name, grounds),
        family=len(watched),
        accepted=entry.accepted_for(metric.name),
    )
    shown = "" if arm == ONLY_ARM else arm
    return Series(
        arm=shown,
        history=history,
        against=against_words(rows[-1].against, metric, shown),
        watched=(entry.name, arm, metric.name) in watched,
    )


def _metrics(home: Path, rows: Sequence[NightRow]) -> list[tuple[str, Metric]]:
    """Every (arm, metric) of the latest run that measured anything, as that run declares them."""
    for row in reversed(rows):
        if not row.measured:
            continue
        declared: dict[str, Metric] = {}
        try:
            config = RunFolder(home, row.run_id).config()
            declared = {metric.name: metric for metric in config.metrics}
        except BenchwrightError:
            pass  # its folder is gone; the figures stay, without unit and role
        return [
            (arm, declared.get(name, Metric(name=name, role=Role.SECONDARY)))
            for arm, figures in row.figures.items()
            for name in figures
        ]
    return []


def _watched(entry: Entry, metric: Metric) -> bool:
    if entry.metrics:
        return metric.name in entry.metrics
    return metric.role in (Role.PRIMARY, Role.GUARDRAIL)


def against_words(against: Against, metric: Metric, arm: str) -> str:
    """What the comparison with the earlier run says of one metric."""
    from benchwright.judgement.verdict import Interval

    for one in against.decisions:
        if one["metric"] == metric.name and one["arm"] in (arm, ""):
            moved = numbers.effect(one["effect"], metric)
            span = numbers.interval(Interval(one["low"], one["high"]), metric)
            return f"{one['decision']}: {moved} ({span})"
    return against.why


def closer(change: Change, home: Path) -> str:
    """The exact command that looks closer at a change."""
    words = ["benchwright", "compare", change.run_before, change.run_after, "--allow", "code"]
    return shlex.join([*words, "--home", str(home)])


def commits_command(change: Change) -> str:
    """The command that lists the commits between; empty where they aren't known."""
    if change.commits is None:
        return ""
    first, last = (commit.rstrip("+") for commit in change.commits)
    return f"git log --oneline {first}..{last}" if first != last else f"git show --stat {first}"


def _word(text: str) -> str:
    return "".join(c if c.isalnum() or c in "-_" else "-" for c in text).strip("-")

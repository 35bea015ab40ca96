"""A suite's nights: one row for each entry of each night, whatever became of it.

`$BENCHMARK_HOME/nightly/<suite>/nights.jsonl` is append-only. A row names the run, whose folder
is the record, and holds the few figures that a history needs, so that a year of nights is read in
one go. A night without a run (refused, a file that is gone) has its row too, with the reason.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchwright.errors import BadInput, BenchwrightError, Where
from benchwright.identity.canonical import canonical_json, digest
from benchwright.identity.fingerprint import UNKNOWN
from benchwright.record.documents import load_lines
from benchwright.record.files import append_line, write_atomically
from benchwright.record.liveness import RunLock

if TYPE_CHECKING:
    from benchwright.judgement.history import Night
    from benchwright.judgement.verdict import ArmSummary
    from benchwright.judgement.view import RunView

MOST_NIGHTS = 400
"""Latest nights of an entry that are read back: a year and a month."""

REFUSED = "REFUSED"
"""Status of an entry that never became a run: a gate or its configuration refused it."""
SKIPPED = "SKIPPED"
"""Status of an entry that wasn't reached, since the suite was ended."""

CONFIGURATION = "configuration"
"""Name under which the configuration's hash stands beside the fingerprint's fields."""

_HASH_SHOWN = 12


@dataclass(frozen=True, slots=True)
class Figure:
    """What one night says of a metric in one arm.

    Attributes:
        mean: Mean of the units.
        error: Its standard error within the run; None: unknown.
        n: Units.
    """

    mean: float
    error: float | None
    n: int


@dataclass(frozen=True, slots=True)
class Against:
    """How a night compares with one earlier run.

    Attributes:
        run_id: The earlier run; empty where there is none.
        tag: How far the comparison may be believed; empty where it was refused.
        decisions: For each metric and arm: metric, arm, decision, effect, low, high.
        why: Why there is no comparison, as a sentence.
    """

    run_id: str = ""
    tag: str = ""
    decisions: tuple[Mapping[str, Any], ...] = ()
    why: str = ""


@dataclass(frozen=True, slots=True)
class NightRow:
    """One entry on one night.

    Attributes:
        night: ISO date on which the suite started.
        entry, host: Names from the suite.
        started, finished: Wall clock, ISO 8601 with time zone.
        status: A run's `Status`, or `REFUSED` or `SKIPPED`.
        run_id: The run; empty where there was none.
        tag: Its tag when it ended.
        error: What went wrong, for a person.
        commit: The code's commit, a `+` after it where it had uncommitted changes; empty: unknown.
        environment: Digest of what it ran on; the fields lie beside the rows.
        figures: By arm, then metric.
        against: The comparison with the last RELIABLE run, or with the entry's baseline.
    """

    night: str
    entry: str
    host: str
    started: str
    finished: str
    status: str
    run_id: str = ""
    tag: str = ""
    error: str = ""
    commit: str = ""
    environment: str = ""
    figures: Mapping[str, Mapping[str, Figure]] = field(default_factory=dict)
    against: Against = Against()

    @property
    def measured(self) -> bool:
        """Whether it says anything about a metric."""
        return bool(self.figures)


@dataclass(frozen=True, slots=True)
class SuiteFolder:
    """Where a suite's nights are kept.

    Attributes:
        home: The benchmark home.
        suite: The suite's name.
    """

    home: Path
    suite: str

    @property
    def path(self) -> Path:
        """The folder; made with the first night."""
        return self.home / "nightly" / self.suite

    @property
    def rows_file(self) -> Path:
        """One line for each entry of each night."""
        return self.path / "nights.jsonl"

    @property
    def dashboard(self) -> Path:
        """The page."""
        return self.path / "dashboard.html"

    def lock(self) -> RunLock:
        """Say that this process runs the suite, until it is released or the process ends.

        Raises:
            BenchwrightError: Another process does.
        """
        self.path.mkdir(parents=True, exist_ok=True)
        try:
            return RunLock(self.path / ".alive")
        except BenchwrightError as problem:
            raise BenchwrightError(
                f"the suite {self.suite} is running already: two at once would disturb each other",
                where=Where(self.path),
                hint="wait for it to end, or cancel it",
            ) from problem

    def append(self, row: NightRow, ground: Mapping[str, str]) -> NightRow:
        """Record a row with what it ran on; returns it with its environment's digest.

        Raises:
            BenchwrightError: The disk is full; the rows before it stay readable.
        """
        from dataclasses import replace

        self.path.mkdir(parents=True, exist_ok=True)
        if ground:
            name = digest(canonical_json(dict(ground)))[:16]
            place = self.path / "environments" / f"{name}.json"
            if not place.exists():
                place.parent.mkdir(exist_ok=True)
                write_atomically(place, json.dumps(dict(ground), indent=1) + "\n")
            row = replace(row, environment=name)
        append_line(self.rows_file, json.dumps(asdict(row), allow_nan=False))
        return row

    def rows(self) -> tuple[NightRow, ...]:
        """All rows, oldest first.

        Raises:
            BadInput: A line is no row; names file and line.
        """
        if not self.rows_file.exists():
            return ()
        rows, _ = load_lines(self.rows_file)
        return tuple(_row(line, data, self.rows_file) for line, data in rows)

    def ground(self, environment: str) -> dict[str, str]:
        """What an environment's digest stands for; empty where it isn't known."""
        place = self.path / "environments" / f"{environment}.json"
        if not environment or not place.exists():
            return {}
        try:
            data = json.loads(place.read_text("utf-8"))
        except ValueError as error:
            raise BadInput("is no JSON", where=Where(place)) from error
        return {str(name): str(value) for name, value in data.items()}


def _row(line: int, data: Mapping[str, Any], file: Path) -> NightRow:
    try:
        figures = {
            arm: {name: Figure(**figure) for name, figure in metrics.items()}
            for arm, metrics in data["figures"].items()
        }
        against = Against(**{**data["against"], "decisions": tuple(data["against"]["decisions"])})
        return NightRow(**{**data, "figures": figures, "against": against})
    except (KeyError, TypeError, AttributeError) as error:
        raise BadInput(
            f"holds no night: {error}",
            where=Where(file, line),
            hint="a newer version may have written it; the runs themselves are untouched",
        ) from error


def figures_of(
    summaries: Mapping[str, Mapping[str, ArmSummary]], view: RunView
) -> dict[str, dict[str, Figure]]:
    """The figures of a run's arms; what has no finite mean is left out."""
    from benchwright.judgement.judge import measured_metrics
    from benchwright.spec.model import Scale

    scales = {metric.name: metric.scale for metric in measured_metrics(view)}
    figures: dict[str, dict[str, Figure]] = {}
    for arm, metrics in summaries.items():
        for name, summary in metrics.items():
            if summary.mean is None or not math.isfinite(summary.mean):
                continue
            error = None
            if summary.n > 1 and summary.spread is not None and math.isfinite(summary.spread):
                ratio = scales.get(name, Scale.RATIO) is Scale.RATIO
                deviation = summary.spread * (abs(summary.mean) if ratio else 1.0)
                error = deviation / math.sqrt(summary.n)
            figures.setdefault(arm, {})[name] = Figure(summary.mean, error, summary.n)
    return figures


def ground_of(view: RunView) -> dict[str, str]:
    """What must stay the same for two nights to be of one level: all but the code."""
    fields = {
        name: value
        for name, value in view.fingerprint.fields.items()
        if not name.startswith("code.")
    }
    return {**fields, CONFIGURATION: view.config_hash[:_HASH_SHOWN]}


def commit_of(view: RunView) -> str:
    """The code's commit, with `+` after it where it had uncommitted changes; empty: unknown."""
    fields = view.fingerprint.fields
    commit = fields.get("code.commit", UNKNOWN)
    if commit in (UNKNOWN, "none", ""):
        return ""
    changed = fields.get("code.uncommitted", "none") not in ("none", UNKNOWN, "")
    return commit[:_HASH_SHOWN] + ("+" if changed else "")


def nights_of(
    rows: Iterable[NightRow],
    arm: str,
    metric: str,
    grounds: Mapping[str, Mapping[str, str]],
) -> Sequence[Night]:
    """An entry's rows as the nights of one series.

    Args:
        rows: The rows of one entry, oldest first.
        arm, metric: The series.
        grounds: What each environment's digest stands for.
    """
    from benchwright.judgement.history import Night

    nights = []
    for row in rows:
        figure = row.figures.get(arm, {}).get(metric)
        nights.append(
            Night(
                date=row.night,
                value=figure.mean if figure else None,
                error=figure.error if figure else None,
                run_id=row.run_id,
                commit=row.commit,
                ground=grounds.get(row.environment, {}),
                why="" if figure else _why_none(row),
            )
        )
    return nights


def _why_none(row: NightRow) -> str:
    if row.error:
        return f"{row.status}: {row.error.splitlines()[0]}"
    return f"{row.status}: the run gave no such metric"

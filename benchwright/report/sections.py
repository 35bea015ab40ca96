"""The sections that every report has, in their order, as plain content without a format.

Markdown, HTML and the terminal show the same content: what a report says stands here once.
Source of the order: the fairness rules, "Every report".
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from benchwright.identity.fingerprint import compare_fingerprints
from benchwright.judgement.decide import mean_interval_of
from benchwright.judgement.hypothesis import expectations
from benchwright.judgement.verdict import ArmSummary, Decision, GuardrailResult, Tag, Verdict
from benchwright.judgement.view import RunView
from benchwright.judgement.words import count, listed
from benchwright.record.run import RunRecord, Status
from benchwright.report import numbers, spending
from benchwright.report.background import Background
from benchwright.report.numbers import UNKNOWN
from benchwright.report.outcome import first_line, went_well, went_wrong
from benchwright.report.plain import cut
from benchwright.spec.arms import Arm, expand_arms
from benchwright.spec.model import Metric, Role, Scale, StageKind
from benchwright.spec.values import as_text

TITLES = (
    "Run summary",
    "Primary metrics",
    "Verdict and why",
    "What went well",
    "What went wrong or remained unknown",
    "Risks and limits",
    "Comparison with prior runs",
    "Lessons",
    "Next steps",
    "How to run it again",
)


_STEP_SHOWN = 300
"""Characters of what a step returned; the rest is in `results.yaml`."""


@dataclass(frozen=True, slots=True)
class Paragraph:
    """One paragraph."""

    text: str


@dataclass(frozen=True, slots=True)
class Bullets:
    """A list, one sentence an item."""

    items: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Facts:
    """Names with their values, two columns."""

    rows: tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class Table:
    """A table.

    Attributes:
        caption: What it shows.
        header: Names of the columns.
        rows: Cells as text.
        numeric: Columns that are set flush right, from 0.
    """

    caption: str
    header: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    numeric: frozenset[int] = frozenset()


@dataclass(frozen=True, slots=True)
class Commands:
    """Lines to be typed into a shell, each with what it is for."""

    lines: tuple[tuple[str, str], ...]


Block = Paragraph | Bullets | Facts | Table | Commands


@dataclass(frozen=True, slots=True)
class Section:
    """A heading and what stands below it."""

    title: str
    blocks: tuple[Block, ...]


def sections(record: RunRecord, around: Background | None = None) -> tuple[Section, ...]:
    """The content of a run's report: the titles of `TITLES`, in that order."""
    around = around or Background()
    makers = (
        _summary,
        _primary,
        _verdict,
        _well,
        _wrong,
        _risks,
        _comparison,
        _lessons,
        _next_steps,
        _again,
    )
    return tuple(
        Section(title, tuple(make(record, around)))
        for title, make in zip(TITLES, makers, strict=True)
    )


def title(record: RunRecord) -> str:
    """What the run is about, as a heading."""
    config = record.view.config
    if config.hypothesis or config.recipe:
        return config.hypothesis or config.recipe or ""
    primary = [metric.name for metric in config.metrics if metric.role is Role.PRIMARY]
    stages = [stage.name for stage in config.stages if stage.kind is StageKind.MEASURE]
    if not primary or not stages:
        return config.domain
    return f"{config.domain}: {listed(primary)} of {listed(stages)}"


def tag_line(record: RunRecord) -> tuple[str, str]:
    """The tag and its reason, as they are now."""
    view = record.view
    if view.tag is None:
        return "not judged", first_line(record.error)
    if record.audit:
        return str(view.tag), record.audit[-1]
    return str(view.tag), view.judgement.tag_reason if view.judgement else ""


def elapsed(record: RunRecord) -> float | None:
    """Seconds from the run's start to its end; None: it hasn't ended, or its times are odd."""
    try:
        begun = datetime.fromisoformat(record.view.created)
        ended = datetime.fromisoformat(record.finished)
        return (ended - begun).total_seconds()
    except (ValueError, TypeError):
        return None


def moment(text: str) -> str:
    """A time for people: to the second, with its time zone."""
    try:
        return datetime.fromisoformat(text).isoformat(" ", timespec="seconds")
    except ValueError:
        return text or UNKNOWN


def metric_of(record: RunRecord, name: str) -> Metric:
    """The metric of that name; one that the configuration doesn't list has no unit."""
    try:
        return record.view.config.metric(name)
    except KeyError:
        return Metric(name=name, role=Role.SECONDARY)


def declared_arms(record: RunRecord) -> tuple[Arm, ...]:
    """The arms that the configuration asks for; none where its treatment has no baseline."""
    config = record.view.config
    if config.treatment_variable not in (None, *config.flat_params):
        return ()
    return expand_arms(config)


def arm_names(record: RunRecord) -> tuple[str, ...]:
    """The arms, the baseline first, then any that only the judgement knows."""
    declared = [arm.name for arm in declared_arms(record)]
    judged = record.view.judgement.summaries if record.view.judgement else {}
    seen = [sample.arm for sample in record.view.samples]
    known = {*judged, *seen}
    return tuple(dict.fromkeys([*(arm for arm in declared if arm in known), *judged, *seen]))


def _summary(record: RunRecord, around: Background) -> Iterable[Block]:
    view, config = record.view, record.view.config
    tag, reason = tag_line(record)
    failed = sum(not sample.ok for sample in view.samples)
    finished = f"{len(view.samples) - failed} of {view.expected or len(view.samples)}"
    hits = sum(result.cached for result in view.prep)
    rows = [
        ("Hypothesis", config.hypothesis or "none was written down"),
        ("Domain", config.domain + (f", recipe {config.recipe}" if config.recipe else "")),
        ("Treatment", _treatment(record)),
        ("Status", f"{record.status}" + (f": {first_line(record.error)}" if record.error else "")),
        ("Tag", f"{tag}" + (f": {reason}" if reason else "")),
    ]
    if view.judgement is not None and view.judgement.hypothesis is not None:
        said = view.judgement
        rows.append(("Hypothesis verdict", f"{said.hypothesis}: {said.hypothesis_reason}"))
    rows += [
        ("Replicates", f"{finished} finished" + (f", {failed} failed" if failed else "")),
        (
            "Prep stages",
            f"{hits} from the cache, {len(view.prep) - hits} built" if view.prep else "none",
        ),
        ("Started", moment(view.created)),
        ("Took", numbers.duration(elapsed(record))),
        ("Host", record.host or UNKNOWN),
        ("Processor", view.fingerprint.fields.get("machine.cpu_model", UNKNOWN)),
        ("Run", view.run_id),
        ("Configuration", view.config_hash),
    ]
    rows += [
        (f"Step {name}", cut(json.dumps(value, default=str, ensure_ascii=False), _STEP_SHOWN))
        for name, value in record.steps.items()
    ]
    rows += [("Reclassified", line) for line in record.audit]
    rows += [("Flagged", line) for line in record.flagged]
    yield Facts(tuple(rows))
    sums = spending.accounting(record)
    if sums is not None:
        yield Table(spending.CAPTION, spending.HEADER, spending.rows(sums), spending.NUMERIC)
        yield Paragraph(spending.domain_line(sums))


def _treatment(record: RunRecord) -> str:
    variable = record.view.config.treatment_variable
    if variable is None:
        return "none: one arm"
    values = [as_text(arm.value) for arm in declared_arms(record)] or [UNKNOWN]
    return f"{variable}: {values[0]} (baseline) against {listed(values[1:])}"


def _primary(record: RunRecord, around: Background) -> Iterable[Block]:
    judgement = record.view.judgement
    if judgement is None:
        yield Paragraph("Nothing was judged: the run ended before it could be.")
        return
    if judgement.verdicts:
        yield Table(
            "The treatment against the baseline",
            (
                "Metric",
                "Arm",
                "Expected",
                "Baseline",
                "Observed",
                "Prior",
                "Change",
                f"{_levels(judgement.verdicts)} interval",
                "Decision",
            ),
            tuple(_verdict_row(record, verdict, around) for verdict in judgement.verdicts),
            frozenset({3, 4, 5, 6, 7}),
        )
    else:
        yield from _observed(record, around)
    yield from _all_metrics(record)


def _expected(record: RunRecord, metric: Metric) -> str:
    """What the hypothesis expects of a metric, in a few words."""
    config = record.view.config
    for expected in expectations(config.hypothesis, config.metrics):
        if expected.metric.name == metric.name:
            return str(expected).removeprefix(f"{metric.name} ")
    return "not stated"


def _levels(verdicts: Sequence[Verdict]) -> str:
    """The confidence of the intervals: one figure, or the range where they share an error."""
    known = sorted(
        {verdict.interval.level: numbers.level(verdict.interval) for verdict in verdicts}.items()
    )
    return known[0][1] if len(known) == 1 else f"{known[0][1]} to {known[-1][1]}"


def _verdict_row(record: RunRecord, verdict: Verdict, around: Background) -> tuple[str, ...]:
    metric = verdict.metric
    return (
        metric.name,
        verdict.treatment.arm,
        _expected(record, metric),
        numbers.quantity(verdict.baseline.mean, metric.unit),
        numbers.quantity(verdict.treatment.mean, metric.unit),
        _prior(around, verdict.treatment.arm, metric),
        numbers.effect(verdict.effect, metric),
        numbers.interval(verdict.interval, metric),
        str(verdict.decision),
    )


def _prior(around: Background, arm: str, metric: Metric) -> str:
    """The mean of the latest earlier run that may be cited and that measured it."""
    summary = _prior_summary(around, arm, metric)
    return "none" if summary is None else numbers.quantity(summary.mean, metric.unit)


def _prior_summary(around: Background, arm: str, metric: Metric) -> ArmSummary | None:
    for view in reversed(around.priors):
        if view.tag in (Tag.RELIABLE, Tag.QUALIFIED) and view.judgement is not None:
            summary = view.judgement.summaries.get(arm, {}).get(metric.name)
            if summary is not None:
                return summary
    return None


def _change_since(around: Background, arm: str, metric: Metric, now: ArmSummary) -> str:
    """The change of a mean since the prior run: what a run without a treatment has to show."""
    then = _prior_summary(around, arm, metric)
    if then is None or then.mean is None or now.mean is None:
        return "none" if then is None else UNKNOWN
    if metric.scale is not Scale.RATIO:
        return numbers.effect(now.mean - then.mean, metric)
    return numbers.effect(now.mean / then.mean if then.mean > 0 else None, metric)


def _mean_interval(summary: ArmSummary, metric: Metric) -> str:
    low, high = mean_interval_of(summary, metric.scale)
    if low is None or high is None:
        return UNKNOWN
    return f"{numbers.figure(low)} to {numbers.quantity(high, metric.unit)}"


def _observed(record: RunRecord, around: Background) -> Iterable[Block]:
    """The primary metrics of a run without a treatment, or without a verdict."""
    judgement = record.view.judgement
    rows = [
        (
            metric.name,
            arm,
            _expected(record, metric),
            numbers.quantity(summaries[metric.name].mean, metric.unit),
            _prior(around, arm, metric),
            _change_since(around, arm, metric, summaries[metric.name]),
            _mean_interval(summaries[metric.name], metric),
        )
        for arm, summaries in (judgement.summaries if judgement else {}).items()
        for metric in record.view.config.metrics
        if metric.role is Role.PRIMARY and metric.name in summaries
    ]
    if rows:
        yield Table(
            "Means; the change is against the prior run, which was not interleaved with this one",
            ("Metric", "Arm", "Expected", "Observed", "Prior", "Change", "95 % interval of mean"),
            tuple(rows),
            frozenset({3, 4, 5, 6}),
        )
    else:
        yield Paragraph("No primary metric was measured.")


def _all_metrics(record: RunRecord) -> Iterable[Block]:
    summaries = record.view.judgement.summaries if record.view.judgement else {}
    names = dict.fromkeys(name for of_arm in summaries.values() for name in of_arm)
    rows = [
        _summary_row(metric_of(record, name), arm, summaries[arm][name])
        for name in names
        for arm in arm_names(record)
        if name in summaries.get(arm, {})
    ]
    if rows:
        yield Table(
            "Every metric in each arm",
            ("Metric", "Arm", "n", "Mean", "Median", "Min", "Max", "Spread"),
            tuple(rows),
            frozenset(range(2, 8)),
        )


def _summary_row(metric: Metric, arm: str, summary: ArmSummary) -> tuple[str, ...]:
    return (
        metric.name,
        arm,
        str(summary.n),
        numbers.quantity(summary.mean, metric.unit),
        numbers.quantity(summary.median, metric.unit),
        numbers.quantity(summary.min, metric.unit),
        numbers.quantity(summary.max, metric.unit),
        numbers.spread(summary.spread, metric),
    )


def _verdict(record: RunRecord, around: Background) -> Iterable[Block]:
    judgement = record.view.judgement
    tag, reason = tag_line(record)
    yield Paragraph(f"{tag}" + (f": {reason}" if reason else ""))
    if judgement is None:
        return
    if judgement.hypothesis is not None:
        yield Paragraph(f"Hypothesis {judgement.hypothesis}: {judgement.hypothesis_reason}")
    for verdict in judgement.verdicts:
        method = f"Method: {verdict.method}, {count(verdict.units, 'unit')}."
        yield Bullets((*because(verdict), *((method,) if verdict.method else ())))
    if judgement.guardrails:
        yield Table(
            "Guardrails",
            ("Metric", "Arm", "Observed", "Limit", "Held", "Why"),
            tuple(_guardrail_row(guardrail) for guardrail in judgement.guardrails),
            frozenset({2}),
        )


def because(verdict: Verdict) -> Iterable[str]:
    """Why a verdict is as it is: judgement's sentences, and the effects that matter."""
    metric = verdict.metric
    if verdict.reasons:
        yield from verdict.reasons
    else:
        yield f"{metric.name} with {verdict.treatment.arm}: {verdict.decision}."
    if len(verdict.reasons) < 2:
        yield (
            f"Smallest effect that matters: {numbers.size(metric.min_effect, metric)}; smallest "
            f"that this run could have seen: {numbers.size(verdict.detectable, metric)}."
        )


def held(guardrail: GuardrailResult) -> str:
    """Whether a guardrail held, in a word."""
    return {True: "yes", False: "no", None: UNKNOWN}[guardrail.held]


def _guardrail_row(guardrail: GuardrailResult) -> tuple[str, ...]:
    return (
        guardrail.metric.name,
        guardrail.arm,
        numbers.quantity(guardrail.observed, guardrail.metric.unit),
        guardrail.limit,
        held(guardrail),
        guardrail.reason,
    )


def _well(record: RunRecord, around: Background) -> Iterable[Block]:
    yield Bullets(went_well(record))


def _wrong(record: RunRecord, around: Background) -> Iterable[Block]:
    yield Bullets(went_wrong(record, around.priors))


def _risks(record: RunRecord, around: Background) -> Iterable[Block]:
    view = record.view
    limits = [f"{note.id} ({note.date}): {note.text}" for note in around.notes if note.id[0] == "R"]
    limits.append(
        "It holds for this machine, these inputs and these parameters; what it says of others is "
        "a guess."
    )
    if view.judgement is not None:
        limits += [
            f"A change of {verdict.metric.name} below "
            f"{numbers.size(verdict.detectable, verdict.metric)} would have gone unseen with "
            f"{verdict.treatment.arm}."
            for verdict in view.judgement.verdicts
            if verdict.detectable is not None
        ]
    unverified = [entry for entry in view.manifest.entries if not entry.verify]
    limits += [
        f"{entry.name} can't be verified: {entry.impact or entry.reason}" for entry in unverified
    ]
    if view.config.notes:
        limits.append(f"Noted by its author: {view.config.notes}")
    yield Bullets(tuple(limits))


def _comparison(record: RunRecord, around: Background) -> Iterable[Block]:
    if not around.priors:
        yield Paragraph(
            "There is no earlier completed run of this domain and recipe to compare with."
        )
        return
    names = [m.name for m in record.view.config.metrics if m.role is Role.PRIMARY]
    arms = arm_names(record)
    columns = [(name, arm) for name in names for arm in arms]
    header = ("Run", "Tag", "Configuration", "Fingerprint")
    yield Table(
        "Means of the primary metrics in earlier runs, the newest last",
        (*header, *(f"{name}, {arm}" for name, arm in columns)),
        tuple(_prior_row(record, view, columns) for view in (*around.priors, record.view)),
        frozenset(range(len(header), len(header) + len(columns))),
    )


def _prior_row(
    record: RunRecord, view: RunView, columns: Sequence[tuple[str, str]]
) -> tuple[str, ...]:
    config, ground = "this run", "this run"
    if view.run_id != record.view.run_id:
        config = "the same" if view.config_hash == record.view.config_hash else "another"
        differences = compare_fingerprints(view.fingerprint, record.view.fingerprint).differences
        fields = [row.field for row in differences]
        ground = f"differs: {listed(fields, 3)}" if fields else "agrees"
    summaries = view.judgement.summaries if view.judgement else {}
    cells = []
    for name, arm in columns:
        summary = summaries.get(arm, {}).get(name)
        unit = metric_of(record, name).unit
        cells.append(numbers.quantity(summary.mean if summary else None, unit))
    return (
        view.run_id,
        str(view.tag or "not judged"),
        config,
        ground,
        *cells,
    )


def _lessons(record: RunRecord, around: Background) -> Iterable[Block]:
    said = [f"{note.id} ({note.date}): {note.text}" for note in around.notes if note.id[0] == "L"]
    if said:
        yield Paragraph("Shown when the run was planned:")
        yield Bullets(tuple(said))
    elif record.lessons:
        yield Paragraph(f"Shown when the run was planned: {listed(record.lessons)}.")
    else:
        yield Paragraph("None was recorded for this domain, recipe and these parameters.")
    config = record.view.config
    about = ["--domain", config.domain] + (["--recipe", config.recipe] if config.recipe else [])
    yield Commands(
        ((shlex.join(["benchwright", "lessons", "add", *about, "TEXT"]), "Keep what was learned"),)
    )


def _next_steps(record: RunRecord, around: Background) -> Iterable[Block]:
    yield Commands(tuple(next_steps(record)))


def next_steps(record: RunRecord) -> Iterable[tuple[str, str]]:
    """The commands that get further from here, each with what it is for."""
    view = record.view
    judgement = view.judgement
    again = run_command(record)
    if record.status is Status.IN_PROGRESS:
        yield f"benchwright status {view.run_id} --follow", "See how far it is"
        return
    if record.status is Status.INTERRUPTED:
        yield f"benchwright resume {view.run_id}", "Finish it; what was measured is kept"
        return
    if record.status is not Status.COMPLETED:
        yield f"benchwright status {view.run_id}", "See what ended it"
        yield again, "Run it again once the cause is removed"
        return
    undecided = [
        verdict
        for verdict in (judgement.verdicts if judgement else ())
        if verdict.decision in (Decision.INCONCLUSIVE, Decision.NO_VERDICT)
    ]
    needed = [verdict.replicates_needed for verdict in undecided if verdict.replicates_needed]
    if needed:
        yield (
            f"{again} --replicates {max(needed)}",
            "Measure often enough to see the smallest effect that matters",
        )
    elif undecided:
        yield f"benchwright analyze {view.run_id}", "See what hides the effect"
    elif view.tag is Tag.QUALIFIED:
        yield again, "Reproduce it: the same result again makes it RELIABLE"
    elif view.tag is Tag.UNRELIABLE:
        yield f"benchwright analyze {view.run_id}", "See what made it unreliable"
        yield again, "Run it again once the cause is removed"
    elif view.tag is Tag.EXPLORATORY:
        yield again, "Run it again, with what its tag says is missing"
    else:
        yield f"benchwright analyze {view.run_id}", "Read it as a sceptic would, before citing it"


def run_command(record: RunRecord) -> str:
    """The command that runs the same again."""
    if record.command:
        return shlex.join(record.command)
    folder = record.folder or Path("runs", record.view.run_id)
    return shlex.join(["benchwright", "run", f"{folder / 'config.yaml'}"])


def command_in_place(record: RunRecord) -> str:
    """The same, for a terminal that stands in any folder."""
    command = run_command(record)
    if record.command and record.cwd:
        return f"cd {shlex.quote(record.cwd)} && {command}"
    return command


def _again(record: RunRecord, around: Background) -> Iterable[Block]:
    yield Commands(
        ((command_in_place(record), "The same experiment, in random order from the same seed"),)
    )
    replication = record.view.config.replication
    yield Facts(
        (
            ("Configuration", record.view.config_hash),
            ("Seed", str(replication.seed)),
            (
                "Replicates",
                f"{replication.replicates} an arm after {count(replication.warmup, 'warm-up')}",
            ),
            ("Code", record.view.fingerprint.fields.get("code.commit", UNKNOWN)),
            (
                "Frozen configuration",
                str((record.folder or Path("runs", record.view.run_id)) / "config.yaml"),
            ),
        )
    )

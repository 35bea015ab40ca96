"""The judgement of a run: both gates, the decisions, the guardrails, the tag, the hypothesis."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from benchwright.judgement import gate1, gate2
from benchwright.judgement.decide import MIN_UNITS, contrast, decide, summarise
from benchwright.judgement.guardrails import floor, guard
from benchwright.judgement.hypothesis import judge_hypothesis, named_metrics
from benchwright.judgement.kin import of_one_kind
from benchwright.judgement.reproduction import Reproduction, reproduction, unconfirmed
from benchwright.judgement.stability import stability, trend_of_effect
from benchwright.judgement.tags import MORE_THAN_ONE_TREATMENT, Evidence, tag
from benchwright.judgement.units import UnitKind, Units, analysed, units_of
from benchwright.judgement.verdict import (
    ArmSummary,
    Decision,
    Finding,
    GuardrailResult,
    Judgement,
    Tag,
    Verdict,
)
from benchwright.judgement.view import RunView
from benchwright.spec.arms import Arm, expand_arms
from benchwright.spec.model import BenchmarkConfig, Metric, Role

WITHHOLDING = frozenset(
    {
        "altered-artifact",
        "code-evidence",
        "config-changed",
        "drift",
        "evaluation-differs",
        "items-differ",
        "order",
        "treatment-never-ran",
    }
)
"""Findings after which nothing is compared: the arms were not what they were to be."""


def judge_run(view: RunView, priors: Sequence[RunView] = ()) -> Judgement:
    """Judge a finished run.

    Args:
        view: The run; its own `tag` and `judgement` are not looked at.
        priors: Earlier runs, in any order; those of other kinds are ignored.

    Returns:
        The judgement. Its findings have failures first, then caveats, then remarks.
    """
    config = view.config
    arms = expand_arms(config)
    metrics = measured_metrics(view)
    units = {arm.name: {m.name: _units(view, arm, m) for m in metrics} for arm in arms}
    seen = [finding for finding in view.findings if finding.code != gate1.VERIFIED]
    findings = [*seen, *_gates(view), *_remarks(view, priors)]
    findings += _missing(view, units)

    baseline = units[arms[0].name]
    treatments = [units[arm.name] for arm in arms[1:]]
    contrasts = [
        contrast(metric, baseline[metric.name], treatment[metric.name])
        for treatment in treatments
        for metric in deciding_metrics(config, metrics)
    ]
    findings += [
        finding
        for one in contrasts
        if one.baseline.kind is UnitKind.ITEM and one.treatment.kind is UnitKind.ITEM
        for finding in gate2.items_differ(one.metric.name, one.baseline, one.treatment)
    ]
    withheld = [finding.message for finding in findings if finding.code in WITHHOLDING]
    if withheld:
        contrasts = [replace(one, obstacle=f"Not compared. {withheld[0]}") for one in contrasts]
    verdicts = decide(contrasts)
    guardrails = _guardrails(metrics, baseline, treatments)
    verdicts = with_guardrails(verdicts, guardrails)
    verdicts = without_wins(verdicts, [finding for finding in findings if finding.failure])
    findings += result_findings(() if withheld else verdicts, guardrails)
    findings += _stability(view, arms, metrics)

    summaries = {
        arm.name: {m.name: summarise(units[arm.name][m.name], m.scale) for m in metrics}
        for arm in arms
    }
    again = reproduction(view, summaries, verdicts, priors)
    ordered = by_weight(findings)
    label, why = _tag(view, priors, ordered, summaries, verdicts, again)
    outcome, because = judge_hypothesis(
        config.hypothesis, config.metrics, verdicts, guardrails, ordered
    )
    return Judgement(
        verdicts=verdicts,
        guardrails=guardrails,
        summaries=summaries,
        tag=label,
        tag_reason=why,
        hypothesis=outcome,
        hypothesis_reason=because,
        findings=ordered,
    )


def measured_metrics(view: RunView) -> tuple[Metric, ...]:
    """The declared metrics, then those that stages gave without being asked, as secondary."""
    declared = {metric.name: metric for metric in view.config.metrics}
    extra = {
        name: Metric(name=name, role=Role.SECONDARY)
        for sample in view.samples
        if sample.measurement is not None
        for name in sample.measurement.metrics
        if name and name not in declared
    }
    return (*declared.values(), *extra.values())


def deciding_metrics(config: BenchmarkConfig, metrics: Iterable[Metric]) -> tuple[Metric, ...]:
    """What gets a verdict, and so shares the family's error: primary metrics, and those that the
    hypothesis names."""
    named = {metric.name for metric in named_metrics(config.hypothesis or "", config.metrics)}
    return tuple(m for m in metrics if m.role is Role.PRIMARY or m.name in named)


def by_weight(findings: Iterable[Finding]) -> tuple[Finding, ...]:
    """Findings with failures first, then caveats, then remarks; each once."""
    unique = dict.fromkeys(findings)
    return tuple(sorted(unique, key=lambda finding: (not finding.failure, not finding.caveat)))


def _units(view: RunView, arm: Arm, metric: Metric) -> Units:
    seeds = view.config.replication.seeds_as_replicates
    return units_of(view.samples, arm.name, metric.name, seeds=seeds)


def _gates(view: RunView) -> Iterable[Finding]:
    """What the two gates say of the run as a whole."""
    yield from gate1.changed_after_planning(view)
    yield from gate2.failures(view)
    yield from gate2.not_finite(view)
    yield from gate1.drift(view)
    yield from gate1.treatment_never_ran(view)
    yield from gate1.code_evidence(view)
    yield from gate2.evaluation_is_treatment(view)
    yield from gate2.order(view)
    yield from gate2.seeds(view)
    yield from gate1.unverified(view)
    yield from gate2.unknown_fields(view.fingerprint)


def _remarks(view: RunView, priors: Sequence[RunView]) -> Iterable[Finding]:
    """What a reader wants to know and that decides nothing."""
    yield from gate2.prep_remarks(view)
    for code, reason in view.overrides.items():
        yield Finding("overridden", f"The challenge `{code}` was overridden: {reason.rstrip('.')}.")
    latest = gate1.latest_reliable(view.config, [p for p in priors if p.created < view.created])
    if latest is not None:
        reasonless = view.config.model_copy(update={"justified": {}})
        for row in gate1.unjustified(reasonless, view.manifest, latest):
            reason = view.config.justified.get(row.field, "no reason given").rstrip(".")
            yield Finding(
                "justified",
                f"{row.field} is {row.left}, was {row.right}: {reason}.",
                caveat=row.field not in view.config.justified,
            )


def _missing(view: RunView, units: dict[str, dict[str, Units]]) -> Iterable[Finding]:
    """Primary metrics that an arm never gave, though its stages completed."""
    for arm, of_metric in units.items():
        if not analysed(view.samples, arm):
            continue
        for metric in view.config.metrics:
            if metric.role is Role.PRIMARY and not of_metric[metric.name]:
                yield Finding(
                    "not-measured",
                    f"No replicate of {arm} gave {metric.name}, a primary metric.",
                    failure=True,
                    metric=metric.name,
                    arm=arm,
                )


def _guardrails(
    metrics: Iterable[Metric], baseline: dict[str, Units], treatments: Sequence[dict[str, Units]]
) -> tuple[GuardrailResult, ...]:
    """The guardrails in each treatment arm; in a run of one arm, the floors in that one."""
    guards = [metric for metric in metrics if metric.role is Role.GUARDRAIL]
    if not treatments:
        return tuple(floor(m, baseline[m.name]) for m in guards if m.floor is not None)
    return tuple(
        result
        for treatment in treatments
        for metric in guards
        for result in guard(contrast(metric, baseline[metric.name], treatment[metric.name]))
    )


def with_guardrails(
    verdicts: Sequence[Verdict], guardrails: Sequence[GuardrailResult]
) -> tuple[Verdict, ...]:
    """Say which verdicts are wins: better, and every guardrail of the arm held (rule 4)."""
    done = []
    for verdict in verdicts:
        if verdict.decision is not Decision.BETTER:
            done.append(verdict)
            continue
        lost = [g for g in guardrails if g.arm == verdict.treatment.arm and not g.held]
        reasons = verdict.reasons
        if lost:
            what = "was broken" if lost[0].held is False else "can't be told to have held"
            reasons += (f"No win: the guardrail {lost[0].metric.name} {what}. {lost[0].reason}",)
        done.append(replace(verdict, win=not lost, reasons=reasons))
    return tuple(done)


def without_wins(verdicts: Sequence[Verdict], failures: Sequence[Finding]) -> tuple[Verdict, ...]:
    """Take the wins from a run that failed a gate: what it says may not be cited."""
    if not failures:
        return tuple(verdicts)
    why = f"No win: the run failed a gate. {failures[0].message}"
    return tuple(
        replace(one, win=False, reasons=(*one.reasons, why)) if one.win else one for one in verdicts
    )


def result_findings(
    verdicts: Sequence[Verdict], guardrails: Sequence[GuardrailResult]
) -> Iterable[Finding]:
    """What the verdicts and guardrails leave to be said."""
    for guardrail in guardrails:
        if guardrail.held is not True:
            state = "was broken" if guardrail.held is False else "could not be told"
            yield Finding(
                "guardrail",
                f"The guardrail {guardrail.metric.name} {state}: {guardrail.reason}",
                number=guardrail.observed,
                metric=guardrail.metric.name,
                arm=guardrail.arm,
            )
    for verdict in verdicts:
        if verdict.decision is Decision.NO_VERDICT and verdict.units >= MIN_UNITS:
            yield Finding(
                "no-verdict",
                f"{verdict.metric.name} of {verdict.treatment.arm} has no verdict: "
                f"{verdict.reasons[0]}",
                caveat=True,
                metric=verdict.metric.name,
                arm=verdict.treatment.arm,
            )
        elif verdict.decision is Decision.INCONCLUSIVE:
            yield Finding(
                "inconclusive",
                verdict.reasons[0],
                number=verdict.effect,
                metric=verdict.metric.name,
                arm=verdict.treatment.arm,
            )


def _stability(view: RunView, arms: Sequence[Arm], metrics: Sequence[Metric]) -> Iterable[Finding]:
    """How steady each metric was in each arm, and the effect over the blocks."""
    seeds = view.config.replication.seeds_as_replicates
    warmup = view.config.replication.warmup
    for metric in metrics:
        series = [
            units_of(view.samples, arm.name, metric.name, seeds=seeds, itemised=False)
            for arm in arms
        ]
        for units in series:
            yield from stability(metric, units, view.samples, warmup)
        for treatment in series[1:]:
            finding = trend_of_effect(metric, series[0], treatment)
            if finding is not None:
                yield finding


def _tag(
    view: RunView,
    priors: Sequence[RunView],
    findings: Sequence[Finding],
    summaries: dict[str, dict[str, ArmSummary]],
    verdicts: Sequence[Verdict],
    again: Reproduction | None,
) -> tuple[Tag, str]:
    """Gather the evidence and read the tag off the table."""
    primary = [metric.name for metric in view.config.metrics if metric.role is Role.PRIMARY]
    counts = [of_metric[name].n for of_metric in summaries.values() for name in primary]
    counts += [v.units for v in verdicts if v.metric.role is Role.PRIMARY]
    if not primary:
        counts = [len(analysed(view.samples, arm)) for arm in summaries]
    return tag(
        Evidence(
            findings=findings,
            fewest=min(counts, default=0),
            alone=len(summaries) < 2 and not _has_company(view, priors),
            treatments=MORE_THAN_ONE_TREATMENT in view.overrides,
            reproduction=again,
            unconfirmed="" if again else unconfirmed(view, priors),
        )
    )


def _has_company(view: RunView, priors: Sequence[RunView]) -> bool:
    """Whether there is an earlier run of the same kind that may be looked at."""
    return any(
        prior.run_id != view.run_id
        and prior.created <= view.created
        and of_one_kind(view.config, prior.config)
        and prior.tag not in (None, Tag.UNRELIABLE)
        for prior in priors
    )

"""The comparison of two runs: refusals first, then the same verdicts as within a run."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from benchwright.errors import Difference, GateRefused
from benchwright.identity.fingerprint import compare_fingerprints
from benchwright.judgement import gate1, gate2, words
from benchwright.judgement.decide import Contrast, contrast, decide
from benchwright.judgement.guardrails import guard
from benchwright.judgement.judge import (
    by_weight,
    deciding_metrics,
    measured_metrics,
    result_findings,
    with_guardrails,
    without_wins,
)
from benchwright.judgement.tags import Evidence, tag
from benchwright.judgement.units import UnitKind, Units, pair, units_of
from benchwright.judgement.verdict import Finding, GuardrailResult, Tag, Verdict
from benchwright.judgement.view import RunView
from benchwright.spec.arms import ONLY_ARM, expand_arms
from benchwright.spec.model import Role


@dataclass(frozen=True, slots=True)
class Comparison:
    """What run B says against run A. The verdicts' baseline is A, their treatment B.

    Attributes:
        left, right: Ids of A and B.
        treatment: What differs: a parameter, a stage's field, an allowed field of the
            fingerprint; empty where nothing does.
        verdicts, guardrails: As within a run, for each arm that both have.
        tag, tag_reason: QUALIFIED at best.
        findings: Caveats and remarks.
        allowed: Differences of the fingerprint that a person allowed.
    """

    left: str
    right: str
    treatment: str
    verdicts: tuple[Verdict, ...]
    guardrails: tuple[GuardrailResult, ...]
    tag: Tag
    tag_reason: str
    findings: tuple[Finding, ...]
    allowed: tuple[Difference, ...]


def compare_runs(a: RunView, b: RunView, allow: Sequence[str] = ()) -> Comparison:
    """Compare run B with run A.

    Args:
        a: The baseline.
        b: The run that is asked about.
        allow: Fields of the fingerprint that may differ, or sections of it; the result is
            QUALIFIED then.

    Raises:
        BadInput: A name in `allow` is no field.
        GateRefused: Where the two can't be compared, with a row for each difference.
    """
    _refuse_unreliable(a, b)
    rows = config_rows = gate1.config_differences(a, b)
    evaluation = gate2.evaluation_differences(a, b)
    grounds = compare_fingerprints(a.fingerprint, b.fingerprint, allow)
    metrics = _metric_differences(a, b)
    if len(config_rows) < 2:
        # One difference is the treatment; it is refused only where it says what a score is.
        rows = ()
    known = {row.field for row in rows}
    refused = (
        *rows,
        *(row for row in evaluation if row.field not in known),
        *grounds.differences,
        *metrics,
    )
    if refused:
        raise _refusal(a, b, refused, fields=[row.field for row in grounds.differences])

    code = [row.field for row in grounds.allowed if row.field.startswith("code.")]
    code += [row.field for row in config_rows if gate1.is_code(row.field)]
    evidence = gate1.evidence_between(a, b, code_differs=bool(code))
    contrasts, guards = _contrasts(a, b)
    _refuse_other_items(a, b, contrasts)
    verdicts = decide(contrasts)
    guardrails = tuple(result for one in guards for result in guard(one))
    verdicts = with_guardrails(verdicts, guardrails)
    verdicts = without_wins(verdicts, [finding for finding in evidence if finding.failure])
    treatment = words.listed([row.field for row in config_rows] or code)
    findings = by_weight(
        [
            *_allowed(grounds.allowed),
            *_unknown(grounds.unknowns),
            *_origins(a, b),
            *evidence,
            *result_findings(verdicts, guardrails),
            *_nothing_differs(a, b, treatment),
        ]
    )
    primary = [verdict.units for verdict in verdicts if verdict.metric.role is Role.PRIMARY]
    label, why = tag(
        Evidence(findings=findings, fewest=min(primary, default=0), uncitable=_uncitable(a, b))
    )
    return Comparison(
        left=a.run_id,
        right=b.run_id,
        treatment=treatment,
        verdicts=verdicts,
        guardrails=guardrails,
        tag=label,
        tag_reason=why,
        findings=findings,
        allowed=grounds.allowed,
    )


def _refusal(
    a: RunView, b: RunView, rows: Sequence[Difference], fields: Sequence[str]
) -> GateRefused:
    names = words.listed([row.field for row in rows])
    hint = "run both as arms of one experiment, or repeat one with the other's values"
    if fields:
        flags = " ".join(f"--allow {name}" for name in fields)
        command = f"benchwright compare {a.run_id} {b.run_id} {flags}"
        hint = f"repeat one on the other's ground, or: {command}"
    return GateRefused(
        f"{a.run_id} and {b.run_id} differ in {names}",
        differences=rows,
        expected="runs that differ in exactly the treatment",
        hint=hint,
    )


def _refuse_unreliable(a: RunView, b: RunView) -> None:
    """An UNRELIABLE run is never compared (gate 1, rule 4).

    What was recorded is not taken on trust: drift and a configuration that was changed after it
    was planned are looked for again.
    """
    rows = []
    for view in (a, b):
        broken = (*gate1.changed_after_planning(view), *gate1.drift(view))
        if view.tag is Tag.UNRELIABLE or broken:
            if broken:
                reason = broken[0].message
            elif view.judgement is not None and view.judgement.tag is Tag.UNRELIABLE:
                reason = view.judgement.tag_reason
            else:
                reason = f"A person lowered it: {view.lowered}" if view.lowered else "It is so now."
            left, right = (Tag.UNRELIABLE, "") if view is a else ("", Tag.UNRELIABLE)
            rows.append(Difference("tag", str(left), str(right), f"{view.run_id}: {reason}"))
    if rows:
        raise GateRefused(
            f"{a.run_id} and {b.run_id} can't be compared: an UNRELIABLE run is never compared",
            differences=rows,
            expected="two runs that passed the gates",
            hint="mend what the reason says, and run it again",
        )


def _refuse_other_items(a: RunView, b: RunView, contrasts: Sequence[Contrast]) -> None:
    """Scores over different items are scores of different evaluations (gate 2, rule 9)."""
    rows = []
    for one in contrasts:
        if one.baseline.kind is UnitKind.ITEM and one.treatment.kind is UnitKind.ITEM:
            alone = pair(one.baseline, one.treatment).left_out
            if alone:
                rows.append(
                    Difference(
                        f"items of {one.metric.name}",
                        words.count(len(one.baseline), "item"),
                        words.count(len(one.treatment), "item"),
                        f"{words.count(len(alone), 'item')} were scored in one run only; scores "
                        "of different evaluations are never compared.",
                    )
                )
    if rows:
        raise _refusal(a, b, rows, fields=())


def _metric_differences(a: RunView, b: RunView) -> tuple[Difference, ...]:
    """Metrics of one name that aren't the same quantity, or none in common."""
    before = {metric.name: metric for metric in measured_metrics(a)}
    after = {metric.name: metric for metric in measured_metrics(b)}
    common = [name for name in before if name in after]
    if not common:
        return (
            Difference(
                "metrics",
                words.listed(list(before)) or "none",
                words.listed(list(after)) or "none",
                "The runs have no metric in common.",
            ),
        )
    return tuple(
        Difference(
            f"metrics.{name}.{field}",
            str(getattr(before[name], field)),
            str(getattr(after[name], field)),
            "The same name stands for two quantities.",
        )
        for name in common
        for field in ("unit", "direction", "scale")
        if getattr(before[name], field) != getattr(after[name], field)
    )


def _contrasts(a: RunView, b: RunView) -> tuple[list[Contrast], list[Contrast]]:
    """What is decided, and what guards, for each arm that both runs have."""
    seeds = a.config.replication.seeds_as_replicates and b.config.replication.seeds_as_replicates
    known = {metric.name for metric in measured_metrics(a)}
    metrics = [metric for metric in measured_metrics(b) if metric.name in known]
    deciding = {metric.name for metric in deciding_metrics(b.config, metrics)}
    decided, guarding = [], []
    for left, right in _arms(a, b):
        for metric in metrics:
            if metric.name not in deciding and metric.role is not Role.GUARDRAIL:
                continue
            one = contrast(
                metric,
                _labelled(units_of(a.samples, left, metric.name, seeds=seeds), a, left),
                _labelled(units_of(b.samples, right, metric.name, seeds=seeds), b, right),
                interleaved=False,
            )
            if metric.name in deciding:
                decided.append(one)
            if metric.role is Role.GUARDRAIL:
                guarding.append(one)
    return decided, guarding


def _arms(a: RunView, b: RunView) -> list[tuple[str, str]]:
    """Arms that belong together: of the same name, or else the two baselines."""
    left = [arm.name for arm in expand_arms(a.config)]
    right = [arm.name for arm in expand_arms(b.config)]
    shared = [(name, name) for name in left if name in right]
    return shared or [(left[0], right[0])]


def _labelled(units: Units, view: RunView, arm: str) -> Units:
    """Units under a name that says which run they are from."""
    return replace(units, arm=view.run_id if arm == ONLY_ARM else f"{view.run_id} {arm}")


def _allowed(allowed: Iterable[Difference]) -> Iterable[Finding]:
    for row in allowed:
        yield Finding(
            "allowed-difference",
            f"{row.field} was {row.left} and is {row.right}; a person allowed that.",
            caveat=True,
        )


def _unknown(fields: Sequence[str]) -> Iterable[Finding]:
    """Fields that one or both runs couldn't read: they can't be said to agree (rule 7)."""
    if fields:
        yield Finding(
            "unknown-field",
            f"{words.listed(list(fields), 8)} {'is' if len(fields) == 1 else 'are'} unknown in one "
            "or both runs, so nothing says whether they agree.",
            number=float(len(fields)),
            limit=0.0,
            caveat=True,
        )


def _origins(a: RunView, b: RunView) -> Iterable[Finding]:
    """What the runs bring with them: they were not interleaved, and may have caveats."""
    yield Finding(
        "not-interleaved",
        f"{a.run_id} and {b.run_id} were not interleaved: what changed on the machine between "
        "them is part of the difference.",
        caveat=True,
    )
    for view in (a, b):
        if view.tag is Tag.QUALIFIED and view.judgement is not None:
            yield Finding(
                "qualified-run",
                f"{view.run_id} is QUALIFIED: {view.judgement.tag_reason}",
                caveat=True,
            )


def _nothing_differs(a: RunView, b: RunView, treatment: str) -> Iterable[Finding]:
    if a.run_id == b.run_id:
        yield Finding("same-run", f"{a.run_id} is compared with itself.")
    elif not treatment:
        yield Finding(
            "nothing-differs",
            "Nothing differs between the runs that is known of: the comparison says how well the "
            "experiment reproduces.",
        )


def _uncitable(a: RunView, b: RunView) -> str:
    for view in (a, b):
        if view.tag not in (Tag.RELIABLE, Tag.QUALIFIED):
            return (
                f"{view.run_id} is {view.tag or 'not judged'}: only RELIABLE and QUALIFIED runs "
                "may serve as a baseline or be cited."
            )
    return ""

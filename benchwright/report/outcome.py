"""What went well, and what went wrong or remained unknown, read off a record.

The second list is never empty. Where nothing was seen to go wrong it says what wasn't looked
at: a report that has nothing to admit wasn't written by someone who looked.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from benchwright.execution.sample import Sample
from benchwright.judgement.gate1 import VERIFIED
from benchwright.judgement.sceptic import plausibility
from benchwright.judgement.verdict import Finding, Tag
from benchwright.judgement.view import RunView
from benchwright.judgement.words import count, listed
from benchwright.record.run import RunRecord, Status
from benchwright.report import numbers
from benchwright.spec.model import BenchmarkConfig, Role

NOT_REPRODUCED = "It was not reproduced by a second run yet."

_SHOWN = 5
"""Single failures that are named; the rest is counted."""


def first_line(text: str) -> str:
    """The first line of a text that a stage may have printed."""
    return text.strip().partition("\n")[0].strip()


def went_well(record: RunRecord) -> tuple[str, ...]:
    """What held, a sentence each; one that says so where nothing did."""
    return tuple(_well(record)) or ("Nothing that could be told: the run gave no measurement.",)


def _well(record: RunRecord) -> Iterable[str]:
    view = record.view
    measured = [sample for sample in view.samples if sample.ok]
    if measured and len(measured) == len(view.samples) >= (view.expected or 0):
        yield f"All {count(len(measured), 'replicate')} gave a measurement."
    arms = {sample.arm for sample in measured}
    if len(arms) > 1:
        yield (
            f"The {len(arms)} arms took turns in random blocks (seed "
            f"{view.config.replication.seed}), so that drift met them alike."
        )
    hits = [result for result in view.prep if result.cached]
    if hits:
        yield (
            f"{count(len(hits), 'prep result')} of {len(view.prep)} came from the cache, "
            "checked against their digests."
        )
    if view.judgement is None:
        return
    for verdict in view.judgement.verdicts:
        if verdict.win:
            yield f"{verdict.metric.name} improved with {verdict.treatment.arm}, guardrails held."
    for guardrail in view.judgement.guardrails:
        if guardrail.held:
            yield (
                f"The guardrail {guardrail.metric.name} held with {guardrail.arm}, limit "
                f"{guardrail.limit}: {guardrail.reason}"
            )
    if view.tag is Tag.RELIABLE:
        yield "An earlier run with the same configuration gave the same result."


def went_wrong(record: RunRecord, priors: Sequence[RunView] = ()) -> tuple[str, ...]:
    """What went wrong or remained unknown, a sentence each; never empty.

    Args:
        record: The run.
        priors: Earlier runs, against which its effects may look too good.
    """
    said = tuple(dict.fromkeys((*_wrong(record), *_too_good(record, priors), *_unknown(record))))
    if said:
        return said
    return (
        f"Nothing was seen to go wrong in {count(len(record.view.samples), 'replicate')}. Not "
        "looked at: other machines, other inputs and other loads than this one.",
    )


def _wrong(record: RunRecord) -> Iterable[str]:
    view, judgement = record.view, record.view.judgement
    if record.status is Status.IN_PROGRESS:
        yield "The run hasn't ended: what follows is what is known so far."
    elif record.status is not Status.COMPLETED:
        yield f"The run ended as {record.status}: {first_line(record.error) or 'no reason given'}."
    yield from record.flagged
    if judgement is None:
        yield from _unjudged(record)
    # What a judged run is to be blamed for is judgement's to say; it saw `view.findings` too,
    # but for those that came up when the record was read.
    seen = [finding for finding in view.findings if finding.code != VERIFIED]
    findings = (*(judgement.findings if judgement else ()), *seen)
    for weight in ((True, True), (True, False), (False, True), (False, False)):
        yield from condensed(
            [one for one in findings if (one.failure, one.caveat) == weight], view.config
        )


def condensed(findings: Sequence[Finding], config: BenchmarkConfig) -> Iterable[str]:
    """What findings say, a sentence or two each, in their order.

    Remarks of one kind on several metrics that decide nothing are one: the one with the largest
    number, and the names of the others.
    """
    decide = {metric.name for metric in config.metrics if metric.role is not Role.SECONDARY}
    groups: dict[object, list[Finding]] = {}
    for place, finding in enumerate(findings):
        weighs = finding.failure or finding.caveat or not finding.metric
        alone = weighs or finding.metric in decide
        groups.setdefault(place if alone else finding.code, []).append(finding)
    for group in groups.values():
        most = max(group, key=lambda finding: abs(finding.number or 0))
        others = dict.fromkeys(f.metric for f in group if f.metric != most.metric)
        yield f"{most.message} Likewise {listed(list(others))}." if others else most.message


def _too_good(record: RunRecord, priors: Sequence[RunView]) -> Iterable[str]:
    """What makes an effect implausible: a result that is too good gets more scrutiny."""
    judgement = record.view.judgement
    if judgement is not None and record.view.tag is not Tag.UNRELIABLE:
        for finding in plausibility(record.view, judgement, priors):
            yield finding.message


def _unjudged(record: RunRecord) -> Iterable[str]:
    """What can be told without a judgement."""
    view = record.view
    failed = [sample for sample in view.samples if not sample.ok]
    yield from (_failure(sample) for sample in failed[:_SHOWN])
    if len(failed) > _SHOWN:
        yield f"{len(failed) - _SHOWN} more replicates failed."
    missing = (view.expected or 0) - len(view.samples)
    if missing > 0:
        yield f"{count(missing, 'replicate')} of {view.expected} did not run."
    for code, reason in view.overrides.items():
        yield f"The challenge {code} was overridden: {first_line(reason)}"
    if view.fingerprint.unknown:
        yield f"Could not be read: {listed(view.fingerprint.unknown, limit=12)}."
    misses = [result for result in view.prep if not result.cached]
    for result in misses[:_SHOWN]:
        yield (
            f"{result.stage} for {result.arm} was not in the cache and was built in "
            f"{numbers.duration(result.wall_s)}: {first_line(result.reason)}"
        )
    if len(misses) > _SHOWN:
        yield f"{len(misses) - _SHOWN} more prep results were not in the cache."


def _failure(sample: Sample) -> str:
    ended = str(sample.reason)
    if sample.exit_code not in (None, 0):
        ended += f", exit code {sample.exit_code}"
    kind = "Warm-up replicate" if sample.warmup else "Replicate"
    why = first_line(sample.error)
    return f"{kind} of {sample.arm} in block {sample.block} failed ({ended})" + (
        f": {why}" if why else ", without a word."
    )


def _unknown(record: RunRecord) -> Iterable[str]:
    """What nobody looked at or could look at."""
    view, config = record.view, record.view.config
    if not view.fingerprint.fields:
        yield "What it ran on was not read: no other run can be compared with it."
    measured = [sample for sample in view.samples if sample.measurement is not None]
    if not measured:
        yield "Nothing was measured."
        return
    # A replicate may be a chain of stages, of which one reports for all.
    told = {sample.order for sample in measured if _reports(sample)}
    replicates = {sample.order for sample in measured}
    silent = len(replicates - told)
    if silent:
        yield (
            f"{count(silent, 'replicate')} of {len(replicates)} did not report the parameter "
            "values in use: that they were the declared ones is assumed."
        )
    if config.hypothesis is None:
        yield "No expectation was written down before the run."
    guarded = any(metric.role is Role.GUARDRAIL for metric in config.metrics)
    if config.treatment_variable is not None and not guarded:
        yield "No guardrail was set: what the treatment costs elsewhere was not looked at."
    noted = dict.fromkeys(note for sample in view.samples for note in sample.notes)
    yield from list(noted)[:_SHOWN]
    if len(noted) > _SHOWN:
        yield f"{len(noted) - _SHOWN} more notes of the supervisor stand in samples.jsonl."
    blind = sum(sample.usage.peak_memory_mb is None for sample in measured)
    if blind:
        yield f"The memory use of {count(blind, 'replicate')} could not be read."
    if view.judgement is None:
        yield "Nothing was judged."
    elif view.tag is not Tag.RELIABLE:
        yield NOT_REPRODUCED


def _reports(sample: Sample) -> bool:
    return sample.measurement is not None and bool(sample.measurement.effective)

"""What a step says it measured: a graph without arms has its measurements from there.

A step's result may carry `measurement` (or `measurements`, one for each unit), with `metrics`,
`items` and `effective` as a measure stage prints them, beside `state`, `notes` and `fingerprint`.
It then stands in the record as samples, so that judgement, reports, comparisons and the nightly run
see it like any other.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from benchwright.errors import BenchwrightError
from benchwright.execution.launch import EndReason, Usage
from benchwright.execution.metrics import measurement_from_result
from benchwright.execution.sample import Measurement, Sample
from benchwright.identity.fingerprint import Fingerprint
from benchwright.judgement.verdict import Finding
from benchwright.spec.model import Stage
from tasks.session import RunSession

PARTS = ("measurement", "measurements")

NOTES_SHOWN = 12
"""Notes that stand in the run's own report; the domain's has them all."""


def take_measurements(run: RunSession, stage: Stage, arm: str, result: Any, wall_s: float) -> Any:
    """Record what a step measured; returns what is kept of its result among the run's steps.

    A state of `failed` is a failed sample, and so a failed run; `partial` makes it UNRELIABLE:
    what was asked for wasn't measured in full.
    """
    if not isinstance(result, Mapping) or not any(name in result for name in PARTS):
        return result
    notes = [str(note) for note in result.get("notes") or ()]
    given = result.get("measurements") or [result.get("measurement")]
    failed = result.get("state") == "failed"
    for block, part in enumerate([None] if failed else given):
        sample = _sample(run, stage, arm, block, part, notes, wall_s / len(given))
        run.folder.append_sample(sample)
        run.samples.append(sample)
    if result.get("state") == "partial":
        reason = f"stage '{stage.name}' measured in part: {notes[0] if notes else 'see its report'}"
        run.findings.append(Finding("partial", reason, failure=True))
    run.findings += [Finding("note", note) for note in notes[:NOTES_SHOWN]]
    said = {str(name): str(value) for name, value in (result.get("fingerprint") or {}).items()}
    run.fingerprint = Fingerprint({**run.fingerprint.fields, **said})
    return {name: value for name, value in result.items() if name not in PARTS}


def _sample(
    run: RunSession,
    stage: Stage,
    arm: str,
    block: int,
    part: Mapping[str, Any] | None,
    notes: Sequence[str],
    wall_s: float,
) -> Sample:
    measurement: Measurement | None = None
    error = ""
    try:
        if part is None:
            error = notes[0] if notes else f"stage '{stage.name}' gave no measurement"
        else:
            measurement = _measurement(stage, part)
    except BenchwrightError as problem:
        error = str(problem)
    return Sample(
        stage=stage.name,
        arm=arm,
        block=block,
        order=len(run.samples),
        warmup=False,
        seed=run.config.replication.seed,
        started=datetime.now().astimezone().isoformat(timespec="milliseconds"),
        duration_s=wall_s,
        reason=EndReason.COMPLETED if measurement is not None else EndReason.FAILED,
        exit_code=0 if measurement is not None else None,
        error=error,
        measurement=measurement,
        usage=Usage(wall_s=wall_s),
    )


def _measurement(stage: Stage, part: Mapping[str, Any]) -> Measurement:
    """Read as a measure stage's result is: only finite numbers count. Raises StageFailed."""
    metrics = dict(part["metrics"])
    beside = {name: part[name] for name in ("items", "effective") if part.get(name)}
    # What a partial run lacks is missing, and no reason to drop what is there.
    return measurement_from_result(stage, {**metrics, **beside}, expected=tuple(metrics))

"""One Prefect task for each kind of stage. Each is a thin wrapper around one engine call."""

from __future__ import annotations

import time
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict
from typing import Any

from prefect import task
from prefect.cache_policies import NO_CACHE
from prefect.states import Completed, Failed, State

from benchwright.execution.host import building, measuring
from benchwright.execution.runner import Replicate
from benchwright.execution.sample import Sample
from benchwright.identity.effective import compare_effective
from benchwright.planning.signing import sign_stage
from benchwright.spec.context import Approval
from benchwright.spec.model import StageKind
from tasks.measured import take_measurements
from tasks.progress import progress_on_page
from tasks.session import RunSession, session


@task(name="prep", result_serializer="json")
def prep(stage: str, arm: str, signature: str) -> Any:
    """Make a prep stage's artifacts for one arm, or take them from the artifact cache.

    `signature` is this task's cache key in Prefect too (see the compiler), so its pages show
    `Cached` where nothing was run.
    """
    run = session()
    the_stage, the_arm = run.stage(stage), run.arms[arm]
    run.folder.event({"kind": "prep_started", "stage": stage, "arm": arm})
    run.slots.let_go()
    known = run.runner.cache.lookup(run.signatures[stage, arm]).hit
    with building(run.cancelled, run.wait_for_machine), _gpus(run, stage, needed=not known):
        result = run.runner.prep(
            the_stage,
            the_arm,
            run.signatures[stage, arm],
            resign=lambda: sign_stage(
                the_stage,
                the_arm,
                run.config,
                run.signatures,
                folders=run.runner.folders,
                domain_version=run.domain_version,
                environ=run.runner.environ,
            ),
            on_wait=lambda text: run.folder.event({"kind": "waiting", "for": text}),
        )
    note_prep(run, result)
    payload = {"signature": signature, "reason": result.reason, "wall_s": result.wall_s}
    return Completed(name="Cached", data=payload) if result.cached else payload


def _gpus(run: RunSession, stage: str, *, needed: bool) -> AbstractContextManager[None]:
    """The GPU slots of a stage; none for one that is in the cache."""
    return run.slots.gpus(run.stage(stage)) if needed else nullcontext()


def note_prep(run: RunSession, result: Any) -> None:
    """Remember what became of a prep stage, and tell who follows."""
    run.prep.append(result)
    run.folder.event(
        {
            "kind": "prep_done",
            "stage": result.stage,
            "arm": result.arm,
            "cached": result.cached,
            "reason": result.reason,
            "wall_s": result.wall_s,
        }
    )


@task(name="measure", persist_result=False, cache_policy=NO_CACHE)
def measure(stage: str, arm: str, order: int, block: int, warmup: bool, seed: int) -> State | None:
    """Run a measure stage once for one arm, alone on its host; its sample is on disk before this
    task ends, so that a finished replicate survives whatever comes next."""
    run = session()
    the_stage = run.stage(stage)
    with measuring(run.cancelled, run.wait_for_machine), run.slots.measuring(the_stage):
        sample = run.runner.measure(the_stage, run.arms[arm], Replicate(order, block, warmup, seed))
    run.folder.append_sample(sample)
    run.samples.append(sample)
    run.folder.event(
        {
            "kind": "replicate_done",
            "stage": stage,
            "arm": arm,
            "order": order,
            "block": block,
            "warmup": warmup,
            "ok": sample.ok,
            "error": sample.error,
            "wall_s": sample.duration_s,
            "metrics": dict(sample.measurement.metrics) if sample.measurement else {},
            "drift": drift_of(run, sample),
        }
    )
    return None if sample.ok else Failed(message=sample.error or sample.reason.value)


def drift_of(run: RunSession, sample: Sample) -> list[str]:
    """What a replicate used instead of what was declared: said at once, for it ends as UNRELIABLE
    however long it goes on (gate 1, rule 4)."""
    used = sample.measurement.effective if sample.measurement else {}
    return [
        f"{row.field} was declared as {row.left}, and {row.right} is in use"
        for row in compare_effective(run.arms[sample.arm].params, used)
    ]


@task(name="step", persist_result=False, cache_policy=NO_CACHE)
def step(stage: str, arm: str) -> None:
    """Run a `step` or `gate` stage; what it returned is handed to the stages that need it."""
    run = session()
    the_stage = run.stage(stage)
    run.folder.event({"kind": "step_started", "stage": stage})
    needed = {name: results_of(run, name) for name in the_stage.needs}
    run.slots.let_go()
    begun = time.monotonic()
    with run.slots.gpus(the_stage), progress_on_page(run.folder):
        returned = run.runner.step(the_stage, run.arms[arm], needed)
    wall_s = time.monotonic() - begun
    kept = asdict(returned) if isinstance(returned, Approval) else returned
    run.steps[stage] = take_measurements(run, the_stage, arm, kept, wall_s)
    run.folder.event({"kind": "step_done", "stage": stage})


def results_of(run: RunSession, stage: str) -> Any:
    """What a stage hands to a step that needs it.

    What a step or gate returned; for a measure stage a list with what each analysed replicate
    gave; None for a prep stage, whose artifacts are handed over as paths.
    """
    if run.stage(stage).kind is StageKind.MEASURE:
        return [
            {
                "arm": sample.arm,
                "block": sample.block,
                "metrics": dict(sample.measurement.metrics),
                "effective": dict(sample.measurement.effective),
            }
            for sample in run.samples
            if sample.stage == stage and not sample.warmup and sample.measurement is not None
        ]
    return run.steps.get(stage)

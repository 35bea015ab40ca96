"""Runs made of numbers: what the tests of judgement judge."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from benchwright.execution.launch import EndReason, Usage
from benchwright.execution.sample import Measurement, Sample
from benchwright.identity.canonical import config_hash
from benchwright.identity.fingerprint import Fingerprint
from benchwright.judgement.judge import judge_run
from benchwright.judgement.schedule import schedule
from benchwright.judgement.view import RunView
from benchwright.spec.arms import expand_arms
from benchwright.spec.manifest import Manifest
from benchwright.spec.model import BenchmarkConfig, Metric, Replication, Stage, StageKind

P50 = Metric(name="p50_ms", unit="ms")

FINGERPRINT = Fingerprint(
    {
        "machine.cpu_model": "EPYC 9654",
        "machine.governor": "performance",
        "software.python": "3.11.9",
        "code.commit": "4f2c1d0",
        "code.uncommitted": "none",
    }
)


def config(
    *,
    metrics: Sequence[Metric] = (P50,),
    treatment: Sequence[Any] = ("on",),
    replicates: int = 10,
    warmup: int = 0,
    **more: Any,
) -> BenchmarkConfig:
    """A configuration with the parameters `numa.balancing` (the treatment) and `threads`."""
    fields: dict[str, Any] = {
        "domain": "command",
        "recipe": "sample",
        "params": {"numa": {"balancing": "off"}, "threads": 8},
        "stages": (Stage(name="search", kind=StageKind.MEASURE, cmd="search {numa.balancing}"),),
        "treatment_variable": "numa.balancing" if treatment else None,
        "treatment_values": tuple(treatment),
        "metrics": tuple(metrics),
        "replication": Replication(replicates=replicates, warmup=warmup),
    }
    return BenchmarkConfig(**{**fields, **more})


def failed(sample: Sample, reason: EndReason = EndReason.FAILED, error: str = "exit 1") -> Sample:
    """The sample, failed."""
    return replace(sample, measurement=None, reason=reason, exit_code=1, error=error)


def measured(sample: Sample, **changes: Any) -> Sample:
    """The sample with parts of its measurement changed."""
    assert sample.measurement is not None
    return replace(sample, measurement=replace(sample.measurement, **changes))


def view(
    values: Mapping[str, Sequence[float] | Mapping[str, Sequence[float]]],
    asked: BenchmarkConfig | None = None,
    *,
    run_id: str = "2026-01-02_sample_000001",
    created: str = "2026-01-02T10:00:00+00:00",
    effective: bool = True,
    fingerprint: Fingerprint = FINGERPRINT,
    manifest: Manifest | None = None,
    change: Callable[[Sample], Sample] | None = None,
    **more: Any,
) -> RunView:
    """A run that gave these values.

    Args:
        values: By arm (`off`, `on`, or `only`), the values of `p50_ms` by block; or, by metric,
            such values.
        asked: The configuration; left out: two arms, as many replicates as there are values.
        effective: Whether the stage reports which treatment it used.
        change: Applied to each sample at last.
    """
    by_metric: dict[str, dict[str, Sequence[float]]] = {}
    for arm, given in values.items():
        for name, series in (given if isinstance(given, Mapping) else {"p50_ms": given}).items():
            by_metric.setdefault(arm, {})[name] = series
    blocks = max(len(series) for arm in by_metric.values() for series in arm.values())
    if asked is None:
        asked = config(
            replicates=max(blocks, 1), treatment=[arm for arm in by_metric if arm != "off"]
        )
    arms = {arm.name: arm for arm in expand_arms(asked)}
    short = {name: name.rpartition("=")[2] for name in arms}
    samples = []
    for slot in schedule(list(arms), asked.replication):
        series_of = by_metric.get(short[slot.arm], {})
        block = 0 if slot.warmup else slot.block
        metrics = {n: series[block] for n, series in series_of.items() if block < len(series)}
        if not metrics:
            continue
        variable = asked.treatment_variable
        used = {variable: arms[slot.arm].value} if effective and variable else {}
        sample = Sample(
            stage="search",
            arm=slot.arm,
            block=slot.block,
            order=slot.order,
            warmup=slot.warmup,
            seed=slot.seed,
            started=created,
            duration_s=1.0,
            reason=EndReason.COMPLETED,
            exit_code=0,
            error="",
            measurement=Measurement(metrics=metrics, effective=used),
            usage=Usage(wall_s=1.0),
        )
        samples.append(change(sample) if change else sample)
    return RunView(
        run_id=run_id,
        created=created,
        config=asked,
        config_hash=config_hash(asked),
        manifest=manifest or Manifest(),
        samples=tuple(samples),
        fingerprint=fingerprint,
        **more,
    )


def judged(run: RunView, priors: Sequence[RunView] = ()) -> RunView:
    """The run with its judgement and its tag, as a prior has them."""
    judgement = judge_run(run, priors)
    return replace(run, judgement=judgement, tag=judgement.tag)


def again(run: RunView, number: int = 2) -> RunView:
    """The same run once more, later."""
    return replace(
        run,
        run_id=f"2026-01-{number + 1:02}_sample_{number:06}",
        created=f"2026-01-{number + 1:02}T10:00:00+00:00",
        tag=None,
        judgement=None,
    )


FAST = (10.0, 10.1, 9.9, 10.05, 9.95, 10.02, 9.98, 10.03, 9.97, 10.0)
"""Ten values of about 10, spread by 0.6 %."""

SLOW = tuple(round(value * 1.2, 6) for value in (*FAST[5:], *FAST[:5]))
"""Ten values of about 12."""


def codes(findings: Sequence[Any]) -> set[str]:
    """The codes of findings."""
    return {finding.code for finding in findings}

"""Records as real runs give them, for the tests of the record and the reports.

Two arms in ten blocks after one warm-up block, one failed replicate, a prep stage from the cache
and one that was built, fingerprint fields that couldn't be read. The numbers are drawn from a
seed, so that every test sees the same run.
"""

from __future__ import annotations

import math
import random
import statistics
from dataclasses import replace
from datetime import datetime, timedelta

from benchwright.execution.launch import EndReason, Usage
from benchwright.execution.sample import Measurement, PrepResult, Sample
from benchwright.identity.canonical import config_hash
from benchwright.identity.fingerprint import UNKNOWN, Fingerprint
from benchwright.judgement.schedule import schedule
from benchwright.judgement.verdict import (
    ArmSummary,
    Decision,
    Finding,
    GuardrailResult,
    HypothesisVerdict,
    Interval,
    Judgement,
    Tag,
    Verdict,
)
from benchwright.judgement.view import RunView
from benchwright.record.run import RunRecord, Status
from benchwright.spec.manifest import Manifest, ManifestEntry
from benchwright.spec.model import BenchmarkConfig

RUN_ID = "2026-03-02_retrieval-index_3fa91c"
CREATED = datetime.fromisoformat("2026-03-02T10:15:00.000+01:00")
BASELINE, TREATMENT = "max_num_segments=16", "max_num_segments=1"
FAILED_BLOCK = 6
_P50 = {BASELINE: 11.8, TREATMENT: 1.21}

CONFIG = BenchmarkConfig.model_validate(
    {
        "domain": "command",
        "recipe": "retrieval-index",
        "hypothesis": "p50_ms falls by 80 % with one segment",
        "params": {"corpus": {"n_docs": 20000}, "forcemerge": {"max_num_segments": 16}},
        "stages": [
            {
                "name": "build",
                "kind": "prep",
                "cmd": "./build_index.sh --docs {corpus.n_docs} --out {index}",
                "produces": ["index"],
            },
            {
                "name": "search",
                "kind": "measure",
                "needs": ["build"],
                "cmd": "./search_bench.sh --index {index}",
                "metrics_from": {"stdout": True},
            },
        ],
        "treatment_variable": "forcemerge.max_num_segments",
        "treatment_values": [1],
        "metrics": [
            {"name": "p50_ms", "unit": "ms", "meaning": "median latency of a query"},
            {"name": "qps", "unit": "1/s", "direction": "higher", "role": "secondary"},
            {
                "name": "recall@10",
                "direction": "higher",
                "role": "guardrail",
                "scale": "proportion",
                "max_regression": 0.01,
            },
        ],
    }
)

MANIFEST = Manifest(
    entries=(
        ManifestEntry(
            name="corpus.n_docs",
            reason="latency grows with the collection",
            default=20000,
            verify="effective: corpus.n_docs",
            impact="the runs aren't about the same index",
        ),
    )
)

FINGERPRINT = Fingerprint(
    {
        "machine.cpu_model": "AMD EPYC 7B13",
        "machine.cores": "8",
        "machine.governor": UNKNOWN,
        "machine.memory_mb": "33554",
        "machine.kernel": "6.8.0",
        "software.python": "3.11.9",
        "software.sqlite": "3.45.1",
        "code.commit": "7c60bdf",
        "code.dirty": "no",
        "accelerator.count": "0",
        "accelerator.driver": UNKNOWN,
    }
)


def _sample(
    order: int, block: int, arm: str, warmup: bool, seed: int, draw: random.Random
) -> Sample:
    started = CREATED + timedelta(seconds=20 + 4.2 * order)
    p50 = _P50[arm] * math.exp(draw.gauss(0, 0.03))
    failed = not warmup and block == FAILED_BLOCK and arm == TREATMENT
    measurement = Measurement(
        metrics={"p50_ms": p50, "qps": 1000 / p50, "recall@10": 0.98},
        effective={"forcemerge.max_num_segments": int(arm.partition("=")[2])},
    )
    return Sample(
        stage="search",
        arm=arm,
        block=block,
        order=order,
        warmup=warmup,
        seed=seed,
        started=started.isoformat(timespec="milliseconds"),
        duration_s=3.1 + draw.random(),
        reason=EndReason.FAILED if failed else EndReason.COMPLETED,
        exit_code=1 if failed else 0,
        error="exit code 1: database is locked" if failed else "",
        measurement=None if failed else measurement,
        usage=Usage(
            wall_s=3.2,
            cpu_user_s=2.7 + draw.random() / 5,
            cpu_system_s=0.2,
            peak_memory_mb=180 + 4 * draw.random(),
            read_mb=12.5,
            written_mb=0.0,
            stdout_bytes=180,
            guard="cgroup2",
        ),
    )


def samples() -> tuple[Sample, ...]:
    """The replicates in the order in which they ran."""
    draw = random.Random(1)
    slots = schedule([BASELINE, TREATMENT], CONFIG.replication)
    return tuple(
        _sample(slot.order, slot.block, slot.arm, slot.warmup, slot.seed, draw) for slot in slots
    )


def _summary(arm: str, metric: str, replicates: tuple[Sample, ...]) -> ArmSummary:
    values = [
        sample.measurement.metrics[metric]
        for sample in replicates
        if sample.arm == arm and not sample.warmup and sample.measurement
    ]
    mean = statistics.fmean(values)
    return ArmSummary(
        arm,
        len(values),
        mean,
        statistics.median(values),
        min(values),
        max(values),
        statistics.stdev(values) / mean,
    )


def judgement(replicates: tuple[Sample, ...]) -> Judgement:
    """What is said of these replicates."""
    p50, _, recall = CONFIG.metrics
    summaries = {
        arm: {metric.name: _summary(arm, metric.name, replicates) for metric in CONFIG.metrics}
        for arm in (BASELINE, TREATMENT)
    }
    verdict = Verdict(
        metric=p50,
        baseline=summaries[BASELINE]["p50_ms"],
        treatment=summaries[TREATMENT]["p50_ms"],
        effect=0.1024,
        interval=Interval(0.0994, 0.1055),
        decision=Decision.BETTER,
        units=9,
        detectable=0.0415,
        replicates_needed=58,
        leans="",
        method="paired by block, t of log ratios",
        reasons=(
            "p50_ms is 89.8 % lower with max_num_segments=1 (ratio 0.1024, 95 % interval 0.0994 "
            "to 0.1055): better, the whole interval lies beyond the 1 % that matters.",
            "9 blocks an arm could tell a change of 4.15 % from none (80 % power); it takes 58 "
            "blocks an arm to see 1 %.",
        ),
        win=True,
    )
    return Judgement(
        verdicts=(verdict,),
        guardrails=(
            GuardrailResult(
                recall,
                TREATMENT,
                True,
                0.0,
                "at most 0.01 lower",
                "recall@10 with max_num_segments=1 is unchanged; allowed: at most 0.01 lower.",
            ),
        ),
        summaries=summaries,
        tag=Tag.UNRELIABLE,
        tag_reason="a replicate failed: max_num_segments=1 in block 6",
        hypothesis=HypothesisVerdict.PARTIAL,
        hypothesis_reason="the numbers hold, one replicate failed without an explanation",
        findings=(
            Finding(
                "replicate-failed",
                "1 replicate of search in max_num_segments=1 failed: exit code 1: database is "
                "locked.",
                failure=True,
                arm=TREATMENT,
            ),
            Finding(
                "unverified",
                "The manifest asks for corpus.n_docs, but nothing says which value the run used.",
                caveat=True,
            ),
            Finding(
                "unknown-field",
                "machine.governor and accelerator.driver could not be read.",
                caveat=True,
            ),
            Finding(
                "spread",
                "p50_ms in max_num_segments=16 spreads by 3.4 % between replicates.",
                number=0.034,
                limit=0.1,
                metric="p50_ms",
                arm=BASELINE,
            ),
        ),
    )


def record() -> RunRecord:
    """A completed run."""
    replicates = samples()
    said = judgement(replicates)
    view = RunView(
        run_id=RUN_ID,
        created=CREATED.isoformat(timespec="milliseconds"),
        config=CONFIG,
        config_hash=config_hash(CONFIG),
        manifest=MANIFEST,
        samples=replicates,
        fingerprint=FINGERPRINT,
        prep=(
            PrepResult("build", BASELINE, "ab" * 32, True, "its signature is in the cache", 0.0),
            PrepResult("build", TREATMENT, "cd" * 32, False, "no earlier signature", 12.75),
        ),
        tag=said.tag,
        judgement=said,
        expected=22,
        overrides={"guardrails": "recall is checked by another run"},
    )
    return RunRecord(
        view=view,
        status=Status.COMPLETED,
        finished=(CREATED + timedelta(seconds=130)).isoformat(timespec="milliseconds"),
        host="bench-1",
        folders={"build": "/srv/experiment", "search": "/srv/experiment"},
        domain_version="1",
        lessons=("L0001",),
        expected_effect="p50_ms falls by 80 %",
        command=("benchwright", "run", "experiment.yaml", "-p", "corpus.n_docs=20000"),
        cwd="/srv/experiment",
    )


def bare_record(status: Status = Status.ABORTED_PREFLIGHT) -> RunRecord:
    """A run that ended before it measured anything: nothing is judged, nothing is known."""
    whole = record()
    view = replace(
        whole.view,
        samples=(),
        fingerprint=Fingerprint(),
        prep=(),
        tag=None,
        judgement=None,
        overrides={},
    )
    return replace(whole, view=view, status=status, lessons=(), error="too little memory")


def steps_record() -> RunRecord:
    """A run of a graph without arms: steps that returned something, nothing measured."""
    whole = record()
    config = BenchmarkConfig.model_validate(
        {
            "domain": "verify",
            "stages": [
                {"name": "research", "kind": "step", "function": "a:b"},
                {"name": "approve", "kind": "gate", "function": "a:c", "needs": ["research"]},
                {"name": "execute", "kind": "step", "function": "a:d", "needs": ["approve"]},
            ],
        }
    )
    view = replace(
        whole.view, config=config, samples=(), prep=(), judgement=None, tag=None, expected=None
    )
    steps = {"research": {"size_gb": 0.5, "note": "<b>small</b>"}, "execute": "ok"}
    return replace(whole, view=view, steps=steps, extra={"verify": {"cost_usd": 0.0}})

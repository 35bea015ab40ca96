"""What running a stage gave: a measurement, a replicate (the row of `samples.jsonl`), a build."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from benchwright.execution.launch import EndReason, Usage
from benchwright.spec.values import Value

LOG_EVIDENCE = "code_evidence.log_line"
"""The effective value that counts the lines that matched `code_evidence.log_line`."""


@dataclass(frozen=True, slots=True)
class Measurement:
    """What a measure stage printed.

    Attributes:
        metrics: One finite number for each metric: the mean of what repeats inside the process.
        values: The repeats inside the process, where the stage gave a list.
        items: Outcome of each evaluated item by item id, by metric, where the stage gave them
            (`{"items": {"accuracy": {"q1": 1, "q2": 0}}}`); a list where repeats share an item.
        effective: Parameter values that the system under test says it used, by dotted name.
    """

    metrics: Mapping[str, float]
    values: Mapping[str, tuple[float, ...]] = field(default_factory=dict)
    items: Mapping[str, Mapping[str, tuple[float, ...]]] = field(default_factory=dict)
    effective: Mapping[str, Value] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Sample:
    """One replicate.

    Attributes:
        stage, arm: Names.
        block: Number of the randomised block from 0; warm-up blocks are numbered from 0 too.
        order: Position in the run's whole order, from 0.
        warmup: Whether it is left out of the analysis.
        seed: The `run.seed` that the stage received.
        started: Wall clock at the start, ISO 8601 with time zone.
        duration_s: Monotonic seconds of the process.
        reason, exit_code: How the process ended. A `failed` sample has no measurement.
        error: What went wrong, for a person; empty for a good one.
        measurement: None where it failed.
        usage: What the process tree used.
        notes: What else its supervisor saw, a sentence each.
    """

    stage: str
    arm: str
    block: int
    order: int
    warmup: bool
    seed: int
    started: str
    duration_s: float
    reason: EndReason
    exit_code: int | None
    error: str
    measurement: Measurement | None
    usage: Usage
    notes: tuple[str, ...] = ()

    @property
    def ok(self) -> bool:
        """Whether it can be analysed."""
        return self.measurement is not None


@dataclass(frozen=True, slots=True)
class PrepResult:
    """What became of one prep stage of one arm.

    Attributes:
        stage, arm: Names.
        signature: SHA-256 in hex.
        cached: Whether its artifacts came from the cache.
        reason: Why it was a hit or a miss, in words.
        wall_s: Seconds that it took; 0 for a hit.
        usage: What its process used; None for a hit.
    """

    stage: str
    arm: str
    signature: str
    cached: bool
    reason: str
    wall_s: float
    usage: Usage | None = None

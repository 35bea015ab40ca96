"""What a run may cost and use before a person is asked, or it is refused."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum

from benchwright.errors import Difference, GateRefused
from benchwright.spec.model import BenchmarkConfig

WARN_USD = 5.0
"""Above this estimate an approval needs a tick of its own: a coffee isn't asked twice, a GPU
night is."""

ANSWER_WITHIN_S = 24 * 3600.0
"""How long a question about money waits for its answer (seconds)."""

HOLD_S = 15 * 60.0
"""A wait up to this long keeps its process; a longer one gives the worker's slot back (seconds)."""


class Ruling(StrEnum):
    """What a policy says of an estimate."""

    FREE = "free"
    """Starts unasked."""
    ASK = "ask"
    """Starts when a person approves."""
    WARN = "warn"
    """Starts when a person approves and ticks the warning."""
    NEVER = "never"
    """Doesn't start."""


@dataclass(frozen=True, slots=True)
class CostPolicy:
    """What runs may cost.

    Attributes:
        free_usd: Up to this estimate a run starts unasked.
        warn_usd: Above this estimate an approval has a warning that must be ticked.
        never_usd: Above this estimate a run is refused; None: there is no such limit.
        month_usd: What all runs of a home may spend in a calendar month; None: no such limit.
        answer_within_s: How long an approval is waited for.
        hold_s: A wait up to this long pauses the flow in its process; a longer one suspends it.
    """

    free_usd: float = 0.0
    warn_usd: float = WARN_USD
    never_usd: float | None = None
    month_usd: float | None = None
    answer_within_s: float = ANSWER_WITHIN_S
    hold_s: float = HOLD_S

    def ruling(self, usd: float, month_left_usd: float | None = None) -> Ruling:
        """What becomes of a run.

        Args:
            usd: The upper end of its estimate.
            month_left_usd: What is left of the month's budget.
        """
        most = self.most(month_left_usd)
        if usd > 0 and most is not None and usd > most:
            return Ruling.NEVER
        if usd <= self.free_usd:
            return Ruling.FREE
        return Ruling.WARN if usd > self.warn_usd else Ruling.ASK

    def most(self, month_left_usd: float | None = None) -> float | None:
        """The highest ceiling that an approval can set; None: there is no limit."""
        limits = [limit for limit in (self.never_usd, month_left_usd) if limit is not None]
        return max(0.0, min(limits)) if limits else None

    @property
    def suspends(self) -> bool:
        """Whether the wait for an answer is a long one."""
        return self.answer_within_s > self.hold_s


@dataclass(frozen=True, slots=True)
class ResourcesPolicy:
    """What a run that was started through a deployment may ask for; None: anything.

    Attributes:
        memory_mb: Budget of main memory of a stage, in MB (10^6 bytes).
        gpus: GPUs of a stage.
        wall_s: The run's budget of wall-clock time; a configuration must then name one.
        replicates: Replicates of an arm.
    """

    memory_mb: float | None = None
    gpus: int | None = None
    wall_s: float | None = None
    replicates: int | None = None

    def check(self, config: BenchmarkConfig) -> None:
        """Refuse a configuration that asks for more.

        Raises:
            GateRefused: With a row for each value that is too high.
        """
        rows = list(self._excess(config))
        if rows:
            raise GateRefused(
                f"the configuration asks for more than the resources policy allows: {rows[0].field}"
                f" is {rows[0].left}, at most {rows[0].right}",
                differences=rows,
                hint="ask for less, or have the block resources-policy/benchwright changed",
            )

    def _excess(self, config: BenchmarkConfig) -> Iterator[Difference]:
        asked: list[tuple[str, float | None, float | None]] = [
            ("budget.wall_s", config.budget.wall_s, self.wall_s),
            ("replication.replicates", config.replication.replicates, self.replicates),
        ]
        for stage in config.stages:
            key = f"stages.{stage.name}.resources"
            memory = config.memory_budget_mb(stage)
            if memory is not None:
                asked.append((f"{key}.memory_mb", memory, self.memory_mb))
            asked.append((f"{key}.gpus", stage.resources.gpus, self.gpus))
        for field, value, limit in asked:
            if limit is None:
                continue
            if value is None:
                yield Difference(field, "not set", f"{limit:g}", "without it, nothing ends the run")
            elif value > limit:
                yield Difference(field, f"{value:g}", f"{limit:g}", "others share the machine")

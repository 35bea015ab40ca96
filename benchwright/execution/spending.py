"""What a run spends on accelerators, launch by launch, and the budget that it spends from.

GPU-hours are devices times hours of the stage's process. A TPU chip counts as a device. Dollars
are those hours at the price of the device's model, and the machine's own price where it has one;
they are unknown where the price is.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from benchwright.errors import GuardEnded, Where
from benchwright.execution.device import Device
from benchwright.execution.launch import StageOutcome
from benchwright.execution.pricing import HOUR_S, ProviderPrices
from benchwright.spec.model import Budget, Stage, StageKind


@dataclass(frozen=True, slots=True)
class Spending:
    """One launch of a stage that had accelerators, or that cost something.

    Attributes:
        stage, arm: Names.
        kind: Of the stage.
        devices: UUIDs.
        models: Name of each device.
        gpu_seconds: Devices times seconds.
        usd: Dollars; None where a price is unknown.
        vram_peak_mb: Largest GPU memory on one device; None where it can't be attributed.
        notes: Why a figure is missing, a sentence each.
    """

    stage: str
    arm: str
    kind: StageKind
    devices: tuple[str, ...]
    models: tuple[str, ...]
    gpu_seconds: float
    usd: float | None
    vram_peak_mb: float | None = None
    notes: tuple[str, ...] = ()


def price_hour(devices: Sequence[Device], prices: ProviderPrices) -> float | None:
    """USD for an hour of these devices and of their machine; None where a price is unknown.

    The upper end, where a price is a range.
    """
    total = prices.machine_hour or 0.0
    for device in devices:
        price = prices.gpu_hour(device.name)
        if price is None:
            # A machine that is paid for as a whole has its devices in its price.
            if prices.machine_hour is None:
                return None
        else:
            total += price.high
    return total


def spent_on(
    stage: Stage,
    arm: str,
    devices: Sequence[Device],
    outcome: StageOutcome,
    prices: ProviderPrices,
) -> Spending:
    """What one launch has spent."""
    hour = price_hour(devices, prices)
    return Spending(
        stage=stage.name,
        arm=arm,
        kind=stage.kind,
        devices=tuple(device.uuid for device in devices),
        models=tuple(device.name for device in devices),
        gpu_seconds=outcome.usage.gpu_seconds,
        usd=hour * outcome.usage.wall_s / HOUR_S if hour is not None else None,
        vram_peak_mb=outcome.usage.vram_peak_mb,
        notes=outcome.notes,
    )


@dataclass(slots=True)
class Purse:
    """A run's budget, and what has been spent from it.

    Attributes:
        budget: What the run may use.
        prices: What this machine costs.
        origin: Which price file, of which date.
        spent: Every launch so far, those before a resume too.
        on_spent: Called with each new one, which is to outlive this process.
    """

    budget: Budget
    prices: ProviderPrices = field(default_factory=ProviderPrices)
    origin: str = ""
    spent: list[Spending] = field(default_factory=list)
    on_spent: Callable[[Spending], None] | None = None
    trials: int = 0

    @property
    def gpu_hours(self) -> float:
        """GPU-hours so far."""
        return sum(one.gpu_seconds for one in self.spent) / HOUR_S

    @property
    def usd(self) -> float | None:
        """Dollars so far; None where the price of anything is unknown."""
        return total_usd(self.spent)

    def add(self, spending: Spending) -> None:
        """Remember what a launch has spent; one that cost nothing isn't kept."""
        if spending.devices or spending.usd:
            self.spent.append(spending)
            if self.on_spent is not None:
                self.on_spent(spending)

    def seconds_left(self, devices: Sequence[Device]) -> float | None:
        """How long a stage may keep these devices; None where no budget bounds it."""
        left: list[float] = []
        if self.budget.gpu_hours is not None and devices:
            left.append((self.budget.gpu_hours - self.gpu_hours) * HOUR_S / len(devices))
        hour = price_hour(devices, self.prices)
        if self.budget.cost_usd is not None and hour:
            left.append((self.budget.cost_usd - (self.usd or 0.0)) * HOUR_S / hour)
        return min(left) if left else None

    def check(self) -> None:
        """Refuse to go on once a budget is used up.

        Raises:
            GuardEnded: It is.
        """
        if self.gpu_hours and self.budget.gpu_hours is not None:
            _within(self.gpu_hours, self.budget.gpu_hours, "gpu_hours", "GPU-hours", "used")
        if self.usd and self.budget.cost_usd is not None:
            _within(self.usd, self.budget.cost_usd, "cost_usd", "USD", "spent")

    def afford(
        self,
        stage: Stage,
        estimated_hours: float | None = None,
        estimated_usd: float | None = None,
    ) -> None:
        """Refuse a stage that is expected to pass a budget, before it starts.

        It is expected to take what its launches took so far in this run, else what was
        estimated; one of which nothing is known starts, and is ended at the budget's end.

        Args:
            stage: The stage.
            estimated_hours, estimated_usd: Of one launch, where known.

        Raises:
            GuardEnded: It doesn't fit, or the price of its devices is unknown and dollars count.
        """
        wants = stage.resources.gpus + stage.resources.tpus
        if not wants:
            return
        before = [one for one in self.spent if one.stage == stage.name]
        if before:
            hours: float | None = statistics.median(one.gpu_seconds for one in before) / HOUR_S
        else:
            hours = estimated_hours
        if self.budget.gpu_hours is not None and hours is not None:
            _fits(stage, self.gpu_hours, hours, self.budget.gpu_hours, "gpu_hours", "GPU-hours")
        if self.budget.cost_usd is None:
            return
        if self.usd is None:
            raise GuardEnded(
                f"what stage '{stage.name}' costs is unknown, and the run has a budget in dollars",
                where=Where(key="budget.cost_usd"),
                hint=PRICE_HINT,
            )
        costs = [one.usd for one in before if one.usd is not None]
        usd = statistics.median(costs) if costs else estimated_usd
        if usd is not None:
            _fits(stage, self.usd, usd, self.budget.cost_usd, "cost_usd", "USD")

    def count_trial(self) -> None:
        """Count a trial of the tuner, before it starts.

        Raises:
            GuardEnded: The budget has no more.
        """
        most = self.budget.trials
        if most is not None and self.trials >= most:
            raise GuardEnded(
                f"the budget of {most} trials is used up",
                where=Where(key="budget.trials"),
                hint="raise `budget.trials`, or take the best so far",
            )
        self.trials += 1


PRICE_HINT = (
    "write the price into a file (`date: 2026-10`, `providers: {local: {gpus: {NAME: USD}}}`) "
    "and name it with BENCHWRIGHT_PRICES, or take `budget.cost_usd` out"
)


def total_usd(spent: Sequence[Spending]) -> float | None:
    """The sum of dollars; None where any of them is unknown."""
    costs = [one.usd for one in spent]
    return None if None in costs else sum(cost for cost in costs if cost is not None)


def _within(used: float, limit: float, key: str, unit: str, verb: str) -> None:
    if used >= limit:
        raise GuardEnded(
            f"the run's budget of {limit:g} {unit} is used up: {used:.4g} {verb}",
            where=Where(key=f"budget.{key}"),
            hint=f"raise `budget.{key}`, or lower `replication.replicates`",
        )


def _fits(stage: Stage, used: float, more: float, limit: float, key: str, unit: str) -> None:
    if used + more > limit:
        raise GuardEnded(
            f"stage '{stage.name}' is estimated to take {more:.4g} {unit}; {used:.4g} of the "
            f"budget of {limit:g} are spent",
            where=Where(key=f"budget.{key}"),
            hint=f"raise `budget.{key}`, or lower `replication.replicates`",
        )

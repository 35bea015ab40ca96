"""What a run will take of accelerators and dollars, stage by stage, before anything starts."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from benchwright.errors import GateRefused, Where
from benchwright.execution.accelerators import Machine
from benchwright.execution.pricing import HOUR_S, Prices
from benchwright.execution.spending import PRICE_HINT, price_hour
from benchwright.judgement.challenge import Challenge
from benchwright.judgement.view import RunView
from benchwright.spec.model import BenchmarkConfig, Stage, StageKind


@dataclass(frozen=True, slots=True)
class StageCost:
    """What one stage will take, over all its launches.

    Attributes:
        stage: Its name.
        launches: How often it will run.
        devices: How many each launch has.
        launch_gpu_hours, gpu_hours: Of one launch, and of all; None: unknown.
        usd: Of all; None: unknown.
        basis: What the figures stand on.
    """

    stage: str
    launches: int
    devices: int
    launch_gpu_hours: float | None
    gpu_hours: float | None
    usd: float | None
    basis: str


@dataclass(frozen=True, slots=True)
class CostEstimate:
    """What a run will take of accelerators.

    Attributes:
        stages: Those that ask for devices.
        prices: Which price file, of which date.
    """

    stages: tuple[StageCost, ...]
    prices: str

    def launch(self, stage: str) -> tuple[float | None, float | None]:
        """GPU-hours and dollars of one launch of a stage; None: unknown."""
        for row in self.stages:
            if row.stage == stage:
                usd = row.usd / row.launches if row.usd is not None and row.launches else None
                return row.launch_gpu_hours, usd
        return None, None

    @property
    def gpu_hours(self) -> float | None:
        """Of the whole run; None where a stage is unknown, 0 where none asks for devices."""
        return _sum([row.gpu_hours for row in self.stages])

    @property
    def usd(self) -> float | None:
        """Of the whole run; None where a stage or a price is unknown."""
        return _sum([row.usd for row in self.stages])


def estimate_cost(
    config: BenchmarkConfig,
    launches: Mapping[str, int],
    earlier: Sequence[RunView],
    prices: Prices,
    machine: Machine,
) -> CostEstimate:
    """Estimate what a run will take.

    From the latest earlier run in which the stage had as many devices, else from the stage's own
    `est_gpu_hours`, which speaks of one launch.

    Args:
        config: The run's.
        launches: How often each stage will run: replicates, or prep stages without a cache hit.
        earlier: Earlier runs of the same domain and recipe, newest last.
        prices: Of this machine and others.
        machine: Where it would run.
    """
    rows = []
    for stage in config.stages:
        devices = stage.resources.gpus + stage.resources.tpus
        count = launches.get(stage.name, 0)
        if not devices:
            continue
        hours, basis = launch_hours(stage, earlier)
        price = _price(stage, prices, machine)
        total = hours * count if hours is not None else None if count else 0.0
        rows.append(
            StageCost(
                stage=stage.name,
                launches=count,
                devices=devices,
                launch_gpu_hours=hours,
                gpu_hours=total,
                usd=total / devices * price if total is not None and price is not None else None,
                basis=basis if price is not None else f"{basis}; the price is unknown",
            )
        )
    return CostEstimate(tuple(rows), prices.origin)


def launch_hours(stage: Stage, earlier: Sequence[RunView]) -> tuple[float | None, str]:
    """GPU-hours of one launch of a stage, and what the figure stands on."""
    for view in reversed(earlier):
        before = next((one for one in view.config.stages if one.name == stage.name), None)
        if before is None or before.resources.gpus != stage.resources.gpus:
            continue
        spans = [s.usage.gpu_seconds for s in view.samples if s.stage == stage.name and s.ok]
        spans += [p.usage.gpu_seconds for p in view.prep if p.stage == stage.name and p.usage]
        spans = [span for span in spans if span]
        if spans:
            return statistics.median(spans) / HOUR_S, f"from {view.run_id}"
    declared = stage.resources.est_gpu_hours
    if declared is not None:
        return declared, "from its `est_gpu_hours`"
    return None, "unknown: no earlier run, and no `est_gpu_hours`"


def count_launches(
    config: BenchmarkConfig, replicates: int, misses: Mapping[str, int]
) -> dict[str, int]:
    """How often each stage will run.

    Args:
        config: The run's.
        replicates: Of all arms together, warm-up included.
        misses: Builds of each prep stage that aren't in the cache.
    """
    return {
        stage.name: replicates
        if stage.kind is StageKind.MEASURE
        else misses.get(stage.name, 0)
        if stage.kind is StageKind.PREP
        else 1
        for stage in config.stages
    }


def check_budget(config: BenchmarkConfig, cost: CostEstimate) -> tuple[Challenge, ...]:
    """Challenge a run that is expected to pass its budget.

    Raises:
        GateRefused: It has a budget in dollars, and a price is unknown: nobody could keep it.
    """
    found = []
    budget = config.budget
    if budget.cost_usd is not None and cost.stages and cost.usd is None:
        unpriced = [row.stage for row in cost.stages if "price" in row.basis]
        if unpriced:
            raise GateRefused(
                f"the run has a budget of {budget.cost_usd:g} USD, and what stage"
                f" '{unpriced[0]}' costs an hour is unknown",
                where=Where(key="budget.cost_usd"),
                hint=PRICE_HINT,
            )
    for key, limit, value, unit in (
        ("gpu_hours", budget.gpu_hours, cost.gpu_hours, "GPU-hours"),
        ("cost_usd", budget.cost_usd, cost.usd, "USD"),
    ):
        if limit is not None and value is not None and value > limit:
            found.append(
                Challenge(
                    f"over-budget-{key.replace('_', '-')}",
                    f"The run is estimated to take {value:.4g} {unit}; its budget is {limit:g}.",
                    "It would be ended half-way: what is measured by then may decide nothing.",
                    f"Raise `budget.{key}`, or lower `replication.replicates`.",
                )
            )
    return tuple(found)


def _price(stage: Stage, prices: Prices, machine: Machine) -> float | None:
    """USD for an hour of all that a launch has; None where it is unknown or not one price."""
    wants = stage.resources
    if stage.host is not None:
        return None
    chosen = (*machine.gpus[: wants.gpus], *machine.tpus[: wants.tpus])
    models = {device.name for device in (*machine.gpus, *machine.tpus)}
    several = len({price_hour([d], prices.local) for d in (*machine.gpus, *machine.tpus)}) > 1
    if len(chosen) < wants.gpus + wants.tpus or (several and len(models) > 1):
        return None
    return price_hour(chosen, prices.local)


def _sum(values: Sequence[float | None]) -> float | None:
    return None if None in values else sum(value for value in values if value is not None)

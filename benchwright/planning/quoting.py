"""The quote of a planned run on this machine: its stages' hours at the prices that are known."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path

from benchwright.errors import BadInput, Where
from benchwright.execution.accelerators import Machine, read_machine
from benchwright.execution.device import Device
from benchwright.execution.pricing import HOUR_S, VARIABLE, Prices, read_prices
from benchwright.execution.spending import price_hour
from benchwright.planning.cost import launch_hours
from benchwright.planning.plan import Plan
from benchwright.planning.quote import THIS_MACHINE, Alternative, CostItem, Quote
from benchwright.record.files import PRIVATE, write_atomically
from benchwright.spec.model import Stage, StageKind

QUOTE = "quote.json"
"""In a run's folder: what it was estimated to cost when it was planned."""

SPREAD = 2.0
"""The upper end of an estimate over what an earlier run took: a machine that others use was seen
to take up to twice as long."""

UNKNOWN_S = 24 * HOUR_S
"""What a stage may take of which nothing is known, and that has no deadline and no budget."""


def quote_plan(plan: Plan, environ: Mapping[str, str]) -> Quote | None:
    """What a plan is estimated to cost on this machine.

    A stage of which nothing is known is reckoned from nothing to its deadline, the run's budget
    of time, or a day: whoever approves it sets a ceiling.

    Args:
        plan: The plan.
        environ: Names the file of the user's own prices, and the devices that may be used.

    Returns:
        The quote; None where no price is known of anything that it uses.

    Raises:
        BadInput: The price file can't be read.
    """
    if not environ.get(VARIABLE):
        return None  # what came with Benchwright prices no machine of the user's own
    prices = read_prices(environ)
    config = plan.config
    wants = [s for s in config.stages if s.resources.gpus + s.resources.tpus and s.host is None]
    machine = read_machine(environ) if wants else Machine()
    rates = {stage.name: _hourly(stage, machine, prices) for stage in config.stages}
    if not any(rates.values()):
        return None
    items, low_s, high_s = [], 0.0, 0.0
    for stage in config.stages:
        times = _launches(plan, stage)
        rate = rates[stage.name]
        if not times:
            continue
        low, high, basis = _seconds(plan, stage)
        low_s += low * times
        high_s += high * times
        if rate:
            items.append(
                CostItem(
                    f"{stage.name}, {times} launch{'es' if times > 1 else ''}",
                    low * times / HOUR_S * rate,
                    high * times / HOUR_S * rate,
                    f"{rate:.2f} USD an hour; {basis}",
                )
            )
    if not items:
        return None
    budget = config.budget.wall_s
    return Quote(
        provider=THIS_MACHINE,
        hardware=_hardware(wants, machine),
        low_s=low_s,
        high_s=min(high_s, budget) if budget else high_s,
        items=tuple(items),
        priced=_date(prices),
        usd_per_hour=max(rate for rate in rates.values() if rate),
        basis=plan.estimate.basis,
        alternatives=tuple(_alternatives(plan, items)),
    )


def write_quote(run_dir: Path, quote: Quote | None) -> None:
    """Lay a quote beside the run that it is for; None leaves nothing."""
    if quote is not None:
        write_atomically(run_dir / QUOTE, json.dumps(quote.as_json(), indent=2) + "\n", PRIVATE)


def read_quote(run_dir: Path) -> Quote | None:
    """The quote that a run was planned with; None where it costs nothing.

    Raises:
        BadInput: The file can't be understood.
    """
    path = run_dir / QUOTE
    try:
        return Quote.from_json(json.loads(path.read_text("utf-8")))
    except FileNotFoundError:
        return None
    except (ValueError, TypeError, AttributeError) as problem:
        raise BadInput(f"holds no quote: {problem}", where=Where(path)) from problem


def _launches(plan: Plan, stage: Stage) -> int:
    if stage.kind is StageKind.MEASURE:
        return len(plan.slots)
    if stage.kind is StageKind.PREP:
        return sum(item.stage.name == stage.name and not item.hit for item in plan.prep)
    return 1


def _hourly(stage: Stage, machine: Machine, prices: Prices) -> float | None:
    """USD an hour while the stage runs; None where it isn't known, 0 where it is free."""
    if stage.host is not None:
        return None
    return price_hour(_devices(stage, machine), prices.local)


def _devices(stage: Stage, machine: Machine) -> list[Device]:
    """The dearest that it could get would need every price; the first ones stand for all."""
    return [*machine.gpus[: stage.resources.gpus], *machine.tpus[: stage.resources.tpus]]


def _seconds(plan: Plan, stage: Stage) -> tuple[float, float, str]:
    """Shortest and longest time of one launch, and what they stand on."""
    devices = stage.resources.gpus + stage.resources.tpus
    if devices:
        hours, basis = launch_hours(stage, plan.priors)
        if hours is not None:
            seconds = hours * HOUR_S / devices
            return seconds, min(seconds * SPREAD, _most(plan, stage)), basis
    for view in reversed(plan.priors):
        spans = sorted(
            [s.duration_s for s in view.samples if s.stage == stage.name and s.ok]
            or [p.wall_s for p in view.prep if p.stage == stage.name and not p.cached]
        )
        if spans:
            middle = spans[len(spans) // 2]
            return middle, min(middle * SPREAD, _most(plan, stage)), f"from {view.run_id}"
    most = _most(plan, stage)
    return 0.0, most, f"time unknown, at most {most / HOUR_S:.2g} h a launch"


def _most(plan: Plan, stage: Stage) -> float:
    """The longest that one launch can take."""
    limits = [stage.timeout_s] if stage.timeout_s else []
    if plan.config.budget.wall_s:
        limits.append(plan.config.budget.wall_s / max(1, _launches(plan, stage)))
    return min(limits, default=UNKNOWN_S)


def _hardware(wants: list[Stage], machine: Machine) -> str:
    names = [device.name for device in (*machine.gpus, *machine.tpus)]
    if not wants or not names:
        return "the machine itself"
    most = max(stage.resources.gpus + stage.resources.tpus for stage in wants)
    return f"{most} x {names[0]}"


def _alternatives(plan: Plan, items: list[CostItem]) -> Iterator[Alternative]:
    yield Alternative("a machine that is paid for already", 0.0, 0.0, "name its host in the stages")
    replicates = plan.config.replication.replicates
    least = 5
    if plan.slots and replicates > least:
        share = least / replicates
        low, high = sum(i.low_usd for i in items), sum(i.high_usd for i in items)
        yield Alternative(
            f"--replicates {least}", low * share, high * share, "the fewest that give a verdict"
        )


def _date(prices: Prices) -> str:
    return prices.origin.removeprefix("prices of ")

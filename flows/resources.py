"""What a run holds while it runs: devices, a budget, slots; set up before its graph, settled after.

The rules are the engine's (`execution.accelerators`, `execution.spending`, `planning.cost`) and
those of `tasks.slots`; here they are bound to one run.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import replace
from pathlib import Path
from uuid import UUID

from prefect.runtime import flow_run

from benchwright.execution.accelerators import Accelerators, Machine, read_machine
from benchwright.execution.pricing import VARIABLE, Prices, read_prices
from benchwright.execution.spending import Purse
from benchwright.execution.supervisor import Supervisor
from benchwright.execution.vram import WATCH
from benchwright.judgement.verdict import Finding
from benchwright.planning.cost import CostEstimate, count_launches, estimate_cost
from benchwright.record.accounting import (
    EXTRA,
    Estimate,
    account,
    account_for_domain,
    append_spending,
    findings_of,
    read_spending,
)
from benchwright.record.prior import priors
from benchwright.record.run import RunRecord
from benchwright.record.store import RunFolder
from benchwright.spec.model import BenchmarkConfig, Stage, StageKind
from tasks.limits import LimitsAhead
from tasks.session import RunSession
from tasks.slots import Slots


def wants_devices(config: BenchmarkConfig) -> bool:
    """Whether any stage asks for a GPU or a TPU chip."""
    return any(stage.resources.gpus or stage.resources.tpus for stage in config.stages)


def supervisor_for(config: BenchmarkConfig, home: Path) -> Supervisor:
    """This machine's supervisor; it watches GPU memory where a stage asks for a GPU."""
    supervisor = Supervisor(home, watch=WATCH if wants_devices(config) else None)
    supervisor.prepare()
    return supervisor


def accelerators_for(
    folder: RunFolder,
    config: BenchmarkConfig,
    environ: Mapping[str, str],
    cancelled: threading.Event,
) -> Accelerators:
    """The desk that hands out this machine's devices to a run."""
    return Accelerators(
        environ,
        declared=wants_devices(config),
        cancelled=cancelled,
        on_wait=lambda text: folder.event({"kind": "waiting", "for": text}),
    )


def purse_for(folder: RunFolder, config: BenchmarkConfig, environ: Mapping[str, str]) -> Purse:
    """A run's budget, with what it spent before it was resumed."""
    prices = _prices(config, environ)
    return Purse(
        config.budget,
        prices.local,
        origin=prices.origin,
        spent=list(read_spending(folder)),
        on_spent=lambda spending: append_spending(folder, spending),
    )


def _prices(config: BenchmarkConfig, environ: Mapping[str, str]) -> Prices:
    """The prices, where anything may have one: reading them takes time."""
    if wants_devices(config) or environ.get(VARIABLE):
        return read_prices(environ)
    return Prices("", {})


def slots_for(
    folder: RunFolder, cancelled: threading.Event, findings: list[Finding], limits: LimitsAhead
) -> Slots:
    """The slots of a run on the Prefect server."""
    holder = flow_run.get_id()
    return Slots(
        folder.home,
        folder.path,
        cancelled,
        on_wait=lambda text: folder.event({"kind": "waiting", "for": text}),
        on_lost=lambda text: findings.append(Finding("slot-lost", text, caveat=True)),
        holder=UUID(holder) if holder else None,
        limits=limits,
    )


def estimate_run(
    session: RunSession, hits: Collection[str], replicates: int
) -> CostEstimate | None:
    """What the run will take of accelerators; None where no stage asks for any.

    Args:
        session: The run.
        hits: Signatures that the cache has.
        replicates: How many will be run, over all arms.
    """
    config = session.config
    if not wants_devices(config):
        return None
    kinds = {stage.name: stage.kind for stage in config.stages}
    builds = {
        (stage, signature.digest)
        for (stage, _), signature in session.signatures.items()
        if kinds[stage] is StageKind.PREP and signature.digest not in hits
    }
    earlier = priors(session.home, config.domain, config.recipe, before=session.folder.run_id)
    local = any(stage.host is None for stage in config.stages)
    return estimate_cost(
        config,
        count_launches(config, replicates, Counter(stage for stage, _ in builds)),
        earlier,
        _prices(config, session.runner.environ),
        read_machine(session.runner.environ) if local else Machine(),
    )


def afford(session: RunSession, stage: Stage) -> None:
    """Refuse a stage that is expected to pass the run's budget. Raises GuardEnded."""
    purse, cost = session.runner.purse, session.cost
    if purse is not None and cost is not None:
        purse.afford(stage, *cost.launch(stage.name))


def check_purse(session: RunSession) -> None:
    """End a run whose budget of GPU-hours or dollars is used up. Raises GuardEnded."""
    if session.runner.purse is not None:
        session.runner.purse.check()


def settle(session: RunSession) -> None:
    """Lay what the run has spent beside what was estimated, for its record."""
    purse = session.runner.purse
    if purse is None:
        return
    estimated = {
        row.stage: Estimate(row.gpu_hours, row.usd)
        for row in (session.cost.stages if session.cost is not None else ())
    }
    sums = account(purse.spent, estimated, purse.origin)
    if not sums:
        return
    session.findings += findings_of(purse.spent)
    domain = account_for_domain(session.home, session.config.domain)
    sums["domain"] = {
        "name": session.config.domain,
        "runs": domain.runs,
        "gpu_hours": domain.gpu_hours,
        "usd": domain.usd,
    }
    session.record = with_extra(session.record, EXTRA, sums)


def with_extra(record: RunRecord, name: str, value: object) -> RunRecord:
    """The record with something more in `extra`."""
    return replace(record, extra={**record.extra, name: value})

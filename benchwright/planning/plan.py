"""A plan: what a run would do, and why it may not. Nothing is executed, nothing is written."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchwright.errors import Difference, GateRefused
from benchwright.execution.pricing import read_prices
from benchwright.identity.cache import ArtifactCache
from benchwright.identity.canonical import config_hash
from benchwright.identity.signature import Signature
from benchwright.judgement.challenge import Challenge, challenge
from benchwright.judgement.gate1 import require_declared, require_justified
from benchwright.judgement.schedule import Slot, schedule
from benchwright.judgement.view import RunView
from benchwright.planning.cost import CostEstimate, check_budget, count_launches, estimate_cost
from benchwright.planning.ground import fingerprint_of
from benchwright.planning.preflight import preflight, preflight_devices, preflight_memory
from benchwright.planning.signing import sign_graph
from benchwright.record.lessons import Entry, Kind, Notebook
from benchwright.record.prior import priors
from benchwright.spec.arms import Arm, expand_arms
from benchwright.spec.graph import check_treatment
from benchwright.spec.model import BenchmarkConfig, Stage, StageKind
from benchwright.spec.resolve import Resolved


@dataclass(frozen=True, slots=True)
class PlannedPrep:
    """A prep stage of one arm, and whether the cache has what it would make."""

    stage: Stage
    arm: Arm
    signature: Signature
    hit: bool
    reason: str


@dataclass(frozen=True, slots=True)
class Estimate:
    """What a run will take.

    Attributes:
        wall_s: Seconds; None: unknown.
        basis: What the figure stands on, as a sentence.
        gpu_hours: From `est_gpu_hours`, for all replicates; 0 without GPUs.
    """

    wall_s: float | None
    basis: str
    gpu_hours: float


@dataclass(frozen=True, slots=True)
class Plan:
    """What a run would do.

    Attributes:
        resolved: The configuration, with where each value came from.
        config_hash: SHA-256 of its canonical form.
        arms: The baseline first.
        prep: Every prep stage of every arm, in the order in which they'd run.
        slots: The order of the replicates; empty for a graph without measure stages.
        challenges: Arguments against the plan that a person has to override.
        caveats: What will keep the result from being more than QUALIFIED, as sentences.
        estimate: What it will take.
        priors: Earlier runs of the same domain and recipe, newest last.
        lessons: Lessons and risks that speak of such an experiment.
        cost: Accelerators and dollars, stage by stage; None where no stage asks for a device.
    """

    resolved: Resolved
    config_hash: str
    arms: tuple[Arm, ...]
    prep: tuple[PlannedPrep, ...]
    slots: tuple[Slot, ...]
    challenges: tuple[Challenge, ...]
    caveats: tuple[str, ...]
    estimate: Estimate
    priors: tuple[RunView, ...]
    lessons: tuple[Entry, ...] = ()
    cost: CostEstimate | None = None

    @property
    def config(self) -> BenchmarkConfig:
        """The configuration."""
        return self.resolved.config

    def stages(self, kind: StageKind) -> tuple[Stage, ...]:
        """The stages of one kind, in topological order."""
        return tuple(stage for stage in self.config.stages if stage.kind is kind)


def make_plan(
    resolved: Resolved, home: Path, environ: Mapping[str, str], *, own_history: bool = False
) -> Plan:
    """Plan a run.

    Args:
        resolved: The configuration.
        home: `$BENCHMARK_HOME`; need not exist.
        environ: The environment that the run would be asked for in.
        own_history: It is an entry of a suite, which is held against its own earlier runs, and
            not against those of its neighbours that ask something else on purpose.

    Raises:
        BadInput: The graph, a template or an input is wrong.
        GateRefused: A gate refuses it: the treatment reaches no stage, a parameter that must be
            declared isn't, or one differs from the latest RELIABLE run without a reason.
    """
    with resolved.locating():
        return _plan(resolved, home, environ, own_history)


def _plan(resolved: Resolved, home: Path, environ: Mapping[str, str], own_history: bool) -> Plan:
    config = resolved.config
    hashed = config_hash(config)
    earlier = priors(home, config.domain, config.recipe, config_hash=hashed, like=config)
    if own_history:
        earlier = tuple(view for view in earlier if view.config_hash == hashed)
    require_declared(config, resolved.manifest, earlier)
    require_justified(config, resolved.manifest, earlier)
    check_treatment(config, config.stages)
    arms = expand_arms(config)
    prep = plan_prep(config, arms, resolved.folders, resolved.domain.version, home, environ)
    caveats = preflight(config, resolved.folders, home)
    in_reserve = preflight_memory(config, earlier)
    cost = plan_cost(config, arms, prep, earlier, environ)
    measured = any(stage.kind is StageKind.MEASURE for stage in config.stages)
    return Plan(
        resolved=resolved,
        config_hash=hashed,
        arms=arms,
        prep=prep,
        slots=schedule([arm.name for arm in arms], config.replication) if measured else (),
        challenges=(
            *challenge(
                config,
                resolved.manifest,
                config.stages,
                earlier,
                fingerprint_of(
                    config,
                    resolved.folders,
                    domain_version=resolved.domain.version,
                    home=home,
                    environ=environ,
                ),
            ),
            *in_reserve,
            *(check_budget(config, cost) if cost is not None else ()),
        ),
        caveats=tuple(caveats),
        estimate=estimate(config, arms, prep, earlier),
        priors=earlier,
        lessons=tuple(
            entry
            for kind in Kind
            for entry in Notebook(home, kind).list()
            if entry.matches(config.domain, config.recipe, config.flat_params)
        ),
        cost=cost,
    )


def plan_cost(
    config: BenchmarkConfig,
    arms: Sequence[Arm],
    prep: Sequence[PlannedPrep],
    earlier: Sequence[RunView],
    environ: Mapping[str, str],
) -> CostEstimate | None:
    """What the run will take of accelerators; None where no stage asks for any.

    Raises:
        GateRefused: This machine doesn't have them.
    """
    machine = preflight_devices(config, environ)
    if not any(stage.resources.gpus or stage.resources.tpus for stage in config.stages):
        return None
    misses = Counter(item.stage.name for item in prep if not item.hit)
    replicates = len(arms) * (config.replication.replicates + config.replication.warmup)
    launches = count_launches(config, replicates, misses)
    return estimate_cost(config, launches, earlier, read_prices(environ), machine)


def plan_prep(
    config: BenchmarkConfig,
    arms: Sequence[Arm],
    folders: Mapping[str, Path],
    domain_version: str,
    home: Path,
    environ: Mapping[str, str],
) -> tuple[PlannedPrep, ...]:
    """Sign every prep stage of every arm, and look each up in the cache.

    Arms that share a signature share an artifact: the second one is a hit once the first is built.
    """
    cache = ArtifactCache(home / "cache")
    signatures = sign_graph(
        config,
        arms,
        folders=folders,
        domain_version=domain_version,
        environ=environ,
        memo=cache.memo,
    )
    planned: list[PlannedPrep] = []
    seen: dict[str, str] = {}
    for stage in config.stages:
        for arm in arms:
            signature = signatures.get((stage.name, arm.name))
            if signature is None:
                continue
            if signature.digest in seen:
                hit, reason = True, f"the same as for {seen[signature.digest]}"
            else:
                found = cache.lookup(signature)
                hit, reason = found.hit, found.reason
            seen.setdefault(signature.digest, arm.name)
            planned.append(PlannedPrep(stage, arm, signature, hit, reason))
    return tuple(planned)


def refuse_challenged(plan: Plan, because: str | None) -> None:
    """Stop at the challenges, unless a person gave a reason to go on.

    Raises:
        GateRefused: With every argument as a row.
    """
    if plan.challenges and not (because or "").strip():
        raise GateRefused(
            f"the plan is challenged: {plan.challenges[0].argument}",
            differences=[
                Difference(item.code, item.argument, item.hint, item.reason)
                for item in plan.challenges
            ],
            hint="change the plan, or say why it is right: --because TEXT (kept in the record)",
            columns=("argument", "what to change"),
        )


def estimate(
    config: BenchmarkConfig,
    arms: Sequence[Arm],
    prep: Sequence[PlannedPrep],
    earlier: Sequence[RunView],
) -> Estimate:
    """What a run will take, from the latest earlier run that has the same stages."""
    names = {stage.name for stage in config.stages}
    launches = len(arms) * (config.replication.replicates + config.replication.warmup)
    gpu_hours = sum(
        (stage.resources.est_gpu_hours or 0.0)
        * (launches if stage.kind is StageKind.MEASURE else 1)
        for stage in config.stages
    )
    for view in reversed(earlier):
        measured = {sample.stage for sample in view.samples}
        if not view.samples or not measured <= names:
            continue
        total, unknown = 0.0, []
        for stage in config.stages:
            if stage.kind is StageKind.MEASURE:
                spans = [s.duration_s for s in view.samples if s.stage == stage.name and s.ok]
                total += launches * statistics.median(spans) if spans else 0.0
            elif stage.kind is StageKind.PREP and any(
                item.stage.name == stage.name and not item.hit for item in prep
            ):
                built = [p.wall_s for p in view.prep if p.stage == stage.name and not p.cached]
                misses = sum(item.stage.name == stage.name and not item.hit for item in prep)
                total += misses * statistics.median(built) if built else 0.0
                unknown += [] if built else [stage.name]
        basis = f"from the stage times of {view.run_id}"
        if unknown:
            basis += ", without " + ", ".join(unknown) + ", which came from the cache there"
        return Estimate(total, basis, gpu_hours)
    return Estimate(None, "no earlier run of these stages to go by", gpu_hours)

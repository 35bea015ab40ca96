"""From any domain's graph to a Prefect flow's tasks.

`compile_graph` is pure: it says which tasks there are, in which order, what each waits for and
what it is called. `run_graph` calls them. No domain writes a flow of its own.

    prep, and steps that need no measurement  ->  replicates in their drawn order  ->  other steps
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from prefect.states import State
from prefect.utilities.engine import link_state_to_task_run_result

from benchwright.errors import BenchwrightError
from benchwright.execution.launch import EndReason
from benchwright.execution.runner import sample_error
from benchwright.execution.sample import Sample
from benchwright.judgement.schedule import Slot
from benchwright.spec.arms import Arm
from benchwright.spec.model import BenchmarkConfig, Stage, StageKind
from tasks import stages as stage_tasks
from tasks.session import RunSession

FAILED_REPLICATES = 3
"""A run ends at this many failed replicates of one arm: what three of them say, more won't undo.
A failed warm-up ends it at once, before any time is spent on measuring."""


@dataclass(frozen=True, slots=True)
class Node:
    """One task of the compiled graph.

    Attributes:
        stage: The stage that it runs.
        arm: Name of the arm.
        slot: The replicate; None outside measure stages.
        name: What a person reads in Prefect's pages.
        tags: Kind, arm and resources, to filter and to limit by.
        waits_for: Keys of the nodes whose results it needs.
    """

    stage: Stage
    arm: str
    slot: Slot | None
    name: str
    tags: frozenset[str]
    waits_for: tuple[tuple[str, str, int | None], ...]

    @property
    def key(self) -> tuple[str, str, int | None]:
        """Stage, arm and place in the order."""
        return self.stage.name, self.arm, self.slot.order if self.slot else None


def compile_graph(
    config: BenchmarkConfig, arms: Sequence[Arm], slots: Sequence[Slot]
) -> tuple[Node, ...]:
    """The tasks of a graph, in the order in which they run.

    Args:
        config: Its stages are in topological order.
        arms: The baseline first.
        slots: The order of the replicates.
    """
    by_name = {stage.name: stage for stage in config.stages}
    measured = _after_measuring(config.stages)
    names = [arm.name for arm in arms]
    several = len(names) > 1

    def node(stage: Stage, arm: str, slot: Slot | None) -> Node:
        waits = tuple(
            (
                need,
                arm if by_name[need].kind in (StageKind.PREP, StageKind.MEASURE) else names[0],
                slot.order if slot and by_name[need].kind is StageKind.MEASURE else None,
            )
            for need in stage.needs
            if slot is not None or by_name[need].kind is not StageKind.MEASURE
        )
        return Node(
            stage=stage,
            arm=arm,
            slot=slot,
            name=task_run_name(stage, arm if several else "", slot),
            tags=tags_of(stage, arm if several else ""),
            waits_for=waits,
        )

    def once(stage: Stage) -> list[Node]:
        each = names if stage.kind is StageKind.PREP else names[:1]
        return [node(stage, arm, None) for arm in each]

    measure_stages = [stage for stage in config.stages if stage.kind is StageKind.MEASURE]
    others = [stage for stage in config.stages if stage.kind is not StageKind.MEASURE]
    nodes = [n for stage in others if stage.name not in measured for n in once(stage)]
    nodes += [node(stage, slot.arm, slot) for slot in slots for stage in measure_stages]
    nodes += [n for stage in others if stage.name in measured for n in once(stage)]
    return tuple(nodes)


def _after_measuring(stages: Sequence[Stage]) -> frozenset[str]:
    """The stages that need a measurement, directly or through others."""
    after: set[str] = set()
    for stage in stages:
        if stage.kind is StageKind.MEASURE or after & set(stage.needs):
            after.add(stage.name)
    return frozenset(after)


def task_run_name(stage: Stage, arm: str, slot: Slot | None) -> str:
    """`build, segments=1`; `search, segments=1, replicate 3`."""
    parts = [stage.name, *([arm] if arm else [])]
    if slot is not None:
        parts.append(f"{'warm-up' if slot.warmup else 'replicate'} {slot.block + 1}")
    return ", ".join(parts)


def tags_of(stage: Stage, arm: str) -> frozenset[str]:
    """Tags of a stage's tasks: its kind, its arm, and the accelerators that it asks for."""
    tags = {f"stage:{stage.name}", f"kind:{stage.kind.value}"}
    if arm:
        tags.add(f"arm:{arm}")
    if stage.resources.gpus:
        tags |= {"gpu", f"gpus:{stage.resources.gpus}"}
    if stage.resources.tpus:
        tags |= {"tpu", f"tpus:{stage.resources.tpus}"}
    if stage.host:
        tags.add(f"host:{stage.host}")
    return frozenset(tags)


class Finished:
    """Stands for a task that has ended, where others wait for it.

    Prefect draws an edge for it as it does for the task's state; the state it would resolve to
    its result on a thread of its own for each task that waits, and nobody wants the result.
    """

    def __init__(self, state: State[Any]) -> None:
        link_state_to_task_run_result(state, self)


@dataclass(slots=True)
class GraphRun:
    """Calls the tasks of a compiled graph, one after the other.

    Attributes:
        run: What the tasks work on.
        hits: Signatures that the artifact cache had when the run started.
        check: Called before each task; raises to end the run (cancelled, over a budget).
        approve: Asks a person what a gate stage's result asks; raises when refused.
        afford: Called before each stage that isn't in the cache; raises where the budget doesn't
            have what it is expected to take.
    """

    run: RunSession
    hits: frozenset[str]
    check: Callable[[], None]
    approve: Callable[[Stage, Any], None]
    afford: Callable[[Stage], None]
    done: dict[tuple[str, str, int | None], Finished] = field(default_factory=dict)
    failed: dict[str, int] = field(default_factory=dict)

    def run_all(self, nodes: Sequence[Node]) -> None:
        """Call every task.

        Raises:
            BenchwrightError: What ended the run early: a failed stage, a guard, an interruption.
        """
        dead_chains: set[int] = set()
        for node in nodes:
            self.check()
            if not self._known(node):
                self.afford(node.stage)
            if node.slot is not None:
                if node.slot.order not in dead_chains and not self._measure(node, node.slot):
                    dead_chains.add(node.slot.order)
            elif node.stage.kind is StageKind.PREP:
                self._prep(node)
            else:
                self._step(node)

    def _wait_for(self, node: Node) -> list[Finished]:
        return [self.done[key] for key in node.waits_for if key in self.done]

    def _known(self, node: Node) -> bool:
        """Whether a prep stage's artifacts are there already."""
        if node.stage.kind is not StageKind.PREP:
            return False
        digest = self.run.signatures[node.stage.name, node.arm].digest
        return digest in self.hits or any(one.signature == digest for one in self.run.prep)

    def _prep(self, node: Node) -> None:
        signature = self.run.signatures[node.stage.name, node.arm]
        hit = self._known(node)
        options: Mapping[str, Any] = {
            "task_run_name": node.name,
            "tags": node.tags,
            "cache_key_fn": lambda _context, _parameters: signature.digest,
            "persist_result": True,
            # Prefect's record says only that the stage once ended well. Whether the artifact is
            # still there and intact is for the artifact cache to say.
            "refresh_cache": not hit,
        }
        state = self._call(
            stage_tasks.prep,
            options,
            node,
            stage=node.stage.name,
            arm=node.arm,
            signature=signature.digest,
        )
        finished = {(result.stage, result.arm) for result in self.run.prep}
        if (node.stage.name, node.arm) not in finished:  # Prefect had it: nothing was called
            arm = self.run.arms[node.arm]
            stage_tasks.note_prep(self.run, self.run.runner.adopt(node.stage, arm, signature))
        self.done[node.key] = Finished(state)

    def _measure(self, node: Node, slot: Slot) -> bool:
        before = len(self.run.samples)
        state = self._call(
            stage_tasks.measure,
            {"task_run_name": node.name, "tags": node.tags},
            node,
            may_fail=True,
            stage=node.stage.name,
            arm=node.arm,
            order=slot.order,
            block=slot.block,
            warmup=slot.warmup,
            seed=slot.seed,
        )
        self.done[node.key] = Finished(state)
        if len(self.run.samples) == before:
            raise _error_of(state)
        sample = self.run.samples[-1]
        if not sample.ok:
            self.check()
            self._count_failure(sample, node)
        return sample.ok

    def _count_failure(self, sample: Sample, node: Node) -> None:
        self.failed[sample.arm] = self.failed.get(sample.arm, 0) + 1
        # The next replicate would run out of GPU memory as well.
        out_of_memory = sample.reason is EndReason.VRAM
        if sample.warmup or out_of_memory or self.failed[sample.arm] >= FAILED_REPLICATES:
            raise sample_error(sample, node.name)

    def _step(self, node: Node) -> None:
        if node.stage.name not in self.run.steps:  # a run that was suspended keeps its steps
            state = self._call(
                stage_tasks.step,
                {"task_run_name": node.name, "tags": node.tags},
                node,
                stage=node.stage.name,
                arm=node.arm,
            )
            self.done[node.key] = Finished(state)
        if node.stage.kind is StageKind.GATE:
            self.approve(node.stage, self.run.steps[node.stage.name])

    def _call(
        self,
        task: Any,
        options: Mapping[str, Any],
        node: Node,
        *,
        may_fail: bool = False,
        **parameters: Any,
    ) -> State[Any]:
        state: State[Any] = task.with_options(**options)(
            **parameters, wait_for=self._wait_for(node), return_state=True
        )
        if not may_fail and not state.is_completed():
            self.check()  # a stage that was ended for the run's sake has that as its reason
            raise _error_of(state)
        return state


def _error_of(state: State[Any]) -> BenchwrightError:
    """The error that a task ended with, as the engine raised it."""
    try:
        problem = state.result(raise_on_failure=False)
    except Exception as unreadable:  # a crashed task has no result to read
        problem = unreadable
    if isinstance(problem, BenchwrightError):
        return problem
    return BenchwrightError(f"a task ended {state.name}: {state.message or problem}")

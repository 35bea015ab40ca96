"""The flow that runs any experiment: started by the local engine, or as a deployment.

prefect deployment run benchmark/benchmark -p config='{"domain": "command", ...}'
"""

from __future__ import annotations

import os
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from types import FrameType
from typing import Any

from prefect import flow, get_run_logger, tags
from prefect.runtime import flow_run
from prefect.states import Cancelled, Completed, Failed, State

from benchwright.errors import BenchwrightError, GateRefused, GuardEnded, Interrupted
from benchwright.execution.launch import Launcher
from benchwright.execution.runner import LOCAL_HOST, StageRunner
from benchwright.execution.sample import Sample
from benchwright.execution.supervisor import Supervisor
from benchwright.identity.cache import ArtifactCache
from benchwright.identity.signature import Signature
from benchwright.judgement.schedule import schedule
from benchwright.judgement.verdict import Finding
from benchwright.planning.quoting import read_quote
from benchwright.planning.resume import fingerprint_run
from benchwright.planning.signing import sign_graph
from benchwright.planning.verification import verify_manifest
from benchwright.record.run import RunRecord, Status
from benchwright.record.store import RunFolder
from benchwright.record.waiting import read_waiting
from benchwright.spec.arms import expand_arms
from benchwright.spec.model import BenchmarkConfig, Stage, StageKind
from flows.approval import ask, cost_gate, note_spending, state_name
from flows.compiler import GraphRun, compile_graph
from flows.resources import (
    accelerators_for,
    afford,
    check_purse,
    estimate_run,
    purse_for,
    settle,
    slots_for,
    supervisor_for,
)
from flows.submission import (
    Changes,
    beforehand,
    begun_id,
    found_by,
    not_shared,
    open_run,
    share,
    shared_builds,
)
from tasks.limits import LimitsAhead
from tasks.report import conclude, report
from tasks.session import RunSession, bound
from tasks.tags import free_tags


def _run_name() -> str:
    """The run's id, where it has one already: that is what a person searches for."""
    return str(flow_run.parameters.get("run_id") or begun_id() or "benchmark")


@flow(
    name="benchmark",
    flow_run_name=_run_name,
    description=__doc__,
    persist_result=False,
    validate_parameters=True,
)
def benchmark(
    config: BenchmarkConfig | None = None,
    path: str | None = None,
    digest: str | None = None,
    run_id: str | None = None,
    home: str | None = None,
    folder: str | None = None,
    because: str | None = None,
    overrides: tuple[str, ...] = (),
    replicates: int | None = None,
    max_cost_usd: float | None = None,
    asked_by: str | None = None,
    suite: str | None = None,
) -> State[Any]:
    """Plan an experiment, run it, judge it, and record and report what came of it.

    Args:
        config: The experiment. Or give `path`.
        path: A configuration file, or the name of a recipe.
        digest: SHA-256 of that file: refused if it says something else by now.
        run_id: A run that was created already (by `benchwright run`); nothing else is needed.
        home: Where records and artifacts are kept; default `$BENCHMARK_HOME`.
        folder: What relative paths in `config` start from; default the working directory.
        because: Reason to run in spite of the plan's challenges; kept in the record.
        overrides: Parameters to set over the configuration's, each as `name=value`.
        replicates: Replicates of each arm, instead of the configuration's.
        max_cost_usd: Approved beforehand, in US dollars; without it, what costs something asks.
        asked_by: Who asks for the run; with `max_cost_usd`, who approves it.
        suite: Name of the suite that it is an entry of: it is held against its own earlier runs.
    """
    try:
        run = open_run(
            config=config,
            path=path,
            digest=digest,
            run_id=run_id,
            home=home,
            folder=folder,
            because=because,
            changes=Changes(tuple(overrides), replicates, suite or "", because),
            consent=beforehand(max_cost_usd, asked_by),
        )
    except BenchwrightError as problem:
        return refused_state(problem)
    with run.lock():
        state = run_experiment(run)
    share(run)
    return state


def run_experiment(folder: RunFolder) -> State[Any]:
    """Run what a run's folder says, to its record and report."""
    record = folder.read()
    limits = LimitsAhead()
    session = open_session(folder, record, limits)
    folder.write_results(
        replace(record, view=replace(record.view, fingerprint=session.fingerprint))
    )
    status, error, name = Status.COMPLETED, "", ""
    view = record.view
    with (
        bound(session),
        closing(session.slots),
        ending_on_signals(session),
        tags(*run_tags(record)),
        free_tags(limits),
    ):
        folder.event({"kind": "run_started", "run_id": view.run_id, "expected": view.expected})
        try:
            for stage in session.config.stages:
                session.runner.launcher(stage)
            session.ceiling = cost_gate(
                read_quote(folder.path), session, lambda: check_run(session)
            )
            run_graph(session)
        except BenchwrightError as problem:
            status, error = status_after(problem, session), str(problem)
            name = state_name(problem)
        except Exception as problem:
            status, error = Status.FAILED, f"a fault of Benchwright's own: {problem!r}"
            finish(session, status, error)
            raise
        failed = [sample for sample in session.samples if not sample.ok]
        if status is Status.COMPLETED and failed:
            status = Status.FAILED
            many = f"{len(failed)} replicates failed; the first:"
            error = f"{'a replicate failed:' if len(failed) == 1 else many} {failed[0].error}"
        note_spending(session, session.ceiling)
        record = finish(session, status, error)
    return prefect_state(record, name)


def open_session(folder: RunFolder, record: RunRecord, limits: LimitsAhead) -> RunSession:
    """Bind a run's folder to runners, signatures and a fresh fingerprint."""
    config = record.view.config
    environ = dict(os.environ)
    folders = {name: Path(place) for name, place in record.folders.items()}
    home = folder.home
    arms = expand_arms(config)
    started = time.monotonic()
    cancelled = threading.Event()
    findings: list[Finding] = []
    runner = StageRunner(
        run_id=record.view.run_id,
        run_dir=folder.path,
        config=config,
        folders=folders,
        cache=ArtifactCache(home / "cache", shared_builds(), lambda text: not_shared(folder, text)),
        launchers=launchers_for(config, {LOCAL_HOST: supervisor_for(config, home)}),
        environ=environ,
        deadline=started + config.budget.wall_s if config.budget.wall_s else None,
        accelerators=accelerators_for(folder, config, environ, cancelled),
        purse=purse_for(folder, config, environ),
    )
    return RunSession(
        home=home,
        folder=folder,
        record=record,
        arms={arm.name: arm for arm in arms},
        runner=runner,
        signatures=sign_graph(
            config,
            arms,
            folders=folders,
            domain_version=record.domain_version,
            environ=environ,
            kinds=(StageKind.PREP, StageKind.MEASURE),
            memo=runner.cache.memo,
        ),
        domain_version=record.domain_version,
        fingerprint=fingerprint_run(record, home, environ),
        slots=slots_for(folder, cancelled, findings, limits),
        samples=list(finished_replicates(record)),
        findings=findings,
        cancelled=cancelled,
        steps=kept_steps(folder),
    )


def launchers_for(config: BenchmarkConfig, local: Mapping[str, Launcher]) -> Mapping[str, Launcher]:
    """How a process is run on each host that the stages name; this machine is the one without."""
    return local


def kept_steps(folder: RunFolder) -> dict[str, Any]:
    """What the steps of a run returned that was suspended and goes on: they aren't run again."""
    waiting = read_waiting(folder.path)
    return dict(waiting.kept) if waiting is not None else {}


def finished_replicates(record: RunRecord) -> tuple[Sample, ...]:
    """The samples that a run which is resumed keeps: those of replicates that ended well whole."""
    stages = {s.name for s in record.view.config.stages if s.kind is StageKind.MEASURE}
    good = [sample for sample in record.view.samples if sample.ok]
    done = Counter(sample.order for sample in good)
    return tuple(sample for sample in good if done[sample.order] == len(stages))


def run_graph(session: RunSession) -> None:
    """Compile the run's graph and call its tasks."""
    config = session.config
    slots = (
        schedule(list(session.arms), config.replication)
        if any(stage.kind is StageKind.MEASURE for stage in config.stages)
        else ()
    )
    prep = {stage.name for stage in config.stages if stage.kind is StageKind.PREP}
    cached = {
        signature.digest: signature
        for (stage, _), signature in session.signatures.items()
        if stage in prep
    }
    hits = frozenset(
        d for d, signature in cached.items() if session.runner.cache.lookup(signature).hit
    )

    def check() -> None:
        check_run(session)

    def approve(stage: Stage, asked: Any) -> None:
        if asked:
            session.ceiling = ask(stage, asked, session, check) or session.ceiling

    kept = {sample.order for sample in session.samples}
    left = [slot for slot in slots if slot.order not in kept]
    session.cost = estimate_run(session, hits, len(left))
    graph = GraphRun(session, hits, check, approve, lambda stage: afford(session, stage))
    with ExitStack() as used:
        used.callback(session.slots.close_behind)
        session.slots.ensure(config.stages)
        for signature in cached.values():
            used.enter_context(session.runner.cache.holding(signature))
        graph.run_all(compile_graph(config, list(session.arms.values()), left))
        session.findings += altered_artifacts(session, cached.values())
        arms = list(session.arms.values())
        manifest = session.record.view.manifest
        session.findings += verify_manifest(session.runner, manifest, arms, check)


def check_run(session: RunSession) -> None:
    """End a run that was cancelled, has spent what was approved, or has used up its time.

    Raises:
        Interrupted: It was cancelled.
        GuardEnded: A budget or a ceiling is passed.
    """
    if session.cancelled.is_set():
        raise Interrupted("the run was cancelled")
    if session.ceiling is not None:
        session.ceiling.check()
    check_purse(session)
    deadline = session.runner.deadline
    if deadline is not None and time.monotonic() >= deadline:
        raise GuardEnded(
            f"the run's budget of {session.config.budget.wall_s or 0:g} s of wall-clock time is"
            " used up",
            hint="raise `budget.wall_s`, or lower `replication.replicates`",
        )


def altered_artifacts(session: RunSession, cached: Iterable[Signature]) -> Iterator[Finding]:
    """Artifacts that a measure stage has changed: the later replicates met another system."""
    for signature in cached:
        changed = session.runner.cache.altered(signature)
        if changed:
            yield Finding(
                "altered-artifact",
                f"what stage '{signature.stage}' built was changed while it was measured:"
                f" {changed}",
                failure=True,
            )


def finish(session: RunSession, status: Status, error: str) -> RunRecord:
    """The last task: judge, record, report; without a task where Prefect has none to give.

    A server that is gone by now costs its pages the summary, and the run nothing.

    Raises:
        Exception: A fault of Benchwright's own; the run is recorded as failed, with the fault.
    """
    settle(session)
    session.folder.event({"kind": "judging"})
    try:
        report.with_options(task_run_name="report", tags=["kind:report"])(status.value, error)
    except Exception as problem:
        with suppress(BenchwrightError):
            session.folder.event({"kind": "not_shown", "error": repr(problem)})
    if session.finished is None:
        try:
            conclude(session, status, error)
        except Exception as fault:
            why = f"its result could not be judged or reported: {fault!r}"
            failed = replace(session.record, status=Status.FAILED, error=f"{error}\n{why}".strip())
            session.folder.write_results(failed)
            raise
    assert session.finished is not None
    return session.finished


def status_after(problem: BenchwrightError, session: RunSession) -> Status:
    """What an error that ended the graph makes of the run."""
    if session.cancelled.is_set() or isinstance(problem, Interrupted):
        return Status.INTERRUPTED
    if isinstance(problem, GuardEnded):
        return Status.ABORTED_GUARDRAIL
    if isinstance(problem, GateRefused):
        return Status.ABORTED_PREFLIGHT
    return Status.FAILED


def prefect_state(record: RunRecord, name: str = "") -> State[Any]:
    """The flow run's final state, with what a person wants to know first.

    Args:
        record: The finished run.
        name: The state's name, where what ended the run has one of its own.
    """
    tag = record.view.tag.value if record.view.tag else ""
    if record.status is Status.COMPLETED:
        return Completed(
            message=f"{tag}: {record.view.judgement.tag_reason}"[:500]
            if record.view.judgement
            else tag
        )
    if record.status is Status.INTERRUPTED:
        return Cancelled(message=record.error[:500])
    return Failed(
        message=record.error[:500], name=name or _STATE_NAMES.get(record.status, "Failed")
    )


_STATE_NAMES = {
    Status.ABORTED_GUARDRAIL: "AbortedGuardrail",
    Status.ABORTED_PREFLIGHT: "AbortedPreflight",
}


def refused_state(problem: BenchwrightError) -> State[Any]:
    """The state of a flow run that never became a run: with its reason, without a traceback."""
    get_run_logger().error(str(problem))
    name = "Refused" if isinstance(problem, GateRefused) else "BadInput"
    return Failed(name=name, message=str(problem)[:500])


def run_tags(record: RunRecord) -> list[str]:
    """Tags by which a person finds a run's tasks."""
    return found_by(record.view.config)


IN_PROGRESS: set[Callable[[], None]] = set()
"""Ends each run that this process works on, whatever thread it is in: signals reach the main
thread alone, and a flow that runs several has to hand them on."""


def end_runs() -> None:
    """End every run that this process works on; each is recorded as interrupted."""
    for end in tuple(IN_PROGRESS):
        end()


@contextmanager
def ending_on_signals(session: RunSession) -> Iterator[None]:
    """Make INT and TERM end what runs, and let the run be recorded.

    Prefect's own handler raises in whatever line the main thread is in; the record would be lost.
    """

    def end(_number: int = 0, _frame: FrameType | None = None) -> None:
        session.cancelled.set()
        for launcher in session.runner.launchers.values():
            if isinstance(launcher, Supervisor):
                launcher.cancel()

    earlier = {}
    if threading.current_thread() is threading.main_thread():
        earlier = {number: signal.signal(number, end) for number in (signal.SIGINT, signal.SIGTERM)}
    IN_PROGRESS.add(end)
    try:
        yield
    finally:
        IN_PROGRESS.discard(end)
        for number, handler in earlier.items():
            signal.signal(number, handler)
        for launcher in session.runner.launchers.values():
            if isinstance(launcher, Supervisor):
                launcher.close()

"""The flow that runs a suite every night, and says what got worse.

prefect deployment run nightly/nightly -p suite=/absolute/suite.yaml --watch
"""

from __future__ import annotations

import hashlib
import os
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from types import FrameType
from typing import Any
from zoneinfo import ZoneInfo

from prefect import flow, get_run_logger, task
from prefect.cache_policies import NO_CACHE
from prefect.client.orchestration import get_client
from prefect.client.schemas.objects import State
from prefect.deployments import run_deployment
from prefect.futures import wait
from prefect.runtime import flow_run
from prefect.states import Cancelled, Cancelling, Completed, Failed

from benchwright.errors import BadInput, BenchwrightError, Interrupted, Where
from benchwright.judgement.history import require_library
from benchwright.planning.quoting import quote_plan, write_quote
from benchwright.planning.start import create_run
from benchwright.record import clock
from benchwright.record.consent import Consent, write_consent
from benchwright.record.nights import REFUSED, SKIPPED, SuiteFolder
from benchwright.record.run import Status
from benchwright.record.store import RunFolder, RunStore
from benchwright.spec.recipe import RecipeLibrary
from benchwright.spec.resolve import Resolved, from_mapping, resolve
from benchwright.spec.source import read_yaml
from benchwright.spec.suite import Entry, Suite, chosen, read_suite, suite_files
from benchwright.spec.values import flatten
from domains.library import known_domains, recipe_folders
from domains.suites import suite_folders
from flows.benchmark import benchmark, end_runs
from flows.submission import RUN_TAG, flow_home, plan_run
from tasks.nightly import judge, summary

PROGRESS: ContextVar[Callable[[str], None]] = ContextVar("benchwright_nightly_progress")
"""Told in a sentence what begins and ends, where someone follows in this process."""

POLL_S = 2.0
"""How often the server is asked how far a run on another machine is (seconds)."""


@dataclass(slots=True)
class Night:
    """One run of a suite.

    Attributes:
        suite: The suite.
        file: Its file.
        home: The benchmark home.
        date: ISO date of the night, by the clocks of the suite's time zone.
        stopping: Set when a person or a signal ends the suite.
    """

    suite: Suite
    file: Path
    home: Path
    date: str
    stopping: threading.Event = field(default_factory=threading.Event)


def _run_name() -> str:
    return f"{Path(str(flow_run.parameters.get('suite') or 'nightly')).stem} nightly"


@flow(name="nightly", flow_run_name=_run_name, description=__doc__, persist_result=False)
def nightly(
    suite: str = "nightly", only: tuple[str, ...] = (), home: str | None = None
) -> State[Any]:
    """Run a suite's entries, one at a time on each host, and judge each with its history.

    An entry that fails or is refused doesn't keep the others from running.

    Args:
        suite: A suite's file, or the name of one in `$BENCHMARK_HOME/suites`.
        only: Names of the entries to run; none: all.
        home: Where records are kept; default `$BENCHMARK_HOME`.
    """
    try:
        night = open_night(suite, only, home)
        lock = SuiteFolder(night.home, night.suite.name).lock()
    except BenchwrightError as problem:
        get_run_logger().error(str(problem))
        name = "BadInput" if isinstance(problem, BadInput) else "NotStarted"
        return Failed(name=name, message=str(problem)[:500])
    with lock, ending_on_signals(night):
        results = run_hosts(night)
        said = summary(str(night.file), str(night.home))
    return night_state(night, results, said)


def open_night(suite: str, only: Sequence[str], home: str | None) -> Night:
    """Find and read a suite.

    Raises:
        BadInput: It isn't there, can't be understood, or has no such entry.
        BenchwrightError: The library for its history isn't installed.
    """
    require_library()
    place = flow_home(home)
    file = suite_files(suite, suite_folders(place)).resolve()
    read = chosen(read_suite(file), only, Where(file, key="only"))
    date = datetime.now(ZoneInfo(read.schedule.timezone)).date().isoformat()
    return Night(read, file, place, date)


def run_hosts(night: Night) -> list[dict[str, Any]]:
    """Run every host's entries; hosts beside each other, the entries of one in turn."""
    hosts = night.suite.by_host()
    if len(hosts) == 1:
        return [run_entry(night, entry) for entry in next(iter(hosts.values()))]
    futures = [
        on_host.with_options(task_run_name=f"host {host}").submit(
            night, [entry.name for entry in entries]
        )
        for host, entries in hosts.items()
    ]
    wait(futures)
    return [result for future in futures for result in future.result()]


@task(name="host", persist_result=False, cache_policy=NO_CACHE)
def on_host(night: Night, entries: list[str]) -> list[dict[str, Any]]:
    """Run the entries of one host in turn."""
    return [run_entry(night, night.suite.entry(name)) for name in entries]


def run_entry(night: Night, entry: Entry) -> dict[str, Any]:
    """Run one entry to its row. Raises nothing: what goes wrong is its result."""
    started = clock.now_text()
    status, run_id, error = SKIPPED, "", "the suite was ended before it"
    if not night.stopping.is_set():
        say(f"{entry.name} on {entry.host} ...")
        try:
            deployment = night.suite.host(entry).deployment
            run = run_there(night, entry, deployment) if deployment else run_here(night, entry)
            record = run.read(samples=False)
            status, run_id, error = str(record.status), run.run_id, record.error
            if record.status is Status.INTERRUPTED:
                # Who ends a night's run, by Ctrl-C or in Prefect's pages, means the night.
                night.stopping.set()
        except Interrupted as problem:
            status, error = str(Status.INTERRUPTED), str(problem)
        except BenchwrightError as problem:
            status, error = REFUSED, str(problem)
        except Exception as fault:
            status, error = str(Status.FAILED), f"a fault of Benchwright's own: {fault!r}"
    if error:
        get_run_logger().error(f"{entry.name}: {status}: {error}")
    say(f"{entry.name}: {status}" + (f": {error.splitlines()[0]}" if error else ""))
    try:
        result: dict[str, Any] = judge.with_options(task_run_name=f"judge {entry.name}")(
            str(night.file), str(night.home), night.date, entry.name, started, status, run_id, error
        )
    except Exception as fault:  # the other entries still have a night to run
        error = f"{error}\nits night could not be judged: {fault}".strip()
        failed = status if status != str(Status.COMPLETED) else str(Status.FAILED)
        return {"entry": entry.name, "status": failed, "error": error, "regressions": []}
    return result


def say(text: str) -> None:
    """Tell who follows, and the flow's log."""
    get_run_logger().info(text)
    tell = PROGRESS.get(None)
    if tell is not None:
        tell(text)


def run_here(night: Night, entry: Entry) -> RunFolder:
    """Run an entry in this process, as a flow below the night's.

    Raises:
        BenchwrightError: It can't be planned, or is refused.
    """
    plan, because = plan_run(
        resolve_entry(night, entry), night.home, entry.because, night.suite.name
    )
    run = create_run(plan, night.home, because=because, name=entry.name)
    write_quote(run.path, quote_plan(plan, os.environ))
    write_consent(run.path, consent(night, entry))
    benchmark(run_id=run.run_id, home=str(night.home), return_state=True)
    run.settle()
    return run


def consent(night: Night, entry: Entry) -> Consent:
    """What an entry may cost: at night nobody is asked."""
    return Consent.now(f"suite {night.suite.name}", entry.max_cost_usd, "unattended")


def resolve_entry(night: Night, entry: Entry) -> Resolved:
    """An entry's complete configuration.

    Raises:
        BadInput: As `spec.resolve`; for a parameter of the suite with the suite's file and line.
        GateRefused: Its treatment reaches no stage.
    """
    try:
        return _resolved(night, entry)
    except BadInput as problem:
        option = (problem.where.key or "") if problem.where is not None else ""
        if not option.startswith("-p "):
            raise
        name = option.removeprefix("-p ")
        owner = f"entries.{entry.name}" if name in flatten(entry.params) else f"hosts.{entry.host}"
        key = f"{owner}.params.{name}"
        raise BadInput(
            problem.what,
            where=read_yaml(night.file).where(key),
            expected=problem.expected,
            hint=problem.hint,
        ) from problem


def _resolved(night: Night, entry: Entry) -> Resolved:
    folder = night.file.parent
    overrides = night.suite.overrides(entry)
    recipes = RecipeLibrary(recipe_folders())
    if entry.domain is not None:
        nested: dict[str, Any] = {"domain": entry.domain}
        return from_mapping(
            nested,
            folder=folder,
            domains=known_domains(folder),
            recipes=recipes,
            overrides=overrides,
            replicates=entry.replicates,
        )
    target = experiment_of(night, entry)
    return resolve(
        target,
        domains=known_domains(target),
        recipes=recipes,
        overrides=overrides,
        replicates=entry.replicates,
    )


def experiment_of(night: Night, entry: Entry) -> str:
    """An entry's experiment: the path of its file, or the name of its recipe."""
    assert entry.experiment is not None
    if entry.experiment.endswith((".yaml", ".yml")):
        return str(night.file.parent / entry.experiment)
    return entry.experiment


def run_there(night: Night, entry: Entry, deployment: str) -> RunFolder:
    """Submit an entry to the deployment of its host, and wait for its end.

    Raises:
        Interrupted: The suite was ended while it waited.
        BenchwrightError: It ended without a run, or its record isn't in this home.
    """
    parameters: dict[str, Any] = {
        "overrides": list(night.suite.overrides(entry)),
        "replicates": entry.replicates,
        "because": entry.because,
        "suite": night.suite.name,
        "max_cost_usd": entry.max_cost_usd,
        "asked_by": f"suite {night.suite.name}",
    }
    if entry.domain is not None:
        parameters |= {"config": {"domain": entry.domain}, "folder": str(night.file.parent)}
    else:
        target = experiment_of(night, entry)
        parameters["path"] = target
        if Path(target).is_file():
            parameters["digest"] = hashlib.sha256(Path(target).read_bytes()).hexdigest()
    submitted: Any = run_deployment(
        deployment,
        parameters=parameters,
        timeout=0,
        as_subflow=True,
        tags=["nightly", f"suite:{night.suite.name}"],
    )
    asked = False
    with get_client(sync_client=True) as client:
        while True:
            now = client.read_flow_run(submitted.id)
            if now.state is not None and now.state.is_final():
                break
            if night.stopping.wait(POLL_S) and not asked:
                asked = True
                client.set_flow_run_state(now.id, Cancelling(message="the suite was ended"))
    run_id = next((tag.removeprefix(RUN_TAG) for tag in now.tags if tag.startswith(RUN_TAG)), "")
    if not run_id:
        if asked:
            raise Interrupted("the suite was ended")
        assert now.state is not None
        raise BenchwrightError(f"{deployment}: {now.state.name}: {now.state.message or ''}")
    try:
        run = RunStore(night.home).open(run_id)
    except BadInput as problem:
        raise BenchwrightError(
            f"the record of {run_id} isn't in this home",
            where=Where(night.home),
            expected=f"host {entry.host} and the suite to share one $BENCHMARK_HOME",
        ) from problem
    run.settle()
    return run


@contextmanager
def ending_on_signals(night: Night) -> Iterator[None]:
    """Make INT and TERM end the run in progress, and skip those that follow.

    Prefect's own handler raises in whatever line the main thread is in.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def end(_number: int, _frame: FrameType | None) -> None:
        night.stopping.set()
        end_runs()

    earlier = {number: signal.signal(number, end) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in earlier.items():
            signal.signal(number, handler)


def night_state(night: Night, results: Sequence[dict[str, Any]], said: str) -> State[Any]:
    """The flow run's final state: failed where an entry has no result, so that people are told."""
    if night.stopping.is_set():
        return Cancelled(message=f"the suite was ended. {said}"[:500])
    without = [result for result in results if result["status"] != str(Status.COMPLETED)]
    news = [summary for result in results for summary in result["regressions"]]
    if without:
        first = without[0]
        reason = str(first["error"]).splitlines()[0] if first["error"] else first["status"]
        message = (
            f"{len(without)} of {len(results)} entries without a result, the first is"
            f" {first['entry']}: {reason}. {said}"
        )
        return Failed(message=message[:500])
    if news:
        return Completed(name="Regressed", message=f"{news[0]}. {said}"[:500])
    return Completed(message=said[:500])

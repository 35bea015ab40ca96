"""From a flow's parameters to a run: one that exists already, or one that is planned here."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from prefect import get_run_logger
from prefect.client.orchestration import get_client
from prefect.context import FlowRunContext
from prefect.runtime import flow_run

from benchwright.errors import BadInput, BenchwrightError, Where
from benchwright.planning.plan import Plan, make_plan, refuse_challenged
from benchwright.planning.resume import prepare_resume
from benchwright.planning.start import create_run
from benchwright.record.consent import Consent, write_consent
from benchwright.record.home import HOME_VARIABLE, benchmark_home
from benchwright.record.run import Status
from benchwright.record.store import RunFolder, RunStore
from benchwright.spec.model import BenchmarkConfig
from benchwright.spec.recipe import RecipeLibrary
from benchwright.spec.resolve import Resolved, from_mapping, resolve
from domains.library import known_domains, recipe_folders

if TYPE_CHECKING:
    from benchwright.identity.sharing import SharedBuilds
    from blocks.store import PlainStore

DEPLOYED_HOME = "BENCHWRIGHT_DEPLOYED_HOME"
"""Names the home of who deployed on a server of this machine: a worker that names none uses it."""

RUN_TAG = "run:"
"""Of the tag by which a flow run is found from a run's id, and a run from its flow run."""


@dataclass(frozen=True, slots=True)
class Changes:
    """What is changed about a configuration, as options of the terminal do.

    Attributes:
        overrides: `name=value` of parameters.
        replicates: Replicates of each arm; None: the configuration's.
        suite: Name of the suite that it is an entry of; empty: of none.
        because: The reason for the overrides.
    """

    overrides: tuple[str, ...] = ()
    replicates: int | None = None
    suite: str = ""
    because: str | None = None


ASKED_BEFORE = "already-answered"
"""Code of the challenge that the same was asked before; see `judgement.challenge`."""


def plan_run(
    resolved: Resolved, home: Path, because: str | None, suite: str = ""
) -> tuple[Plan, str | None]:
    """A flow's plan, and the reason to go on in spite of what speaks against it.

    That the same was asked before speaks against any run but a suite's, which is there for that.

    Raises:
        BadInput: It can't be planned.
        GateRefused: A gate or a policy refuses it, or it is challenged for another reason.
    """
    if in_deployment():
        from blocks.policy import resources_policy

        resources_policy().check(resolved.config)
    plan = make_plan(resolved, home, os.environ, own_history=bool(suite))
    if suite and because is None and {one.code for one in plan.challenges} == {ASKED_BEFORE}:
        because = f"the suite {suite} asks the same every night"
    refuse_challenged(plan, because)
    return plan, because


def beforehand(max_usd: float | None, who: str | None) -> Consent | None:
    """The approval that a flow run was started with; None: a person is asked, where need be."""
    return None if max_usd is None else Consent.now(who or "a parameter", max_usd, "unattended")


def open_run(
    *,
    config: BenchmarkConfig | None,
    path: str | None,
    digest: str | None,
    run_id: str | None,
    home: str | None,
    folder: str | None,
    because: str | None,
    changes: Changes,
    consent: Consent | None = None,
) -> RunFolder:
    """The folder of the run that a flow was started for; see `flows.benchmark.benchmark`.

    A flow run that was suspended and goes on finds the run that it began.

    Raises:
        BadInput: Not exactly one of `config`, `path` and `run_id`, or a file that has changed.
        GateRefused: The plan is refused.
    """
    given = [
        name for name, value in (("config", config), ("path", path), ("run_id", run_id)) if value
    ]
    if len(given) != 1:
        raise BadInput(
            f"the flow was given {' and '.join(given) or 'no experiment'}",
            expected="exactly one of config, path and run_id",
        )
    place = flow_home(home)
    if run_id is not None:
        folder_of_run = RunStore(place).open(run_id)
        if folder_of_run.settle() is not Status.IN_PROGRESS:
            prepare_resume(folder_of_run, os.environ)
        return folder_of_run
    begun = begun_run(place)
    if begun is not None:
        return begun
    resolved = _resolved(config, path, digest, folder, changes)
    plan, because = plan_run(resolved, place, because, changes.suite)
    run = create_run(plan, place, because=because)
    if consent is not None:
        write_consent(run.path, consent)
    name_flow_run(run.run_id, found_by(resolved.config))
    return run


def flow_home(home: str | None) -> Path:
    """Where a flow's records are kept.

    Raises:
        BadInput: A worker runs it and names no home: its folder is gone when the run ends.
    """
    if not home and in_deployment() and not os.environ.get(HOME_VARIABLE):
        deployed = os.environ.get(DEPLOYED_HOME)
        if deployed:
            return benchmark_home(deployed)
        raise BadInput(
            "nothing says where records are kept: a worker's folder is gone when the run ends",
            where=Where(key=HOME_VARIABLE),
            expected="a folder of that machine",
            hint=f"start the worker with {HOME_VARIABLE}=/path, or give the parameter `home`",
        )
    return benchmark_home(home)


def in_deployment() -> bool:
    """Whether a worker runs this flow for a deployment.

    `prefect.runtime.deployment` asks the server, each time, where there is none.
    """
    context = FlowRunContext.get()
    return context is not None and getattr(context.flow_run, "deployment_id", None) is not None


def begun_run(home: Path) -> RunFolder | None:
    """The run that this flow run began before it was suspended; None where it is the first time.

    A run that has ended isn't gone on with: a flow run that is retried begins a new one.
    """
    run_id = begun_id()
    if run_id is not None:
        with suppress(BadInput):
            folder = RunStore(home).open(run_id)
            if folder.status is Status.IN_PROGRESS:
                return folder
    return None


def begun_id() -> str | None:
    """Id of the run that this flow run is for, by its tag; None where it has begun none."""
    tags = flow_run.tags or ()
    return next((tag.removeprefix(RUN_TAG) for tag in tags if tag.startswith(RUN_TAG)), None)


def found_by(config: BenchmarkConfig) -> list[str]:
    """Tags by which a person finds a run of this configuration."""
    return [f"domain:{config.domain}", *([f"recipe:{config.recipe}"] if config.recipe else [])]


def name_flow_run(run_id: str, tags: Iterable[str]) -> None:
    """Give the flow run the run's id as its name, and tags by which a person finds it."""
    if flow_run.id is None:
        return
    kept = [tag for tag in flow_run.tags or () if not tag.startswith(RUN_TAG)]
    with get_client(sync_client=True) as client:
        client.update_flow_run(
            flow_run.id,
            name=run_id,
            tags=list(dict.fromkeys([*kept, f"{RUN_TAG}{run_id}", *tags])),
        )


def results_store() -> PlainStore | None:
    """The server's results store, which its workers share; None where it has none."""
    if not in_deployment():
        return None
    from blocks.named import load
    from blocks.store import ResultsStore

    block = load(ResultsStore)
    return block.plain() if block is not None else None


def shared_builds() -> SharedBuilds | None:
    """Where the server's workers share what they build; None where they don't."""
    store = results_store()
    if store is None:
        return None
    from blocks.builds import StoredBuilds

    return StoredBuilds(store)


def share(folder: RunFolder) -> None:
    """Copy a finished run to the server's results store, where it has one.

    A store that can't be reached costs no result: the run's folder is the record, and the failure
    is an event of it.
    """
    try:
        store = results_store()
        if store is not None:
            store.put_run(folder)
    except BenchwrightError as problem:
        not_shared(folder, f"the run wasn't copied to the results store: {problem}")


def not_shared(folder: RunFolder, text: str) -> None:
    """Say, in the flow's log and to who follows, that a place could not be used."""
    get_run_logger().error("%s", text)
    folder.event({"kind": "not_shared", "error": text})


def _resolved(
    config: BenchmarkConfig | None,
    path: str | None,
    digest: str | None,
    folder: str | None,
    changes: Changes,
) -> Resolved:
    near = path if config is None else folder or Path.cwd()
    domains, recipes = known_domains(near), RecipeLibrary(recipe_folders())
    if config is not None:
        return from_mapping(
            config.model_dump(mode="json", exclude_unset=True),
            folder=Path(folder) if folder else Path.cwd(),
            domains=domains,
            recipes=recipes,
            overrides=changes.overrides,
            replicates=changes.replicates,
            because=changes.because,
        )
    assert path is not None
    if digest is not None:
        try:
            found = hashlib.sha256(Path(path).read_bytes()).hexdigest()
        except OSError as problem:
            raise BadInput(
                f"the configuration can't be read here: {problem.strerror}",
                where=Where(file=path),
                hint="the worker needs a folder that it shares with you, or a smaller"
                " configuration, which travels with the request",
            ) from problem
        if found != digest.lower():
            raise BadInput(
                "the configuration is not the one that was asked for",
                where=Where(file=path),
                expected=f"SHA-256 {digest}",
                hint=f"its SHA-256 is {found}: submit it again",
            )
    return resolve(
        path,
        domains=domains,
        recipes=recipes,
        overrides=changes.overrides,
        replicates=changes.replicates,
        because=changes.because,
    )

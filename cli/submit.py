"""Submitting a run to a server's deployment, and following it from here."""

from __future__ import annotations

import getpass
import hashlib
import json
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import UUID

import click

from benchwright.errors import BadInput, Where
from benchwright.record.consent import AnswerTimedOut
from cli.output import print_json, show_markdown

if TYPE_CHECKING:
    from prefect.client.orchestration import SyncPrefectClient
    from prefect.client.schemas.objects import FlowRun

    from benchwright.spec.resolve import Resolved
    from cli.follow import Progress

DEFAULT_DEPLOYMENT = "benchmark/benchmark"

POLL_S = 1.0
"""How often the server is asked how far a run is (seconds)."""

RENAMED_S = 15.0
"""How long the server's automation may take to rename an end (seconds): it acts within two."""

LATEST = 200
"""Tasks that are looked at each time: more than end between two looks."""

REPORT_PREFIX = "report-"
"""Of the key of a run's report artifact; see `tasks.report.artifact_key`."""

MOST_BYTES = 480_000
"""Of the parameters of a flow run: the server refuses 512 KiB."""

STATE_CODES = {
    "Completed": 0,
    "BadInput": 2,
    "Refused": 3,
    "Rejected": 3,
    "ApprovalTimedOut": 3,
    "AbortedPreflight": 3,
    "Failed": 4,
    "CeilingPassed": 5,
    "AbortedGuardrail": 5,
    "Cancelled": 130,
}
"""Exit code of `benchwright run` for a final state, by its name; 1 for any other."""


def run_deployment(
    target: str,
    resolved: Resolved,
    deployment: str,
    *,
    overrides: tuple[str, ...],
    replicates: int | None,
    because: str | None,
    max_cost: float | None,
    tags: list[str],
    detach: bool,
    as_json: bool,
    on: str = "",
) -> int:
    """Submit an experiment to a deployment of the current Prefect server, and follow it.

    It goes to a host that has what it asks for, or to the host that `on` names.

    Returns:
        The exit code of `benchwright run`.
    """
    return submit_to(
        deployment if "/" in deployment else f"benchmark/{deployment}",
        parameters_for(target, resolved, overrides, replicates),
        resolved,
        because=because,
        max_cost=max_cost,
        tags=tags,
        detach=detach,
        as_json=as_json,
        on=on,
    )


def submit_to(
    name: str,
    parameters: Mapping[str, Any],
    resolved: Resolved,
    *,
    because: str | None,
    max_cost: float | None,
    tags: list[str],
    detach: bool,
    as_json: bool,
    on: str = "",
) -> int:
    """Submit parameters to a deployment, `FLOW/NAME`, and follow the run; see `run_deployment`."""
    from prefect.client.orchestration import get_client
    from prefect.exceptions import ObjectNotFound

    from cli.consent import can_ask
    from cli.follow import Progress

    if max_cost is None and not can_ask():
        max_cost = 0.0  # nobody answers here: only what is free starts
    parameters = dict(parameters) | {
        key: value
        for key, value in {
            "because": because,
            "max_cost_usd": max_cost,
            "asked_by": getpass.getuser(),
        }.items()
        if value is not None
    }
    with get_client(sync_client=True) as client, Progress() as progress:
        try:
            found = client.read_deployment_by_name(name)
        except ObjectNotFound as problem:
            raise BadInput(
                f"the server has no deployment '{name}'",
                where=Where(key="--deployment"),
                hint="benchwright deploy registers all there are; without PREFECT_API_URL and"
                " --deployment it runs here",
            ) from problem
        queue = None
        if found.work_pool_name:
            from deployments.fleet.queues import route

            queue = route(client, found.work_pool_name, resolved.config, on)
        run = _create(client, found.id, parameters, tags, resolved, queue)
        page = _page(client, run.id)
        if detach:
            _say_detached(run, page, as_json)
            return 0
        progress.note(f"submitted: {page}")
        ended = _follow(client, run.id, progress)
        report = _report(client, ended.id)
    return _finish(ended, report, page, as_json)


def resume_deployment(run_id: str, on: str, *, detach: bool, as_json: bool) -> int:
    """Have a host's worker go on with a run that it has the record of, and follow it.

    Args:
        run_id: The whole id.
        on: The host.
        detach: Return at once.
        as_json: Print one object.

    Returns:
        The exit code of `benchwright resume`.

    Raises:
        BadInput: The server has no such deployment, or no worker of that host.
    """
    from prefect.client.orchestration import get_client
    from prefect.exceptions import ObjectNotFound

    from cli.follow import Progress
    from deployments.fleet.queues import queue_of_host

    with get_client(sync_client=True) as client, Progress() as progress:
        try:
            found = client.read_deployment_by_name(DEFAULT_DEPLOYMENT)
        except ObjectNotFound as problem:
            raise BadInput(
                f"the server has no deployment '{DEFAULT_DEPLOYMENT}'", hint="benchwright deploy"
            ) from problem
        run = client.create_flow_run_from_deployment(
            found.id,
            parameters={"run_id": run_id},
            name=run_id,
            tags=[f"by:{getpass.getuser()}"],
            work_queue_name=queue_of_host(client, str(found.work_pool_name), on),
        )
        page = _page(client, run.id)
        if detach:
            _say_detached(run, page, as_json)
            return 0
        progress.note(f"submitted: {page}")
        ended = _follow(client, run.id, progress)
        report = _report(client, ended.id)
    return _finish(ended, report, page, as_json)


def parameters_for(
    target: str, resolved: Resolved, overrides: tuple[str, ...], replicates: int | None
) -> dict[str, Any]:
    """The flow's parameters: what the file says, or its path and digest where it is too big.

    The worker completes it as `benchwright run` would here: same recipe, same configuration hash.
    """
    from benchwright.spec.model import BenchmarkConfig
    from benchwright.spec.source import read_yaml

    common: dict[str, Any] = {}
    if overrides:
        common["overrides"] = list(overrides)
    if replicates is not None:
        common["replicates"] = replicates
    path = Path(target)
    if not path.is_file():
        return {"path": target, **common}  # a recipe, which the worker has too
    data = {"domain": resolved.config.domain, **read_yaml(path).data}
    config = BenchmarkConfig.model_validate(data).model_dump(mode="json", exclude_unset=True)
    whole = {"config": config, "folder": str(path.resolve().parent), **common}
    if len(json.dumps(whole).encode()) <= MOST_BYTES:
        return whole
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    return {"path": str(path.resolve()), "digest": digest, **common}


def _create(
    client: SyncPrefectClient,
    deployment: UUID,
    parameters: Mapping[str, Any],
    tags: list[str],
    resolved: Resolved,
    queue: str | None,
) -> FlowRun:
    from prefect.exceptions import PrefectHTTPStatusError

    config = resolved.config
    try:
        return client.create_flow_run_from_deployment(
            deployment,
            parameters=dict(parameters),
            name=f"{config.recipe or config.domain} of {getpass.getuser()}",
            tags=[f"by:{getpass.getuser()}", *tags],
            work_queue_name=queue,
        )
    except PrefectHTTPStatusError as problem:
        raise BadInput(
            f"the server refused the run: {problem.response.text[:400]}",
            hint="are its deployments those of this version? benchwright deploy --check",
        ) from problem


def _page(client: SyncPrefectClient, flow_run: UUID) -> str:
    return f"{str(client.api_url).rstrip('/').removesuffix('/api')}/runs/flow-run/{flow_run}"


def _follow(client: SyncPrefectClient, run_id: UUID, progress: Progress) -> FlowRun:
    """Wait for a flow run's end. Ctrl-C cancels it once, and its end is still waited for."""
    seen: set[UUID] = set()
    asked: set[str] = set()
    said = ""
    while True:
        try:
            run = client.read_flow_run(run_id)
            state = run.state
            if state is not None and state.is_final():
                return _named(client, run)
            said = _show(client, run, progress, seen, said)
            if state is not None and state.is_paused():
                _paused(client, run, progress, asked)
            time.sleep(POLL_S)
        except KeyboardInterrupt:
            progress.note("cancelling it ...")
            _cancel(client, run_id)


def _named(client: SyncPrefectClient, run: FlowRun) -> FlowRun:
    """A run that has ended, under its true name: see `deployments.automations.unanswered`."""
    from deployments.automations import NEVER_RESUMED

    end = time.monotonic() + RENAMED_S
    while (state := run.state) is not None and state.message == NEVER_RESUMED:
        if time.monotonic() > end:
            state.name = AnswerTimedOut.state_name
            break
        time.sleep(POLL_S)
        run = client.read_flow_run(run.id)
    return run


def _show(
    client: SyncPrefectClient, run: FlowRun, progress: Progress, seen: set[UUID], said: str
) -> str:
    """Say what has ended since the last look: each build, each failure, and how many in all."""
    from prefect.client.schemas.filters import FlowRunFilter, FlowRunFilterId
    from prefect.client.schemas.sorting import TaskRunSort

    tasks = client.read_task_runs(
        flow_run_filter=FlowRunFilter(id=FlowRunFilterId(any_=[run.id])),
        sort=TaskRunSort.END_TIME_DESC,
        limit=LATEST,
    )
    for task in reversed(tasks):
        state = task.state
        if task.id in seen or state is None or not state.is_final():
            continue
        seen.add(task.id)
        if not state.is_completed():
            progress.note(f"{task.name}: {state.name}: {state.message or ''}")
        elif "kind:prep" in task.tags:
            progress.note(f"{task.name}: {state.name}")
    text = f"{run.name}: {run.state_name}, {len(seen)} tasks done"
    if text != said:
        progress.say(text)
    return text


def _paused(client: SyncPrefectClient, run: FlowRun, progress: Progress, asked: set[str]) -> None:
    """Say that a person is waited for, and ask the one at this terminal; each question once."""
    from cli.consent import answer_question, can_ask

    assert run.state is not None
    key = str(run.state.id)
    if key in asked:
        return
    asked.add(key)
    progress.note(f"it waits for an approval: {_page(client, run.id)}")
    if can_ask():
        progress.stop()
        answer_question(client, run.id)


def _cancel(client: SyncPrefectClient, run_id: UUID) -> None:
    """Cancel a flow run; one that no process works on is cancelled at once."""
    from prefect.states import Cancelled, Cancelling

    state = client.read_flow_run(run_id).state
    if state is None or state.is_scheduled() or state.is_paused():
        client.set_flow_run_state(run_id, Cancelled(message="cancelled from the terminal"))
    elif not state.is_final():
        client.set_flow_run_state(run_id, Cancelling(message="cancelled from the terminal"))


def _report(client: SyncPrefectClient, run_id: UUID) -> str:
    """What the run's report artifact says; empty where there is none."""
    from prefect.client.schemas.filters import FlowRunFilter, FlowRunFilterId

    found = client.read_artifacts(
        flow_run_filter=FlowRunFilter(id=FlowRunFilterId(any_=[run_id])),
    )
    reports = [one for one in found if str(one.key or "").startswith(REPORT_PREFIX)]
    newest = max(reports, key=lambda one: str(one.created), default=None)
    return str(newest.data) if newest is not None else ""


def _finish(run: FlowRun, report: str, page: str, as_json: bool) -> int:
    state = run.state
    assert state is not None
    code = STATE_CODES.get(state.name or "", 1)
    if as_json:
        print_json(
            {
                "run_id": run.name,
                "flow_run": str(run.id),
                "page": page,
                "state": state.name,
                "message": state.message or "",
                "report": report,
                "exit_code": code,
            }
        )
        return code
    if report:
        show_markdown(report)
    click.echo(f"{run.name}: {state.name}" + (f": {state.message}" if state.message else ""))
    return code


def _say_detached(run: FlowRun, page: str, as_json: bool) -> None:
    if as_json:
        print_json({"run_id": None, "flow_run": str(run.id), "page": page, "state": "Scheduled"})
    else:
        click.echo(page)

"""Telling a Prefect server what there is: block types, limits, automations, deployments.

Each is looked at first and written only where it differs, so that it can be repeated: what a
person changed in Prefect's pages (a schedule that is switched off, a limit's slots) stays as it
is unless prefect.yaml itself has changed.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from prefect.blocks.core import Block
from prefect.client.orchestration import SyncPrefectClient, get_client
from prefect.client.schemas.actions import DeploymentScheduleCreate, WorkPoolCreate
from prefect.client.schemas.objects import ConcurrencyLimitConfig, ConcurrencyOptions
from prefect.client.schemas.schedules import CronSchedule, IntervalSchedule, RRuleSchedule
from prefect.events.schemas.automations import AutomationCore
from prefect.exceptions import ObjectNotFound, PrefectHTTPStatusError
from prefect.flows import Flow, load_flow_from_entrypoint
from prefect.utilities.callables import parameter_schema
from prefect.utilities.templating import apply_values
from prefect.workers.process import ProcessWorker

from benchwright.errors import BadInput, BenchwrightError, Where
from benchwright.execution.accelerators import read_machine
from benchwright.execution.host import host_name
from benchwright.spec.source import read_yaml
from benchwright.spec.suggest import did_you_mean
from blocks.credentials import (
    BeamCredentials,
    GpuProvider,
    HuggingFaceCredentials,
    ModalCredentials,
)
from blocks.hosts import ModelServer
from blocks.notification import find_notifier
from blocks.policy import CostPolicyBlock, ResourcesPolicyBlock
from blocks.ssh import SshHostBlock
from blocks.store import ResultsStore
from deployments.automations import HEARTBEAT_S, PREFIX, automations
from deployments.security import is_loopback
from tasks.limits import (
    QUEUE_SLOTS,
    ensure_limits,
    gpu_limit,
    measure_limit,
    queue_limit,
    read_limit,
)

PREFECT_YAML = Path(__file__).resolve().parent / "prefect.yaml"
"""The deployments that come with Benchwright."""

POOL = "benchwright"
"""The work pool of prefect.yaml's deployments."""

BLOCKS: tuple[type[Block], ...] = (
    HuggingFaceCredentials,
    ModalCredentials,
    BeamCredentials,
    GpuProvider,
    SshHostBlock,
    ModelServer,
    CostPolicyBlock,
    ResourcesPolicyBlock,
    ResultsStore,
)

ENTRY_KEYS = frozenset(
    [
        "name",
        "description",
        "entrypoint",
        "tags",
        "parameters",
        "work_pool",
        "schedules",
        "concurrency_limit",
        "version",
        "enforce_parameter_schema",
    ]
)
"""Keys of an entry that are understood; another one is refused, since it would do nothing."""


@dataclass(frozen=True, slots=True)
class Change:
    """What registering one thing would change.

    Attributes:
        kind: `block type`, `work pool`, `limit`, `automation`, `deployment`.
        name: Its name.
        what: `new`, `changed`, or empty where the server has it as it is here.
        fields: What differs, where it is changed.
    """

    kind: str
    name: str
    what: str = ""
    fields: tuple[str, ...] = ()

    def __str__(self) -> str:
        what = self.what or "as it is"
        return f"{self.kind} {self.name}: {what}" + (
            f" ({', '.join(self.fields)})" if self.fields else ""
        )


@dataclass(frozen=True, slots=True)
class Item:
    """One thing that a server is told.

    Attributes:
        change: What would change; looked up before.
        write: Tells the server.
    """

    change: Change
    write: Callable[[], object]


def register(
    *,
    pool: str = POOL,
    env: Mapping[str, str] | None = None,
    tags: Iterable[str] = (),
    check: bool = False,
    file: Path = PREFECT_YAML,
    on_change: Callable[[Change], None] = lambda _change: None,
) -> tuple[Change, ...]:
    """Tell the server of the current Prefect settings all that there is.

    Args:
        pool: Work pool of the deployments; made, of type process, where there is none.
        env: Variables of every deployed run's process.
        tags: Tags of every deployment, beside its own.
        check: Only look.
        file: A prefect.yaml.
        on_change: Called with each thing once it is done (or looked at).

    Returns:
        Every thing, the changed ones and those that are as they were.

    Raises:
        BadInput: prefect.yaml can't be understood, or no server answers.
        BenchwrightError: The server refuses something.
    """
    entries = read_entries(file)
    found = []
    with get_client(sync_client=True) as client:
        items = _items(client, entries, file, pool, dict(env or {}), tuple(tags))
        for item in _told(items):
            if item.change.what and not check:
                with _said(item.change):
                    item.write()
            found.append(item.change)
            on_change(item.change)
    return tuple(found)


def _items(
    client: SyncPrefectClient,
    entries: list[dict[str, Any]],
    file: Path,
    pool: str,
    env: dict[str, str],
    tags: tuple[str, ...],
) -> Iterator[Item]:
    yield from (block_type(client, kind) for kind in BLOCKS)
    yield work_pool(client, pool)
    yield from limits(client)
    notifier = find_notifier(client)
    yield from (automation(client, wanted) for wanted in automations(notifier))
    for entry in entries:
        yield deployment(client, entry, file=file, pool=pool, env=env, tags=tags)


class _said:  # noqa: N801 - reads as a word in `with`
    """Gives what the server says a sentence."""

    def __init__(self, change: Change) -> None:
        self.change = change

    def __enter__(self) -> None: ...

    def __exit__(self, kind: Any, problem: BaseException | None, trace: Any) -> None:
        if isinstance(problem, PrefectHTTPStatusError):
            raise BenchwrightError(
                f"the Prefect server refused {self.change.kind} {self.change.name}:"
                f" {problem.response.text[:300]}",
            ) from problem


def _told(items: Iterator[Item]) -> Iterator[Item]:
    """The items; a server that doesn't answer is said in a sentence."""
    import httpx

    try:
        yield from items
    except httpx.HTTPStatusError as problem:
        if problem.response.status_code in (401, 403):
            raise BadInput(
                "the Prefect server asks for credentials",
                where=Where(key="PREFECT_API_AUTH_STRING"),
                expected="user:password, as the server was started with",
            ) from problem
        raise BenchwrightError(f"the Prefect server answers {problem}") from problem
    except httpx.TransportError as problem:
        raise BadInput(
            f"no Prefect server answers: {problem}",
            where=Where(key="PREFECT_API_URL"),
            hint="start it, or unset PREFECT_API_URL for the local one",
        ) from problem


# Block types.


def block_type(client: SyncPrefectClient, kind: type[Block]) -> Item:
    """A block's type and schema, so that one can be made in Prefect's pages."""
    name = kind.get_block_type_slug()
    try:
        client.read_block_type_by_slug(name)
        what = ""
    except ObjectNotFound:
        what = "new"
    if not what:
        try:
            client.read_block_schema_by_checksum(
                kind._calculate_schema_checksum(), version=kind.get_block_schema_version()
            )
        except ObjectNotFound:
            what = "changed"
    tell: Any = kind.register_type_and_schema
    return Item(Change("block type", name, what), lambda: tell(_sync=True))


# Work pool.


def work_pool(client: SyncPrefectClient, name: str) -> Item:
    """The pool whose workers run the deployments."""
    try:
        client.read_work_pool(name)
        what = ""
    except ObjectNotFound:
        what = "new"
    template = ProcessWorker.get_default_base_job_template()
    return Item(
        Change("work pool", name, what),
        lambda: client.create_work_pool(
            WorkPoolCreate(
                name=name,
                type="process",
                description="Workers that run Benchwright's flows, one on each host.",
                base_job_template=template,
            )
        ),
    )


# Limits.


def limits(client: SyncPrefectClient) -> Iterator[Item]:
    """This host's limits, where the server is this host's own; another host's worker makes its own.

    A limit that isn't there would be passed by without a word.
    """
    if not is_loopback(str(client.api_url)):
        return
    host = host_name()
    wanted = {measure_limit(host): 1, queue_limit(host): QUEUE_SLOTS}
    gpus = len(read_machine({}).gpus)
    if gpus:
        wanted[gpu_limit(host)] = gpus
    for name, slots in wanted.items():
        found = read_limit(client, name)
        what = "new" if found is None else "" if found["active"] else "changed"
        change = Change("limit", name, what, ("active",) if what == "changed" else ())
        yield Item(change, partial(_limit, client, name, slots, found))


def _limit(
    client: SyncPrefectClient, name: str, slots: int, found: Mapping[str, Any] | None
) -> None:
    """Make a limit; one that was switched off is switched on again."""
    if found is None:
        ensure_limits(client, {name: slots})
    else:
        client.request(
            "PATCH",
            "/v2/concurrency_limits/{id_or_name}",
            path_params={"id_or_name": name},
            json={"active": True},
        )


# Automations.


def automation(client: SyncPrefectClient, wanted: AutomationCore) -> Item:
    """An automation, by its name. One that a person switched off stays off."""
    there = client.read_automations_by_name(wanted.name)
    if not there:
        return Item(
            Change("automation", wanted.name.removeprefix(PREFIX), "new"),
            lambda: client.create_automation(wanted),
        )
    now = there[0]
    fields = [
        field
        for field in ("description", "trigger", "actions")
        if _plain(getattr(now, field)) != _plain(getattr(wanted, field))
    ]
    wanted.enabled = now.enabled
    change = Change(
        "automation",
        wanted.name.removeprefix(PREFIX),
        "changed" if fields else "",
        tuple(fields),
    )
    return Item(change, lambda: client.update_automation(now.id, wanted))


def _plain(value: Any) -> Any:
    if isinstance(value, list):
        return [_plain(item) for item in value]
    if hasattr(value, "model_dump"):
        data = value.model_dump(mode="json", exclude={"id"})
        return json.loads(json.dumps(_sorted(data)))
    return value


def _sorted(data: Any) -> Any:
    """Sets come as lists in any order."""
    if isinstance(data, dict):
        return {key: _sorted(value) for key, value in sorted(data.items())}
    if isinstance(data, list):
        return sorted((_sorted(item) for item in data), key=lambda item: json.dumps(item))
    return data


# Deployments.


def read_entries(file: Path) -> list[dict[str, Any]]:
    """The deployments of a prefect.yaml, with `{{ $ENV }}` filled in.

    Raises:
        BadInput: A key that isn't understood, a missing one, two of one name.
    """
    document = read_yaml(file)
    raw = document.data.get("deployments")
    if not isinstance(raw, list):
        raise BadInput("there are no deployments", where=Where(file, key="deployments"))
    seen: set[str] = set()
    entries = []
    for place, entry in enumerate(raw):
        where = document.where(("deployments", place))
        for key in entry:
            if key not in ENTRY_KEYS:
                raise BadInput(
                    f"`{key}` isn't understood",
                    where=where,
                    expected=f"one of {', '.join(sorted(ENTRY_KEYS))}",
                    hint=did_you_mean(key, ENTRY_KEYS),
                )
        for key in ("name", "entrypoint"):
            if not entry.get(key):
                raise BadInput(f"`{key}` is missing", where=where)
        if entry["name"] in seen:
            raise BadInput(f"`{entry['name']}` is there twice", where=where)
        seen.add(entry["name"])
        entries.append(apply_values(dict(entry), {}, warn_on_notset=False))
    return entries


def deployment(
    client: SyncPrefectClient,
    entry: Mapping[str, Any],
    *,
    file: Path,
    pool: str,
    env: Mapping[str, str],
    tags: tuple[str, ...],
) -> Item:
    """One deployment: its flow with parameters, schedules and limits."""
    flow = _load(entry, file)
    name = str(entry["name"])
    wanted = _wanted(entry, flow, pool, env, tags)
    full = f"{flow.name}/{name}"
    try:
        now = client.read_deployment_by_name(full)
    except ObjectNotFound:
        change = Change("deployment", full, "new")
        return Item(change, lambda: _create(client, flow, name, wanted))
    fields = tuple(sorted(field for field, value in wanted.items() if _now(now, field) != value))
    kept = dict(wanted)
    if fields:
        kept["schedules"] = [_kept_active(item, now) for item in wanted["schedules"]]
    change = Change("deployment", full, "changed" if fields else "", fields)
    return Item(change, lambda: _create(client, flow, name, kept))


def _load(entry: Mapping[str, Any], file: Path) -> Flow[..., Any]:
    entrypoint = str(entry["entrypoint"])
    try:
        return load_flow_from_entrypoint(entrypoint, use_placeholder_flow=False)
    except Exception as problem:
        raise BadInput(
            f"the flow of deployment '{entry['name']}' can't be loaded: {problem}",
            where=Where(file, key=f"deployments.{entry['name']}.entrypoint"),
            expected="`package.module.flow`",
        ) from problem


def _wanted(
    entry: Mapping[str, Any],
    flow: Flow[..., Any],
    pool: str,
    env: Mapping[str, str],
    tags: tuple[str, ...],
) -> dict[str, Any]:
    """What the server is to have, as plain data that compares with what it has."""
    work = entry.get("work_pool") or {}
    variables = dict(work.get("job_variables") or {})
    variables["env"] = {
        # Without a sign of life nobody would notice that a run's process died.
        "PREFECT_FLOWS_HEARTBEAT_FREQUENCY": str(HEARTBEAT_S),
        **(variables.get("env") or {}),
        **env,
    }
    limit = entry.get("concurrency_limit")
    config = ConcurrencyLimitConfig(**limit) if isinstance(limit, dict) else None
    schema = parameter_schema(flow).model_dump(exclude_unset=True)
    return {
        "description": entry.get("description") or flow.description,
        "tags": sorted({*(entry.get("tags") or ()), *tags}),
        "entrypoint": str(entry["entrypoint"]),
        "parameters": entry.get("parameters") or {},
        # Prefect's own schema lets a misspelled parameter through, to fail in the flow.
        "parameter_openapi_schema": json.loads(json.dumps(schema))
        | {"additionalProperties": False},
        "enforce_parameter_schema": bool(entry.get("enforce_parameter_schema", True)),
        "work_pool_name": pool if work.get("name", POOL) == POOL else work["name"],
        "job_variables": variables,
        "concurrency_limit": config.limit if config else limit,
        "collision_strategy": str(config.collision_strategy.value) if config else None,
        "schedules": [_schedule(item) for item in entry.get("schedules") or ()],
    }


SCHEDULE_KINDS: tuple[tuple[str, Any], ...] = (
    ("cron", CronSchedule),
    ("interval", IntervalSchedule),
    ("rrule", RRuleSchedule),
)


def _schedule(said: Mapping[str, Any]) -> dict[str, Any]:
    for key, kind in SCHEDULE_KINDS:
        if key in said:
            parts = {
                name: said[name]
                for name in (key, "timezone", "day_or", "anchor_date")
                if said.get(name) is not None
            }
            schedule = kind(**parts).model_dump(mode="json")
            return {
                "schedule": schedule,
                "slug": said.get("slug"),
                "parameters": said.get("parameters") or {},
                "active": bool(said.get("active", True)),
            }
    raise BadInput("a schedule needs `cron`, `interval` or `rrule`", where=Where(key="schedules"))


def _now(now: Any, field: str) -> Any:
    """A field of a server's deployment, in the form of `_wanted`."""
    if field == "concurrency_limit":
        found = now.global_concurrency_limit
        return found.limit if found else None
    if field == "collision_strategy":
        options = now.concurrency_options
        return str(options.collision_strategy.value) if options else None
    if field == "schedules":
        # Whether one is switched on is for a person to say.
        return [
            {
                "schedule": item.schedule.model_dump(mode="json"),
                "slug": item.slug,
                "parameters": item.parameters or {},
                "active": True,
            }
            for item in sorted(now.schedules, key=lambda item: str(item.created))
        ]
    value = getattr(now, field)
    return sorted(value) if field == "tags" else value


def _kept_active(item: Mapping[str, Any], now: Any) -> dict[str, Any]:
    """A schedule that a person switched off stays off."""
    for there in now.schedules:
        if item["slug"] and there.slug == item["slug"]:
            return {**item, "active": there.active}
    return dict(item)


def _create(
    client: SyncPrefectClient, flow: Flow[..., Any], name: str, wanted: Mapping[str, Any]
) -> None:
    """Make or replace a deployment."""
    strategy = wanted["collision_strategy"]
    client.create_deployment(
        flow_id=client.create_flow_from_name(flow.name),
        name=name,
        description=wanted["description"],
        tags=wanted["tags"],
        entrypoint=wanted["entrypoint"],
        parameters=wanted["parameters"],
        parameter_openapi_schema=wanted["parameter_openapi_schema"],
        enforce_parameter_schema=wanted["enforce_parameter_schema"],
        work_pool_name=wanted["work_pool_name"],
        job_variables=wanted["job_variables"],
        concurrency_limit=wanted["concurrency_limit"],
        concurrency_options=ConcurrencyOptions(collision_strategy=strategy) if strategy else None,
        schedules=[DeploymentScheduleCreate(**item) for item in wanted["schedules"]],
        pull_steps=[],
    )

"""Which host an experiment goes to: the queues of a work pool.

One pool has all workers. Its queues say what an experiment asks for, and each worker takes from
those that its host can serve:

| queue | what is in it | who takes from it |
| --- | --- | --- |
| `default` | experiments that ask for no accelerator | every worker, but those that are kept for accelerators |
| `gpus-K` | whose largest stage asks for K GPUs | workers of hosts with at least K |
| `tpus-K` | likewise, TPU chips | likewise |
| `host-NAME` | whatever is to run on that host | the worker of that host |
"""  # noqa: E501

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from benchwright.errors import BadInput, Where
from benchwright.execution.accelerators import Machine
from benchwright.spec.model import BenchmarkConfig

if TYPE_CHECKING:
    from prefect.client.orchestration import SyncPrefectClient

DEFAULT = "default"
"""Prefect's own queue of every pool."""

HOST = "host-"


def queue_of(config: BenchmarkConfig) -> str:
    """The queue of an experiment, by what its stages of the worker's own host ask for."""
    asked = [stage.resources for stage in config.stages if stage.host is None]
    gpus = max((resources.gpus for resources in asked), default=0)
    tpus = max((resources.tpus for resources in asked), default=0)
    if gpus:
        return f"gpus-{gpus}"
    return f"tpus-{tpus}" if tpus else DEFAULT


def host_queue(host: str) -> str:
    """The queue of one host alone."""
    return f"{HOST}{host}"


def queues_for(host: str, machine: Machine, *, accelerators_only: bool = False) -> tuple[str, ...]:
    """The queues that a worker takes from, the most special first.

    Args:
        host: Name of its host.
        machine: The devices that it may hand out.
        accelerators_only: Whether it leaves experiments without accelerators to others.
    """
    queues = [host_queue(host)]
    queues += [f"gpus-{count}" for count in range(len(machine.gpus), 0, -1)]
    queues += [f"tpus-{count}" for count in range(len(machine.tpus), 0, -1)]
    if not accelerators_only:
        queues.append(DEFAULT)
    return tuple(queues)


def ensure_queues(client: SyncPrefectClient, pool: str, queues: Iterable[str]) -> None:
    """Make the queues of a pool that are missing; the pool as well."""
    from prefect.client.schemas.actions import WorkPoolCreate
    from prefect.exceptions import ObjectAlreadyExists, ObjectNotFound

    try:
        client.read_work_pool(pool)
    except ObjectNotFound:
        from contextlib import suppress

        from prefect.workers.process import ProcessWorker

        template = ProcessWorker.get_default_base_job_template()
        with suppress(ObjectAlreadyExists):
            client.create_work_pool(
                WorkPoolCreate(name=pool, type="process", base_job_template=template)
            )
    there = {queue.name for queue in client.read_work_queues(work_pool_name=pool)}
    for priority, name in enumerate(queues, 1):
        if name not in there:
            try:
                client.create_work_queue(name, work_pool_name=pool, priority=priority)
            except ObjectAlreadyExists:
                continue  # another worker came first


def route(client: SyncPrefectClient, pool: str, config: BenchmarkConfig, on: str = "") -> str:
    """The queue that an experiment is put into.

    Args:
        client: To the server.
        pool: The deployment's work pool.
        config: The experiment.
        on: Name of the host that it is to run on; empty: any that has what it asks for.

    Raises:
        BadInput: No worker ever took from such a queue: it would wait for ever.
    """
    if on:
        return queue_of_host(client, pool, on)
    wanted = queue_of(config)
    there = {queue.name for queue in client.read_work_queues(work_pool_name=pool)}
    if wanted in there or wanted == DEFAULT:
        return wanted
    kind, _, count = wanted.partition("-")
    larger = sorted(
        int(name.partition("-")[2])
        for name in there
        if name.startswith(f"{kind}-") and name.partition("-")[2].isdigit()
    )
    most = f"; the largest host has {larger[-1]}" if larger else ""
    raise BadInput(
        f"the experiment asks for {count} {kind.upper().removesuffix('S')}s, and no host of the"
        f" pool '{pool}' has as many{most}",
        where=Where(key=f"resources.{kind}"),
        hint="ask for fewer, or start a worker on a host that has them: benchwright worker",
    )


def queue_of_host(client: SyncPrefectClient, pool: str, host: str) -> str:
    """The queue of a host whose worker has been started.

    Raises:
        BadInput: None ever was: what is put there would wait for ever.
    """
    there = {queue.name for queue in client.read_work_queues(work_pool_name=pool)}
    if host_queue(host) in there:
        return host_queue(host)
    hosts = sorted(name.removeprefix(HOST) for name in there if name.startswith(HOST))
    raise BadInput(
        f"no worker of a host '{host}' has been started for the pool '{pool}'",
        where=Where(key="--on"),
        expected=f"one of {', '.join(hosts)}" if hosts else "a worker, started on that host",
        hint="on that host: benchwright worker",
    )

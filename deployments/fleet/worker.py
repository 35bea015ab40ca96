"""A worker: the process on each host that takes experiments from the server's queues."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from benchwright.execution.accelerators import Machine
from benchwright.execution.orphans import sweep_orphans
from benchwright.record.store import RunStore
from deployments.fleet.queues import queues_for

LIMIT = 4
"""Runs that a worker has in hand at once: one measures, and the others build, wait for their turn
or for an approval."""

BRIDGED = "500,502,504"
"""Answers that a run's client asks again after, beside 429 and 503: what a server gives while its
database, or a proxy before it, is restarted."""


@dataclass(frozen=True, slots=True)
class WorkerPlan:
    """How a worker is started.

    Attributes:
        argv: Its command line.
        env: Its whole environment, which its runs inherit.
        queues: What it takes from.
    """

    argv: tuple[str, ...]
    env: Mapping[str, str]
    queues: tuple[str, ...]


def plan_worker(
    environ: Mapping[str, str],
    *,
    home: Path,
    host: str,
    machine: Machine,
    pool: str,
    limit: int = LIMIT,
    accelerators_only: bool = False,
) -> WorkerPlan:
    """How to start a worker on this host.

    Args:
        environ: What it inherits: the server's address and auth string are among it.
        home: Where its runs are recorded; a folder of this host.
        host: This host's name.
        machine: Its devices.
        pool: The work pool.
        limit: Runs at once.
        accelerators_only: Leave experiments without accelerators to other hosts.
    """
    queues = queues_for(host, machine, accelerators_only=accelerators_only)
    env = {
        "PREFECT_CLIENT_RETRY_EXTRA_CODES": BRIDGED,
        "DO_NOT_TRACK": "1",
        **environ,
        "BENCHMARK_HOME": str(home),
    }
    argv = [
        *(sys.executable, "-m", "deployments.fleet.run_worker"),
        *("--pool", pool, "--name", host, "--limit", str(limit)),
    ]
    for queue in queues:
        argv += ["--work-queue", queue]
    return WorkerPlan(tuple(argv), env, queues)


def clear_up(home: Path) -> tuple[int, tuple[str, ...]]:
    """What a host that went down has left: end orphaned processes, record lost runs.

    Returns:
        How many processes were ended, and the runs that are recorded as interrupted by now.
    """
    ended = len(sweep_orphans(home))
    return ended, RunStore(home).settle_lost() if home.is_dir() else ()


def absolute_home(home: Path) -> Path:
    """The home, made: a worker's runs start in folders of their own."""
    home.mkdir(parents=True, exist_ok=True)
    return Path(os.path.abspath(home))  # noqa: PTH100 - a link that was named stays one

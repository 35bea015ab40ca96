"""Runs that cost something, and the REST side of a person who answers."""

from __future__ import annotations

import json
import os
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchwright.planning.plan import make_plan
from benchwright.planning.quote import Alternative, CostItem, Quote
from benchwright.planning.quoting import write_quote
from benchwright.planning.start import create_run
from benchwright.record.store import RunFolder
from cli.options import resolve_target
from tests.cli.conftest import experiment


def quote(high_usd: float = 2.0, usd_per_hour: float = 1.0) -> Quote:
    """A quote of two parts, with two alternatives."""
    return Quote(
        provider="modal",
        hardware="1 x L4 24 GB, 4 cores, 16 GiB",
        low_s=600,
        high_s=1500,
        items=(
            CostItem("GPU, 1 x L4", high_usd / 4, high_usd * 0.75, "0.80 USD an hour"),
            CostItem("4 cores", high_usd / 16, high_usd / 4, "0.00003942 USD a core-second"),
        ),
        priced="2026-10",
        usd_per_hour=usd_per_hour,
        basis="from the model's size",
        alternatives=(
            Alternative("Modal T4", high_usd / 5, high_usd / 2, "slower"),
            Alternative("Google Colab T4", 0.0, 0.0, "by hand"),
        ),
    )


def costly_run(folder: Path, home: Path, asked: Quote | None = None, **changes: Any) -> RunFolder:
    """A run that was planned, with its quote beside it; nothing is started."""
    config = experiment(folder, **({"replication": {"replicates": 1, "warmup": 0}} | changes))
    plan = make_plan(resolve_target(str(config), (), None), home, os.environ)
    run = create_run(plan, home, because="a test")
    write_quote(run.path, asked or quote())
    return run


class Server:
    """A Prefect server's REST interface."""

    def __init__(self, api_url: str) -> None:
        self.api_url = api_url

    def call(self, path: str, data: Any = None, method: str | None = None) -> Any:
        """GET, or POST where there are data."""
        body = json.dumps(data).encode() if data is not None else None
        request = urllib.request.Request(
            self.api_url + path,
            data=body,
            headers={"Content-Type": "application/json"},
            method=method,
        )
        with urllib.request.urlopen(request, timeout=30) as reply:
            text = reply.read()
        return json.loads(text) if text else None

    def flow_run(self, name: str) -> dict[str, Any] | None:
        """The newest flow run of that name; None where there is none."""
        found = self.call("/flow_runs/filter", {"flow_runs": {"name": {"any_": [name]}}})
        return found[0] if found else None

    def paused(self, name: str, seconds: float = 60) -> dict[str, Any]:
        """The flow run of that name, once it waits for an answer and its form is there."""

        def waits() -> dict[str, Any] | None:
            run = self.flow_run(name)
            if run is None or run["state"]["type"] != "PAUSED":
                return None
            keys = run["state"]["state_details"]["run_input_keyset"]
            try:
                self.call(f"/flow_runs/{run['id']}/input/{keys['schema']}")
            except urllib.error.HTTPError:
                return None
            return run

        return until(waits, seconds)

    def answer(self, flow_run: dict[str, Any], **fields: Any) -> dict[str, Any]:
        """Answer a form; returns what the server says of it."""
        said = self.call(f"/flow_runs/{flow_run['id']}/resume", {"run_input": fields})
        assert isinstance(said, dict)
        return said

    def artifact(self, key: str) -> str:
        """What the newest artifact of that key holds."""
        return str(self.call(f"/artifacts/{key}/latest")["data"])


def until(fact: Callable[[], Any], seconds: float = 60) -> Any:
    """Wait for a fact; returns what it gave."""
    end = time.monotonic() + seconds
    while not (found := fact()):
        assert time.monotonic() < end, "it didn't happen in time"
        time.sleep(0.05)
    return found

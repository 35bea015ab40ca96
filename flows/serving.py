"""The flows that measure a served model: is it still right, and how fast does it answer.

prefect deployment run accuracy/accuracy -p server=lab-h200 --watch
prefect deployment run speed/speed -p server=lab-h200 --watch

Each is a run of its domain, with the benchmark flow's gates, record and report.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from prefect import flow
from prefect.client.schemas.objects import State
from prefect.runtime import flow_run
from prefect.states import Failed

from benchwright.errors import BadInput, Where
from benchwright.spec.model import BenchmarkConfig
from blocks.hosts import ModelServer
from blocks.named import load
from domains.serving.key import key_of
from domains.serving.request import AccuracyRequest, SpeedRequest, Target
from flows.benchmark import benchmark
from flows.submission import begun_id


def _run_name() -> str:
    domain = str(flow_run.flow_name or "serving")
    return begun_id() or f"{domain} of {flow_run.parameters.get('server') or 'a server'}"


@flow(
    name="accuracy",
    flow_run_name=_run_name,
    description="Is a served model still right: probe, evaluate, validate, report.",
    persist_result=False,
)
def accuracy(
    server: str | None = None,
    request: AccuracyRequest | None = None,
    hypothesis: str | None = None,
    because: str | None = None,
    home: str | None = None,
    max_cost_usd: float | None = None,
    asked_by: str | None = None,
) -> State[Any]:
    """Score a served model on evaluation sets.

    Args:
        server: Name of a model-server block; its host and endpoint go over those of `request`.
        request: What is measured, and how; left out: every value at its default.
        hypothesis: What is expected, in words.
        because: Reason to run in spite of the plan's challenges; kept in the record.
        home: Where records are kept; default `$BENCHMARK_HOME` of the worker.
        max_cost_usd: Approved beforehand, in US dollars; without it, what costs something asks.
        asked_by: Who asks for the run; with `max_cost_usd`, who approves it.
    """
    consent = {"max_cost_usd": max_cost_usd, "asked_by": asked_by}
    return _run("accuracy", server, request, hypothesis, because=because, home=home, **consent)


@flow(
    name="speed",
    flow_run_name=_run_name,
    description="How fast does a served model answer: probe, load, validate, report.",
    persist_result=False,
)
def speed(
    server: str | None = None,
    request: SpeedRequest | None = None,
    hypothesis: str | None = None,
    because: str | None = None,
    home: str | None = None,
    max_cost_usd: float | None = None,
    asked_by: str | None = None,
) -> State[Any]:
    """Load a served model at several points.

    Args:
        server: Name of a model-server block; its host and endpoint go over those of `request`.
        request: What is measured, and how; left out: every value at its default.
        hypothesis: What is expected, in words.
        because: Reason to run in spite of the plan's challenges; kept in the record.
        home: Where records are kept; default `$BENCHMARK_HOME` of the worker.
        max_cost_usd: Approved beforehand, in US dollars; without it, what costs something asks.
        asked_by: Who asks for the run; with `max_cost_usd`, who approves it.
    """
    consent = {"max_cost_usd": max_cost_usd, "asked_by": asked_by}
    return _run("speed", server, request, hypothesis, because=because, home=home, **consent)


def _run(
    domain: str,
    server: str | None,
    request: AccuracyRequest | SpeedRequest | None,
    hypothesis: str | None,
    **how: Any,
) -> State[Any]:
    try:
        block = None if server is None else server_block(server)
        if block is not None:
            # This process runs this one flow: the stages are handed the block's key from here.
            os.environ.update(block.environment())
        config = serving_config(domain, block, request, hypothesis)
        key_of(Target.model_validate(config.params.get("target", {})).endpoint)
    except BadInput as problem:
        return Failed(name="BadInput", message=str(problem)[:500])
    state: State[Any] = benchmark.fn(config=config, **how)
    return state


def serving_config(
    domain: str,
    server: ModelServer | None,
    request: AccuracyRequest | SpeedRequest | None,
    hypothesis: str | None = None,
) -> BenchmarkConfig:
    """The configuration of a served model's run; its API key, where it has one, isn't in it."""
    params: dict[str, Any] = request.model_dump(mode="json", exclude_unset=True) if request else {}
    if server is not None:
        params["target"] = over(params.get("target", {}), server.target())
    return BenchmarkConfig(domain=domain, params=params, hypothesis=hypothesis)


def over(asked: Mapping[str, Any], block: Mapping[str, Any]) -> dict[str, Any]:
    """The target that a request asks for, with what a block says over it.

    A block without a host means the machine that runs the flow, whatever the request names; how
    long a loading server is waited for is the request's to say.
    """
    kept = {name: value for name, value in asked.items() if name != "ssh"}
    return {**kept, **block, "endpoint": {**asked.get("endpoint", {}), **block["endpoint"]}}


def server_block(name: str) -> ModelServer:
    """The model-server block of that name. Raises BadInput."""
    block = load(ModelServer, name)
    if block is None:
        raise BadInput(
            f"there is no model-server block named {name!r}",
            where=Where(key="server"),
            hint="make one in Prefect's pages, under Blocks",
        )
    return block

"""The flows that measure a served model: is it still right, and how fast does it answer.

prefect deployment run accuracy/accuracy -p server=lab-h200 --watch
prefect deployment run speed/speed -p server=lab-h200 --watch

Each is a run of its domain, with the benchmark flow's gates, record and report.
"""

from __future__ import annotations

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
from domains.serving.request import AccuracyRequest, SpeedRequest
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
) -> State[Any]:
    """Score a served model on evaluation sets.

    Args:
        server: Name of a model-server block; its host and endpoint go over those of `request`.
        request: What is measured, and how; left out: every value at its default.
        hypothesis: What is expected, in words.
        because: Reason to run in spite of the plan's challenges; kept in the record.
        home: Where records are kept; default `$BENCHMARK_HOME` of the worker.
    """
    return _run("accuracy", server, request, hypothesis, because, home)


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
) -> State[Any]:
    """Load a served model at several points.

    Args:
        server: Name of a model-server block; its host and endpoint go over those of `request`.
        request: What is measured, and how; left out: every value at its default.
        hypothesis: What is expected, in words.
        because: Reason to run in spite of the plan's challenges; kept in the record.
        home: Where records are kept; default `$BENCHMARK_HOME` of the worker.
    """
    return _run("speed", server, request, hypothesis, because, home)


def _run(
    domain: str,
    server: str | None,
    request: AccuracyRequest | SpeedRequest | None,
    hypothesis: str | None,
    because: str | None,
    home: str | None,
) -> State[Any]:
    try:
        config = serving_config(domain, server, request, hypothesis)
    except BadInput as problem:
        return Failed(name="BadInput", message=str(problem)[:500])
    state: State[Any] = benchmark.fn(config=config, because=because, home=home)
    return state


def serving_config(
    domain: str,
    server: str | None,
    request: AccuracyRequest | SpeedRequest | None,
    hypothesis: str | None = None,
) -> BenchmarkConfig:
    """The configuration of a served model's run.

    Raises:
        BadInput: There is no model-server block of that name.
    """
    params: dict[str, Any] = request.model_dump(mode="json", exclude_unset=True) if request else {}
    if server is not None:
        params["target"] = over(params.get("target", {}), target_of(server))
    return BenchmarkConfig(domain=domain, params=params, hypothesis=hypothesis)


def over(asked: Mapping[str, Any], block: Mapping[str, Any]) -> dict[str, Any]:
    """The target that a request asks for, with what a block says over it.

    A block without a host means the machine that runs the flow, whatever the request names; how
    long a loading server is waited for is the request's to say.
    """
    kept = {name: value for name, value in asked.items() if name != "ssh"}
    return {**kept, **block, "endpoint": {**asked.get("endpoint", {}), **block["endpoint"]}}


def target_of(server: str) -> Mapping[str, Any]:
    """The `target` parameters of a model-server block. Raises BadInput."""
    block = load(ModelServer, server)
    if block is None:
        raise BadInput(
            f"there is no model-server block named {server!r}",
            where=Where(key="server"),
            hint="make one in Prefect's pages, under Blocks",
        )
    return {name: value for name, value in block.params().items() if value is not None}

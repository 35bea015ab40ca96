"""Two small typed domains that hold the abstraction: what a graph of stages must be able to say.

`SortingDomain` has arms, typed parameters, an effective parameter and a guardrail. `ServiceDomain`
has a gate, steps, a remote host and no arms at all. Both really run.
"""

from __future__ import annotations

import json
import random
import time
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any, ClassVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from benchwright import (
    Approval,
    BadInput,
    BenchmarkConfig,
    Direction,
    Domain,
    Manifest,
    ManifestEntry,
    Metric,
    MetricsFormat,
    MetricsFrom,
    Role,
    Scale,
    Stage,
    StageContext,
    StageKind,
)


class SortingParams(BaseModel):
    """The parameters of the sorting domain."""

    model_config = ConfigDict(extra="forbid")

    size: int = Field(gt=0)
    algorithm: str = Field(pattern="^(merge|insertion)$")
    seed: int = 0


class SortingDomain(Domain):
    """How long a sorting algorithm takes: data (prep) -> sort (measure)."""

    name: ClassVar[str] = "sorting"
    version: ClassVar[str] = "1"

    def defaults(self) -> Mapping[str, Any]:
        return {
            "params": {"size": 200, "algorithm": "insertion", "seed": 7},
            "treatment_variable": "algorithm",
            "treatment_values": ["merge"],
            "replication": {"replicates": 5, "warmup": 0},
        }

    def check(self, config: BenchmarkConfig) -> None:
        values = (config.params.get("algorithm"), *config.treatment_values)
        try:
            for value in values if config.treatment_variable == "algorithm" else values[:1]:
                SortingParams.model_validate({**config.params, "algorithm": value})
        except ValidationError as problem:
            first = problem.errors()[0]
            raise BadInput(
                f"parameter '{first['loc'][0]}': {first['msg']}",
                expected="size > 0, algorithm merge or insertion, seed",
            ) from None

    def stages(self, config: BenchmarkConfig) -> Sequence[Stage]:
        return (
            Stage(
                name="data",
                kind=StageKind.PREP,
                function="tests.domains.samples:make_data",
                params=("size", "seed"),
                produces=("numbers",),
            ),
            Stage(
                name="sort",
                kind=StageKind.MEASURE,
                function="tests.domains.samples:sort_data",
                params=("algorithm", "size"),
                needs=("data",),
            ),
        )

    def metrics(self, config: BenchmarkConfig) -> Sequence[Metric]:
        return (
            Metric(name="sort_ms", unit="ms", meaning="time to sort the numbers once"),
            Metric(
                name="sorted_share",
                direction=Direction.HIGHER,
                role=Role.GUARDRAIL,
                scale=Scale.PROPORTION,
                floor=1.0,
                meaning="share of neighbours in the right order",
            ),
        )

    def manifest(self) -> Manifest:
        return Manifest(
            entries=(
                ManifestEntry(
                    name="size",
                    reason="time grows with the square of it for insertion sort",
                    default=200,
                    verify="effective: size",
                    impact="another size is another experiment",
                    since="1",
                ),
                ManifestEntry(
                    name="algorithm",
                    reason="it is what is compared",
                    default="insertion",
                    verify="effective: algorithm",
                    impact="the arms would be the same",
                    since="1",
                ),
            )
        )


def make_data(context: StageContext) -> None:
    """Write the numbers to sort."""
    size, seed = context.params["size"], context.params["seed"]
    assert isinstance(size, int)
    assert isinstance(seed, int)
    draw = random.Random(seed)
    numbers = [draw.random() for _ in range(size)]
    context.outputs["numbers"].write_text(json.dumps(numbers), encoding="ascii")


def insertion_sort(numbers: list[float]) -> list[float]:
    """Sort in a time that grows with the square of the length."""
    done: list[float] = []
    for number in numbers:
        place = len(done)
        while place and done[place - 1] > number:
            place -= 1
        done.insert(place, number)
    return done


def merge_sort(numbers: list[float]) -> list[float]:
    """Sort with Python's own, which is a merge sort."""
    return sorted(numbers)


ALGORITHMS = {"insertion": insertion_sort, "merge": merge_sort}


def sort_data(context: StageContext) -> dict[str, Any]:
    """Sort the numbers, five times, and say which function really did it."""
    numbers = json.loads(context.inputs["numbers"].read_text(encoding="ascii"))
    sort = ALGORITHMS[str(context.params["algorithm"])]
    times_ms, result = [], numbers
    for _ in range(5):
        start = time.perf_counter()
        result = sort(numbers)
        times_ms.append((time.perf_counter() - start) * 1e3)
    neighbours = list(pairwise(result))
    in_order = sum(left <= right for left, right in neighbours)
    return {
        "sort_ms": times_ms,
        "sorted_share": in_order / len(neighbours) if neighbours else 1.0,
        "effective": {
            "algorithm": sort.__name__.removesuffix("_sort"),
            "size": len(result),
        },
    }


EVALUATE = r"""
seq 1 {items} | awk '{ right += $1 % 5 != 0 } END { printf "{\"accuracy\": %.4f}\n", right / NR }'
"""
"""Scores the items, of which every fifth is answered wrong. A command, not a function: the host
has a shell and no Benchwright."""


class ServiceDomain(Domain):
    """Is a service right: probe -> approve (gate) -> evaluate -> validate, and no arms.

    `evaluate` runs on the host that the parameter `host` names, where it is set; the gate asks only
    where the evaluation costs something.
    """

    name: ClassVar[str] = "service"

    def defaults(self) -> Mapping[str, Any]:
        return {"params": {"host": "", "items": 20, "cost_per_item_usd": 0.0}}

    def stages(self, config: BenchmarkConfig) -> Sequence[Stage]:
        module = "tests.domains.samples"
        return (
            Stage(name="probe", kind=StageKind.STEP, function=f"{module}:probe"),
            Stage(
                name="approve",
                kind=StageKind.GATE,
                function=f"{module}:approve",
                needs=("probe",),
                params=("items", "cost_per_item_usd"),
            ),
            Stage(
                name="evaluate",
                kind=StageKind.MEASURE,
                cmd=EVALUATE,
                env={"LC_ALL": "C"},
                metrics_from=MetricsFrom(stdout=True, format=MetricsFormat.JSON),
                needs=("probe", "approve"),
                host=str(config.params["host"]) or None,
            ),
            Stage(
                name="validate",
                kind=StageKind.STEP,
                function=f"{module}:validate",
                needs=("evaluate",),
                produces=("verdict",),
            ),
        )

    def metrics(self, config: BenchmarkConfig) -> Sequence[Metric]:
        return (
            Metric(
                name="accuracy",
                direction=Direction.HIGHER,
                scale=Scale.PROPORTION,
                meaning="share of the items answered right",
            ),
        )


def probe(context: StageContext) -> dict[str, Any]:
    """What is served."""
    return {"model": "parrot-1", "ready": True}


def approve(context: StageContext) -> Approval | None:
    """Ask a person where the evaluation costs money."""
    items, price = context.params["items"], context.params["cost_per_item_usd"]
    assert isinstance(items, int)
    assert isinstance(price, float | int)
    if not price:
        return None
    cost = items * price
    return Approval(
        question=f"Evaluate {context.results['probe']['model']} on {items} items?",
        details=f"**{items}** items at {price} USD each.",
        estimate_usd=(cost, cost * 1.2),
    )


def validate(context: StageContext) -> dict[str, Any]:
    """Write down what was found; needs nothing but that the evaluation ran."""
    verdict = {"state": "success", "arm": context.arm}
    context.outputs["verdict"].write_text(json.dumps(verdict), encoding="ascii")
    return verdict

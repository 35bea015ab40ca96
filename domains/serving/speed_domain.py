"""The domain `speed`: how fast does a served model answer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from benchwright import (
    BenchmarkConfig,
    Direction,
    Domain,
    Manifest,
    ManifestEntry,
    Metric,
    Role,
    Stage,
)
from domains.serving.accuracy_domain import serving_graph
from domains.serving.load import points_of
from domains.serving.request import SpeedRequest, declared, speed_request

MATTERS = 0.03
"""Smallest change of a served model's rate or latency that people act on."""

FIGURES: tuple[tuple[str, str, Direction, Role, str], ...] = (
    ("output_tok_s", "1/s", Direction.HIGHER, Role.PRIMARY, "output tokens a second"),
    ("ttft_ms", "ms", Direction.LOWER, Role.PRIMARY, "mean time to the first token"),
    ("tpot_ms", "ms", Direction.LOWER, Role.SECONDARY, "mean time for each further token"),
    ("e2e_ms", "ms", Direction.LOWER, Role.SECONDARY, "mean time of a whole answer"),
    ("total_tok_s", "1/s", Direction.HIGHER, Role.SECONDARY, "input and output tokens a second"),
)


class SpeedDomain(Domain):
    """Loads a served model at several points: probe -> evaluate -> validate.

    The unit is a block: one fresh load program for each point, in random order.
    """

    name: ClassVar[str] = "speed"
    version: ClassVar[str] = "1"

    def stages(self, config: BenchmarkConfig) -> Sequence[Stage]:
        """The graph."""
        return serving_graph("speed", speed_request(config.params).target)

    def defaults(self) -> Mapping[str, Any]:
        """Every parameter at its default."""
        return {"params": declared(SpeedRequest)}

    def metrics(self, config: BenchmarkConfig) -> Sequence[Metric]:
        """The figures of each point."""
        if config.metrics:
            return config.metrics
        points = points_of(speed_request(config.params).load)
        return [
            Metric(
                name=f"{name}.{point.name}",
                unit=unit,
                direction=direction,
                role=role,
                min_effect=MATTERS,
                meaning=f"{meaning}, {point.label}",
            )
            for point in points
            for name, unit, direction, role, meaning in FIGURES
        ]

    def manifest(self) -> Manifest:
        """What decides a rate beside the server."""
        return Manifest(entries=tuple(ManifestEntry(**entry) for entry in MANIFEST))

    def check(self, config: BenchmarkConfig) -> None:
        """Refuse parameters that aren't known. Raises BadInput."""
        speed_request(config.params)


MANIFEST: tuple[dict[str, Any], ...] = tuple(
    {"name": name, "reason": reason, "impact": impact, "since": "1"}
    for name, reason, impact in (
        ("load.backend", "load programs time differently", "other figures for the same server"),
        ("load.batch_sizes", "a rate belongs to its load", "figures of another load"),
        ("load.input_tokens", "prefill grows with the input", "another time to the first token"),
        ("load.output_tokens", "rates depend on the length of answers", "another mix of work"),
        ("load.replicates", "the unit is a replicate", "a wider or narrower interval"),
        ("load.seed", "it draws prompts and order", "other prompts"),
        ("target.model", "the server answers under any name", "another model's speed"),
    )
)

"""The domain `accuracy`: is a served model still right."""

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
    Scale,
    Stage,
    StageKind,
)
from domains.serving.request import (
    AccuracyRequest,
    Target,
    accuracy_request,
    declared,
    find_dataset,
)

POINT = 0.01
"""A point of accuracy: the smallest change that people act on."""

REPRODUCTION = 0.02
"""How far the score of the same build may lie off: batching changes the order of sums, and so a
few near ties among the next tokens."""


class AccuracyDomain(Domain):
    """Scores a served model on evaluation sets: probe -> evaluate -> validate.

    The unit is an item of a set: two runs are compared by the items that both answered.
    """

    name: ClassVar[str] = "accuracy"
    version: ClassVar[str] = "1"

    def stages(self, config: BenchmarkConfig) -> Sequence[Stage]:
        """The graph."""
        return serving_graph("accuracy", accuracy_request(config.params).target)

    def defaults(self) -> Mapping[str, Any]:
        """Every parameter at its default."""
        return {"params": declared(AccuracyRequest)}

    def metrics(self, config: BenchmarkConfig) -> Sequence[Metric]:
        """A score for each dataset, with the shares that tell how far it may be believed."""
        request = accuracy_request(config.params)
        names = [find_dataset(spec).name for spec in request.evaluate.datasets]
        return config.metrics or [metric for name in names for metric in _metrics(name)]

    def manifest(self) -> Manifest:
        """What decides a score beside the model."""
        return Manifest(entries=tuple(ManifestEntry(**entry) for entry in MANIFEST))

    def check(self, config: BenchmarkConfig) -> None:
        """Refuse parameters that aren't known, and datasets that aren't there. Raises BadInput."""
        request = accuracy_request(config.params)
        for spec in request.evaluate.datasets:
            find_dataset(spec)


def serving_graph(domain: str, target: Target) -> tuple[Stage, ...]:
    """probe -> evaluate -> validate, for either domain.

    The variable that holds an endpoint's API key is handed on to the stages that ask it: by its
    name, so that the key is in no configuration and no record.
    """
    key = target.endpoint.key_env
    needs: dict[str, tuple[str, ...]] = {
        "probe": (),
        "evaluate": ("probe",),
        "validate": ("probe", "evaluate"),
    }
    return tuple(
        Stage(
            name=name,
            kind=StageKind.STEP,
            function=f"domains.serving.stages:{domain}_{name}",
            needs=before,
            env={key: None} if key is not None and name != "validate" else {},
        )
        for name, before in needs.items()
    )


def _metrics(dataset: str) -> list[Metric]:
    shares = (
        ("errors", "share of the requested samples that ended in an error"),
        ("empty", "share of the answers without text"),
        ("truncated", "share of the answers cut at max_tokens"),
    )
    return [
        Metric(
            name=f"score.{dataset}",
            direction=Direction.HIGHER,
            scale=Scale.PROPORTION,
            min_effect=POINT,
            tolerance=REPRODUCTION,
            meaning=f"share of {dataset}'s items answered right",
        ),
        *(
            Metric(
                name=f"{name}.{dataset}",
                direction=Direction.LOWER,
                role=Role.SECONDARY,
                scale=Scale.PROPORTION,
                min_effect=POINT,
                tolerance=REPRODUCTION,
                meaning=meaning,
            )
            for name, meaning in shares
        ),
    ]


MANIFEST: tuple[dict[str, Any], ...] = (
    {
        "name": "evaluate.datasets",
        "reason": "a score belongs to its evaluation set",
        "default": ["gsm8k"],
        "impact": "scores of two sets say nothing of each other",
        "since": "1",
    },
    {
        "name": "evaluate.evalscope_version",
        "reason": "prompts and scoring differ between evaluator versions",
        "verify": "effective: evaluate.evalscope_version",
        "impact": "the same answers get another score",
        "since": "1",
    },
    {
        "name": "evaluate.limit",
        "reason": "the first items of a set aren't the set",
        "verify": "effective: evaluate.limit",
        "impact": "a score over other items, with another interval",
        "since": "1",
    },
    {
        "name": "evaluate.seed",
        "reason": "shots and choices may be drawn from it",
        "default": 42,
        "verify": "effective: evaluate.seed",
        "impact": "other prompts for the same items",
        "since": "1",
    },
    {
        "name": "generation.max_tokens",
        "reason": "answers that are cut lose their end, where the result stands",
        "default": 4096,
        "verify": "effective: generation.max_tokens",
        "impact": "a lower score from the same model",
        "since": "1",
    },
    {
        "name": "generation.temperature",
        "reason": "above zero every run draws other answers",
        "default": 0.0,
        "verify": "effective: generation.temperature",
        "impact": "a change that is only chance",
        "since": "1",
    },
    {
        "name": "target.model",
        "reason": "the server answers under any name",
        "verify": "effective: target.model",
        "impact": "another model's score",
        "since": "1",
    },
)

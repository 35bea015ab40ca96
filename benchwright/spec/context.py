"""What a stage that is a Python function receives, and what a gate's function may return.

Apart from the models, so that a stage's process doesn't pay for pydantic: a child that only needs
these two types starts in a few hundredths of a second.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchwright.spec.values import Value


@dataclass(frozen=True, slots=True)
class StageContext:
    """What a stage that is a Python function receives.

    Attributes:
        params: The arm's parameters by dotted name; those that the stage's `params` name, where
            it names any.
        inputs: Paths of the artifacts of the stages it needs, by artifact name.
        outputs: Paths that it must create, by artifact name.
        results: What the stages in `needs` returned, by stage name (`step` and `gate` stages).
        run_dir: The run's folder.
        seed: The seed of this replicate.
        arm: Name of the arm.
        replicate: Number of the replicate from 0; None outside measure stages.
    """

    params: Mapping[str, Value]
    inputs: Mapping[str, Path]
    outputs: Mapping[str, Path]
    results: Mapping[str, Any]
    run_dir: Path
    seed: int
    arm: str
    replicate: int | None = None


@dataclass(frozen=True, slots=True)
class Approval:
    """What a gate stage asks a person; a gate's function returns one, or None to pass.

    Attributes:
        question: One line.
        details: Markdown shown above the answer.
        estimate_usd: Expected cost as (low, high) in US dollars, where money is at stake.
    """

    question: str
    details: str = ""
    estimate_usd: tuple[float, float] | None = None

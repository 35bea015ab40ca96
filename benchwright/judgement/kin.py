"""Which earlier runs are of one kind with an experiment: what it inherits, what it is held against.

A recipe names its kind. An experiment without one is known by its stages: two that are not called
alike are two systems, and neither owes the other a parameter.
"""

from __future__ import annotations

from benchwright.spec.model import BenchmarkConfig


def of_one_kind(config: BenchmarkConfig, other: BenchmarkConfig) -> bool:
    """Whether two experiments have the same domain and recipe, or without one the same stages."""
    if config.domain != other.domain or config.recipe != other.recipe:
        return False
    return config.recipe is not None or _stages(config) == _stages(other)


def _stages(config: BenchmarkConfig) -> set[str]:
    return {stage.name for stage in config.stages}

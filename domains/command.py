"""The domain `command`: any system, its stages declared in YAML."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from benchwright import BadInput, BenchmarkConfig, Domain, Stage
from benchwright.errors import Where


class CommandDomain(Domain):
    """Takes the stages as the configuration, or its recipe, declares them."""

    name: ClassVar[str] = "command"

    def stages(self, config: BenchmarkConfig) -> Sequence[Stage]:
        """The stages of the configuration."""
        return config.stages

    def check(self, config: BenchmarkConfig) -> None:
        """Refuse a configuration without stages. Raises BadInput."""
        if not config.stages:
            raise BadInput(
                "the configuration has no stages, and the domain 'command' makes none",
                where=Where(key="stages"),
                expected="at least one stage of `kind: measure`",
                hint="start from a recipe (`recipe: NAME`, listed by: benchwright recipes), or"
                " from a commented file: benchwright domain NAME --yaml",
            )

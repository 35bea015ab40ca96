"""The Domain API: what someone writes to make a system benchmarkable.

A domain turns a configuration into a graph of stages. `command` takes the stages from YAML; a
typed domain builds them in Python. The compiler does the rest, the same for all of them.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

from benchwright.spec.context import Approval as Approval
from benchwright.spec.context import StageContext as StageContext
from benchwright.spec.manifest import Manifest
from benchwright.spec.model import BenchmarkConfig, Metric, Stage


class Domain(ABC):
    """A kind of system that can be benchmarked.

    Attributes:
        name: The word after `domain:` in a configuration.
        version: Part of every signature: raise it when the same stage would give other output.
        packages: Python packages whose versions belong to the software fingerprint.
    """

    name: ClassVar[str]
    version: ClassVar[str] = "1"
    packages: ClassVar[Sequence[str]] = ()

    @abstractmethod
    def stages(self, config: BenchmarkConfig) -> Sequence[Stage]:
        """The graph for this configuration."""

    def defaults(self) -> Mapping[str, Any]:
        """What a configuration of this domain says where its file and recipe say nothing."""
        return {}

    def metrics(self, config: BenchmarkConfig) -> Sequence[Metric]:
        """The metrics that its measure stages give, where the configuration names none."""
        return config.metrics

    def manifest(self) -> Manifest:
        """The parameters that must be declared (gate 1, rule 2)."""
        return Manifest()

    def check(self, config: BenchmarkConfig) -> None:  # noqa: B027 - nothing to refuse by default
        """Refuse a configuration that this domain can't run. Raises BadInput."""


@dataclass(slots=True)
class Domains:
    """The domains that can be named in a configuration."""

    known: dict[str, Domain] = field(default_factory=dict)

    def add(self, domain: Domain) -> None:
        """Make a domain known under its name; a later one of the same name replaces it."""
        self.known[domain.name] = domain

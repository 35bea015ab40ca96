"""Fingerprints: the machine, the software, the code and the accelerator that a run really had."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

UNKNOWN = "unknown"
"""The value of a field that couldn't be read. It never equals another `unknown` silently."""


@dataclass(frozen=True, slots=True)
class Fingerprint:
    """What a run ran on.

    Attributes:
        fields: Value as text by dotted name: `machine.cpu_model`, `software.python`,
            `code.commit`, `accelerator.driver`, ... In a fixed order.
    """

    fields: Mapping[str, str] = field(default_factory=dict)

    @property
    def unknown(self) -> tuple[str, ...]:
        """Names of the fields that couldn't be read."""
        return tuple(name for name, value in self.fields.items() if value == UNKNOWN)

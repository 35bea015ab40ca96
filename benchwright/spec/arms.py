"""Arms: one value of the treatment each, and the parameters that follow from it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from benchwright.spec.model import BenchmarkConfig
from benchwright.spec.values import Value, as_text, flatten

ONLY_ARM = "only"
"""Name of the arm of a run that has no treatment."""


@dataclass(frozen=True, slots=True)
class Arm:
    """One value of the treatment.

    Attributes:
        name: `<last part of the variable>=<value>`, unique in its run; `only` without a treatment.
        value: The treatment's value; None without a treatment.
        is_baseline: Whether the value is the one in `params`.
        params: All parameters by dotted name, the treatment's value put in.
    """

    name: str
    value: Value
    is_baseline: bool
    params: Mapping[str, Value]


def expand_arms(config: BenchmarkConfig) -> tuple[Arm, ...]:
    """The arms of a run, the baseline first."""
    params = config.flat_params
    variable = config.treatment_variable
    if variable is None:
        return (Arm(ONLY_ARM, None, True, MappingProxyType(params)),)
    values = [params[variable], *flatten({"v": list(config.treatment_values)})["v"]]  # type: ignore[misc]
    label = variable.rpartition(".")[2]
    names = [f"{label}={as_text(value)}" for value in values]
    return tuple(
        Arm(
            # A run against itself, to see what the noise alone does, has one value twice.
            name=name if name not in names[:index] else f"{name} (again)",
            value=value,
            is_baseline=index == 0,
            params=MappingProxyType({**params, variable: value}),
        )
        for index, (name, value) in enumerate(zip(names, values, strict=True))
    )

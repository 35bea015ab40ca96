"""Parameter values: dotted names for nested mappings, and how a value is written as text."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

Scalar = str | int | float | bool | None
"""A parameter's value. Lists of scalars are allowed as values too, and stay whole."""

Value = Scalar | tuple[Scalar, ...]


def flatten(params: Mapping[str, Any], prefix: str = "") -> dict[str, Value]:
    """Turn nested mappings into `{"a.b": value}`, in the order of the file.

    Lists become tuples, so that a flattened mapping is hashable value by value.
    """
    return dict(_walk(params, prefix))


def _walk(params: Mapping[str, Any], prefix: str) -> Iterator[tuple[str, Value]]:
    for key, value in params.items():
        name = f"{prefix}{key}"
        if isinstance(value, Mapping):
            yield from _walk(value, f"{name}.")
        else:
            yield name, tuple(value) if isinstance(value, list | tuple) else value


def unflatten(flat: Mapping[str, Value]) -> dict[str, Any]:
    """The inverse of `flatten`. Tuples become lists."""
    nested: dict[str, Any] = {}
    for name, value in flat.items():
        *path, last = name.split(".")
        here = nested
        for part in path:
            here = here.setdefault(part, {})
        here[last] = list(value) if isinstance(value, tuple) else value
    return nested


def as_text(value: Value) -> str:
    """A value as a program receives it: `true`, `null`, the shortest exact float, `1,2` for lists.

    Text stays byte for byte what its author wrote.
    """
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, tuple):
        return ",".join(as_text(part) for part in value)
    if isinstance(value, float):
        return repr(value)
    return str(value)

"""Effective parameters: what the system under test says it used, against what was declared."""

from __future__ import annotations

import re
import struct
from collections.abc import Mapping

from benchwright.errors import Difference
from benchwright.spec.values import Value, as_text

_NUMBER = re.compile(r"[+-]?(?:0|[1-9]\d*)(?:\.\d+)?(?:[eE][+-]?\d+)?")
"""A number as programs print it. `010` is text: it is as often a code as a number."""

WHY_DRIFTED = "the system used another value than the one declared, so the result isn't that of "
"the declared experiment"
WHY_NEVER_RAN = "both arms used the same value, so the treatment never ran"


def same_value(declared: Value, effective: Value) -> bool:
    """Whether an effective value is the declared one, however the system writes it.

    Numbers are compared as numbers (`16`, `16.0` and `"16"` are one value); one with a fraction
    may come back in single precision (0.7 as 0.699999988079071). `true` is also `"true"` or
    `"True"`, never 1. Lists are compared part by part, or as `a,b`. All else is compared as text.
    """
    if isinstance(declared, tuple) and isinstance(effective, tuple):
        return len(declared) == len(effective) and all(
            same_value(one, two) for one, two in zip(declared, effective, strict=True)
        )
    if isinstance(declared, bool) or isinstance(effective, bool):
        return as_text(declared).lower() == as_text(effective).lower()
    left, right = _number(declared), _number(effective)
    if left is not None and right is not None:
        return left == right or _same_single(left, right)
    return as_text(declared) == as_text(effective)


def compare_effective(
    declared: Mapping[str, Value], effective: Mapping[str, Value]
) -> tuple[Difference, ...]:
    """The parameters that the system used with another value than declared (gate 1, rule 4).

    Args:
        declared: The arm's parameters by dotted name.
        effective: What one replicate said it used. A parameter that it doesn't name is no
            difference: it's unverified, see `unverified`.

    Returns:
        One row for each difference, in the order of `effective`.
    """
    return tuple(
        Difference(name, as_text(declared[name]), as_text(value), WHY_DRIFTED)
        for name, value in effective.items()
        if name in declared and not same_value(declared[name], value)
    )


def extras(declared: Mapping[str, Value], effective: Mapping[str, Value]) -> dict[str, Value]:
    """Effective values that are no declared parameter: counters, versions, settings found."""
    return {name: value for name, value in effective.items() if name not in declared}


def unverified(declared: Mapping[str, Value], effective: Mapping[str, Value]) -> tuple[str, ...]:
    """Declared parameters that the system says nothing about."""
    return tuple(name for name in declared if name not in effective)


def effective_arms_distinct(
    variable: str, by_arm: Mapping[str, Mapping[str, Value]]
) -> tuple[Difference, ...]:
    """The pairs of arms in which the treatment had one and the same effective value.

    Args:
        variable: The treatment's dotted name.
        by_arm: Effective values by arm. An arm that doesn't report the variable is left out:
            what it used is unknown.

    Returns:
        One row for each pair, `left` and `right` naming arm and value. Empty: all are distinct.
    """
    reported = [(arm, values[variable]) for arm, values in by_arm.items() if variable in values]
    return tuple(
        Difference(variable, f"{one}: {as_text(left)}", f"{two}: {as_text(right)}", WHY_NEVER_RAN)
        for index, (one, left) in enumerate(reported)
        for two, right in reported[index + 1 :]
        if same_value(left, right)
    )


def _number(value: Value) -> int | float | None:
    if isinstance(value, int | float):
        return value
    if not isinstance(value, str) or not _NUMBER.fullmatch(value):
        return None
    return float(value) if set(value) & set(".eE") else int(value)


def _same_single(left: int | float, right: int | float) -> bool:
    """Whether two numbers are one in single precision. Whole ones (seeds, sizes) never are."""
    try:
        if float(left).is_integer() and float(right).is_integer():
            return False
        return struct.pack("f", left) == struct.pack("f", right)
    except OverflowError:  # beyond single precision
        return False

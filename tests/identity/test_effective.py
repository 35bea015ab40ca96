"""What the system says it used, against what was declared (gate 1, rule 4)."""

from __future__ import annotations

import math

import pytest

from benchwright.identity.effective import (
    compare_effective,
    effective_arms_distinct,
    extras,
    same_value,
    unverified,
)
from benchwright.spec.values import Value


@pytest.mark.parametrize(
    ("declared", "effective"),
    [
        (16, 16.0),
        (16, "16"),
        (16, "16.0"),
        ("16", 16),
        (1e-3, "0.001"),
        (1e-3, "1e-3"),
        (0.7, 0.699999988079071),  # single precision, as many engines keep it
        (True, "true"),
        (True, "True"),
        (False, "false"),
        (None, "null"),
        ("fp16", "fp16"),
        ((1, 2), (1.0, "2")),
        ((1, 2), "1,2"),
    ],
    ids=str,
)
def test_one_value_written_in_two_ways_is_the_same(declared: Value, effective: Value) -> None:
    assert same_value(declared, effective)


@pytest.mark.parametrize(
    ("declared", "effective"),
    [
        (16, 1),
        (16, "16 "),
        (20250101, 20250102),  # a seed: one in single precision, and yet another
        (2**53, 2**53 + 1),
        (0.7, 0.7001),
        (True, 1),
        (True, "false"),
        (False, 0),
        ("010", 10),
        ("fp16", "FP16"),
        ("1,25", 1.25),
        (1, None),
        (1, "1_0"),
        (math.inf, math.nan),
        (10**400, 0.5),
        ((1, 2), (1, 2, 3)),
    ],
    ids=lambda value: str(value)[:12],
)
def test_another_value_is_another(declared: Value, effective: Value) -> None:
    assert not same_value(declared, effective)


DECLARED: dict[str, Value] = {"merge.segments": 16, "model": "small", "n_queries": 100}


def test_gate_1_rule_4_declared_and_effective_that_differ_are_named() -> None:
    rows = compare_effective(DECLARED, {"merge.segments": 9, "model": "small"})
    assert [(row.field, row.left, row.right) for row in rows] == [("merge.segments", "16", "9")]
    assert "declared" in rows[0].why


def test_what_is_no_declared_parameter_is_kept_apart() -> None:
    effective: dict[str, Value] = {"merge.segments": 16, "documents_seen": 7}
    assert compare_effective(DECLARED, effective) == ()
    assert extras(DECLARED, effective) == {"documents_seen": 7}
    assert unverified(DECLARED, effective) == ("model", "n_queries")


def test_gate_1_rule_4_arms_with_one_effective_value_are_named() -> None:
    arms: dict[str, dict[str, Value]] = {
        "segments=16": {"merge.segments": 1},
        "segments=1": {"merge.segments": "1.0"},
        "segments=4": {"merge.segments": 4},
        "segments=8": {},
    }
    (row,) = effective_arms_distinct("merge.segments", arms)
    assert (row.left, row.right) == ("segments=16: 1", "segments=1: 1.0")
    assert "never ran" in row.why


def test_arms_that_differ_give_nothing() -> None:
    assert effective_arms_distinct("x", {"a": {"x": 1}, "b": {"x": 2}}) == ()
    assert effective_arms_distinct("x", {}) == ()

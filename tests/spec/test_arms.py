"""Arms: one value of the treatment each."""

from __future__ import annotations

from typing import Any

from benchwright.spec.arms import ONLY_ARM, expand_arms
from benchwright.spec.model import BenchmarkConfig


def config(**more: Any) -> BenchmarkConfig:
    return BenchmarkConfig.model_validate(
        {"domain": "command", "params": {"a": {"x": 1, "y": [1, 2]}}, **more}
    )


def test_without_a_treatment_there_is_one_arm() -> None:
    (only,) = expand_arms(config())
    assert (only.name, only.is_baseline) == (ONLY_ARM, True)
    assert dict(only.params) == {"a.x": 1, "a.y": (1, 2)}


def test_the_baseline_is_the_value_in_the_parameters_and_comes_first() -> None:
    arms = expand_arms(config(treatment_variable="a.x", treatment_values=[2, "on"]))
    assert [(arm.name, arm.is_baseline, arm.params["a.x"]) for arm in arms] == [
        ("x=1", True, 1),
        ("x=2", False, 2),
        ("x=on", False, "on"),
    ]


def test_a_list_is_one_value() -> None:
    arms = expand_arms(config(treatment_variable="a.y", treatment_values=[[3, 4], []]))
    assert [(arm.name, arm.value) for arm in arms] == [
        ("y=1,2", (1, 2)),
        ("y=3,4", (3, 4)),
        ("y=", ()),
    ]


def test_a_run_against_itself_has_two_arms_with_names_of_their_own() -> None:
    arms = expand_arms(config(treatment_variable="a.x", treatment_values=[1, 2]))
    assert [arm.name for arm in arms] == ["x=1", "x=1 (again)", "x=2"]

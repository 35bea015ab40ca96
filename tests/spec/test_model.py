"""What the models say beyond their fields."""

from __future__ import annotations

import pytest

from benchwright.spec.model import BenchmarkConfig, Budget, Resources, Stage, StageKind


@pytest.mark.parametrize(
    ("stage", "run", "budget"),
    [(None, None, None), (500, None, 500), (None, 700, 700), (500, 700, 500), (900, 700, 700)],
)
def test_a_stage_may_use_what_both_its_own_and_the_runs_budget_allow(
    stage: float | None, run: float | None, budget: float | None
) -> None:
    one = Stage(name="s", kind=StageKind.PREP, cmd="true", resources=Resources(memory_mb=stage))
    config = BenchmarkConfig(domain="command", stages=(one,), budget=Budget(memory_mb=run))
    assert config.memory_budget_mb(one) == budget

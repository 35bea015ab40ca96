"""What a run will take of accelerators and dollars, and the challenge to one over its budget."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from benchwright.errors import GateRefused
from benchwright.execution.accelerators import Machine
from benchwright.execution.device import Device, Vendor
from benchwright.execution.launch import EndReason, Usage
from benchwright.execution.pricing import Price, Prices, ProviderPrices
from benchwright.execution.sample import Measurement, PrepResult, Sample
from benchwright.identity.fingerprint import Fingerprint
from benchwright.judgement.view import RunView
from benchwright.planning.cost import check_budget, count_launches, estimate_cost
from benchwright.spec.manifest import Manifest
from benchwright.spec.model import BenchmarkConfig, Stage

H200 = Device("GPU-a", "NVIDIA H200", 0, Vendor.NVIDIA)
T4 = Device("GPU-t", "Tesla T4", 1, Vendor.NVIDIA)
MACHINE = Machine(gpus=(H200, replace(H200, uuid="GPU-b", index=1)))
PRICES = Prices(
    "prices of 2026-10 (a test)",
    {"local": ProviderPrices(gpus={"NVIDIA H200": Price(3.6, 3.6)})},
)


def config(gpus: int = 1, est: float | None = 0.5, **budget: float) -> BenchmarkConfig:
    def stage(name: str, kind: str, **resources: Any) -> dict[str, Any]:
        return {"name": name, "kind": kind, "cmd": "x", "resources": resources}

    return BenchmarkConfig.model_validate(
        {
            "domain": "llm",
            "stages": [
                stage("data", "prep"),
                stage("train", "prep", gpus=gpus, est_gpu_hours=est),
                stage("infer", "measure", gpus=gpus, est_gpu_hours=est),
            ],
            "budget": budget,
        }
    )


def estimate(made: BenchmarkConfig, earlier: tuple[RunView, ...] = (), **changes: Any) -> Any:
    launches = count_launches(made, changes.pop("replicates", 4), {"train": 2})
    return estimate_cost(
        made, launches, earlier, changes.pop("prices", PRICES), changes.pop("machine", MACHINE)
    )


def earlier_run(gpu_seconds: float, made: BenchmarkConfig) -> RunView:
    usage = Usage(gpu_seconds, gpu_seconds=gpu_seconds)
    sample = Sample(
        "infer", "only", 0, 0, False, 1, "", gpu_seconds, EndReason.COMPLETED, 0, "",
        Measurement({"t_ms": 1.0}), usage,
    )  # fmt: skip
    prep = PrepResult("train", "only", "ab", False, "", 1.0, replace(usage, gpu_seconds=7200.0))
    return RunView(
        "2026-11-01_llm_aaaaaa", "", made, "", Manifest(), (sample,), Fingerprint(), prep=(prep,)
    )


def test_each_launch_counts_replicates_and_builds_that_arent_cached() -> None:
    cost = estimate(config())
    assert [(row.stage, row.launches) for row in cost.stages] == [("train", 2), ("infer", 4)]
    assert cost.gpu_hours == pytest.approx(3.0)
    assert cost.usd == pytest.approx(3.0 * 3.6)
    assert cost.prices == "prices of 2026-10 (a test)"
    assert cost.launch("infer") == (0.5, pytest.approx(1.8))


def test_what_an_earlier_run_took_counts_more_than_what_is_declared() -> None:
    made = config()
    cost = estimate(made, (earlier_run(360.0, made),))
    train, infer = cost.stages
    assert infer.launch_gpu_hours == pytest.approx(0.1)
    assert infer.basis == "from 2026-11-01_llm_aaaaaa"
    assert train.launch_gpu_hours == pytest.approx(2.0)


def test_a_run_with_another_number_of_devices_says_nothing() -> None:
    cost = estimate(config(gpus=2), (earlier_run(360.0, config(gpus=1)),))
    assert all("est_gpu_hours" in row.basis for row in cost.stages)
    # A GPU-hour costs the same on two devices as on one.
    assert cost.usd == pytest.approx(3.0 * 3.6)


def test_nobody_knows_is_unknown_and_not_zero() -> None:
    cost = estimate(config(est=None))
    assert cost.gpu_hours is None
    assert cost.usd is None
    assert "no earlier run" in cost.stages[0].basis


def test_what_will_not_run_costs_nothing_even_where_nothing_is_known() -> None:
    made = config(est=None)
    launches = count_launches(made, 0, {})
    assert estimate_cost(made, launches, (), PRICES, MACHINE).gpu_hours == 0.0


def test_an_unknown_price_makes_dollars_unknown_and_leaves_the_hours() -> None:
    cost = estimate(config(), prices=Prices("none", {}))
    assert cost.gpu_hours == pytest.approx(3.0)
    assert cost.usd is None
    assert "price is unknown" in cost.stages[0].basis


def test_two_models_at_two_prices_are_no_one_price() -> None:
    cost = estimate(config(), machine=Machine(gpus=(H200, T4)))
    assert cost.usd is None


def test_a_run_over_its_budget_is_challenged_once_for_each_budget() -> None:
    made = config(gpu_hours=2.0, cost_usd=5.0)
    found = check_budget(made, estimate(made))
    assert [one.code for one in found] == ["over-budget-gpu-hours", "over-budget-cost-usd"]
    assert "estimated to take 3 GPU-hours; its budget is 2" in found[0].argument
    assert check_budget(config(gpu_hours=3.0), estimate(config())) == ()


def test_a_budget_in_dollars_needs_a_price() -> None:
    made = config(cost_usd=5.0)
    with pytest.raises(GateRefused, match="costs an hour is unknown") as refused:
        check_budget(made, estimate(made, prices=Prices("none", {})))
    assert "BENCHWRIGHT_PRICES" in str(refused.value)


def test_stages_on_other_hosts_are_counted_in_hours_only() -> None:
    made = config()
    away = tuple(
        Stage.model_validate(stage.model_dump() | {"host": "box"}) for stage in made.stages
    )
    cost = estimate(made.model_copy(update={"stages": away}))
    assert cost.gpu_hours == pytest.approx(3.0)
    assert cost.usd is None

"""A run's purse: what was spent, what is left, and when it ends a run."""

from __future__ import annotations

import pytest

from benchwright.errors import GuardEnded
from benchwright.execution.device import Device, Vendor
from benchwright.execution.launch import EndReason, StageOutcome, Usage
from benchwright.execution.pricing import Price, ProviderPrices
from benchwright.execution.spending import Purse, Spending, price_hour, spent_on, total_usd
from benchwright.spec.model import Budget, Resources, Stage, StageKind

H200 = ProviderPrices(gpus={"H200": Price(3.0, 3.6)})
DEVICE = Device("GPU-a", "H200", 0, Vendor.NVIDIA)
TRAIN = Stage(name="train", kind=StageKind.STEP, cmd="x", resources=Resources(gpus=1))


def spent(gpu_seconds: float, usd: float | None, stage: str = "train") -> Spending:
    return Spending(stage, "only", StageKind.STEP, ("GPU-a",), ("H200",), gpu_seconds, usd)


def purse(prices: ProviderPrices = H200, **budget: float) -> Purse:
    return Purse(Budget.model_validate(budget), prices)


def test_a_launch_costs_its_devices_hours_at_the_upper_price() -> None:
    outcome = StageOutcome(
        EndReason.COMPLETED, 0, None, Usage(1800.0, gpu_seconds=3600.0, vram_peak_mb=7.0)
    )
    row = spent_on(TRAIN, "only", [DEVICE, DEVICE], outcome, H200)
    assert row.gpu_seconds == 3600.0
    assert row.usd == pytest.approx(3.6)
    assert row.vram_peak_mb == 7.0


def test_a_device_without_a_price_makes_the_cost_unknown_not_zero() -> None:
    assert price_hour([DEVICE], ProviderPrices()) is None
    assert total_usd([spent(1, 1.0), spent(1, None)]) is None
    assert purse(ProviderPrices()).usd == 0  # nothing was spent yet


def test_a_machine_paid_for_as_a_whole_has_its_devices_in_its_price() -> None:
    assert price_hour([DEVICE], ProviderPrices(machine_hour=8.0)) == 8.0
    assert price_hour([], ProviderPrices(machine_hour=8.0)) == 8.0
    both = ProviderPrices(gpus=H200.gpus, machine_hour=0.4)
    assert price_hour([DEVICE], both) == pytest.approx(4.0)


def test_a_launch_without_devices_and_without_a_price_is_not_kept() -> None:
    kept: list[Spending] = []
    mine = Purse(Budget(), on_spent=kept.append)
    mine.add(Spending("build", "only", StageKind.PREP, (), (), 0.0, 0.0))
    mine.add(spent(5.0, None))
    assert kept == mine.spent == [spent(5.0, None)]


def test_what_is_left_bounds_how_long_a_stage_may_keep_its_devices() -> None:
    mine = purse(gpu_hours=1.0, cost_usd=1.8)
    assert mine.seconds_left([DEVICE]) == pytest.approx(1800)  # dollars end first
    assert mine.seconds_left([DEVICE, DEVICE]) == pytest.approx(900)
    mine.add(spent(1800.0, 0.9))
    assert mine.seconds_left([DEVICE]) == pytest.approx(900)
    assert mine.seconds_left([]) is None
    assert Purse(Budget()).seconds_left([DEVICE]) is None


@pytest.mark.parametrize(
    ("budget", "words"), [({"gpu_hours": 1.0}, "GPU-hours"), ({"cost_usd": 3.0}, "USD")]
)
def test_a_budget_that_is_used_up_ends_the_run(budget: dict[str, float], words: str) -> None:
    mine = purse(**budget)
    mine.check()
    mine.add(spent(3600.0, 3.0))
    with pytest.raises(GuardEnded, match=f"{words} is used up"):
        mine.check()


def test_a_budget_of_nothing_ends_no_run_that_spends_nothing() -> None:
    purse(gpu_hours=0, cost_usd=0).check()


def test_a_stage_that_is_expected_to_pass_the_budget_isnt_started() -> None:
    mine = purse(gpu_hours=1.0)
    mine.afford(TRAIN, 0.9)
    mine.afford(TRAIN, None)  # nothing is known of it: it starts, and is ended at the budget's end
    with pytest.raises(GuardEnded, match=r"estimated to take 1\.1 GPU-hours; 0 of the budget of 1"):
        mine.afford(TRAIN, 1.1)


def test_what_a_stage_took_in_this_run_counts_more_than_what_was_estimated() -> None:
    mine = purse(gpu_hours=1.0)
    mine.add(spent(0.6 * 3600, 1.0))
    with pytest.raises(GuardEnded, match=r"estimated to take 0\.6"):
        mine.afford(TRAIN, 0.01)
    mine.afford(TRAIN.model_copy(update={"name": "eval"}), 0.3)


def test_dollars_are_bounded_by_estimate_and_by_what_was_spent() -> None:
    with pytest.raises(GuardEnded, match="USD"):
        purse(cost_usd=2.0).afford(TRAIN, None, 2.5)
    mine = purse(cost_usd=2.0)
    mine.add(spent(100, None))
    with pytest.raises(GuardEnded, match="costs is unknown"):
        mine.afford(TRAIN)


def test_a_stage_without_devices_is_always_afforded() -> None:
    cheap = TRAIN.model_copy(update={"resources": Resources()})
    purse(gpu_hours=0.0).afford(cheap, 5.0)


def test_trials_are_counted_and_end_at_their_budget() -> None:
    mine = purse(trials=2)
    mine.count_trial()
    mine.count_trial()
    with pytest.raises(GuardEnded, match="budget of 2 trials is used up"):
        mine.count_trial()
    endless = Purse(Budget())
    for _ in range(100):
        endless.count_trial()

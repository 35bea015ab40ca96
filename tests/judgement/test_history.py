"""What a history says, and when: changes, environments, and where a metric stands."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from datetime import date, timedelta

import numpy as np
import pytest

from benchwright.errors import BenchwrightError
from benchwright.judgement import history as subject
from benchwright.judgement.history import (
    KNOWN_NIGHTS,
    History,
    Night,
    Shape,
    Standing,
    judge_history,
)
from benchwright.spec.model import Direction, Metric, Scale

MS = Metric(name="p50_ms", unit="ms")
RATE = Metric(name="qps", unit="1/s", direction=Direction.HIGHER)
SCORE = Metric(
    name="delta", direction=Direction.HIGHER, scale=Scale.DIFFERENCE, min_effect=0.5, tolerance=1
)
FIRST = date(2026, 1, 1)


def day(index: int) -> str:
    return (FIRST + timedelta(days=index)).isoformat()


def nights(
    values: Sequence[float | None], grounds: Mapping[int, Mapping[str, str]] | None = None
) -> list[Night]:
    """One night each; from the index of each ground on, that is what they ran on."""
    ground: Mapping[str, str] = {"machine.kernel": "6.1", "configuration": "aa"}
    made = []
    for index, value in enumerate(values):
        ground = (grounds or {}).get(index, ground)
        made.append(
            Night(
                date=day(index),
                value=value,
                run_id=f"run-{index}" if value is not None else "",
                commit=f"c{index}",
                ground=ground if value is not None else {},
                why="" if value is not None else "FAILED: no such index",
            )
        )
    return made


def noisy(count: int, seed: int, spread: float = 0.01) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(count) * spread


def times(logs: np.ndarray) -> list[float]:
    values: list[float] = (100 * np.exp(logs)).tolist()
    return values


def stepped(at: int, size: float, seed: int, count: int = 60) -> list[float]:
    logs = noisy(count, seed)
    logs[at:] += math.log1p(size)
    return times(logs)


def waited(found: History, at: int) -> int | None:
    """Nights until a worse change that began about `at` was certain."""
    worse = [c.found - at + 1 for c in found.changes if c.worse and c.first >= at - 3]
    return min(worse, default=None)


def test_a_step_of_3_percent_at_1_percent_spread_is_found_within_five_nights() -> None:
    delays = [waited(judge_history(MS, nights(stepped(30, 0.03, seed))), 30) for seed in range(20)]
    assert sum(delay is not None and delay <= 5 for delay in delays) >= 18


def test_a_drift_of_half_a_percent_a_night_is_found_within_twelve_nights() -> None:
    found = 0
    for seed in range(20):
        logs = noisy(60, 100 + seed)
        logs[30:] += math.log1p(0.005) * np.arange(1, 31)
        delay = waited(judge_history(MS, nights(times(logs))), 30)
        found += delay is not None and delay <= 12
    assert found >= 19


def test_ten_nights_of_one_percent_are_found_before_they_are_over() -> None:
    logs = noisy(40, 7)
    logs[30:] += math.log1p(0.01) * np.arange(1, 11)
    found = judge_history(MS, nights(times(logs)))
    assert waited(found, 30) in range(3, 10)
    assert found.standing is Standing.WORSE


def test_sixty_nights_without_a_change_raise_no_alarm() -> None:
    alarms = [
        any(change.worse for change in judge_history(MS, nights(times(noisy(60, seed)))).changes)
        for seed in range(200, 225)
    ]
    assert sum(alarms) <= 1


@pytest.mark.parametrize("size", [0.08, 0.5, 5.0])
def test_one_bad_night_is_pointed_out_and_is_no_change(size: float) -> None:
    values = times(noisy(50, 3))
    values[39] *= 1 + size
    on_the_night = judge_history(MS, nights(values[:40]))
    assert on_the_night.standing is Standing.WATCH
    assert not on_the_night.changes
    after = judge_history(MS, nights(values))
    assert after.standing is Standing.STEADY
    assert not after.changes


def test_two_bad_nights_in_a_row_are_no_change() -> None:
    values = times(noisy(50, 3))
    values[38] *= 1.5
    values[39] *= 1.5
    assert not judge_history(MS, nights(values)).changes


def test_what_was_said_on_a_night_is_never_taken_back() -> None:
    logs = noisy(70, 11)
    logs[20:] += 0.04
    logs[45:] -= 0.08
    whole = nights(times(logs))
    changes = judge_history(MS, whole).changes
    assert [change.worse for change in changes] == [True, False]
    for many in range(1, len(whole) + 1):
        known = judge_history(MS, whole[:many])
        assert known.changes == tuple(c for c in changes if c.found < many)
        assert (known.news is not None) == any(c.found == many - 1 for c in changes)


def test_a_change_says_its_levels_its_interval_and_the_commits_between() -> None:
    found = judge_history(MS, nights(stepped(30, 0.05, 1, count=34)))
    (change,) = found.changes
    assert change.first == 30
    assert change.commits == ("c29", "c30")
    assert (change.run_before, change.run_after) == ("run-29", f"run-{change.found}")
    assert change.before == pytest.approx(100, rel=0.01)
    assert change.after == pytest.approx(105, rel=0.015)
    assert change.effect == pytest.approx(1.05, abs=0.015)
    assert change.effect is not None
    assert change.interval.low is not None
    assert change.interval.high is not None
    assert 1.01 < change.interval.low < change.effect < change.interval.high
    assert change.shape is Shape.SHIFT
    assert found.open is change


def test_a_lasting_change_inside_the_smallest_effect_that_matters_is_no_alarm() -> None:
    logs = noisy(60, 5, spread=0.002)
    logs[30:] += 0.007
    assert not judge_history(MS, nights(times(logs))).changes
    sharper = MS.model_copy(update={"min_effect": 0.002})
    assert judge_history(sharper, nights(times(logs))).standing is Standing.WORSE


def test_throughput_that_rises_is_better_and_throughput_that_falls_is_worse() -> None:
    up = judge_history(RATE, nights(stepped(30, 0.05, 2)))
    assert up.standing is Standing.BETTER
    down = judge_history(RATE, nights(stepped(30, -0.05, 2)))
    assert down.standing is Standing.WORSE
    assert down.open is not None


def test_values_below_zero_are_compared_by_their_difference() -> None:
    values = (-4 + noisy(40, 9, spread=0.3)).tolist()
    steady = judge_history(SCORE, nights(values))
    assert steady.standing is Standing.STEADY
    values[30:] = [value - 2 for value in values[30:]]
    worse = judge_history(SCORE, nights(values))
    assert worse.standing is Standing.WORSE
    assert worse.changes[0].effect == pytest.approx(-2, abs=0.5)


def test_a_ratio_metric_that_touches_zero_is_still_judged() -> None:
    values = [*(5 + noisy(20, 4, spread=0.05)).tolist(), 0.0, *(8 + noisy(9, 5, 0.05)).tolist()]
    assert judge_history(MS, nights(values)).standing is Standing.WORSE


@pytest.mark.parametrize("value", [0.0, 7.0])
def test_a_count_that_never_varies_is_steady_and_its_change_is_found(value: float) -> None:
    exact = MS.model_copy(update={"exact": True})
    assert judge_history(exact, nights([value] * 30)).standing is Standing.STEADY
    found = judge_history(exact, nights([value] * 26 + [value + 1] * 4))
    assert found.standing is Standing.WORSE
    assert found.changes[0].first == 26


def test_an_error_within_the_runs_keeps_a_small_difference_from_being_a_change() -> None:
    values = times(noisy(40, 6, spread=0.001) + np.where(np.arange(40) >= 30, 0.02, 0.0))
    assert judge_history(MS, nights(values)).standing is Standing.WORSE
    coarse = [
        Night(night.date, night.value, error=5.0, run_id=night.run_id, ground=night.ground)
        for night in nights(values)
    ]
    assert not judge_history(MS, coarse).changes


def test_too_few_nights_are_said_to_be_too_few() -> None:
    needed = KNOWN_NIGHTS
    new = judge_history(MS, nights(times(noisy(needed - 1, 1))))
    assert new.standing is Standing.NEW
    assert f"{needed - 1} of {needed} nights" in new.said
    assert judge_history(MS, nights(times(noisy(needed, 1)))).standing is Standing.STEADY
    assert judge_history(MS, []).standing is Standing.MISSING


def test_nights_without_a_result_are_passed_over_and_the_latest_one_is_said() -> None:
    values: list[float | None] = [*stepped(30, 0.05, 1, count=40)]
    for index in (5, 12, 31, 33):
        values[index] = None
    assert judge_history(MS, nights(values)).standing is Standing.WORSE
    steady: list[float | None] = [*times(noisy(30, 1)), None]
    missing = judge_history(MS, nights(steady))
    assert missing.standing is Standing.MISSING
    assert "no such index" in missing.said


def test_another_environment_starts_a_new_level_and_says_what_changed() -> None:
    values = stepped(20, 0.2, 8, count=40)
    grounds = {20: {"machine.kernel": "6.8", "configuration": "aa"}}
    found = judge_history(MS, nights(values, grounds))
    assert not found.changes
    assert [segment.first for segment in found.segments] == [0, 20]
    assert found.segments[1].changed == ("machine.kernel: 6.1 became 6.8",)
    assert found.standing is Standing.STEADY
    assert found.level == pytest.approx(120, rel=0.02)


def test_a_field_that_could_not_be_read_one_night_is_no_new_environment() -> None:
    grounds = {
        10: {"machine.kernel": "unknown", "configuration": "aa"},
        11: {"machine.kernel": "6.1", "configuration": "aa"},
    }
    found = judge_history(MS, nights(times(noisy(20, 1)), grounds))
    assert len(found.segments) == 1


def test_a_change_that_hides_behind_an_unreadable_night_is_still_seen() -> None:
    grounds = {
        10: {"machine.kernel": "unknown", "configuration": "aa"},
        11: {"machine.kernel": "6.8", "configuration": "aa"},
    }
    found = judge_history(MS, nights(times(noisy(20, 1)), grounds))
    assert [segment.first for segment in found.segments] == [0, 11]


def test_another_configuration_is_another_environment() -> None:
    grounds = {10: {"machine.kernel": "6.1", "configuration": "bb"}}
    found = judge_history(MS, nights(times(noisy(20, 1)), grounds))
    assert found.segments[1].changed == ("configuration: aa became bb",)


def test_a_regression_stays_open_until_it_is_undone() -> None:
    logs = noisy(80, 13)
    logs[30:55] += 0.06
    whole = nights(times(logs))
    assert judge_history(MS, whole[:50]).standing is Standing.WORSE
    undone = judge_history(MS, whole)
    assert undone.open is None
    assert undone.standing is Standing.BETTER


def test_a_regression_that_is_soon_undone_is_soon_seen_to_be_undone() -> None:
    logs = noisy(50, 21)
    logs[30:35] += 0.06
    whole = nights(times(logs))
    assert judge_history(MS, whole[:35]).standing is Standing.WORSE
    assert judge_history(MS, whole[:42]).open is None


@pytest.mark.parametrize("seed", range(5))
def test_a_change_is_told_as_soon_as_it_is_said_that_it_can_be(seed: int) -> None:
    values = times(noisy(KNOWN_NIGHTS, seed, spread=0.005))
    values[-5:] = [1.1 * value for value in values[-5:]]
    assert judge_history(MS, nights(values)).standing is Standing.WORSE


def test_a_half_undone_regression_stays_open() -> None:
    logs = noisy(90, 14, spread=0.005)
    logs[30:] += 0.10
    logs[60:] -= 0.05
    found = judge_history(MS, nights(times(logs)))
    assert [change.worse for change in found.changes] == [True, False]
    assert found.standing is Standing.WORSE


def test_an_accepted_regression_is_no_alarm_and_a_later_one_is() -> None:
    logs = noisy(60, 15, spread=0.005)
    logs[20:] += 0.06
    known = nights(times(logs))
    assert judge_history(MS, known).standing is Standing.WORSE
    accepted = judge_history(MS, known, accepted=[day(22)])
    assert accepted.open is None
    assert accepted.standing is Standing.STEADY
    logs[45:] += 0.06
    again = judge_history(MS, nights(times(logs)), accepted=[day(22)])
    assert again.open is not None
    assert again.open.first >= 42


def test_the_more_series_are_watched_the_more_each_has_to_show() -> None:
    values = stepped(20, 0.025, 4, count=26)
    alone = judge_history(MS, nights(values))
    among_many = judge_history(MS, nights(values), family=100_000)
    assert alone.changes
    assert not among_many.changes


def test_without_its_library_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(subject, "find_spec", lambda name: None)
    with pytest.raises(BenchwrightError, match="change points") as told:
        judge_history(MS, [])
    assert "pip install 'benchwright[nightly]'" in str(told.value)

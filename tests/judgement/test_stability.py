"""How steady the measurements were, with number and limit (gate 2, rule 6)."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import replace

import pytest

from benchwright.judgement import stability
from benchwright.judgement.judge import judge_run
from benchwright.judgement.units import UnitKind, Units
from benchwright.judgement.verdict import Finding, Tag
from benchwright.spec.model import Direction, Metric, Role
from tests.judgement.views import FAST, P50, SLOW, codes, config, measured, view


def seen(values: Sequence[float], metric: Metric = P50) -> dict[str, Finding]:
    units = Units("on", metric.name, UnitKind.PROCESS, dict(enumerate(values)))
    return {finding.code: finding for finding in stability.stability(metric, units, (), 1)}


def normal(count: int, spread: float, seed: int) -> list[float]:
    draw = random.Random(seed)
    return [10 * (1 + spread * draw.gauss(0, 1)) for _ in range(count)]


def test_gate_2_rule_6_a_spread_above_ten_per_cent_is_said_with_number_and_limit() -> None:
    assert "spread" not in seen(normal(20, 0.05, 1))
    finding = seen(normal(20, 0.25, 1))["spread"]
    assert finding.number == pytest.approx(0.25, rel=0.3)
    assert finding.limit == 0.10
    assert finding.caveat
    assert "10 %" in finding.message


def test_gate_2_rule_6_an_unstable_primary_metric_is_qualified_at_best() -> None:
    wild = [value * factor for value, factor in zip(FAST, (1, 1.4) * 5, strict=True)]
    judgement = judge_run(view({"off": wild, "on": [2 * value for value in wild[::-1]]}))
    assert judgement.tag is Tag.QUALIFIED
    assert "spreads by" in judgement.tag_reason


def test_an_unstable_secondary_metric_is_said_and_is_no_caveat() -> None:
    second = P50.model_copy(update={"role": Role.SECONDARY})
    assert not seen(normal(20, 0.25, 1), second)["spread"].caveat


def test_gate_2_rule_6_a_trend_over_the_blocks_is_seen() -> None:
    draw = random.Random(2)
    rising = [10 + 0.1 * block + draw.gauss(0, 0.1) for block in range(20)]
    finding = seen(rising)["trend"]
    assert finding.number is not None
    assert finding.number > finding.limit == stability.ONE_PER_CENT
    assert "rose" in finding.message
    assert not finding.caveat


def test_a_trend_of_the_effect_itself_is_a_caveat_though_the_arms_share_theirs() -> None:
    draw = random.Random(4)
    before = [10 + 0.2 * block + draw.gauss(0, 0.02) for block in range(15)]
    alike = [1.1 * value + draw.gauss(0, 0.02) for value in before]
    growing = [value * (1.1 + 0.01 * block) for block, value in enumerate(before)]
    judgement = judge_run(view({"off": before, "on": alike}))
    assert "trend" in codes(judgement.findings)
    assert "trend-of-effect" not in codes(judgement.findings)
    assert "trend-of-effect" in codes(judge_run(view({"off": before, "on": growing})).findings)


def test_gate_2_rule_6_an_outlier_is_named_and_not_left_out() -> None:
    finding = seen([*FAST[:9], 14.0])["outlier"]
    assert "14 ms" in finding.message
    assert "Nothing was left out" in finding.message
    judgement = judge_run(view({"off": FAST, "on": [*SLOW[:9], 40.0]}))
    assert judgement.summaries["balancing=on"]["p50_ms"].max == 40.0


def test_two_speeds_are_seen_as_two_groups() -> None:
    draw = random.Random(6)
    values = [(10 if draw.random() < 0.5 else 11) * draw.gauss(1, 0.005) for _ in range(20)]
    finding = seen(values)["modes"]
    assert finding.caveat
    assert "two groups" in finding.message


def test_neighbours_that_resemble_each_other_are_seen() -> None:
    values = [10 + math.sin(block / 4) for block in range(40)]
    assert "autocorrelation" in seen(values)


def test_a_slow_first_block_points_at_the_warm_up() -> None:
    finding = seen([15.0, *FAST])["warm-up"]
    assert "1 warm-up replicate" in finding.message
    faster = P50.model_copy(update={"direction": Direction.HIGHER})
    assert "warm-up" not in seen([15.0, *FAST], faster)


def test_a_slow_first_value_inside_each_process_is_seen() -> None:
    run = view(
        {"off": FAST, "on": SLOW},
        change=lambda sample: measured(sample, values={"p50_ms": (13.0, 10.0, 10.1, 9.9, 10.0)}),
    )
    found = [f for f in judge_run(run).findings if f.code == "warm-up-inside"]
    assert len(found) == 2
    assert found[0].number == pytest.approx(0.3, abs=0.02)


def test_gate_2_rule_6_a_process_of_two_milliseconds_is_too_short_to_time() -> None:
    run = view({"off": FAST, "on": SLOW}, change=lambda s: replace(s, duration_s=0.002))
    (first, _) = (f for f in judge_run(run).findings if f.code == "too-short")
    assert "2 ms" in first.message
    assert first.limit == stability.SHORTEST_PROCESS_S
    count = config(metrics=[P50.model_copy(update={"unit": "MB"})])
    run = view({"off": FAST, "on": SLOW}, count, change=lambda s: replace(s, duration_s=0.002))
    assert "too-short" not in codes(judge_run(run).findings)


def test_a_coarse_clock_is_seen_by_its_ties() -> None:
    assert "ties" in seen([10, 11, 10, 10, 11, 10, 11, 11, 10, 10])


@pytest.mark.parametrize("count", [10, 20, 30])
def test_quiet_normal_noise_is_left_in_peace(count: int) -> None:
    # Each of six checks may speak up once in 100 series: of 300, 18 on average. More than 38
    # would be a binomial accident of 1 in 100,000.
    remarked = sum(bool(seen(normal(count, 0.02, seed))) for seed in range(300))
    assert remarked <= 38
    caveats = sum(
        any(finding.caveat for finding in seen(normal(count, 0.02, seed)).values())
        for seed in range(300)
    )
    assert caveats <= 15

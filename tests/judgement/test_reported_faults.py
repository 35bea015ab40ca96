"""Faults that people reported of tools like this one; none of them may come back here."""

from __future__ import annotations

import random

import pytest

from benchwright.judgement.compare import compare_runs
from benchwright.judgement.judge import judge_run
from benchwright.judgement.verdict import Decision, Tag
from benchwright.judgement.view import RunView
from benchwright.spec.model import Direction, Metric, Scale
from tests.judgement.views import FAST, P50, SLOW, again, codes, config, judged, view


def heated(seed: int) -> RunView:
    """One command against itself; from the middle on, each process takes 40 % longer."""
    draw = random.Random(seed)

    def course() -> list[float]:
        return [(14 if block >= 5 else 10) * draw.gauss(1, 0.01) for block in range(10)]

    return view({"off": course(), "on": course()})


def test_hyperfine_483_heat_in_the_second_half_picks_no_winner() -> None:
    # 200 comparisons with a true rate of at most 5 % exceed 22 once in 1,000; the limit of 1 %
    # keeps the rate far below.
    wrong = sum(
        judge_run(heated(seed)).verdicts[0].decision in (Decision.BETTER, Decision.WORSE)
        for seed in range(200)
    )
    assert wrong <= 4


def test_asv_752_a_large_but_noisy_change_is_never_called_the_same() -> None:
    draw = random.Random(1)
    words = set()
    for _ in range(100):
        before = [10 * draw.lognormvariate(0, 0.4) for _ in range(10)]
        after = [20 * draw.lognormvariate(0, 0.4) for _ in range(10)]
        judgement = judge_run(view({"off": before, "on": after}))
        said = judgement.verdicts[0]
        words.add(said.decision)
        if said.decision is Decision.INCONCLUSIVE:
            assert said.leans == "worse"
            assert "inconclusive" in codes(judgement.findings)
        assert said.effect is not None
        assert f"ratio {said.effect:.4g}" in said.reasons[0]
    assert words <= {Decision.INCONCLUSIVE, Decision.WORSE}


def test_pytest_speed_5_one_sample_has_no_deviation_and_no_nan() -> None:
    judgement = judge_run(view({"off": [10.0], "on": [9.0]}))
    assert judgement.summaries["balancing=on"]["p50_ms"].spread is None
    assert judgement.verdicts[0].decision is Decision.NO_VERDICT
    assert judgement.tag is Tag.EXPLORATORY


def test_js_framework_benchmark_1749_a_run_compared_with_itself_has_no_nan_per_cent() -> None:
    run = judged(view({"off": FAST, "on": SLOW}))
    for verdict in compare_runs(run, run).verdicts:
        assert verdict.effect == pytest.approx(1.0)
        assert verdict.decision is Decision.EQUIVALENT
        assert "nan" not in " ".join(verdict.reasons).lower()


@pytest.mark.parametrize("value", [0.0, 7.0])
@pytest.mark.parametrize("scale", list(Scale))
def test_criterion_658_identical_samples_do_not_crash(value: float, scale: Scale) -> None:
    one = P50.model_copy(update={"scale": scale})
    judgement = judge_run(view({"off": [value] * 10, "on": [value] * 10}, config(metrics=[one])))
    assert judgement.verdicts[0].decision in (Decision.EQUIVALENT, Decision.NO_VERDICT)


def test_github_action_benchmark_365_throughput_that_rises_is_better() -> None:
    qps = P50.model_copy(update={"name": "p50_ms", "direction": Direction.HIGHER})
    up = judge_run(view({"off": FAST, "on": SLOW}, config(metrics=[qps])))
    down = judge_run(view({"off": SLOW, "on": FAST}, config(metrics=[qps])))
    assert up.verdicts[0].decision is Decision.BETTER
    assert down.verdicts[0].decision is Decision.WORSE
    assert "20 % higher" in up.verdicts[0].reasons[0]


@pytest.mark.parametrize(
    ("direction", "decision"),
    [(Direction.HIGHER, Decision.BETTER), (Direction.LOWER, Decision.WORSE)],
)
def test_github_action_benchmark_365_negative_values_go_the_way_they_go(
    direction: Direction, decision: Decision
) -> None:
    loss = Metric(
        name="margin", unit="dB", direction=direction, scale=Scale.DIFFERENCE, min_effect=0.1
    )
    before = [-5.0, -5.02, -4.98, -5.01, -4.99, -5.0]
    after = [-3.0, -3.02, -2.98, -2.99, -3.01, -3.0]
    run = view(
        {"off": {"margin": before}, "on": {"margin": after}}, config(metrics=[loss], replicates=6)
    )
    said = judge_run(run).verdicts[0]
    assert said.decision is decision
    assert said.effect == pytest.approx(2.0)
    assert "2 dB higher" in said.reasons[0]


def test_a_second_run_of_the_same_experiment_does_not_inherit_the_firsts_word() -> None:
    first = judged(view({"off": FAST, "on": SLOW}))
    second = judge_run(again(view({"off": FAST, "on": FAST[::-1]})), [first])
    assert second.verdicts[0].decision is Decision.EQUIVALENT
    assert second.tag is not Tag.RELIABLE

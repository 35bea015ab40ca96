"""The hypothesis: what it expects, and what became of it."""

from __future__ import annotations

import pytest

from benchwright.judgement.hypothesis import Course, expectations, unknown_names
from benchwright.judgement.judge import judge_run
from benchwright.judgement.verdict import HypothesisVerdict as Outcome
from benchwright.judgement.verdict import Judgement
from benchwright.spec.model import Direction, Metric, Role, Scale
from tests.judgement.views import FAST, P50, SLOW, config, failed, view

QPS = Metric(name="qps", unit="1/s", direction=Direction.HIGHER)
RECALL = Metric(
    name="recall@10",
    direction=Direction.HIGHER,
    scale=Scale.PROPORTION,
    role=Role.GUARDRAIL,
    floor=0.9,
)
METRICS = (P50, QPS, RECALL, P50.model_copy(update={"name": "p50"}))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("p50_ms falls by 20 %", [("p50_ms", Course.BETTER, 0.8)]),
        ("p50_ms falls by at least 20%", [("p50_ms", Course.BETTER, 0.8)]),
        ("numa balancing off lowers p50_ms", [("p50_ms", Course.BETTER, None)]),
        ("p50_ms rises", [("p50_ms", Course.WORSE, None)]),
        ("p50_ms doubles", [("p50_ms", Course.WORSE, 2.0)]),
        ("p50_ms is 3x lower", [("p50_ms", Course.BETTER, 1 / 3)]),
        ("p50_ms halves", [("p50_ms", Course.BETTER, 0.5)]),
        ("qps rises by 10 percent", [("qps", Course.BETTER, 1.1)]),
        ("qps drops", [("qps", Course.WORSE, None)]),
        ("qps improves", [("qps", Course.BETTER, None)]),
        ("p50_ms improves by 5 %", [("p50_ms", Course.BETTER, 0.95)]),
        ("p50_ms stays the same", [("p50_ms", Course.SAME, None)]),
        ("p50_ms does not change", [("p50_ms", Course.SAME, None)]),
        ("p50_ms does not regress", [("p50_ms", Course.NOT_WORSE, None)]),
        (
            "p50_ms falls by 20 % and recall@10 stays the same",
            [("p50_ms", Course.BETTER, 0.8), ("recall@10", Course.SAME, None)],
        ),
        (
            "qps rises by 2x, but p50_ms does not get worse",
            [("qps", Course.BETTER, 2.0), ("p50_ms", Course.NOT_WORSE, None)],
        ),
        ("recall@10 rises by 2 %", [("recall@10", Course.BETTER, 0.02)]),
        ("p50 falls", [("p50", Course.BETTER, None)]),
    ],
)
def test_a_hypothesis_is_read_as_a_person_would(
    text: str, expected: list[tuple[str, Course, float | None]]
) -> None:
    read = expectations(text, METRICS)
    assert [(one.metric.name, one.course) for one in read] == [e[:2] for e in expected]
    assert [one.size for one in read] == [pytest.approx(e[2]) if e[2] else None for e in expected]


def test_without_a_named_metric_the_primary_ones_are_expected_to_be_better() -> None:
    read = expectations("the new index is faster", METRICS)
    assert [one.metric.name for one in read] == ["p50_ms", "qps", "p50"]
    assert not any(one.said for one in read)
    assert expectations("  ", METRICS) == expectations(None, METRICS) == ()


def test_names_that_look_like_metrics_and_are_none_are_found() -> None:
    assert unknown_names("p99_ms and recall@100 fall, p50_ms too", METRICS) == (
        "p99_ms",
        "recall@100",
    )


def judge(text: str | None, before: tuple[float, ...], after: tuple[float, ...]) -> Judgement:
    return judge_run(view({"off": before, "on": after}, config(hypothesis=text)))


@pytest.mark.parametrize(
    ("text", "outcome"),
    [
        ("p50_ms falls", Outcome.PASS),
        ("p50_ms falls by 16 %", Outcome.PASS),
        ("p50_ms falls by 50 %", Outcome.FAIL),
        ("p50_ms rises", Outcome.FAIL),
        ("p50_ms stays the same", Outcome.FAIL),
        ("p50_ms does not regress", Outcome.PASS),
    ],
)
def test_the_verdict_on_the_hypothesis_follows_the_decision(text: str, outcome: Outcome) -> None:
    judgement = judge(text, SLOW, FAST)
    assert judgement.hypothesis is outcome, judgement.hypothesis_reason
    assert judgement.hypothesis_reason.startswith("Expected: p50_ms")


def test_no_hypothesis_has_no_verdict() -> None:
    judgement = judge(None, SLOW, FAST)
    assert judgement.hypothesis is None
    assert judgement.hypothesis_reason


def test_an_inconclusive_decision_leaves_the_hypothesis_open() -> None:
    wild = tuple(value * factor for value, factor in zip(FAST, (0.9, 1.2) * 5, strict=True))
    assert judge("p50_ms falls", wild, FAST[::-1]).hypothesis is Outcome.INCONCLUSIVE


def test_numbers_that_hold_with_something_unexplained_are_partial() -> None:
    run = view({"off": SLOW, "on": FAST}, config(hypothesis="p50_ms falls"), effective=False)
    judgement = judge_run(run)
    assert judgement.hypothesis is Outcome.PARTIAL
    assert "Unexplained:" in judgement.hypothesis_reason


def test_an_unreliable_run_says_nothing_on_the_hypothesis() -> None:
    run = view(
        {"off": SLOW, "on": FAST},
        config(hypothesis="p50_ms falls"),
        change=lambda sample: failed(sample) if sample.order == 3 else sample,
    )
    assert judge_run(run).hypothesis is Outcome.INCONCLUSIVE


def test_with_several_treatments_it_holds_if_one_of_them_shows_it() -> None:
    asked = config(hypothesis="p50_ms falls", treatment=("on", "auto"))
    judgement = judge_run(view({"off": SLOW, "on": SLOW[::-1], "auto": FAST}, asked))
    assert judgement.hypothesis is Outcome.PASS
    assert "balancing=auto" in judgement.hypothesis_reason


def test_a_metric_that_the_hypothesis_names_gets_a_verdict_whatever_its_role() -> None:
    second = Metric(name="peak_mb", role=Role.SECONDARY)
    asked = config(metrics=[P50, second], hypothesis="peak_mb falls")
    judgement = judge_run(
        view({"off": {"p50_ms": FAST, "peak_mb": SLOW}, "on": {"p50_ms": FAST[::-1],
                                                              "peak_mb": FAST}}, asked)
    )  # fmt: skip
    assert [verdict.metric.name for verdict in judgement.verdicts] == ["p50_ms", "peak_mb"]
    assert judgement.hypothesis is Outcome.PASS

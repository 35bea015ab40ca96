"""The hypothesis: what it expects, read from its words, and what became of it.

It is written for people, such as `p50_ms falls by 20 %` or `qps rises and recall@10 stays the
same`. What is understood: the name of a metric, a word for the way it goes, and a size.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from benchwright.judgement import words
from benchwright.judgement.verdict import (
    Decision,
    Finding,
    GuardrailResult,
    HypothesisVerdict,
    Verdict,
)
from benchwright.spec.model import Direction, Metric, Scale


class Course(StrEnum):
    """Which way a metric is expected to go."""

    BETTER = "better"
    WORSE = "worse"
    SAME = "the same"
    NOT_WORSE = "not worse"


@dataclass(frozen=True, slots=True)
class Expectation:
    """What the hypothesis expects of one metric.

    Attributes:
        metric: The metric.
        course: Which way it goes.
        size: The effect expected at least, in the metric's terms as in `Verdict.effect` (a ratio
            such as 0.8, or a difference); None: any that matters.
        said: Whether the text names the metric; else it is a primary metric that it doesn't name.
    """

    metric: Metric
    course: Course
    size: float | None = None
    said: bool = True

    def __str__(self) -> str:
        text = f"{self.metric.name} {self.course}"
        if self.size is None:
            return text
        return f"{text}, {words.change(self.metric, self.size)}"


_DOWN = (
    "fall falls fell drop drops decrease decreases decline declines shrink shrinks lower lowers "
    "less fewer reduce reduces reduced reduction cut cuts halve halves down smaller shorter"
)
_UP = (
    "rise rises rose increase increases grow grows gain gains higher raise raises more double "
    "doubles up larger longer triple triples"
)
_GOOD = "improve improves better faster win wins speed speeds"
_BAD = "worsen worsens worse degrade degrades slower regress regresses suffer suffers"
_SAME = "same unchanged stay stays equal equivalent constant holds hold keep keeps remain remains"
_NEGATION = r"\b(?:not|no|never|without|doesn't|don't|won't|isn't|nor)\b"

_COURSES: tuple[tuple[str, frozenset[str]], ...] = tuple(
    (name, frozenset(text.split()))
    for name, text in (
        ("down", _DOWN),
        ("up", _UP),
        ("good", _GOOD),
        ("bad", _BAD),
        ("same", _SAME),
    )
)

_NUMBER = r"(\d+(?:\.\d+)?(?:e[-+]?\d+)?)"
_PERCENT = re.compile(rf"{_NUMBER}\s*(?:%|per\s?cent\b|percent\b)", re.IGNORECASE)
_TIMES = re.compile(rf"{_NUMBER}\s*(?:x\b|×|times\b|-?fold\b)", re.IGNORECASE)
_BY = re.compile(rf"\bby\s+(?:at\s+least\s+|about\s+|some\s+|~\s*)?{_NUMBER}", re.IGNORECASE)
_FACTORS = {"halve": 2.0, "halves": 2.0, "double": 2.0, "doubles": 2.0, "triple": 3.0}


def named_metrics(text: str, metrics: Sequence[Metric]) -> tuple[Metric, ...]:
    """The metrics that a text names, in the order of the text; whole words only."""
    found = [(place, metric) for metric in metrics if (place := _find(text, metric.name)) >= 0]
    return tuple(metric for _, metric in sorted(found, key=lambda pair: pair[0]))


def unknown_names(text: str, metrics: Sequence[Metric]) -> tuple[str, ...]:
    """Words that look like a metric's name (`p99_ms`, `recall@10`), and are none of these."""
    known = {metric.name for metric in metrics}
    looks = re.findall(r"(?<![\w@.])[A-Za-z][\w.]*(?:_\w+|@\w+)(?![\w@])", text)
    return tuple(dict.fromkeys(word for word in looks if word not in known))


def _find(text: str, name: str) -> int:
    match = re.search(rf"(?<![\w@]){re.escape(name)}(?![\w@])", text)
    return match.start() if match else -1


def expectations(text: str | None, metrics: Sequence[Metric]) -> tuple[Expectation, ...]:
    """What a hypothesis expects.

    Args:
        text: The hypothesis; None or empty for none.
        metrics: The configuration's metrics.

    Returns:
        One for each metric that the text names; where it names none, `better` for each primary
        metric. Empty without a hypothesis.
    """
    if not text or not text.strip():
        return ()
    named = named_metrics(text, metrics)
    if not named:
        primary = (metric for metric in metrics if metric.role == "primary")
        return tuple(Expectation(metric, Course.BETTER, said=False) for metric in primary)
    return tuple(_expect(metric, _clause(text, metric, named)) for metric in named)


def _clause(text: str, metric: Metric, named: Sequence[Metric]) -> str:
    """The part of the text that speaks of a metric: from its name to the next one's clause.

    Words before the first name belong to it (`lower p50_ms by 20 %`). A later name takes the
    words after the last comma, semicolon, `and`, `but` or `while` before it.
    """
    places = [_find(text, other.name) for other in named]
    own = named.index(metric)
    start = 0 if own == 0 else _clause_start(text, places[own - 1], places[own])
    end = len(text) if own + 1 == len(named) else _clause_start(text, places[own], places[own + 1])
    before, after = text[start : places[own]], text[places[own] + len(metric.name) : end]
    return f"{before} {after}"


def _clause_start(text: str, earlier: int, place: int) -> int:
    breaks = list(re.finditer(r"[,;]|\b(?:and|but|while|whereas|with)\b", text[earlier:place]))
    return earlier + breaks[-1].end() if breaks else place


def _expect(metric: Metric, clause: str) -> Expectation:
    """The expectation that a clause states of its metric."""
    tokens = re.findall(r"[a-z']+", clause.lower())
    kind = next(
        (name for token in tokens for name, known in _COURSES if token in known),
        "good",
    )
    negated = re.search(_NEGATION, clause.lower()) is not None
    falls_is_good = metric.direction is Direction.LOWER
    course = {
        "down": Course.BETTER if falls_is_good else Course.WORSE,
        "up": Course.WORSE if falls_is_good else Course.BETTER,
        "good": Course.BETTER,
        "bad": Course.WORSE,
        "same": Course.SAME,
    }[kind]
    if negated or ("change" in tokens and kind == "good" and "no" in tokens):
        # `does not regress` asks for less than `stays the same`; `is not better` is its twin.
        course = Course.NOT_WORSE if course is Course.WORSE else Course.SAME
    if course in (Course.SAME, Course.NOT_WORSE):
        return Expectation(metric, course)
    falls = (course is Course.BETTER) is falls_is_good
    return Expectation(metric, course, _size(metric, clause, tokens, falls))


def _size(metric: Metric, clause: str, tokens: Sequence[str], falls: bool) -> float | None:
    """The size that a clause names, as an effect of the metric: a ratio or a difference."""
    if metric.scale is Scale.RATIO:
        factor = next((_FACTORS[token] for token in tokens if token in _FACTORS), None)
        if match := _TIMES.search(clause):
            factor = float(match.group(1))
        if factor:
            return 1 / factor if falls else factor
        if match := _PERCENT.search(clause):
            share = float(match.group(1)) / 100
            return max(1 - share, 0.0) if falls else 1 + share
        return None
    value: float | None = None
    if match := _PERCENT.search(clause):
        value = float(match.group(1)) / (100 if metric.scale is Scale.PROPORTION else 1)
    elif match := _BY.search(clause):
        value = float(match.group(1))
    if value is None:
        return None
    return -value if falls else value


def judge_hypothesis(
    text: str | None,
    metrics: Sequence[Metric],
    verdicts: Sequence[Verdict],
    guardrails: Sequence[GuardrailResult],
    findings: Sequence[Finding],
) -> tuple[HypothesisVerdict | None, str]:
    """The verdict on the hypothesis, with its reason.

    Where the run has several treatment values, the hypothesis holds if it holds in one of them.
    An unreliable run proves nothing: INCONCLUSIVE. Numbers that hold while something is
    unexplained (a caveat) are PARTIAL.

    Returns:
        None and a sentence where there is no hypothesis.
    """
    expected = expectations(text, metrics)
    if not expected:
        return None, "There is no hypothesis to judge." if not text else (
            "The hypothesis names no metric, and there is no primary one."
        )
    failed = [finding for finding in findings if finding.failure]
    if failed:
        return (
            HypothesisVerdict.INCONCLUSIVE,
            f"A run that failed a gate says nothing on it: {failed[0].message}",
        )
    arms = list(dict.fromkeys(verdict.treatment.arm for verdict in verdicts))
    if not arms:
        return (
            HypothesisVerdict.INCONCLUSIVE,
            "The run has one arm, so nothing was compared.",
        )
    outcomes = [
        _in_arm(
            expected,
            {v.metric.name: v for v in verdicts if v.treatment.arm == arm},
            [result for result in guardrails if result.arm == arm],
        )
        for arm in arms
    ]
    best = min(outcomes, key=lambda outcome: _ORDER.index(outcome[0]))
    caveats = [finding for finding in findings if finding.caveat]
    if best[0] is HypothesisVerdict.PASS and caveats:
        return HypothesisVerdict.PARTIAL, f"{best[1]} Unexplained: {caveats[0].message}"
    return best


_ORDER = (HypothesisVerdict.PASS, HypothesisVerdict.INCONCLUSIVE, HypothesisVerdict.FAIL)
"""What counts first when arms differ: one that holds, then one that may."""


def _in_arm(
    expected: Sequence[Expectation],
    verdicts: dict[str, Verdict],
    guardrails: Sequence[GuardrailResult],
) -> tuple[HypothesisVerdict, str]:
    """What one arm says of the hypothesis."""
    results = [_met(one, verdicts.get(one.metric.name)) for one in expected]
    missed = [reason for met, reason in results if met is False]
    broken = [result.reason for result in guardrails if result.held is False]
    if missed or broken:
        return HypothesisVerdict.FAIL, (missed + broken)[0]
    open_ = [reason for met, reason in results if met is None]
    unsure = [result.reason for result in guardrails if result.held is None]
    if open_ or unsure:
        return HypothesisVerdict.INCONCLUSIVE, (open_ + unsure)[0]
    return HypothesisVerdict.PASS, " ".join(reason for _, reason in results)


def _met(expected: Expectation, verdict: Verdict | None) -> tuple[bool | None, str]:
    """Whether an expectation was met (None: can't be told), with the sentence on it."""
    if verdict is None:
        return None, f"Expected: {expected}; {expected.metric.name} has no verdict."
    said = f"Expected: {expected}; seen: {_seen(verdict)}"
    if verdict.decision is Decision.NO_VERDICT:
        return None, said
    accepted = {
        Course.BETTER: {Decision.BETTER},
        Course.WORSE: {Decision.WORSE},
        Course.SAME: {Decision.EQUIVALENT},
        Course.NOT_WORSE: {Decision.EQUIVALENT, Decision.BETTER},
    }[expected.course]
    if verdict.decision is Decision.INCONCLUSIVE:
        return None, said
    if verdict.decision not in accepted:
        return False, said
    if expected.size is not None and _falls_short(expected, expected.size, verdict):
        return False, f"{said} The whole interval falls short of the size expected."
    return True, said


def _seen(verdict: Verdict) -> str:
    """What became of a metric, in a few words: the verdict beside it has the interval."""
    if verdict.effect is None or verdict.decision is Decision.NO_VERDICT:
        return verdict.reasons[0] if verdict.reasons else f"{verdict.decision}."
    moved = words.change(verdict.metric, verdict.effect)
    return f"{moved} with {verdict.treatment.arm}, {verdict.decision}."


def _falls_short(expected: Expectation, size: float, verdict: Verdict) -> bool:
    """Whether the whole interval lies nearer to no effect than the size expected."""
    falls = (expected.course is Course.BETTER) is (expected.metric.direction is Direction.LOWER)
    end = verdict.interval.low if falls else verdict.interval.high
    if end is None:
        return False
    return end > size if falls else end < size

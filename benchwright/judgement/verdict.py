"""The words of a judgement: verdicts, tags, caveats. Data only; the rules stand beside it."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum

from benchwright.spec.model import Metric


class Decision(StrEnum):
    """What the interval says against the smallest effect that matters (gate 2, rule 3)."""

    BETTER = "better"
    WORSE = "worse"
    EQUIVALENT = "equivalent"
    INCONCLUSIVE = "inconclusive"
    NO_VERDICT = "no verdict"
    """Too few units (gate 2, rule 5), or none that can be compared."""


class Tag(StrEnum):
    """How far a run may be believed."""

    RELIABLE = "RELIABLE"
    QUALIFIED = "QUALIFIED"
    UNRELIABLE = "UNRELIABLE"
    EXPLORATORY = "EXPLORATORY"


class HypothesisVerdict(StrEnum):
    """What became of the hypothesis."""

    PASS = "PASS"
    PARTIAL = "PARTIAL"
    FAIL = "FAIL"
    INCONCLUSIVE = "INCONCLUSIVE"


@dataclass(frozen=True, slots=True)
class Interval:
    """An interval of confidence; None at an end: unknown there."""

    low: float | None
    high: float | None
    level: float = 0.95


@dataclass(frozen=True, slots=True)
class ArmSummary:
    """One arm's units of one metric. None: unknown (too few units), never NaN."""

    arm: str
    n: int
    mean: float | None
    median: float | None
    min: float | None
    max: float | None
    spread: float | None
    """Coefficient of variation for `ratio`, standard deviation otherwise."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """What is known of one metric in one treatment arm against the baseline.

    Attributes:
        metric: The metric.
        baseline, treatment: The two arms' summaries.
        effect: Ratio treatment / baseline, or difference treatment - baseline by the metric's
            scale; None: unknown.
        interval: Of the effect, widened for the family (Holm) where there are several verdicts.
        decision: Read off the interval.
        units: Pairs (or units an arm) that the interval stands on.
        detectable: Smallest effect that this run could have seen with 80 % power, in the
            metric's terms (relative for `ratio`); None: unknown.
        replicates_needed: For the next run to see `min_effect`; None: unknown.
        leans: For an inconclusive one: "better", "worse" or "".
        method: How the interval was made, in a few words.
        reasons: Sentences on why; the first one is the headline.
    """

    metric: Metric
    baseline: ArmSummary
    treatment: ArmSummary
    effect: float | None
    interval: Interval
    decision: Decision
    units: int
    detectable: float | None
    replicates_needed: int | None
    leans: str
    method: str
    reasons: tuple[str, ...] = ()
    win: bool = False
    """Better, and every guardrail of the arm held (gate 2, rule 4)."""


@dataclass(frozen=True, slots=True)
class GuardrailResult:
    """Whether a guardrail held in one treatment arm."""

    metric: Metric
    arm: str
    held: bool | None
    """None: could not be told; a win doesn't count then either."""
    observed: float | None
    limit: str
    reason: str


@dataclass(frozen=True, slots=True)
class Finding:
    """Something a sceptic would say, with its number and its limit.

    Attributes:
        code: Stable short name, such as `spread`, `trend`, `outlier`, `drift`, `unknown-field`.
        message: A sentence.
        number, limit: What was seen and what would have been unremarkable; None where it has none.
        caveat: Whether it keeps the run from being more than QUALIFIED.
        failure: Whether it makes the run UNRELIABLE.
        metric, arm: What it speaks of, where it is one.
        command: For a next step: what to type, exactly.
    """

    code: str
    message: str
    number: float | None = None
    limit: float | None = None
    caveat: bool = False
    failure: bool = False
    metric: str = ""
    arm: str = ""
    command: str = ""


@dataclass(frozen=True, slots=True)
class Judgement:
    """All that is said about one run or one comparison."""

    verdicts: tuple[Verdict, ...]
    guardrails: tuple[GuardrailResult, ...]
    summaries: dict[str, dict[str, ArmSummary]]
    """arm -> metric -> summary, every measured metric."""
    tag: Tag
    tag_reason: str
    hypothesis: HypothesisVerdict | None
    hypothesis_reason: str
    findings: tuple[Finding, ...] = field(default=())

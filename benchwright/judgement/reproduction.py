"""Whether an earlier run said the same (the tag RELIABLE, and its control).

A reproduction is the latest earlier run that may be cited, has the same configuration hash (gate
1, rule 1) and a fingerprint that agrees. It is the latest one, not the best: picking among several
would find an agreement sooner or later.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from benchwright.identity.fingerprint import compare_fingerprints
from benchwright.judgement import words
from benchwright.judgement.gate2 import IDENTIFYING
from benchwright.judgement.verdict import ArmSummary, Tag, Verdict
from benchwright.judgement.view import RunView
from benchwright.spec.arms import expand_arms
from benchwright.spec.model import Metric, Role, Scale

CITABLE = frozenset({Tag.RELIABLE, Tag.QUALIFIED})
"""Only these may be cited, or serve as a baseline."""

CONTROL_FACTOR = 2.0
"""A control outside its tolerance but within this many times of it is a caveat; beyond, the run
stands on another ground than the one before, and is UNRELIABLE."""


class Agreement(StrEnum):
    """How two runs of the same configuration agree."""

    REPRODUCED = "reproduced"
    CONTROL_OFF = "control off"
    CONTROL_LOST = "control lost"
    TREATMENT_OFF = "treatment off"
    OTHER_DECISION = "other decision"


@dataclass(frozen=True, slots=True)
class Reproduction:
    """What an earlier run with the same configuration says of this one.

    Attributes:
        run_id: The earlier run.
        agreement: One word.
        reason: A sentence with the figures.
        number, limit: The largest deviation in tolerances, and what is allowed.
    """

    run_id: str
    agreement: Agreement
    reason: str
    number: float
    limit: float = 1.0


def candidates(view: RunView, priors: Sequence[RunView]) -> list[RunView]:
    """Earlier runs that may be cited and have the same configuration hash, the latest first."""
    found = [
        prior
        for prior in priors
        if prior.run_id != view.run_id
        and prior.tag in CITABLE
        and prior.judgement is not None
        and prior.config_hash == view.config_hash
        and prior.created <= view.created
    ]
    return sorted(found, key=lambda prior: prior.created, reverse=True)


def other_ground(view: RunView, prior: RunView) -> tuple[str, ...]:
    """Fields in which an earlier run's fingerprint differs, or can't be said to agree."""
    grounds = compare_fingerprints(view.fingerprint, prior.fingerprint)
    blind = [name for name in grounds.unknowns if name in IDENTIFYING]
    return (*(row.field for row in grounds.differences), *blind)


def confirming(view: RunView, priors: Sequence[RunView]) -> RunView | None:
    """The earlier run that this one is held against: the latest candidate on the same ground."""
    return next((p for p in candidates(view, priors) if not other_ground(view, p)), None)


def unconfirmed(view: RunView, priors: Sequence[RunView]) -> str:
    """Why the latest run with the same configuration can't confirm this one.

    Returns:
        The end of a sentence; empty where there is no such run.
    """
    for prior in candidates(view, priors):
        fields = other_ground(view, prior)
        if fields:
            return (
                f"{prior.run_id} has the same configuration and can't confirm it, for "
                f"{words.listed(fields)} {'is' if len(fields) == 1 else 'are'} not the same."
            )
    return ""


def reproduction(
    view: RunView,
    summaries: dict[str, dict[str, ArmSummary]],
    verdicts: Sequence[Verdict],
    priors: Sequence[RunView],
) -> Reproduction | None:
    """Compare a run with the latest earlier one that can confirm it.

    Args:
        view: The run.
        summaries: Its arms' metrics.
        verdicts: Its decisions.
        priors: Earlier runs, in any order.

    Returns:
        What the earlier run says; None where there is none.
    """
    earlier = confirming(view, priors)
    if earlier is None or earlier.judgement is None:
        return None
    primary = [metric for metric in view.config.metrics if metric.role is Role.PRIMARY]
    arms = expand_arms(view.config)
    deviations = {
        (arm.is_baseline, arm.name, metric.name): _deviation(
            metric,
            summaries.get(arm.name, {}).get(metric.name),
            earlier.judgement.summaries.get(arm.name, {}).get(metric.name),
        )
        for arm in arms
        for metric in primary
    }
    controls = {key[1:]: off for key, off in deviations.items() if key[0]}
    treatments = {key[1:]: off for key, off in deviations.items() if not key[0]}
    effects = _effects(verdicts, earlier.judgement.verdicts)
    worst_control = max(controls.values(), default=0.0)
    others = {**treatments, **effects}
    worst_other = max(others.values(), default=0.0)
    changed = _changed_decisions(verdicts, earlier.judgement.verdicts)

    def say(agreement: Agreement, reason: str, number: float, limit: float = 1.0) -> Reproduction:
        shown = number if math.isfinite(number) else limit + 1
        return Reproduction(earlier.run_id, agreement, reason, shown, limit)

    if worst_control > CONTROL_FACTOR:
        return say(
            Agreement.CONTROL_LOST,
            f"The control {_name(controls)} lies {_times(worst_control)} its tolerance away from "
            f"{earlier.run_id}, more than {words.number(CONTROL_FACTOR)} times: the ground moved.",
            worst_control,
            CONTROL_FACTOR,
        )
    if changed:
        return say(
            Agreement.OTHER_DECISION,
            f"{earlier.run_id} with the same configuration decided otherwise: "
            f"{words.listed(changed)}.",
            max(worst_control, worst_other),
        )
    if worst_control > 1:
        return say(
            Agreement.CONTROL_OFF,
            f"The control {_name(controls)} lies {_times(worst_control)} its tolerance away from "
            f"{earlier.run_id}, within {words.number(CONTROL_FACTOR)} times of it.",
            worst_control,
        )
    if worst_other > 1:
        return say(
            Agreement.TREATMENT_OFF,
            f"{_name(others)} lies {_times(worst_other)} its tolerance away from "
            f"{earlier.run_id}, so that run is not reproduced.",
            worst_other,
        )
    return say(
        Agreement.REPRODUCED,
        f"{earlier.run_id} with the same configuration gave the same within the tolerance of each "
        "primary metric, and the same decision.",
        max(worst_control, worst_other),
    )


def _times(deviation: float) -> str:
    return f"{words.number(deviation, 2)} times" if math.isfinite(deviation) else "immeasurably"


def _name(deviations: dict[tuple[str, str], float]) -> str:
    """What deviates most: `p50_ms in only`."""
    arm, metric = max(deviations, key=lambda key: deviations[key])
    return f"{metric} in {arm}"


def _deviation(metric: Metric, now: ArmSummary | None, then: ArmSummary | None) -> float:
    """Distance of two medians in tolerances; infinite where one of them is missing."""
    if now is None or then is None or now.median is None or then.median is None:
        return math.inf
    return _distance(metric, now.median, then.median)


def _distance(metric: Metric, now: float, then: float) -> float:
    """Distance of two values in tolerances: relative to the earlier one for a ratio."""
    if now == then:
        return 0.0
    scale = abs(then) if metric.scale is Scale.RATIO else 1.0
    return abs(now - then) / scale / metric.tolerance if scale else math.inf


def _effects(now: Sequence[Verdict], then: Sequence[Verdict]) -> dict[tuple[str, str], float]:
    """Distance of the effects in tolerances, by arm and metric."""
    before = {(one.treatment.arm, one.metric.name): one for one in then}
    found = {}
    for verdict in now:
        key = verdict.treatment.arm, verdict.metric.name
        earlier = before.get(key)
        if earlier is not None and verdict.effect is not None and earlier.effect is not None:
            name = f"the effect of {key[0]}", key[1]
            found[name] = _distance(verdict.metric, verdict.effect, earlier.effect)
    return found


def _changed_decisions(now: Sequence[Verdict], then: Sequence[Verdict]) -> list[str]:
    """Decisions that are not those of the earlier run."""
    before = {(one.treatment.arm, one.metric.name): one.decision for one in then}
    return [
        f"{verdict.metric.name} of {verdict.treatment.arm} is {verdict.decision}, was {earlier}"
        for verdict in now
        if (earlier := before.get((verdict.treatment.arm, verdict.metric.name)))
        is not verdict.decision
    ]

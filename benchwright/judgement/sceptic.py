"""The sceptic's reading of a finished run, from its record alone.

It says what was steady and what wasn't with number and limit, whether the effect is plausible
against the runs before it, and what to do next with the exact command. A result that is too good
gets more scrutiny, not less.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from benchwright.judgement import words
from benchwright.judgement.decide import MIN_UNITS
from benchwright.judgement.gate2 import IDENTIFYING
from benchwright.judgement.judge import by_weight, judge_run
from benchwright.judgement.kin import of_one_kind
from benchwright.judgement.reclassify import LOWER
from benchwright.judgement.reproduction import CITABLE
from benchwright.judgement.stability import SPREAD_LIMIT
from benchwright.judgement.verdict import Decision, Finding, Judgement, Tag, Verdict
from benchwright.judgement.view import RunView
from benchwright.spec.arms import expand_arms
from benchwright.spec.model import Direction, Metric, Role, Scale

HUGE_RATIO = 10.0
"""From a factor of ten on, the first guess is that one arm did less work, or none."""

SURPRISE_FACTOR = 2.0
"""An effect this many times the largest one seen before is a surprise."""

_UNSTEADY = frozenset({"autocorrelation", "modes", "outlier", "spread", "trend"})
"""Findings of a primary metric that a quieter machine would mend."""


def analyze(view: RunView, priors: Sequence[RunView] = (), rerun: str = "") -> tuple[Finding, ...]:
    """What a sceptic says of a run.

    Args:
        view: The run.
        priors: Earlier runs, of any kind and in any order.
        rerun: The command that runs it again; left out: its record's configuration is named.

    Returns:
        Findings with failures first, then caveats, then remarks; the next steps (`next`) last.
    """
    before = [prior for prior in priors if prior.created < view.created]
    judgement = judge_run(view, before)
    suspicions = plausibility(view, judgement, before)
    findings = by_weight(
        [
            *judgement.findings,
            *_steadiness(view, judgement),
            *_reach_of_the_run(judgement),
            *_tag_of_today(view, judgement),
            *suspicions,
            *(() if suspicions else _nothing_wrong(judgement)),
        ]
    )
    command = rerun or f"benchwright run $BENCHMARK_HOME/runs/{view.run_id}/config.yaml"
    kin = [prior for prior in before if of_one_kind(view.config, prior.config)]
    return (*findings, *next_steps(view, judgement, findings, command, kin))


def _tag_of_today(view: RunView, judgement: Judgement) -> Iterable[Finding]:
    """Whether the tag still stands: what it stood on may have been lowered since."""
    if view.tag is not None and judgement.tag in LOWER[view.tag]:
        yield Finding(
            "tag-of-today",
            f"It is {view.tag}, and with what is known today it would be {judgement.tag}. "
            f"{judgement.tag_reason}",
            caveat=True,
        )


def _steadiness(view: RunView, judgement: Judgement) -> Iterable[Finding]:
    """The spread of each metric in each arm, where it is within its limit."""
    metrics = {metric.name: metric for metric in view.config.metrics}
    for arm, of_metric in judgement.summaries.items():
        for name, summary in of_metric.items():
            metric = metrics.get(name)
            if metric is None or metric.scale is not Scale.RATIO or summary.spread is None:
                continue
            if summary.spread <= SPREAD_LIMIT:
                yield Finding(
                    "steady",
                    f"{name} in {arm} spreads by {words.percent(summary.spread)} over "
                    f"{summary.n} units; up to {words.percent(SPREAD_LIMIT)} is steady.",
                    number=summary.spread,
                    limit=SPREAD_LIMIT,
                    metric=name,
                    arm=arm,
                )


def _reach_of_the_run(judgement: Judgement) -> Iterable[Finding]:
    """The smallest effect that each verdict could have seen."""
    for verdict in judgement.verdicts:
        if verdict.detectable is None:
            continue
        metric = verdict.metric
        yield Finding(
            "detectable",
            f"On {metric.name} of {verdict.treatment.arm} the run could tell a change of "
            f"{words.size(metric, verdict.detectable)} from none (80 % power); "
            f"{words.size(metric, metric.min_effect)} is the smallest that matters.",
            number=verdict.detectable,
            limit=metric.min_effect,
            metric=metric.name,
            arm=verdict.treatment.arm,
        )


def plausibility(
    view: RunView, judgement: Judgement, priors: Sequence[RunView]
) -> tuple[Finding, ...]:
    """Whether the effects are plausible against the runs before.

    Three questions: is it so large that an arm may have done less work; is it far larger than
    any effect that earlier runs of the same kind saw; and does the win come from a baseline that
    is worse than it used to be, rather than from a treatment that is better.
    """
    kin = [
        prior
        for prior in priors
        if prior.tag in CITABLE
        and prior.judgement is not None
        and of_one_kind(view.config, prior.config)
    ]
    found: list[Finding] = []
    for verdict in judgement.verdicts:
        if verdict.decision not in (Decision.BETTER, Decision.WORSE):
            continue
        found += _huge(verdict)
        found += _surprising(verdict, kin)
        if verdict.decision is Decision.BETTER:
            found += _weak_baseline(view, verdict, kin)
    return tuple(found)


def _strength(verdict: Verdict) -> float | None:
    """The size of an effect whichever way it goes: |log ratio|, or |difference|."""
    if verdict.effect is None:
        return None
    if verdict.metric.scale is Scale.RATIO:
        return abs(math.log(verdict.effect)) if verdict.effect > 0 else None
    return abs(verdict.effect)


def _huge(verdict: Verdict) -> Iterable[Finding]:
    strength = _strength(verdict)
    if verdict.metric.scale is not Scale.RATIO or strength is None:
        return
    factor = math.exp(min(strength, 700.0))
    if factor >= HUGE_RATIO:
        yield Finding(
            "too-good",
            f"{verdict.metric.name} of {verdict.treatment.arm} differs by a factor of "
            f"{words.number(factor, 3)}; from {words.number(HUGE_RATIO)} on, look first whether "
            "both arms did the same work (count it, compare the outputs).",
            number=factor,
            limit=HUGE_RATIO,
            metric=verdict.metric.name,
            arm=verdict.treatment.arm,
        )


def _surprising(verdict: Verdict, kin: Sequence[RunView]) -> Iterable[Finding]:
    earlier = [
        strength
        for prior in kin
        if prior.judgement is not None
        for one in prior.judgement.verdicts
        if one.metric.name == verdict.metric.name and one.metric.scale is verdict.metric.scale
        if (strength := _strength(one)) is not None
    ]
    strength, largest = _strength(verdict), max(earlier, default=None)
    if strength is None or not largest:
        return
    ratio = strength / largest
    if SURPRISE_FACTOR < ratio < math.inf:
        yield Finding(
            "surprising",
            f"The effect on {verdict.metric.name} of {verdict.treatment.arm} is "
            f"{words.number(ratio, 2)} times the largest that {words.count(len(earlier), 'effect')}"
            f" of earlier runs had (limit {words.number(SURPRISE_FACTOR)} times): find out what "
            "makes it so before it is believed.",
            number=ratio,
            limit=SURPRISE_FACTOR,
            metric=verdict.metric.name,
            arm=verdict.treatment.arm,
        )


def _weak_baseline(view: RunView, verdict: Verdict, kin: Sequence[RunView]) -> Iterable[Finding]:
    """A win over a baseline that is worse than the same baseline was before."""
    metric, now = verdict.metric, verdict.baseline.median
    mine = expand_arms(view.config)[0].params
    before = [
        (prior, summary.median)
        for prior in kin
        if prior.judgement is not None and _same_machine(view, prior)
        for arm in expand_arms(prior.config)
        if dict(arm.params) == dict(mine)
        if (summary := prior.judgement.summaries.get(arm.name, {}).get(metric.name)) is not None
        and summary.median is not None
    ]
    if now is None or not before:
        return
    prior, then = max(before, key=lambda pair: pair[0].created)
    loss = _loss(metric, now, then)
    if metric.tolerance < loss < math.inf:
        yield Finding(
            "weak-baseline",
            f"The baseline's {metric.name}, {words.amount(metric, now)}, is worse than in "
            f"{prior.run_id} ({words.amount(metric, then)}) by {words.size(metric, loss)}, more "
            f"than its tolerance of {words.size(metric, metric.tolerance)}: part of the win may "
            "be the baseline's loss.",
            number=loss,
            limit=metric.tolerance,
            metric=metric.name,
            arm=verdict.baseline.arm,
        )


def _same_machine(view: RunView, prior: RunView) -> bool:
    """Whether both ran on what is known to be one kind of machine; the code may differ."""
    mine, theirs = view.fingerprint.fields, prior.fingerprint.fields
    fields = [name for name in IDENTIFYING if not name.startswith("code.")]
    return all(mine.get(name) == theirs.get(name) for name in fields)


def _loss(metric: Metric, now: float, then: float) -> float:
    """How much worse a value is than an earlier one, in the metric's terms."""
    worse = now - then if metric.direction is Direction.LOWER else then - now
    if metric.scale is not Scale.RATIO:
        return worse
    return worse / abs(then) if then else math.inf


def _nothing_wrong(judgement: Judgement) -> Iterable[Finding]:
    if not any(finding.failure or finding.caveat for finding in judgement.findings):
        yield Finding(
            "nothing-found",
            "No failure and no caveat was found by the checks that were made: gates 1 and 2, "
            "spread, trend, outliers, modes, autocorrelation, warm-up and timing length.",
        )


def next_steps(
    view: RunView,
    judgement: Judgement,
    findings: Sequence[Finding],
    command: str,
    earlier: Sequence[RunView] = (),
) -> tuple[Finding, ...]:
    """What to do next, each with its command; the most useful first.

    Args:
        view: The run.
        judgement: What was said of it.
        findings: All that the sceptic found.
        command: The command that runs it again.
        earlier: Runs of its kind, the newest last.
    """
    codes = {finding.code for finding in findings}
    steps: list[tuple[str, str]] = []
    if "drift" in codes or "treatment-never-ran" in codes:
        steps.append(
            (
                "Find out why the system under test didn't use the declared values, then run it "
                "again",
                command,
            )
        )
    if codes & {"replicate-failed", "guard-ended", "work-skipped"}:
        steps.append(
            ("Read the logs of the failed replicates", f"benchwright status {view.run_id}")
        )
    if "code-evidence" in codes:
        steps.append(
            (
                "Find out why the changed code ran in the baseline, or not in the treatment, then "
                "run it again",
                command,
            )
        )
    primary = {metric.name for metric in view.config.metrics if metric.role is Role.PRIMARY}
    shaky = {finding.code for finding in findings if finding.metric in primary} & _UNSTEADY
    if shaky:
        steps.append(("See what disturbs the machine", "benchwright doctor"))
    if codes & {"too-good", "surprising", "weak-baseline"}:
        steps.append(
            (
                "Compare what both arms put out, and count the work that each did, then run it "
                "again",
                command,
            )
        )
    replicates = view.config.replication.replicates
    broken = any(finding.failure for finding in findings)
    wanted = None if broken else _replicates_wanted(judgement, replicates)
    if wanted is not None:
        steps.append(
            ("Run it with enough replicates to decide", f"{command} --replicates {wanted}")
        )
    elif not broken and any(v.decision is Decision.INCONCLUSIVE for v in judgement.verdicts):
        steps.append(
            (
                "No practicable number of replicates decides this with the spread seen: quiet the "
                "machine, or measure longer in each replicate",
                "benchwright doctor",
            )
        )
    if judgement.tag is Tag.QUALIFIED and not (shaky & {"spread", "modes"}):
        steps.append(("Run it once more, unchanged, to see whether it reproduces", command))
    if len(judgement.summaries) < 2 and "no-treatment" not in codes:
        other = next((run.run_id for run in reversed(earlier) if run.tag in CITABLE), "EARLIER")
        steps.append(
            (
                "Compare it with an earlier run of the same kind",
                f"benchwright compare {other} {view.run_id}",
            )
        )
    if broken and not any(line == command for _, line in steps):
        steps.append(("Mend what failed, then run it again", command))
    if not steps:
        again = f"{command} --because 'its answer is known'"
        steps.append(("Nothing is open. To run it once more all the same", again))
    return tuple(Finding("next", purpose, command=line) for purpose, line in dict.fromkeys(steps))


def _replicates_wanted(judgement: Judgement, now: int) -> int | None:
    """Replicates that would decide what is open; None where nothing is, or no number would."""
    wanted = 0
    for verdict in judgement.verdicts:
        if verdict.metric.role is not Role.PRIMARY:
            continue
        if verdict.decision is Decision.NO_VERDICT and verdict.units < MIN_UNITS:
            wanted = max(wanted, verdict.replicates_needed or MIN_UNITS)
        elif verdict.decision is Decision.INCONCLUSIVE and verdict.replicates_needed is not None:
            wanted = max(wanted, verdict.replicates_needed)
    if not wanted:
        return None
    # An effect at the edge stays undecided with the number that was planned for none there.
    return max(wanted, now + 1, MIN_UNITS)

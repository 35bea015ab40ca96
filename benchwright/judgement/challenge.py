"""Challenges to a plan: what a sceptic would ask before a second of machine time is spent.

Each is an argument with its reason. A person overrides one with `--because`, which is recorded
and shown; only the rules of gate 1 can't be overridden.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from benchwright.identity.fingerprint import Fingerprint, compare_fingerprints
from benchwright.judgement import gate1, words
from benchwright.judgement.decide import Contrast, contrast, reach
from benchwright.judgement.detectable import units_needed
from benchwright.judgement.gate2 import is_evaluation
from benchwright.judgement.hypothesis import Expectation, expectations, named_metrics, unknown_names
from benchwright.judgement.kin import of_one_kind
from benchwright.judgement.reproduction import CITABLE
from benchwright.judgement.statistics import deviation, mean
from benchwright.judgement.tags import MORE_THAN_ONE_TREATMENT
from benchwright.judgement.units import UnitKind, units_of
from benchwright.judgement.verdict import Tag
from benchwright.judgement.view import RunView
from benchwright.spec.arms import expand_arms
from benchwright.spec.graph import is_link
from benchwright.spec.manifest import Manifest
from benchwright.spec.model import BenchmarkConfig, Metric, Role, Scale, Stage, StageKind
from benchwright.spec.values import as_text

RATE_WORDS = ("/s", "per second", "ops", "qps", "rps", "tok/s", "throughput", "rate")
TIME_UNITS = frozenset({"s", "ms", "us", "µs", "ns", "min", "h"})
SPEED_WORDS = ("latency", "_ms", "_us", "_ns", "time", "duration", "throughput", "qps", "rps")


@dataclass(frozen=True, slots=True)
class Challenge:
    """An argument against a plan.

    Attributes:
        code: Stable short name, by which an override is recorded.
        argument: What is wrong with the plan, as a sentence.
        reason: Why that matters, as a sentence.
        hint: What to change.
    """

    code: str
    argument: str
    reason: str
    hint: str


def challenge(
    config: BenchmarkConfig,
    manifest: Manifest,
    stages: Sequence[Stage],
    priors: Sequence[RunView],
    fingerprint: Fingerprint | None = None,
) -> tuple[Challenge, ...]:
    """All that a sceptic has to say of a plan.

    Args:
        config: The plan.
        manifest: What its recipe and domain ask for.
        stages: Its graph, as its domain made it.
        priors: Earlier runs, of any kind and in any order.
        fingerprint: What it would run on; an earlier run on something else answers nothing.
            None: taken to be the same.
    """
    found: list[Challenge] = []
    found += _more_than_one_treatment(config, priors)
    found += _treatment_equals_baseline(config)
    found += _evaluation_as_treatment(config)
    found += _hypothesis_not_measured(config, stages)
    found += _no_guardrail(config)
    found += _already_answered(config, priors, fingerprint)
    found += _too_few_replicates(config, priors)
    return tuple(found)


def _more_than_one_treatment(config: BenchmarkConfig, priors: Sequence[RunView]) -> list[Challenge]:
    """More than one thing changed against the run that this one will be held against.

    A run with arms of its own has its baseline in it, and changes that are justified touch both
    arms alike. A run with one arm is held against the latest RELIABLE one, where every change
    counts, justified or not.
    """
    latest = gate1.latest_reliable(config, priors)
    if latest is None:
        return []
    has_arms = config.treatment_variable is not None
    plain = config if has_arms else config.model_copy(update={"justified": {}})
    changed = [row.field for row in gate1.unjustified(plain, Manifest(), latest)]
    before, now = latest.config.flat_params, config.flat_params
    changed += [name for name in now if name not in before and name != config.treatment_variable]
    treatments = ([config.treatment_variable] if config.treatment_variable else []) + changed
    if len(treatments) < 2:
        return []
    return [
        Challenge(
            MORE_THAN_ONE_TREATMENT,
            f"{words.listed(treatments)} change at once against the latest RELIABLE run "
            f"{latest.run_id}.",
            "If the result moves, nothing says which of them moved it.",
            "Change one and keep the others; or give the reason for each of the others under "
            "`justified`, in an experiment that has the baseline as an arm.",
        )
    ]


def _treatment_equals_baseline(config: BenchmarkConfig) -> list[Challenge]:
    variable = config.treatment_variable
    if variable is None or variable not in config.flat_params:
        return []
    baseline = as_text(config.flat_params[variable])
    treatments = _treatments(config)
    if not treatments:
        return [
            Challenge(
                "no-treatment",
                f"{variable} is the treatment, but `treatment_values` has no value for it.",
                "With the baseline alone there is nothing to compare.",
                f"Add `treatment_values: [VALUE]` to the baseline {baseline}.",
            )
        ]
    repeated = sorted({text for text in treatments if treatments.count(text) > 1})
    if baseline not in treatments and not repeated:
        return []
    same = baseline if baseline in treatments else repeated[0]
    other = "the baseline's own" if baseline in treatments else "named twice"
    return [
        Challenge(
            "treatment-equals-baseline",
            f"The treatment {variable}: {same} is {other}.",
            "Both arms would be one and the same: any difference found would be a false one.",
            f"Take {same} out of `treatment_values`, or change the baseline in `params`.",
        )
    ]


def _treatments(config: BenchmarkConfig) -> list[str]:
    """The treatment's values as text."""
    return [as_text(arm.value) for arm in expand_arms(config)[1:]]


def _evaluation_as_treatment(config: BenchmarkConfig) -> list[Challenge]:
    if not is_evaluation(config.treatment_variable):
        return []
    return [
        Challenge(
            "evaluation-as-treatment",
            f"The treatment {config.treatment_variable} changes what the score is a score of.",
            "Scores from different evaluation suites, versions or evaluators are never compared, "
            "so the run will be UNRELIABLE.",
            "Make one experiment for each evaluation.",
        )
    ]


def _hypothesis_not_measured(config: BenchmarkConfig, stages: Sequence[Stage]) -> list[Challenge]:
    text = config.hypothesis or ""
    if not text.strip():
        return []
    measured = _given(config, stages)
    wanted = [metric.name for metric in named_metrics(text, config.metrics)]
    missing = [name for name in wanted if measured and name not in measured]
    missing += [name for name in unknown_names(text, config.metrics) if name not in measured]
    missing = [name for name in missing if name not in config.flat_params]
    known = words.listed(measured or [metric.name for metric in config.metrics]) or "none"
    if missing:
        return [
            Challenge(
                "unmeasured-hypothesis",
                f"The hypothesis speaks of {words.listed(missing)}, which no measure stage gives.",
                "It could be neither confirmed nor refuted.",
                f"Name a metric that is measured ({known}), or measure it.",
            )
        ]
    if not wanted:
        return [
            Challenge(
                "unmeasured-hypothesis",
                f"The hypothesis “{text.strip()}” names no metric.",
                "What would count as confirmed is then decided after the result is seen.",
                f"Name one ({known}), the way it goes and how far: `{_example(config)}`.",
            )
        ]
    return []


def _given(config: BenchmarkConfig, stages: Sequence[Stage]) -> list[str]:
    """The metrics that the measure stages give; empty where one of them leaves it open."""
    names: list[str] = []
    for stage in stages:
        if stage.kind is not StageKind.MEASURE or is_link(stage, stages):
            continue
        if stage.metrics_from is None or not stage.metrics_from.fields:
            return [metric.name for metric in config.metrics]
        names += stage.metrics_from.fields
    return names


def _example(config: BenchmarkConfig) -> str:
    metric = next((m for m in config.metrics if m.role is Role.PRIMARY), None)
    if metric is None:
        return "p50_ms falls by 20 %"
    verb = "falls" if metric.direction == "lower" else "rises"
    return f"{metric.name} {verb} by {words.size(metric, max(10 * metric.min_effect, 0.05))}"


def is_speed(metric: Metric) -> bool:
    """Whether a metric is a time or a rate, by its unit or, without one, by its name."""
    unit, name = metric.unit.lower(), metric.name.lower()
    if unit:
        return unit in TIME_UNITS or any(word in unit for word in RATE_WORDS)
    return any(word in name for word in SPEED_WORDS)


def _no_guardrail(config: BenchmarkConfig) -> list[Challenge]:
    if not (config.hypothesis or "").strip() or config.treatment_variable is None:
        return []
    if any(metric.role is Role.GUARDRAIL for metric in config.metrics):
        return []
    claims = [one.metric for one in expectations(config.hypothesis, config.metrics)]
    fast = [metric.name for metric in claims if is_speed(metric)]
    # A second metric that is no speed, named in the hypothesis, guards in its own way.
    if not fast or len(fast) < len(claims):
        return []
    return [
        Challenge(
            "no-guardrail",
            f"The hypothesis claims a speed ({words.listed(fast)}), and no metric guards what it "
            "could cost.",
            "The quickest way to be faster is to do less, or to do it wrong.",
            "Add a metric with `role: guardrail` and a `floor` or `max_regression`: recall, "
            "accuracy, an error count, memory.",
        )
    ]


def _already_answered(
    config: BenchmarkConfig, priors: Sequence[RunView], fingerprint: Fingerprint | None
) -> list[Challenge]:
    for prior in sorted(priors, key=lambda one: one.created, reverse=True):
        if prior.tag is not Tag.RELIABLE or not _asks_the_same(config, prior.config):
            continue
        if fingerprint is not None and (
            compare_fingerprints(fingerprint, prior.fingerprint).differences
        ):
            continue
        verdicts = prior.judgement.verdicts if prior.judgement else ()
        answer = words.listed([f"{v.metric.name} {v.decision}" for v in verdicts])
        return [
            Challenge(
                "already-answered",
                f"{prior.run_id} is RELIABLE and asked the same"
                + (f": {answer}." if answer else "."),
                "It was run twice with the same outcome; a third time adds little.",
                f"Read it: benchwright status {prior.run_id}",
            )
        ]
    return []


def _asks_the_same(config: BenchmarkConfig, earlier: BenchmarkConfig) -> bool:
    """Whether an earlier experiment answers this one: it has its parameters and treatments.

    Replicates, budgets and words don't change the question.
    """
    asked, answered = set(_treatments(config)), set(_treatments(earlier))
    return (
        of_one_kind(config, earlier)
        and config.treatment_variable == earlier.treatment_variable
        and asked <= answered
        and _texts(config) == _texts(earlier)
        and config.stages == earlier.stages
        and {m.name for m in config.metrics} <= {m.name for m in earlier.metrics}
    )


def _texts(config: BenchmarkConfig) -> dict[str, str]:
    return {name: as_text(value) for name, value in config.flat_params.items()}


def _too_few_replicates(config: BenchmarkConfig, priors: Sequence[RunView]) -> list[Challenge]:
    """Too few replicates for the effect looked for, given the spread seen before.

    Looked for is the size that the hypothesis names; else what the earlier run saw, or the
    smallest effect that matters where that is larger.
    """
    if config.treatment_variable is None:
        return []
    earlier = _latest_like(config, priors)
    if earlier is None:
        return []
    sizes = {one.metric.name: one for one in expectations(config.hypothesis, config.metrics)}
    planned = config.replication.replicates
    for metric in config.metrics:
        if metric.role is not Role.PRIMARY:
            continue
        seen = _seen(metric, config, earlier)
        if seen is None:
            continue
        spread, effect = seen
        target = _target(metric, sizes.get(metric.name), effect)
        needed = units_needed(spread, target)
        if needed is not None and needed <= planned:
            continue
        goal = words.size(metric, math.expm1(target) if metric.scale is Scale.RATIO else target)
        enough = f"{needed}" if needed is not None else "more than anyone runs"
        return [
            Challenge(
                "too-few-replicates",
                f"With the spread that {earlier.run_id} saw, {planned} replicates can't tell a "
                f"change of {goal} in {metric.name} from none (80 % power): it takes {enough}.",
                "The run would most likely end without a decision.",
                f"--replicates {needed}" if needed is not None else "Quiet the machine first.",
            )
        ]
    return []


def _latest_like(config: BenchmarkConfig, priors: Sequence[RunView]) -> RunView | None:
    """The latest citable run of the same kind whose primary metrics are these."""
    names = {metric.name for metric in config.metrics if metric.role is Role.PRIMARY}
    like = [
        prior
        for prior in priors
        if prior.tag in CITABLE
        and of_one_kind(config, prior.config)
        and names & {metric.name for metric in prior.config.metrics}
    ]
    return max(like, key=lambda prior: prior.created, default=None)


def _seen(metric: Metric, config: BenchmarkConfig, earlier: RunView) -> tuple[float, float] | None:
    """Standard deviation between pairs on the working scale, and the effect, as seen before.

    Returns:
        None where the units aren't replicates (items), or there is no spread to go by.
    """
    seeds = earlier.config.replication.seeds_as_replicates
    arms = [
        units_of(earlier.samples, arm.name, metric.name, seeds=seeds)
        for arm in expand_arms(earlier.config)
    ]
    if arms[0].kind is UnitKind.ITEM:
        return None
    same = earlier.config.treatment_variable == config.treatment_variable
    contrasts: list[Contrast] = [contrast(metric, arms[0], other) for other in arms[1:]]
    estimates = [one.estimate for one in contrasts if one.estimate and not one.estimate.constant]
    if estimates:
        widest = max(estimates, key=lambda one: one.spread)
        effect = min(abs(one.observed) for one in estimates) if same else 0.0
        return widest.spread, effect
    values = arms[0].values
    if len(values) < 2 or deviation(values) == 0:
        return None
    spread = deviation(values) / (mean(values) if metric.scale is Scale.RATIO else 1.0)
    # A pair has the spread of two arms.
    return (math.sqrt(2) * spread, 0.0) if 0 < spread < math.inf else None


def _target(metric: Metric, expected: Expectation | None, seen: float) -> float:
    """The effect looked for, on the working scale."""
    if expected is not None and expected.size is not None:
        if metric.scale is not Scale.RATIO:
            return abs(expected.size)
        return abs(math.log(expected.size)) if expected.size > 0 else math.inf
    return max(reach(metric), seen)

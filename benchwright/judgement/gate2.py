"""Gate 2: measurements that can be compared.

Rules 1, 3, 4, 5 and 6 stand in `units`, `decide`, `guardrails` and `stability`. Here are those
that are read off the whole run (2, 8, 9, 10) or off two (7, 9).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from benchwright.errors import Difference
from benchwright.execution.launch import EndReason
from benchwright.execution.sample import Sample
from benchwright.identity.fingerprint import Fingerprint
from benchwright.judgement import words
from benchwright.judgement.gate1 import text_of
from benchwright.judgement.schedule import schedule
from benchwright.judgement.units import Units, analysed, is_number, pair
from benchwright.judgement.verdict import Finding
from benchwright.judgement.view import RunView
from benchwright.spec.arms import expand_arms
from benchwright.spec.values import Value

EVALUATION_WORDS = frozenset(
    {
        "eval_suite",
        "eval_suite_version",
        "evaluation_suite",
        "evaluation_version",
        "evaluator",
        "evaluator_version",
        "suite",
        "suite_version",
    }
)
"""Parameters (by the last part of their name) that say what a score is a score of."""

IDENTIFYING = frozenset(
    {
        "machine.cpu_model",
        "machine.cores",
        "machine.kernel",
        "machine.memory_total",
        "software.python",
        "code.commit",
        "code.uncommitted",
        "accelerator.model",
        "accelerator.driver",
    }
)
"""Fields that say which machine, software and code it was. One of them unknown is a caveat of the
run; any other field that can't be read here is named in the report, and is a caveat only where two
runs are compared. A laptop without a governor file can then still have a RELIABLE run."""


# Rule 2: order


def order(view: RunView) -> tuple[Finding, ...]:
    """Rule 2: the replicates ran in randomised blocks, in the order drawn from the seed."""
    arms = [arm.name for arm in expand_arms(view.config)]
    if len(arms) < 2:
        return ()
    drawn = [
        (slot.warmup, slot.block, slot.arm) for slot in schedule(arms, view.config.replication)
    ]
    found = []
    for stage in dict.fromkeys(sample.stage for sample in view.samples):
        ran = sorted(
            (sample for sample in view.samples if sample.stage == stage),
            key=lambda sample: sample.order,
        )
        if not _interleaved([sample for sample in ran if not sample.warmup]):
            found.append(
                Finding(
                    "order",
                    f"The arms of {stage} didn't run in blocks, one replicate of each in turn: "
                    "slow changes of the machine may have met one arm only.",
                    failure=True,
                )
            )
            continue
        done = [(sample.warmup, sample.block, sample.arm) for sample in ran]
        if done != [slot for slot in drawn if slot in set(done)]:
            found.append(
                Finding(
                    "order-not-drawn",
                    f"The replicates of {stage} ran in another order than the one drawn from "
                    f"seed {view.config.replication.seed}.",
                    caveat=True,
                )
            )
    return tuple(found)


def _interleaved(samples: Sequence[Sample]) -> bool:
    """Whether each block was over before the next one began."""
    blocks = [sample.block for sample in samples]
    return blocks == sorted(blocks)


# Rule 8: seeds


def seeds(view: RunView) -> tuple[Finding, ...]:
    """Rule 8: replicates that are seeds have a different seed each."""
    if not view.config.replication.seeds_as_replicates:
        return ()
    found = []
    for arm in expand_arms(view.config):
        drawn = {(s.stage, s.block, s.seed) for s in analysed(view.samples, arm.name)}
        repeated = {
            seed
            for (_, seed), many in Counter((stage, seed) for stage, _, seed in drawn).items()
            if many > 1
        }
        if repeated:
            found.append(
                Finding(
                    "seed-repeated",
                    f"Replicates of {arm.name} share {words.count(len(repeated), 'seed')}, though "
                    "each is to have its own: they are one draw, not several.",
                    number=float(len(repeated)),
                    limit=0.0,
                    failure=True,
                    arm=arm.name,
                )
            )
    return tuple(found)


# Rule 9: one evaluation


def is_evaluation(name: str | None) -> bool:
    """Whether a parameter says which evaluation a score comes from."""
    return (name or "").rpartition(".")[2].lower() in EVALUATION_WORDS


def evaluation_is_treatment(view: RunView) -> tuple[Finding, ...]:
    """Rule 9: arms that are scored by different evaluations."""
    variable = view.config.treatment_variable
    if not is_evaluation(variable):
        return ()
    return (
        Finding(
            "evaluation-differs",
            f"The arms differ in {variable}: scores from different evaluations are never compared.",
            failure=True,
        ),
    )


def evaluation_differences(left: RunView, right: RunView) -> tuple[Difference, ...]:
    """Rule 9: what two runs' scores are scores of, declared or reported by their stages."""
    before, after = _evaluation(left), _evaluation(right)
    return tuple(
        Difference(
            name,
            text_of(before, name),
            text_of(after, name),
            "Scores from different evaluation suites, or versions of them or of the evaluator, "
            "are never compared.",
        )
        for name in dict.fromkeys([*before, *after])
        if text_of(before, name) != text_of(after, name)
    )


def _evaluation(view: RunView) -> dict[str, Value]:
    """The parameters that say which evaluation it was; the effective value before the declared."""
    found = {name: value for name, value in view.config.flat_params.items() if is_evaluation(name)}
    for sample in analysed(view.samples):
        if sample.measurement is not None:
            found |= {n: v for n, v in sample.measurement.effective.items() if is_evaluation(n)}
    return found


def items_differ(metric: str, baseline: Units, treatment: Units) -> tuple[Finding, ...]:
    """Rule 9: items that were scored in one arm only."""
    alone = pair(baseline, treatment).left_out
    if not alone:
        return ()
    return (
        Finding(
            "items-differ",
            f"{words.count(len(alone), 'item')} of {metric} "
            f"{'has' if len(alone) == 1 else 'have'} an outcome in only one of {baseline.arm} and "
            f"{treatment.arm}: the scores are of different evaluations.",
            number=float(len(alone)),
            limit=0.0,
            failure=True,
            metric=metric,
            arm=treatment.arm,
        ),
    )


# Rule 10: finite numbers


def not_finite(view: RunView) -> tuple[Finding, ...]:
    """Rule 10: values that are not finite numbers are no measurement."""
    found: dict[tuple[str, str], int] = {}
    for sample in analysed(view.samples):
        metrics = sample.measurement.metrics if sample.measurement else {}
        for name, value in metrics.items():
            if not is_number(value):
                found[name, sample.arm] = found.get((name, sample.arm), 0) + 1
    return tuple(
        Finding(
            "not-finite",
            f"{name} of {arm} is not a finite number in {words.count(many, 'replicate')}: that is "
            "no measurement.",
            number=float(many),
            limit=0.0,
            failure=True,
            metric=name,
            arm=arm,
        )
        for (name, arm), many in found.items()
    )


# What ended early, or never ran


def failures(view: RunView) -> tuple[Finding, ...]:
    """Replicates that failed, that a guard ended, and work that was skipped."""
    found: list[Finding] = []
    skipped = view.expected is not None and len(view.samples) < view.expected
    groups: dict[tuple[str, str, bool, EndReason], list[Sample]] = {}
    for sample in view.samples:
        if not sample.ok:
            key = (sample.stage, sample.arm, sample.warmup, sample.reason)
            groups.setdefault(key, []).append(sample)
    for (stage, arm, warmup, reason), failed in groups.items():
        guard = reason in (EndReason.MEMORY, EndReason.VRAM)
        kind = "warm-up replicate" if warmup else "replicate"
        why = failed[0].error.strip().rstrip(".") or f"it ended as {reason}"
        found.append(
            Finding(
                "guard-ended" if guard else "replicate-failed",
                f"{words.count(len(failed), kind)} of {stage} in {arm} "
                f"{'was ended by the guard' if guard else 'failed'}: {why}.",
                number=float(len(failed)),
                limit=0.0,
                # A warm-up that failed and ended the run is what became of it.
                caveat=warmup and not guard and not skipped,
                failure=guard or not warmup or skipped,
                arm=arm,
            )
        )
    if view.expected is not None and skipped:
        found.append(
            Finding(
                "work-skipped",
                f"{len(view.samples)} of {words.count(view.expected, 'replicate')} ran: work was "
                "skipped.",
                number=float(len(view.samples)),
                limit=float(view.expected),
                failure=True,
            )
        )
    return tuple(found)


# Rule 7: what it ran on


def unknown_fields(fingerprint: Fingerprint) -> tuple[Finding, ...]:
    """Rule 7: fields of the fingerprint that couldn't be read."""
    blind = fingerprint.unknown
    heavy = [name for name in blind if name in IDENTIFYING]
    light = [name for name in blind if name not in IDENTIFYING]
    found = []
    if heavy:
        found.append(
            Finding(
                "unknown-identity",
                f"{words.listed(heavy)} couldn't be read: what the run ran on isn't known well "
                "enough to repeat it.",
                number=float(len(heavy)),
                limit=0.0,
                caveat=True,
            )
        )
    if light:
        found.append(
            Finding(
                "unknown-field",
                f"{words.listed(light, 8)} couldn't be read on this machine; a change there would "
                "go unnoticed.",
                number=float(len(light)),
                limit=0.0,
            )
        )
    return tuple(found)


def prep_remarks(view: RunView) -> tuple[Finding, ...]:
    """What the cache did, where a reader would want to know."""
    misses = [prep for prep in view.prep if not prep.cached]
    hits = [prep for prep in view.prep if prep.cached]
    found = []
    if misses:
        seconds = sum(prep.wall_s for prep in misses)
        first = misses[0]
        found.append(
            Finding(
                "cache-miss",
                f"{words.count(len(misses), 'prep stage')} had to be built, in "
                f"{words.number(seconds, 3)} s ({first.stage} in {first.arm}: "
                f"{first.reason.rstrip('.') or 'no reason given'}).",
                number=float(len(misses)),
            )
        )
    if hits:
        found.append(
            Finding(
                "cache-hit",
                f"{words.count(len(hits), 'prep stage')} came from the cache, so what they made "
                "wasn't made anew for this run.",
                number=float(len(hits)),
            )
        )
    return tuple(found)

"""Whether an evaluation's scores may be believed: one list of checks, each with its reason."""

from __future__ import annotations

import math
from collections.abc import Iterable
from enum import StrEnum

from domains.serving.probe import Probe, utc
from domains.serving.request import AccuracyRequest, Limits, Record
from domains.serving.results import DatasetResult, Evaluation, telling_line


class State(StrEnum):
    """What became of a run."""

    SUCCESS = "success"
    PARTIAL = "partial"
    """There is a score, and it isn't the one that was asked for: samples or datasets are missing,
    or too many answers are empty or cut."""
    FAILED = "failed"
    """There is no score that can be put down to the server that was to be measured."""


class Weight(StrEnum):
    """What a check costs that fails."""

    FATAL = "fatal"
    DEGRADING = "degrading"


class Check(Record):
    """One question about a dataset's evaluation. `passed` None: it can't be told."""

    name: str
    weight: Weight
    passed: bool | None
    reason: str = ""


class DatasetVerdict(Record):
    """The checks of one dataset, and the state they add up to."""

    name: str
    state: State
    checks: tuple[Check, ...]


class Validation(Record):
    """The whole request's state, and what a reader must know beside the scores."""

    state: State
    datasets: tuple[DatasetVerdict, ...] = ()
    notes: tuple[str, ...] = ()

    def of(self, name: str) -> DatasetVerdict:
        """The verdict of that dataset. Raises KeyError."""
        for verdict in self.datasets:
            if verdict.name == name:
                return verdict
        raise KeyError(name)


def validate(
    request: AccuracyRequest,
    before: Probe | None,
    evaluation: Evaluation | None,
    failure: str = "",
) -> Validation:
    """Judge an evaluation.

    Args:
        request: What was asked.
        before: The probe before the start; None: the host gave no word.
        evaluation: None: it never began, for the reasons that the probe gives.
        failure: Why the host gave no word.

    success: every dataset passed every check. failed: no dataset has a score that counts.
    partial: all in between.
    """
    if before is None:
        return Validation(state=State.FAILED, notes=(failure,))
    if evaluation is None:
        reasons = (failure,) if failure else ()
        return Validation(state=State.FAILED, notes=(*reasons, *before.failures, *before.notes))
    verdicts = tuple(_judge(request, before, result) for result in evaluation.datasets)
    states = [verdict.state for verdict in verdicts]
    if not states or all(state is State.FAILED for state in states):
        state = State.FAILED
    elif evaluation.failures or any(state is not State.SUCCESS for state in states):
        state = State.PARTIAL
    else:
        state = State.SUCCESS
    return Validation(
        state=state, datasets=verdicts, notes=tuple(_notes(request, before, evaluation, verdicts))
    )


def _judge(request: AccuracyRequest, before: Probe, result: DatasetResult) -> DatasetVerdict:
    checks = (
        _fresh(result),
        _readable(result),
        _score(result),
        _ended(result),
        _count(result),
        _errors(result),
        _share("empty answers", result.empty, result.answers, request.limits.empty_share),
        _share(
            "truncated answers", result.truncated, result.answers, request.limits.truncated_share
        ),
        *server_checks(before, result.server_after, _answered_by(result)),
    )
    failed = {check.weight for check in checks if check.passed is False}
    if Weight.FATAL in failed:
        state = State.FAILED
    else:
        state = State.PARTIAL if failed else State.SUCCESS
    return DatasetVerdict(name=result.name, state=state, checks=checks)


def _fresh(result: DatasetResult) -> Check:
    """The report is this run's: it was written after the start.

    Whole seconds are compared, because that is what travels with a file.
    """
    written = result.report_written
    passed = None if written is None else math.floor(written) >= math.floor(result.started)
    reason = ""
    if passed is False and written is not None:
        reason = (
            f"the report in {result.work_dir} was written at {utc(written)}, before this run"
            f" started at {utc(result.started)}: it is an older run's"
        )
    return Check(name="report is fresh", weight=Weight.FATAL, passed=passed, reason=reason)


def _readable(result: DatasetResult) -> Check:
    reason = result.problem
    if reason and result.ended_by == "server gone":
        reason += ": the server stopped accepting connections"
    elif reason and result.log_tail:
        reason += f"; the evaluator says: {telling_line(result.log_tail)}"
    return Check(
        name="report is readable", weight=Weight.FATAL, passed=not result.problem, reason=reason
    )


def _score(result: DatasetResult) -> Check:
    value = result.score
    passed = value is not None and math.isfinite(value)
    reason = "" if passed else "the report holds no finite score"
    if passed and value is not None and result.items and not result.problem:
        total = [outcome for outcomes in result.items.values() for outcome in outcomes]
        mean = math.fsum(total) / len(total)
        # evalscope rounds a report's score to four decimals.
        if result.num == len(total) and abs(mean - value) > 1e-4:
            passed = False
            reason = (
                f"the report says {value:.4f}, and the outcomes of its own {len(total)} reviews"
                f" average {mean:.4f}"
            )
    return Check(name="score is readable", weight=Weight.FATAL, passed=passed, reason=reason)


ENDED_WORDS = {
    "deadline": "the evaluation passed its deadline and was ended",
    "lease": "nobody followed the evaluation any more, and it ended itself",
    "server gone": "the server stopped accepting connections, and the evaluation was ended",
    "lost": "the evaluation's process vanished from the host without an exit code",
}


def _ended(result: DatasetResult) -> Check:
    reason = ENDED_WORDS.get(result.ended_by, "")
    if not reason and result.exit_code != 0:
        reason = f"the evaluator ended with exit code {result.exit_code}"
    return Check(
        name="evaluator ended well", weight=Weight.DEGRADING, passed=not reason, reason=reason
    )


def _count(result: DatasetResult) -> Check:
    name, weight = "requested count reached", Weight.DEGRADING
    if result.num is None or result.requested is None:
        reason = "" if result.num is None else "the evaluator doesn't say how many were requested"
        return Check(name=name, weight=weight, passed=None, reason=reason)
    passed = result.num == result.requested and not result.incomplete
    reason = "" if passed else f"{result.num} of {result.requested} requested samples were scored"
    return Check(name=name, weight=weight, passed=passed, reason=reason)


def _errors(result: DatasetResult) -> Check:
    passed = None if result.errored is None else result.errored == 0
    reason = ""
    if passed is False:
        reason = (
            f"{result.errored} of {result.requested} samples ended in an error and are not in the"
            " score's denominator"
        )
    return Check(name="nothing errored", weight=Weight.DEGRADING, passed=passed, reason=reason)


def _share(name: str, count: int | None, answers: int | None, limit: float) -> Check:
    if count is None or not answers:
        return Check(name=name, weight=Weight.DEGRADING, passed=None)
    share = count / answers
    passed = share <= limit
    reason = ""
    if not passed:
        what = "have no text" if name.startswith("empty") else "were cut at max_tokens"
        reason = f"{count} of {answers} answers ({share:.1%}) {what}; the limit is {limit:.1%}"
    return Check(name=name, weight=Weight.DEGRADING, passed=passed, reason=reason)


def _answered_by(result: DatasetResult) -> list[str]:
    names = sorted(name for name in result.answered_by if name)
    return [f"{result.answered_by[name]} by {name!r}" for name in names]


def server_checks(
    before: Probe, after: Probe | None, answered_by: Iterable[str]
) -> tuple[Check, ...]:
    """Whether the same server answered from start to end.

    Args:
        before, after: The probes around; None: there was no second one.
        answered_by: Sentences on who answered, one for each name; more than one is a fault.
    """
    return (_same_model(before, after, tuple(answered_by)), _same_process(before, after))


def _same_model(before: Probe, after: Probe | None, answered_by: tuple[str, ...]) -> Check:
    passed: bool | None = True
    reason = ""
    if len(answered_by) > 1:
        passed, reason = False, f"more than one model answered: {', '.join(answered_by)}"
    elif after is None:
        passed = None
    elif after.health.state != "healthy":
        passed = False
        reason = f"after the evaluation the server was not healthy: {after.health.reason}"
    elif after.health.models != before.health.models:
        passed = False
        reason = (
            f"the server served {_list(before.health.models)} at the start and"
            f" {_list(after.health.models)} at the end"
        )
    return Check(name="served model unchanged", weight=Weight.FATAL, passed=passed, reason=reason)


def _same_process(before: Probe, after: Probe | None) -> Check:
    first = before.process
    last = after.process if after else None
    passed: bool | None = True
    reason = ""
    if first is None or after is None:
        passed, reason = None, "the port's process couldn't be seen"
    elif last is None:
        passed = False
        reason = f"pid {first.pid} held the port at the start, and no process at the end"
    elif (first.pid, first.started_ticks) != (last.pid, last.started_ticks):
        passed = False
        reason = (
            f"pid {first.pid} held the port at the start, and pid {last.pid}"
            f" ({' '.join(last.args)[:200]}) at the end"
        )
    return Check(name="server process unchanged", weight=Weight.FATAL, passed=passed, reason=reason)


def _list(names: Iterable[str]) -> str:
    return ", ".join(repr(name) for name in names) or "no model"


def _changed_limits(limits: Limits) -> Iterable[str]:
    """A success under other limits than the usual ones is another success."""
    usual = Limits()
    for what, asked, default in (
        ("empty", limits.empty_share, usual.empty_share),
        ("truncated", limits.truncated_share, usual.truncated_share),
    ):
        if asked != default:
            yield (
                f"{what} answers: up to {asked:.0%} were allowed for this run; the usual limit is"
                f" {default:.0%}"
            )


def _notes(
    request: AccuracyRequest,
    before: Probe,
    evaluation: Evaluation,
    verdicts: Iterable[DatasetVerdict],
) -> Iterable[str]:
    yield from before.failures
    yield from evaluation.failures
    said: dict[str, list[str]] = {}
    for verdict in verdicts:
        for check in verdict.checks:
            if check.passed is False:
                said.setdefault(check.reason, []).append(verdict.name)
            elif check.passed is None and check.reason:
                reason = f"{check.name} can't be told: {check.reason}"
                said.setdefault(reason, []).append(verdict.name)
    for reason, names in said.items():
        yield f"{', '.join(names)}: {reason}"
    yield from _changed_limits(request.limits)
    yield from evaluation.notes
    for result in evaluation.datasets:
        for note in result.notes:
            yield f"{result.name}: {note}"
        if result.review_problem and result.score is not None:
            yield (
                f"{result.name}: no outcomes of items, so its interval is over the reported count"
                f" and it can't be compared item by item: {result.review_problem}"
            )
        if result.requested is not None and result.requested < (result.expected or 0):
            yield (
                f"{result.name}: the set holds {result.requested} samples, fewer than the limit"
                f" of {result.expected}"
            )
        if result.data_digest == "" and not result.set_version:
            yield f"{result.name}: the version of its data can't be told (it came from a hub)"
    yield from before.notes

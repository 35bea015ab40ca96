"""The three stages in one process: what the flow's stages call, and what the terminal can call."""

from __future__ import annotations

import getpass
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from benchwright.errors import StageFailed
from domains.serving import report
from domains.serving.evaluate import evaluate
from domains.serving.host import Host, LocalHost
from domains.serving.probe import UNKNOWN, Probe, probe
from domains.serving.request import AccuracyRequest, Record, SshTarget, Target
from domains.serving.results import DatasetResult, Evaluation, Reporter
from domains.serving.validate import State, Validation, validate
from domains.serving.workplace import known_jobs

REPORT_FOLDER = "accuracy"
"""Folder of the three report files below the run's."""


class AccuracyResult(Record):
    """What an accuracy run gave.

    Attributes:
        state: success, partial or failed.
        probe, evaluation, validation: What each stage gave; no evaluation where the probe failed.
        reports: Paths of the report files relative to the run's folder, by kind.
        measurement: `metrics`, `items` and `effective`; None where nothing can be measured.
        fingerprint: What identifies the server, the suite and the evaluator, by dotted name.
    """

    state: State
    probe: Probe | None
    evaluation: Evaluation | None
    validation: Validation
    reports: dict[str, str]
    measurement: dict[str, Any] | None
    fingerprint: dict[str, str]

    def as_stage_result(self) -> dict[str, Any]:
        """What the validate stage returns to the flow."""
        return {
            "measurement": self.measurement,
            "fingerprint": self.fingerprint,
            "state": self.state.value,
            "notes": list(self.validation.notes),
            "reports": self.reports,
        }


@contextmanager
def host_of(ssh: SshTarget | None) -> Iterator[Host]:
    """The target host, connected when it is first used and closed at the end."""
    if ssh is None:
        host: Host = LocalHost()
    else:
        from domains.serving.ssh_host import SshHost

        host = SshHost(ssh)
    try:
        yield host
    finally:
        host.close()


def owner_of(run_id: str) -> str:
    """How others are told who holds an endpoint."""
    import socket

    return f"run {run_id} of {getpass.getuser()} on {socket.gethostname()}"


def run_accuracy(
    request: AccuracyRequest, run_dir: Path, *, reporter: Reporter | None = None
) -> AccuracyResult:
    """Probe, evaluate, validate and report.

    Args:
        request: What is asked.
        run_dir: The run's folder; made where it is missing.
        reporter: Receives progress.

    A host that can't be reached, a server that isn't there: the report says so, with state failed.

    Raises:
        BadInput: A dataset or the work directory can't be used.
    """
    reporter = reporter or Reporter()
    seen, failure = run_probe(request.target, run_dir, reporter)
    evaluation = None
    if seen is not None and not seen.failures:
        evaluation, failure = run_evaluate(request, seen, run_dir, reporter)
    return conclude(request, seen, evaluation, run_dir, failure)


def run_probe(target: Target, run_dir: Path, reporter: Reporter) -> tuple[Probe | None, str]:
    """What is served; or None, and why the host gave no word."""
    try:
        with host_of(target.ssh) as host:
            own = known_jobs(run_dir)
            return probe(host, target, own_jobs=own, say=reporter.say), ""
    except StageFailed as problem:
        return None, str(problem)


def run_evaluate(
    request: AccuracyRequest, before: Probe, run_dir: Path, reporter: Reporter
) -> tuple[Evaluation | None, str]:
    """The evaluation; or None, and why nothing could be started. Raises BadInput."""
    run_dir.mkdir(parents=True, exist_ok=True)
    owner = owner_of(run_dir.name)
    try:
        with host_of(request.target.ssh) as host:
            return evaluate(host, request, before, run_dir, owner=owner, reporter=reporter), ""
    except StageFailed as problem:
        return None, str(problem)


def conclude(
    request: AccuracyRequest,
    before: Probe | None,
    evaluation: Evaluation | None,
    run_dir: Path,
    failure: str = "",
) -> AccuracyResult:
    """Validate what was seen and write the report."""
    validation = validate(request, before, evaluation, failure)
    text = report.markdown(request, before, evaluation, validation)
    values = report.facts(request, before, evaluation, validation)
    picture = report.score_picture(evaluation)
    page = report.page("Accuracy", validation.state.value, text, picture)
    folder = run_dir / REPORT_FOLDER
    names = report.write(folder, text, values, page)
    return AccuracyResult(
        state=validation.state,
        probe=before,
        evaluation=evaluation,
        validation=validation,
        reports={kind: f"{REPORT_FOLDER}/{name}" for kind, name in names.items()},
        measurement=_measurement(request, evaluation, validation),
        fingerprint=accuracy_fingerprint(before, evaluation),
    )


def score_metric(dataset: str) -> str:
    """Name of the metric that holds a dataset's score."""
    return f"score.{dataset}"


def _measurement(
    request: AccuracyRequest, evaluation: Evaluation | None, validation: Validation
) -> dict[str, Any] | None:
    """Scores that count, with the outcome of each item.

    A dataset whose checks failed fatally has a number that belongs to no server: it is in the
    report with its reason, and not among the measurements.
    """
    metrics: dict[str, float] = {}
    items: dict[str, dict[str, list[float]]] = {}
    effective: dict[str, Any] = {}
    for result in evaluation.datasets if evaluation else ():
        if validation.of(result.name).state is State.FAILED:
            continue
        found = report.score_of(result)
        if found.value is None:
            continue
        metrics[score_metric(result.name)] = found.value
        if result.items:
            items[score_metric(result.name)] = {
                item: list(outcomes) for item, outcomes in result.items.items()
            }
        metrics |= _shares(result)
        effective |= result.effective
    if not metrics:
        return None
    if request.target.model is not None and evaluation is not None:
        effective["target.model"] = request.target.model
    return {"metrics": metrics, "items": items, "effective": effective}


def _shares(result: DatasetResult) -> dict[str, float]:
    shares = {}
    for name, count, total in (
        ("errors", result.errored, result.requested),
        ("empty", result.empty, result.answers),
        ("truncated", result.truncated, result.answers),
    ):
        if count is not None and total:
            shares[f"{name}.{result.name}"] = count / total
    return shares


def server_fingerprint(before: Probe | None) -> dict[str, str]:
    """What identifies the server: a difference here refuses a comparison, field by field."""
    if before is None:
        return {}
    fields = {
        "server.engine": before.engine,
        "server.engine_version": before.engine_version,
        "server.commit": before.commit,
        "server.branch": before.branch,
        "server.model": before.model,
        "server.model_path": before.model_path,
        "server.launch_args": before.launch_args,
    }
    for name, version in sorted(before.versions.items()):
        fields[f"server.packages.{name}"] = version
    for label, value in before.hardware.items():
        fields[f"accelerator.target.{label.lower().replace(' ', '_')}"] = value
    for name in ("name", "kernel"):
        fields[f"machine.target.{name}"] = before.machine.get(name, UNKNOWN)
    return fields


def accuracy_fingerprint(before: Probe | None, evaluation: Evaluation | None) -> dict[str, str]:
    """The server's fields, and those that say which suite scored it: scores of two evaluators, two
    versions of one, or two versions of a set never stand beside each other."""
    fields = server_fingerprint(before)
    if evaluation is None:
        return fields
    fields["evaluator.name"] = evaluation.evaluator or UNKNOWN
    fields["evaluator.version"] = evaluation.evaluator_version or UNKNOWN
    for result in evaluation.datasets:
        stem = f"suite.{result.name}"
        fields[f"{stem}.scoring"] = result.evaluation_version or UNKNOWN
        fields[f"{stem}.data"] = report.dataset_version(result)
        fields[f"{stem}.prompts"] = result.prompt_digest or UNKNOWN
    return fields

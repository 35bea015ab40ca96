"""Runs the evaluation on the target host, a job for each dataset, and brings back what it left."""

from __future__ import annotations

from pathlib import Path

from benchwright.errors import BadInput, StageFailed, Where
from domains.serving import evalscope, fallback, job
from domains.serving.host import Host, HostUnreachable
from domains.serving.probe import Probe, look_again
from domains.serving.request import AccuracyRequest, Dataset, find_dataset
from domains.serving.results import DatasetResult, Evaluation, Reporter
from domains.serving.workplace import (
    Workplace,
    expected_samples,
    fetch,
    make_work_dir,
    place_data,
    place_launcher,
    run_job,
    started_at,
    tail_of,
    text_of,
)


def evaluate(
    host: Host,
    request: AccuracyRequest,
    before: Probe,
    run_dir: Path,
    *,
    owner: str,
    reporter: Reporter | None = None,
) -> Evaluation:
    """Evaluate every dataset of the request, one after the other.

    A run that was cut off (the connection, or this process) finds its job again: `run_dir` keeps
    where it lives. When this process is interrupted, the job is ended on the host.

    Args:
        host: The target host.
        request: What was asked.
        before: The probe before the start.
        run_dir: The run's folder; artifacts are copied below it.
        owner: Who runs it, for those who find the endpoint taken.
        reporter: Receives progress.

    Raises:
        BadInput: A dataset can't be found, or the work directory isn't empty.
        HostUnreachable: The host was lost before anything was started there.
    """
    reporter = reporter or Reporter()
    datasets = [find_dataset(spec) for spec in request.evaluate.datasets]
    names = [dataset.name for dataset in datasets]
    if len(set(names)) < len(names):
        raise BadInput(
            "a dataset is named twice", where=Where(key="evaluate.datasets"), expected="each once"
        )
    notes: list[str] = []
    tool, failure = _tool(host, request, reporter, notes)
    if failure:
        return Evaluation(failures=(failure,), notes=tuple(notes))
    asked = request.evaluate
    place = Workplace.find(
        host,
        run_dir,
        lambda: make_work_dir(host, "accuracy", root=asked.work_root, given=asked.work_dir),
    )
    launcher = place_launcher(host, request.target.endpoint, place.folder) if tool else None
    results: list[DatasetResult] = []
    failures: list[str] = []
    for dataset in datasets:
        try:
            if tool is not None:
                result = _with_evalscope(
                    host, request, before, place, dataset, tool, launcher, owner, reporter
                )
            else:
                result = fallback.evaluate_dataset(
                    host, request, before, place, dataset, owner=owner, reporter=reporter
                )
        except HostUnreachable as problem:
            failures.append(str(problem))
            break
        except job.EndpointTaken as problem:
            failures.append(problem.what)
            break
        except StageFailed as problem:
            failures.append(f"{dataset.name}: {problem}")
            continue
        results.append(result)
    return Evaluation(
        work_dir=place.folder,
        evaluator="evalscope" if tool else fallback.NAME,
        evaluator_version=tool.version if tool else fallback.VERSION,
        datasets=tuple(results),
        failures=tuple(failures),
        notes=tuple(notes),
    )


def _tool(
    host: Host, request: AccuracyRequest, reporter: Reporter, notes: list[str]
) -> tuple[evalscope.Tool | None, str]:
    """The evaluator: evalscope, or None for the fallback runner; and why there is neither."""
    asked = request.evaluate
    if asked.evaluator == "run_eval":
        notes.append("evaluator: the fallback runner run_eval was asked for")
        return None, ""
    try:
        tool = evalscope.ensure(
            host,
            wanted=asked.evalscope_version,
            given=asked.evalscope,
            tool_dir=asked.tool_dir,
            say=reporter.say,
        )
    except HostUnreachable:
        raise
    except StageFailed as problem:
        if asked.evaluator == "evalscope":
            return None, str(problem)
        notes.append(
            f"evaluator: the fallback runner run_eval ran instead of evalscope: {problem.what}"
            + (f" ({problem.hint})" if problem.hint else "")
        )
        return None, ""
    if tool.installed:
        notes.append(f"evalscope {tool.version} was installed on {host.name} for this run")
    if tool.version != asked.evalscope_version:
        notes.append(
            f"evalscope {tool.version} ran, and {asked.evalscope_version} is the pinned version"
        )
    return tool, ""


def _with_evalscope(
    host: Host,
    request: AccuracyRequest,
    before: Probe,
    place: Workplace,
    dataset: Dataset,
    tool: evalscope.Tool,
    launcher: str | None,
    owner: str,
    reporter: Reporter,
) -> DatasetResult:
    folder = f"{place.folder}/{dataset.name}"
    data, digest = place_data(host, dataset, folder)
    notes: list[str] = []
    attempt, key_value = "attempt-1", False
    while True:
        output = f"{folder}/{attempt}/out"
        command = evalscope.eval_command(
            tool,
            request,
            dataset,
            before.model,
            data=data,
            output=output,
            key_value=key_value,
            launcher=launcher,
        )
        reporter.say(f"{dataset.name}: evaluating on {host.name}, in {output}")
        _, seen, ended_by = run_job(
            host,
            request,
            place,
            dataset,
            attempt=attempt,
            script=evalscope.script_of(command),
            owner=owner,
            reporter=reporter,
            total=expected_samples(request, None),
            progress_glob="out/predictions/*/*.jsonl",
        )
        local = place.run_dir / "artifacts" / dataset.name / attempt
        fetch(host, request.target.endpoint, f"{folder}/{attempt}", local)
        log = text_of(local / "job" / "job.log")
        if (
            not key_value
            and evalscope.is_form_fault(log, seen.code)
            and evalscope.takes_key_value(request.generation_config)
            and not list(local.glob("out/predictions/*/*.jsonl"))
        ):
            notes.append(
                "the generation configuration was refused as JSON; run again with key=value, in a"
                " fresh directory"
            )
            attempt, key_value = "attempt-2", True
            continue
        break
    safe = evalscope.model_id(before.model)
    found = evalscope.read_output(local / "out", dataset.adapter, safe)
    report, answers = found.report, found.answers
    collected = answers.count > 0
    return DatasetResult(
        name=dataset.name,
        adapter=dataset.adapter,
        set_version=dataset.version or found.revision,
        data_digest=digest,
        prompt_digest=found.prompt_digest,
        evaluator="evalscope",
        evaluator_version=found.version or tool.version,
        evaluation_version=found.evaluation_version,
        command=evalscope.in_lines(command),
        work_dir=output,
        artifacts=str(local.relative_to(place.run_dir)),
        started=started_at(local / "job"),
        report_written=report.file.stat().st_mtime if report.file else None,
        exit_code=seen.code,
        ended_by=ended_by or ("lost" if seen.status is job.JobStatus.LOST else ""),
        log_tail=tail_of(log),
        problem=report.problem,
        metric=report.metric,
        score=report.score,
        num=report.num,
        requested=report.requested,
        succeeded=report.succeeded,
        errored=report.errored,
        incomplete=report.incomplete,
        expected=expected_samples(request, report.requested),
        items={item: tuple(values) for item, values in found.items.items()},
        review_problem=found.review_problem,
        answers=answers.count if collected else None,
        empty=answers.empty if collected else None,
        truncated=answers.truncated if collected else None,
        answered_by=answers.models,
        latency_s=answers.latency_s,
        output_tok_s=answers.output_tok_s,
        input_tokens=answers.input_tokens,
        output_tokens=answers.output_tokens,
        effective=found.effective,
        server_after=look_again(host, request.target),
        notes=tuple(notes),
    )

"""The fallback runner, for a host where evalscope can't be installed.

Two programs stand behind it. The engine's own `test/srt/run_eval.py`, where the target has a
working copy of the engine: it writes `/tmp/<eval>_<model>.json` under a fixed name and counts no
samples, so an old file could pass as new and the count can't be verified; both are checked or said.
Else ours (`programs/run_eval.py`), copied to the host, for sets whose data is a folder.
"""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from statistics import fmean
from typing import Any

from benchwright.errors import StageFailed
from domains.serving import evalscope, job
from domains.serving.host import Host
from domains.serving.probe import Probe, look_again
from domains.serving.request import AccuracyRequest, Dataset
from domains.serving.results import DatasetResult, Reporter
from domains.serving.workplace import (
    Workplace,
    expected_samples,
    fetch,
    place_data,
    run_job,
    started_at,
    tail_of,
    text_of,
)

NAME, VERSION = "run_eval", "1"
"""Raise the version when an answer would be scored otherwise."""

OURS = Path(__file__).parent / "programs" / "run_eval.py"

ENGINE_EVALS = frozenset(
    [
        "mmlu",
        "sglang_mmlu",
        "math",
        "mgsm",
        "mgsm_en",
        "gpqa",
        "humaneval",
        "gsm8k",
        "aime25",
        "aime26",
        "csimpleqa",
    ]
)
"""What the engine's own runner knows (no aime24)."""

THREADS = 8


def evaluate_dataset(
    host: Host,
    request: AccuracyRequest,
    before: Probe,
    place: Workplace,
    dataset: Dataset,
    *,
    owner: str,
    reporter: Reporter,
) -> DatasetResult:
    """Evaluate one dataset with a fallback runner.

    Raises:
        StageFailed: Neither program can run it.
        HostUnreachable: The host was lost.
    """
    folder = f"{place.folder}/{dataset.name}"
    attempt = f"{folder}/attempt-1"
    data, digest = place_data(host, dataset, folder)
    engine_runner = _engine_runner(host, request, dataset)
    if engine_runner is not None:
        command, result_file = _engine_command(request, before, dataset, engine_runner)
    elif data is not None and dataset.adapter in ("gsm8k", "general_mcq"):
        command, result_file = _our_command(host, request, before, dataset, data, attempt), ""
    else:
        raise StageFailed(
            f"the fallback runner can't evaluate {dataset.name!r}",
            expected="a folder of gsm8k or general_mcq data, or a working copy of the engine on the"
            f" host for one of {', '.join(sorted(ENGINE_EVALS))}",
            hint="give NAME=FOLDER, or make evalscope installable on the host",
        )
    _, seen, ended_by = run_job(
        host,
        request,
        place,
        dataset,
        attempt="attempt-1",
        script=evalscope.script_of(command, openai=True),
        owner=owner,
        reporter=reporter,
        total=expected_samples(request, None),
        progress_glob="out/answers.jsonl",
    )
    if result_file:
        _collect(host, result_file, attempt)
    local = place.run_dir / "artifacts" / dataset.name / "attempt-1"
    fetch(host, request.target.endpoint, attempt, local)
    result = DatasetResult(
        name=dataset.name,
        adapter=dataset.adapter,
        set_version=dataset.version,
        data_digest=digest,
        evaluator=NAME if not result_file else f"{NAME} of the engine",
        evaluator_version=VERSION if not result_file else before.commit,
        command=evalscope.in_lines(command),
        work_dir=f"{attempt}/out",
        artifacts=str(local.relative_to(place.run_dir)),
        started=started_at(local / "job"),
        exit_code=seen.code,
        ended_by=ended_by or ("lost" if seen.status is job.JobStatus.LOST else ""),
        log_tail=tail_of(text_of(local / "job" / "job.log")),
        server_after=look_again(host, request.target),
    )
    report = local / "out" / "report.json"
    if not report.is_file():
        return result.model_copy(update={"problem": "no report was written"})
    read = _read_engine(report) if result_file else _read_ours(local / "out")
    return result.model_copy(update={"report_written": report.stat().st_mtime, **read})


def _engine_runner(host: Host, request: AccuracyRequest, dataset: Dataset) -> str | None:
    asked = request.evaluate.run_eval
    repository = request.target.repository
    path = asked or (f"{repository}/test/srt/run_eval.py" if repository else None)
    if path is None or dataset.adapter not in ENGINE_EVALS or dataset.folder is not None:
        return None
    return path if host.run(f"[ -f {shlex.quote(path)} ]").ok else None


def _engine_command(
    request: AccuracyRequest, before: Probe, dataset: Dataset, runner: str
) -> tuple[list[str], str]:
    python = request.evaluate.run_eval_python or request.target.python or "python3"
    result = f"/tmp/{dataset.adapter}_{before.model.replace('/', '_')}.json"
    command = [python, runner, *_flags(request, before, dataset)]
    return command, result


def _our_command(
    host: Host, request: AccuracyRequest, before: Probe, dataset: Dataset, data: str, attempt: str
) -> list[str]:
    host.put({"run_eval.py": OURS}, attempt)
    python = request.evaluate.run_eval_python or "python3"
    flags = _flags(request, before, dataset)
    return [python, f"{attempt}/run_eval.py", *flags, "--data", data, "--out", f"{attempt}/out"]


def _flags(request: AccuracyRequest, before: Probe, dataset: Dataset) -> list[str]:
    flags = [
        *("--base-url", request.target.endpoint.url),
        *("--model", before.model),
        *("--eval-name", dataset.adapter),
        *("--num-threads", str(min(THREADS, request.evaluate.batch_size))),
        *("--max-tokens", str(request.generation.get("max_tokens", 4096))),
        *("--temperature", str(request.generation.get("temperature", 0.0))),
    ]
    limit = request.evaluate.limit
    if limit is not None:
        if limit < 1:
            raise StageFailed(
                "the fallback runner takes no share as its limit", hint="give a count of items"
            )
        flags += ["--num-examples", str(int(limit))]
    return flags


def _collect(host: Host, result_file: str, attempt: str) -> None:
    """Copy the engine's result beside the rest, where it is newer than the job's start.

    Its name is fixed: an older file is another run's, and is left where it is.
    """
    stem = shlex.quote(result_file.removesuffix(".json"))
    out = shlex.quote(f"{attempt}/out")
    started = shlex.quote(f"{attempt}/job/pid")
    host.run(
        f"mkdir -p -- {out}\n"
        f"[ {stem}.json -nt {started} ] && cp -p -- {stem}.json {out}/report.json\n"
        f"[ {stem}.html -nt {started} ] && cp -p -- {stem}.html {out}/report.html"
    )


def _read_engine(report: Path) -> dict[str, Any]:
    try:
        said = json.loads(report.read_text(encoding="utf-8"))
        value = float(said["score"])
    except (ValueError, KeyError, TypeError) as problem:
        return {"problem": f"{report.name} can't be understood: {problem!r}"}
    return {
        "metric": "score",
        "score": value,
        "notes": (
            "the number of samples can't be verified: the engine's runner doesn't count them",
        ),
        "review_problem": "the engine's runner keeps no outcome of each item",
    }


def _read_ours(out: Path) -> dict[str, Any]:
    try:
        summary = json.loads((out / "report.json").read_text(encoding="utf-8"))
        lines = (out / "answers.jsonl").read_text(encoding="utf-8").splitlines()
        rows = [json.loads(line) for line in lines]
        answered = [row for row in rows if "error" not in row]
        items = {row["id"]: (float(row["correct"]),) for row in answered}
        requested = int(summary["requested"])
    except (OSError, ValueError, KeyError, TypeError) as problem:
        return {"problem": f"the runner's output can't be understood: {problem!r}"}
    if not answered:
        reasons = sorted({row["error"] for row in rows})
        return {
            "requested": requested,
            "succeeded": 0,
            "errored": len(rows),
            "problem": f"no request succeeded: {'; '.join(reasons)[:300]}",
        }
    models: dict[str, int] = {}
    for row in answered:
        models[row["model"]] = models.get(row["model"], 0) + 1
    return {
        "metric": "accuracy",
        "score": fmean(outcome for (outcome,) in items.values()),
        "num": len(answered),
        "requested": requested,
        "succeeded": len(answered),
        "errored": len(rows) - len(answered),
        "incomplete": len(answered) < requested,
        "expected": requested,
        "items": items,
        "answers": len(answered),
        "empty": sum(row["empty"] for row in answered),
        "truncated": sum(row["truncated"] for row in answered),
        "answered_by": models,
        "latency_s": fmean(row["latency_s"] for row in answered),
        "input_tokens": _mean(row["input_tokens"] for row in answered),
        "output_tokens": _mean(row["output_tokens"] for row in answered),
        "output_tok_s": _mean(
            row["output_tokens"] / row["latency_s"] if row["output_tokens"] else None
            for row in answered
        ),
    }


def _mean(values: Any) -> float | None:
    kept = [value for value in values if value is not None]
    return fmean(kept) if kept else None

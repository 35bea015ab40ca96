"""The stages of the two graphs, as functions that the flow calls: probe, evaluate, validate.

What crosses from one to the next is JSON. An interruption ends what runs on the target host before
this process ends.
"""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any, TypeVar

from benchwright import StageContext
from benchwright.record.store import RunFolder
from domains.serving import runner, speed_runner
from domains.serving.probe import Probe
from domains.serving.request import Record, accuracy_request, speed_request
from domains.serving.results import Evaluation, Progress, Reporter
from domains.serving.speed import LoadRun


def _reporter(context: StageContext, stage: str) -> Reporter:
    """Progress into the stage's log, and to the terminals and pages that follow the run."""

    def tell(text: str, **more: Any) -> None:
        print(text, flush=True)
        run = RunFolder(context.run_dir.parent.parent, context.run_dir.name)
        run.event({"kind": "step_progress", "stage": stage, "text": text, **more})

    def progress(seen: Progress) -> None:
        tell(str(seen), done=seen.done, total=seen.total)

    return Reporter(say=tell, progress=progress)


_R = TypeVar("_R", bound=Record)


@contextmanager
def _interruptible() -> Iterator[None]:
    """TERM raises: what runs on the target host is ended on the way out."""

    def leave(number: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, leave)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def accuracy_probe(context: StageContext) -> dict[str, Any]:
    """Read what is served."""
    request = accuracy_request(context.params)
    seen, failure = runner.run_probe(request.target, context.run_dir, _reporter(context, "probe"))
    return {"probe": _dump(seen), "failure": failure}


def accuracy_evaluate(context: StageContext) -> dict[str, Any]:
    """Evaluate, where the probe found nothing against it."""
    request = accuracy_request(context.params)
    before = _load(Probe, context.results["probe"]["probe"])
    if before is None or before.failures:
        return {"evaluation": None, "failure": context.results["probe"]["failure"]}
    with _interruptible():
        evaluation, failure = runner.run_evaluate(
            request, before, context.run_dir, _reporter(context, "evaluate")
        )
    return {"evaluation": _keep(context, "evaluation", evaluation), "failure": failure}


def accuracy_validate(context: StageContext) -> dict[str, Any]:
    """Judge what was seen, and write the report; what it returns is the run's measurement."""
    result = runner.conclude(
        accuracy_request(context.params),
        _load(Probe, context.results["probe"]["probe"]),
        _kept(context, Evaluation, context.results["evaluate"]["evaluation"]),
        context.run_dir,
        context.results["evaluate"]["failure"],
    )
    return result.as_stage_result()


def _dump(record: Any) -> Any:
    return None if record is None else record.model_dump(mode="json")


def _keep(context: StageContext, name: str, record: Record | None) -> str | None:
    """Write a record into the run's folder, and give its name: it has a line for each item or
    request, too much for what a step returns."""
    if record is None:
        return None
    file = context.run_dir / "artifacts" / f"{name}.json"
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(record.model_dump_json(indent=1), encoding="utf-8")
    return str(file.relative_to(context.run_dir))


def _kept(context: StageContext, kind: type[_R], name: str | None) -> _R | None:
    if name is None:
        return None
    return kind.model_validate_json((context.run_dir / name).read_text(encoding="utf-8"))


def _load(kind: Any, value: Any) -> Any:
    return None if value is None else kind.model_validate(value)


def speed_probe(context: StageContext) -> dict[str, Any]:
    """Read what is served."""
    request = speed_request(context.params)
    seen, failure = runner.run_probe(request.target, context.run_dir, _reporter(context, "probe"))
    return {"probe": _dump(seen), "failure": failure}


def speed_evaluate(context: StageContext) -> dict[str, Any]:
    """Send the load, where the probe found nothing against it."""
    request = speed_request(context.params)
    before = _load(Probe, context.results["probe"]["probe"])
    if before is None or before.failures:
        return {"run": None, "failure": context.results["probe"]["failure"]}
    with _interruptible():
        run, failure = speed_runner.send(
            request, before, context.run_dir, _reporter(context, "evaluate")
        )
    return {"run": _keep(context, "load", run), "failure": failure}


def speed_validate(context: StageContext) -> dict[str, Any]:
    """Judge what was seen, and write the report; what it returns is the run's measurement."""
    result = speed_runner.conclude(
        speed_request(context.params),
        _load(Probe, context.results["probe"]["probe"]),
        _kept(context, LoadRun, context.results["evaluate"]["run"]),
        context.run_dir,
        context.results["evaluate"]["failure"],
    )
    return result.as_stage_result()

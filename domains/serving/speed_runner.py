"""The three stages of a speed run in one process, as `runner` has them for accuracy."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from benchwright.errors import StageFailed
from domains.serving import report, speed_report
from domains.serving.load_results import Figures, figures_of
from domains.serving.probe import UNKNOWN, Probe
from domains.serving.request import Record, SpeedRequest
from domains.serving.results import Reporter
from domains.serving.runner import host_of, owner_of, run_probe, server_fingerprint
from domains.serving.speed import LoadRun, SpeedValidation, radix_cache, run_load, validate_speed
from domains.serving.validate import State

REPORT_FOLDER = "speed"


class SpeedResult(Record):
    """What a speed run gave.

    Attributes:
        state: success, partial or failed.
        probe, run, validation: What each stage gave.
        reports: Paths of the report files relative to the run's folder, by kind.
        measurements: For each block, the metrics of every point: a block is a unit.
        fingerprint: What identifies server, load program and load, by dotted name.
    """

    state: State
    probe: Probe | None
    run: LoadRun | None
    validation: SpeedValidation
    reports: dict[str, str]
    measurements: tuple[dict[str, float], ...]
    fingerprint: dict[str, str]

    def as_stage_result(self) -> dict[str, Any]:
        """What the validate stage returns to the flow."""
        names = {name for block in self.measurements for name in block}
        values = {
            name: [block[name] for block in self.measurements if name in block]
            for name in sorted(names)
        }
        measurement = None
        if values:
            measurement = {
                "metrics": {name: sum(each) / len(each) for name, each in values.items()},
                "values": values,
                "items": {},
                "effective": {},
            }
        return {
            "measurement": measurement,
            "measurements": [
                {"metrics": block, "items": {}, "effective": {}} for block in self.measurements
            ],
            "fingerprint": self.fingerprint,
            "state": self.state.value,
            "notes": list(self.validation.notes),
            "reports": self.reports,
        }


def run_speed(
    request: SpeedRequest, run_dir: Path, *, reporter: Reporter | None = None
) -> SpeedResult:
    """Probe, send the load, validate and report; never raises for a host or server that is away."""
    reporter = reporter or Reporter()
    seen, failure = run_probe(request.target, run_dir, reporter)
    run = None
    if seen is not None and not seen.failures:
        run, failure = send(request, seen, run_dir, reporter)
    return conclude(request, seen, run, run_dir, failure)


def send(
    request: SpeedRequest, before: Probe, run_dir: Path, reporter: Reporter
) -> tuple[LoadRun | None, str]:
    """The load; or None, and why nothing could be started."""
    run_dir.mkdir(parents=True, exist_ok=True)
    owner = owner_of(run_dir.name)
    try:
        with host_of(request.target.ssh) as host:
            return run_load(host, request, before, run_dir, owner=owner, reporter=reporter), ""
    except StageFailed as problem:
        return None, str(problem)


def conclude(
    request: SpeedRequest,
    before: Probe | None,
    run: LoadRun | None,
    run_dir: Path,
    failure: str = "",
) -> SpeedResult:
    """Validate what was seen and write the report."""
    validation = validate_speed(request, before, run, failure)
    text = speed_report.markdown(request, before, run, validation)
    values = speed_report.facts(request, before, run, validation)
    page = report.page("Speed", validation.state, text, speed_report.plot(validation.summaries))
    folder = run_dir / REPORT_FOLDER
    names = report.write(folder, text, values, page)
    for loop, name in (("closed", "summary.csv"), ("open", "summary_open_loop.csv")):
        table = speed_report.summary_csv(validation.summaries, loop)
        if table:
            (folder / name).write_text(table, encoding="utf-8")
            names[name] = name
    return SpeedResult(
        state=validation.state,
        probe=before,
        run=run,
        validation=validation,
        reports={kind: f"{REPORT_FOLDER}/{name}" for kind, name in names.items()},
        measurements=_blocks(request, run, validation),
        fingerprint=_fingerprint(request, before, run),
    )


MEASURED = (
    "output_tok_s",
    "total_tok_s",
    "requests_per_s",
    "e2e_ms",
    "ttft_ms",
    "tpot_ms",
    "itl_ms",
    "goodput_per_s",
)
"""The figures that become metrics, `<figure>.<point>` each."""


def _blocks(
    request: SpeedRequest, run: LoadRun | None, validation: SpeedValidation
) -> tuple[dict[str, float], ...]:
    if run is None or validation.state is State.FAILED:
        return ()
    blocks: dict[int, dict[str, float]] = {}
    for replicate in run.replicates:
        if replicate.slot.warmup or not replicate.ok:
            continue
        figures: Figures = figures_of(replicate, request.load)
        for name in MEASURED:
            value = getattr(figures, name)
            if value is not None:
                block = blocks.setdefault(replicate.slot.block, {})
                block[f"{name}.{replicate.slot.point.name}"] = value
    return tuple(blocks[index] for index in sorted(blocks))


def _fingerprint(
    request: SpeedRequest, before: Probe | None, run: LoadRun | None
) -> dict[str, str]:
    fields = server_fingerprint(before)
    if run is not None:
        fields["evaluator.name"] = run.backend
        fields["evaluator.version"] = run.backend_version or UNKNOWN
        fields["server.radix_cache"] = radix_cache(before)
    return fields

"""Runs a load on the target host as one job, and judges whether its figures may be believed."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from benchwright.errors import StageFailed
from domains.serving import evalscope, job
from domains.serving.host import Host, HostUnreachable
from domains.serving.key import key_of
from domains.serving.load import driver_script, slot_files, slots_of
from domains.serving.load_results import Replicate, Summary, read_replicate, summarise
from domains.serving.probe import UNKNOWN, Probe, argument_of, look_again
from domains.serving.request import Record, SpeedRequest
from domains.serving.results import Progress, Reporter
from domains.serving.validate import Check, State, Weight, server_checks
from domains.serving.workplace import (
    Workplace,
    endpoint_lock,
    fetch,
    make_work_dir,
    place_launcher,
)


class LoadRun(Record):
    """What a speed run left.

    Attributes:
        work_dir: Its directory on the host.
        artifacts: Its folder on this machine, relative to the run's.
        backend, backend_version: The load program.
        command: The first measured slot's command.
        replicates: Every slot, warm-ups included, in the order of running.
        ended_by: Why the job ended early; empty where it didn't.
        server_after: Light probe after it.
        failures: Why it could not go on.
        notes: Deviations.
    """

    work_dir: str = ""
    artifacts: str = ""
    backend: str = ""
    backend_version: str = ""
    command: str = ""
    replicates: tuple[Replicate, ...] = ()
    ended_by: str = ""
    server_after: Probe | None = None
    failures: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


class SpeedValidation(Record):
    """The state of a speed run, its points, its checks and its notes."""

    state: State
    summaries: tuple[Summary, ...] = ()
    checks: tuple[Check, ...] = ()
    notes: tuple[str, ...] = ()


def run_load(
    host: Host,
    request: SpeedRequest,
    before: Probe,
    run_dir: Path,
    *,
    owner: str,
    reporter: Reporter | None = None,
) -> LoadRun:
    """Send the whole load, every point in its replicates, in the drawn order.

    A run that was cut off finds its job again, as an evaluation does.

    Raises:
        HostUnreachable: The host was lost before anything was started there.
        StageFailed: The load program isn't there, or the job can't be started.
    """
    reporter = reporter or Reporter()
    load, notes = request.load, []
    tool = None
    if load.backend == "evalscope":
        tool = evalscope.ensure(
            host,
            wanted=load.evalscope_version,
            given=load.evalscope,
            tool_dir=load.tool_dir,
            needs="uvicorn",
            say=reporter.say,
        )
        version = tool.version
        if tool.version != load.evalscope_version:
            notes.append(
                f"evalscope {tool.version} ran, and {load.evalscope_version} is the pinned version"
            )
    else:
        version = before.engine_version
    slots = slots_of(load)
    place = Workplace.find(
        host, run_dir, lambda: make_work_dir(host, "speed", root=load.work_root, given=None)
    )
    if tool is None:
        program: tuple[str, ...] = (_bench_python(request, before),)
    else:
        launcher = place_launcher(host, request.target.endpoint, place.folder)
        program = evalscope.keyed(tool, launcher)
    files = slot_files(request, before, slots, program, place.folder)
    failures: list[str] = []
    ended_by = ""
    try:
        ended_by = _follow(host, request, place, files, owner=owner, reporter=reporter)
    except (job.EndpointTaken, HostUnreachable) as problem:
        failures.append(str(problem))
    local = run_dir / "artifacts" / "speed"
    if not failures:
        fetch(host, request.target.endpoint, f"{place.folder}/slots", local)
    replicates = tuple(read_replicate(local / slot.name, slot, load) for slot in slots)
    first = next((slot for slot in slots if not slot.warmup), slots[0])
    script = files[f"slots/{first.name}/command.sh"]
    assert isinstance(script, bytes)
    return LoadRun(
        work_dir=place.folder,
        artifacts=str(local.relative_to(run_dir)),
        backend=load.backend,
        backend_version=version,
        command=script.decode().split("exec ", 1)[1].strip(),
        replicates=replicates,
        ended_by=ended_by,
        server_after=None if failures else look_again(host, request.target),
        failures=tuple(failures),
        notes=tuple(notes),
    )


def _bench_python(request: SpeedRequest, before: Probe) -> str:
    asked = request.load.bench_python or request.target.python
    if asked:
        return asked
    args = before.process.args if before.process else ()
    if args and "python" in Path(args[0]).name:
        return args[0]
    raise StageFailed(
        "the Python that has the sgl-jax bench can't be told",
        hint="give its path on the host: load.bench_python",
    )


def _follow(
    host: Host,
    request: SpeedRequest,
    place: Workplace,
    files: Mapping[str, bytes | Path],
    *,
    owner: str,
    reporter: Reporter,
) -> str:
    slots = slots_of(request.load)
    running = place.known_job(host, "load")
    if running is None:
        host.put(files, place.folder)
        running = place.start(
            host,
            "load",
            "job",
            driver_script(request, slots, place.folder),
            owner=owner,
            lock=endpoint_lock(request.target.endpoint),
            deadline_s=(request.load.timeout_s + 60) * len(slots),
            api_key=key_of(request.target.endpoint),
        )
    else:
        reporter.say(f"load: found again on {host.name}")
    last = -1

    def on_look(seen: job.Look) -> None:
        nonlocal last
        if seen.done != last:
            last = seen.done
            reporter.progress(
                Progress(dataset="load", done=seen.done, total=len(slots), unit="replicates")
            )

    return job.attend(
        host,
        running,
        on_look=on_look,
        say=reporter.say,
        progress_glob="slots/*/exit",
        port=(request.target.endpoint.host, request.target.endpoint.port),
        reconnect_s=request.load.reconnect_s,
    )[1]


def radix_cache(before: Probe | None) -> str:
    """`disabled` only where the launch arguments say so; unknown where they can't be seen."""
    if before is None or before.process is None or not before.process.args:
        return UNKNOWN
    return "disabled" if "--disable-radix-cache" in before.process.args else "enabled"


def validate_speed(
    request: SpeedRequest, before: Probe | None, run: LoadRun | None, failure: str = ""
) -> SpeedValidation:
    """success: every replicate of every point gave figures and no request failed. failed: no point
    has a row, or the server wasn't the same at the end. partial: all in between."""
    if before is None or run is None:
        reasons = [failure] if failure else []
        if before is not None:
            reasons += [*before.failures, *before.notes]
        return SpeedValidation(state=State.FAILED, notes=tuple(reasons))
    summaries = summarise(run.replicates, request.load)
    checks = [] if run.failures else list(server_checks(before, run.server_after, ()))
    for summary in summaries:
        checks += _point_checks(summary, request)
    if all(summary.means is None for summary in summaries):
        reason = "no point has a row"
        checks.append(
            Check(name="some point measured", weight=Weight.FATAL, passed=False, reason=reason)
        )
    failed = {check.weight for check in checks if check.passed is False}
    if Weight.FATAL in failed:
        state = State.FAILED
    else:
        state = State.PARTIAL if failed or run.failures else State.SUCCESS
    notes = [*run.failures, *(check.reason for check in checks if check.passed is False)]
    notes += [
        f"{check.name} can't be told: {check.reason}"
        for check in checks
        if check.passed is None and check.reason
    ]
    if run.ended_by:
        notes.append(f"the load ended early: {run.ended_by}")
    notes += _load_notes(request, before, summaries)
    return SpeedValidation(
        state=state,
        summaries=summaries,
        checks=tuple(checks),
        notes=(*notes, *run.notes, *before.notes),
    )


def _point_checks(summary: Summary, request: SpeedRequest) -> list[Check]:
    label = summary.point.label
    missing = request.load.replicates - summary.replicates
    first = summary.problems[0] if summary.problems else ""
    reason = ""
    if missing:
        reason = f"{label}: {missing} of {request.load.replicates} replicates gave nothing: {first}"
    failed = ""
    if summary.failed:
        failed = (
            f"{label}: {summary.failed} of {summary.sent} requests failed; they are in no figure"
        )
    return [
        Check(
            name=f"replicates of {label}",
            weight=Weight.DEGRADING,
            passed=not missing,
            reason=reason,
        ),
        Check(
            name=f"requests of {label}", weight=Weight.DEGRADING, passed=not failed, reason=failed
        ),
    ]


PREFIX_HITS = 0.05
"""Above this share of cached prompt tokens, prefill is measured on less work than was sent."""


def _prefix_hits(summaries: tuple[Summary, ...]) -> dict[str, list[str]]:
    """The points whose share of cached prompt tokens is worth a note, by that share."""
    found: dict[str, list[str]] = {}
    for summary in summaries:
        hits = summary.cache_hit_share
        if hits is not None and hits > PREFIX_HITS:
            found.setdefault(f"{hits:.1%}", []).append(summary.point.label)
    return found


def _load_notes(request: SpeedRequest, before: Probe, summaries: tuple[Summary, ...]) -> list[str]:
    notes = [
        f"{', '.join(labels)}: {share} of the prompt tokens came from the prefix cache: prefill did"
        " less work than the input length says"
        for share, labels in _prefix_hits(summaries).items()
    ]
    asked = request.load.output_tokens
    for summary in summaries:
        if summary.means is not None and summary.means.requests_per_s:
            seen = summary.means.output_tok_s / summary.means.requests_per_s
            if request.load.ignore_eos and abs(seen - asked) > 0.05 * asked:
                notes.append(
                    f"{summary.point.label}: answers had {seen:.1f} tokens on average, and {asked}"
                    " were asked for: the server doesn't hold to ignore_eos, or answers broke off"
                )
    limit = argument_of(
        before.process.args if before.process else (), "--max-running-requests", "--max-num-seqs"
    )
    over = [
        summary.point.label
        for summary in summaries
        if limit.isdigit() and summary.point.loop == "closed" and summary.point.value > int(limit)
    ]
    if over:
        notes.append(
            f"{', '.join(over)}: the server runs at most {limit} requests at once, the rest waited"
        )
    return notes

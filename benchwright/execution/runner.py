"""Runs one stage of one arm to its end: the engine call behind each Prefect task.

A `StageRunner` knows where a run lives (its folder, the cache, the launchers of its hosts) and
turns a stage into a supervised process and the process's output into a result. It decides
nothing: what runs, in which order, and what a failure means is the flow's business.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from pathlib import Path
from typing import Any

from benchwright.errors import (
    BadInput,
    BenchwrightError,
    GuardEnded,
    Interrupted,
    StageFailed,
    Where,
)
from benchwright.execution.accelerators import Accelerators
from benchwright.execution.call import function_argv, read_result, write_request
from benchwright.execution.command import (
    SHELL,
    RenderedStage,
    StagePaths,
    process_environment,
    render_stage,
)
from benchwright.execution.device import Device
from benchwright.execution.launch import EndReason, Launcher, StageLaunch, StageOutcome, Usage
from benchwright.execution.metrics import measurement_from_result, read_measurement
from benchwright.execution.pinning import NO_GPU, pin
from benchwright.execution.sample import LOG_EVIDENCE, Measurement, PrepResult, Sample
from benchwright.execution.spending import Purse, spent_on
from benchwright.execution.vram import explained
from benchwright.identity.cache import ArtifactCache
from benchwright.identity.signature import Signature
from benchwright.spec.arms import Arm
from benchwright.spec.context import StageContext
from benchwright.spec.model import BenchmarkConfig, Stage

LOCAL_HOST = ""
"""Key of the launcher for stages that name no host."""


@dataclass(frozen=True, slots=True)
class Replicate:
    """Which replicate a measure stage is run for; see `judgement.schedule.Slot`."""

    order: int
    block: int
    warmup: bool
    seed: int

    @property
    def label(self) -> str:
        """`warm-up 1`, `replicate 3`: counted from 1, as people do."""
        return f"{'warm-up' if self.warmup else 'replicate'} {self.block + 1}"


@dataclass(slots=True)
class StageRunner:
    """Runs the stages of one run.

    Attributes:
        run_id: The run's id.
        run_dir: Its folder; must exist.
        config: Its configuration.
        folders: What each stage's relative paths start from, by stage name.
        cache: Where prep artifacts are kept.
        launchers: How a process is run, by host name; `LOCAL_HOST` for this machine.
        environ: The environment that the run was asked for in.
        deadline: Monotonic time at which the run's budget ends; None for none.
        accelerators: Hands out this machine's devices; None: stages get none.
        purse: What the run has spent on devices, and may spend.
    """

    run_id: str
    run_dir: Path
    config: BenchmarkConfig
    folders: Mapping[str, Path]
    cache: ArtifactCache
    launchers: Mapping[str, Launcher]
    environ: Mapping[str, str]
    deadline: float | None = None
    accelerators: Accelerators | None = None
    purse: Purse | None = None
    artifacts: dict[tuple[str, str], Path] = field(default_factory=dict)
    """Path of each prep artifact that is ready, by (arm, artifact name)."""

    def prep(
        self,
        stage: Stage,
        arm: Arm,
        signature: Signature,
        resign: Callable[[], Signature],
        on_wait: Callable[[str], None] | None = None,
    ) -> PrepResult:
        """Make a prep stage's artifacts, or take them from the cache.

        Args:
            stage: The stage.
            arm: The arm.
            signature: What its output depends on.
            resign: Signs the stage anew: inputs that change while it runs are noticed.
            on_wait: Called where another run builds the same, with what is waited for.

        Raises:
            StageFailed: The process failed, an artifact is missing, or an input changed under it.
            GuardEnded: A guard ended it.
            Interrupted: It was cancelled.
        """
        start = time.monotonic()
        with self.cache.building(signature, stage, on_wait=on_wait) as build:
            if build.hit is not None:
                self._remember(stage, arm, build.hit.paths)
                return PrepResult(
                    stage.name, arm.name, signature.digest, True, build.hit.reason, 0.0
                )
            why = self.cache.lookup(signature).reason
            paths = StagePaths(self._inputs(stage, arm), build.outputs)
            outcome = self._launch(stage, arm, paths, log=f"{stage.name}.{arm.name}")
            if not outcome.ok:
                raise _failure(stage, arm, outcome)
            after = resign().parts
            moved = [name for name, value in signature.parts.items() if after.get(name) != value]
            if moved:
                raise StageFailed(
                    f"{moved[0]} changed while stage '{stage.name}' ran: what it made belongs to no"
                    " signature and was dropped",
                    where=Where(key=f"stages.{stage.name}"),
                    hint="leave its inputs alone while it runs, and run again",
                )
            published = build.publish()
        self._remember(stage, arm, published.paths)
        wall_s = time.monotonic() - start
        return PrepResult(stage.name, arm.name, signature.digest, False, why, wall_s, outcome.usage)

    def adopt(self, stage: Stage, arm: Arm, signature: Signature) -> PrepResult:
        """Take a prep stage's artifacts from the cache, where Prefect knew that they are there.

        Raises:
            StageFailed: They were there when the run was planned, and aren't any more.
        """
        found = self.cache.lookup(signature)
        if not found.hit:
            raise StageFailed(
                f"the artifacts of stage '{stage.name}' left the cache while the run was starting:"
                f" {found.reason}",
                where=Where(key=f"stages.{stage.name}"),
                hint="run again: they will be built",
            )
        self._remember(stage, arm, found.paths)
        return PrepResult(stage.name, arm.name, signature.digest, True, found.reason, 0.0)

    def measure(self, stage: Stage, arm: Arm, replicate: Replicate) -> Sample:
        """Launch a measure stage once. A failure is a sample without a measurement, not an error.

        Raises:
            BadInput: The stage's environment can't be made.
        """
        outputs = {name: self._replicate_dir(arm, replicate) / name for name in stage.produces}
        for path in outputs.values():
            path.parent.mkdir(parents=True, exist_ok=True)
        paths = StagePaths(self._inputs(stage, arm), outputs)
        log = f"{stage.name}.{arm.name}.{replicate.order:04d}"
        started = datetime.now().astimezone().isoformat(timespec="milliseconds")
        rendered = self._render(stage, arm, paths, replicate)
        fresh = _Freshness.of(rendered)
        outcome = self._launch(stage, arm, paths, log=log, replicate=replicate, rendered=rendered)
        measurement: Measurement | None = None
        reason, error = outcome.reason, outcome.detail
        if outcome.ok:
            try:
                measurement = self._with_evidence(self._read(stage, rendered, log, fresh), log)
                missing = [name for name, path in outputs.items() if not Path(path).exists()]
                if missing:
                    raise StageFailed(
                        f"stage '{stage.name}' ended well, but made no " + ", ".join(missing)
                    )
                for name, path in outputs.items():
                    self.artifacts[arm.name, name] = Path(path)
            except BenchwrightError as problem:
                measurement, reason, error = None, EndReason.FAILED, str(problem)
        return Sample(
            stage=stage.name,
            arm=arm.name,
            block=replicate.block,
            order=replicate.order,
            warmup=replicate.warmup,
            seed=replicate.seed,
            started=started,
            duration_s=outcome.usage.wall_s,
            reason=reason,
            exit_code=outcome.exit_code,
            error=error,
            measurement=measurement,
            usage=outcome.usage,
            notes=outcome.notes,
        )

    def step(self, stage: Stage, arm: Arm, results: Mapping[str, Any]) -> Any:
        """Run a `step` or `gate` stage and give what it returned.

        Args:
            stage: The stage.
            arm: The only arm of a graph without a treatment, or the baseline.
            results: What the stages in `needs` returned, by stage name.

        Raises:
            StageFailed: Its process failed, or an artifact is missing.
        """
        outputs = {name: self.run_dir / "artifacts" / name for name in stage.produces}
        (self.run_dir / "artifacts").mkdir(exist_ok=True)
        paths = StagePaths(self._inputs(stage, arm), outputs)
        log = stage.name
        outcome = self._launch(stage, arm, paths, log=log, results=results)
        if not outcome.ok:
            raise _failure(stage, arm, outcome)
        missing = [name for name, path in outputs.items() if not path.exists()]
        if missing:
            raise StageFailed(
                f"stage '{stage.name}' ended well, but made no " + ", ".join(missing),
                where=Where(key=f"stages.{stage.name}.produces"),
            )
        for name, path in outputs.items():
            self.artifacts[arm.name, name] = path
        if stage.function is not None:
            return read_result(self._result_file(log))
        return None

    def ask(self, stage: Stage, arm: Arm, *, folder: Path) -> Any:
        """Run a command or function that says one value, and give the value.

        Args:
            stage: What to run; it belongs to no graph.
            arm: The arm that it is asked for.
            folder: What its relative paths start from.

        Returns:
            What the function returned, or the last line that the command printed.

        Raises:
            StageFailed: It failed, or printed nothing.
        """
        paths = StagePaths(self._inputs(stage, arm), {})
        log = f"{stage.name}.{arm.name}"
        outcome = self._launch(stage, arm, paths, log=log, folder=folder)
        if not outcome.ok:
            raise _failure(stage, arm, outcome)
        if stage.function is not None:
            return read_result(self._result_file(log))
        printed = (self.run_dir / "logs" / f"{_file_name(log)}.out").read_text(errors="replace")
        lines = printed.split("\n")
        if not printed.strip():
            raise StageFailed("it printed nothing", where=Where(key=stage.name))
        return next(line.strip() for line in reversed(lines) if line.strip())

    def launcher(self, stage: Stage) -> Launcher:
        """How the stage's process is run. Raises BadInput where its host isn't known."""
        launcher = self.launchers.get(stage.host or LOCAL_HOST)
        if launcher is None:
            known = ", ".join(sorted(name for name in self.launchers if name))
            raise BadInput(
                f"stage '{stage.name}' runs on the host '{stage.host}', which isn't known here",
                where=Where(key=f"stages.{stage.name}.host"),
                expected=f"one of {known}" if known else "no `host`: none is known",
                hint="leave `host` out to run it on this machine",
            )
        return launcher

    def _remember(self, stage: Stage, arm: Arm, paths: Mapping[str, Path]) -> None:
        for name in stage.produces:
            self.artifacts[arm.name, name] = paths[name]

    def _inputs(self, stage: Stage, arm: Arm) -> dict[str, Path]:
        producers = {other.name: other for other in self.config.stages}
        return {
            name: self.artifacts[arm.name, name]
            for need in stage.needs
            for name in producers[need].produces
        }

    def _replicate_dir(self, arm: Arm, replicate: Replicate) -> Path:
        return self.run_dir / "artifacts" / arm.name.replace("/", "_") / f"{replicate.order:04d}"

    def _render(
        self,
        stage: Stage,
        arm: Arm,
        paths: StagePaths,
        replicate: Replicate | None,
        folder: Path | None = None,
    ) -> RenderedStage:
        run = {
            "run.id": self.run_id,
            "run.dir": str(self.run_dir),
            "run.arm": arm.name,
            "run.seed": str(replicate.seed if replicate else self.config.replication.seed),
            "run.replicate": str(replicate.order) if replicate else "",
            "run.block": str(replicate.block) if replicate else "",
        }
        return render_stage(
            stage,
            arm,
            folder=folder or self.folders[stage.name],
            paths=paths,
            run=run,
            environ=self.environ,
        )

    def _launch(
        self,
        stage: Stage,
        arm: Arm,
        paths: StagePaths,
        *,
        log: str,
        replicate: Replicate | None = None,
        results: Mapping[str, Any] | None = None,
        rendered: RenderedStage | None = None,
        folder: Path | None = None,
    ) -> StageOutcome:
        rendered = rendered or self._render(stage, arm, paths, replicate, folder)
        logs = self.run_dir / "logs"
        logs.mkdir(exist_ok=True)
        name = _file_name(log)
        if rendered.command is not None:
            argv: tuple[str, ...] = (*SHELL, rendered.command)
        else:
            context = StageContext(
                params=arm.params,
                inputs={key: Path(path) for key, path in paths.inputs.items()},
                outputs={key: Path(path) for key, path in paths.outputs.items()},
                results=results or {},
                run_dir=self.run_dir,
                seed=replicate.seed if replicate else self.config.replication.seed,
                arm=arm.name,
                replicate=replicate.order if replicate else None,
            )
            request = logs / f"{name}.request.json"
            write_request(
                request,
                stage=stage,
                context=context,
                folder=folder or self.folders[stage.name],
                result=self._result_file(log),
            )
            argv = function_argv(request)
        launcher = self.launcher(stage)
        launch = StageLaunch(
            argv=argv,
            cwd=rendered.cwd,
            env=process_environment(rendered, self.environ),
            stdout=logs / f"{name}.out",
            stderr=logs / f"{name}.err",
            memory_mb=self.config.memory_budget_mb(stage),
            label=f"{self.run_id}/{stage.name}/{arm.name}"
            + (f"/{replicate.order}" if replicate else ""),
        )
        if stage.host is not None or self.accelerators is None:
            return launcher.run(replace(launch, timeout_s=self._timeout(stage, ())))
        return self._run_with_devices(stage, arm, launch, launcher, self.accelerators)

    def _run_with_devices(
        self,
        stage: Stage,
        arm: Arm,
        launch: StageLaunch,
        launcher: Launcher,
        accelerators: Accelerators,
    ) -> StageOutcome:
        """Run a process held to the devices that its stage asks for, and account for it."""
        with accelerators.reserved(stage) as devices:
            if devices:
                env = {**launch.env, **pin(devices, accelerators.chips)}
            else:
                env = {**(NO_GPU if accelerators.declared else {}), **launch.env}
            outcome = launcher.run(
                replace(
                    launch,
                    env=env,
                    timeout_s=self._timeout(stage, devices),
                    gpus=tuple(device.uuid for device in devices),
                    vram_mb=stage.resources.vram_mb,
                )
            )
        if devices:
            outcome = explained(outcome, stage, devices, (launch.stderr, launch.stdout))
        if self.purse is not None:
            self.purse.add(spent_on(stage, arm.name, devices, outcome, self.purse.prices))
        return outcome

    def _timeout(self, stage: Stage, devices: Sequence[Device]) -> float | None:
        """Seconds that a process has: its own deadline, or less where a budget ends earlier."""
        left = [] if stage.timeout_s is None else [stage.timeout_s]
        if self.deadline is not None:
            left.append(self.deadline - time.monotonic())
        bounded = self.purse.seconds_left(devices) if self.purse is not None else None
        if bounded is not None:
            left.append(bounded)
        return max(min(left), 0.05) if left else None

    def _with_evidence(self, measurement: Measurement, log: str) -> Measurement:
        """The measurement, with the count of lines that show that the changed code ran."""
        evidence = self.config.code_evidence
        if evidence is None or evidence.log_line is None:
            return measurement
        pattern = re.compile(evidence.log_line.encode())
        count = 0
        for suffix in ("out", "err"):
            with (self.run_dir / "logs" / f"{_file_name(log)}.{suffix}").open("rb") as lines:
                count += sum(pattern.search(line) is not None for line in lines)
        return replace(measurement, effective={**measurement.effective, LOG_EVIDENCE: count})

    def _result_file(self, log: str) -> Path:
        return self.run_dir / "logs" / f"{_file_name(log)}.result.json"

    def _read(
        self, stage: Stage, rendered: RenderedStage, log: str, fresh: _Freshness
    ) -> Measurement:
        """The measurement of a stage that ended well; an empty one for a link in a chain."""
        names = tuple(metric.name for metric in self.config.metrics)
        if stage.function is not None:
            result = read_result(self._result_file(log))
            return measurement_from_result(stage, result, expected=names)
        if stage.metrics_from is None:
            return Measurement(metrics={})
        fresh.check(stage, rendered)
        return read_measurement(
            _with_files(stage, rendered),
            stdout=self.run_dir / "logs" / f"{_file_name(log)}.out",
            cwd=rendered.cwd,
            expected=names,
        )


@dataclass(frozen=True, slots=True)
class _Freshness:
    """What the files that a replicate is to write looked like before it ran.

    A file that an earlier replicate left is no measurement of this one.
    """

    before: Mapping[str, tuple[int, int, int] | None]

    @classmethod
    def of(cls, rendered: RenderedStage) -> _Freshness:
        names = [name for name in (rendered.metrics_file, rendered.effective_file) if name]
        return cls({name: _stat(rendered.cwd / name) for name in names})

    def check(self, stage: Stage, rendered: RenderedStage) -> None:
        for name, before in self.before.items():
            now = _stat(rendered.cwd / name)
            if now is not None and now == before:
                raise StageFailed(
                    f"stage '{stage.name}' didn't write {name}: the file there is an older one",
                    where=Where(file=rendered.cwd / name),
                    expected="a file written by this replicate",
                    hint="have the stage write it each time, or remove the old one",
                )


def _stat(path: Path) -> tuple[int, int, int] | None:
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_ino, found.st_mtime_ns, found.st_size


def _with_files(stage: Stage, rendered: RenderedStage) -> Stage:
    """The stage with the rendered names of the files that its results are read from."""
    updates: dict[str, Any] = {}
    if stage.metrics_from and rendered.metrics_file:
        updates["metrics_from"] = stage.metrics_from.model_copy(
            update={"file": rendered.metrics_file}
        )
    if stage.effective_from and rendered.effective_file:
        updates["effective_from"] = stage.effective_from.model_copy(
            update={"file": rendered.effective_file}
        )
    return stage.model_copy(update=updates) if updates else stage


def _file_name(log: str) -> str:
    return "".join(c if c.isalnum() or c in "._-=@+" else "_" for c in log)


def _failure(stage: Stage, arm: Arm, outcome: StageOutcome) -> BenchwrightError:
    words = {
        EndReason.FAILED: f"ended with exit code {outcome.exit_code}"
        if outcome.signal is None
        else f"was ended by signal {outcome.signal}",
        EndReason.TIMEOUT: "passed its deadline",
        EndReason.MEMORY: "passed its memory budget",
        EndReason.VRAM: "passed its GPU memory",
        EndReason.CANCELLED: "was cancelled",
        EndReason.LOST: "was lost: its supervisor ended",
    }
    guards = (EndReason.MEMORY, EndReason.VRAM)
    kinds = {EndReason.CANCELLED: Interrupted, **dict.fromkeys(guards, GuardEnded)}
    return kinds.get(outcome.reason, StageFailed)(
        f"stage '{stage.name}' ({arm.name}) {words[outcome.reason]}",
        where=Where(key=f"stages.{stage.name}"),
        hint=outcome.detail or None,
    )


def not_run(stage: Stage, arm: Arm, replicate: Replicate, error: str) -> Sample:
    """The sample of a replicate that an earlier link of its chain kept from running."""
    return Sample(
        stage=stage.name,
        arm=arm.name,
        block=replicate.block,
        order=replicate.order,
        warmup=replicate.warmup,
        seed=replicate.seed,
        started=datetime.now().astimezone().isoformat(timespec="milliseconds"),
        duration_s=0.0,
        reason=EndReason.FAILED,
        exit_code=None,
        error=error,
        measurement=None,
        usage=Usage(wall_s=0.0),
    )


def sample_error(sample: Sample, name: str) -> BenchwrightError:
    """What a failed replicate means for its run; `name` is what a person calls it."""
    guards = (EndReason.MEMORY, EndReason.VRAM)
    kinds = {EndReason.CANCELLED: Interrupted, **dict.fromkeys(guards, GuardEnded)}
    return kinds.get(sample.reason, StageFailed)(
        f"{name}: {sample.reason.value}"
        + (f" with exit code {sample.exit_code}" if sample.exit_code else ""),
        where=Where(key=f"stages.{sample.stage}"),
        hint=sample.error or None,
    )

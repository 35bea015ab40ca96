"""The run that this process is working on, for the tasks of its flow.

Prefect tasks take and give plain text and numbers, which its pages can show; what they work on
(the runner, the run's folder) is bound here by the flow.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchwright.execution.host import holders
from benchwright.execution.runner import StageRunner
from benchwright.execution.sample import PrepResult, Sample
from benchwright.identity.fingerprint import Fingerprint
from benchwright.identity.signature import Signature
from benchwright.judgement.verdict import Finding
from benchwright.planning.ceiling import Ceiling
from benchwright.planning.cost import CostEstimate
from benchwright.record.run import RunRecord
from benchwright.record.store import RunFolder
from benchwright.spec.arms import Arm
from benchwright.spec.model import BenchmarkConfig, Stage
from tasks.slots import Slots


@dataclass(slots=True)
class RunSession:
    """What the tasks of one run share.

    Attributes:
        home: `$BENCHMARK_HOME`.
        folder: The run's folder.
        record: The run as it was recorded when it started.
        arms: By name, the baseline first.
        runner: Runs its stages.
        signatures: By (stage, arm), signed when the run started.
        fingerprint: What the run runs on.
        slots: Its slots on the Prefect server.
        prep, samples, steps, findings: What the run has given so far.
        cancelled: Set when a person or a signal asks the run to end.
        finished: The run as it was recorded when it ended.
        ceiling: What it may spend; None where it costs nothing.
    """

    home: Path
    folder: RunFolder
    record: RunRecord
    arms: Mapping[str, Arm]
    runner: StageRunner
    signatures: Mapping[tuple[str, str], Signature]
    domain_version: str
    fingerprint: Fingerprint
    slots: Slots
    prep: list[PrepResult] = field(default_factory=list)
    samples: list[Sample] = field(default_factory=list)
    steps: dict[str, Any] = field(default_factory=dict)
    findings: list[Finding] = field(default_factory=list)
    cancelled: threading.Event = field(default_factory=threading.Event)
    finished: RunRecord | None = None
    cost: CostEstimate | None = None
    """What it was estimated to take of accelerators; None where no stage asks for any."""
    ceiling: Ceiling | None = None

    @property
    def config(self) -> BenchmarkConfig:
        """The run's configuration."""
        return self.record.view.config

    def stage(self, name: str) -> Stage:
        """The stage of that name. Raises KeyError."""
        for stage in self.config.stages:
            if stage.name == name:
                return stage
        raise KeyError(name)

    def wait_for_machine(self) -> None:
        """Let another run have what it waits for, and tell who follows that it has the machine."""
        self.slots.let_go()
        known = f" (process {pids[0]})" if (pids := holders()) else ""
        self.folder.event({"kind": "waiting", "for": f"another run on this machine{known}"})


_SESSION: ContextVar[RunSession] = ContextVar("benchwright_run_session")


def session() -> RunSession:
    """The run that this flow works on. Raises LookupError outside of one."""
    return _SESSION.get()


@contextmanager
def bound(run: RunSession) -> Iterator[RunSession]:
    """Bind a run for the tasks that are called inside."""
    token = _SESSION.set(run)
    try:
        yield run
    finally:
        _SESSION.reset(token)

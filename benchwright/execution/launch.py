"""What the supervisor is asked to run, and what it says afterwards."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Protocol


@dataclass(frozen=True, slots=True)
class StageLaunch:
    """One process of a stage, ready to start.

    Attributes:
        argv: The program and its arguments.
        cwd: Working directory; must exist.
        env: The whole environment of the process.
        stdout: File that receives standard output, created or truncated, mode 0600.
        stderr: Likewise for standard error.
        timeout_s: Deadline in seconds of wall time; None for none.
        grace_s: Seconds between TERM and KILL.
        memory_mb: Budget in MB (10^6 bytes) for the whole process tree; None for none.
        output_limit_mb: Each output file keeps at most this many MB; the rest is counted and
            dropped, and the stage goes on.
        label: `run/stage/arm/replicate`, for process listings and the sweep of orphans.
        gpus: UUIDs of the devices that are pinned; empty for none.
        vram_mb: Budget of GPU memory for each device.
    """

    argv: tuple[str, ...]
    cwd: Path
    env: Mapping[str, str]
    stdout: Path
    stderr: Path
    timeout_s: float | None = None
    grace_s: float = 5.0
    memory_mb: float | None = None
    output_limit_mb: float = 64.0
    label: str = ""
    gpus: tuple[str, ...] = ()
    vram_mb: float | None = None


class EndReason(StrEnum):
    """Why a stage's process ended. `memory` and `vram` are claimed on evidence only."""

    COMPLETED = "completed"
    FAILED = "failed"
    TIMEOUT = "timeout"
    MEMORY = "memory"
    VRAM = "vram"
    CANCELLED = "cancelled"
    LOST = "lost"


@dataclass(frozen=True, slots=True)
class Usage:
    """What a stage's process tree used. None: could not be read.

    Attributes:
        wall_s: Seconds from start to the end of the main process, monotonic clock.
        cpu_user_s, cpu_system_s: CPU seconds of the tree.
        peak_memory_mb: Largest memory of the tree at one time, in MB (10^6 bytes).
        read_mb, written_mb: Storage I/O of the tree, in MB.
        stdout_bytes, stderr_bytes: What it printed, dropped bytes included.
        guard: Name of the memory mechanism in force: `cgroup2`, `cgroup1`, `polling`, `none`.
        vram_peak_mb: Largest GPU memory seen on a device, where it can be attributed.
        gpu_seconds: Devices times wall seconds.
    """

    wall_s: float
    cpu_user_s: float | None = None
    cpu_system_s: float | None = None
    peak_memory_mb: float | None = None
    read_mb: float | None = None
    written_mb: float | None = None
    stdout_bytes: int = 0
    stderr_bytes: int = 0
    guard: str = "none"
    vram_peak_mb: float | None = None
    gpu_seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class StageOutcome:
    """How a stage's process ended.

    Attributes:
        reason: One word.
        exit_code: Of the main process; None where a signal ended it or it is lost.
        signal: Number of the signal that ended the main process; None otherwise.
        usage: What its tree used.
        detail: A sentence for a person: limit and figure for a guard, the tail of the standard
            error for a failure.
        notes: What else was seen (output cut, leftover processes ended), a sentence each.
    """

    reason: EndReason
    exit_code: int | None
    signal: int | None
    usage: Usage
    detail: str = ""
    notes: tuple[str, ...] = field(default=())

    @property
    def ok(self) -> bool:
        """Whether the stage completed with exit code 0."""
        return self.reason is EndReason.COMPLETED


class Launcher(Protocol):
    """Runs a stage's process somewhere: on this machine under supervision, or on a host."""

    def run(self, launch: StageLaunch) -> StageOutcome:
        """Run it to its end. Returns always: a failure to start is a `failed` outcome."""
        ...

"""The guard of GPU memory: what a stage's processes hold on their devices, looked at as it runs.

Memory is counted by PID. On a device that somebody else computes on, nothing is attributed to
the stage: the figure is refused. With a budget (`vram_mb`) a guard that goes blind ends the
stage; without one, only the figure is lost.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from benchwright.execution import tree
from benchwright.execution.device import Device
from benchwright.execution.kfd import amd_devices
from benchwright.execution.launch import EndReason, StageLaunch, StageOutcome
from benchwright.execution.nvml import Nvml

if TYPE_CHECKING:  # the guard starts with each stage: it loads no more than it needs
    from benchwright.spec.model import Stage

WATCH = f"{__name__}:watch"
"""Name of the factory below, for `Supervisor(watch=...)`."""

INTERVAL_S = 0.25
"""A look takes about a millisecond a device: under 1 % of a core."""

OUT_OF_MEMORY = re.compile(
    r"CUDA out of memory|torch\.(cuda\.)?OutOfMemoryError|CUDA_ERROR_OUT_OF_MEMORY"
    r"|cudaErrorMemoryAllocation|CUBLAS_STATUS_ALLOC_FAILED|HIP out of memory"
    r"|hipErrorOutOfMemory|RESOURCE_EXHAUSTED: Out of memory"
)
"""What PyTorch, CUDA, cuBLAS, HIP and XLA print when a device has no memory left."""

TAIL_BYTES = 1 << 16
"""The end of what a program printed, in which it says why it gave up."""


class Meter(Protocol):
    """Reads one device, again and again."""

    def device(self, uuid: str) -> Device:
        """The device as it is now. Raises where it doesn't answer."""
        ...


@dataclass(slots=True)
class KfdMeter:
    """Reads AMD devices; see `kfd`."""

    root: Path = Path("/")

    def device(self, uuid: str) -> Device:
        """The device as it is now.

        Raises:
            LookupError: It has gone.
        """
        for device in amd_devices(self.root):
            if device.uuid == uuid:
                return device
        raise LookupError(f"{uuid} has gone")


def watch(launch: StageLaunch) -> VramWatch | None:
    """The guard of a stage; None for one without a GPU. Called in its attendant.

    Raises:
        NvmlUnavailable: NVML can't be used, though the stage has an NVIDIA device.
    """
    gpus = tuple(uuid for uuid in launch.gpus if not uuid.startswith("TPU-"))
    if not gpus:
        return None
    amd = {device.uuid for device in amd_devices()}
    meter: Meter = KfdMeter() if set(gpus) <= amd else Nvml().__enter__()
    guard = VramWatch(meter, gpus, launch.vram_mb)
    guard.begin()
    return guard


@dataclass(slots=True)
class VramWatch:
    """Looks at the devices of one stage; an `attendant.Watch`.

    Attributes:
        meter: Reads a device.
        gpus: UUIDs of the stage's devices.
        budget_mb: What it may hold on each; None for no budget.
    """

    meter: Meter
    gpus: tuple[str, ...]
    budget_mb: float | None = None
    interval_s: float = INTERVAL_S
    _own: set[int] = field(default_factory=set)
    _suspects: set[int] = field(default_factory=set)
    _at_first: dict[str, float] = field(default_factory=dict)
    _peak_mb: float = 0.0
    _seen: bool = False
    _refused: str = ""

    def begin(self) -> None:
        """Note what is taken before the stage starts. Raises what the meter raises."""
        for uuid in self.gpus:
            self._at_first[uuid] = _used(self.meter.device(uuid)) or 0.0

    def look(self, pids: frozenset[int]) -> str | None:
        """Look once; see `attendant.Watch`.

        Raises:
            Exception: The guard is blind and there is a budget to keep: it fails closed.
        """
        self._own |= pids
        unknown: set[int] = set()
        for uuid in self.gpus:
            try:
                device = self.meter.device(uuid)
            except Exception as problem:
                if self.budget_mb is not None:
                    raise
                self._refuse(f"{uuid} stopped answering ({problem})")
                return None
            sentence = self._count(device)
            if sentence:
                return sentence
            unknown |= {p.pid for p in device.computing if p.pid not in self._own}
        # A process of the stage may be on the device before it is known here, for one look.
        for pid in sorted(unknown & self._suspects):
            self._refuse(f"{tree.describe(pid)}, which is not the stage's, used its device")
        self._suspects = unknown
        return None

    def peak_mb(self) -> float | None:
        """Largest memory that the stage's processes held on one device, in MB."""
        return None if self._refused or not self._seen else self._peak_mb

    def notes(self) -> tuple[str, ...]:
        """Why there is no figure, a sentence each."""
        if self._refused:
            return (f"GPU memory is not attributed to the stage: {self._refused}.",)
        if not self._seen:
            return (
                "The driver named no process of the stage on its devices: it may not have used "
                "them, or was done before the first look.",
            )
        return ()

    def _count(self, device: Device) -> str | None:
        """Add up one device; a sentence where its budget is passed."""
        mine = [process for process in device.processes if process.pid in self._own]
        self._seen = self._seen or bool(mine)
        if any(process.used_mb is None for process in mine):
            self._blind(device, "the driver doesn't say how much of it each process holds")
            return None
        held = sum(process.used_mb or 0.0 for process in mine)
        self._peak_mb = max(self._peak_mb, held)
        if self.budget_mb is not None and held > self.budget_mb:
            return (
                f"The stage asked for {self.budget_mb:.0f} MB on each device and held "
                f"{held:.0f} MB on {device.uuid} ({device.name}); {_free(device)}."
            )
        named = [process for process in device.processes if tree.stat_of(process.pid)]
        if not mine and not named:
            self._unseen(device)
        return None

    def _unseen(self, device: Device) -> None:
        """Memory is taken on a device, and the driver names no process that can be seen here."""
        used = _used(device)
        if used is None or self.budget_mb is None:
            return
        grown = used - self._at_first.get(device.uuid, 0.0)
        if grown > self.budget_mb:
            self._blind(
                device,
                f"{grown:.0f} MB were taken there by no process that can be seen (in a "
                "container, start it with the host's PIDs)",
            )

    def _blind(self, device: Device, why: str) -> None:
        if self.budget_mb is not None:
            raise RuntimeError(
                f"the budget of {self.budget_mb:.0f} MB on {device.uuid} can't be watched: {why}"
            )
        self._refuse(f"on {device.uuid}, {why}")

    def _refuse(self, why: str) -> None:
        self._refused = self._refused or why


def _used(device: Device) -> float | None:
    if device.free_mb is None or device.total_mb is None:
        return None
    return device.total_mb - device.free_mb


def _free(device: Device) -> str:
    if device.free_mb is None or device.total_mb is None:
        return "how much is free can't be read"
    return f"{device.free_mb:.0f} of {device.total_mb:.0f} MB are free"


def explained(
    outcome: StageOutcome, stage: Stage, devices: Sequence[Device], logs: Sequence[Path]
) -> StageOutcome:
    """The outcome of a stage with devices; `vram` where its program said that memory ran out.

    An exit code alone is no evidence: the line that the program printed is.

    Args:
        outcome: As its supervisor gave it.
        stage: The stage.
        devices: As they were before it started.
        logs: Files with what it printed.
    """
    if outcome.reason is not EndReason.FAILED:
        return outcome
    line = next((found for log in logs if (found := ran_out(_tail(log)))), None)
    if line is None:
        return outcome
    asked = stage.resources.vram_mb
    peak = outcome.usage.vram_peak_mb
    before = "; ".join(f"{device.uuid} ({device.name}): {_free(device)}" for device in devices)
    detail = (
        f"The stage ran out of GPU memory: {line}. It asked for "
        f"{f'{asked:.0f} MB on each device' if asked else 'no amount (`vram_mb`)'}, held "
        f"{f'{peak:.0f} MB at most' if peak is not None else 'an unknown amount'}; before it "
        f"started: {before}."
    )
    return replace(outcome, reason=EndReason.VRAM, detail=detail)


def ran_out(text: str) -> str | None:
    """The line in which a program says that its device has no memory left; None without one."""
    for line in text.splitlines():
        if OUT_OF_MEMORY.search(line):
            return line.strip()[:300]
    return None


def _tail(log: Path) -> str:
    try:
        with log.open("rb") as file:
            file.seek(max(log.stat().st_size - TAIL_BYTES, 0))
            return file.read().decode(errors="replace")
    except OSError:
        return ""

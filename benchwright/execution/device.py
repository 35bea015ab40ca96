"""Accelerators as this engine sees them, whoever made them."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

MB = 1_000_000


class Vendor(StrEnum):
    """Whose devices: it decides which variables pin a process to them."""

    NVIDIA = "nvidia"
    AMD = "amd"
    TPU = "tpu"


@dataclass(frozen=True, slots=True)
class DeviceProcess:
    """A process that has memory on a device.

    Attributes:
        pid: As the driver names it; in a container without the host's PIDs it names no process
            that can be seen.
        used_mb: Its memory on the device, in MB; None where the driver doesn't say.
        computes: Whether it computes there; a display server only draws.
    """

    pid: int
    used_mb: float | None
    computes: bool = True


@dataclass(frozen=True, slots=True)
class Device:
    """One device that a stage can be given whole: a GPU, a MIG instance of one, or a TPU chip.

    Attributes:
        uuid: `GPU-...`, `MIG-...`, or `TPU-<index>`: TPU chips have no better name.
        name: As its driver calls it, such as `NVIDIA H200`; prices go by it.
        index: Its place in the driver's order, from 0; that of the whole GPU for a MIG instance.
        vendor: Whose it is.
        total_mb, free_mb: Its memory, in MB (10^6 bytes); None where it can't be read.
        processes: What has memory on it now.
        is_slice: Whether it is a MIG instance. CUDA shows a process at most one of them.
    """

    uuid: str
    name: str
    index: int
    vendor: Vendor
    total_mb: float | None = None
    free_mb: float | None = None
    processes: tuple[DeviceProcess, ...] = ()
    is_slice: bool = False

    @property
    def computing(self) -> tuple[DeviceProcess, ...]:
        """The processes that compute on it."""
        return tuple(process for process in self.processes if process.computes)

"""The accelerator's part of a fingerprint: NVIDIA devices by NVML, TPUs by their device files."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from benchwright.identity.reading import NONE, UNKNOWN, Field, all_of, read_fields, text

MB = 1_000_000

GOOGLE_PCI_VENDOR = "0x1ae0"
TPU_PCI_DEVICES = {
    "0x0027": "v2 or v3",
    "0x005e": "v4",
    "0x0062": "v5p",
    "0x0063": "v5e",
    "0x006f": "v6e",
}
"""PCI device ids of TPUs, as JAX knows them (jax/_src/hardware_utils.py)."""


class Nvml:
    """NVML through its binding, open from `__enter__` to `__exit__`."""

    def __init__(self, binding: Any) -> None:
        self.binding = binding
        self.devices: list[Any] = []

    def __enter__(self) -> Nvml:
        self.binding.nvmlInit()
        count = self.binding.nvmlDeviceGetCount()
        self.devices = [self.binding.nvmlDeviceGetHandleByIndex(index) for index in range(count)]
        return self

    def __exit__(self, *_: object) -> None:
        self.binding.nvmlShutdown()

    def each(self, ask: Callable[[Any], str]) -> str:
        """The answer for every device, in one text; a feature that it lacks is `not supported`."""
        return all_of(self._answer(ask, device) for device in self.devices)

    def _answer(self, ask: Callable[[Any], str], device: Any) -> str:
        try:
            return ask(device)
        except self.binding.NVMLError as error:
            unsupported = getattr(self.binding, "NVML_ERROR_NOT_SUPPORTED", 3)
            return "not supported" if getattr(error, "value", None) == unsupported else UNKNOWN


def _name(nvml: Nvml) -> str:
    def ask(device: Any) -> str:
        name = nvml.binding.nvmlDeviceGetName(device)
        return name.decode() if isinstance(name, bytes) else str(name)  # bytes in old bindings

    return nvml.each(ask)


def _driver(nvml: Nvml) -> str:
    driver = nvml.binding.nvmlSystemGetDriverVersion()
    return driver.decode() if isinstance(driver, bytes) else str(driver)


def _cuda(nvml: Nvml) -> str:
    version = nvml.binding.nvmlSystemGetCudaDriverVersion()
    return f"{version // 1000}.{version % 1000 // 10}"


def _memory(nvml: Nvml) -> str:
    return nvml.each(
        lambda device: f"{nvml.binding.nvmlDeviceGetMemoryInfo(device).total / MB:.0f} MB"
    )


def _ecc(nvml: Nvml) -> str:
    return nvml.each(lambda device: _on(nvml.binding.nvmlDeviceGetEccMode(device)[0]))


def _power_limit(nvml: Nvml) -> str:
    return nvml.each(
        lambda device: f"{nvml.binding.nvmlDeviceGetEnforcedPowerLimit(device) / 1000:.0f} W"
    )


def _mig(nvml: Nvml) -> str:
    return nvml.each(lambda device: _on(nvml.binding.nvmlDeviceGetMigMode(device)[0]))


def _on(flag: int) -> str:
    return "on" if flag else "off"


GPU: tuple[Field[Nvml], ...] = (
    Field("accelerator.model", "another device runs the same code at another speed", _name),
    Field("accelerator.count", "work is split over the devices", lambda gpu: str(len(gpu.devices))),
    Field("accelerator.memory", "batch and cache sizes follow the device's memory", _memory),
    Field("accelerator.driver", "drivers differ in their kernels and schedulers", _driver),
    Field("accelerator.cuda", "CUDA versions choose other kernels", _cuda),
    Field("accelerator.ecc", "ECC takes bandwidth", _ecc),
    Field("accelerator.power_limit", "the power limit bounds the clock", _power_limit),
    Field("accelerator.mig", "a MIG slice is a part of a device", _mig),
)


def _tpu_pci(root: Path) -> Iterator[str]:
    """The PCI device id of each TPU."""
    for device in sorted((root / "sys/bus/pci/devices").glob("*")):
        if text(device / "vendor") == GOOGLE_PCI_VENDOR:
            found = text(device / "device")
            if found in TPU_PCI_DEVICES:
                yield found


def _has_tpu(root: Path) -> bool:
    """Whether there is a TPU. `/dev/accel*` alone isn't one: other makers use that name too."""
    return bool(os.environ.get("TPU_ACCELERATOR_TYPE")) or any(_tpu_pci(root))


def _tpu_type(root: Path) -> str:
    if not _has_tpu(root):
        return NONE
    declared = os.environ.get("TPU_ACCELERATOR_TYPE") or os.environ.get("ACCELERATOR_TYPE")
    return declared or all_of(TPU_PCI_DEVICES[device] for device in _tpu_pci(root))


def tpu_types(root: Path = Path("/")) -> tuple[str, ...]:
    """The type of each TPU chip, such as `v5e`, as far as it can be told; empty without a TPU."""
    declared = os.environ.get("TPU_ACCELERATOR_TYPE")
    chips = tuple(TPU_PCI_DEVICES[device] for device in _tpu_pci(root))
    return chips or ((declared,) if declared else ())


def _tpu_topology(root: Path) -> str:
    if not _has_tpu(root):
        return NONE
    return os.environ.get("TPU_TOPOLOGY") or os.environ.get("TPU_CHIPS_PER_HOST_BOUNDS") or UNKNOWN


def _tpu_chips(root: Path) -> str:
    if not _has_tpu(root):
        return NONE
    chips = len(list(_tpu_pci(root))) or len(list((root / "dev").glob("accel[0-9]*")))
    return str(chips) if chips else UNKNOWN


TPU: tuple[Field[Path], ...] = (
    Field("accelerator.tpu_type", "another TPU runs the same code at another speed", _tpu_type),
    Field("accelerator.tpu_topology", "chips talk along the topology", _tpu_topology),
    Field("accelerator.tpu_chips", "work is split over the chips", _tpu_chips),
)


def read_accelerator(root: Path = Path("/")) -> dict[str, str]:
    """The accelerator's fields; each is `none` where there is no such device.

    A device file without a working NVML is a device that can't be read: `unknown`, not `none`.
    """
    return {**_read_gpu(root), **read_fields(TPU, root)}


def _read_gpu(root: Path) -> dict[str, str]:
    try:
        import pynvml

        with Nvml(pynvml) as nvml:
            return read_fields(GPU, nvml)
    except Exception:  # no binding, no library, no driver, or one that answers with an error
        there = any((root / "dev").glob("nvidia[0-9]*"))
        return {field.name: UNKNOWN if there else NONE for field in GPU}

"""NVIDIA devices, read through NVML's kept binding (nvidia-ml-py, the extra `gpu`).

Processes are asked for as compute and as graphics processes; with MIG enabled a GPU is its
instances, which have UUIDs, memory and processes of their own. Source: NVML API reference,
"Device Queries" and "Multi Instance GPU Management".
"""

from __future__ import annotations

from types import TracebackType
from typing import Any

from benchwright.execution.device import MB, Device, DeviceProcess, Vendor


class NvmlUnavailable(Exception):
    """NVML can't be used; the text says why, and what to do."""


class Nvml:
    """NVML, open from `__enter__` to `__exit__`.

    Raises:
        NvmlUnavailable: No binding, no library or no driver.
    """

    def __init__(self) -> None:
        try:
            import pynvml
        except ImportError as error:
            raise NvmlUnavailable(
                "the binding of NVML is not installed (pip install 'benchwright[gpu]')"
            ) from error
        self._binding: Any = pynvml

    def __enter__(self) -> Nvml:
        try:
            self._binding.nvmlInit()
        except self._binding.NVMLError as error:
            raise NvmlUnavailable(
                f"NVML can't be used: {error} (does nvidia-smi work here?)"
            ) from error
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._binding.nvmlShutdown()

    def devices(self) -> list[Device]:
        """Every device that a stage can be given, in the driver's order.

        Raises:
            NvmlUnavailable: A device doesn't answer.
        """
        nvml = self._binding
        try:
            found: list[Device] = []
            for index in range(nvml.nvmlDeviceGetCount()):
                whole = nvml.nvmlDeviceGetHandleByIndex(index)
                slices = self._slices(whole)
                if slices is None:
                    found.append(self._read(whole, index, is_slice=False))
                else:
                    found += [self._read(handle, index, is_slice=True) for handle in slices]
            return found
        except nvml.NVMLError as error:
            raise NvmlUnavailable(f"NVML stopped answering: {error}") from error

    def device(self, uuid: str) -> Device:
        """One device, as it is now.

        Raises:
            NvmlUnavailable: It doesn't answer.
        """
        nvml = self._binding
        try:
            handle = nvml.nvmlDeviceGetHandleByUUID(uuid)
            return self._read(handle, -1, is_slice=uuid.startswith("MIG-"))
        except nvml.NVMLError as error:
            raise NvmlUnavailable(f"NVML lost {uuid}: {error}") from error

    def _slices(self, whole: Any) -> list[Any] | None:
        """The MIG instances of a GPU; None where MIG is off, or isn't known there."""
        nvml = self._binding
        try:
            current, _ = nvml.nvmlDeviceGetMigMode(whole)
        except nvml.NVMLError as error:
            if _code(error) in (nvml.NVML_ERROR_NOT_SUPPORTED, nvml.NVML_ERROR_FUNCTION_NOT_FOUND):
                return None
            raise
        if not current:
            return None
        found = []
        for place in range(nvml.nvmlDeviceGetMaxMigDeviceCount(whole)):
            try:
                found.append(nvml.nvmlDeviceGetMigDeviceHandleByIndex(whole, place))
            except nvml.NVMLError as error:
                if _code(error) != nvml.NVML_ERROR_NOT_FOUND:  # a place without an instance
                    raise
        return found

    def _read(self, handle: Any, index: int, *, is_slice: bool) -> Device:
        nvml = self._binding
        memory = nvml.nvmlDeviceGetMemoryInfo(handle)
        return Device(
            uuid=_text(nvml.nvmlDeviceGetUUID(handle)),
            name=_text(nvml.nvmlDeviceGetName(handle)),
            index=index,
            vendor=Vendor.NVIDIA,
            total_mb=memory.total / MB,
            free_mb=memory.free / MB,
            processes=self._processes(handle),
            is_slice=is_slice,
        )

    def _processes(self, handle: Any) -> tuple[DeviceProcess, ...]:
        """Each process once; one that computes and draws has the same memory in both lists."""
        nvml = self._binding
        found: dict[int, DeviceProcess] = {}
        asked = (
            (nvml.nvmlDeviceGetGraphicsRunningProcesses, False),
            (nvml.nvmlDeviceGetComputeRunningProcesses, True),
        )
        for ask, computes in asked:
            try:
                listed = ask(handle)
            except nvml.NVMLError as error:
                # MIG instances and some boards have no graphics list; a missing compute list
                # would make a busy device look free.
                if not computes and _code(error) == nvml.NVML_ERROR_NOT_SUPPORTED:
                    continue
                raise
            for one in listed:
                used = one.usedGpuMemory
                megabytes = used / MB if used is not None else None
                found[one.pid] = DeviceProcess(one.pid, megabytes, computes)
        return tuple(found[pid] for pid in sorted(found))


def _code(error: Any) -> int:
    return int(error.value)


def _text(value: str | bytes) -> str:
    return value.decode() if isinstance(value, bytes) else value  # bytes in old bindings

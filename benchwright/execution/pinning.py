"""The variables by which a process is held to its devices and kept from all others.

Sources: CUDA Programming Guide, "CUDA Environment Variables"; ROCm, "GPU isolation techniques";
JAX, "Run JAX on a subset of TPU chips".
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from benchwright.execution.device import Device, Vendor

CUDA, ROCR, HIP, CHIPS = (
    "CUDA_VISIBLE_DEVICES",
    "ROCR_VISIBLE_DEVICES",
    "HIP_VISIBLE_DEVICES",
    "TPU_VISIBLE_CHIPS",
)
PINS = (CUDA, ROCR, HIP, CHIPS, "TPU_CHIPS_PER_PROCESS_BOUNDS", "TPU_PROCESS_BOUNDS")
"""Every variable that is set here. A stage that asks for devices may set none of them itself."""

NO_GPU: Mapping[str, str] = {CUDA: "", ROCR: ""}
"""For a stage that asks for no GPU in a run where others do. HIP reads CUDA's variable too."""

_BOUNDS = {1: "1,1,1", 2: "1,2,1", 4: "2,2,1"}
"""Shape of a group of TPU chips that lie together on one board."""


def pin(devices: Sequence[Device], tpu_chips: int = 0) -> dict[str, str]:
    """The variables that hold a process to these devices.

    By UUID, since a number means another device once CUDA_DEVICE_ORDER or another variable
    changes the order.

    Args:
        devices: What the stage was given.
        tpu_chips: How many chips the machine has: part of a board needs its shape said.
    """
    gpus = [device for device in devices if device.vendor is not Vendor.TPU]
    chips = [device for device in devices if device.vendor is Vendor.TPU]
    pins: dict[str, str] = {} if gpus else dict(NO_GPU)
    if gpus and gpus[0].vendor is Vendor.NVIDIA:
        pins[CUDA] = ",".join(device.uuid for device in gpus)
    elif gpus:
        # ROCR takes the UUIDs; HIP counts what ROCR left. HIP obeys CUDA's variable as well,
        # so that one stays unset.
        pins[ROCR] = ",".join(
            str(device.index) if device.uuid.startswith("AMD-") else device.uuid for device in gpus
        )
        pins[HIP] = ",".join(str(place) for place in range(len(gpus)))
    if chips:
        pins[CHIPS] = ",".join(str(device.index) for device in chips)
        if len(chips) < tpu_chips and len(chips) in _BOUNDS:
            pins["TPU_CHIPS_PER_PROCESS_BOUNDS"] = _BOUNDS[len(chips)]
            pins["TPU_PROCESS_BOUNDS"] = "1,1,1"
    return pins


def allowed(devices: Sequence[Device], environ: Mapping[str, str]) -> list[Device]:
    """The devices that the caller may use, by the variables that a cluster's scheduler sets.

    An entry is an index or the start of a UUID, as the drivers read them; what follows an entry
    that names no device is not seen either (CUDA's own rule).
    """
    left: list[Device] = []
    for device_vendor, variable in (
        (Vendor.NVIDIA, CUDA),
        (Vendor.AMD, ROCR),
        (Vendor.TPU, CHIPS),
    ):
        mine = [device for device in devices if device.vendor is device_vendor]
        listed = environ.get(variable)
        left += mine if listed is None else _named(mine, listed)
    return left


def _named(devices: Sequence[Device], listed: str) -> list[Device]:
    found: list[Device] = []
    for entry in (part.strip() for part in listed.split(",")):
        # An index names a whole GPU, and with it all its MIG instances.
        matching = [
            device
            for device in devices
            if (entry.isdigit() and device.index == int(entry))
            or (not entry.isdigit() and entry and device.uuid.startswith(entry))
        ]
        if not matching:
            break
        found += [device for device in matching if device not in found]
    return found

"""AMD devices, read from the files of the kernel's compute driver (KFD); no library is needed.

Source: Linux, drivers/gpu/drm/amd/amdkfd (topology in /sys/class/kfd, memory of a process in
/sys/class/kfd/kfd/proc/PID/vram_<gpu_id>) and amdgpu's mem_info_vram_* files.
"""

from __future__ import annotations

from pathlib import Path

from benchwright.execution.device import MB, Device, DeviceProcess, Vendor

TOPOLOGY = "sys/class/kfd/kfd/topology/nodes"
PROCESSES = "sys/class/kfd/kfd/proc"


def amd_devices(root: Path = Path("/")) -> list[Device]:
    """Every AMD GPU, in the driver's order; none where the driver isn't loaded."""
    found: list[Device] = []
    for node in sorted((root / TOPOLOGY).glob("*"), key=lambda path: int(path.name)):
        number = _number(node / "gpu_id")
        facts = _properties(node / "properties")
        if not number or not facts.get("simd_count"):
            continue  # a processor
        unique = facts.get("unique_id", 0)
        card = root / f"sys/class/drm/renderD{facts.get('drm_render_minor', 0)}/device"
        total, used = _number(card / "mem_info_vram_total"), _number(card / "mem_info_vram_used")
        known = total is not None and used is not None
        found.append(
            Device(
                # A board without a serial number has no better name than its place.
                uuid=f"GPU-{unique:016x}" if unique else f"AMD-{len(found)}",
                name=_text(card / "product_name") or f"AMD gfx {facts.get('gfx_target_version')}",
                index=len(found),
                vendor=Vendor.AMD,
                total_mb=total / MB if total is not None else None,
                free_mb=((total or 0) - (used or 0)) / MB if known else None,
                processes=_processes(root, number),
            )
        )
    return found


def _processes(root: Path, gpu: int) -> tuple[DeviceProcess, ...]:
    found = []
    for folder in (root / PROCESSES).glob("*"):
        if not folder.name.isdigit():
            continue
        used = _number(folder / f"vram_{gpu}")
        if used:  # the driver lists a process on every GPU, with zero on those it doesn't use
            found.append(DeviceProcess(int(folder.name), used / MB))
    return tuple(sorted(found, key=lambda process: process.pid))


def _properties(path: Path) -> dict[str, int]:
    pairs = (line.split() for line in (_text(path) or "").splitlines())
    return {pair[0]: int(pair[1]) for pair in pairs if len(pair) == 2 and pair[1].isdigit()}


def _number(path: Path) -> int | None:
    text = _text(path)
    return int(text) if text is not None and text.isdigit() else None


def _text(path: Path) -> str | None:
    try:
        return path.read_text().strip()
    except OSError:
        return None

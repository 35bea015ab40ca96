"""TPU chips: device files that one process at a time has open. Their memory can't be read here."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from benchwright.execution.device import Device, DeviceProcess, Vendor
from benchwright.identity.accelerator import tpu_types


def tpu_chips(root: Path = Path("/")) -> list[Device]:
    """Every TPU chip; none where there is no TPU.

    Chips are `/dev/accel<n>` on v2 to v4 and `/dev/vfio/<n>` on later ones.
    """
    types = tpu_types(root)
    if not types:
        return []
    files = _numbered(root / "dev", "accel") or _numbered(root / "dev/vfio", "")
    holders = _holders(root, files)
    return [
        Device(
            uuid=f"TPU-{index}",
            name=f"TPU {types[index] if index < len(types) else types[-1]}",
            index=index,
            vendor=Vendor.TPU,
            processes=tuple(DeviceProcess(pid, None) for pid in sorted(holders.get(file, ()))),
        )
        for index, file in enumerate(files)
    ]


def _numbered(folder: Path, prefix: str) -> list[Path]:
    """Device files that are a prefix and a number, in the order of the numbers."""
    files = [p for p in folder.glob(f"{prefix}*") if p.name.removeprefix(prefix).isdigit()]
    return sorted(files, key=lambda path: int(path.name.removeprefix(prefix)))


def _holders(root: Path, files: list[Path]) -> dict[Path, set[int]]:
    """Which processes have which file open, as far as this user may look."""
    wanted = {str(file): file for file in files}
    found: dict[Path, set[int]] = {}
    for pid, target in _open_files(root):
        if target in wanted:
            found.setdefault(wanted[target], set()).add(pid)
    return found


def _open_files(root: Path) -> Iterator[tuple[int, str]]:
    for process in (root / "proc").glob("[0-9]*"):
        try:
            for descriptor in (process / "fd").iterdir():
                yield int(process.name), str(descriptor.readlink())
        except OSError:  # it has ended, or is another user's
            continue

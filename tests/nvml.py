"""A machine with NVIDIA devices, made up: NVML's own interface in a library of our own.

The real binding loads it. Its devices stand in a text file that a test, or a stage that the test
runs, may change at any time; see `nvml_standin.c`.
"""

from __future__ import annotations

import ctypes
import os
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.support import require

SOURCE = Path(__file__).with_name("nvml_standin.c")
LIBRARY = "libnvidia-ml.so.1"


@dataclass(frozen=True, slots=True)
class StandIn:
    """The devices' file, and what a process needs in its environment to see them."""

    file: Path
    library: Path
    locks: Path

    @property
    def environ(self) -> dict[str, str]:
        """For a process that is started."""
        return {
            "LD_LIBRARY_PATH": str(self.library.parent),
            "NVML_STANDIN": str(self.file),
            "BENCHWRIGHT_LOCK_DIR": str(self.locks),
        }

    def write(self, *lines: str) -> None:
        """Replace the devices."""
        beside = self.file.with_suffix(".new")
        beside.write_text("".join(f"{line}\n" for line in lines))
        beside.replace(self.file)

    def add(self, *lines: str) -> None:
        """Add to the devices."""
        self.write(*self.file.read_text().splitlines(), *lines)


def _build(folder: Path) -> Path:
    compiler = shutil.which("gcc") or shutil.which("cc")
    require(compiler is not None, "a C compiler, for the stand-in of NVML")
    library = folder / LIBRARY
    if not library.exists():
        made = folder / f"{os.getpid()}.so"
        subprocess.run(
            [
                *(str(compiler), "-shared", "-fPIC", "-O1", f"-Wl,-soname,{LIBRARY}"),
                *("-o", str(made), str(SOURCE)),
            ],
            check=True,
        )
        made.replace(library)
    return library


@pytest.fixture
def nvml(
    tmp_path: Path, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> Iterator[StandIn]:
    """Two devices of 8000 MB, `GPU-a` and `GPU-b`, in this process and in those that it starts."""
    folder = tmp_path_factory.getbasetemp() / "nvml"
    folder.mkdir(exist_ok=True)
    library = _build(folder)
    # The binding asks the loader by name, which finds what is loaded under that name already.
    ctypes.CDLL(str(library), mode=ctypes.RTLD_GLOBAL)
    locks = tmp_path / "locks"
    locks.mkdir()
    devices = StandIn(tmp_path / "devices", library, locks)
    devices.write("device GPU-a NVIDIA_Test 8000 100", "device GPU-b NVIDIA_Test 8000 100")
    for name, value in devices.environ.items():
        monkeypatch.setenv(name, value)
    for name in ("CUDA_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "TPU_VISIBLE_CHIPS"):
        monkeypatch.delenv(name, raising=False)
    yield devices
    # What stays loaded has no driver for the tests that follow.
    os.environ.pop("NVML_STANDIN", None)

"""Preflight: what must be there before anything starts, checked where the run would start."""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping
from pathlib import Path

from benchwright.errors import BadInput, GuardEnded, Where
from benchwright.execution.command import SHELL
from benchwright.spec.model import BenchmarkConfig

MIN_FREE_BYTES = 200 * 1000 * 1000
"""Under this much free space a run isn't started: its record could not be written to the end."""

TIGHT_FREE_BYTES = 2 * 1000 * 1000 * 1000
"""Under this much it is said."""


def preflight(config: BenchmarkConfig, folders: Mapping[str, Path], home: Path) -> list[str]:
    """Check the machine and the folders.

    Returns:
        Sentences on what is tight but bearable.

    Raises:
        BadInput: A folder, the shell or the right to write is missing.
        GuardEnded: The disk is full.
    """
    caveats: list[str] = []
    if any(stage.cmd for stage in config.stages) and not os.access(SHELL[0], os.X_OK):
        raise BadInput(f"{SHELL[0]} is missing: stages with `cmd` run in it", hint="install bash")
    for stage in config.stages:
        folder = folders[stage.name] / (stage.cwd or "")
        if stage.host is None and "{" not in str(folder) and not folder.is_dir():
            raise BadInput(
                f"the working directory of stage '{stage.name}' doesn't exist: {folder}",
                where=Where(key=f"stages.{stage.name}.cwd"),
                expected="a folder, relative to the configuration's",
            )
    place = next(path for path in (home, *home.absolute().parents) if path.is_dir())
    if not os.access(place, os.W_OK):
        raise BadInput(f"{place} can't be written to", hint="choose another with --home DIR")
    free = shutil.disk_usage(place).free
    if free < MIN_FREE_BYTES:
        raise GuardEnded(
            f"{place} has {free / 1e6:.0f} MB free",
            expected=f"at least {MIN_FREE_BYTES / 1e6:.0f} MB",
            hint="free some: benchwright cache prune",
        )
    if free < TIGHT_FREE_BYTES:
        caveats.append(f"{place} has only {free / 1e9:.1f} GB free")
    return caveats

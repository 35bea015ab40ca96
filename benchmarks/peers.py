"""Peers to measure beside: installed into virtual environments of their own."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import venv
from pathlib import Path


def peers_folder() -> Path:
    """Where peers are installed, kept between benchmarks: `$BENCHWRIGHT_PEERS` or a cache."""
    default = Path(tempfile.gettempdir()) / "benchwright-peers"
    return Path(os.environ.get("BENCHWRIGHT_PEERS") or default)


def install(*requirements: str) -> Path | None:
    """The `bin` folder of an environment that has these packages; None where they can't be had."""
    name = "-".join(r.replace("=", "").replace("[", "").replace("]", "") for r in requirements)
    place = peers_folder() / name
    done = place / ".done"
    if not done.exists():
        venv.create(place, with_pip=True, clear=True)
        pip = [str(place / "bin" / "python"), "-m", "pip", "install", "-q"]
        finished = subprocess.run([*pip, *requirements], check=False)
        if finished.returncode:
            print(f"can't install {' '.join(requirements)}: left out", file=sys.stderr)
            return None
        done.touch()
    return place / "bin"

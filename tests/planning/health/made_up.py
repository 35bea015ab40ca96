"""A machine made up of files, as /proc and /sys would show it."""

from __future__ import annotations

from pathlib import Path

from benchwright.planning.health.check import Place
from benchwright.planning.health.window import Clocks, Window

STILL = Window(Clocks(1e9, 100.0, 100.0), Clocks(1e9 + 0.5, 100.5, 100.5), {}, 0.0, 0)
"""Half a second in which nothing happened."""


def place(root: Path, files: dict[str, str] | None = None, window: Window = STILL) -> Place:
    """A place whose file system holds these files."""
    for name, content in (files or {}).items():
        file = root / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(content)
    made = Place(root / "home", {"PATH": "/usr/bin:/bin"}, root)
    made.__dict__["window"] = window
    return made

"""Where suites are found by their name."""

from __future__ import annotations

from pathlib import Path


def suite_folders(home: Path) -> tuple[Path, ...]:
    """The home's own suites, then the one that came with Benchwright; the first counts."""
    packaged = Path(__file__).resolve().parent.parent / "recipes" / "suites"
    return (home / "suites", packaged)

"""What the artifact cache asks of a place where several machines share what they build."""

from __future__ import annotations

from pathlib import Path
from typing import Protocol


class SharedBuilds(Protocol):
    """Entries of artifact caches, by signature, at a place that several machines reach.

    The cache trusts nothing that it takes from there: an entry has to match its own manifest.
    """

    def fetch(self, name: str, folder: Path) -> bool:
        """Copy an entry to a folder that doesn't exist yet; False where there is none.

        Raises:
            BenchwrightError: The place can't be used.
        """

    def offer(self, name: str, folder: Path) -> None:
        """Copy an entry there, unless it is there already.

        Raises:
            BenchwrightError: The place can't be used.
        """

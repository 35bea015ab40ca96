"""The folder in which everything is remembered, and what lies where in it."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from benchwright.errors import BadInput, Where

HOME_VARIABLE = "BENCHMARK_HOME"
DEFAULT_HOME = "benchmark_data"


@dataclass(frozen=True, slots=True)
class Layout:
    """Paths below a benchmark home.

    Attributes:
        home: The folder itself, absolute.
    """

    home: Path

    @property
    def runs(self) -> Path:
        """One folder for each run, by run id."""
        return self.home / "runs"

    @property
    def building(self) -> Path:
        """Folders of runs that are being created; never seen by who reads."""
        return self.home / ".building"

    @property
    def cache(self) -> Path:
        """Artifacts of prep stages, by signature."""
        return self.home / "cache"

    @property
    def results(self) -> Path:
        """What `verify` hands out, by date and model."""
        return self.home / "results"

    @property
    def index(self) -> Path:
        """The table of all runs, made from their folders."""
        return self.home / "results_index.md"

    @property
    def index_lock(self) -> Path:
        """Held while the index is read, changed and renamed."""
        return self.home / ".index.lock"

    @property
    def lessons(self) -> Path:
        """What was learned, append-only."""
        return self.home / "lessons.md"

    @property
    def risks(self) -> Path:
        """What may go wrong, append-only."""
        return self.home / "risks.md"

    @property
    def comparisons(self) -> Path:
        """Which runs were compared, append-only."""
        return self.home / "comparisons.jsonl"


def benchmark_home(option: str | None = None, *, reading: bool = False) -> Path:
    """The home to use: the option, else $BENCHMARK_HOME, else ./benchmark_data.

    Nothing is created: a verb that only reads leaves no folder behind.

    Args:
        option: What `--home` says.
        reading: Whether it is enough that it can be read, such as an archive of runs.

    Returns:
        An absolute path.

    Raises:
        BadInput: It is a file, or can't be used.
    """
    named = option or os.environ.get(HOME_VARIABLE)
    source = "--home" if option else (f"${HOME_VARIABLE}" if named else "the default home")
    home = Path(named or DEFAULT_HOME).expanduser().absolute()
    existing = home
    # os.path.exists says False, and raises nothing, for what lies below a folder that is closed.
    while not os.path.exists(existing) and existing != existing.parent:  # noqa: PTH110
        existing = existing.parent
    if not existing.is_dir():
        raise BadInput(
            f"{existing} is a file, not a folder",
            where=Where(key=source),
            expected="a folder, or a path where one can be made",
            hint="name another folder with --home DIR",
        )
    need, verb = (os.R_OK, "read") if reading else (os.W_OK, "write in")
    if not os.access(existing, need | os.X_OK):
        raise BadInput(
            f"can't {verb.removesuffix(' in')} in {existing}",
            where=Where(key=source),
            expected=f"a folder that you may {verb}",
            hint=f"name another folder with --home DIR, or change the mode of {existing}",
        )
    return home

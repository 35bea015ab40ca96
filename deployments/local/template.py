"""An empty database of this version of Prefect, made once for a user and copied from then on.

Prefect makes a database by running all its migrations, one after the other: 3 s of CPU. Copying
the result takes 3 ms. Prefect itself makes the template and checks its revision at each start, so
a wrong one costs time and nothing else.
"""

from __future__ import annotations

import contextlib
import os
import sqlite3
from pathlib import Path

from deployments.local.environment import prefect_version


def place() -> Path:
    """Where the template is kept: the user's cache folder (XDG Base Directory Specification)."""
    cache = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(cache, "benchwright", f"prefect-{prefect_version()}.db")


def copy_to(database: Path) -> bool:
    """Make a database from the template; False where there is none, or it is damaged."""
    beside = database.with_name(f".{database.name}.{os.getpid()}")
    try:
        with contextlib.closing(sqlite3.connect(f"file:{place()}?mode=ro", uri=True)) as source:
            copy(source, beside)
        with contextlib.closing(sqlite3.connect(beside)) as copied:
            (verdict,) = copied.execute("PRAGMA quick_check").fetchone()
        if verdict == "ok":
            beside.replace(database)
            return True
    except (OSError, RuntimeError, sqlite3.Error):
        pass
    beside.unlink(missing_ok=True)
    return False


async def make(database: Path) -> None:
    """Have Prefect make the database, and keep a copy as the template where that can be written."""
    from prefect.server.database import provide_database_interface

    await provide_database_interface().create_db()
    target = place()
    with contextlib.suppress(OSError, RuntimeError, sqlite3.Error):
        target.parent.mkdir(parents=True, exist_ok=True)
        beside = target.with_name(f".{target.name}.{os.getpid()}")
        with contextlib.closing(sqlite3.connect(database)) as source:
            copy(source, beside)
        beside.replace(target)


def copy(source: sqlite3.Connection, path: Path) -> None:
    """A copy of a database in one file, with what stands in its write-ahead log."""
    with contextlib.closing(sqlite3.connect(path)) as target:
        source.backup(target)
        target.execute("PRAGMA journal_mode = DELETE")

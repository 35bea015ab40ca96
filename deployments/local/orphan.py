"""Ending a run whose engine is gone: by its own process, which its lock names."""

from __future__ import annotations

import contextlib
import os
import select
import signal

from benchwright.errors import BenchwrightError, Where
from benchwright.record.store import RunFolder

GRACE_S = 15.0
"""How long the run's process has to end its stage and write its record before the next signal."""


def end_without_engine(folder: RunFolder) -> None:
    """Ask the process that holds a run's lock to end, and wait until it is gone.

    Raises:
        BenchwrightError: The lock names no process of this machine, or it doesn't end.
    """
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGKILL):
        pid = folder.owner()
        if pid is None:
            return
        try:
            handle = os.pidfd_open(pid)
        except OSError as problem:
            raise BenchwrightError(
                f"the process {pid} that runs {folder.run_id} can't be reached: {problem.strerror}",
                where=Where(folder.path),
                hint="end it on the machine that it runs on",
            ) from problem
        try:
            if folder.owner() != pid:  # it ended, and its number may be another's by now
                continue
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(handle, number)
            select.select([handle], [], [], GRACE_S)
        finally:
            os.close(handle)
    if folder.alive():
        raise BenchwrightError(f"{folder.run_id} doesn't end", where=Where(folder.path))

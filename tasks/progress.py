"""What a long step says of its progress, on the page of its task run."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import copy_context

from prefect import get_run_logger

from benchwright.record.store import RunFolder

EVERY_S = 1.0
"""How often a step's events are looked at: a person reads no faster."""


@contextmanager
def progress_on_page(folder: RunFolder) -> Iterator[None]:
    """Log each `step_progress` event of the run while the block runs.

    A step is a process of its own, which tells its progress in the run's events; Prefect's page
    shows what its task logs.
    """
    logger = get_run_logger()
    _, offset = folder.events()
    ended = threading.Event()

    def follow() -> None:
        nonlocal offset
        while True:
            last = ended.wait(EVERY_S)
            events, offset = folder.events(offset)
            for event in events:
                if event.get("kind") == "step_progress":
                    logger.info("%s: %s", event.get("stage", ""), event.get("text", ""))
            if last:
                return

    thread = threading.Thread(target=copy_context().run, args=(follow,), daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()

"""Tags that cost nothing where nobody limits by them.

Prefect asks its server for a slot of the limit `tag:<tag>` before each tagged task and gives it
back after it, whether there is such a limit or not: two requests a task, ten times what a cached
task costs otherwise. A run asks once which limits there are. Where none is a tag's, its tasks keep
their tags and skip the requests; where one is, or the server doesn't say, nothing changes. A limit
that is made while a run is on holds from the next run on.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from contextvars import ContextVar
from typing import Any

from prefect import task_engine

from tasks.limits import TAG_PREFIX, LimitsAhead

_UNLIMITED: ContextVar[bool] = ContextVar("benchwright_tags_unlimited", default=False)

_prefects_own = task_engine._concurrency


def _concurrency(names: Any, *args: Any, **options: Any) -> AbstractContextManager[None]:
    """Prefect's own, but for tags that no limit speaks of."""
    listed = [names] if isinstance(names, str) else list(names)
    if _UNLIMITED.get() and all(name.startswith(TAG_PREFIX) for name in listed):
        return nullcontext()
    return _prefects_own(names, *args, **options)


task_engine._concurrency = _concurrency


@contextmanager
def free_tags(limits: LimitsAhead) -> Iterator[None]:
    """Spare the tasks inside the requests, where the server has no limit of a tag."""
    known = limits.known()
    # The limits are Prefect's to keep: in doubt they are asked for.
    token = _UNLIMITED.set(known is not None and not known.tagged)
    try:
        yield
    finally:
        _UNLIMITED.reset(token)

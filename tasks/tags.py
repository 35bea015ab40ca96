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
from prefect.client.orchestration import get_client

MOST_LIMITS = 200
"""As many as one request gives; a server with more may have one of a tag's among the rest."""

_UNLIMITED: ContextVar[bool] = ContextVar("benchwright_tags_unlimited", default=False)

_prefects_own = task_engine._concurrency


def _concurrency(names: Any, *args: Any, **options: Any) -> AbstractContextManager[None]:
    """Prefect's own, but for tags that no limit speaks of."""
    listed = [names] if isinstance(names, str) else list(names)
    if _UNLIMITED.get() and all(name.startswith("tag:") for name in listed):
        return nullcontext()
    return _prefects_own(names, *args, **options)


task_engine._concurrency = _concurrency


@contextmanager
def free_tags() -> Iterator[None]:
    """Ask the server once, and spare the tasks inside the requests where no tag is limited."""
    token = _UNLIMITED.set(not any_tag_limited())
    try:
        yield
    finally:
        _UNLIMITED.reset(token)


def any_tag_limited() -> bool:
    """Whether the server limits a tag, or may: it has too many limits to tell, or doesn't say."""
    try:
        with get_client(sync_client=True) as client:
            limits = client.request(
                "POST", "/v2/concurrency_limits/filter", json={"limit": MOST_LIMITS, "offset": 0}
            ).json()
            tagged = client.request(
                "POST", "/concurrency_limits/filter", json={"limit": 1, "offset": 0}
            ).json()
    except Exception:  # the limits are Prefect's to keep: in doubt they are asked for
        return True
    named = any(str(limit["name"]).startswith("tag:") for limit in limits)
    return named or bool(tagged) or len(limits) >= MOST_LIMITS

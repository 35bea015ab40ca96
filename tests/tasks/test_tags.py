"""Tags cost no request where nobody limits by them, and limit where somebody does."""

from __future__ import annotations

from typing import Any

import pytest
from prefect import flow, task, task_engine
from prefect.client.orchestration import get_client
from prefect.client.schemas.actions import GlobalConcurrencyLimitCreate

from tasks import limits, tags
from tasks.limits import LimitsAhead
from tasks.tags import free_tags


@task(tags={"kind:prep"})
def tagged() -> None:
    pass


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """What Prefect is asked for slots of."""
    names: list[Any] = []
    own = tags._prefects_own

    def counted(which: Any, *args: Any, **options: Any) -> Any:
        names.append(which)
        return own(which, *args, **options)

    monkeypatch.setattr(tags, "_prefects_own", counted)
    return names


@flow
def once() -> None:
    with free_tags(LimitsAhead()):
        state = tagged(return_state=True)
    assert state.is_completed()


def test_prefect_asks_through_us() -> None:
    assert task_engine._concurrency is tags._concurrency


def test_a_tagged_task_asks_for_no_slot_where_no_tag_is_limited(
    prefect_api: str, asked: list[Any]
) -> None:
    known = LimitsAhead().known()
    assert known is not None
    assert not known.tagged
    once()
    assert asked == []


def test_a_limited_tag_is_asked_for(prefect_api: str, asked: list[Any]) -> None:
    with get_client(sync_client=True) as client:
        client.create_concurrency_limit(tag="kind:prep", concurrency_limit=1)
        try:
            once()
        finally:
            client.delete_concurrency_limit_by_tag(tag="kind:prep")
    assert asked == [["tag:kind:prep"]]


def test_outside_of_a_run_nothing_is_changed(prefect_api: str, asked: list[Any]) -> None:
    flow(lambda: tagged(), name="plain")()
    assert asked == [["tag:kind:prep"]]


def test_where_the_server_does_not_say_prefect_asks(
    prefect_api: str, asked: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(client: object) -> None:
        raise RuntimeError("no answer")

    monkeypatch.setattr(limits, "read_limits", broken)
    once()
    assert asked == [["tag:kind:prep"]]


def test_more_limits_than_one_answer_holds_may_have_a_tags_among_them(
    prefect_api: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with get_client(sync_client=True) as client:
        name = "one-of-many"
        client.create_global_concurrency_limit(GlobalConcurrencyLimitCreate(name=name, limit=1))
        try:
            monkeypatch.setattr(limits, "MOST_LIMITS", 1)
            assert limits.read_limits(client).tagged
        finally:
            client.delete_global_concurrency_limit_by_name(name)

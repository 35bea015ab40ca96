"""The cost gate on a real server: who may start what, and what is left when nobody may."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import blocks.policy
from benchwright.planning.ceiling import HOUR_S, Ceiling
from benchwright.planning.plan import make_plan
from benchwright.planning.policy import CostPolicy
from benchwright.planning.quote import THIS_MACHINE, Quote
from benchwright.planning.start import create_run
from benchwright.record.consent import (
    CeilingPassed,
    Consent,
    read_consent,
    record_spending,
    spent_this_month,
    write_consent,
)
from benchwright.record.run import Status
from benchwright.record.store import RunFolder
from benchwright.record.waiting import Waiting, suspend
from benchwright.spec.domain import Domains
from benchwright.spec.model import BenchmarkConfig
from benchwright.spec.recipe import RecipeLibrary
from benchwright.spec.resolve import from_mapping
from flows import approval
from flows.benchmark import benchmark
from tests.approvals import Server, costly_run, quote, until
from tests.domains.samples import ServiceDomain

pytestmark = pytest.mark.slow

POLICY = CostPolicy(free_usd=0.0, warn_usd=5.0, never_usd=20.0, answer_within_s=60.0)


@pytest.fixture
def policy(monkeypatch: pytest.MonkeyPatch) -> Callable[[CostPolicy], None]:
    """Set the server's policy, for flows in this process."""

    def use(wanted: CostPolicy) -> None:
        monkeypatch.setattr(blocks.policy, "cost_policy", lambda: wanted)

    use(POLICY)
    monkeypatch.setattr(approval, "POLL_S", 0.1)
    return use


@pytest.fixture
def server(prefect_api: str) -> Server:
    return Server(prefect_api)


@contextmanager
def person(act: Callable[[], Any]) -> Iterator[Future[Any]]:
    """Somebody who acts while the flow runs."""
    with ThreadPoolExecutor(1) as pool:
        future = pool.submit(act)
        yield future
        future.result(timeout=60)


def _run(folder: RunFolder) -> Any:
    return benchmark(run_id=folder.run_id, home=str(folder.home), return_state=True)


def _started(tmp_path: Path) -> bool:
    return (tmp_path / "builds.log").exists()


def test_an_approval_starts_the_run_and_is_kept_with_its_name_and_ceiling(
    tmp_path: Path, local_home: Path, server: Server, policy: Any
) -> None:
    folder = costly_run(tmp_path, local_home)

    def approve() -> None:
        waiting = server.paused(folder.run_id)
        assert not _started(tmp_path), "nothing starts before the answer"
        said = server.answer(waiting, approve=True, who="Ana", max_usd=1.5, note="for the talk")
        assert said["status"] == "ACCEPT"

    with person(approve):
        state = _run(folder)
    assert state.is_completed()
    assert folder.read().status is Status.COMPLETED
    consent = read_consent(folder.path)
    assert consent is not None
    assert (consent.who, consent.max_usd, consent.note) == ("Ana", 1.5, "for the talk")
    assert consent.how == "form"


def test_the_estimate_is_an_artifact_with_all_that_an_approver_asks(
    tmp_path: Path, local_home: Path, server: Server, policy: Any
) -> None:
    folder = costly_run(tmp_path, local_home, quote(8.0))
    with person(lambda: server.answer(server.paused(folder.run_id), approve=False)):
        _run(folder)
    text = server.artifact("cost-" + folder.run_id.replace("_", "-"))
    for said in (
        "2.50 to 8.00 USD",
        "modal",
        "1 x L4 24 GB, 4 cores, 16 GiB",
        "10 min 0 s to 25 min 0 s",
        "2026-10",
        "GPU, 1 x L4",
        "0.00003942 USD a core-second",
        "Warning",
    ):
        assert said in text
    assert text.index("Google Colab") < text.index("Modal T4"), "free ones first"


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        ({}, "the form said nothing"),
        ({"approve": False, "who": "Bob", "note": "too dear"}, "refused by Bob: too dear"),
    ],
)
def test_a_refusal_and_an_untouched_form_start_nothing(
    answer: dict[str, Any], why: str, tmp_path: Path, local_home: Path, server: Server, policy: Any
) -> None:
    folder = costly_run(tmp_path, local_home)
    with person(lambda: server.answer(server.paused(folder.run_id), **answer)):
        state = _run(folder)
    assert (state.name, state.type.value) == ("Rejected", "FAILED")
    record = folder.read()
    assert record.status is Status.ABORTED_PREFLIGHT
    assert record.status.exit_code == 3
    assert why in record.error
    assert why in state.message
    assert not _started(tmp_path)
    assert read_consent(folder.path) is None


def test_silence_ends_the_run_with_a_state_of_its_own(
    tmp_path: Path, local_home: Path, server: Server, policy: Any
) -> None:
    policy(CostPolicy(answer_within_s=1.0))
    folder = costly_run(tmp_path, local_home)
    state = _run(folder)
    assert state.name == "ApprovalTimedOut"
    assert folder.read().status is Status.ABORTED_PREFLIGHT
    assert not _started(tmp_path)
    late = server.flow_run(folder.run_id)
    assert late is not None
    assert late["state"]["name"] == "ApprovalTimedOut"
    assert server.answer(late, approve=True, who="Late", max_usd=1)["status"] == "ABORT"


@pytest.mark.parametrize(
    ("lacking", "words"),
    [
        ({"approve": True, "who": "  ", "warned": True}, "needs a name"),
        ({"approve": True, "who": "Ana"}, "warning must be ticked"),
    ],
)
def test_an_incomplete_approval_is_asked_again_and_says_what_it_lacks(
    lacking: dict[str, Any],
    words: str,
    tmp_path: Path,
    local_home: Path,
    server: Server,
    policy: Any,
) -> None:
    folder = costly_run(tmp_path, local_home, quote(8.0))

    def answer_twice() -> str:
        first = server.paused(folder.run_id)
        server.answer(first, **lacking)

        def asked_again() -> Any:
            second = server.paused(folder.run_id)
            return second if second["state_id"] != first["state_id"] else None

        second = until(asked_again)
        keys = second["state"]["state_details"]["run_input_keyset"]
        schema = server.call(f"/flow_runs/{second['id']}/input/{keys['schema']}")
        text = str(schema["properties"]["approve"]["description"])
        assert not _started(tmp_path)
        server.answer(second, approve=True, who="Ana", warned=True, max_usd=9)
        return text

    with person(answer_twice) as asked:
        state = _run(folder)
    assert words in asked.result()
    assert state.is_completed()


def test_a_ceiling_above_the_policy_is_refused_by_the_server(
    tmp_path: Path, local_home: Path, server: Server, policy: Any
) -> None:
    folder = costly_run(tmp_path, local_home)

    def try_it() -> list[str]:
        waiting = server.paused(folder.run_id)
        said = [
            server.answer(waiting, approve=True, who="Ana", max_usd=wrong)["status"]
            for wrong in (20.01, 99999, 0, -1, "many", None)
        ]
        unknown = server.answer(waiting, approve=True, who="Ana", max_usd=1, also="this")
        server.answer(waiting, approve=False)
        return [*said, unknown["status"]]

    with person(try_it) as tried:
        _run(folder)
    assert set(tried.result()) == {"REJECT"}
    assert not _started(tmp_path)


def test_the_bounds_are_checked_again_in_the_flow() -> None:
    from benchwright.planning.policy import Ruling

    class Loose:
        approve, who, warned, max_usd = True, "Ana", True, 99999.0

    assert "between 0 and 20.00" in approval._incomplete(Loose(), Ruling.ASK, 20.0)
    Loose.max_usd = float("nan")
    assert approval._incomplete(Loose(), Ruling.ASK, None)
    Loose.max_usd = 5.0
    assert approval._incomplete(Loose(), Ruling.ASK, 20.0) == ""


def test_of_two_answers_one_counts_and_the_other_is_told(
    tmp_path: Path, local_home: Path, server: Server, policy: Any
) -> None:
    folder = costly_run(tmp_path, local_home)
    told: list[dict[str, Any]] = []

    def race() -> None:
        waiting = server.paused(folder.run_id)
        both = threading.Barrier(2)

        def answer(who: str) -> None:
            both.wait()
            told.append(server.answer(waiting, approve=True, who=who, max_usd=1))

        threads = [threading.Thread(target=answer, args=(who,)) for who in ("Ana", "Bob")]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    with person(race):
        _run(folder)
    assert sorted(said["status"] for said in told) == ["ABORT", "ACCEPT"]
    loser = next(said for said in told if said["status"] == "ABORT")
    assert "not paused" in loser["details"]["reason"]
    consent = read_consent(folder.path)
    assert consent is not None
    assert consent.who in ("Ana", "Bob")


def test_above_what_is_never_allowed_nobody_is_asked(
    tmp_path: Path, local_home: Path, server: Server, policy: Any
) -> None:
    folder = costly_run(tmp_path, local_home, quote(25.0))
    state = _run(folder)
    assert state.name == "AbortedPreflight"
    assert "20.00 USD at most" in folder.read().error
    assert not _started(tmp_path)


def test_what_is_free_starts_unasked(
    tmp_path: Path, local_home: Path, server: Server, policy: Any
) -> None:
    policy(CostPolicy(free_usd=3.0))
    folder = costly_run(tmp_path, local_home)
    assert _run(folder).is_completed()


def test_an_approval_that_was_given_beforehand_asks_nobody(
    tmp_path: Path, local_home: Path, server: Server, policy: Any
) -> None:
    folder = costly_run(tmp_path, local_home)
    write_consent(folder.path, Consent.now("Ana", 2.0, "terminal"))
    assert _run(folder).is_completed()


def test_unattended_a_run_above_its_allowance_is_refused_and_not_paused(
    tmp_path: Path, local_home: Path, server: Server, policy: Any
) -> None:
    folder = costly_run(tmp_path, local_home)
    write_consent(folder.path, Consent.now("ci", 1.0, "unattended"))
    state = _run(folder)
    assert state.name == "Rejected"
    assert "--max-cost 2.00" in folder.read().error


def test_a_run_is_ended_in_the_middle_of_a_stage_when_its_ceiling_is_passed(
    tmp_path: Path, local_home: Path, server: Server, policy: Any
) -> None:
    dear: Quote = quote(2.0, usd_per_hour=3600.0)  # a dollar a second
    folder = costly_run(tmp_path, local_home, dear)
    (tmp_path / "hang").touch()
    write_consent(folder.path, Consent.now("Ana", 3.0, "terminal"))
    started = time.monotonic()
    state = _run(folder)
    assert state.name == "CeilingPassed"
    assert "approved by Ana" in state.message
    assert time.monotonic() - started < 30, "it didn't wait for the stage"
    record = folder.read()
    assert record.status is Status.ABORTED_GUARDRAIL
    assert record.status.exit_code == 5
    child = int((tmp_path / "child").read_text())
    assert not Path(f"/proc/{child}").exists(), "nothing is left running"


def test_a_machine_with_a_price_is_paid_for_while_stages_run_and_its_ceiling_has_its_name(
    tmp_path: Path, local_home: Path, server: Server, policy: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It once ended as `AbortedGuardrail`, for a budget of 0 s that nobody had set."""
    prices = tmp_path / "prices.yaml"
    prices.write_text("date: 2026-11\nproviders: {local: {machine_hour: 3600}}\n")
    monkeypatch.setenv("BENCHWRIGHT_PRICES", str(prices))
    dear = replace(quote(2.0, usd_per_hour=3600.0), provider=THIS_MACHINE)
    folder = costly_run(tmp_path, local_home, dear)
    (tmp_path / "hang").touch()
    write_consent(folder.path, Consent.now("Ana", 2.0, "terminal"))
    before = spent_this_month(local_home)
    state = _run(folder)
    assert state.name == "CeilingPassed"
    assert "of the 2.00 USD that it may, approved by Ana" in state.message
    assert folder.read().status is Status.ABORTED_GUARDRAIL
    assert spent_this_month(local_home) - before == pytest.approx(2.0, abs=0.3)


def test_a_run_that_waits_for_its_turn_on_a_machine_spends_nothing() -> None:
    hours_ago = time.monotonic() - 3 * HOUR_S
    measured = Ceiling(None, 2.0, 1.0, hours_ago, lambda: 0.0)
    measured.check()
    assert measured.spent() == 0.0
    rented = Ceiling(None, 2.0, 1.0, hours_ago, lambda: None)
    with pytest.raises(CeilingPassed, match=r"3\.00 USD of the 2\.00 USD"):
        rented.check()


def test_what_a_run_spent_before_it_was_resumed_is_noted_once(
    tmp_path: Path, local_home: Path, server: Server, policy: Any
) -> None:
    folder = costly_run(tmp_path, home_made(tmp_path / "home"))
    session = SimpleNamespace(home=folder.home, folder=folder)
    for before, spent in ((0.0, 1.5), (1.5, 2.0)):
        ceiling = Ceiling(None, 5.0, 1.0, time.monotonic(), lambda: spent, before)  # noqa: B023
        approval.note_spending(session, ceiling)  # type: ignore[arg-type]
    assert spent_this_month(folder.home) == 2.0


def test_cancelling_ends_the_wait(
    tmp_path: Path, local_home: Path, server: Server, policy: Any
) -> None:
    folder = costly_run(tmp_path, local_home)

    def cancel() -> None:
        waiting = server.paused(folder.run_id)
        server.call(
            f"/flow_runs/{waiting['id']}/set_state",
            {"state": {"type": "CANCELLED", "name": "Cancelled"}},
        )

    with person(cancel):
        _run(folder)
    assert folder.read().status is Status.INTERRUPTED
    assert not _started(tmp_path)


def test_a_month_that_is_spent_allows_nothing_more(
    tmp_path: Path, local_home: Path, server: Server, policy: Any
) -> None:
    home = tmp_path / "home"
    record_spending(home_made(home), "2026-01-01_x_aaaaaa", 9.0, None)
    assert spent_this_month(home) == 9.0
    policy(CostPolicy(month_usd=10.0))
    folder = costly_run(tmp_path / "a", home)
    state = _run(folder)
    assert state.name == "AbortedPreflight"
    assert "1.00 USD at most" in folder.read().error


def home_made(home: Path) -> Path:
    home.mkdir()
    return home


def test_the_form_is_described_and_bounded(policy: Any) -> None:
    from benchwright.planning.policy import Ruling

    schema = approval.cost_form(quote(8.0), Ruling.WARN, 20.0).model_json_schema()
    fields = schema["properties"]
    assert all(field["description"] and field["title"] for field in fields.values())
    assert (fields["max_usd"]["maximum"], fields["max_usd"]["exclusiveMinimum"]) == (20.0, 0)
    assert fields["approve"]["default"] is False
    assert fields["warned"]["default"] is False
    assert schema["additionalProperties"] is False


def test_a_budget_in_the_configuration_bounds_the_ceiling(
    tmp_path: Path, local_home: Path, server: Server, policy: Any
) -> None:
    folder = costly_run(tmp_path, local_home, budget={"cost_usd": 2.5})
    assert isinstance(folder.config(), BenchmarkConfig)

    def look() -> float:
        waiting = server.paused(folder.run_id)
        keys = waiting["state"]["state_details"]["run_input_keyset"]
        schema = server.call(f"/flow_runs/{waiting['id']}/input/{keys['schema']}")
        server.answer(waiting, approve=False)
        return float(schema["properties"]["max_usd"]["maximum"])

    with person(look) as seen:
        _run(folder)
    assert seen.result() == 2.5


def test_a_run_that_was_suspended_runs_no_step_twice_and_asks_the_same_question(
    tmp_path: Path, server: Server, policy: Any
) -> None:
    domains = Domains()
    domains.add(ServiceDomain())
    resolved = from_mapping(
        {"domain": "service", "params": {"items": 20}},
        folder=Path.cwd(),
        domains=domains,
        recipes=RecipeLibrary(()),
    )
    home = home_made(tmp_path / "home")
    folder = create_run(make_plan(resolved, home, {"PATH": "/usr/bin:/bin"}), home, because=None)
    asked = {"cost": quote().as_json()}
    kept = {"probe": {"reached": "before the wait"}, "approve": asked}
    suspend(folder.path, Waiting("an approval", time.time() + 100, kept))

    def approve() -> None:
        server.answer(server.paused(folder.run_id), approve=True, who="Ana", max_usd=1)

    with person(approve):
        _run(folder)
    assert not list(folder.logs.glob("probe*")), "it ran before the wait, and not again"
    assert not list(folder.logs.glob("approve*"))
    assert list(folder.logs.glob("evaluate*"))
    assert folder.read().steps["probe"] == kept["probe"]
    consent = read_consent(folder.path)
    assert consent is not None
    assert consent.who == "Ana"

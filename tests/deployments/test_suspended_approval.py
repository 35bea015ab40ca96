"""A run that waits for its approval without a process: how each way that it can end is told."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from benchwright.errors import GateRefused
from benchwright.record.consent import UNANSWERED
from benchwright.record.run import Status
from benchwright.record.store import RunFolder, RunStore
from cli import submit
from cli.follow import Progress
from tests.approvals import until
from tests.cli.conftest import experiment
from tests.served import Site, deployed, site, worker

__all__ = ["deployed", "site", "worker"]

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

PATIENT_S, HASTY_S = 600.0, 6.0


@pytest.fixture
def policy(worker: Site) -> Iterator[Any]:
    """Says how long the server's policy has an answer waited for; no wait keeps its process."""
    from prefect.settings import PREFECT_API_URL, temporary_settings

    from blocks.policy import CostPolicyBlock

    def wait(answer_within_s: float) -> None:
        with temporary_settings({PREFECT_API_URL: worker.api_url}):
            block = CostPolicyBlock(warn_usd=1e6, hold_s=0, answer_within_s=answer_within_s)
            block.save("benchwright", overwrite=True, _sync=True)  # type: ignore[call-arg]

    yield wait
    with temporary_settings({PREFECT_API_URL: worker.api_url}):
        CostPolicyBlock.delete("benchwright", _sync=True)  # type: ignore[call-arg]


def ask(site: Site, place: Path, dollars_an_hour: float = 36.0) -> dict[str, Any]:
    """Start a run that costs something, without an approval."""
    prices = place / "prices.yaml"
    prices.write_text(f"date: 2026-11\nproviders: {{local: {{machine_hour: {dollars_an_hour}}}}}\n")
    config = experiment(place, replication={"replicates": 2, "warmup": 0})
    found = site.deployment("benchmark/benchmark")
    made = site.server.call(
        f"/deployments/{found['id']}/create_flow_run",
        {
            "parameters": {"path": str(config)},
            "job_variables": {"env": {"BENCHWRIGHT_PRICES": str(prices)}},
            "state": {"type": "SCHEDULED"},
        },
    )
    assert isinstance(made, dict)
    return made


def suspended(site: Site, asked: dict[str, Any]) -> dict[str, Any]:
    """The flow run, once no process waits for its answer."""

    def waits() -> Any:
        now = site.server.call(f"/flow_runs/{asked['id']}")
        assert now["state"]["type"] != "FAILED", now["state"]["message"]
        return now if now["state"]["name"] == "Suspended" else None

    waiting: dict[str, Any] = until(waits, 120)
    until(lambda: not folder_of(site, waiting).alive())
    return waiting


def folder_of(site: Site, flow_run: dict[str, Any]) -> RunFolder:
    """A flow run's record."""
    return RunStore(site.home).open(flow_run["name"])


def ended(site: Site, flow_run: dict[str, Any], name: str) -> dict[str, Any]:
    """The flow run, once its state has that name."""

    def over() -> Any:
        now = site.server.call(f"/flow_runs/{flow_run['id']}")
        return now if now["state"]["name"] == name else None

    found: dict[str, Any] = until(over, 120)
    assert found["state"]["type"] == "FAILED"
    return found


def test_silence_is_a_state_of_its_own_when_no_process_is_left_to_say_it(
    tmp_path: Path, worker: Site, policy: Any
) -> None:
    policy(HASTY_S)
    over = ended(worker, ask(worker, tmp_path), "ApprovalTimedOut")
    assert over["state"]["message"] == UNANSWERED
    assert not (tmp_path / "builds.log").exists()
    late = worker.server.answer(over, approve=True, who="Late", max_usd=1)
    assert late["status"] == "ABORT"
    assert worker.server.call(f"/flow_runs/{over['id']}")["state"]["name"] == "ApprovalTimedOut"
    history = worker.server.call(f"/flow_run_states/?flow_run_id={over['id']}")
    assert "Suspended" in {state["name"] for state in history}, "it had given its slot back"


def test_who_follows_such_a_run_learns_that_nobody_answered(
    tmp_path: Path, worker: Site, policy: Any
) -> None:
    from prefect.client.orchestration import get_client
    from prefect.settings import PREFECT_API_URL, temporary_settings

    policy(HASTY_S)
    asked = ask(worker, tmp_path)
    with (
        temporary_settings({PREFECT_API_URL: worker.api_url}),
        get_client(sync_client=True) as client,
        Progress() as progress,
    ):
        run = submit._follow(client, UUID(asked["id"]), progress)
    assert run.state is not None
    assert submit.STATE_CODES[str(run.state.name)] == GateRefused.exit_code == 3


def test_a_refusal_is_told_with_who_refused_and_why(
    tmp_path: Path, worker: Site, policy: Any
) -> None:
    policy(PATIENT_S)
    waiting = suspended(worker, ask(worker, tmp_path))
    worker.server.answer(waiting, approve=False, who="Bob", note="too dear")
    over = ended(worker, waiting, "Rejected")
    assert "refused by Bob: too dear" in over["state"]["message"]
    folder = folder_of(worker, waiting)
    assert folder.read().status is Status.ABORTED_PREFLIGHT
    assert not (tmp_path / "builds.log").exists()


def test_a_ceiling_that_is_passed_after_the_wait_is_told_and_nothing_is_left_running(
    tmp_path: Path, worker: Site, policy: Any
) -> None:
    policy(PATIENT_S)
    (tmp_path / "hang").touch()
    waiting = suspended(worker, ask(worker, tmp_path, dollars_an_hour=3600.0))  # a dollar a second
    worker.server.answer(waiting, approve=True, who="Ana", max_usd=3)
    over = ended(worker, waiting, "CeilingPassed")
    assert "approved by Ana" in over["state"]["message"]
    record = folder_of(worker, waiting).read()
    assert record.status is Status.ABORTED_GUARDRAIL
    child = int((tmp_path / "child").read_text())
    with pytest.raises(ProcessLookupError):
        os.kill(child, 0)

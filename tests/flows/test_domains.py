"""Typed domains run through the compiler like YAML: arms, a gate, steps, a remote host."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchwright.errors import GateRefused
from benchwright.execution.launch import StageLaunch, StageOutcome
from benchwright.execution.supervisor import Supervisor
from benchwright.planning.plan import make_plan
from benchwright.planning.start import create_run
from benchwright.record.run import RunRecord, Status
from benchwright.record.store import RunFolder
from benchwright.spec.domain import Domains
from benchwright.spec.recipe import RecipeLibrary
from benchwright.spec.resolve import from_mapping
from flows import benchmark as flow_module
from tests.domains.samples import ServiceDomain, SortingDomain


def _create(home: Path, **data: object) -> RunFolder:
    domains = Domains()
    domains.add(SortingDomain())
    domains.add(ServiceDomain())
    resolved = from_mapping(data, folder=Path.cwd(), domains=domains, recipes=RecipeLibrary(()))
    environ = {"PATH": "/usr/bin:/bin"}
    return create_run(make_plan(resolved, home, environ), home, because=None)


def _run(folder: RunFolder, home: Path) -> RunRecord:
    flow_module.benchmark(run_id=folder.run_id, home=str(home), return_state=True)
    return folder.read()


def test_a_typed_domain_with_arms_is_built_measured_and_judged(
    prefect_api: str, tmp_path: Path
) -> None:
    folder = _create(tmp_path, domain="sorting")
    record = _run(folder, tmp_path)
    assert record.status is Status.COMPLETED, record.error
    assert {sample.arm for sample in record.view.samples} == {
        "algorithm=insertion",
        "algorithm=merge",
    }
    assert record.view.judgement is not None
    assert {verdict.metric.name for verdict in record.view.judgement.verdicts} >= {"sort_ms"}


def test_an_arm_shares_what_the_treatment_does_not_reach(prefect_api: str, tmp_path: Path) -> None:
    record = _run(_create(tmp_path, domain="sorting"), tmp_path)
    first, second = record.view.prep
    assert (first.stage, second.stage) == ("data", "data")
    assert first.signature == second.signature
    assert (first.cached, second.cached) == (False, True)


ON_A_HOST = {"host": "tpu", "cost_per_item_usd": 0.1}


class _Elsewhere:
    """A host whose processes are supervised; it remembers what it was asked to run."""

    def __init__(self) -> None:
        self.supervisor = Supervisor()
        self.labels: list[str] = []

    def run(self, launch: StageLaunch) -> StageOutcome:
        self.labels.append(launch.label)
        return self.supervisor.run(launch)


@pytest.fixture
def elsewhere(monkeypatch: pytest.MonkeyPatch) -> _Elsewhere:
    host = _Elsewhere()
    monkeypatch.setattr(flow_module, "launchers_for", lambda _config, local: {**local, "tpu": host})
    return host


def test_a_graph_without_arms_runs_its_steps_in_order_on_their_hosts(
    prefect_api: str, tmp_path: Path, elsewhere: _Elsewhere, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []
    monkeypatch.setattr(flow_module, "ask", lambda stage, *_: asked.append(stage.name))
    record = _run(
        _create(tmp_path, domain="service", params=ON_A_HOST),
        tmp_path,
    )
    assert record.status is Status.COMPLETED, record.error
    assert asked == ["approve"]
    assert list(record.steps) == ["probe", "approve", "validate"]
    assert elsewhere.labels, "the stage that names a host ran there"


def test_nothing_behind_a_refused_gate_is_started(
    prefect_api: str, tmp_path: Path, elsewhere: _Elsewhere, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise GateRefused("not approved")

    monkeypatch.setattr(flow_module, "ask", refuse)
    record = _run(
        _create(tmp_path, domain="service", params=ON_A_HOST),
        tmp_path,
    )
    assert record.status is Status.ABORTED_PREFLIGHT
    assert not elsewhere.labels

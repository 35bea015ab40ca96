"""The two sample domains are graphs that can be compiled, and their stages really run."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import pytest

from benchwright import (
    Approval,
    BadInput,
    BenchmarkConfig,
    Domain,
    Stage,
    StageContext,
    StageKind,
)
from benchwright.execution.call import function_argv, read_result, write_request
from benchwright.execution.metrics import measurement_from_result, read_measurement
from benchwright.spec.template import parse
from benchwright.spec.values import as_text
from tests.domains.samples import ServiceDomain, SortingDomain


def complete(domain: Domain, **params: Any) -> BenchmarkConfig:
    defaults = dict(domain.defaults())
    defaults["params"] = {**defaults["params"], **params}
    return BenchmarkConfig.model_validate({"domain": domain.name, **defaults})


def call(stage: Stage, folder: Path, **context: Any) -> Any:
    empty: dict[str, Any] = {"params": {}, "inputs": {}, "outputs": {}, "results": {}}
    write_request(
        folder / "request",
        stage=stage,
        context=StageContext(**{**empty, **context}, run_dir=folder, seed=1, arm="only"),
        folder=folder,
        result=folder / "result",
    )
    subprocess.run(function_argv(folder / "request"), cwd=folder, check=True)
    return read_result(folder / "result")


@pytest.mark.parametrize("domain", [SortingDomain(), ServiceDomain()])
def test_each_graph_names_only_stages_and_parameters_that_it_has(domain):
    config = complete(domain)
    domain.check(config)
    stages = domain.stages(config)
    names = [stage.name for stage in stages]
    for place, stage in enumerate(stages):
        assert set(stage.needs) <= set(names[:place])
        assert set(stage.params) <= config.flat_params.keys()
    assert any(stage.kind is StageKind.MEASURE for stage in stages)


@pytest.mark.parametrize("algorithm", ["insertion", "merge"])
def test_sorting_runs_in_its_processes_and_says_what_it_used(tmp_path, algorithm):
    domain = SortingDomain()
    config = complete(domain, algorithm=algorithm)
    data, sort = domain.stages(config)
    numbers = tmp_path / "numbers"
    call(data, tmp_path, params=config.flat_params, outputs={"numbers": numbers})
    result = call(sort, tmp_path, params=config.flat_params, inputs={"numbers": numbers})
    names = [metric.name for metric in domain.metrics(config)]
    found = measurement_from_result(sort, result, expected=names)
    assert found.metrics["sorted_share"] == 1.0
    assert len(found.values["sort_ms"]) == 5
    assert found.effective == {"algorithm": algorithm, "size": 200}


@pytest.mark.parametrize("params", [{"size": 0}, {"algorithm": "bogo"}, {"sise": 3}])
def test_sorting_refuses_what_it_cant_run(params):
    with pytest.raises(BadInput, match=next(iter(params))):
        SortingDomain().check(complete(SortingDomain(), **params))


def test_the_service_goes_through_its_gate_only_where_money_is_at_stake(tmp_path):
    domain = ServiceDomain()
    probe, approve, _, validate = domain.stages(complete(domain))
    seen = call(probe, tmp_path)
    free = complete(domain).flat_params
    assert call(approve, tmp_path, params=free, results={"probe": seen}) is None
    paid = complete(domain, cost_per_item_usd=0.5).flat_params
    asked = call(approve, tmp_path, params=paid, results={"probe": seen})
    assert asked == Approval(
        "Evaluate parrot-1 on 20 items?", "**20** items at 0.5 USD each.", (10.0, 12.0)
    )
    verdict = tmp_path / "verdict"
    state = call(validate, tmp_path, outputs={"verdict": verdict})
    assert state == {"state": "success", "arm": "only"}
    assert verdict.exists()


def test_the_service_evaluates_on_the_host_that_its_parameter_names(tmp_path):
    domain = ServiceDomain()
    assert domain.stages(complete(domain))[2].host is None
    config = complete(domain, host="edge", items=10)
    evaluate = domain.stages(config)[2]
    assert evaluate.host == "edge"
    values = {name: as_text(value) for name, value in config.flat_params.items()}
    assert evaluate.cmd is not None
    command = parse(evaluate.cmd).render(values)
    out = tmp_path / "out"
    with out.open("wb") as stdout:
        subprocess.run(["bash", "-c", command], stdout=stdout, check=True)
    found = read_measurement(evaluate, stdout=out, cwd=tmp_path, expected=["accuracy"])
    assert found.metrics == {"accuracy": 0.8}

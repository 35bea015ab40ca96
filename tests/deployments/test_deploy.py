"""`benchwright deploy` on a clean server, and what is deployed, started with nothing but
parameters."""

from __future__ import annotations

import re
import signal
import subprocess
from pathlib import Path
from typing import Any

import pytest
from ruamel.yaml import YAML

from benchwright.errors import BadInput
from benchwright.record.run import Status
from benchwright.record.store import RunStore
from tests.approvals import until
from tests.cli.conftest import experiment
from tests.cli.support import BENCHWRIGHT, benchwright, json_of
from tests.served import Site, deployed, site, worker

__all__ = ["deployed", "site", "worker"]

pytestmark = pytest.mark.timeout(300)
"""A server is started, and several commands are called one after the other, on machines that are
busy with other tests."""

ROOT = Path(__file__).parents[2]


@pytest.mark.slow
def test_deploying_can_be_repeated_and_check_says_what_would_change(
    tmp_path: Path, site: Site
) -> None:
    before = site.call("deploy", "--check", "--json", cwd=tmp_path)
    entries = YAML(typ="safe").load((ROOT / "prefect.yaml").read_text())["deployments"]
    new = {change["name"] for change in json_of(before)["changes"] if change["what"] == "new"}
    if new:  # the first to meet this server
        assert before.returncode == 1
        assert {"cost-policy", "results-store", "benchwright"} <= new
        assert len([name for name in new if "/" in name]) == len(entries)
    assert site.call("deploy", cwd=tmp_path).returncode == 0
    again = site.call("deploy", "--check", "--json", cwd=tmp_path)
    assert (again.returncode, json_of(again)["changed"]) == (0, 0)
    assert "Traceback" not in again.stderr
    assert "prefect." not in again.stderr.lower(), "no log lines of Prefect's"


@pytest.mark.slow
def test_what_somebody_changed_is_named_and_put_right(tmp_path: Path, deployed: Site) -> None:
    found = deployed.deployment("benchmark/benchmark")
    deployed.server.call(
        f"/deployments/{found['id']}", {"description": "mine", "tags": ["x"]}, method="PATCH"
    )
    check = deployed.call("deploy", "--check", "--json", cwd=tmp_path)
    assert check.returncode == 1
    changed = [change for change in json_of(check)["changes"] if change["what"]]
    assert [(one["name"], sorted(one["fields"])) for one in changed] == [
        ("benchmark/benchmark", ["description", "tags"])
    ]
    assert deployed.deployment("benchmark/benchmark")["description"] == "mine", "check only looks"
    deployed.call("deploy", cwd=tmp_path)
    assert deployed.deployment("benchmark/benchmark")["tags"] == ["benchwright"]
    assert deployed.call("deploy", "--check", cwd=tmp_path).returncode == 0


@pytest.mark.slow
def test_a_misspelled_key_is_refused_before_a_run_is_made(tmp_path: Path, deployed: Site) -> None:
    found = deployed.deployment("benchmark/benchmark")
    wrong: list[tuple[dict[str, Any], str]] = [
        ({"config": {"domain": "command", "stagse": []}}, "stagse"),
        ({"config": {"domain": "command", "budget": {"wal_s": 1}}}, "wal_s"),
        ({"confg": {}}, "confg"),
        ({"config": {"domain": "command", "replication": {"replicates": 0}}}, "replicates"),
        ({"replicates": "many"}, "replicates"),
    ]
    import urllib.error

    for parameters, word in wrong:
        with pytest.raises(urllib.error.HTTPError) as refused:
            deployed.server.call(
                f"/deployments/{found['id']}/create_flow_run", {"parameters": parameters}
            )
        assert refused.value.code == 409
        assert word in refused.value.read().decode()


@pytest.mark.slow
def test_every_field_of_every_form_is_described(deployed: Site) -> None:
    deployments = deployed.server.call("/deployments/filter", {})
    assert {one["name"] for one in deployments} >= {"benchmark", "compare"}
    for one in deployments:
        schema = one["parameter_openapi_schema"]
        models = [schema, *schema.get("definitions", {}).values()]
        for model in models:
            for name, field in model.get("properties", {}).items():
                assert field.get("description"), f"{one['name']}: {model.get('title')}.{name}"
            if "properties" in model:
                assert model.get("additionalProperties") is False


@pytest.mark.slow
def test_prefects_own_command_runs_an_experiment_to_its_report(
    tmp_path: Path, worker: Site
) -> None:
    config = experiment(tmp_path)
    finished = worker.prefect(
        "deployment", "run", "benchmark/benchmark", "-p", f"path={config}", "--watch", cwd=tmp_path
    )
    assert finished.returncode == 0, finished.stdout + finished.stderr
    [run_id] = set(re.findall(r"\d{4}-\d\d-\d\d_command_[0-9a-f]{6}", finished.stdout))
    record = RunStore(worker.home).open(run_id).read()
    assert record.status is Status.COMPLETED
    flow_run = worker.server.flow_run(run_id)
    assert flow_run is not None, "it is found by the run's id"
    assert {f"run:{run_id}", "domain:command"} <= set(flow_run["tags"])


@pytest.mark.slow
def test_a_run_is_submitted_from_a_file_and_is_the_same_experiment_as_here(
    tmp_path: Path, worker: Site
) -> None:
    config = experiment(tmp_path)
    here = benchwright("run", str(config), "--json", cwd=tmp_path, home=worker.home)
    there = worker.call("run", str(config), "--deployment", "benchmark", "--json", cwd=tmp_path)
    assert there.returncode == 0, there.stderr
    run_id = json_of(there)["run_id"]
    store = RunStore(worker.home)
    first, second = store.open(json_of(here)["run_id"]).view(), store.open(run_id).view()
    assert first.config_hash == second.config_hash
    assert [p.signature for p in first.prep] == [p.signature for p in second.prep]
    assert all(p.cached for p in second.prep), "what was built here is found there"
    assert "t_ms" in json_of(there)["report"]


@pytest.mark.slow
def test_options_of_the_terminal_reach_the_worker(tmp_path: Path, worker: Site) -> None:
    config = experiment(tmp_path)
    finished = worker.call(
        "run", str(config), "-p", "size=7", "--replicates", "2", cwd=tmp_path
    )  # PREFECT_API_URL alone names the deployment
    assert finished.returncode == 0, finished.stderr
    assert "t_ms" in finished.stdout
    [run_id] = set(re.findall(r"\d{4}-\d\d-\d\d_command_[0-9a-f]{6}", finished.stdout))
    said = RunStore(worker.home).open(run_id).config()
    assert (said.params["size"], said.replication.replicates) == (7, 2)


@pytest.mark.slow
def test_a_failing_stage_and_a_refused_plan_have_their_exit_codes(
    tmp_path: Path, worker: Site
) -> None:
    config = experiment(tmp_path)
    (tmp_path / "fail").touch()
    failed = worker.call("run", str(config), cwd=tmp_path)
    assert failed.returncode == 4, failed.stderr
    assert "no such index" in failed.stdout


@pytest.mark.slow
def test_ctrl_c_cancels_the_flow_run_and_what_it_started(tmp_path: Path, worker: Site) -> None:
    config = experiment(tmp_path)
    (tmp_path / "hang").touch()
    process = subprocess.Popen(
        [*BENCHWRIGHT, "run", str(config)],
        cwd=tmp_path,
        env=worker.environ(BENCHMARK_HOME=str(worker.home)),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    until((tmp_path / "child").exists)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=90)
    assert process.returncode == 130, out + err
    child = int((tmp_path / "child").read_text())
    until(lambda: not Path(f"/proc/{child}").exists())


@pytest.mark.slow
def test_a_big_configuration_travels_as_path_and_digest(tmp_path: Path, worker: Site) -> None:
    config = experiment(tmp_path, notes="x" * 600_000)
    finished = worker.call("run", str(config), "--replicates", "1", "--json", cwd=tmp_path)
    assert finished.returncode == 0, finished.stderr
    flow_run = worker.server.call(f"/flow_runs/{json_of(finished)['flow_run']}")
    assert set(flow_run["parameters"]) >= {"path", "digest"}
    assert "config" not in flow_run["parameters"]


@pytest.mark.slow
def test_two_runs_are_compared_by_a_flow(tmp_path: Path, worker: Site) -> None:
    config = experiment(tmp_path, replication={"replicates": 6, "warmup": 0})
    a, b = (
        json_of(benchwright("run", str(config), "--json", cwd=tmp_path, home=worker.home))["run_id"]
        for _ in range(2)
    )
    finished = worker.prefect(
        "deployment", "run", "compare/compare", "-p", f"a={a}", "-p", f"b={b}", "--watch",
        cwd=tmp_path,
    )  # fmt: skip
    assert finished.returncode == 0, finished.stdout
    key = f"compare-{a.replace('_', '-')}-{b.replace('_', '-')}"
    text = worker.server.artifact(key)
    assert "t_ms" in text
    assert "QUALIFIED" in text or "RELIABLE" in text


def test_a_key_of_prefect_yaml_that_would_do_nothing_is_refused(tmp_path: Path) -> None:
    from deployments.register import read_entries

    def refused(text: str) -> str:
        file = tmp_path / "prefect.yaml"
        file.write_text(text)
        with pytest.raises(BadInput) as problem:
            read_entries(file)
        return str(problem.value)

    entry = "deployments:\n  - name: a\n    entrypoint: flows.benchmark.benchmark\n"
    assert "did you mean `schedules`" in refused(entry + "    schedule: []\n")
    assert "`entrypoint` is missing" in refused("deployments:\n  - name: a\n")
    assert "there twice" in refused(entry + entry.removeprefix("deployments:\n"))
    assert "there are no deployments" in refused("name: x\n")


def test_every_entry_of_prefect_yaml_names_a_flow_that_exists() -> None:
    from prefect.flows import load_flow_from_entrypoint

    from deployments.register import PREFECT_YAML, read_entries

    for entry in read_entries(PREFECT_YAML):
        flow = load_flow_from_entrypoint(entry["entrypoint"], use_placeholder_flow=False)
        assert flow.name == entry["name"]


def test_no_server_is_said_in_a_sentence(tmp_path: Path) -> None:
    finished = benchwright(
        "deploy", cwd=tmp_path, home=tmp_path, PREFECT_API_URL="http://127.0.0.1:9/api"
    )
    assert finished.returncode == 2, finished.stderr
    assert "no Prefect server answers" in finished.stderr
    assert "Traceback" not in finished.stderr

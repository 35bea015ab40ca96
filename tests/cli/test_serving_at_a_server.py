"""`accuracy` and `speed` at a Prefect server: their own deployments, and a block with a key."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from benchwright.record.run import Status
from benchwright.record.store import RunStore
from tests.approvals import until
from tests.cli.support import benchwright, json_of
from tests.domains.serving import serving_parts as parts
from tests.served import Site, deployed, site, worker

__all__ = ["deployed", "site", "worker"]

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

SECRET = "sk-planted-41aa90f3"


@pytest.fixture(scope="module")
def locked(tmp_path_factory: pytest.TempPathFactory) -> Iterator[parts.Server]:
    """A served model that asks for an API key."""
    answers = parts.write_gsm8k(tmp_path_factory.mktemp("answers")) / "test.jsonl"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("STANDIN_KEY", SECRET)
        server = parts.start_server("--answers", str(answers))
    yield server
    server.process.kill()
    server.process.wait()


@pytest.fixture(scope="module")
def block(worker: Site, locked: parts.Server) -> str:
    """Name of a model-server block that has the key."""
    from prefect.settings import PREFECT_API_URL, temporary_settings
    from pydantic import SecretStr

    from blocks.hosts import ModelServer

    with temporary_settings({PREFECT_API_URL: worker.api_url}):
        ModelServer(endpoint_port=locked.port, api_key=SecretStr(SECRET)).save(  # type: ignore[call-arg]
            "locked", overwrite=True, _sync=True
        )
    return "locked"


def words(place: Path) -> list[str]:
    """An accuracy run's options beside the target."""
    data = parts.write_gsm8k(place / "gsm8k")
    tool = parts.fake_tool(place / "tool")
    return [
        *("--dataset", f"gsm8k={data}", "--max-tokens", "64"),
        *("-p", f"evaluate.evalscope={tool}", "-p", f"evaluate.work_root={place / 'work'}"),
    ]


def everything(site: Site) -> str:
    """All that the server tells, blocks as they are shown."""
    said = [
        site.server.call(f"/{what}/filter", {})
        for what in ("flow_runs", "task_runs", "artifacts", "logs", "variables")
    ]
    said.append(site.server.call("/block_documents/filter", {}))
    return json.dumps(said)


def leaks(*folders: Path) -> list[Path]:
    """Files that hold the key."""
    return [
        path
        for folder in folders
        for path in folder.rglob("*")
        if path.is_file() and SECRET.encode() in path.read_bytes()
    ]


def test_the_terminal_submits_a_block_by_its_name_and_its_key_stays_in_it(
    tmp_path: Path, worker: Site, block: str
) -> None:
    said = worker.call("accuracy", "--target", block, *words(tmp_path), "--json", cwd=tmp_path)
    assert said.returncode == 0, said.stdout + said.stderr
    ended = json_of(said)
    assert ended["state"] == "Completed"
    assert "score.gsm8k" in ended["report"].replace("\\", "")
    record = RunStore(worker.home).open(ended["run_id"]).read()
    assert record.status is Status.COMPLETED
    assert record.view.config.params["target"]["endpoint"]["key_env"] == "BENCHWRIGHT_ENDPOINT_KEY"
    until(lambda: ended["run_id"] in everything(worker))
    assert SECRET not in said.stdout + said.stderr + everything(worker)
    assert leaks(worker.home, tmp_path) == []


def test_a_run_here_takes_the_key_from_the_servers_block_too(
    tmp_path: Path, worker: Site, block: str
) -> None:
    """The block is on this home's own server: no deployment is asked for, and it runs here."""
    said = benchwright(
        *("accuracy", "--target", block, *words(tmp_path), "--because", "here", "--json"),
        cwd=tmp_path,
        home=worker.home,
    )
    assert said.returncode == 0, said.stdout + said.stderr
    assert json_of(said)["accuracy"]["state"] == "success"
    assert SECRET not in said.stdout + said.stderr
    assert leaks(worker.home, tmp_path) == []


def test_a_ceiling_and_a_variable_reach_the_speed_deployment(
    tmp_path: Path, worker: Site, locked: parts.Server
) -> None:
    tool = parts.fake_tool(tmp_path / "tool")
    said = worker.call(
        *("speed", "--local", "--port", str(locked.port), "--api-key-env", "NOWHERE_SET"),
        *("--batch-sizes", "2", "-p", f"load.evalscope={tool}"),
        *("--deployment", "speed", "--max-cost", "0", "--json"),
        cwd=tmp_path,
        NOWHERE_SET=SECRET,
    )
    # The worker has no such variable, and it isn't handed over: parameters are public.
    ended = json_of(said)
    assert (said.returncode, ended["state"]) == (2, "BadInput"), said.stderr
    assert "NOWHERE_SET" in ended["message"]
    flow_run = worker.server.call(f"/flow_runs/{ended['flow_run']}")
    assert flow_run["parameters"]["max_cost_usd"] == 0
    assert flow_run["parameters"]["request"]["load"]["batch_sizes"] == [2]
    assert SECRET not in said.stdout + said.stderr + everything(worker)


def test_a_deployment_that_is_not_there_is_said(tmp_path: Path, worker: Site) -> None:
    said = worker.call("accuracy", "--local", "--deployment", "none", cwd=tmp_path)
    assert said.returncode == 2
    assert "the server has no deployment 'accuracy/none'" in said.stderr

"""A run that is started from a deployment's form, and a long wait for its approval."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from benchwright.record.consent import read_consent
from benchwright.record.run import Status
from benchwright.record.store import RunStore
from tests.approvals import until
from tests.cli.conftest import experiment
from tests.served import Site, deployed, site, worker

if TYPE_CHECKING:
    from playwright.sync_api import Locator, Page

__all__ = ["deployed", "site", "worker"]

pytestmark = [pytest.mark.slow, pytest.mark.real]

Open = Callable[[str], "Page"]
Keep = Callable[["Page", str], None]


def form_page(site: Site, open_page: Open, name: str) -> Page:
    """The page on which a run of a deployment is asked for."""
    ui = site.api_url.removesuffix("/api")
    page = open_page(f"{ui}/deployments/deployment/{site.deployment(name)['id']}/run")
    page.locator(".schema-form-property__label").first.wait_for()
    return page


def field(page: Page, title: str) -> Locator:
    """A field with all that is in it."""
    label = page.locator(".schema-form-property__label", has_text=re.compile(rf"^{title}( |$)"))
    return page.locator(".schema-form-property").filter(has=label).last


def started(page: Page, site: Site) -> dict[str, Any]:
    """Submit the form; returns the flow run that it made."""
    with page.expect_response(re.compile("/create_flow_run$")) as answer:
        page.get_by_role("button", name="Submit").click()
    made = answer.value.json()
    assert isinstance(made, dict)
    return made


def ended(site: Site, flow_run: dict[str, Any]) -> dict[str, Any]:
    """The flow run once it has ended."""

    def final() -> dict[str, Any] | None:
        now = site.server.call(f"/flow_runs/{flow_run['id']}")
        over = now["state"]["type"] in ("COMPLETED", "FAILED", "CRASHED", "CANCELLED")
        return now if over else None

    found = until(final, 110)
    assert isinstance(found, dict)
    return found


def test_a_run_is_started_from_its_form_and_found_by_its_name(
    tmp_path: Path, worker: Site, open_page: Open, keep: Keep
) -> None:
    config = experiment(tmp_path)
    page = form_page(worker, open_page, "benchmark/benchmark")
    path = field(page, "path")
    assert path.get_by_text("A configuration file, or the name of a recipe").is_visible()
    path.get_by_role("button", name="str").click()
    path.locator("textarea").fill(str(config))
    keep(page, "form")
    flow_run = ended(worker, started(page, worker))
    assert flow_run["state"]["name"] == "Completed", flow_run["state"]["message"]
    assert RunStore(worker.home).open(flow_run["name"]).read().status is Status.COMPLETED
    page.goto(f"{worker.api_url.removesuffix('/api')}/runs/flow-run/{flow_run['id']}")
    page.get_by_text(flow_run["name"]).first.wait_for()
    page.get_by_text("domain:command").first.wait_for()
    keep(page, "its run")


def test_a_configuration_is_a_form_whose_every_field_is_described(
    tmp_path: Path, worker: Site, open_page: Open, keep: Keep
) -> None:
    page = form_page(worker, open_page, "benchmark/benchmark")
    config = field(page, "config")
    config.get_by_role("button", name="BenchmarkConfig").click()
    for said in ("The kind of system", "What the run may use at most", "Seconds of wall-clock"):
        page.get_by_text(said).first.wait_for()
    keep(page, "configuration")
    domain = field(page, "Domain")
    domain.locator("textarea, input").first.fill("comand")
    flow_run = ended(worker, started(page, worker))
    assert flow_run["state"]["name"] == "BadInput"
    assert "did you mean `command`" in flow_run["state"]["message"]


def test_a_long_wait_gives_the_workers_slot_back_and_goes_on_where_it_was(
    tmp_path: Path, worker: Site, open_page: Open, keep: Keep
) -> None:
    """The default policy waits a day: the run is suspended, and no process holds it."""
    prices = tmp_path / "prices.yaml"
    prices.write_text("date: 2026-11\nproviders: {local: {machine_hour: 36}}\n")
    config = experiment(tmp_path, replication={"replicates": 2, "warmup": 0})
    deployment = worker.deployment("benchmark/benchmark")
    flow_run = worker.server.call(
        f"/deployments/{deployment['id']}/create_flow_run",
        {
            "parameters": {"path": str(config)},
            "job_variables": {"env": {"BENCHWRIGHT_PRICES": str(prices)}},
            "state": {"type": "SCHEDULED"},
        },
    )

    def suspended() -> Any:
        now = worker.server.call(f"/flow_runs/{flow_run['id']}")
        assert now["state"]["type"] != "FAILED", now["state"]["message"]
        return now if now["state"]["name"] == "Suspended" else None

    waiting = until(suspended, 110)
    folder = RunStore(worker.home).open(waiting["name"])
    until(lambda: not folder.alive())
    assert folder.settle() is Status.IN_PROGRESS, "it waits, and isn't lost"
    page = open_page(f"{worker.api_url.removesuffix('/api')}/runs/flow-run/{waiting['id']}")
    page.get_by_role("button", name="Resume").first.click()
    page.get_by_text("this machine").first.wait_for()
    keep(page, "question")
    field(page, "Approve").locator("[role=switch]").click()
    field(page, "Your name").locator("textarea").fill("Ana")
    if field(page, "I know that it may cost").count():
        field(page, "I know that it may cost").locator("[role=switch]").click()
    page.get_by_role("dialog").get_by_role("button", name="Submit").click()
    done = ended(worker, waiting)
    assert done["state"]["name"] == "Completed", done["state"]["message"]
    assert done["name"] == waiting["name"], "it is the same run"
    consent = read_consent(folder.path)
    assert consent is not None
    assert consent.who == "Ana"
    assert (tmp_path / "builds.log").read_text().count("built") == 2
    assert (tmp_path / "searches.log").read_text().count("run") == 4

"""A run's page on the local server: the graph, its tasks' names, what came from the cache."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.approvals import Server, until
from tests.cli.conftest import experiment
from tests.cli.support import benchwright, json_of

if TYPE_CHECKING:
    from playwright.sync_api import Page

pytestmark = [pytest.mark.slow, pytest.mark.real]

Open = Callable[[str], "Page"]
Keep = Callable[["Page", str], None]

TASKS = (
    "build, size=5",
    "build, size=9",
    "search, size=5, warm-up 1",
    "search, size=9, replicate 3",
    "report",
)


def graph_of(server: Server, flow_run: dict[str, Any]) -> dict[str, str]:
    """The graph that the page draws, as the server gives it: label -> state."""
    graph = server.call(f"/flow_runs/{flow_run['id']}/graph-v2")
    return {node["label"]: node["state_type"] for _, node in graph["nodes"]}


def page_of(server: Server, run_id: str) -> dict[str, Any]:
    """The flow run, once the server has stored the last of its tasks' states."""

    def stored() -> Any:
        run = server.flow_run(run_id)
        done = run and run["state"]["type"] == "COMPLETED"
        return run if done and "COMPLETED" in graph_of(server, run).get("report", "") else None

    found = until(stored)
    assert isinstance(found, dict)
    return found


def test_a_runs_page_shows_its_graph_and_the_second_its_cached_builds(
    tmp_path: Path, local_home: Path, server: Server, ui_url: str, open_page: Open, keep: Keep
) -> None:
    config = str(experiment(tmp_path))
    first, second = (
        json_of(benchwright("run", config, "--json", cwd=tmp_path, home=local_home))["run_id"]
        for _ in range(2)
    )
    for run_id, state in ((first, "Completed"), (second, "Cached")):
        flow_run = page_of(server, run_id)
        labels = graph_of(server, flow_run)
        assert set(TASKS) <= set(labels)
        page = open_page(f"{ui_url}/runs/flow-run/{flow_run['id']}")
        page.get_by_text(run_id).first.wait_for()
        page.locator("canvas").first.wait_for()
        page.get_by_text("report").first.wait_for()
        keep(page, f"graph with {state} builds")
        page.get_by_text("Task Runs", exact=True).click()
        for name in TASKS:
            page.get_by_text(name, exact=True).first.wait_for()
        builds = page.locator(".state-list-item").filter(has_text="build, size=")
        assert builds.filter(has_text=state).count() == 2
        keep(page, f"{state} builds")


def test_the_report_is_an_artifact_on_the_runs_page(
    tmp_path: Path, local_home: Path, server: Server, ui_url: str, open_page: Open, keep: Keep
) -> None:
    config = str(experiment(tmp_path))
    run = json_of(benchwright("run", config, "--json", cwd=tmp_path, home=local_home))
    flow_run = page_of(server, run["run_id"])
    page = open_page(f"{ui_url}/runs/flow-run/{flow_run['id']}")
    page.get_by_text("Artifacts", exact=True).first.click()
    # The list fills in when it is scrolled to.
    page.get_by_text("Task runs", exact=True).last.scroll_into_view_if_needed()
    page.mouse.wheel(0, 2000)
    page.locator("a", has_text="report-").first.click()
    page.get_by_text(run["tag"]).first.wait_for()
    page.get_by_text("t_ms").first.wait_for()
    assert page.get_by_text("What went wrong or remained unknown").first.is_visible()
    assert page.get_by_text("report.html").first.is_visible()
    keep(page, "artifact")

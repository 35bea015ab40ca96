"""The dashboard and the artifact of a night that has run, in a real browser."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from benchwright.record.nights import SuiteFolder
from tests.approvals import until
from tests.domains.serving import serving_parts as parts
from tests.nights import ITEMS, POINTS, suite_of_each
from tests.served import Site, deployed, site, worker

if TYPE_CHECKING:
    from playwright.sync_api import Page

__all__ = ["deployed", "site", "worker"]

pytestmark = [pytest.mark.slow, pytest.mark.real, pytest.mark.timeout(400)]

NIGHTS = 2
METRICS = ("t_ms", "score.gsm8k", "output_tok_s.c2", "output_tok_s.c4")


def run_a_night(site: Site, suite: Path) -> dict[str, Any]:
    """The flow run of a night, once it has ended."""
    asked = site.server.call(
        f"/deployments/{site.deployment('nightly/nightly')['id']}/create_flow_run",
        {"parameters": {"suite": str(suite)}, "state": {"type": "SCHEDULED"}},
    )

    def over() -> Any:
        now = site.server.call(f"/flow_runs/{asked['id']}")
        return now if now["state"]["type"] in ("COMPLETED", "FAILED", "CRASHED") else None

    ended: dict[str, Any] = until(over, 170)
    assert ended["state"]["name"] == "Completed", ended["state"]["message"]
    return ended


def test_a_nights_experiment_accuracy_and_speed_are_seen_on_its_dashboard_and_in_prefects_pages(
    tmp_path: Path,
    worker: Site,
    open_page: Callable[[str], Page],
    keep: Callable[[Page, str], None],
) -> None:
    answers = parts.write_gsm8k(tmp_path / "answers", ITEMS) / "test.jsonl"
    suite = tmp_path / "every-night.yaml"
    with parts.standin(answers=answers) as model:
        suite.write_text(json.dumps(suite_of_each(tmp_path, model.port)))
        for _ in range(NIGHTS):
            ended = run_a_night(worker, suite)

    page = open_page(SuiteFolder(worker.home, "every-night").dashboard.as_uri())
    assert page.title() == "Nightly: every-night"
    headings = page.locator("main h2").all_inner_texts()
    assert set(headings[:3]) == {"search", "right", "fast"}
    names = page.locator("table.suite th[scope=row]").all_inner_texts()
    for metric in METRICS:
        assert any(name.startswith(metric) for name in names), f"{metric} isn't in {names}"
    lines = page.locator("svg.spark")
    assert lines.count() == len(names)
    for place in range(lines.count()):
        assert lines.nth(place).locator("circle").count() == NIGHTS, "a dot for each night"
    assert "COMPLETED" not in headings
    assert page.evaluate("document.documentElement.scrollWidth <= window.innerWidth")
    page.set_viewport_size({"width": 1280, "height": 2400})
    keep(page, "dashboard")

    wanted = {"flow_run_id": {"any_": [ended["id"]]}, "key": {"any_": ["nightly-every-night"]}}
    [artifact] = worker.server.call("/artifacts/filter", {"artifacts": wanted})
    page = open_page(f"{worker.api_url.removesuffix('/api')}/artifacts/artifact/{artifact['id']}")
    page.wait_for_load_state("networkidle")
    keep(page, "artifact")
    page.get_by_role("heading", name="Nightly: every-night").first.wait_for()
    shown = page.locator("body").inner_text()
    for metric in METRICS:
        assert metric in shown
    assert sum(metric.startswith("output_tok_s") for metric in METRICS) == POINTS

"""Markup that a stage prints does nothing in a browser: not in the report, not in Prefect's
pages."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from benchwright.record.store import RunStore
from tests.approvals import Server, until
from tests.cli.conftest import experiment
from tests.cli.support import benchwright, json_of

if TYPE_CHECKING:
    from playwright.sync_api import Page

pytestmark = [pytest.mark.slow, pytest.mark.real]

Open = Callable[[str], "Page"]
Keep = Callable[["Page", str], None]

EVIL = "<script>window.planted=1</script><img src=x onerror=window.planted=2>"
LINK = "[click](javascript:window.planted=3)"
PRINTS = f"""#!/bin/sh
echo '{EVIL}{LINK}'
echo '{EVIL}{LINK}' >&2
test -f fail && exit 3
echo '{{"t_ms": 1.5, "effective": {{"size": "{EVIL}", "{LINK}": "{EVIL}"}}}}'
"""


@pytest.fixture
def evil(tmp_path: Path, local_home: Path) -> Callable[[], str]:
    """Run an experiment whose stage prints markup; returns the run's id."""
    script = tmp_path / "evil.sh"
    script.write_text(PRINTS)
    script.chmod(0o755)

    def run() -> str:
        config = experiment(
            tmp_path,
            hypothesis=f"t_ms falls {EVIL}{LINK}",
            notes=f"{EVIL}{LINK}",
            params={"size": 5, "label": f"{EVIL}{LINK}"},
            stages=[
                {
                    "name": "search",
                    "kind": "measure",
                    "cmd": "./evil.sh {size}",
                    "params": ["label"],
                    "metrics_from": {"stdout": True, "format": "json"},
                }
            ],
            replication={"replicates": 1, "warmup": 0},
        )
        finished = benchwright(
            "run", str(config), "--json", "--because", EVIL, cwd=tmp_path, home=local_home
        )
        return str(json_of(finished)["run_id"])

    return run


def harmless(page: Page) -> None:
    """Nothing that was planted ran, and no link to a script is there."""
    assert page.evaluate("window.planted") is None
    assert page.locator("img[src=x]").count() == 0
    assert page.locator("a[href^='javascript:']").count() == 0


@pytest.mark.parametrize("fails", [False, True], ids=["ends well", "fails"])
def test_what_a_stage_prints_does_nothing(
    fails: bool,
    evil: Callable[[], str],
    tmp_path: Path,
    local_home: Path,
    server: Server,
    ui_url: str,
    open_page: Open,
    keep: Keep,
) -> None:
    if fails:
        (tmp_path / "fail").touch()
    run_id = evil()
    report = RunStore(local_home).open(run_id).report_html
    page = open_page(report.as_uri())
    page.locator("h1").first.wait_for()
    harmless(page)
    flow_run: dict[str, Any] = until(lambda: server.flow_run(run_id))
    page = open_page(f"{ui_url}/runs/flow-run/{flow_run['id']}")
    page.get_by_text(run_id).first.wait_for()
    page.wait_for_load_state("networkidle")
    harmless(page)
    key = f"report-{run_id.replace('_', '-')}"
    wanted = {"artifacts": {"key": {"any_": [key]}}}
    [artifact] = until(lambda: server.call("/artifacts/filter", wanted))
    page = open_page(f"{ui_url}/artifacts/artifact/{artifact['id']}")
    page.get_by_text("What went wrong or remained unknown").first.wait_for()
    harmless(page)
    keep(page, "artifact")

"""The dashboard of a suite: read as text, and in a real browser."""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from benchwright.judgement.history import Standing
from benchwright.report.dashboard import render_dashboard, render_summary, sparkline
from benchwright.report.suite import Board
from tests.report.sample_suite import ARMS, FAILED_AT, GROUND_AT, NIGHTS, STEP_AT, board
from tests.support import require

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

CHROMIUM = shutil.which("chromium") or shutil.which("google-chrome")
ARGUMENTS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]
PLANTED = "<script>document.title='owned'</script><img src=x onerror=\"document.title='owned'\">"
ARTIFACTS = Path(__file__).parents[2] / "test-artifacts"


@pytest.fixture(scope="module")
def suite(tmp_path_factory: pytest.TempPathFactory) -> Board:
    return board(tmp_path_factory.mktemp("home"), error=PLANTED)


def test_each_metric_has_its_state_line_and_last_change(suite: Board) -> None:
    page = render_dashboard(suite)
    assert "Nightly: nightly" in page
    assert page.count('<svg class="spark"') == 4
    search = suite.entries[0]
    worse, steady = search.series[0].history, search.series[1].history
    assert worse.standing is Standing.WORSE
    assert steady.standing is Standing.STEADY
    (change,) = worse.changes
    assert abs(change.first - STEP_AT) <= 1
    assert f"{change.first - 1:012x}..{change.first:012x}" in page
    assert f"git log --oneline {change.first - 1:012x}..{change.first:012x}" in page
    assert "benchwright compare" in page
    assert "machine.kernel: 6.1.0 became 6.8.0" in page
    assert "Has not run yet" in page
    assert "REFUSED" in page
    assert "not watched" in page


def test_the_page_is_one_small_file_that_runs_and_fetches_nothing(suite: Board) -> None:
    page = render_dashboard(suite)
    assert len(page.encode()) < 150_000
    assert "<script" not in page
    assert "default-src &#39;none&#39;" in page
    assert "script-src &#39;none&#39;" in page
    assert not re.search(r'(?:src|href)="(?!#)', page)
    assert not re.search(r"url\(|@import", page)


def test_what_a_stage_printed_is_text_on_the_page(suite: Board) -> None:
    page = render_dashboard(suite)
    assert "&lt;script&gt;document.title" in page
    assert "&lt;b&gt;every&lt;/b&gt;" in page
    assert "<b>every" not in page


def test_a_sparkline_breaks_where_the_environment_changed(suite: Board) -> None:
    history = suite.entries[0].series[0].history
    line = sparkline(history)
    assert len(line.paths) == 2
    assert [title for _, title in line.grounds] == [
        "environment changed: machine.kernel: 6.1.0 became 6.8.0"
    ]
    assert len(line.gaps) == 1
    assert history.nights[FAILED_AT].date in line.gaps[0][1]
    assert len(line.dots) == NIGHTS - 1
    assert [mark.worse for mark in line.marks] == [True]
    assert f"over {NIGHTS} nights" in line.alt
    assert all(0 <= x <= 300 and 0 <= y <= 56 for x, y, _ in line.dots)
    assert history.segments[1].first == GROUND_AT


def test_the_payload_of_a_regression_is_enough_to_act_on(tmp_path: Path) -> None:
    for nights in range(STEP_AT + 1, STEP_AT + 6):
        home = tmp_path / str(nights)
        home.mkdir()
        on_the_night = board(home, nights)
        if on_the_night.regressions():
            break
    (regression,) = on_the_night.regressions()
    payload = regression.payload(tmp_path)
    assert payload["suite"] == "nightly"
    assert payload["entry"] == "search"
    assert payload["metric"] == "p50_ms"
    assert payload["arm"] == ARMS[0]
    assert payload["after"] == pytest.approx(payload["before"] * 1.03, rel=0.015)
    assert payload["interval_low"] < payload["effect"] < payload["interval_high"]
    assert payload["commits"] == [f"{STEP_AT - 1:012x}", f"{STEP_AT:012x}"]
    assert payload["look_closer"].startswith("benchwright compare ")
    assert payload["commits_command"].startswith("git log --oneline ")
    assert regression.resource == "benchwright.suite.nightly.search.p50_ms.size-5"
    assert payload["summary"] in render_dashboard(on_the_night).replace("\N{NO-BREAK SPACE}", " ")
    again = tmp_path / "again"
    again.mkdir()
    assert not board(again, nights + 1).regressions(), "it is news on one night only"


def test_the_summary_is_short_markdown_without_markup_of_others(suite: Board) -> None:
    text = render_summary(suite)
    assert len(text.encode()) < 5000
    assert "| search | here |" in text
    assert "<script>" not in text
    assert "dashboard.html" in text


def test_the_summary_shows_where_each_watched_metric_stands_the_worst_first(suite: Board) -> None:
    lines = render_summary(suite).replace("\\", "").splitlines()
    begin = lines.index("| Metric | State | This night | Level |")
    rows = [line.split(" | ") for line in lines[begin + 2 :] if line.startswith("| ")]
    assert [row[:2] for row in rows] == [
        ["| search: p50_ms (size=5)", "worse"],
        ["| search: p50_ms (size=9)", "steady"],
    ]
    assert all("ms" in cell for row in rows for cell in row[2:])


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    require(CHROMIUM is not None, "no Chromium to open the dashboard in")
    pytest.importorskip("playwright")
    from playwright.sync_api import sync_playwright

    with sync_playwright() as driver:
        running = driver.chromium.launch(executable_path=CHROMIUM, args=ARGUMENTS)
        yield running
        running.close()


@pytest.fixture
def page(browser: Browser, suite: Board, tmp_path: Path) -> Iterator[Page]:
    file = tmp_path / "dashboard.html"
    file.write_text(render_dashboard(suite), encoding="utf-8")
    context = browser.new_context(offline=True, viewport={"width": 1280, "height": 900})
    opened = context.new_page()
    problems: list[str] = []
    opened.on("pageerror", lambda error: problems.append(str(error)))
    opened.on("console", lambda message: problems.append(message.text))
    opened.on("request", lambda request: problems.append(request.url)
              if not request.url.startswith(("file:", "data:")) else None)  # fmt: skip
    opened.goto(file.as_uri())
    yield opened
    assert not problems
    context.close()


@pytest.mark.real
def test_the_dashboard_opens_offline_and_shows_the_states(page: Page) -> None:
    ARTIFACTS.mkdir(exist_ok=True)
    page.screenshot(path=ARTIFACTS / "dashboard.png", full_page=True)
    assert page.title() == "Nightly: nightly"
    states = page.locator("tbody .state").all_inner_texts()
    assert states[:2] == ["worse", "steady"]
    box = page.locator("svg.spark").first.bounding_box()
    assert box is not None
    assert box["width"] > 200
    assert box["height"] > 40
    assert page.locator("text=look closer").count() == 1
    assert not page.locator("pre:has-text('git log')").first.is_visible()
    page.locator("text=look closer").click()
    assert page.locator("pre:has-text('git log')").first.is_visible()
    assert page.evaluate("document.documentElement.scrollWidth <= window.innerWidth")


@pytest.mark.real
def test_the_dashboard_fits_a_phone_and_a_printer(page: Page) -> None:
    page.set_viewport_size({"width": 390, "height": 800})
    assert page.evaluate("document.documentElement.scrollWidth <= window.innerWidth")
    ARTIFACTS.mkdir(exist_ok=True)
    page.emulate_media(media="print")
    page.set_viewport_size({"width": 794, "height": 1123})
    assert page.evaluate("document.documentElement.scrollWidth <= window.innerWidth")
    page.screenshot(path=ARTIFACTS / "dashboard-print.png", full_page=True)


@pytest.mark.real
def test_every_figure_of_the_dashboard_speaks_and_nothing_stands_on_colour_alone(
    page: Page,
) -> None:
    lines = page.locator("svg.spark")
    for number in range(lines.count()):
        label = lines.nth(number).get_attribute("aria-label") or ""
        assert "over 60 nights" in label
    assert page.evaluate("document.querySelectorAll('th:not([scope])').length") == 0
    assert page.evaluate("document.querySelectorAll('h1').length") == 1
    assert page.evaluate("document.documentElement.lang") == "en"
    # A shape of its own for each kind of mark: full and open triangle, dashes, a cross.
    page.add_style_tag(content="html { filter: grayscale(1) }")
    ARTIFACTS.mkdir(exist_ok=True)
    page.screenshot(path=ARTIFACTS / "dashboard-grey.png", full_page=True)
    assert set(page.locator("tbody .state").all_inner_texts()) == {"worse", "steady"}

"""`report.html`: one file, offline, readable, and harmless whatever a stage printed."""

from __future__ import annotations

import html
import re
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from benchwright.record.run import RunRecord, Status
from benchwright.report.html import MOST_BYTES, render_html
from benchwright.report.sections import TITLES
from tests.report.planted import planted
from tests.report.sample_record import bare_record, record, steps_record
from tests.support import require

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

CHROMIUM = shutil.which("chromium") or shutil.which("google-chrome")


def without_scripts(page: str) -> str:
    return re.sub(r"<script\b.*?</script>", "", page, flags=re.DOTALL)


@pytest.mark.parametrize(
    "whole", [record(), steps_record(), bare_record(), bare_record(Status.IN_PROGRESS)]
)
def test_the_page_has_the_sections_of_every_report_in_order(whole: RunRecord) -> None:
    headings = re.findall(r'<h2 id="s\d+">(.*?)</h2>', render_html(whole))
    assert tuple(headings) == TITLES


def test_a_page_without_figures_carries_no_plotting_library() -> None:
    page = render_html(steps_record())
    assert len(page.encode()) < 100_000
    assert "<script" not in page
    assert "&lt;b&gt;small&lt;/b&gt;" in page
    assert "research, step: done." in page


def test_the_page_stays_small_and_names_nothing_to_fetch() -> None:
    page = render_html(record())
    assert len(page.encode()) < MOST_BYTES
    assert "default-src 'none'" in html.unescape(page)
    assert not re.search(r'(?:src|href)="(?!#)', without_scripts(page))


def test_a_run_of_many_replicates_stays_below_the_limit() -> None:
    whole = record()
    many = tuple(
        replace(sample, block=block, order=2 * block)
        for block in range(5000)
        for sample in whole.view.samples[2:4]
    )
    page = render_html(replace(whole, view=replace(whole.view, samples=many, expected=10_000)))
    assert len(page.encode()) < MOST_BYTES
    assert "evenly chosen ones are shown" in page
    assert "Every replicate (the first 500)" in page


def test_the_tables_hold_the_numbers_without_a_script() -> None:
    page = without_scripts(render_html(record())).replace("\N{NO-BREAK SPACE}", " ")
    for said in (
        "11.93 ms",
        "−89.8 %",
        "−90.1 % to −89.5 %",
        "machine.governor",
        "9 of 10 finished",
    ):
        assert said in page


def test_planted_markup_is_escaped_in_the_text_and_in_the_data() -> None:
    page = render_html(planted())
    assert "window.planted = 1</script>" not in page
    assert "<img" not in without_scripts(page)
    assert "onload=" not in re.sub(r"&lt;[^<]*", "", without_scripts(page))


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    require(CHROMIUM is not None, "a Chromium browser")
    pytest.importorskip("playwright")
    from playwright.sync_api import sync_playwright

    with sync_playwright() as driver:
        running = driver.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield running
        running.close()


class Shown:
    """A report in a real browser, with all that it complained of or asked the network for."""

    def __init__(self, page: Page, whole: RunRecord, path: Path) -> None:
        self.page = page
        self.complaints: list[str] = []
        self.requests: list[str] = []
        page.on("console", lambda message: self.complaints.append(message.text))
        page.on("pageerror", lambda error: self.complaints.append(str(error)))
        page.on("request", lambda request: self.requests.append(request.url))
        path.write_text(render_html(whole), "utf-8")
        page.goto(path.as_uri())
        page.wait_for_function("document.querySelectorAll('.plot:not(:has(svg))').length === 0")


@pytest.mark.real
def test_a_browser_draws_every_figure_and_fetches_nothing(browser: Browser, tmp_path: Path) -> None:
    page = browser.new_page()
    shown = Shown(page, record(), tmp_path / "report.html")
    assert page.locator(".plot .main-svg").count() >= 4
    assert shown.complaints == []
    assert shown.requests == [(tmp_path / "report.html").as_uri()]
    page.close()


@pytest.mark.real
def test_planted_scripts_do_nothing_in_a_browser(browser: Browser, tmp_path: Path) -> None:
    page = browser.new_page()
    shown = Shown(page, planted(), tmp_path / "report.html")
    assert page.evaluate("window.planted") is None
    assert page.locator("main img, main script, figure a").count() == 0
    assert [request for request in shown.requests if not request.startswith("file:")] == []
    # Even a script that got past the escaping would be stopped by the policy.
    page.evaluate(
        "() => { const s = document.createElement('script'); s.textContent = 'window.planted = 2';"
        " document.body.append(s); }"
    )
    assert page.evaluate("window.planted") is None
    page.close()


@pytest.mark.real
def test_the_page_is_used_by_keyboard_and_fits_a_phone(browser: Browser, tmp_path: Path) -> None:
    page = browser.new_page(viewport={"width": 390, "height": 800})
    Shown(page, record(), tmp_path / "report.html")
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.textContent") == "Skip to the content"
    page.locator("summary").first.focus()
    page.keyboard.press("Enter")
    assert page.locator("details[open] code").first.is_visible()
    page.close()


@pytest.mark.real
def test_on_paper_everything_is_unfolded_and_fits_the_sheet(
    browser: Browser, tmp_path: Path
) -> None:
    page = browser.new_page(viewport={"width": 680, "height": 960})
    Shown(page, record(), tmp_path / "report.html")
    page.emulate_media(media="print")
    page.evaluate("window.dispatchEvent(new Event('beforeprint'))")
    assert page.locator("details:not([open])").count() == 0
    assert page.evaluate("document.documentElement.scrollWidth") <= 680
    page.evaluate("window.dispatchEvent(new Event('afterprint'))")
    assert page.locator("details[open]").count() == 0
    assert page.pdf()[:4] == b"%PDF"
    page.close()


@pytest.mark.real
def test_without_javascript_the_tables_and_the_graph_are_there(
    browser: Browser, tmp_path: Path
) -> None:
    path = tmp_path / "report.html"
    path.write_text(render_html(record()), "utf-8")
    context = browser.new_context(java_script_enabled=False)
    page = context.new_page()
    page.goto(path.as_uri())
    assert page.get_by_text("The figures need JavaScript").is_visible()
    assert page.get_by_role("cell", name=re.compile("^−89.8.%$")).is_visible()
    assert page.get_by_role("img", name=re.compile("Graph of the stages. build, prep")).is_visible()
    context.close()

"""A real browser in front of a real server's pages; what it saw is kept under test-artifacts/."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.approvals import Server
from tests.support import require

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

CHROMIUM = shutil.which("chromium") or shutil.which("google-chrome")
OPTIONS = (
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)
KEPT = Path(__file__).parents[2] / "test-artifacts"


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    require(CHROMIUM is not None, "a Chromium browser")
    pytest.importorskip("playwright")
    from playwright.sync_api import sync_playwright

    with sync_playwright() as driver:
        running = driver.chromium.launch(executable_path=CHROMIUM, args=list(OPTIONS))
        yield running
        running.close()


@pytest.fixture
def open_page(browser: Browser) -> Iterator[Callable[[str], Page]]:
    """Open an address as a person of one's own: each has cookies of their own."""
    contexts = []

    def open_one(url: str) -> Page:
        context = browser.new_context(viewport={"width": 1280, "height": 800})
        contexts.append(context)
        page = context.new_page()
        page.set_default_timeout(30_000)
        page.goto(url)
        return page

    yield open_one
    for context in contexts:
        context.close()


@pytest.fixture
def keep(request: pytest.FixtureRequest) -> Callable[[Page, str], None]:
    """Keep a picture of a page, under the test's name."""

    def shot(page: Page, what: str) -> None:
        KEPT.mkdir(exist_ok=True)
        name = re.sub(r"[^a-z0-9]+", "-", f"{request.node.name}-{what}".lower()).strip("-")
        page.screenshot(path=KEPT / f"{name}.png")

    return shot


@pytest.fixture(scope="session")
def server(local_api_url: str) -> Server:
    return Server(local_api_url)


@pytest.fixture(scope="session")
def ui_url(local_api_url: str) -> str:
    """Where the server's pages are."""
    return local_api_url.removesuffix("/api")


@pytest.fixture(scope="session")
def cost_policy(local_home: Path, local_api_url: str) -> Iterator[Any]:
    """The server's cost policy: ask for everything, warn above 5 USD, never above 20."""
    from prefect.settings import PREFECT_API_URL, PREFECT_HOME, temporary_settings

    from blocks.policy import CostPolicyBlock

    settings = {PREFECT_API_URL: local_api_url, PREFECT_HOME: local_home / "prefect"}
    with temporary_settings(settings):
        block = CostPolicyBlock(free_usd=0, warn_usd=5, never_usd=20, answer_within_s=600)
        block.save("benchwright", overwrite=True, _sync=True)  # type: ignore[call-arg]
        yield block
        CostPolicyBlock.delete("benchwright", _sync=True)  # type: ignore[call-arg]

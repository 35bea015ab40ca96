"""The approval form in Prefect's pages: what it shows, and what the flow receives of it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from benchwright.record.consent import read_consent
from benchwright.record.run import Status
from benchwright.record.store import RunFolder
from deployments.local import client
from tests.approvals import Server, costly_run, quote, until

if TYPE_CHECKING:
    from playwright.sync_api import Locator, Page

pytestmark = [pytest.mark.slow, pytest.mark.real, pytest.mark.usefixtures("cost_policy")]

Open = Callable[[str], "Page"]
Keep = Callable[["Page", str], None]


class Question:
    """A run that waits for its answer, and a person in front of its page."""

    def __init__(self, run: RunFolder, flow_run: dict[str, Any], url: str, server: Server) -> None:
        self.run, self.flow_run, self.url, self.server = run, flow_run, url, server

    def state(self) -> str:
        """Name of the flow run's state."""
        return str(self.server.call(f"/flow_runs/{self.flow_run['id']}")["state"]["name"])

    def ended(self) -> Status:
        """How the run ended."""
        return Status(
            until(lambda: None if (now := self.run.status) is Status.IN_PROGRESS else now)
        )

    def started(self) -> bool:
        """Whether a stage has run."""
        return bool(self.run.samples()) or any((self.run.path / "logs").glob("*.out"))


@pytest.fixture
def ask(
    tmp_path: Path, local_home: Path, ui_url: str, server: Server, browser: Any
) -> Iterator[Callable[..., Question]]:
    """Start a run that costs something on the local engine, and wait for its question."""
    engine = client.ensure_local(local_home)
    submissions = []

    def start(high_usd: float = 2.0, name: str = "a") -> Question:
        run = costly_run(tmp_path / name, local_home, quote(high_usd))
        submissions.append(client.submit(engine, run.path, cwd=tmp_path))
        flow_run = server.paused(run.run_id)
        return Question(run, flow_run, f"{ui_url}/runs/flow-run/{flow_run['id']}", server)

    yield start
    for submission in submissions:
        submission.cancel()
        submission.follow()


def form_of(page: Page) -> Locator:
    """Press Resume; returns the form once it is shown."""
    page.get_by_role("button", name="Resume").first.click()
    dialog = page.get_by_role("dialog")
    dialog.get_by_text("Your name").wait_for()
    return dialog


def field(form: Locator, title: str) -> Locator:
    """The input below a title."""
    box = form.locator(".schema-form-property").filter(
        has=form.page.locator(".schema-form-property__label", has_text=title)
    )
    return box.locator("[role=switch], textarea, input:not([type=checkbox])").first


def ticked(form: Locator, title: str) -> bool:
    return field(form, title).get_attribute("aria-checked") == "true"


def submit(form: Locator) -> None:
    form.get_by_role("button", name="Submit").click()


def test_the_form_shows_the_estimate_and_refuses_by_default(
    ask: Callable[..., Question], open_page: Open, keep: Keep
) -> None:
    question = ask(8.0)
    page = open_page(question.url)
    form = form_of(page)
    estimate = form.locator(".schema-form-property__markdown").first
    for said in ("2.50 to 8.00 USD", "modal", "1 x L4 24 GB", "2026-10", "Warning", "by hand"):
        assert estimate.get_by_text(said).first.is_visible(), said
    # On a laptop's screen nothing of it is hidden in a box that must be scrolled by itself.
    assert estimate.evaluate("box => box.scrollHeight <= box.clientHeight + 1")
    assert not ticked(form, "Approve")
    assert not ticked(form, "I know that it may cost 8.00 USD")
    assert field(form, "Your name").input_value() == ""
    assert field(form, "Ceiling (USD)").input_value() == "8"
    keep(page, "form")
    assert question.state() == "Paused"


def test_an_approval_reaches_the_flow_as_it_was_typed(
    ask: Callable[..., Question], open_page: Open, keep: Keep
) -> None:
    question = ask(8.0)
    page = open_page(question.url)
    form = form_of(page)
    field(form, "Approve").click()
    field(form, "I know that it may cost").click()
    field(form, "Your name").fill("Ana Müller")
    field(form, "Note").fill("before <b>Friday</b>")
    field(form, "Ceiling (USD)").fill("9.5")
    keep(page, "filled in")
    submit(form)
    assert question.ended() is Status.COMPLETED
    consent = read_consent(question.run.path)
    assert consent is not None
    assert (consent.who, consent.max_usd) == ("Ana Müller", 9.5)
    assert consent.note == "before <b>Friday</b>"
    page.reload()
    page.get_by_text("Completed").first.wait_for()
    keep(page, "done")


def test_an_untouched_form_that_is_submitted_refuses(
    ask: Callable[..., Question], open_page: Open, keep: Keep
) -> None:
    question = ask()
    page = open_page(question.url)
    submit(form_of(page))
    assert question.ended() is Status.ABORTED_PREFLIGHT
    until(lambda: question.state() == "Rejected")
    assert not question.started()
    page.reload()
    page.get_by_text("Rejected").first.wait_for()
    keep(page, "rejected")


def test_a_rejection_says_who_and_why(ask: Callable[..., Question], open_page: Open) -> None:
    question = ask()
    form = form_of(open_page(question.url))
    field(form, "Your name").fill("Bob")
    field(form, "Note").fill("too dear")
    submit(form)
    assert question.ended() is Status.ABORTED_PREFLIGHT
    assert "refused by Bob: too dear" in question.run.read().error
    assert not question.started()


def test_a_form_that_is_closed_leaves_the_run_waiting(
    ask: Callable[..., Question], open_page: Open
) -> None:
    question = ask()
    page = open_page(question.url)
    form = form_of(page)
    field(form, "Approve").click()
    form.get_by_role("button", name="Close").last.click()
    form.wait_for(state="hidden")
    assert question.state() == "Paused"
    assert not question.started()
    page.close()
    assert question.state() == "Paused"


def test_a_ceiling_over_the_bounds_is_not_taken(
    ask: Callable[..., Question], open_page: Open, keep: Keep
) -> None:
    question = ask()
    page = open_page(question.url)
    form = form_of(page)
    field(form, "Approve").click()
    field(form, "Your name").fill("Ana")
    field(form, "Ceiling (USD)").fill("99999")
    submit(form)
    page.get_by_text("99999 is greater than the maximum").first.wait_for()
    keep(page, "over the bounds")
    assert question.state() == "Paused"
    assert read_consent(question.run.path) is None
    assert not question.started()


def test_of_two_people_one_wins_and_the_other_is_told(
    ask: Callable[..., Question], open_page: Open, keep: Keep
) -> None:
    question = ask()
    pages = [open_page(question.url) for _ in ("Ana", "Bob")]
    forms = [form_of(page) for page in pages]
    for form, who in zip(forms, ("Ana", "Bob"), strict=True):
        field(form, "Your name").fill(who)
    field(forms[1], "Approve").click()
    with pages[0].expect_response("**/resume") as first:
        submit(forms[0])
    assert first.value.json()["status"] == "ACCEPT"
    with pages[1].expect_response("**/resume") as second:
        submit(forms[1])
    assert second.value.json()["status"] == "ABORT"
    pages[1].get_by_text("Cannot resume a flow run that").first.wait_for()
    keep(pages[1], "the one who came second")
    assert question.ended() is Status.ABORTED_PREFLIGHT
    assert "refused by Ana" in question.run.read().error
    pages[1].reload()
    pages[1].get_by_text("Rejected").first.wait_for()
    keep(pages[1], "what the other finds")

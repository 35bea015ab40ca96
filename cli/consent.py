"""Asking in the terminal what a run may cost."""

from __future__ import annotations

import getpass
import json
import sys
import time
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

import click

from benchwright.errors import GateRefused, Where
from cli.output import show_markdown

if TYPE_CHECKING:
    from uuid import UUID

    from prefect.client.orchestration import SyncPrefectClient

    from benchwright.planning.policy import CostPolicy
    from benchwright.planning.quote import Quote
    from benchwright.record.consent import Consent

FORM_S = 30.0
"""How long after a run's word its form may take to be there (seconds)."""


def can_ask() -> bool:
    """Whether a person sits at this terminal."""
    return sys.stdin.isatty() and sys.stderr.isatty()


def agree(
    quote: Quote | None, max_usd: float | None, policy: CostPolicy, left_usd: float | None
) -> Consent | None:
    """What a run may spend, before it is submitted.

    Args:
        quote: What it is estimated to cost; None: nothing.
        max_usd: `--max-cost`.
        policy: What starts unasked, and what never starts.
        left_usd: What is left of the month's budget.

    Returns:
        The consent; None where it costs nothing so far and a person can be asked later.

    Raises:
        GateRefused: Refused, above `--max-cost`, or nobody can be asked.
    """
    from benchwright.planning.policy import Ruling
    from benchwright.record.consent import Consent, Rejected
    from benchwright.report.quote import usd

    who = getpass.getuser()
    if max_usd is not None:
        if quote is not None and quote.high_usd > max_usd:
            raise Rejected(
                f"the run is estimated at {usd(quote.low_usd, quote.high_usd)}",
                where=Where(key="--max-cost"),
                expected=f"at most {usd(max_usd)}",
                hint=f"--max-cost {quote.high_usd:.2f}, or fewer --replicates",
            )
        return Consent.now(who, max_usd, "unattended")
    ruling = policy.ruling(quote.high_usd, left_usd) if quote is not None else Ruling.FREE
    if quote is None or ruling is Ruling.FREE:
        return None if can_ask() else Consent.now(who, policy.free_usd, "unattended")
    most = policy.most(left_usd)
    if ruling is Ruling.NEVER:
        raise GateRefused(
            f"the run is estimated at {usd(quote.low_usd, quote.high_usd)}, and the cost policy"
            f" allows {usd(most or 0.0)} at most",
            where=Where(key="cost"),
            hint="fewer --replicates, or have the block cost-policy/benchwright changed",
        )
    if not can_ask():
        raise Rejected(
            f"the run is estimated at {usd(quote.low_usd, quote.high_usd)}, and nobody can be"
            " asked here",
            where=Where(key="--max-cost"),
            hint=f"allow it with --max-cost {quote.high_usd:.2f}, or run it from a terminal",
        )
    from benchwright.report.quote import quote_lines

    answer = prompt(
        quote_lines(quote, left_usd),
        high_usd=quote.high_usd,
        most_usd=most,
        warn=ruling is Ruling.WARN,
    )
    if not answer["approve"]:
        raise Rejected("the cost was not approved", where=Where(key="cost"))
    return Consent.now(str(answer["who"]), float(answer["max_usd"]), "terminal")


def prompt(
    lines: Iterable[str], *, high_usd: float | None, most_usd: float | None, warn: bool
) -> dict[str, Any]:
    """Ask for an approval; what is just answered with Enter refuses.

    Args:
        lines: The question.
        high_usd: The estimate's upper end; None for a question that isn't about cost.
        most_usd: The highest ceiling; None: any.
        warn: Whether the warning needs a yes of its own.

    Returns:
        The answer, as the form in Prefect's pages gives it.
    """
    for line in lines:
        click.echo(line, err=True)
    answer: dict[str, Any] = {"approve": click.confirm("Approve?", default=False, err=True)}
    if answer["approve"] and warn:
        answer["warned"] = click.confirm(
            click.style(f"It may cost {high_usd:.2f} USD. Really?", fg="yellow"),
            default=False,
            err=True,
        )
        answer["approve"] = answer["warned"]
    if not answer["approve"]:
        return {**answer, "who": getpass.getuser()}
    answer["who"] = click.prompt("Your name", default=getpass.getuser(), err=True)
    if high_usd is not None:
        bounds = click.FloatRange(0, most_usd, min_open=True)
        default = max(0.01, round(high_usd, 2))
        answer["max_usd"] = click.prompt(
            "Ceiling in USD",
            default=default if most_usd is None else min(default, most_usd),
            type=bounds,
            err=True,
        )
    return answer


def answer_question(client: SyncPrefectClient, run_id: UUID) -> None:
    """Answer, at this terminal, what a paused flow run asks; of two answers one is taken."""
    state = client.read_flow_run(run_id).state
    keys = state.state_details.run_input_keyset if state is not None else None
    if not keys:
        return
    schema = client.read_flow_run_input(run_id, keys["schema"])
    fields = json.loads(schema)["properties"]
    show_markdown(fields["approve"]["description"], sys.stderr)
    ceiling = fields.get("max_usd")
    said = prompt(
        (),
        high_usd=ceiling["default"] if ceiling else None,
        most_usd=ceiling.get("maximum") if ceiling else None,
        warn="warned" in fields,
    )
    answer = client.resume_flow_run(run_id, run_input=said)
    if answer.status.value != "ACCEPT":
        reason = getattr(answer.details, "reason", "") or "it was answered already"
        click.echo(f"the answer wasn't taken: {reason}", err=True)


def answer_event(event: Mapping[str, Any]) -> None:
    """Answer, at this terminal, what a local run asks that is already under way."""
    from uuid import UUID

    from prefect.client.orchestration import SyncPrefectClient

    with SyncPrefectClient(api=str(event["api_url"])) as client:
        state = client.read_flow_run(UUID(event["flow_run"])).state
        deadline = time.monotonic() + FORM_S
        while time.monotonic() < deadline and not (state is not None and state.is_paused()):
            time.sleep(0.1)
            state = client.read_flow_run(UUID(event["flow_run"])).state
        answer_question(client, UUID(event["flow_run"]))

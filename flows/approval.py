"""Asking a person, from inside a flow: the form in Prefect's pages, and what its answer means.

A short wait keeps the process (the flow is Paused); a long one gives the worker's slot back (it is
Suspended, and goes on from the top when it is answered). Only an approval that is complete starts
anything: an untouched form, a closed page and silence all refuse.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from prefect import get_run_logger
from prefect.artifacts import create_markdown_artifact
from prefect.client.orchestration import get_client
from prefect.client.schemas.objects import State
from prefect.exceptions import Abort
from prefect.flow_runs import suspend_flow_run
from prefect.input import RunInput
from prefect.input.run_input import keyset_from_paused_state
from prefect.runtime import flow_run
from prefect.settings import PREFECT_API_URL
from prefect.states import Paused
from prefect.utilities.engine import propose_state_sync
from pydantic import Field, create_model

from benchwright.errors import BadInput, BenchwrightError, GateRefused, Interrupted, Where
from benchwright.planning.ceiling import Ceiling
from benchwright.planning.policy import CostPolicy, Ruling
from benchwright.planning.quote import THIS_MACHINE, Quote
from benchwright.record.consent import (
    UNANSWERED,
    AnswerTimedOut,
    Consent,
    Rejected,
    read_consent,
    record_spending,
    spent_this_month,
    write_consent,
)
from benchwright.record.waiting import Waiting, go_on, read_waiting, suspend
from benchwright.report.markdown import escape
from benchwright.report.quote import render_quote, usd
from benchwright.spec.model import Stage
from flows.submission import in_deployment
from tasks.report import plain_key
from tasks.session import RunSession

POLL_S = 1.0
"""How often a paused flow looks for its answer (seconds)."""

SERVER_GRACE_S = 120.0
"""How much longer the server waits than the flow (seconds), so that the flow says why it ended."""

MOST_FORMS = 5
"""How often an incomplete approval is asked again."""

PAST_S = 0.1
"""How far past its ceiling a run is ended (seconds): then there is no doubt that it was passed."""

REFUSES = "Unticked, the run is refused: nothing starts, nothing is spent."

Check = Callable[[], None]


class Approval(RunInput):
    """What every form asks. An untouched one refuses."""

    approve: bool = Field(
        default=False,
        title="Approve",
        description=REFUSES,
    )
    who: str = Field(
        default="",
        max_length=200,
        title="Your name",
        description="Who approves, or refuses; kept in the record. An approval needs it.",
    )
    note: str = Field(
        default="", max_length=2000, title="Note", description="Why; kept in the record."
    )


def ask(
    stage: Stage, asked: Mapping[str, Any], session: RunSession, check: Check
) -> Ceiling | None:
    """Ask what a gate stage asks: a question of its own, or whether its cost is approved.

    Args:
        stage: The gate.
        asked: `question` and `details`, or a `cost` as `Quote.as_json` writes it.
        session: The run.
        check: Called while a person is waited for; raises to end the run.

    Returns:
        What may be spent from here on, where the question was one of cost.

    Raises:
        GateRefused: Refused, not answered in time, or not allowed at all.
    """
    where = Where(key=f"stages.{stage.name}")
    if asked.get("cost"):
        try:
            quote = Quote.from_json(asked["cost"])
        except (TypeError, AttributeError) as problem:
            raise BadInput(f"the stage's cost can't be understood: {problem}", where=where) from (
                problem
            )
        return cost_gate(quote, session, check, key=stage.name)
    question = str(asked.get("question") or f"Go on after '{stage.name}'?")
    # Its own questions are Markdown that the domain wrote; what it quotes, it has escaped.
    form = Question(
        key=stage.name,
        title=question,
        markdown=f"## {escape(question)}\n\n{asked.get('details', '')}",
        model=Approval,
        complete=lambda answer: "" if answer.who.strip() else "An approval needs a name.",
    )
    put(form, session, check, CostPolicy())
    return None


def cost_gate(
    quote: Quote | None, session: RunSession, check: Check, *, key: str = "cost"
) -> Ceiling | None:
    """Stop a run that costs more than the policy lets start unasked, until a person approves.

    Called before anything is started: no slot and no machine is taken while it waits.

    Returns:
        What the run may spend; None where it costs nothing.

    Raises:
        GateRefused: Refused, not answered in time, or more than is allowed at all.
    """
    if quote is None or quote.high_usd <= 0:
        return None
    from blocks.policy import cost_policy

    policy = cost_policy()
    left = month_left(policy, session)
    title = f"Cost of {session.folder.run_id}"
    ruling = policy.ruling(quote.high_usd, left)
    warning = _warning(quote, policy, ruling)
    markdown = render_quote(quote, title=title, left_usd=left, warning=warning)
    create_markdown_artifact(
        key=f"cost-{plain_key(session.folder.run_id)}",
        markdown=markdown,
        description=f"Estimated cost: {usd(quote.low_usd, quote.high_usd)}",
    )
    most = _most(policy, left, session)
    if ruling is Ruling.NEVER:
        raise GateRefused(
            f"the run is estimated at {usd(quote.low_usd, quote.high_usd)}, and the cost policy"
            f" allows {usd(most or 0.0)} at most",
            where=Where(key="cost"),
            hint=_cheaper(quote),
        )
    if ruling is Ruling.FREE:
        limit = min(item for item in (most, policy.free_usd) if item is not None)
        return _ceiling(None, limit, quote, session)
    given = read_consent(session.folder.path)
    if given is not None:
        if quote.high_usd <= given.max_usd:
            _hold(given.max_usd, most)
            return _ceiling(given, given.max_usd, quote, session)
        if given.how == "unattended":
            raise Rejected(
                f"the run is estimated at {usd(quote.low_usd, quote.high_usd)}, and nobody can be"
                f" asked: it was started with at most {usd(given.max_usd)}",
                where=Where(key="--max-cost"),
                hint=f"run again with --max-cost {quote.high_usd:.2f}, or from a terminal",
            )
    form = Question(
        key=key,
        title=f"approval of {usd(quote.low_usd, quote.high_usd)}",
        markdown=markdown,
        model=cost_form(quote, ruling, most),
        complete=lambda answer: _incomplete(answer, ruling, most),
    )
    answer = put(form, session, check, policy)
    consent = Consent.now(answer.who.strip(), float(answer.max_usd), "form", answer.note.strip())
    write_consent(session.folder.path, consent)
    return _ceiling(consent, consent.max_usd, quote, session)


def cost_form(quote: Quote, ruling: Ruling, most: float | None) -> type[Approval]:
    """The form for a cost: its ceiling is bounded, and a warning has a tick of its own.

    Made anew for each question: `with_initial_data` would drop descriptions and bounds.
    """
    wanted = round(quote.high_usd, 2) or 0.01
    ceiling: Any = Field(
        default=wanted if most is None else min(most, wanted),
        gt=0,
        le=most,
        title="Ceiling (USD)",
        description="The run is ended when it has spent this"
        + (f"; at most {most:.2f}." if most is not None else "."),
    )
    fields: dict[str, Any] = {"max_usd": (float, ceiling)}
    if ruling is Ruling.WARN:
        fields["warned"] = (
            bool,
            Field(
                default=False,
                title=f"I know that it may cost {usd(quote.high_usd)}",
                description="Must be ticked: the estimate is above the policy's warning.",
            ),
        )
    form: type[Approval] = create_model("CostApproval", __base__=Approval, **fields)
    return form


def described(form: type[Approval], markdown: str) -> type[Approval]:
    """The form with a text in it.

    The text is the first field's: what Prefect shows above a form gets the height that the fields
    leave over, which on a laptop's screen is two lines.
    """
    approve: Any = Field(
        default=False, title="Approve", description=f"{markdown.rstrip()}\n\n**{REFUSES}**"
    )
    shown: type[Approval] = create_model(form.__name__, __base__=form, approve=(bool, approve))
    return shown


@dataclass(frozen=True, slots=True)
class Question:
    """One question for a person.

    Attributes:
        key: Names it within the run.
        title: What is waited for, in a few words.
        markdown: What stands above the form.
        model: The form.
        complete: Says what an approval lacks; empty where it is complete.
    """

    key: str
    title: str
    markdown: str
    model: type[Approval]
    complete: Callable[[Any], str]


def put(question: Question, session: RunSession, check: Check, policy: CostPolicy) -> Any:
    """Put a question to a person, and wait for a complete answer.

    An approval that lacks something is asked again, with what it lacks; only a refusal, silence
    and an untouched form end it.

    Returns:
        The answer: approved, and complete.

    Raises:
        Rejected: Refused.
        AnswerTimedOut: Nobody answered in time.
    """
    deadline = time.monotonic() + policy.answer_within_s
    markdown = question.markdown
    for attempt in range(MOST_FORMS):
        model = described(question.model, markdown)
        key = f"{question.key}-{attempt + 1}"
        if read_waiting(session.folder.path) is None:  # else it goes on, and has been asked
            session.folder.event(
                {
                    "kind": "approval_wanted",
                    "for": question.title,
                    "flow_run": str(flow_run.id),
                    "page": flow_run.ui_url or "",
                    "api_url": PREFECT_API_URL.value() or "",
                }
            )
            if attempt == 0:
                _tell(question, session)
        answer = _answer(model, key, session, check, policy, deadline)
        if not answer.approve:
            who = answer.who.strip()
            note = f": {answer.note.strip()}" if answer.note.strip() else ""
            raise Rejected(
                f"{question.title} was refused"
                + (f" by {who}" if who else ": the form said nothing")
                + note,
                where=Where(key=question.key),
                hint="run again, and approve with your name",
            )
        lacks = question.complete(answer)
        if not lacks:
            session.folder.event({"kind": "approved", "who": answer.who.strip()})
            get_run_logger().info("approved by %s", answer.who.strip())
            return answer
        markdown = f"**Not approved yet: {escape(lacks)}**\n\n{question.markdown}"
    raise Rejected(
        f"{question.title} was incomplete {MOST_FORMS} times", where=Where(key=question.key)
    )


def _answer(
    model: type[Approval],
    key: str,
    session: RunSession,
    check: Check,
    policy: CostPolicy,
    deadline: float,
) -> Any:
    if in_deployment() and policy.suspends:
        until = time.time() + policy.answer_within_s
        suspend(session.folder.path, Waiting("an approval", until, kept=dict(session.steps)))
        answer = suspend_flow_run(
            wait_for_input=model, timeout=int(policy.answer_within_s), key=key
        )
    else:
        answer = pause(model, key, check, deadline)
    go_on(session.folder.path)
    return answer


def pause(model: type[Approval], key: str, check: Check, deadline: float) -> Any:
    """Pause the flow run in this process until it is answered.

    Prefect's own `pause_flow_run` looks for nothing but the answer: a run that is cancelled
    meanwhile would sit there until its time is over.

    Args:
        model: The form.
        key: Names the question within the flow run.
        check: Called between looks; raises to end the run.
        deadline: Monotonic time until which an answer is waited for.

    Raises:
        AnswerTimedOut: It has come.
        Interrupted: The flow run was cancelled.
    """
    left = max(1, round(deadline - time.monotonic()))
    state: State[Any] = Paused(timeout_seconds=left + int(SERVER_GRACE_S), pause_key=key)
    keys = keyset_from_paused_state(state)
    state.state_details.run_input_keyset = {str(name): key for name, key in keys.items()}
    run_id = flow_run.id
    with get_client(sync_client=True) as client:
        try:
            got = propose_state_sync(client, state, flow_run_id=run_id)
        except Abort as problem:
            raise Interrupted(f"the run can't wait for an approval: {problem}") from problem
        if not got.is_running():
            model.save(keys)
        while not got.is_running():
            check()
            if got.is_cancelling() or got.is_final():
                raise Interrupted("the run was cancelled while it waited for an approval")
            if time.monotonic() >= deadline:
                raise AnswerTimedOut(
                    UNANSWERED,
                    where=Where(key=key),
                    hint="run again; the time is `answer_within_s` of the cost policy",
                )
            time.sleep(min(POLL_S, max(0.05, deadline - time.monotonic())))
            found = client.read_flow_run(run_id).state
            got = found if found is not None else got
    return model.load(keys)


def month_left(policy: CostPolicy, session: RunSession) -> float | None:
    """What is left of the month's budget; None where the policy has none."""
    if policy.month_usd is None:
        return None
    return max(0.0, policy.month_usd - spent_this_month(session.home))


def note_spending(session: RunSession, ceiling: Ceiling | None) -> None:
    """Write down what a run has spent, for the month's budget."""
    if ceiling is None:
        return
    spent = ceiling.spent() - ceiling.before
    record_spending(session.home, session.folder.run_id, spent, ceiling.consent)


def _ceiling(consent: Consent | None, max_usd: float, quote: Quote, session: RunSession) -> Ceiling:
    purse = session.runner.purse
    if purse is not None:
        # Stages on this machine are bounded launch by launch, by what they really cost.
        limit = purse.budget.cost_usd
        purse.budget = purse.budget.model_copy(
            update={"cost_usd": max_usd if limit is None else min(limit, max_usd)}
        )
        if quote.provider == THIS_MACHINE and purse.origin:
            # Only what runs costs: a run that waits for its turn spends nothing.
            return Ceiling(
                consent,
                max_usd,
                quote.usd_per_hour,
                time.monotonic(),
                lambda: purse.usd,
                before=purse.usd or 0.0,
            )
    ceiling = Ceiling(consent, max_usd, quote.usd_per_hour, time.monotonic(), lambda: None)
    left = ceiling.seconds_left()
    if left is not None:
        # A stage that is running is ended when the money is: between stages would be too late.
        end = time.monotonic() + left + PAST_S
        earlier = session.runner.deadline
        session.runner.deadline = end if earlier is None else min(earlier, end)
    return ceiling


def _most(policy: CostPolicy, left: float | None, session: RunSession) -> float | None:
    limits = [policy.most(left), session.config.budget.cost_usd]
    known = [limit for limit in limits if limit is not None]
    return min(known) if known else None


def _hold(ceiling: float, most: float | None) -> None:
    if most is not None and ceiling > most:
        raise GateRefused(
            f"the approved ceiling of {usd(ceiling)} is above the {usd(most)} that are allowed",
            where=Where(key="cost"),
            hint=f"approve at most {most:.2f} USD",
        )


def _incomplete(answer: Any, ruling: Ruling, most: float | None) -> str:
    """What an approval lacks. The form's bounds are checked again: another client may have none."""
    if not answer.who.strip():
        return "An approval needs a name."
    if ruling is Ruling.WARN and not answer.warned:
        return "The warning must be ticked."
    ceiling = float(answer.max_usd)
    if not 0 < ceiling < float("inf") or (most is not None and ceiling > most):
        return f"The ceiling must lie between 0 and {most:.2f} USD." if most else "No such ceiling."
    return ""


def _warning(quote: Quote, policy: CostPolicy, ruling: Ruling) -> str:
    if ruling is not Ruling.WARN:
        return ""
    return f"the estimate is above {usd(policy.warn_usd)}: it may cost {usd(quote.high_usd)}"


def _cheaper(quote: Quote) -> str:
    first = quote.ordered[:1]
    return f"cheaper: {first[0].what}" if first else "ask for less, or have the policy changed"


def _tell(question: Question, session: RunSession) -> None:
    """Let people know that they are asked; a message that can't be sent holds nothing up."""
    get_run_logger().info("waiting for %s", question.title)
    if not in_deployment():
        return
    from blocks.notification import notify

    try:
        notify(
            f"{session.folder.run_id} waits for {question.title}",
            f"{question.markdown}\n\n{flow_run.ui_url or ''}",
        )
    except Exception as problem:  # a stranger's service can fail in any way
        get_run_logger().warning("nobody could be told: %s", problem)


def state_name(problem: BenchwrightError) -> str:
    """Name of the Prefect state that an error ends a flow run in; empty for the type's own."""
    return str(getattr(problem, "state_name", ""))

"""What a server does by itself: marks runs whose process died, says of an approval that nobody gave
that its time is over, and tells people of regressions."""

from __future__ import annotations

from datetime import timedelta
from uuid import UUID

from prefect.client.schemas.objects import StateType
from prefect.events.actions import ChangeFlowRunState, SendNotification
from prefect.events.schemas.automations import AutomationCore, EventTrigger, Posture

from benchwright.record.consent import UNANSWERED, AnswerTimedOut

PREFIX = "benchwright: "
"""Of the names of our automations: what has it is ours to change."""

HEARTBEAT_S = 30
"""How often a deployed run says that it lives (seconds); Prefect allows no shorter time."""

LOST_AFTER_S = 4 * HEARTBEAT_S
"""Silence after which a run counts as dead (seconds): one late heartbeat is a busy machine."""

REGRESSION_EVENT = "benchwright.regression"
"""Sent by the nightly suite for each regression."""

NEVER_RESUMED = "The flow was paused and never resumed."
"""Message of the `Failed` that Prefect's server sets when a suspended run's time is over
(`prefect.server.services.pause_expirations`, 3.9); no process is left then to say it better."""

BAD_ENDS = ("Failed", "Crashed", "BadInput", "Refused")
"""Names of the states in which a night ends that nobody sees the result of."""


def automations(notifier: UUID | None) -> list[AutomationCore]:
    """The automations that a server is told.

    Args:
        notifier: A notification block; None: nobody is told of regressions.
    """
    found = [lost_runs(), unanswered()]
    if notifier is not None:
        found += [_regressions(notifier), _failed_nights(notifier)]
    return found


def lost_runs(after_s: float = LOST_AFTER_S) -> AutomationCore:
    """Heartbeats mark nothing by themselves: the absence of the next one, or of an end, does.

    Any event of the run will do: an end is told under its state's name, and ours have names of
    their own (`Rejected`, `CeilingPassed`).
    """
    return AutomationCore(
        name=f"{PREFIX}a run whose process died is Crashed",
        description="A run that stops sending heartbeats has lost its process or its machine.",
        enabled=True,
        trigger=EventTrigger(
            match={"prefect.resource.id": "prefect.flow-run.*"},
            match_related={
                "prefect.resource.role": "tag",
                "prefect.resource.id": "prefect.tag.benchwright",
            },
            after={"prefect.flow-run.heartbeat"},
            expect={"prefect.flow-run.*"},
            for_each={"prefect.resource.id"},
            posture=Posture.Proactive,
            threshold=1,
            within=timedelta(seconds=after_s),
        ),
        actions=[
            ChangeFlowRunState(
                state=StateType.CRASHED,
                message=f"No sign of life for {after_s:g} s: its process or its machine died.",
            )
        ],
    )


def unanswered() -> AutomationCore:
    """A suspended run whose question nobody answered: Prefect calls it `Failed`, as a broken stage.

    A run that waits in its process ends itself under that name; see `flows.approval.pause`.
    """
    return AutomationCore(
        name=f"{PREFIX}an approval that nobody gave is ApprovalTimedOut",
        description="A run that was suspended for an answer, and got none in time, says so.",
        enabled=True,
        trigger=EventTrigger(
            match={
                "prefect.resource.id": "prefect.flow-run.*",
                "prefect.state-message": NEVER_RESUMED,
            },
            match_related={
                "prefect.resource.role": "tag",
                "prefect.resource.id": "prefect.tag.benchwright",
            },
            expect={"prefect.flow-run.Failed"},
            posture=Posture.Reactive,
            threshold=1,
            within=timedelta(0),
        ),
        actions=[
            ChangeFlowRunState(
                state=StateType.FAILED,
                name=AnswerTimedOut.state_name,
                message=UNANSWERED,
                force=True,  # the run has ended already
            )
        ],
    )


def _regressions(notifier: UUID) -> AutomationCore:
    return AutomationCore(
        name=f"{PREFIX}tell of a regression",
        description="Sends each regression that the nightly suite found.",
        enabled=True,
        trigger=EventTrigger(
            expect={REGRESSION_EVENT},
            posture=Posture.Reactive,
            threshold=1,
            within=timedelta(0),
        ),
        actions=[
            SendNotification(
                block_document_id=notifier,
                subject="Regression: {{ event.resource['prefect.resource.name'] }}",
                body="{% for key, value in event.payload.items() %}{{ key }}: {{ value }}\n"
                "{% endfor %}",
            )
        ],
    )


def _failed_nights(notifier: UUID) -> AutomationCore:
    return AutomationCore(
        name=f"{PREFIX}tell of a night that failed",
        description="Sends a note when a run of the nightly suite fails or crashes.",
        enabled=True,
        trigger=EventTrigger(
            match={"prefect.resource.id": "prefect.flow-run.*"},
            match_related={
                "prefect.resource.role": "tag",
                "prefect.resource.id": "prefect.tag.nightly",
            },
            expect={f"prefect.flow-run.{name}" for name in BAD_ENDS},
            posture=Posture.Reactive,
            threshold=1,
            within=timedelta(0),
        ),
        actions=[
            SendNotification(
                block_document_id=notifier,
                subject="{{ flow_run.name }}: {{ flow_run.state.name }}",
                body="{{ flow_run.state.message }}\n{{ flow_run|ui_url }}",
            )
        ],
    )

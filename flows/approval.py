"""Asking a person, from inside a flow: the form in Prefect's pages, and what its answer means."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from prefect import get_run_logger
from prefect.flow_runs import pause_flow_run
from prefect.input import RunInput

from benchwright.errors import GateRefused, Where
from benchwright.spec.model import Stage

TIMEOUT_S = 3600
"""How long a question waits for its answer."""


class Approval(RunInput):
    """What the form asks. An untouched form refuses."""

    approve: bool = False
    who: str = ""


def ask(stage: Stage, asked: Mapping[str, Any]) -> None:
    """Pause the flow until a person has answered.

    Raises:
        GateRefused: Refused, or approved without a name.
    """
    get_run_logger().info("waiting for approval: %s", asked["question"])
    answer = pause_flow_run(
        wait_for_input=Approval.with_initial_data(
            description=f"**{asked['question']}**\n\n{asked.get('details', '')}"
        ),
        timeout=TIMEOUT_S,
        key=f"approve-{stage.name}",
    )
    if not answer.approve or not answer.who.strip():
        raise GateRefused(
            f"gate '{stage.name}' was not approved: {asked['question']}",
            where=Where(key=f"stages.{stage.name}"),
            hint="run again, and approve with your name in Prefect's pages",
        )

"""Telling people: Prefect's own notification blocks, found by name.

Prefect's automations send them from the server, which knows Prefect's own kinds and no other: so
there is no kind of ours. A team makes one in Prefect's pages (Slack, Teams, Discord, Mattermost,
e-mail by SendGrid, PagerDuty, Opsgenie, Twilio, or any webhook) and names it `benchwright`.
"""

from __future__ import annotations

from typing import Any
from uuid import UUID

from prefect.blocks.core import Block
from prefect.client.orchestration import SyncPrefectClient, get_client
from prefect.exceptions import ObjectNotFound

from blocks.named import DEFAULT_NAME

KINDS = (
    "slack-webhook",
    "ms-teams-webhook",
    "discord-webhook",
    "mattermost-webhook",
    "sendgrid-email",
    "pager-duty-webhook",
    "opsgenie-webhook",
    "twilio-sms",
    "custom-webhook",
)
"""Prefect's notification kinds, by slug; of two named `benchwright`, the first counts."""


def find_notifier(client: SyncPrefectClient, name: str = DEFAULT_NAME) -> UUID | None:
    """Id of the server's notification block of that name; None where it has none."""
    document = _document(client, name)
    return document.id if document is not None else None


def notify(subject: str, body: str, name: str = DEFAULT_NAME) -> bool:
    """Send a message.

    Returns:
        Whether the server has a notification block of that name.
    """
    with get_client(sync_client=True) as client:
        document = _document(client, name)
    if document is None:
        return False
    block: Any = Block._from_block_document(document)
    block.notify(body, subject=subject)
    return True


def _document(client: SyncPrefectClient, name: str) -> Any:
    for kind in KINDS:
        try:
            return client.read_block_document_by_name(name=name, block_type_slug=kind)
        except ObjectNotFound:
            continue
    return None

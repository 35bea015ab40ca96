"""The Prefect server that a verb speaks to: the one that is named, else the local one."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from cli.options import open_home


@dataclass(frozen=True, slots=True)
class Server:
    """A Prefect server.

    Attributes:
        api_url: Its address.
        local: Whether it is the one of this home, which was started for this.
        insecure: Whether it is used in spite of a missing protection.
    """

    api_url: str
    local: bool
    insecure: bool


@contextmanager
def at_server(home: str | None, *, insecure: bool = False) -> Iterator[Server]:
    """Prefect's settings name the server: $PREFECT_API_URL, else the local one.

    It is set before Prefect is imported, which reads its settings then.

    Raises:
        GateRefused: Others reach it, and it asks nobody who they are.
        BadInput: Nothing answers there.
    """
    from deployments.security import require_protected

    before = dict(os.environ)
    # Prefect's own log lines aren't this verb's.
    os.environ.setdefault("PREFECT_LOGGING_LEVEL", "ERROR")
    os.environ.setdefault("DO_NOT_TRACK", "1")
    try:
        named = os.environ.get("PREFECT_API_URL", "")
        if named:
            auth = os.environ.get("PREFECT_API_AUTH_STRING", "")
            used = require_protected(named, auth, insecure=insecure)
            yield Server(named, local=False, insecure=used)
        else:
            yield Server(_local(home), local=True, insecure=False)
    finally:
        # What is started next gets the environment that the user gave.
        os.environ.clear()
        os.environ.update(before)


def _local(home: str | None) -> str:
    """The address of the local server, started where it isn't up; and Prefect's settings for it."""
    from cli.follow import Progress
    from deployments.local.client import ensure_server
    from deployments.local.environment import prefect_overlay
    from deployments.local.state import LocalHome

    place = open_home(home)
    with Progress() as progress:
        api_url = ensure_server(place, progress.say)
    os.environ.update(prefect_overlay(LocalHome(place.absolute()), api_url, os.environ))
    return api_url

"""Telling Prefect that a run's process is gone, where it couldn't say so itself.

Prefect learns of a flow's end from the flow. One that was killed stays `Running` on its pages for
ever, with all tasks that were running then.
"""

from __future__ import annotations

import http.client
import json
import urllib.parse
from typing import Any

ANSWER_S = 10.0
"""How long the server may take for one answer (seconds)."""

UNFINISHED = ("SCHEDULED", "PENDING", "RUNNING", "PAUSED", "CANCELLING")

PAGE = 200
"""Most rows that the server gives at once (PREFECT_SERVER_API_DEFAULT_LIMIT)."""


def mark_crashed(api_url: str, run_id: str, why: str) -> int:
    """Set what is unfinished of a run to `Crashed`.

    Args:
        api_url: The server's address.
        run_id: The run; its flow run is named so. (Not tagged: each tag of a flow costs each of
            its tasks two round trips, to ask for a slot and give it back.)
        why: Message of the state, for a person.

    Returns:
        How many flow runs and task runs were set.

    Raises:
        OSError: The server doesn't answer.
        http.client.HTTPException: It answers with nonsense.
    """
    unfinished = {"state": {"type": {"any_": list(UNFINISHED)}}}
    crashed = {"state": {"type": "CRASHED", "message": why}, "force": True}
    named = {"name": {"any_": [run_id]}}
    count = 0
    with Server(api_url) as server:
        for kind, wanted in (
            ("task_runs", {"flow_runs": named, "task_runs": unfinished}),
            ("flow_runs", {"flow_runs": named | unfinished}),
        ):
            while found := server.post(f"{kind}/filter", wanted | {"limit": PAGE}):
                for one in found:
                    server.post(f"{kind}/{one['id']}/set_state", crashed)
                count += len(found)
                if len(found) < PAGE:
                    break
    return count


def unfinished_flow_runs(api_url: str) -> list[str]:
    """Names of the flow runs that the server takes for unfinished; raises as `mark_crashed`."""
    wanted = {"flow_runs": {"state": {"type": {"any_": list(UNFINISHED)}}}, "limit": PAGE}
    with Server(api_url) as server:
        return [str(found["name"]) for found in server.post("flow_runs/filter", wanted)]


class Server:
    """A connection to a Prefect server, by nothing but the standard library."""

    def __init__(self, api_url: str) -> None:
        place = urllib.parse.urlsplit(api_url)
        self._path = place.path
        self._connection = http.client.HTTPConnection(
            place.hostname or "", place.port, timeout=ANSWER_S
        )

    def post(self, path: str, body: dict[str, Any]) -> Any:
        """Ask, and give the answer."""
        self._connection.request(
            "POST",
            f"{self._path}/{path}",
            json.dumps(body),
            {"Content-Type": "application/json"},
        )
        return json.loads(self._connection.getresponse().read())

    def __enter__(self) -> Server:
        return self

    def __exit__(self, *_: object) -> None:
        self._connection.close()

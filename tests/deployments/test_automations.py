"""What a server does by itself, on a real one."""

from __future__ import annotations

import http.server
import json
import threading
import time
import uuid
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any, ClassVar

import pytest
from prefect.client.orchestration import get_client

from deployments.automations import REGRESSION_EVENT, automations, lost_runs
from tests.approvals import Server, until

pytestmark = pytest.mark.slow

SILENCE_S = 10.0
"""The shortest that Prefect allows."""


@pytest.fixture
def server(prefect_api: str) -> Server:
    return Server(prefect_api)


@pytest.fixture
def flow_id(server: Server) -> str:
    return str(server.call("/flows/", {"name": "stand-in"})["id"])


def _start(server: Server, flow_id: str) -> str:
    """A flow run that is running, and that no process runs."""
    made = server.call(
        "/flow_runs/",
        {"flow_id": flow_id, "tags": ["benchwright"], "state": {"type": "RUNNING"}},
    )
    return str(made["id"])


def _beat(server: Server, run_id: str) -> None:
    """Send a run's heartbeat, as its process does."""
    event = {
        "event": "prefect.flow-run.heartbeat",
        "occurred": datetime.now(UTC).isoformat(),
        "id": str(uuid.uuid4()),
        "resource": {"prefect.resource.id": f"prefect.flow-run.{run_id}"},
        "related": [
            {"prefect.resource.id": "prefect.tag.benchwright", "prefect.resource.role": "tag"}
        ],
        "payload": {},
    }
    server.call("/events", [event])


def _state(server: Server, run_id: str) -> str:
    return str(server.call(f"/flow_runs/{run_id}")["state"]["name"])


def test_a_run_that_falls_silent_is_crashed_and_one_that_ended_in_its_own_way_is_left_alone(
    server: Server, flow_id: str
) -> None:
    wanted = lost_runs(SILENCE_S)
    wanted.name += f" ({uuid.uuid4().hex[:6]})"
    with get_client(sync_client=True) as client:
        automation = client.create_automation(wanted)
    try:
        silent, rejected, alive = (_start(server, flow_id) for _ in range(3))
        for run_id in (silent, rejected, alive):
            _beat(server, run_id)
        time.sleep(1)  # what happens within one tick of the clock has no order
        server.call(
            f"/flow_runs/{rejected}/set_state",
            {"state": {"type": "FAILED", "name": "Rejected"}, "force": True},
        )

        def crashed() -> bool:
            _beat(server, alive)
            return _state(server, silent) == "Crashed"

        until(crashed, 90)
        assert _state(server, rejected) == "Rejected"
        assert _state(server, alive) == "Running"
    finally:
        with get_client(sync_client=True) as client:
            client.delete_automation(automation)
            for run_id in (silent, rejected, alive):
                client.delete_flow_run(uuid.UUID(run_id))


class _Receiver(http.server.BaseHTTPRequestHandler):
    """A chat's webhook."""

    received: ClassVar[list[Any]] = []

    def do_POST(self) -> None:
        self.received.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
        self.send_response(200)
        self.end_headers()

    def log_message(self, format: str, *args: Any) -> None: ...


@pytest.fixture
def webhook() -> Iterator[str]:
    receiver = http.server.ThreadingHTTPServer(("127.0.0.1", 0), _Receiver)
    thread = threading.Thread(target=receiver.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{receiver.server_port}/hook"
    receiver.shutdown()
    receiver.server_close()
    thread.join()


def test_a_regression_is_told_with_all_that_its_event_says(server: Server, webhook: str) -> None:
    from prefect.blocks.notifications import CustomWebhookNotificationBlock

    name = f"tell-{uuid.uuid4().hex[:6]}"
    block = CustomWebhookNotificationBlock(
        name="test", url=webhook, json_data={"subject": "{{subject}}", "body": "{{body}}"}
    )
    document = block.save(name, _sync=True)  # type: ignore[call-arg]
    [wanted] = [one for one in automations(document) if one.name.endswith("a regression")]
    wanted.name += f" ({name})"
    with get_client(sync_client=True) as client:
        automation = client.create_automation(wanted)
    try:
        time.sleep(2)  # the server's triggers read new automations in the background

        def told() -> Any:
            server.call(
                "/events",
                [
                    {
                        "event": REGRESSION_EVENT,
                        "occurred": datetime.now(UTC).isoformat(),
                        "id": str(uuid.uuid4()),
                        "resource": {
                            "prefect.resource.id": "benchwright.metric.p50",
                            "prefect.resource.name": "p50_ms of retrieval-index",
                        },
                        "payload": {"change": "12 % slower", "since": "3f2c1a"},
                    }
                ],
            )
            end = time.monotonic() + 10
            while time.monotonic() < end and not _Receiver.received:
                time.sleep(0.1)
            return _Receiver.received

        [message, *_] = until(told, 60)
        assert message["subject"] == "Regression: p50_ms of retrieval-index"
        assert "change: 12 % slower" in message["body"]
        assert "since: 3f2c1a" in message["body"]
    finally:
        with get_client(sync_client=True) as client:
            client.delete_automation(automation)
        CustomWebhookNotificationBlock.delete(name, _sync=True)  # type: ignore[call-arg]

"""The process that a worker starts for a run, and knows the run by.

It asks the worker's template for a fork, hands signals on to it, and ends as it ends. Where there
is no template, or none that will do, it runs Prefect's engine itself. Nothing but a few modules of
the standard library is imported here: this is what a run costs beside the run.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import sys

from deployments.local.protocol import peer_user

TEMPLATE = "BENCHWRIGHT_TEMPLATE"
"""Names the socket of the worker's template: a name of the kernel's, which is no file."""

HANDED_ON = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


def answer(connection: socket.socket, **said: object) -> None:
    """Send a message; who has gone misses it."""
    with contextlib.suppress(OSError):
        connection.sendall(json.dumps(said).encode() + b"\n")


def address(name: str) -> str:
    """A socket's address in the kernel's own space of names (unix(7), abstract)."""
    return f"\0{name}"


def main() -> None:
    """Run the flow run that PREFECT__FLOW_RUN_ID names."""
    with contextlib.suppress(PermissionError):  # it leads a group already
        os.setsid()  # a signal to the worker's group is the worker's alone
    code = forked(os.environ.pop(TEMPLATE, ""))
    if code is None:
        import runpy

        runpy.run_module("prefect.engine", run_name="__main__", alter_sys=True)
    elif code < 0:
        signal.signal(-code, signal.SIG_DFL)
        os.kill(os.getpid(), -code)
    else:
        sys.exit(code)


def forked(template: str) -> int | None:
    """Have the run forked, and wait for its end.

    Returns:
        Its exit code, negative for a signal; None where no template takes it.
    """
    if not template:
        return None
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        request = json.dumps({"env": dict(os.environ), "cwd": os.getcwd()}).encode()  # noqa: PTH109
        try:
            connection.connect(address(template))
            if peer_user(connection) != os.geteuid():
                return None  # the name is free again, and somebody else's
            socket.send_fds(connection, [request[:1]], [0, 1, 2])
            connection.sendall(request[1:] + b"\n")
            lines = connection.makefile("rb")
            said = json.loads(lines.readline() or b"{}")
            run = os.pidfd_open(said["pid"])
        except (OSError, ValueError, KeyError):
            return None

        def hand_on(number: int, _frame: object) -> None:
            with contextlib.suppress(OSError):
                connection.sendall(bytes([number]))

        for number in HANDED_ON:
            signal.signal(number, hand_on)
        said = json.loads(lines.readline() or b"{}")
        if "ended" in said:
            return int(said["ended"])
        # The template was killed. The run goes on, and nobody can say how it ends but its state.
        import select

        select.select([run], [], [])
        return 1


if __name__ == "__main__":
    main()

"""A terminal's command, carried out by a child of the engine that is up.

Nothing but the standard library and the engine's address is imported here: a command starts as
fast as Python does, where it would spend half a second on imports that the engine has made.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import sys
from collections.abc import Sequence
from pathlib import Path
from types import FrameType
from typing import Any

from deployments.local import protocol
from deployments.local.environment import Circumstances, EngineIdentity
from deployments.local.state import LocalHome

HANDED_ON = (signal.SIGINT, signal.SIGTERM, signal.SIGQUIT)
"""What a terminal or a person sends to a command; it is the child that has to hear it."""


def talk(home: Path, argv: Sequence[str], entry: str = protocol.TALK_ENTRY) -> int | None:
    """Have the engine carry out a command on this process's standard streams.

    Args:
        home: `$BENCHMARK_HOME`.
        argv: The command's arguments.
        entry: What is called with them (`module:function`), and returns the exit code.

    Returns:
        The exit code; None where no engine of this code and environment is up, or it takes no
        commands any more: nothing was done then.
    """
    identity = EngineIdentity.now(os.environ, extra=protocol.DEFAULT_ENTRY)
    address = LocalHome(home.absolute()).engine_file(identity.key, "sock")
    with contextlib.ExitStack() as open_until_end:
        lines = protocol.Lines()
        try:
            connection = open_until_end.enter_context(protocol.connect(address))
            _request(connection, argv, entry)
            if _next(connection, lines).get("event") != "talking":
                return None
        except (OSError, ValueError):
            return None
        return _wait(connection, lines)


def _request(connection: socket.socket, argv: Sequence[str], entry: str) -> None:
    request = protocol.encode(
        {
            "v": protocol.VERSION,
            "do": "talk",
            "argv": list(argv),
            "program": sys.argv[0],
            "cwd": str(Path.cwd()),
            "env": dict(os.environ),
            "circumstances": Circumstances.now().as_message(),
            "entry": entry,
        }
    )
    sent = socket.send_fds(connection, [request], [0, 1, 2])
    connection.sendall(request[sent:])


def _next(connection: socket.socket, lines: protocol.Lines) -> dict[str, Any]:
    """The next message; an empty one where the other end is gone."""
    while chunk := connection.recv(1 << 12):
        for message in lines.feed(chunk):
            return message
    return {}


def _wait(connection: socket.socket, lines: protocol.Lines) -> int:
    """Wait for the command's end, and hand on the signals that come meanwhile."""
    handed_on = 0

    def hand_on(number: int, frame: FrameType | None) -> None:
        nonlocal handed_on
        handed_on = number
        with contextlib.suppress(OSError):
            connection.sendall(protocol.encode({"do": "signal", "number": int(number)}))

    connection.settimeout(None)
    for number in HANDED_ON:
        # A shell has what it starts in the background of a script ignore Ctrl-C.
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, hand_on)
    ended: dict[str, Any] = {}
    with contextlib.suppress(OSError):
        ended = _next(connection, lines)
    if "code" in ended:
        return int(ended["code"])
    if handed_on:  # it ended by that signal: so does this process, as its caller expects
        signal.signal(handed_on, signal.SIG_DFL)
        os.kill(os.getpid(), handed_on)
    print("benchwright: the process of this command was killed", file=sys.stderr)
    return 1

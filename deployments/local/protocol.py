"""What client and engine say to each other: JSON objects, one a line, over a Unix socket.

The client asks (`do`), the engine answers (`event`):

| do | with | answers |
| --- | --- | --- |
| `ping` | | `pong`: key, pid |
| `run` | run_dir, cwd, env, circumstances, api_url, entry, argv_name | as `watch` |
| `watch` | run_id | `started`: run_id, pid; at the run's end `exited`: run_id, code |
| `cancel` | run_id; on a connection that has a run it may be left out | `cancelling`: signal |
| `status` | | `runs`: a list of run_id, pid, run_dir, since |
| `retire` | | `retiring`: it ends after its last run, and takes no more |
| `shutdown` | | `ending`: it asks all runs to end, waits for them, and ends |
| `talk` | argv, program, cwd, env, circumstances, entry; three descriptors | see below |

A request that can't be met is answered with `refused`: what. Closing a connection changes
nothing: the run goes on.

`talk` is a terminal's command that a forked child of the engine carries out, since it has
everything imported already. The terminal's standard streams travel as descriptors (SCM_RIGHTS),
and from then on the connection is the child's: it says `talking`, and at its end `ended`: code.
The terminal sends `signal`: number for each that it gets; when it closes the connection, the
child hangs up.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import struct
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

VERSION = 1
"""Version of these messages; an engine of another one is replaced."""

LINE_LIMIT = 16 * 1024 * 1024
"""The longest message that is taken (bytes). The kernel limits a whole environment to 6 MiB."""

DEFAULT_ENTRY = "flows.execute:run_folder"
"""What runs a run's folder: a function from its path to an exit code."""

TALK_ENTRY = "cli.main:call"
"""What carries out a terminal's command: a function from its arguments to an exit code."""

ANSWER_S = 30.0
"""How long an engine may take to answer (seconds). It does nothing but answer; only a machine
that is out of memory or stopped makes it wait."""


def encode(message: Mapping[str, object]) -> bytes:
    """A message as one line; text that isn't UTF-8 survives as lone surrogates."""
    return json.dumps(message).encode() + b"\n"


class Lines:
    """Puts the lines of a stream back together."""

    def __init__(self) -> None:
        self._rest = bytearray()

    def feed(self, chunk: bytes) -> Iterator[dict[str, Any]]:
        """The messages that this chunk completes.

        Raises:
            ValueError: A line is not a JSON object, or too long.
        """
        self._rest += chunk
        while (end := self._rest.find(b"\n")) >= 0:
            line = bytes(self._rest[:end])
            del self._rest[: end + 1]
            message = json.loads(line)
            if not isinstance(message, dict):
                raise ValueError("a message is a JSON object")  # noqa: TRY004 - one error for the caller
            yield message
        if len(self._rest) > LINE_LIMIT:
            raise ValueError(f"a message is longer than {LINE_LIMIT} bytes")


def peer_user(connection: socket.socket) -> int:
    """User id of the process at the other end, as the kernel saw it when it connected."""
    size = struct.calcsize("3i")
    credentials = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, size)
    user: int = struct.unpack("3i", credentials)[1]
    return user


def connect(path: Path) -> socket.socket:
    """A connection to an engine of this user, by its socket file.

    Raises:
        OSError: None listens, or it isn't this user's.
    """
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        connection.settimeout(ANSWER_S)
        with short_name(path) as name:
            connection.connect(name)
        if peer_user(connection) != os.geteuid():
            raise PermissionError("the engine's socket is another user's")
    except BaseException:
        connection.close()
        raise
    return connection


@contextlib.contextmanager
def short_name(path: Path) -> Iterator[str]:
    """A name for a socket file that fits into the 108 bytes that the kernel allows (unix(7))."""
    folder = os.open(path.parent, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield f"/proc/self/fd/{folder}/{path.name}"
    finally:
        os.close(folder)

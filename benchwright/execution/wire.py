"""Messages between a supervisor, its zygote and the attendants of its stages.

Both ends are processes of this package, of one interpreter, joined by a private socket pair: the
messages are pickles of the contract's own types, each behind its length.
"""

from __future__ import annotations

import pickle
import socket
from dataclasses import dataclass
from typing import Any

_LENGTH_BYTES = 4
_CHUNK = 1 << 16


class Gone(Exception):
    """The other end was closed, or its process has died."""


@dataclass(frozen=True, slots=True)
class Order:
    """What an attendant is asked to do.

    Attributes:
        launch: The stage, with a plain dict as its environment.
        home: Digest of the home folder, part of the mark that the stage's processes carry.
        mechanism: Name of the memory mechanism to use; None chooses the best that works.
        watch: `module:factory` of a further guard (accelerators); None for none.
        path: Import path for that module.
    """

    launch: Any
    home: str
    mechanism: str | None = None
    watch: str | None = None
    path: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Cancel:
    """End the stage; `at_once` leaves out the grace period."""

    at_once: bool = False


@dataclass(frozen=True, slots=True)
class Started:
    """The attendant is about to start the stage: from here on a retry would run it twice."""

    attendant: int


@dataclass(frozen=True, slots=True)
class Fault:
    """The attendant stops by a fault of its own; the zygote ends the stage.

    Attributes:
        text: The error, and where it was raised.
    """

    text: str


@dataclass(frozen=True, slots=True)
class Ended:
    """The stage has ended and its tree is empty."""

    outcome: Any


def send(channel: socket.socket, message: object) -> None:
    """Send one message whole.

    Raises:
        Gone: The other end is closed.
    """
    body = pickle.dumps(message, protocol=pickle.HIGHEST_PROTOCOL)
    try:
        channel.sendall(len(body).to_bytes(_LENGTH_BYTES, "big") + body)
    except (BrokenPipeError, ConnectionResetError) as error:
        raise Gone from error


class Inbox:
    """Whole messages out of a stream socket.

    Args:
        channel: The socket; it stays the caller's to close.
    """

    def __init__(self, channel: socket.socket) -> None:
        self._channel = channel
        self._buffer = bytearray()

    def receive(self) -> list[Any]:
        """The messages that are complete after one read; blocks as the socket does.

        Raises:
            Gone: The other end is closed and nothing complete was left.
        """
        try:
            data = self._channel.recv(_CHUNK)
        except (BlockingIOError, InterruptedError):
            return []
        except ConnectionResetError as error:
            raise Gone from error
        if not data:
            raise Gone
        self._buffer += data
        messages = []
        while len(self._buffer) >= _LENGTH_BYTES:
            end = _LENGTH_BYTES + int.from_bytes(self._buffer[:_LENGTH_BYTES], "big")
            if len(self._buffer) < end:
                break
            messages.append(pickle.loads(bytes(self._buffer[_LENGTH_BYTES:end])))
            del self._buffer[:end]
        return messages

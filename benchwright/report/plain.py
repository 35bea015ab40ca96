"""Text that a stage printed, made harmless for a terminal and for a line of a report."""

from __future__ import annotations

import re

_CONTROL = re.compile(
    r"\x1b\[[0-?]*[ -/]*[@-~]"  # a terminal's control sequence: colours, cursor
    r"|[\x00-\x1f\x7f-\x9f]"  # control characters, line ends among them
    "|[\u2028\u2029\u202a-\u202e\u2066-\u2069\ud800-\udfff]"  # line ends, bidi, half characters
)
_SPACES = re.compile(r"  +")


def one_line(text: str) -> str:
    """The text on one line, without anything that moves a cursor, rings, or turns its order."""
    return _SPACES.sub(" ", _CONTROL.sub(" ", text)).strip()


def cut(text: str, limit: int) -> str:
    """The text on one line, at most `limit` characters long."""
    line = one_line(text)
    return line if len(line) <= limit else f"{line[: limit - 1].rstrip()}…"

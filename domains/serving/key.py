"""The API key of an endpoint: taken from the environment where it is used, and kept nowhere.

A parameter names the variable, never the key: parameters stand in records, logs and pages. On the
target host the key travels in the environment of the processes that need it. It is in no argument
list, which every user of a machine can read, and in no file but the start script, which only its
user may read and which removes itself before all else.
"""

from __future__ import annotations

import os
import re
import shlex
from pathlib import Path

from benchwright.errors import BadInput, Where
from domains.serving.request import KEY_VARIABLE, Endpoint

LAUNCHER = Path(__file__).parent / "programs" / "with_key.py"
"""Hands the key to a program that only takes it as an argument."""

PRINTABLE = re.compile(r"[!#-\[\]-~]+")
"""What headers and JSON carry as it is."""

HIDDEN_LENGTH = 8
"""Shorter values are words such as EMPTY, that texts hold for reasons of their own."""


def key_of(endpoint: Endpoint) -> str | None:
    """The endpoint's key; None where it asks for none.

    Raises:
        BadInput: The variable that is named isn't set, or holds no key.
    """
    if endpoint.key_env is None:
        return None
    value = os.environ.get(endpoint.key_env, "")
    if PRINTABLE.fullmatch(value) is None:
        raise BadInput(
            f"the variable {endpoint.key_env} "
            + ("holds what no API key holds" if value else "isn't set"),
            where=Where(key="target.endpoint.key_env"),
            expected="the endpoint's API key in it: printable ASCII without spaces and quotes",
            hint=f"set it where benchwright is started: export {endpoint.key_env}=...",
        )
    return value


def hide(text: str, key: str | None) -> str:
    """A text without the key: a server's arguments or an error message may hold it."""
    if key is None or len(key) < HIDDEN_LENGTH:
        return text
    return text.replace(key, "***")


def hide_in_files(folder: Path, key: str | None) -> None:
    """Put stars over the key in every file below a folder; each file keeps its length, so that
    one in a binary format stays what it is."""
    if key is None or len(key) < HIDDEN_LENGTH:
        return
    secret = key.encode()
    for path in folder.rglob("*"):
        if not path.is_file():
            continue
        content = path.read_bytes()
        if secret in content:
            times = path.stat()
            path.write_bytes(content.replace(secret, b"*" * len(secret)))
            # When it was written says whose report it is.
            os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))


def export(key: str | None) -> str:
    """The line of a script that puts the key into the environment of what it starts."""
    return "" if key is None else f"export {KEY_VARIABLE}={shlex.quote(key)}\n"


OPENAI = f'export OPENAI_API_KEY="${{{KEY_VARIABLE}:-EMPTY}}"\n'
"""For programs that look for that variable: a key of the host's user is for another service."""

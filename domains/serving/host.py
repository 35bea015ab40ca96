"""A machine that commands run on: this one, or one behind SSH.

A script travels as standard input into a file on the host and is run from there by a login shell,
so no quoting layer is crossed, whatever stands in a path. Files travel as a tar stream over the
same channel: hosts without SFTP work, and a login shell that prints a banner spoils neither,
because all that comes before our mark is dropped.
"""

from __future__ import annotations

import contextlib
import io
import os
import secrets
import shlex
import signal
import socket
import subprocess
import tarfile
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import ClassVar, Protocol

from benchwright.errors import StageFailed

MARK = "\x1e"
"""ASCII record separator: starts the line that our own output begins after."""

GRACE_S = 5
"""Seconds between TERM and KILL for a command that passed its deadline on the host."""

LAUNCH = (
    'f=$(mktemp "${TMPDIR:-/tmp}/benchwright.XXXXXXXX") && head -c "$1" >"$f"'
    ' && exec timeout -k "$3" "$2" bash -l "$f"'
)
"""Receives the script's length in bytes, its deadline and the grace period. The deadline is kept
on the host: a client that gives up leaves nothing running there. `head -c` takes the script alone
from standard input, and what follows it belongs to the script."""


NOT_WRITTEN = 89
"""Exit code of a script whose files couldn't be put in place."""


class HostUnreachable(StageFailed):
    """The host couldn't be reached, or the connection was lost; the command may still run."""


class HostRefused(StageFailed):
    """The host was reached and refused: its key is unknown or wrong, or it let us not in."""


@dataclass(frozen=True, slots=True)
class Ran:
    """How a script ended.

    Attributes:
        code: Its exit code; 124 where it passed its deadline.
        stdout: What it printed, without what its login shell printed before it.
        stderr: Likewise.
    """

    code: int
    stdout: bytes
    stderr: bytes

    @property
    def ok(self) -> bool:
        """Whether the exit code was 0."""
        return self.code == 0

    @property
    def text(self) -> str:
        """Standard output as text; bytes that are not UTF-8 are shown as such."""
        return self.stdout.decode("utf-8", "backslashreplace")

    @property
    def error_text(self) -> str:
        """The last lines of standard error, for a message."""
        text = self.stderr.decode("utf-8", "backslashreplace").strip()
        return text[-800:]


class Host(Protocol):
    """Runs scripts and moves files. `name` is how messages call it."""

    name: str

    def run(self, script: str, *, timeout_s: float = 60.0, stdin: bytes = b"") -> Ran:
        """Run a bash script in a login shell.

        Raises:
            HostUnreachable: The connection failed or was lost.
            HostRefused: The host's key or ours wasn't accepted.
        """
        ...

    def put(self, files: Mapping[str, bytes | Path], folder: str, *, then: str = "") -> Ran:
        """Write files below a folder, which is made where it is missing, by their relative names.

        Args:
            files: Contents, or paths on this machine.
            folder: On the host.
            then: A script that is run there afterwards, in the same round trip.

        Returns:
            How `then` ended.

        Raises:
            StageFailed: The files can't be written.
        """
        ...

    def get(self, folder: str, destination: Path, *, limit_mb: float = 512.0) -> None:
        """Copy a folder's plain files into `destination`. Raises StageFailed."""
        ...

    def close(self) -> None:
        """Drop the connection."""
        ...


class ShellHost(ABC):
    """What every host has in common, given a way to run `LAUNCH`."""

    name: str

    @abstractmethod
    def _launch(self, arguments: tuple[str, str, str], stdin: bytes, timeout_s: float) -> Ran:
        """Run `LAUNCH` with its arguments and standard input."""

    def run(self, script: str, *, timeout_s: float = 60.0, stdin: bytes = b"") -> Ran:
        """See `Host.run`."""
        token = secrets.token_hex(8)
        head = f"rm -f -- \"$0\"\nprintf '\\036%s\\n' {token}\nprintf '\\036%s\\n' {token} >&2\n"
        body = (head + script + "\n").encode()
        arguments = (str(len(body)), f"{timeout_s:g}", str(GRACE_S))
        ran = self._launch(arguments, body + stdin, timeout_s)
        mark = f"{MARK}{token}\n".encode()
        if mark not in ran.stdout:
            raise HostRefused(
                f"the login shell on {self.name} ended before our script began"
                f" (exit code {ran.code})",
                expected="a login shell that runs what it is given, with bash, head, mktemp and"
                " timeout on its path",
                hint=_tail(ran) or "log in by hand and look at the shell's start-up files",
            )
        return Ran(ran.code, ran.stdout.partition(mark)[2], ran.stderr.partition(mark)[2])

    def put(self, files: Mapping[str, bytes | Path], folder: str, *, then: str = "") -> Ran:
        """See `Host.put`."""
        packed = io.BytesIO()
        with tarfile.open(fileobj=packed, mode="w:gz", compresslevel=3) as tar:
            for name, content in files.items():
                data = content if isinstance(content, bytes) else content.read_bytes()
                member = tarfile.TarInfo(str(_relative(name)))
                member.size, member.mode = len(data), 0o600
                tar.addfile(member, io.BytesIO(data))
        place = shlex.quote(folder)
        ran = self.run(
            f"umask 077; mkdir -p -- {place} && tar -xzf - --no-same-owner -C {place}"
            f" && cd -- {place} || exit {NOT_WRITTEN}\nexec </dev/null\n{then}",
            timeout_s=600,
            stdin=packed.getvalue(),
        )
        if ran.code == NOT_WRITTEN:
            raise StageFailed(f"files can't be written to {folder} on {self.name}: {_tail(ran)}")
        return ran

    def get(self, folder: str, destination: Path, *, limit_mb: float = 512.0) -> None:
        """See `Host.get`."""
        ran = self.run(
            f"cd -- {shlex.quote(folder)} && find . -type f -size -{int(limit_mb * 1000)}k -print0"
            " | tar -czf - --null --no-recursion --ignore-failed-read -T -",
            timeout_s=1800,
        )
        if not ran.ok:
            raise StageFailed(f"{folder} can't be read from {self.name}: {_tail(ran)}")
        destination.mkdir(parents=True, exist_ok=True)
        with tarfile.open(fileobj=io.BytesIO(ran.stdout), mode="r:gz") as tar:
            # The `data` filter refuses links, devices and names that leave the folder: a host
            # under test may be anyone's.
            tar.extractall(destination, filter="data")

    def close(self) -> None:  # noqa: B027 - nothing to drop by default
        """See `Host.close`."""

    def __enter__(self) -> ShellHost:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class LocalHost(ShellHost):
    """This machine, as its own user."""

    marker: ClassVar[str] = "local"

    def __init__(self) -> None:
        self.name = socket.gethostname() or "localhost"

    def _launch(self, arguments: tuple[str, str, str], stdin: bytes, timeout_s: float) -> Ran:
        process = subprocess.Popen(
            ["sh", "-c", LAUNCH, "sh", *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
        )
        try:
            out, err = process.communicate(stdin, timeout=timeout_s + 2 * GRACE_S)
        except BaseException as problem:
            _end_group(process)
            if isinstance(problem, subprocess.TimeoutExpired):
                raise HostUnreachable(
                    f"a script on {self.name} did not end {2 * GRACE_S} s after its deadline"
                    f" of {timeout_s:g} s"
                ) from None
            raise
        return Ran(process.returncode, out, err)


def _end_group(process: subprocess.Popen[bytes]) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.communicate()


def _relative(name: str) -> PurePosixPath:
    path = PurePosixPath(name)
    if path.is_absolute() or ".." in path.parts:
        raise ValueError(f"{name!r} is no relative name")
    return path


def _tail(ran: Ran) -> str:
    lines = ran.error_text.replace(MARK, "").splitlines()
    return lines[-1].strip() if lines else f"exit code {ran.code}"

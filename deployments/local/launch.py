"""Starting a process that outlives its starter, and hearing how its start goes."""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchwright.errors import BenchwrightError, Where

LOG_LIMIT = 4 * 1024 * 1024
"""A log is set aside when a process starts and finds it larger than this (bytes)."""

START_LIMIT_S = 180.0
"""How long a start may take (seconds). A fresh database takes 4 s on a quiet machine; ten times
that was seen on a busy one without compiled byte-code."""

Progress = Callable[[str], None]
"""Called with a short text whenever the start of a process reaches another step."""


@dataclass(slots=True)
class Starting:
    """A process on its way up.

    Attributes:
        name: What it is, for a person: `Prefect server`.
        log: Where its output goes.
        news: Read end of the pipe on which it says how far it is; its end closes with it.
        process: The starter's child, which ends as soon as it has started the process itself.
        error: What it said was wrong; empty while nothing is.
        ready: Whether it said that it can be used.
    """

    name: str
    log: Path
    news: int
    process: subprocess.Popen[bytes]
    error: str = ""
    ready: bool = False
    unread: bytes = b""

    def read(self, on_progress: Progress) -> bool:
        """Take in what the process said; False when there will be no more."""
        chunk = os.read(self.news, 4096)
        self.unread += chunk
        *lines, self.unread = self.unread.split(b"\n")
        for line in lines:
            said = json.loads(line)
            self.error = said.get("error", self.error)
            if said.get("ready"):
                self.ready = True
            elif "step" in said:
                on_progress(f"{self.name}: {said['step']}")
        return bool(chunk) and not self.ready and not self.error

    def failure(self) -> BenchwrightError:
        """Why it isn't up, with the last line of its log."""
        lines = []
        with contextlib.suppress(OSError):
            lines = self.log.read_text(errors="replace").strip().splitlines()
        reason = self.error or (lines[-1] if lines else "it ended without a word")
        return BenchwrightError(
            f"the local {self.name} did not start: {reason}",
            where=Where(file=self.log),
            hint="read that log; `benchwright doctor` looks at what it needs",
        )


def start(
    name: str,
    module: str,
    arguments: Sequence[str],
    *,
    environment: Mapping[str, str],
    log: Path,
    inherit: Sequence[int],
) -> Starting:
    """Start `python -m module` in a session of its own, with its output in a file.

    Args:
        name: What it is, for a person.
        module: Module to run; its `main` calls `step_out` and then `Announcer`.
        arguments: Arguments of the module, beside `--news FD` that is added.
        environment: All of its environment.
        log: File that its output is added to.
        inherit: File descriptors that stay open in it, under the same numbers.
    """
    with contextlib.suppress(FileNotFoundError):
        if log.stat().st_size > LOG_LIMIT:
            log.replace(log.with_name(log.name + ".1"))
    reading, writing = os.pipe()
    with log.open("ab") as output:
        # -P: the folder that it is started in must not shadow the application's packages.
        # It forks once more and this process ends, so that the starter has no child to wait for.
        process = subprocess.Popen(
            [sys.executable, "-P", "-m", module, *arguments, "--news", str(writing)],
            env=dict(environment),
            cwd="/",
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            pass_fds=(*inherit, writing),
            start_new_session=True,
        )
    os.close(writing)
    return Starting(name=name, log=log, news=reading, process=process)


def wait_ready(starting: Sequence[Starting], on_progress: Progress) -> None:
    """Wait until all are ready; returns at once where there is none.

    Raises:
        BenchwrightError: One ended, said that it can't start, or took too long.
    """
    deadline = time.monotonic() + START_LIMIT_S
    with selectors.DefaultSelector() as selector, contextlib.ExitStack() as pipes:
        for one in starting:
            pipes.callback(os.close, one.news)
            pipes.callback(one.process.wait)
            selector.register(one.news, selectors.EVENT_READ, one)
        while selector.get_map():
            events = selector.select(max(0.0, deadline - time.monotonic()))
            if not events:
                late = next(key.data for key in selector.get_map().values())
                late.error = f"it was not ready after {START_LIMIT_S:.0f} s"
                raise late.failure()
            for key, _ in events:
                if not key.data.read(on_progress):
                    selector.unregister(key.fd)
                    if not key.data.ready:
                        raise key.data.failure()


def step_out() -> None:
    """Leave the starter: the calling process ends, its child goes on."""
    if os.fork():
        os._exit(0)


@dataclass(frozen=True, slots=True)
class Announcer:
    """What a starting process says on its pipe."""

    fd: int

    def step(self, text: str) -> None:
        """Say what is being done now."""
        self._say({"step": text})

    def ready(self) -> None:
        """Say that it can be used, and close the pipe."""
        self._say({"ready": True})
        os.close(self.fd)

    def failed(self, text: str) -> None:
        """Say why it can't start."""
        self._say({"error": text})

    def _say(self, message: Mapping[str, object]) -> None:
        # The starter may have been interrupted: the start goes on for who comes next.
        with contextlib.suppress(BrokenPipeError):
            os.write(self.fd, json.dumps(message).encode() + b"\n")

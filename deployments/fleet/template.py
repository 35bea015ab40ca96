"""A process that has Prefect and the application imported, and forks a worker's runs.

Importing both takes 1.5 s of a processor, more than a small run itself. The process has one
thread and runs nothing of a user's. What asks it is `deployments.fleet.flow_run`, the process that
the worker knows as the run: a signal to that one reaches the run, its end is the run's end, and
how the run ends is how it ends.
"""

from __future__ import annotations

import array
import atexit
import contextlib
import json
import os
import runpy
import secrets
import selectors
import signal
import socket
import subprocess
import sys
import traceback
from collections.abc import Callable, Mapping, MutableMapping
from dataclasses import dataclass
from typing import Any

from deployments.fleet.flow_run import TEMPLATE, address, answer
from deployments.local.engine import QuickExit, prefect_part, refresh, refresh_prefect, warm_up
from deployments.local.environment import code_digest
from deployments.local.protocol import peer_user

ENTRY = "flows.benchmark:benchmark"
"""What it imports beside Prefect: the flow that imports nearly all of the application."""

MOST_BYTES = 1 << 20
"""Of a request, which holds an environment."""

FIXED = ("PYTHON", "LD_", "LC_", "LANG", "PREFECT_LOGGING")
"""Beginnings of the variables that are read once, when Python and Prefect start."""


def start(environ: MutableMapping[str, str]) -> None:
    """Start one beside a worker, and tell the worker's runs of it.

    It ends when this process has ended, and its runs have.

    Args:
        environ: The worker's environment, which its runs get.
    """
    # A name of the kernel's, which goes with its process however that ends: no file is left.
    name = f"benchwright-{secrets.token_hex(16)}"
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
        listener.bind(address(name))
        listener.listen(64)
        # Its standard input is a pipe that nobody writes to: its end is this process's end.
        process = subprocess.Popen(
            [sys.executable, "-m", __spec__.name, str(listener.fileno())],
            env=environ,
            stdin=subprocess.PIPE,
            pass_fds=[listener.fileno()],
            start_new_session=True,  # Ctrl-C at the worker's terminal is the worker's
        )
    environ[TEMPLATE] = name
    atexit.register(process.stdin.close)  # type: ignore[union-attr]


@dataclass(slots=True)
class Run:
    """A run's process, and the connection to the process that stands for it."""

    pid: int
    asker: socket.socket


class Template:
    """Takes requests, forks, and tells how each run ended.

    Args:
        listener: The listening socket.
        worker: Descriptor that is at its end when the worker is.
    """

    def __init__(self, listener: socket.socket, worker: int) -> None:
        self._listener = listener
        self._runs: dict[int, Run] = {}
        self._worker_lives = True
        self._code = code_digest()
        self._fixed = fixed_part(os.environ)
        self._woken, self._wake = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self._selector = selectors.DefaultSelector()
        self._selector.register(listener, selectors.EVENT_READ, self._accept)
        self._selector.register(worker, selectors.EVENT_READ, self._worker_gone)
        self._selector.register(self._woken, selectors.EVENT_READ, self._reap)

    def serve(self) -> dict[str, Any] | None:
        """Serve until the worker and all runs have ended.

        Returns:
            None in the template itself; in a forked child, what it is to become.
        """
        signal.set_wakeup_fd(self._wake, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda _number, _frame: None)
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, signal.SIG_IGN)
        while self._worker_lives or self._runs:
            for key, _ in self._selector.select():
                handle: Callable[[], dict[str, Any] | None] = key.data
                request = handle()
                if request is not None:
                    return request
        return None

    def close(self) -> None:
        """Close all that is the template's; a forked child does so first of all."""
        signal.set_wakeup_fd(-1)
        self._selector.close()
        self._listener.close()
        for run in self._runs.values():
            run.asker.close()
        os.close(self._woken)
        os.close(self._wake)

    def _worker_gone(self) -> None:
        self._worker_lives = False
        self._selector.unregister(0)

    def _accept(self) -> dict[str, Any] | None:
        asker, _ = self._listener.accept()
        try:
            request, files = receive(asker)
        except (OSError, ValueError, KeyError):
            asker.close()
            return None
        why = self._refuses(request)
        if why:
            answer(asker, refused=why)
            asker.close()
            for file in files:
                os.close(file)
            return None
        pid = os.fork()
        if pid == 0:
            asker.close()
            self.close()
            return {**request, "files": files}
        for file in files:
            os.close(file)
        run = Run(pid, asker)
        self._runs[pid] = run
        self._selector.register(asker, selectors.EVENT_READ, lambda: self._told(run))
        answer(asker, pid=pid)
        return None

    def _refuses(self, request: Mapping[str, Any]) -> str:
        """Why a run isn't to be a child of this process; empty where it may be."""
        if code_digest() != self._code:
            return "the code has changed since the worker was started"
        if fixed_part(request["env"]) != self._fixed:
            return "its environment differs in what is read when Python starts"
        return ""

    def _told(self, run: Run) -> None:
        """Hand on a signal; where the process that stands for the run is gone, so is the run."""
        try:
            said = run.asker.recv(64)
        except OSError:
            said = b""
        for number in said or bytes([signal.SIGKILL]):
            with contextlib.suppress(ProcessLookupError, ValueError):
                os.kill(run.pid, number)  # not reaped yet, so the number is still its own
        if not said:
            self._selector.unregister(run.asker)
            run.asker.close()

    def _reap(self) -> None:
        with contextlib.suppress(BlockingIOError):
            os.read(self._woken, 4096)
        for pid in list(self._runs):
            ended, status = os.waitpid(pid, os.WNOHANG)
            if not ended:
                continue
            run = self._runs.pop(pid)
            if run.asker.fileno() < 0:
                continue
            answer(run.asker, ended=os.waitstatus_to_exitcode(status))
            self._selector.unregister(run.asker)
            run.asker.close()


def fixed_part(environ: Mapping[str, str]) -> dict[str, str]:
    """What of an environment a forked process can't be given any more."""
    return {name: value for name, value in environ.items() if name.startswith(FIXED)}


def receive(asker: socket.socket) -> tuple[dict[str, Any], list[int]]:
    """A request, and the descriptors of its standard streams.

    Raises:
        OSError, ValueError: It comes from another user, too late, or isn't whole.
    """
    if peer_user(asker) != os.geteuid():
        raise ValueError("another user's")
    asker.settimeout(5.0)
    parts, files = bytearray(), array.array("i")
    try:
        while not parts.endswith(b"\n"):
            part, sent, _, _ = socket.recv_fds(asker, 1 << 16, 3)
            files.extend(sent)
            if not part or len(parts) > MOST_BYTES:
                raise ValueError("not whole")
            parts += part
        request = json.loads(parts)
        if len(files) != 3 or not isinstance(request["env"], dict):
            raise ValueError("not understood")
    except (OSError, ValueError, KeyError):
        for file in files:
            os.close(file)
        raise
    asker.settimeout(None)
    return request, list(files)


def become(request: Mapping[str, Any]) -> int:
    """Be the run's process; returns its exit code.

    The process leaves by the normal way, or Prefect's last events are lost.
    """
    os.setsid()
    for number in (signal.SIGCHLD, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    for stream, file in enumerate(request["files"]):
        os.dup2(file, stream)
    for file in request["files"]:
        if file > 2:
            os.close(file)
    os.chdir(request["cwd"])
    sys.path[0] = request["cwd"]  # as `python -m` has it
    environ = request["env"]
    differ = prefect_part(environ) != prefect_part(os.environ)
    os.environ.clear()
    os.environ.update(environ)
    refresh("prefect")
    refresh_prefect(differ, heartbeats=True)
    sys.modules.pop("prefect.engine", None)  # it is to be the main module, and not there twice
    try:
        runpy.run_module("prefect.engine", run_name="__main__", alter_sys=True)
    except SystemExit as leaving:
        return leaving.code if isinstance(leaving.code, int) else int(leaving.code is not None)
    except BaseException:
        traceback.print_exc()
        return 1
    return 0


def main() -> int:
    """The template's process, and after a fork a run's."""
    quick = QuickExit()
    listener = int(sys.argv[1])
    os.set_inheritable(listener, False)
    warm_up(ENTRY)
    template = Template(socket.socket(fileno=listener), sys.stdin.fileno())
    request = template.serve()
    if request is None:
        return 0
    del template
    quick.code = become(request)
    return quick.code


if __name__ == "__main__":
    sys.exit(main())

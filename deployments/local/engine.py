"""The local engine: a process that has the application imported and forks one for each run.

`start` is the starter's side and needs no Prefect; `main` is the process itself. It has one
thread and runs nothing of a user's: a run can't slow it down, and a fork copies no held lock.
"""

from __future__ import annotations

import argparse
import atexit
import contextlib
import functools
import gc
import importlib
import logging
import os
import random
import selectors
import signal
import socket
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from benchwright.errors import BenchwrightError
from benchwright.execution.orphans import sweep_orphans
from benchwright.record.store import RunFolder
from deployments.local import launch, protocol, server
from deployments.local.crash import mark_crashed
from deployments.local.environment import (
    Circumstances,
    EngineIdentity,
    engine_environment,
    run_environment,
)
from deployments.local.state import (
    EngineRecord,
    LocalHome,
    birth,
    end_process,
    idle_for,
    is_held,
    is_named,
    open_lock,
    read_engine,
    read_server,
    take,
    touch_use,
    write_record,
)

if TYPE_CHECKING:
    from prefect.context import SettingsContext

CANCEL_GRACE_S = 10.0
"""How long a run may take to end after each signal: INT, TERM, KILL (seconds)."""

CANCEL_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGKILL)

LATE_S = 2.0
"""What was killed together is gone after so long (seconds), be the machine ever so busy."""

TICK_S = 10.0
"""How often an engine without events looks whether it is still wanted (seconds)."""

RUN_TICK_S = 1.0
"""How often it looks for the server while a run is in progress (seconds)."""

STREAMS = 3
"""Descriptors that come with a command: standard input, output and error."""

WARM = (
    "prefect",
    "prefect.main",
    "prefect.flow_engine",
    "prefect.task_engine",
    "prefect.client.orchestration",
    "prefect.concurrency.sync",
    "prefect.events.clients",
    "prefect.events.worker",
    "prefect.logging.handlers",
    "prefect.utilities.visualization",
    "prefect.artifacts",
    "anyio._backends._asyncio",
    "pydantic.v1",
    "rich._emoji_codes",
    "encodings.idna",
    "fastapi.encoders",
    # What the application imports only where it is used, so that its quick verbs are quick.
    "jinja2",
    "ruamel.yaml",
)
"""What a run was seen to import while it runs (0.4 s of CPU), imported once before."""


def start(
    home: LocalHome, identity: EngineIdentity, api_url: str, idle_s: float, entry: str
) -> launch.Starting:
    """Start an engine; the caller holds the start lock alone, and none with this key lives."""
    lock = open_lock(home.engine_file(identity.key, "lock"))
    deadline = time.monotonic() + 5.0
    while not take(lock):
        if time.monotonic() > deadline:
            os.close(lock)
            raise RuntimeError(f"the lock of engine {identity.key} is held")
        time.sleep(0.01)
    path = home.engine_file(identity.key, "sock")
    path.unlink(missing_ok=True)
    home.engine_file(identity.key, "json").unlink(missing_ok=True)
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        with protocol.short_name(path) as name:
            listener.bind(name)
        path.chmod(0o600)
        listener.listen(128)
        return launch.start(
            "engine",
            "deployments.local.engine",
            [
                *("--home", str(home.root), "--idle", str(idle_s)),
                *("--key", identity.key, "--code", identity.code, "--entry", entry),
                *("--listen", str(listener.fileno()), "--lock", str(lock)),
            ],
            environment=engine_environment(home, api_url, os.environ),
            log=home.engine_file(identity.key, "log"),
            inherit=(listener.fileno(), lock),
        )
    finally:
        listener.close()
        os.close(lock)


def stop(home: LocalHome, key: str) -> bool:
    """End an engine that lives, without its runs; True where there was one."""
    record = read_engine(home, key)
    if record is None:
        return False
    end_process(record.pid, record.born, home.engine_file(key, "lock"), CANCEL_GRACE_S)
    return True


@dataclass(slots=True)
class Run:
    """One run's process.

    Attributes:
        run_id: Name of its folder.
        run_dir: Its folder.
        pid: Its process, leader of a session of its own.
        since: When it began (seconds since the epoch).
        signals: How many of `CANCEL_SIGNALS` it got.
        next_signal: When it gets the next one (monotonic), None while nobody cancelled it.
        watchers: Connections that want to hear of its end.
    """

    run_id: str
    run_dir: str
    pid: int
    since: float
    signals: int = 0
    next_signal: float | None = None
    watchers: list[Connection] = field(default_factory=list)


@dataclass(slots=True)
class Connection:
    """One client."""

    socket: socket.socket
    lines: protocol.Lines = field(default_factory=protocol.Lines)
    run: Run | None = None
    fds: list[int] = field(default_factory=list)

    def say(self, **message: object) -> None:
        """Send a message; a client that has gone misses it."""
        with contextlib.suppress(OSError):
            self.socket.sendall(protocol.encode(message))


class Refused(Exception):
    """A request that can't be met; its text goes to the client."""


class Engine:
    """Takes requests, forks a process for each run, and tells who watches how it ended.

    Args:
        home: Where it belongs.
        key: Digest of its code and environment.
        listener: The listening socket.
        lock: File descriptor of its lock.
        idle_s: It ends after this long without a run (seconds).
    """

    def __init__(
        self, home: LocalHome, key: str, listener: socket.socket, lock: int, idle_s: float
    ) -> None:
        self.home = home
        self.key = key
        self.idle_s = idle_s
        self.runs: dict[int, Run] = {}
        self.retiring = False
        self.ending = False
        self._server_was_up = False
        self._server_starting: tuple[launch.Starting, int] | None = None
        self._helpers: set[int] = set()
        self._lock = lock
        self._listener = listener
        self._connections: dict[int, Connection] = {}
        self._selector = selectors.DefaultSelector()
        self._woken, self._wake = os.pipe()
        self._last_look = time.monotonic()

    def serve(self) -> dict[str, Any] | None:
        """Serve until it is time to end.

        Returns:
            None in the engine itself, at its end. In a forked child: what it is to run. The
            child returns all the way up, so that nothing of the engine is below it on its stack.
        """
        self._listener.setblocking(False)
        os.set_blocking(self._woken, False)
        os.set_blocking(self._wake, False)
        self._selector.register(self._listener, selectors.EVENT_READ, self._accept)
        self._selector.register(self._woken, selectors.EVENT_READ, self._on_signal)
        signal.set_wakeup_fd(self._wake, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda number, frame: None)
        signal.signal(signal.SIGTERM, self._on_term)
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
        while not self._is_over():
            for key, _ in self._selector.select(self._patience()):
                handle: Callable[[], dict[str, Any] | None] = key.data
                request = handle()
                if request is not None:
                    return request
            self._reap()
            self._escalate()
            self._look_after_server()
        return None

    def close(self) -> None:
        """Close all that belongs to the engine; a forked child calls it first of all."""
        signal.set_wakeup_fd(-1)
        self._selector.close()
        self._listener.close()
        for connection in self._connections.values():
            connection.socket.close()
        if self._server_starting is not None:
            starting, start_lock = self._server_starting
            os.close(starting.news)
            os.close(start_lock)
        for fd in (self._woken, self._wake, self._lock):
            os.close(fd)

    def _on_term(self, number: int, frame: object) -> None:
        self.ending = True

    def _on_signal(self) -> None:
        with contextlib.suppress(BlockingIOError):
            os.read(self._woken, 4096)

    def _accept(self) -> None:
        try:
            connected, _ = self._listener.accept()
        except OSError:
            return
        if protocol.peer_user(connected) != os.geteuid():
            # The folder is closed to others already; this holds where its mode was changed.
            connected.close()
            return
        connection = Connection(connected)
        self._connections[connected.fileno()] = connection
        self._selector.register(connected, selectors.EVENT_READ, lambda: self._read(connection))

    def _read(self, connection: Connection) -> dict[str, Any] | None:
        try:
            chunk, fds, _, _ = socket.recv_fds(connection.socket, 1 << 16, STREAMS)
            connection.fds += fds
            messages = list(connection.lines.feed(chunk))
        except (OSError, ValueError):
            chunk, messages = b"", []
        for message in messages:
            try:
                request = self._answer(connection, message)
            except Refused as refusal:
                connection.say(event="refused", what=str(refusal))
            except (KeyError, TypeError, ValueError, OSError) as error:
                connection.say(event="refused", what=f"{type(error).__name__}: {error}")
            else:
                if request is not None:
                    return request
        if not chunk:
            self._forget(connection)
        return None

    def _forget(self, connection: Connection) -> None:
        if connection.run is not None and connection in connection.run.watchers:
            connection.run.watchers.remove(connection)
        self._selector.unregister(connection.socket)
        del self._connections[connection.socket.fileno()]
        connection.socket.close()
        for fd in connection.fds:
            os.close(fd)
        connection.fds.clear()

    def _answer(self, connection: Connection, message: dict[str, Any]) -> dict[str, Any] | None:
        if message.get("v") != protocol.VERSION:
            raise Refused(f"this engine speaks version {protocol.VERSION} of the protocol")
        match message.get("do"):
            case "ping":
                connection.say(
                    event="pong", version=protocol.VERSION, key=self.key, pid=os.getpid()
                )
            case "run":
                return self._run(connection, message)
            case "talk":
                return self._talk(connection, message)
            case "watch":
                self._watch(connection, self._named(message["run_id"]))
            case "cancel":
                run = connection.run or self._named(message["run_id"])
                connection.say(event="cancelling", signal=self._signal(run).name)
            case "status":
                connection.say(event="runs", runs=self._status(), retiring=self.retiring)
            case "retire":
                self.retiring = True
                connection.say(event="retiring", runs=len(self.runs))
            case "shutdown":
                self.ending = True
                connection.say(event="ending", runs=len(self.runs))
                for run in self.runs.values():
                    self._signal(run)
            case other:
                raise Refused(f"unknown request {other!r}")
        return None

    def _named(self, run_id: str) -> Run:
        for run in self.runs.values():
            if run.run_id == run_id:
                return run
        raise Refused(f"no run {run_id} is in progress here")

    def _status(self) -> list[dict[str, object]]:
        return [
            {"run_id": run.run_id, "pid": run.pid, "run_dir": run.run_dir, "since": run.since}
            for run in self.runs.values()
        ]

    def _watch(self, connection: Connection, run: Run) -> None:
        connection.run = run
        run.watchers.append(connection)
        connection.say(event="started", run_id=run.run_id, pid=run.pid)

    def _run(self, connection: Connection, message: dict[str, Any]) -> dict[str, Any] | None:
        """Fork a process for a run; returns the request in the child, None in the engine."""
        if self.retiring or self.ending:
            raise Refused("this engine takes no more runs")
        run_dir = Path(message["run_dir"])
        if not run_dir.is_absolute() or not run_dir.is_dir():
            raise Refused(f"{run_dir} is no folder with an absolute path")
        if any(run.run_dir == str(run_dir) for run in self.runs.values()):
            raise Refused(f"run {run_dir.name} is in progress already")
        Circumstances(**message["circumstances"])
        # Taken here, so that no moment passes in which neither engine nor child holds it.
        in_use = open_lock(self.home.runs_lock)
        if not take(in_use, shared=True):
            os.close(in_use)
            raise Refused("the local server is ending")
        touch_use(self.home)
        self._server_was_up = is_held(self.home.server_lock)
        sys.stdout.flush()
        sys.stderr.flush()
        pid = os.fork()
        if pid == 0:
            self.close()
            return message
        os.close(in_use)
        run = Run(run_id=run_dir.name, run_dir=str(run_dir), pid=pid, since=time.time())
        self.runs[pid] = run
        self._watch(connection, run)
        return None

    def _talk(self, connection: Connection, message: dict[str, Any]) -> dict[str, Any] | None:
        """Fork a process for a terminal's command, and leave the connection to it."""
        if self.retiring or self.ending:
            raise Refused("this engine takes no more commands")
        if len(connection.fds) != STREAMS:
            raise Refused("a command comes with three descriptors")
        Circumstances(**message["circumstances"])
        touch_use(self.home)
        pid = os.fork()
        if pid == 0:
            own = connection.socket.dup()
            fds, connection.fds = connection.fds, []
            self.close()
            return {**message, "connection": own, "fds": fds}
        self._helpers.add(pid)
        self._forget(connection)
        return None

    def _signal(self, run: Run) -> signal.Signals:
        """Send a run the next signal of the row; the last one goes to its whole group."""
        number = CANCEL_SIGNALS[min(run.signals, len(CANCEL_SIGNALS) - 1)]
        run.signals += 1
        run.next_signal = time.monotonic() + CANCEL_GRACE_S
        with contextlib.suppress(ProcessLookupError):
            if number is signal.SIGKILL:
                os.killpg(run.pid, number)
            else:
                os.kill(run.pid, number)
        return number

    def _escalate(self) -> None:
        now = time.monotonic()
        for run in self.runs.values():
            if run.next_signal is not None and now >= run.next_signal:
                self._signal(run)

    def _reap(self) -> None:
        for pid in list(self.runs):
            ended, status = os.waitpid(pid, os.WNOHANG)
            if not ended:
                continue
            run = self.runs.pop(pid)
            touch_use(self.home)
            code = os.waitstatus_to_exitcode(status)
            if code:
                self._settle(run, code)
            for watcher in run.watchers:
                watcher.say(event="exited", run_id=run.run_id, code=code)
                watcher.run = None
        for pid in list(self._helpers):
            if os.waitpid(pid, os.WNOHANG)[0]:
                self._helpers.remove(pid)

    def _settle(self, run: Run, code: int) -> None:
        """End what a run has left, and let its record and Prefect's pages say that it has ended.

        A run's supervisors do the first, unless they were killed with it. In a process of its
        own, since disk and server may take their time.
        """
        ended = time.time()
        pid = os.fork()
        if pid:
            self._helpers.add(pid)
            return
        with contextlib.suppress(Exception):
            sweep_orphans(self.home.root)
        with contextlib.suppress(Exception):
            # A run that was asked to go on in the meantime has written since, and is left alone.
            path = Path(run.run_dir)
            folder = RunFolder(path.parent.parent, path.name)
            folder.settle(unclaimed_after_s=time.time() - ended)
        with contextlib.suppress(Exception):
            record = read_server(self.home)
            if code < 0 and record is not None:
                by = signal.Signals(-code).name
                mark_crashed(record.api_url, run.run_id, f"The run's process was ended by {by}.")
        with contextlib.suppress(Exception):
            # Supervisors that were killed with the run may have died a moment after it.
            time.sleep(LATE_S)
            sweep_orphans(self.home.root)
        os._exit(0)

    def _look_after_server(self) -> None:
        """Start the server anew where it died under a run in progress.

        A flow that finds no server asks again for a minute (PREFECT_CLIENT_MAX_RETRIES); the new
        one answers on the same port within seconds.
        """
        if self._server_starting is not None or not self.runs or not self._server_was_up:
            return
        if is_held(self.home.server_lock):
            return
        start_lock = open_lock(self.home.start_lock)
        if not take(start_lock):
            os.close(start_lock)
            return
        try:
            starting, _ = server.start(self.home, self.idle_s)
        except BenchwrightError:
            traceback.print_exc()
            os.close(start_lock)
            return
        self._server_starting = (starting, start_lock)
        self._selector.register(starting.news, selectors.EVENT_READ, self._on_server_news)

    def _on_server_news(self) -> None:
        assert self._server_starting is not None
        starting, start_lock = self._server_starting
        if starting.read(print):
            return
        # Up or failed: in both cases the next one who looks may act.
        self._server_was_up = starting.ready
        self._server_starting = None
        self._selector.unregister(starting.news)
        os.close(starting.news)
        starting.process.wait()
        os.close(start_lock)

    def _patience(self) -> float:
        """How long to wait for an event (seconds)."""
        signals = [run.next_signal for run in self.runs.values() if run.next_signal is not None]
        until_signal = min(signals, default=float("inf")) - time.monotonic()
        tick = RUN_TICK_S if self.runs else TICK_S
        return max(0.0, min(tick, self.idle_s / 4, until_signal))

    def _is_over(self) -> bool:
        if self.runs:
            return False
        if self.retiring or self.ending:
            return True
        now = time.monotonic()
        if now - self._last_look < min(TICK_S, self.idle_s / 4):
            return False
        self._last_look = now
        try:
            if not is_named(self._lock, self.home.engine_file(self.key, "lock")):
                return True
            with idle_for(self.home, self.idle_s) as idle:
                if idle:
                    # Under the locks, so that who comes next sees that there is no engine.
                    self.home.engine_file(self.key, "sock").unlink(missing_ok=True)
                return idle
        except OSError:
            return True


class QuickExit:
    """Leaves out the last step of a run's end: taking down some thousand loaded modules.

    It takes 0.08 s and gives nothing back that the kernel doesn't. Its `leave` is registered
    before Prefect is imported, so of all exit functions it comes last: threads have been waited
    for, and Prefect has sent its events, by then.
    """

    def __init__(self) -> None:
        self.code: int | None = None
        atexit.register(self.leave)

    def leave(self) -> None:
        """End the process with the code of its run; nothing in a process that has none."""
        if self.code is None:
            return
        logging.shutdown()
        with contextlib.suppress(OSError, ValueError):
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(self.code & 0xFF)


def main() -> int:
    """The engine's process, and after a fork a run's."""
    quick = QuickExit()
    parser = argparse.ArgumentParser()
    parser.add_argument("--home", type=Path, required=True)
    parser.add_argument("--key", required=True)
    parser.add_argument("--code", required=True)
    parser.add_argument("--entry", required=True)
    parser.add_argument("--idle", type=float, required=True)
    parser.add_argument("--listen", type=int, required=True)
    parser.add_argument("--lock", type=int, required=True)
    parser.add_argument("--news", type=int, required=True)
    options = parser.parse_args()
    launch.step_out()
    for fd in (options.listen, options.lock, options.news):
        os.set_inheritable(fd, False)
    home = LocalHome(options.home)
    news = launch.Announcer(options.news)
    pid = os.getpid()
    write_record(
        home.engine_file(options.key, "json"),
        EngineRecord(pid=pid, born=birth(pid), key=options.key, code=options.code),
    )
    news.step("loading")
    try:
        warm_up(options.entry, protocol.TALK_ENTRY)
    except Exception as error:
        news.failed(f"{type(error).__name__}: {error}")
        raise
    listener = socket.socket(fileno=options.listen)
    engine = Engine(home, options.key, listener, options.lock, options.idle)
    news.ready()
    request = engine.serve()
    if request is None:
        return 0
    # From here on this is the process of a command or of a run.
    if request["do"] == "talk":
        del engine, listener
        talk(request)
    api_url = os.environ["PREFECT_API_URL"]
    del engine, listener
    quick.code = run(home, api_url, request)
    return quick.code


def warm_up(*entries: str) -> None:
    """Import what runs and commands need, and leave it as it is before a fork.

    The module of an entry may have a function `warm_up` of its own.
    """
    for name in WARM:
        importlib.import_module(name)
    for entry in entries:
        module = entry.partition(":")[0]
        getattr(importlib.import_module(module), "warm_up", lambda: None)()
    without_heartbeats()
    if threading.active_count() > 1:
        # A fork copies only the thread that calls it: what another holds stays held for ever.
        names = [thread.name for thread in threading.enumerate()]
        raise RuntimeError(f"importing {entries} started threads: {', '.join(names)}")
    gc.collect()
    gc.freeze()


def run(home: LocalHome, api_url: str, request: Mapping[str, Any]) -> int:
    """What a forked child does: become the run's process, and run it.

    Returns:
        The exit code. The process leaves by the normal way, or Prefect's last events are lost.
    """
    os.setsid()
    for number in (signal.SIGCHLD, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    run_dir = Path(request["run_dir"])
    become(run_dir, request["cwd"], Circumstances(**request["circumstances"]))
    environment = run_environment(home, request.get("api_url") or api_url, request["env"])
    settings_differ = prefect_part(environment) != prefect_part(os.environ)
    os.environ.clear()
    os.environ.update(environment)
    refresh(request.get("argv_name", "benchwright"))
    refresh_prefect(settings_differ)
    log_plainly()
    try:
        module, _, name = request.get("entry", protocol.DEFAULT_ENTRY).partition(":")
        entry: Callable[[Path], int] = getattr(importlib.import_module(module), name)
        return int(entry(run_dir))
    except KeyboardInterrupt:
        traceback.print_exc()
        return 130


def talk(request: Mapping[str, Any]) -> NoReturn:
    """What a forked child does for a terminal: carry out its command, on its own streams."""
    os.setsid()
    for number in (signal.SIGCHLD, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    connection: socket.socket = request["connection"]
    connection.settimeout(None)
    Circumstances(**request["circumstances"]).apply()
    os.chdir(request["cwd"])
    for target, fd in enumerate(request["fds"]):
        os.dup2(fd, target)
        os.close(fd)
    os.environ.clear()
    os.environ.update(request["env"])
    refresh(Path(request["program"]).name)
    sys.argv = [request["program"], *request["argv"]]
    open_streams()
    connection.sendall(protocol.encode({"event": "talking"}))
    threading.Thread(target=listen, args=(connection,), daemon=True).start()
    module, _, name = request["entry"].partition(":")
    code = 1
    try:
        code = getattr(importlib.import_module(module), name)(request["argv"])
    except BaseException:
        traceback.print_exc()
    with contextlib.suppress(OSError, ValueError):  # a reader that has gone: `| head`
        sys.stdout.flush()
        sys.stderr.flush()
    with contextlib.suppress(OSError):
        connection.sendall(protocol.encode({"event": "ended", "code": code}))
    os._exit(code & 0xFF)


def listen(connection: socket.socket) -> None:
    """Hand on the signals that a terminal gets, and hang up when it is gone."""
    lines = protocol.Lines()
    number = 0
    while number != signal.SIGHUP:
        try:
            chunk = connection.recv(1 << 12)
        except OSError:
            chunk = b""
        numbers = [int(message["number"]) for message in lines.feed(chunk)]
        for number in numbers if chunk else [signal.SIGHUP]:
            # To the main thread: another's would not wake it from what it waits for.
            signal.pthread_kill(threading.main_thread().ident or 0, number)


def open_streams() -> None:
    """Make standard streams of this process's first three descriptors, as Python does."""
    like = sys.__stdout__
    coding = like.encoding if like is not None else "utf-8"
    errors = like.errors if like is not None else "strict"
    sys.stdin = open(0, encoding=coding, errors=errors, closefd=False)  # noqa: SIM115
    sys.stdout = open(1, "w", encoding=coding, errors=errors, closefd=False)  # noqa: SIM115
    sys.stderr = open(  # noqa: SIM115
        2, "w", buffering=1, encoding=coding, errors="backslashreplace", closefd=False
    )
    if os.environ.get("PYTHONUNBUFFERED"):
        sys.stdout.reconfigure(write_through=True)


def prefect_part(environment: Mapping[str, str]) -> dict[str, str]:
    """Prefect's settings in an environment."""
    return {name: value for name, value in environment.items() if name.startswith("PREFECT_")}


def become(run_dir: Path, cwd: str, circumstances: Circumstances) -> None:
    """Give the process the run's log as its output, the client's folder and circumstances."""
    circumstances.apply()
    logs = run_dir / "logs"
    logs.mkdir(parents=True, exist_ok=True)
    log = os.open(logs / "flow.log", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o666)
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.dup2(log, 1)
    os.dup2(log, 2)
    os.close(nothing)
    os.close(log)
    os.chdir(cwd)


def refresh(argv_name: str) -> None:
    """Renew what Python read once at its start, and what a fork would share."""
    time.tzset()
    tempfile.tempdir = None
    sys.argv = [argv_name]
    random.seed()
    if "numpy" in sys.modules:
        sys.modules["numpy"].random.seed()
    with contextlib.suppress(OSError):
        Path("/proc/self/comm").write_text(argv_name[:15])


def refresh_prefect(settings_differ: bool, heartbeats: bool = False) -> None:
    """Renew the settings that Prefect read once at its start."""
    import prefect.context

    if settings_differ:
        prefect.context.refresh_global_settings_context()
        without_heartbeats.cache_clear()
    if not heartbeats:
        prefect.context.GLOBAL_SETTINGS_CONTEXT = without_heartbeats()


def log_plainly() -> None:
    """Write the lines of Prefect's log as they are.

    They go to a file; Rich, which colours them for a terminal, takes a millisecond for each.
    """
    from prefect.logging.handlers import PrefectConsoleHandler

    logger = logging.getLogger()
    for handler in logger.handlers[:]:
        if isinstance(handler, PrefectConsoleHandler):
            plain = logging.StreamHandler(sys.stderr)
            plain.setLevel(handler.level)
            plain.setFormatter(handler.formatter)
            logger.removeHandler(handler)
            logger.addHandler(plain)


@functools.cache
def without_heartbeats() -> SettingsContext:
    """Prefect's settings, but for the heartbeats of flows.

    A flow's end waits 0.7 s on average for its heartbeat thread, which sleeps a second at a time.
    Heartbeats tell a server that a flow has died: here the engine sees it at once. The environment
    can't say "none".
    """
    import prefect.context
    from prefect.settings import PREFECT_FLOWS_HEARTBEAT_FREQUENCY

    root = prefect.context.GLOBAL_SETTINGS_CONTEXT
    silent = root.settings.copy_with_update({PREFECT_FLOWS_HEARTBEAT_FREQUENCY: None})
    return prefect.context.SettingsContext(profile=root.profile, settings=silent)


if __name__ == "__main__":
    sys.exit(main())

"""The way in: make sure that server and engine are up, hand a run over, follow it.

Nothing here imports Prefect: a terminal that hands a run over answers in milliseconds.
"""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import socket
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchwright.errors import BenchwrightError, Where
from benchwright.record.run import Status
from benchwright.record.store import RunFolder
from deployments.local import engine, launch, protocol, server
from deployments.local.environment import Circumstances, EngineIdentity
from deployments.local.state import (
    IDLE_S,
    POLL_S,
    LocalHome,
    locked,
    read_engine,
    read_server,
    runs_in_progress,
    touch_use,
)

TAIL_S = 0.05
"""How often a run's events are read while it is followed (seconds)."""

LAST_TAIL_S = 0.005
"""The same once nothing is measured any more, and somebody waits for the answer (seconds)."""

LAST_EVENTS = ("judging",)
"""Kinds of events that say that a run has measured all that it will."""

LAST_STEPS_S = 10.0
"""How long `down` waits for a run whose record is whole to tell Prefect (seconds)."""

EVENTS_FILE = "events.jsonl"
"""Where a run says what it does, one JSON object a line, in the run's folder."""

OnEvent = Callable[[dict[str, Any]], None]


def quiet(text: str) -> None:
    """Progress that nobody wants to see."""


@dataclass(frozen=True, slots=True)
class LocalEngine:
    """A local engine that is up, and the server that its runs use.

    Attributes:
        home: Where both belong.
        key: Names the engine.
        api_url: The server's address, for `PREFECT_API_URL`.
    """

    home: LocalHome
    key: str
    api_url: str

    @property
    def address(self) -> Path:
        """Where it listens."""
        return self.home.engine_file(self.key, "sock")

    @property
    def ui_url(self) -> str:
        """Where the server's pages are."""
        return self.api_url.removesuffix("/api")


@dataclass(frozen=True, slots=True)
class Ended:
    """How a run's process ended.

    Attributes:
        code: Its exit code, negative for the signal that ended it; None where it isn't known.
        lost: The engine went away before the run's end. The run itself goes on: its folder says
            what becomes of it.
        told: Its record is whole, and its process is on its last steps.
    """

    code: int | None
    lost: bool = False
    told: bool = False


@dataclass(slots=True)
class Submission:
    """A run that was handed over.

    Attributes:
        run_dir: Its folder.
        pid: Its process.
    """

    run_dir: Path
    pid: int
    _connection: socket.socket
    _lines: protocol.Lines = field(default_factory=protocol.Lines)
    _offset: int = 0
    _old: int = 0
    _ended: Ended | None = None

    def follow(self, on_event: OnEvent | None = None, last: str = "") -> Ended:
        """Wait for the run's end, and hand on each event that it writes meanwhile.

        May be called again after an exception (Ctrl-C, say) came out of it: it goes on where it
        was. Events are handed on in order, each once; a line that isn't complete waits for its
        rest.

        Args:
            on_event: Called with each object of `events.jsonl`.
            last: Kind of the event after which nothing more is waited for; one that was there
                before the run was handed over, as of a run that is resumed, doesn't count.
        """
        told, tail_s = False, TAIL_S

        def look(event: dict[str, Any]) -> None:
            nonlocal told, tail_s
            tail_s = LAST_TAIL_S if event.get("kind") in LAST_EVENTS else TAIL_S
            told = told or (event.get("kind") == last and self._offset > self._old)
            if on_event is not None:
                on_event(event)

        with selectors.DefaultSelector() as selector:
            selector.register(self._connection, selectors.EVENT_READ)
            while self._ended is None:
                selector.select(tail_s)
                self._hand_on(look)
                if told:
                    return Ended(code=None, told=True)
                self._receive()
        self._hand_on(look)
        return self._ended

    @property
    def position(self) -> int:
        """Bytes of the run's events that were handed on."""
        return self._offset

    def cancel(self) -> None:
        """Ask the run to end; it gets INT, and TERM and KILL if that doesn't help.

        A second call sends the next signal at once.
        """
        with contextlib.suppress(OSError):
            self._connection.setblocking(True)
            self._connection.sendall(protocol.encode({"v": protocol.VERSION, "do": "cancel"}))

    def detach(self) -> None:
        """Let go of it; the run goes on."""
        self._connection.close()

    close = detach

    def _receive(self) -> None:
        self._connection.setblocking(False)
        try:
            chunk = self._connection.recv(1 << 16)
        except BlockingIOError:
            return
        except OSError:
            chunk = b""
        for message in self._lines.feed(chunk):
            if message.get("event") == "exited":
                self._ended = Ended(code=message["code"])
        if not chunk and self._ended is None:
            self._ended = Ended(code=None, lost=True)

    def _hand_on(self, on_event: OnEvent) -> None:
        try:
            with (self.run_dir / EVENTS_FILE).open("rb") as file:
                file.seek(self._offset)
                chunk = file.read()
        except FileNotFoundError:
            return
        for line in chunk[: chunk.rfind(b"\n") + 1].splitlines(keepends=True):
            self._offset += len(line)
            with contextlib.suppress(ValueError):
                on_event(json.loads(line))


def ensure_local(
    home: Path,
    on_progress: launch.Progress = quiet,
    *,
    idle_s: float = IDLE_S,
    entry: str = protocol.DEFAULT_ENTRY,
) -> LocalEngine:
    """The local server and engine of this home, started where they aren't up.

    One that is dead, doesn't answer or is out of date is replaced: an old engine finishes its
    runs beside the new one. Two callers at once start one of each.

    Args:
        home: `$BENCHMARK_HOME`.
        on_progress: Called with a short text at each step of a start; never when both are up.
        idle_s: They end by themselves after this long without a run (seconds).
        entry: What the engine calls for a run (`module:function`, from its folder to an exit
            code); it is imported once, at the engine's start.

    Raises:
        BenchwrightError: The home can't be used, or one of them doesn't start.
    """
    place = LocalHome(home.absolute())
    place.prepare()
    identity = EngineIdentity.now(os.environ, extra=entry)
    with locked(place.start_lock, shared=True):
        found = find(place, identity)
    if found is not None:
        return found
    on_progress("waiting for the local Prefect server and engine")
    with locked(place.start_lock):
        found = find(place, identity)
        if found is None:
            found = bring_up(place, identity, on_progress, idle_s, entry)
    return found


def ensure_server(
    home: Path, on_progress: launch.Progress = quiet, *, idle_s: float = IDLE_S
) -> str:
    """The local server alone, started where it isn't up; returns the value for `PREFECT_API_URL`.

    For who runs flows in a process of their own. See `ensure_local` for arguments and errors.
    """
    place = LocalHome(home.absolute())
    place.prepare()
    with locked(place.start_lock):
        place.runs_lock.touch(mode=0o600)
        touch_use(place)
        api_url, starting = bring_up_server(place, on_progress, idle_s)
        launch.wait_ready(starting, on_progress)
    return api_url


def bring_up_server(
    home: LocalHome, on_progress: launch.Progress, idle_s: float
) -> tuple[str, list[launch.Starting]]:
    """The server's address, and what to wait for where it had to be started."""
    record = server.find(home)
    if record is not None:
        return record.api_url, []
    if server.stop(home):
        on_progress("replacing a Prefect server that is out of date or does not answer")
    begun, port = server.start(home, idle_s)
    return f"http://{server.HOST}:{port}/api", [begun]


def find(home: LocalHome, identity: EngineIdentity) -> LocalEngine | None:
    """Server and engine where both are up to date and answer; notes that they are wanted."""
    if read_engine(home, identity.key) is None:
        return None
    record = server.find(home)
    if record is None:
        return None
    with contextlib.suppress(OSError, Refusal):
        ask(home, identity.key, {"do": "ping"})
        home.runs_lock.touch(mode=0o600)
        touch_use(home)
        return LocalEngine(home, identity.key, record.api_url)
    return None


def bring_up(
    home: LocalHome,
    identity: EngineIdentity,
    on_progress: launch.Progress,
    idle_s: float,
    entry: str,
) -> LocalEngine:
    """Start what is missing, both at once; the caller holds the start lock alone."""
    home.runs_lock.touch(mode=0o600)
    touch_use(home)
    api_url, starting = bring_up_server(home, on_progress, idle_s)
    retire_outdated(home, identity)
    if not answers(home, identity.key):
        engine.stop(home, identity.key)
        starting.append(engine.start(home, identity, api_url, idle_s, entry))
    launch.wait_ready(starting, on_progress)
    return LocalEngine(home, identity.key, api_url)


def retire_outdated(home: LocalHome, identity: EngineIdentity) -> None:
    """Tell engines of other code to end after their last run, and sweep up after dead ones.

    An engine of the same code for another environment stays: two terminals take turns.
    """
    for key in home.engine_keys():
        record = read_engine(home, key)
        if record is None:
            if key != identity.key:
                for suffix in ("sock", "json", "lock", "log"):
                    home.engine_file(key, suffix).unlink(missing_ok=True)
        elif record.code != identity.code:
            with contextlib.suppress(OSError, Refusal):
                ask(home, key, {"do": "retire"})


def submit(
    local: LocalEngine,
    run_dir: Path,
    *,
    cwd: Path | None = None,
    env: Mapping[str, str] | None = None,
    entry: str = protocol.DEFAULT_ENTRY,
    argv_name: str = "benchwright",
) -> Submission:
    """Hand a run over to the engine; returns once its process exists.

    Args:
        local: From `ensure_local`.
        run_dir: The run's folder, which exists.
        cwd: The folder it runs in; this process's by default.
        env: Its environment; this process's by default. What speaks of another Prefect server is
            replaced, the rest reaches it as it is. It goes over the socket, never to disk.
        entry: What is called with the folder (`module:function`).
        argv_name: Name of the process.

    Raises:
        BenchwrightError: The engine refused it, or went away.
    """
    connection = connect(local.home, local.key)
    request = {
        "v": protocol.VERSION,
        "do": "run",
        "run_dir": str(run_dir.absolute()),
        "cwd": str(cwd.absolute() if cwd is not None else Path.cwd()),
        "env": dict(os.environ if env is None else env),
        "circumstances": Circumstances.now().as_message(),
        "api_url": local.api_url,
        "entry": entry,
        "argv_name": argv_name,
    }
    submission = Submission(run_dir.absolute(), 0, connection)
    with contextlib.suppress(FileNotFoundError):
        submission._old = (submission.run_dir / EVENTS_FILE).stat().st_size
    try:
        connection.sendall(protocol.encode(request))
        submission.pid = receive(connection, submission)["pid"]
    except BaseException as error:
        connection.close()
        if isinstance(error, OSError | Refusal):
            raise BenchwrightError(
                f"the local engine did not take the run: {error}",
                where=Where(file=local.home.engine_file(local.key, "log")),
                hint="try again; an engine that has gone is replaced",
            ) from error
        raise
    return submission


def attach(home: Path, run_id: str) -> Submission | None:
    """A run that is in progress, to be followed or cancelled; None where no engine has it.

    None for a run whose engine was killed, too: it goes on, and its folder says how far it is.
    """
    place = LocalHome(home.absolute())
    for key in place.engine_keys():
        if read_engine(place, key) is None:
            continue
        with contextlib.suppress(OSError, Refusal):
            for run in ask(place, key, {"do": "status"})["runs"]:
                if run["run_id"] != run_id:
                    continue
                connection = connect(place, key)
                submission = Submission(Path(run["run_dir"]), run["pid"], connection)
                connection.sendall(
                    protocol.encode({"v": protocol.VERSION, "do": "watch", "run_id": run_id})
                )
                receive(connection, submission)
                return submission
    return None


def up(home: Path, on_progress: launch.Progress = quiet, **options: Any) -> LocalEngine:
    """Start server and engine, and keep them without a run until `down`."""
    local = ensure_local(home, on_progress, **options)
    local.home.keep.touch()
    return local


class RunsInProgress(BenchwrightError):
    """Runs are in progress that the request would end."""


def down(home: Path, on_progress: launch.Progress = quiet, *, cancel_runs: bool = False) -> int:
    """End the local server and all engines of this home.

    Args:
        home: `$BENCHMARK_HOME`.
        on_progress: Called with a short text at each step.
        cancel_runs: End runs that are in progress, too; they are recorded as interrupted.

    Returns:
        How many processes were ended.

    Raises:
        RunsInProgress: There are runs, and `cancel_runs` isn't set; nothing was ended.
        BenchwrightError: A process doesn't end.
    """
    place = LocalHome(home.absolute())
    if not place.engine.is_dir():
        return 0
    with locked(place.start_lock):
        if not cancel_runs:
            wait_for_last_steps(place)
        if runs_in_progress(place) and not cancel_runs:
            names = ", ".join(run["run_id"] for run in runs(place)) or "whose engine was killed"
            raise RunsInProgress(
                f"runs are in progress: {names}",
                where=Where(file=place.root),
                hint="wait for them, cancel them, or say that they are to be cancelled",
            )
        place.keep.unlink(missing_ok=True)
        ended = 0
        for key in place.engine_keys():
            record = read_engine(place, key)
            if record is not None:
                on_progress("ending the engine")
                with contextlib.suppress(OSError, Refusal):
                    shut_down(place, key)
                engine.stop(place, key)
                ended += 1
            for suffix in ("sock", "json", "lock"):
                place.engine_file(key, suffix).unlink(missing_ok=True)
        if read_server(place) is not None:
            on_progress("ending the Prefect server")
        ended += server.stop(place)
    return ended


def wait_for_last_steps(home: LocalHome) -> None:
    """Wait for the processes of runs whose record is whole: they tell Prefect, and end."""
    end = time.monotonic() + LAST_STEPS_S
    while time.monotonic() < end:
        for run in runs(home):
            folder = RunFolder(home.root, run["run_id"])
            with contextlib.suppress(BenchwrightError):
                if folder.status is not Status.IN_PROGRESS:
                    break
        else:
            return
        time.sleep(POLL_S)


def shut_down(home: LocalHome, key: str) -> None:
    """Ask an engine to end its runs and itself, and wait until it is gone."""
    with contextlib.closing(connect(home, key)) as connection:
        connection.sendall(protocol.encode({"v": protocol.VERSION, "do": "shutdown"}))
        # A run may take its grace after each of three signals.
        connection.settimeout(3 * engine.CANCEL_GRACE_S + 5)
        while connection.recv(1 << 16):
            pass


def runs(home: LocalHome) -> list[dict[str, Any]]:
    """The runs in progress of all engines that answer: run_id, pid, run_dir, since."""
    found: list[dict[str, Any]] = []
    for key in home.engine_keys():
        if read_engine(home, key) is not None:
            with contextlib.suppress(OSError, Refusal):
                found += ask(home, key, {"do": "status"})["runs"]
    return found


def describe(home: Path) -> dict[str, Any]:
    """What is up under this home, as JSON values: server, engines, runs, keep."""
    place = LocalHome(home.absolute())
    record = read_server(place)
    server_now: dict[str, Any] | None = None
    if record is not None:
        server_now = {
            "url": record.api_url.removesuffix("/api"),
            "api_url": record.api_url,
            "pid": record.pid,
            "prefect": record.version,
            "healthy": server.is_healthy(record.port),
        }
    identity = EngineIdentity.now(os.environ, extra=protocol.DEFAULT_ENTRY)
    engines = []
    for key in place.engine_keys():
        engine_record = read_engine(place, key)
        if engine_record is not None:
            engines.append(
                {
                    "pid": engine_record.pid,
                    "key": key,
                    "current": engine_record.code == identity.code,
                }
            )
    return {
        "home": str(place.root),
        "server": server_now,
        "engines": engines,
        "runs": runs(place),
        "keep": place.keep.exists(),
    }


class Refusal(Exception):
    """An engine refused a request."""


def answers(home: LocalHome, key: str) -> bool:
    """Whether an engine with this key lives and answers."""
    if read_engine(home, key) is None:
        return False
    with contextlib.suppress(OSError, Refusal):
        ask(home, key, {"do": "ping"})
        return True
    return False


def connect(home: LocalHome, key: str) -> socket.socket:
    """A connection to an engine of this user.

    Raises:
        OSError: None listens, or it isn't this user's.
    """
    return protocol.connect(home.engine_file(key, "sock"))


def ask(home: LocalHome, key: str, request: Mapping[str, object]) -> dict[str, Any]:
    """One request and its answer."""
    with contextlib.closing(connect(home, key)) as connection:
        connection.sendall(protocol.encode({"v": protocol.VERSION, **request}))
        return receive(connection, None)


def receive(connection: socket.socket, submission: Submission | None) -> dict[str, Any]:
    """The next answer.

    Raises:
        Refusal: It says that the request can't be met.
        OSError: The engine went away, or doesn't answer.
    """
    lines = submission._lines if submission is not None else protocol.Lines()
    while True:
        chunk = connection.recv(1 << 16)
        if not chunk:
            raise ConnectionResetError("the engine went away")
        messages = list(lines.feed(chunk))
        if not messages:
            continue
        first, *rest = messages
        if first.get("event") == "refused":
            raise Refusal(first.get("what", ""))
        for message in rest:
            if submission is not None and message.get("event") == "exited":
                submission._ended = Ended(code=message["code"])
        return first

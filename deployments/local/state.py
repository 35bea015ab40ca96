"""What the local server and the local engine keep under the home folder.

```
prefect/   prefect.db, server.json, server.lock, server.log, and Prefect's own storage
engine/    start.lock, runs.lock, keep, and for each engine KEY.{sock,json,lock,log}
```

Whether a process lives is decided by its lock alone: `flock` is held for the life of the process
and freed by the kernel however it ends. The JSON beside it says who and where, and is believed
only while the lock is held.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import signal
import stat
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from benchwright.errors import BenchwrightError, Where

IDLE_S = 3600.0
"""Server and engine end by themselves after this long without a run (seconds)."""

POLL_S = 0.01
"""How often a lock is tried while a process ends (seconds); the kernel offers no wait with a
time limit for `flock`."""


@dataclass(frozen=True, slots=True)
class LocalHome:
    """The places under one `$BENCHMARK_HOME`."""

    root: Path

    @property
    def prefect(self) -> Path:
        """Folder of the server: Prefect's own home."""
        return self.root / "prefect"

    @property
    def engine(self) -> Path:
        """Folder of the engines, their sockets and locks; of its owner only."""
        return self.root / "engine"

    @property
    def database(self) -> Path:
        """The server's database (SQLite)."""
        return self.prefect / "prefect.db"

    @property
    def server_record(self) -> Path:
        """Who the server is and where it listens."""
        return self.prefect / "server.json"

    @property
    def server_lock(self) -> Path:
        """Held by the server for as long as it lives."""
        return self.prefect / "server.lock"

    @property
    def server_log(self) -> Path:
        """What the server writes."""
        return self.prefect / "server.log"

    @property
    def start_lock(self) -> Path:
        """Held alone by who starts or ends a process, shared by who hands a run over."""
        return self.engine / "start.lock"

    @property
    def runs_lock(self) -> Path:
        """Held, shared, by each run for as long as its process lives."""
        return self.engine / "runs.lock"

    @property
    def keep(self) -> Path:
        """Exists where server and engine are to stay without a run."""
        return self.engine / "keep"

    def engine_file(self, key: str, suffix: str) -> Path:
        """A file of the engine with this key: `sock`, `json`, `lock` or `log`."""
        return self.engine / f"{key}.{suffix}"

    def engine_keys(self) -> list[str]:
        """Keys of all engines that left a lock file here, dead ones too."""
        return sorted(path.stem for path in self.engine.glob("*.json"))

    def prepare(self) -> None:
        """Make the folders, and refuse an engine folder that isn't this user's own.

        Raises:
            BenchwrightError: The home can't be written, or someone else owns the engine folder.
        """
        try:
            self.prefect.mkdir(parents=True, exist_ok=True)
            self.engine.mkdir(mode=0o700, exist_ok=True)
            found = self.engine.lstat()
            if found.st_uid == os.geteuid() and stat.S_ISDIR(found.st_mode):
                self.engine.chmod(0o700)
                return
        except OSError as error:
            raise BenchwrightError(
                f"the home folder can't be used: {error.strerror}",
                where=Where(file=error.filename or self.root),
                expected="a folder that you may write to",
                hint="name another one with --home DIR or BENCHMARK_HOME",
            ) from error
        raise BenchwrightError(
            "the folder of the local engine belongs to another user",
            where=Where(file=self.engine),
            expected=f"a folder of user id {os.geteuid()}",
            hint="name another home with --home DIR or BENCHMARK_HOME",
        )


@dataclass(frozen=True, slots=True)
class ServerRecord:
    """The server that was started last.

    Attributes:
        pid: Its process id.
        born: Start time of that process, in clock ticks since the machine started.
        port: Where it listens on 127.0.0.1.
        version: Version of Prefect that it runs.
        host: Name of the machine; a home on a network disk may be seen by several.
    """

    pid: int
    born: int
    port: int
    version: str
    host: str

    @property
    def api_url(self) -> str:
        """Value for `PREFECT_API_URL`."""
        return f"http://127.0.0.1:{self.port}/api"


@dataclass(frozen=True, slots=True)
class EngineRecord:
    """One engine.

    Attributes:
        pid: Its process id.
        born: Start time of that process, in clock ticks since the machine started.
        key: Digest of its code and its environment; names its files.
        code: Digest of its code alone.
    """

    pid: int
    born: int
    key: str
    code: str


def birth(pid: int) -> int:
    """Start time of a process in clock ticks since boot, 0 where there is none (proc(5), field 22).

    With the process id it names one process for good: ids are used again, times are not.
    """
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return 0
    return int(text.rpartition(")")[2].split()[19])


def write_record(path: Path, record: ServerRecord | EngineRecord) -> None:
    """Write a record beside its place and rename it there, so that no reader sees half of one."""
    beside = path.with_name(f".{path.name}.{os.getpid()}")
    beside.write_text(json.dumps(asdict(record)) + "\n")
    beside.replace(path)


def read_record(path: Path) -> dict[str, Any] | None:
    """The content of a record, None where it is missing or from another version."""
    try:
        content = json.loads(path.read_text())
    except (OSError, ValueError):
        return None
    return content if isinstance(content, dict) else None


def read_server(home: LocalHome) -> ServerRecord | None:
    """The server that lives, None where there is none."""
    content = read_record(home.server_record)
    if content is None or not is_held(home.server_lock):
        return None
    with contextlib.suppress(TypeError):
        return ServerRecord(**content)
    return None


def read_engine(home: LocalHome, key: str) -> EngineRecord | None:
    """The engine with this key, None where it doesn't live."""
    content = read_record(home.engine_file(key, "json"))
    if content is None or not is_held(home.engine_file(key, "lock")):
        return None
    with contextlib.suppress(TypeError):
        return EngineRecord(**content)
    return None


def open_lock(path: Path) -> int:
    """A file descriptor on a lock file, closed on exec."""
    return os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)


def take(fd: int, *, shared: bool = False) -> bool:
    """Take a lock without waiting; False where another holds it."""
    try:
        fcntl.flock(fd, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def is_held(path: Path) -> bool:
    """Whether a living process holds this lock."""
    try:
        fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    except FileNotFoundError:
        return False
    try:
        return not take(fd, shared=True)
    finally:
        os.close(fd)


def is_named(fd: int, path: Path) -> bool:
    """Whether an open file is still the one with this name: not so once its folder was removed."""
    try:
        named = path.stat()
    except OSError:
        return False
    opened = os.fstat(fd)
    return (named.st_dev, named.st_ino) == (opened.st_dev, opened.st_ino)


@contextlib.contextmanager
def locked(path: Path, *, shared: bool = False) -> Iterator[int]:
    """Hold a lock, waiting for it as long as it takes; yields its file descriptor."""
    fd = open_lock(path)
    try:
        fcntl.flock(fd, fcntl.LOCK_SH if shared else fcntl.LOCK_EX)
        yield fd
    finally:
        os.close(fd)


def touch_use(home: LocalHome) -> None:
    """Note that a run begins or ends now: idle time counts from here."""
    with contextlib.suppress(OSError):
        os.utime(home.runs_lock)


def runs_in_progress(home: LocalHome) -> bool:
    """Whether a run's process lives, whichever engine started it and whether that still lives."""
    if not home.runs_lock.exists():
        return False
    fd = open_lock(home.runs_lock)
    try:
        return not take(fd)
    finally:
        os.close(fd)


@contextlib.contextmanager
def idle_for(home: LocalHome, seconds: float) -> Iterator[bool]:
    """Whether nothing has used this home for so long; while the block lasts nothing can begin to.

    Yields:
        True where no run lives, none is being handed over, `keep` is not set and the last run
        ended at least `seconds` ago. The caller ends its process inside the block: who wants to
        hand a run over waits on the lock, and then finds it gone.
    """
    with contextlib.ExitStack() as held:
        start = open_lock(home.start_lock)
        held.callback(os.close, start)
        runs = open_lock(home.runs_lock)
        held.callback(os.close, runs)
        unused = time.time() - os.fstat(runs).st_mtime >= seconds
        yield unused and not home.keep.exists() and take(start) and take(runs)


def end_process(pid: int, born: int, lock: Path, grace_s: float) -> None:
    """End a process and wait until its lock is free: TERM, and KILL after the grace period."""
    for number, wait_s in ((signal.SIGTERM, grace_s), (signal.SIGKILL, 5.0)):
        if not is_held(lock):
            return
        if birth(pid) == born:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)
                # One that was stopped (Ctrl-Z, a debugger) wouldn't notice.
                os.kill(pid, signal.SIGCONT)
        deadline = time.monotonic() + wait_s
        while is_held(lock) and time.monotonic() < deadline:
            time.sleep(POLL_S)
    if is_held(lock):
        raise BenchwrightError(
            f"process {pid} doesn't end",
            where=Where(file=lock),
            expected="the lock to be freed after SIGKILL",
            hint=f"look at what holds it: fuser -v {lock}",
        )

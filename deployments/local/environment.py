"""What a server, an engine and a run inherit, and when a running engine is out of date."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import importlib.util
import json
import os
import resource
import site
import sys
import sysconfig
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

from deployments.local.state import LocalHome

ROOMS = ("benchwright", "domains", "blocks", "tasks", "flows", "deployments", "cli")
"""The application's packages; a change in one of them makes a running engine out of date."""

FOREIGN = (
    "PREFECT_API_URL",
    "PREFECT_API_KEY",
    "PREFECT_API_AUTH_STRING",
    "PREFECT_CLIENT_CUSTOM_HEADERS",
    "PREFECT_HOME",
    "PREFECT_PROFILE",
    "PREFECT_PROFILES_PATH",
)
"""Settings that speak of another server or another home than the local one."""

LOOPBACK = ("127.0.0.1", "localhost")


@functools.cache
def prefect_version() -> str:
    """Version of the installed Prefect, without importing it."""
    from importlib.metadata import version  # costs as much as all else here

    return version("prefect")


def server_environment(home: LocalHome, inherited: Mapping[str, str]) -> dict[str, str]:
    """The environment of the local server.

    None of the user's own Prefect settings reaches it: a database address or a feature switch
    meant for another server would act on this one.
    """
    environment = {
        name: value
        for name, value in inherited.items()
        if not name.startswith("PREFECT_") and name != "PYTHONPATH"
    }
    environment |= {
        "PREFECT_HOME": str(home.prefect),
        "PREFECT_API_DATABASE_CONNECTION_URL": f"sqlite+aiosqlite:///{home.database}",
        # Telemetry: Prefect's own, and the flag that other libraries honour.
        "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
        "DO_NOT_TRACK": "1",
        "PREFECT_SERVER_UI_SHOW_PROMOTIONAL_CONTENT": "false",
        # Its pages ask for data where they came from; by default they ask port 4200 of loopback.
        "PREFECT_SERVER_UI_API_URL": "/api",
        # In memory, a slot would stay taken for ever once the server was restarted.
        "PREFECT_SERVER_CONCURRENCY_LEASE_STORAGE": (
            "prefect.server.concurrency.lease_storage.filesystem"
        ),
        "PREFECT_SERVER_LOGGING_LEVEL": "WARNING",
        # In the log file a locked database is worth a line: it costs a run seconds.
        "PREFECT_SERVER_LOG_RETRYABLE_ERRORS": "true",
        "PREFECT_LOGGING_COLORS": "false",
    }
    environment |= python_path(inherited)
    return environment


def engine_environment(
    home: LocalHome, api_url: str, inherited: Mapping[str, str]
) -> dict[str, str]:
    """The environment of the local engine: the user's, with the local server's address."""
    return dict(inherited) | prefect_overlay(home, api_url, inherited) | python_path(inherited)


def run_environment(home: LocalHome, api_url: str, client: Mapping[str, str]) -> dict[str, str]:
    """The environment of one run: the client's own, and the local server in place of another."""
    kept = {name: value for name, value in client.items() if name not in FOREIGN}
    return kept | prefect_overlay(home, api_url, client)


def prefect_overlay(home: LocalHome, api_url: str, inherited: Mapping[str, str]) -> dict[str, str]:
    """What a flow needs in its environment to reach the local server and nothing else."""
    overlay = {
        "PREFECT_HOME": str(home.prefect),
        "PREFECT_API_URL": api_url,
        "DO_NOT_TRACK": "1",
        # Both sides are this installation: asking for the version is a round trip for nothing.
        "PREFECT_CLIENT_SERVER_VERSION_CHECK_ENABLED": "false",
        "PREFECT_TELEMETRY_ENABLE_RESOURCE_METRICS": "false",
    }
    if any(name.lower().endswith("_proxy") for name in inherited):
        # A proxy for the outside world can't reach this machine's loopback.
        excluded = inherited.get("no_proxy") or inherited.get("NO_PROXY") or ""
        hosts = [name for name in excluded.split(",") if name]
        excluded = ",".join([*hosts, *(name for name in LOOPBACK if name not in hosts)])
        overlay |= {"NO_PROXY": excluded, "no_proxy": excluded}
    return overlay


def python_path(inherited: Mapping[str, str]) -> dict[str, str]:
    """`PYTHONPATH` with absolute entries: the engine's folder isn't the client's."""
    entries = inherited.get("PYTHONPATH", "")
    if not entries:
        return {}
    return {
        "PYTHONPATH": os.pathsep.join(str(Path(entry).resolve()) for entry in entries.split(":"))
    }


@dataclass(frozen=True, slots=True)
class EngineIdentity:
    """What an engine was started from; another digest means another engine.

    Attributes:
        code: Digest of the application's source files and the installed packages.
        key: Digest of the code, the interpreter, and the part of the environment that is read
            once when Python and Prefect start, and can't be replaced in a forked child.
    """

    code: str
    key: str

    @classmethod
    def now(cls, environment: Mapping[str, str], extra: str = "") -> EngineIdentity:
        """The identity that an engine started now, from this environment, would have."""
        code = code_digest()
        parts = {
            "code": code,
            "python": [sys.executable, sys.version, sys.prefix],
            "environment": {
                name: value
                for name, value in sorted(environment.items())
                if name.startswith(("PYTHON", "LC_"))
                or name in {"LANG", "LD_LIBRARY_PATH", "LD_PRELOAD"}
                or name.startswith("PREFECT_LOGGING")
            },
            # An engine can't give a child back a priority that it doesn't have itself.
            "nice": os.nice(0),
            "extra": extra,
        }
        text = json.dumps(parts, sort_keys=True)
        return cls(code=code, key=hashlib.sha256(text.encode()).hexdigest()[:12])


def code_digest() -> str:
    """Digest of names, sizes and times of the application's files and of what is installed.

    Not of their content: 200 files are looked at in 2 ms, and read in 20.
    """
    digest = hashlib.sha256()
    for room in ROOMS:
        found = importlib.util.find_spec(room)
        for folder in sorted((found.submodule_search_locations or []) if found else []):
            for path, size, modified in sorted(source_files(folder)):
                digest.update(f"{path}\0{size}\0{modified}\n".encode())
    # A folder of packages gets a new time when one is installed, upgraded or removed.
    for folder in sorted({*site.getsitepackages(), sysconfig.get_path("purelib")}):
        with contextlib.suppress(OSError):
            digest.update(f"{folder}\0{Path(folder).stat().st_mtime_ns}\n".encode())
    return digest.hexdigest()[:16]


def source_files(folder: str) -> Iterator[tuple[str, int, int]]:
    """Path, size and time of each Python file under a folder."""
    with os.scandir(folder) as entries:
        for entry in entries:
            if entry.is_dir(follow_symlinks=False):
                if entry.name != "__pycache__":
                    yield from source_files(entry.path)
            elif entry.name.endswith(".py"):
                found = entry.stat()
                yield entry.path, found.st_size, found.st_mtime_ns


@dataclass(frozen=True, slots=True)
class Circumstances:
    """What a process inherits from its terminal beside folder and environment.

    A forked child has the engine's; a benchmark that was started under `taskset`, `ulimit` or
    `umask` is to run under the client's.

    Attributes:
        umask: The file mode mask.
        processors: The processors that it may run on.
        limits: Soft limits by name (`RLIMIT_NOFILE`), -1 for none.
    """

    umask: int
    processors: list[int]
    limits: dict[str, int]

    @classmethod
    def now(cls) -> Circumstances:
        """Those of this process."""
        umask = os.umask(0o077)
        os.umask(umask)
        names = [name for name in dir(resource) if name.startswith("RLIMIT_")]
        limits: dict[str, int] = {}
        for name in names:
            with contextlib.suppress(OSError, ValueError):
                limits[name] = resource.getrlimit(getattr(resource, name))[0]
        return cls(umask=umask, processors=sorted(os.sched_getaffinity(0)), limits=limits)

    def as_message(self) -> dict[str, object]:
        """For the way over the socket."""
        return asdict(self)

    def apply(self) -> None:
        """Make them those of this process, as far as the system allows it."""
        os.umask(self.umask)
        with contextlib.suppress(OSError):
            os.sched_setaffinity(0, self.processors)
        for name, soft in self.limits.items():
            number = getattr(resource, name, None)
            if number is None:
                continue
            hard = resource.getrlimit(number)[1]
            if hard != resource.RLIM_INFINITY and (soft == resource.RLIM_INFINITY or soft > hard):
                soft = hard
            with contextlib.suppress(OSError, ValueError):
                resource.setrlimit(number, (soft, hard))

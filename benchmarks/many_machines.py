"""One server on PostgreSQL and two workers: what it costs to queue 1, 10 and 100 runs.

Both workers stand for hosts: each has a name, a home, and a lock folder of its own. How long from
the first submission to the last end, how long a run waits and takes, what server and database use.

    python benchmarks/many_machines.py --sizes 1 10 100
"""

from __future__ import annotations

import argparse
import json
import os
import pwd
import shutil
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
import uuid
from base64 import b64encode
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from benchmarks.crashes import ROOT, write_experiment
from benchmarks.results_file import write_results
from benchwright.execution import tree
from benchwright.execution.orphans import sweep_orphans
from benchwright.record.store import RunFolder, RunStore

HOSTS = ("alpha", "beta")
POOL = "benchwright"
FINAL = frozenset({"COMPLETED", "FAILED", "CANCELLED", "CRASHED"})
PATIENCE_S = 180.0
"""For one step of a start; generous, for busy machines."""
UNPRIVILEGED = ("postgres", "nobody")
"""PostgreSQL refuses to run as root: the first of these users that there is runs it then."""

REGISTER = """
import json, sys
from deployments.register import register
from blocks.named import DEFAULT_NAME
from blocks.store import ResultsStore
changes = register(env={})
ResultsStore(place=sys.argv[1]).save(DEFAULT_NAME, overwrite=True)
print(json.dumps([str(change) for change in changes]))
"""


def postgres_programs() -> Path | None:
    """The folder with initdb, pg_ctl and postgres; None where it isn't installed."""
    for folder in sorted(Path("/usr/lib/postgresql").glob("*/bin"), reverse=True):
        if (folder / "initdb").exists():
            return folder
    found = shutil.which("initdb")
    return Path(found).parent if found else None


def free_port() -> int:
    """A port of the loopback address that nobody has now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def wait_for(fact: Any, what: str, patience_s: float = PATIENCE_S) -> Any:
    """Wait until a fact is true and return it."""
    deadline = time.monotonic() + patience_s
    while not (value := fact()):
        if time.monotonic() > deadline:
            raise TimeoutError(f"not seen within {patience_s:g} s: {what}")
        time.sleep(0.1)
    return value


@dataclass(slots=True)
class Postgres:
    """A PostgreSQL of its own, on the loopback address, with a password.

    Attributes:
        folder: Of its data.
        programs: Where initdb and pg_ctl are.
    """

    folder: Path
    programs: Path
    port: int = field(default_factory=free_port)

    @property
    def url(self) -> str:
        """For the server; holds the password."""
        return f"postgresql+asyncpg://bench:s3cret@127.0.0.1:{self.port}/postgres"

    def create(self) -> None:
        """Make the database, and start it."""
        self.folder.mkdir()
        password = self.folder / "password"
        password.write_text("s3cret\n")
        user = self._user()
        if user is not None:
            for path in (self.folder, password):
                os.chown(path, user["user"], user["group"])
        self._call(
            "initdb",
            *("--pgdata", str(self.folder / "data"), "--username", "bench"),
            *("--auth", "scram-sha-256", "--pwfile", str(password), "--no-sync"),
        )
        self.start()

    def start(self) -> None:
        """Start it, and wait until it takes connections."""
        options = f"-p {self.port} -c listen_addresses=127.0.0.1 -c fsync=off"
        options += f" -c unix_socket_directories={self.folder}"
        self._ctl("start", "-w", "-l", str(self.folder / "log"), "-o", options)

    def stop(self) -> None:
        """Cut all its connections at once, as a crash would."""
        self._ctl("stop", "-m", "immediate", "-w")

    def _ctl(self, *words: str) -> None:
        self._call("pg_ctl", "-D", str(self.folder / "data"), *words)

    def _call(self, name: str, *words: str) -> None:
        # Its output goes to a file: pg_ctl's server would hold a pipe open.
        with (self.folder / "calls").open("ab") as log:
            done = subprocess.run(
                [str(self.programs / name), *words],
                cwd="/",
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env={"PATH": os.environ["PATH"], "LC_ALL": "C"},
                check=False,
                **(self._user() or {}),  # type: ignore[call-overload]
            )
        if done.returncode:
            raise RuntimeError(f"{name} failed: {(self.folder / 'calls').read_text()[-1000:]}")

    @staticmethod
    def _user() -> dict[str, int] | None:
        if os.geteuid() != 0:
            return None
        for name in UNPRIVILEGED:
            with suppress(KeyError):
                found = pwd.getpwnam(name)
                return {"user": found.pw_uid, "group": found.pw_gid}
        raise RuntimeError(f"root needs one of the users {', '.join(UNPRIVILEGED)} for PostgreSQL")


@dataclass(slots=True)
class Fleet:
    """A server on PostgreSQL and a worker for each host, all on this machine.

    Attributes:
        folder: Of all of it; others may enter it.
        postgres: The database.
        extra: Further variables of a host's worker, by host.
        limit: Runs that a worker has in hand at once.
    """

    folder: Path
    postgres: Postgres
    extra: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    limit: int = 2
    port: int = field(default_factory=free_port)
    client: str = field(default_factory=lambda: str(uuid.uuid4()))
    server: subprocess.Popen[bytes] | None = None
    workers: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)

    @property
    def api_url(self) -> str:
        """The server's address."""
        return f"http://127.0.0.1:{self.port}/api"

    @property
    def client_environ(self) -> dict[str, str]:
        """What the command line needs to speak to the server."""
        kept = {
            k: v
            for k, v in os.environ.items()
            if not k.startswith(("PREFECT_", "BENCHMARK_", "BENCHWRIGHT_"))
        }
        return kept | {
            "PYTHONPATH": str(ROOT),
            "PREFECT_HOME": str(self.folder / "client"),
            "PREFECT_API_URL": self.api_url,
            "PREFECT_API_AUTH_STRING": "lab:s3cret",
            "BENCHMARK_HOME": str(self.folder / "client-home"),
            "DO_NOT_TRACK": "1",
        }

    def home(self, host: str) -> Path:
        """Where a host records its runs."""
        return self.folder / f"home-{host}"

    def create(self) -> None:
        """Start all of it."""
        self.postgres.create()
        self.start_server()
        subprocess.run(
            [sys.executable, "-c", REGISTER, str(self.folder / "store")],
            env=self.client_environ,
            cwd=self.folder,
            stdout=subprocess.DEVNULL,
            check=True,
            timeout=PATIENCE_S,
        )
        for host in HOSTS:
            self.start_worker(host)
        wait_for(lambda: len(self.online()) == len(HOSTS), "both workers are online")

    def start_server(self) -> None:
        """Start the server, and wait until it answers."""
        secrets = self.folder / "server.env"
        secrets.write_text(
            f"PREFECT_API_DATABASE_CONNECTION_URL={self.postgres.url}\n"
            "PREFECT_SERVER_API_AUTH_STRING=lab:s3cret\n"
        )
        secrets.chmod(0o600)
        environ = {k: v for k, v in self.client_environ.items() if not k.startswith("PREFECT_")}
        environ["PREFECT_HOME"] = str(self.folder / "server")
        self.server = self._spawn(
            "server", ["server", "--port", str(self.port), "--env-file", str(secrets)], environ
        )
        wait_for(self._healthy, "the server answers")

    def start_worker(self, host: str) -> None:
        """Start a host's worker."""
        locks = self.folder / f"locks-{host}"
        locks.mkdir(exist_ok=True)
        environ = self.client_environ | {
            "PREFECT_HOME": str(self.folder / f"worker-{host}"),
            "BENCHMARK_HOME": str(self.home(host)),
            "BENCHWRIGHT_HOST": host,
            "BENCHWRIGHT_LOCK_DIR": str(locks),
            "PREFECT_WORKER_QUERY_SECONDS": "1",
            **self.extra.get(host, {}),
        }
        self.workers[host] = self._spawn(
            f"worker-{host}", ["worker", "--pool", POOL, "--limit", str(self.limit)], environ
        )

    def _spawn(
        self, name: str, words: Sequence[str], environ: Mapping[str, str]
    ) -> subprocess.Popen[bytes]:
        with (self.folder / f"{name}.log").open("ab") as log:
            return subprocess.Popen(
                [sys.executable, "-m", "cli.main", *words],
                env=dict(environ),
                cwd=self.folder,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def _healthy(self) -> bool:
        try:
            return self.ask("GET", "health") is True
        except OSError:
            return False

    def ask(self, method: str, path: str, body: Any = None) -> Any:
        """One request to the server. Raises OSError."""
        headers = {} if method == "GET" else self._token()
        return self._request(method, path, body, headers)

    def _token(self) -> dict[str, str]:
        """What the server's CSRF protection asks of whoever changes something."""
        said = self._request("GET", f"csrf-token?client={self.client}", None, {})
        return {"Prefect-Csrf-Token": said["token"], "Prefect-Csrf-Client": self.client}

    def _request(self, method: str, path: str, body: Any, headers: Mapping[str, str]) -> Any:
        request = urllib.request.Request(
            f"{self.api_url}/{path}",
            json.dumps(body).encode() if body is not None else None,
            {
                "Content-Type": "application/json",
                "Authorization": f"Basic {b64encode(b'lab:s3cret').decode()}",
                **headers,
            },
            method=method,
        )
        with urllib.request.urlopen(request, timeout=30) as answer:
            return json.loads(answer.read() or b"null")

    def online(self) -> list[str]:
        """Hosts whose worker says that it lives."""
        found = self.ask("POST", f"work_pools/{POOL}/workers/filter", {})
        return [worker["name"] for worker in found if worker["status"] == "ONLINE"]

    def submit(self, file: Path, *options: str) -> str:
        """`benchwright run FILE --deployment benchmark --detach`; the flow run's id."""
        code, said = self.call(
            "run", str(file), "--deployment", "benchmark", "--detach", "--json", *options
        )
        if code:
            raise RuntimeError(f"not submitted ({code}): {said}")
        return str(said["flow_run"])

    def queue(self, file: Path, queue: str = "default", tag: str = "queued") -> str:
        """Submit without the command line, in milliseconds; the flow run's id."""
        from benchwright.spec.source import read_yaml

        parameters = {
            "config": dict(read_yaml(file).data),
            "folder": str(file.parent),
            "because": "the same experiment again, to see how many fit",
            "max_cost_usd": 0.0,
        }
        deployment = self.ask("GET", "deployments/name/benchmark/benchmark")["id"]
        made = self.ask(
            "POST",
            f"deployments/{deployment}/create_flow_run",
            {"parameters": parameters, "tags": [tag], "work_queue_name": queue},
        )
        return str(made["id"])

    def call(self, *words: str) -> tuple[int, dict[str, Any]]:
        """The command line; its exit code and the object that it printed."""
        done = subprocess.run(
            [sys.executable, "-m", "cli.main", *words],
            env=self.client_environ,
            cwd=self.folder,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=PATIENCE_S,
            check=False,
        )
        try:
            return done.returncode, json.loads(done.stdout)
        except ValueError:
            raise AssertionError(f"{words}: {done.stdout[-2000:]}\n{done.stderr[-2000:]}") from None

    def flow_run(self, flow_run_id: str) -> dict[str, Any]:
        """A flow run as the server has it."""
        found: dict[str, Any] = self.ask("GET", f"flow_runs/{flow_run_id}")
        return found

    def ended(self, flow_run_id: str, patience_s: float = 300.0) -> dict[str, Any]:
        """A flow run, once it has ended; a server that is away meanwhile is waited for."""

        def over() -> dict[str, Any] | None:
            with suppress(OSError):
                found = self.flow_run(flow_run_id)
                if found["state_type"] in FINAL:
                    return found
            return None

        result: dict[str, Any] = wait_for(over, f"the end of {flow_run_id}", patience_s)
        return result

    def folder_of(self, flow_run_id: str, patience_s: float = PATIENCE_S) -> tuple[str, RunFolder]:
        """Host and record of a flow run, once it has one."""

        def found() -> tuple[str, RunFolder] | None:
            with suppress(OSError):
                name = self.flow_run(flow_run_id)["name"]
                for host in HOSTS:
                    if (self.home(host) / "runs" / name).is_dir():
                        return host, RunStore(self.home(host)).open(name)
            return None

        result: tuple[str, RunFolder] = wait_for(found, f"a record of {flow_run_id}", patience_s)
        return result

    def close(self) -> None:
        """End all of it: runs, workers, server, database."""
        for process in (*self.workers.values(), self.server):
            if process is not None:
                with suppress(ProcessLookupError):
                    process.send_signal(signal.SIGKILL)
                process.wait()
        for host in HOSTS:
            if self.home(host).is_dir():
                for folder in RunStore(self.home(host)).folders():
                    pid = folder.owner()
                    if pid is not None:
                        with suppress(ProcessLookupError):
                            os.kill(pid, signal.SIGKILL)
        self._end_strays()
        for host in HOSTS:
            sweep_orphans(self.home(host))
        with suppress(RuntimeError):
            self.postgres.stop()

    def _end_strays(self) -> None:
        """Flow runs that had no record yet: they carry this fleet's folder in their environment."""
        mark = f"={self.folder}/".encode()
        for pid in tree.all_processes():
            environ = tree.read_proc(f"/proc/{pid}/environ") or b""
            if pid != os.getpid() and mark in environ and b"PREFECT_API_URL" in environ:
                with suppress(ProcessLookupError, PermissionError):
                    os.kill(pid, signal.SIGKILL)


def make_fleet(folder: Path, **options: Any) -> Fleet:
    """A fleet that isn't started yet, below a folder that PostgreSQL's user may enter."""
    programs = postgres_programs()
    if programs is None:
        raise RuntimeError("PostgreSQL isn't installed: no initdb")
    folder.chmod(0o755)
    return Fleet(folder, Postgres(folder / "postgres", programs), **options)


# What is measured


@dataclass(frozen=True, slots=True)
class Interval:
    """When a measure stage ran, in seconds since the epoch."""

    start: float
    end: float


def measured(home: Path) -> list[Interval]:
    """Every launch of a measure stage that a home has recorded, in order."""
    found = []
    for folder in RunStore(home).folders():
        for sample in folder.samples():
            start = datetime.fromisoformat(sample.started).timestamp()
            found.append(Interval(start, start + sample.duration_s))
    return sorted(found, key=lambda one: one.start)


def overlaps(one: Sequence[Interval], other: Sequence[Interval]) -> int:
    """How many pairs of intervals of two rows overlap."""
    return sum(a.start < b.end and b.start < a.end for a in one for b in other)


def overlaps_within(row: Sequence[Interval]) -> int:
    """How many pairs of one row overlap."""
    return sum(a.start < b.end and b.start < a.end for n, a in enumerate(row) for b in row[:n])


def cpu_seconds(pids: Sequence[int]) -> float:
    """CPU seconds of processes and all their descendants, those that have ended among them."""
    total = 0.0
    for pid in {*pids, *tree.descendants(list(pids))}:
        stat = tree.read_proc(f"/proc/{pid}/stat")
        if stat is not None:
            fields = stat[stat.rindex(b")") + 2 :].split()
            # Own time, and that of children that were waited for (proc(5), fields 14 to 17).
            total += sum(map(int, fields[11:15])) / os.sysconf("SC_CLK_TCK")
    return total


def growth(fleet: Fleet, size: int, round_name: str) -> dict[str, Any]:
    """Queue so many runs at once, and wait for the last."""
    file = write_experiment(fleet.folder / "experiment", "growth", 0.02)
    assert fleet.server is not None
    database = int((fleet.postgres.folder / "data/postmaster.pid").read_text().split()[0])
    workers = [worker.pid for worker in fleet.workers.values()]
    used = [cpu_seconds([fleet.server.pid]), cpu_seconds([database]), cpu_seconds(workers)]
    load = [os.getloadavg()[0]]
    began = time.time()
    ids = [fleet.queue(file, tag=round_name) for _ in range(size)]
    submitted = time.time()
    runs = [fleet.ended(run_id, patience_s=60.0 * size + 300) for run_id in ids]
    over = time.time()
    load.append(os.getloadavg()[0])
    waits = [_moment(run["start_time"]) - _moment(run["created"]) for run in runs]
    spans = [run["total_run_time"] for run in runs]
    states = {run["state_name"] for run in runs}
    return {
        "runs": size,
        "states": sorted(states),
        "s_to_submit_each": (submitted - began) / size,
        "s_until_the_last_ended": over - began,
        "s_of_wall_clock_each": (over - began) / size,
        "s_until_a_run_starts_median": statistics.median(waits),
        "s_until_a_run_starts_worst": max(waits),
        "s_of_a_run_median": statistics.median(spans),
        "server_cpu_s_each": (cpu_seconds([fleet.server.pid]) - used[0]) / size,
        "database_cpu_s_each": (cpu_seconds([database]) - used[1]) / size,
        "workers_cpu_s_each": (cpu_seconds(workers) - used[2]) / size,
        "load_before_and_after": load,
    }


def _moment(text: str) -> float:
    return datetime.fromisoformat(text.replace("Z", "+00:00")).timestamp()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--sizes", type=int, nargs="+", default=[1, 10, 100])
    parser.add_argument("--limit", type=int, default=2, help="runs in hand at once, by worker")
    options = parser.parse_args()
    # Ended by others, it takes down what it has started, too.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    place = Path(tempfile.mkdtemp(prefix="benchwright-fleet-"))
    fleet = make_fleet(place, limit=options.limit)
    figures: dict[str, Any] = {"hosts": len(HOSTS), "limit": options.limit, "rounds": []}
    wrong = 0
    try:
        fleet.create()
        growth(fleet, 2, "warm-up")
        for size in options.sizes:
            seen = growth(fleet, size, f"growth-{size}")
            figures["rounds"].append(seen)
            print(json.dumps(seen), flush=True)
            wrong += seen["states"] != ["Completed"]
        rows = {host: measured(fleet.home(host)) for host in HOSTS}
        figures["measurements"] = {host: len(row) for host, row in rows.items()}
        figures["overlaps_on_one_host"] = {h: overlaps_within(row) for h, row in rows.items()}
        figures["overlaps_between_hosts"] = overlaps(*rows.values())
        wrong += sum(figures["overlaps_on_one_host"].values())
        print({k: v for k, v in figures.items() if k != "rounds"})
    finally:
        fleet.close()
        shutil.rmtree(place, ignore_errors=True)
    print("written:", write_results("many_machines", figures))
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())

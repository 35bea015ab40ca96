"""The work directory on the host: where data, jobs and outputs of one request lie."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchwright.errors import BadInput, StageFailed, Where
from domains.serving import job
from domains.serving.host import Host, HostUnreachable
from domains.serving.key import LAUNCHER, hide_in_files, key_of
from domains.serving.request import AccuracyRequest, Dataset, Endpoint
from domains.serving.results import Progress, Reporter


def endpoint_lock(endpoint: Endpoint) -> str:
    """The lock file on the host that the loads of one endpoint share."""
    host = "".join(c if c.isalnum() or c in ".-" else "_" for c in endpoint.host)
    return f"/tmp/benchwright-endpoint-{host}-{endpoint.port}.lock"


MEMORY = "serving_job.json"
"""File below the run's folder that says where its jobs live."""


@dataclass(slots=True)
class Workplace:
    """The work directory on the host, and what the run's folder remembers of its jobs.

    Attributes:
        folder: The directory on the host.
        run_dir: The run's folder on this machine.
    """

    folder: str
    run_dir: Path

    @classmethod
    def find(cls, host: Host, run_dir: Path, make: Callable[[], str]) -> Workplace:
        """The directory that this run made before it was cut off, or else a new one."""
        known = _remembered(run_dir)
        if known is not None and host.run(f"[ -d {shlex.quote(known['folder'])} ]").ok:
            return cls(known["folder"], run_dir)
        place = cls(make(), run_dir)
        place._write({})
        return place

    def known_job(self, host: Host, key: str) -> job.Job | None:
        """The job that this run started before under that key, if it really came to be."""
        known = _remembered(self.run_dir) or {"jobs": {}}
        if key not in known["jobs"]:
            return None
        found = job.Job.model_validate(known["jobs"][key])
        began = host.run(f"[ -e {shlex.quote(found.folder)}/pid ]").ok
        return found if began else None

    def start(self, host: Host, key: str, folder: str, command: str, **how: Any) -> job.Job:
        """Start a job; it is remembered first, so that a lost connection loses no job.

        Args:
            host: Where.
            key: What it is remembered as.
            folder: Its folder, relative to the work directory.
            command: The script.
            how: See `job.start`.

        Raises:
            As `job.start`.
        """
        running = job.new_job(f"{self.folder}/{folder}")
        known = (_remembered(self.run_dir) or {"jobs": {}})["jobs"]
        self._write({**known, key: running.model_dump()})
        try:
            job.start(host, running, command, **how)
        except HostUnreachable:
            raise
        except StageFailed:
            self._write(known)
            raise
        return running

    def _write(self, jobs: dict[str, Any]) -> None:
        self.run_dir.mkdir(parents=True, exist_ok=True)
        file = self.run_dir / MEMORY
        part = file.with_suffix(".part")
        part.write_text(json.dumps({"folder": self.folder, "jobs": jobs}, indent=1), "utf-8")
        part.replace(file)


def _remembered(run_dir: Path) -> dict[str, Any] | None:
    file = run_dir / MEMORY
    if not file.is_file():
        return None
    known: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
    return known


def known_jobs(run_dir: Path) -> frozenset[str]:
    """Ids of the jobs that a run started before it was cut off."""
    known = _remembered(run_dir) or {"jobs": {}}
    return frozenset(str(entry["id"]) for entry in known["jobs"].values())


def make_work_dir(host: Host, kind: str, *, root: str | None, given: str | None) -> str:
    """A new, empty directory on the host, stamped by its clock.

    Raises:
        BadInput: `given` holds something: an old report in it could pass as new.
        StageFailed: It can't be made.
    """
    if given is not None:
        quoted = shlex.quote(given)
        ran = host.run(
            f"umask 077; mkdir -p -- {quoted} && cd -- {quoted} && ls -A | head -n 3 && pwd -P"
        )
        lines = ran.text.splitlines()
        if ran.ok and len(lines) > 1:
            raise BadInput(
                f"the work directory on {host.name} holds something: {', '.join(lines[:-1])}",
                where=Where(file=given, key="evaluate.work_dir"),
                expected="a new or empty directory: an old report in it could pass as new",
                hint="leave the option out: each request gets a new one",
            )
    else:
        base = shlex.quote(root) if root else '"$HOME/benchwright_runs"'
        ran = host.run(
            f'umask 077; base={base}; mkdir -p -- "$base" || exit 1\n'
            f'mktemp -d "$base/{kind}_$(date -u +%Y%m%dT%H%M%SZ)_XXXXXX"'
        )
        lines = ran.text.splitlines()
    if not ran.ok or not lines:
        raise StageFailed(f"no work directory can be made on {host.name}: {ran.error_text}")
    return lines[-1]


def place_launcher(host: Host, endpoint: Endpoint, folder: str) -> str | None:
    """Bring what hands over the API key to the host: its path there; None where there is no key."""
    if key_of(endpoint) is None:
        return None
    host.put({LAUNCHER.name: LAUNCHER}, folder)
    return f"{folder}/{LAUNCHER.name}"


def fetch(host: Host, endpoint: Endpoint, folder: str, destination: Path) -> None:
    """Copy what a job left to this machine, without the endpoint's API key. Raises StageFailed."""
    host.get(folder, destination)
    hide_in_files(destination, key_of(endpoint))


def place_data(host: Host, dataset: Dataset, folder: str) -> tuple[str | None, str]:
    """Bring a dataset's files to the host: (their folder there, SHA-256 over names and contents).

    (None, "") for a set that comes from a hub.
    """
    if dataset.folder is None:
        return None, ""
    if dataset.on_host:
        there = dataset.folder
        ran = host.run(f"cd -- {shlex.quote(there)} || exit 1\n{DIGEST}", timeout_s=600)
    else:
        there = f"{folder}/data"
        root = Path(dataset.folder)
        files: dict[str, bytes | Path] = {
            str(path.relative_to(root)): path for path in sorted(root.rglob("*")) if path.is_file()
        }
        ran = host.put(files, there, then=DIGEST)
    if not ran.ok:
        raise StageFailed(
            f"dataset {dataset.name!r} can't be read on {host.name}: {ran.error_text}",
            where=Where(file=there),
        )
    return there, ran.text.split()[0]


DIGEST = "find . -type f -print0 | LC_ALL=C sort -z | xargs -0 sha256sum | sha256sum"
"""SHA-256 over the names and contents of a folder's files."""


def run_job(
    host: Host,
    request: AccuracyRequest,
    place: Workplace,
    dataset: Dataset,
    *,
    attempt: str,
    script: str,
    owner: str,
    reporter: Reporter,
    total: int | None,
    progress_glob: str,
) -> tuple[job.Job, job.Look, str]:
    """Start a dataset's job, or find the one that this run started before, and follow it."""
    key = f"{dataset.name}/{attempt}"
    running = place.known_job(host, key)
    if running is not None:
        reporter.say(f"{key}: found again on {host.name}")
    else:
        running = place.start(
            host,
            key,
            f"{key}/job",
            script,
            owner=owner,
            lock=endpoint_lock(request.target.endpoint),
            deadline_s=request.evaluate.timeout_s,
            api_key=key_of(request.target.endpoint),
        )
    last = -1

    def on_look(seen: job.Look) -> None:
        nonlocal last
        if seen.done != last:
            last = seen.done
            reporter.progress(Progress(dataset=dataset.name, done=seen.done, total=total))

    seen, ended_by = job.attend(
        host,
        running,
        on_look=on_look,
        say=reporter.say,
        progress_glob=progress_glob,
        port=(request.target.endpoint.host, request.target.endpoint.port),
        reconnect_s=request.evaluate.reconnect_s,
    )
    return running, seen, ended_by


def expected_samples(request: AccuracyRequest, requested: int | None) -> int | None:
    """Samples that the request asks for: its count, or else what evalscope says it loaded."""
    limit = request.evaluate.limit
    if requested is None and limit is not None and limit >= 1:
        return int(limit) * request.evaluate.repeats
    return requested


LOG_TAIL_LINES = 12


def started_at(folder: Path) -> float:
    """When a job started by its host's clock, from its fetched folder. Raises StageFailed."""
    try:
        return float(text_of(folder / "started"))
    except ValueError:
        raise StageFailed(f"{folder} doesn't say when its job started") from None


def text_of(path: Path) -> str:
    """A text file's content; empty where it isn't there."""
    try:
        return path.read_text(encoding="utf-8", errors="backslashreplace")
    except OSError:
        return ""


def tail_of(log: str) -> str:
    """The last lines of a log, without what a progress bar wrote over and without colours."""
    lines = [_COLOUR.sub("", line.rsplit("\r", 1)[-1]).rstrip() for line in log.splitlines()]
    return "\n".join([line for line in lines if line][-LOG_TAIL_LINES:])


_COLOUR = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")

"""A command that runs on a host by itself: it outlives the connection, and is found again."""

from __future__ import annotations

import secrets
import shlex
import time
from collections.abc import Callable
from enum import StrEnum
from pathlib import Path
from typing import Any

from benchwright.errors import StageFailed
from domains.serving.host import Host, HostUnreachable
from domains.serving.key import export
from domains.serving.request import Record

RUNNER = Path(__file__).parent / "programs" / "job.sh"

LEASE_S = 2 * 3600
"""How long a job that nobody follows goes on: longer than a lost connection, and not for ever."""

POLL_WAIT_S = 5.0
"""How long the first look waits on the host for the end, which is seen at once."""

LONGEST_POLL_WAIT_S = 20.0
"""Likewise in a job of many minutes: each look starts a login shell beside what is measured, and
some take seconds of processor time to start."""

POLL_SHARE = 0.05
"""In between, a look waits this share of the job's time so far."""

LOG_CHUNK = 65536

REFUSED = 75
"""Exit code of a job that found the endpoint taken (EX_TEMPFAIL of sysexits.h)."""


class EndpointTaken(StageFailed):
    """Another run of ours holds the endpoint; the message names it."""


class Job(Record):
    """Where a job lives; enough to find it again from another process.

    Attributes:
        id: The mark that each of its processes carries.
        folder: Its folder on the host. `started` in it has the host's wall clock at its start.
    """

    id: str
    folder: str


class JobStatus(StrEnum):
    """Where a job stands."""

    RUNNING = "running"
    ENDED = "ended"
    LOST = "lost"
    """No process and no exit code: the host was restarted, or someone killed it."""


class Look(Record):
    """What one look at a job saw.

    Attributes:
        status: Where it stands.
        code: Exit code, once it ended.
        ended_by: `deadline` or `lease` where our runner ended it, else empty.
        size: Bytes of its log.
        read: Bytes of its log that this look brought.
        log: The same as text.
        done: Lines in the files that count its progress.
        port_open: Whether the endpoint's port accepts connections; None: not asked.
    """

    status: JobStatus
    code: int | None
    ended_by: str
    size: int
    read: int
    log: str
    done: int
    port_open: bool | None


def new_job(folder: str) -> Job:
    """A job that isn't started yet: remember it first, so that it is found whatever happens."""
    return Job(id=secrets.token_hex(8), folder=folder)


def start(
    host: Host,
    job: Job,
    command: str,
    *,
    owner: str,
    lock: str,
    deadline_s: float,
    lease_s: float = LEASE_S,
    api_key: str | None = None,
) -> None:
    """Start a bash script as a job.

    Args:
        host: Where.
        job: A new job; its folder is made.
        command: The script.
        owner: Who runs it, for those who find the endpoint taken.
        lock: Lock file that is held while it runs; empty for none.
        deadline_s: After that many seconds it is ended.
        lease_s: Likewise when nobody has looked for that long.
        api_key: The endpoint's, for the job's environment.

    Raises:
        EndpointTaken: Another job holds the lock.
        StageFailed: It can't be started.
        HostUnreachable: The connection was lost: it may have started.
    """
    arguments = shlex.join(
        [job.folder, job.id, lock, owner, str(round(deadline_s)), str(round(lease_s))]
    )
    started = host.put(
        {"job.sh": RUNNER, "command.sh": command.encode()},
        job.folder,
        # The script that holds the key removes itself before all else; see `Host.run`.
        then=export(api_key) + "command -v setsid >/dev/null || { echo no setsid >&2; exit 92; }\n"
        "date +%s.%N >started\n"
        f"env BENCHWRIGHT_JOB={job.id} setsid bash ./job.sh {arguments}"
        " </dev/null >runner.log 2>&1 &\n"
        "for _ in $(seq 100); do\n"
        "  [ -e pid ] && exit 0; [ -e exit ] && break; sleep 0.05\n"
        "done\n"
        f"[ -e refused ] && {{ cat refused; exit {REFUSED}; }}\n"
        "cat runner.log >&2; exit 1",
    )
    if started.code == REFUSED:
        raise EndpointTaken(
            "another evaluation of ours runs against the same endpoint:"
            f" {started.text.strip() or 'its owner is not known'}",
            hint="wait until it ends, or cancel it; two loads on one server falsify both",
        )
    if not started.ok:
        raise StageFailed(f"the job can't be started on {host.name}: {started.error_text}")


def look(
    host: Host,
    job: Job,
    *,
    offset: int = 0,
    wait_s: float = 0.0,
    progress_glob: str = "",
    port: tuple[str, int] | None = None,
) -> Look:
    """See where a job stands, and keep its lease.

    Args:
        host: Where it runs.
        job: The job.
        offset: Bytes of its log that are known already.
        wait_s: How long to wait on the host for its end.
        progress_glob: Files below its folder's parent whose lines count what is done.
        port: Endpoint that is tried once.

    Raises:
        HostUnreachable: The host doesn't answer; the job may run on.
        StageFailed: The job's folder is gone.
    """
    probe = "port=\n"
    if port is not None:
        address = shlex.quote(f"/dev/tcp/{port[0]}/{port[1]}")
        probe = f"port=no; (exec 3<>{address}) 2>/dev/null && port=yes\n"
    count = "done=0\n"
    if progress_glob:
        count = f"done=$(cat ../{progress_glob} 2>/dev/null | wc -l)\n"
    ran = host.run(
        f"cd -- {shlex.quote(job.folder)} || exit 90\n"
        "touch lease\n" + _wait_for_the_end(wait_s) + "status=lost\n"
        f'if [ -e exit ]; then status=ended; elif grep -qzxs "BENCHWRIGHT_JOB={job.id}"'
        ' "/proc/$(cat pid 2>/dev/null)/environ"; then status=running;\n'
        "elif [ -e exit ]; then status=ended; fi\n"
        + probe
        + count
        + 'echo "status=$status"; echo "code=$(cat exit 2>/dev/null)"\n'
        'echo "ended=$(cat ended 2>/dev/null)"; echo "port=$port"; echo "done=$done"\n'
        'echo "size=$(stat -c %s job.log 2>/dev/null || echo 0)"; echo\n'
        f"tail -c +{offset + 1} job.log 2>/dev/null | head -c {LOG_CHUNK}\n",
        timeout_s=wait_s + 60,
    )
    if ran.code == 90:
        raise StageFailed(f"the job's folder {job.folder} is gone from {host.name}")
    head, _, log = ran.stdout.partition(b"\n\n")
    seen = dict(line.partition("=")[::2] for line in head.decode().splitlines())
    return Look(
        status=JobStatus(seen["status"]),
        code=int(seen["code"]) if seen["code"] else None,
        ended_by=seen["ended"],
        size=int(seen["size"]),
        read=len(log),
        log=log.decode("utf-8", "backslashreplace"),
        done=int(seen["done"]),
        port_open={"yes": True, "no": False}.get(seen["port"]),
    )


def _wait_for_the_end(wait_s: float) -> str:
    """Wait without a process for each look: the evaluator has the same processors."""
    if wait_s <= 0:
        return ""
    return (
        f"[ -e exit ] || timeout {wait_s:.1f} tail -s 0.2 -f /dev/null --pid=$(cat pid)\n"
        "[ $? -eq 124 ] || [ -e exit ] || sleep 1\n"
    )


SERVER_GONE_S = 60.0
"""An endpoint that refuses connections for that long isn't coming back by itself."""


def follow(
    host: Host,
    job: Job,
    *,
    on_look: Callable[[Look], None] = lambda _: None,
    say: Callable[[str], None] = lambda _: None,
    progress_glob: str = "",
    port: tuple[str, int] | None = None,
    reconnect_s: float = 600.0,
) -> tuple[Look, str]:
    """Wait for a job's end, over lost connections.

    Returns:
        The last look, and why it ended early: empty, `deadline`, `lease`, `server gone`.

    Raises:
        HostUnreachable: The host gave no answer for `reconnect_s`; the job may run on.
    """
    begun = time.monotonic()
    offset, lost_since, gone_since = 0, 0.0, 0.0
    while True:
        so_far = time.monotonic() - begun
        try:
            seen = look(
                host,
                job,
                offset=offset,
                wait_s=min(max(POLL_WAIT_S, POLL_SHARE * so_far), LONGEST_POLL_WAIT_S),
                progress_glob=progress_glob,
                port=port,
            )
        except HostUnreachable as problem:
            now = time.monotonic()
            lost_since = lost_since or now
            if now - lost_since > reconnect_s:
                raise HostUnreachable(
                    f"{host.name} gave no answer for {reconnect_s:.0f} s; the evaluation may still"
                    f" run there, in {job.folder}",
                    hint="once the host answers, run again: the job is found and followed to its"
                    f" end ({problem.what})",
                ) from problem
            say(f"connection to {host.name} lost, the evaluation goes on there; trying again")
            time.sleep(min(2.0, reconnect_s / 4 + 0.05))
            continue
        if lost_since:
            say(f"connected to {host.name} again, the evaluation is found")
        lost_since = 0.0
        offset += seen.read
        on_look(seen)
        if seen.status is not JobStatus.RUNNING:
            return seen, seen.ended_by
        if seen.port_open is False:
            gone_since = gone_since or time.monotonic()
            if time.monotonic() - gone_since > SERVER_GONE_S:
                cancel(host, job)
                return seen, "server gone"
        else:
            gone_since = 0.0


def cancel(host: Host, job: Job) -> None:
    """End every process of a job: TERM, five seconds, KILL.

    Raises:
        StageFailed: Some process is still there.
    """
    ran = host.run(
        f"mark=BENCHWRIGHT_JOB={job.id}\n"
        'marked() { grep -lzxs "$mark" /proc/[0-9]*/environ | cut -d/ -f3; }\n'
        "kill -TERM $(marked) 2>/dev/null\n"
        'for _ in $(seq 50); do [ -z "$(marked)" ] && exit 0; sleep 0.1; done\n'
        "kill -KILL $(marked) 2>/dev/null\n"
        'for _ in $(seq 20); do [ -z "$(marked)" ] && exit 0; sleep 0.1; done\n'
        "echo $(marked) >&2; exit 1",
        timeout_s=60,
    )
    if not ran.ok:
        raise StageFailed(f"processes of the job are left on {host.name}: {ran.error_text}")


def attend(host: Host, job: Job, **how: Any) -> tuple[Look, str]:
    """`follow` that answers for the job: an exception on the way, an interruption above all, ends
    it on the host. Only a host that doesn't answer leaves it running, to be found again.
    """
    try:
        return follow(host, job, **how)
    except HostUnreachable:
        raise
    except BaseException:
        cancel(host, job)
        raise

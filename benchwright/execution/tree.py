"""A process and all that came from it, read from /proc, and how to end it.

A supervisor is a child subreaper (prctl 36): whatever its stage leaves behind, by a double fork
or a session of its own, becomes the supervisor's child, so the walk from it misses nothing and
`wait` says with ECHILD when nothing is left. Process groups and sessions are not used: a process
leaves them at will.
"""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass

_READ_BYTES = 1 << 16
_PF_EXITING = 0x4


def read_proc(path: str) -> bytes | None:
    """A small file under /proc or /sys; None where its process has gone or may not be read."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        parts = []
        while part := os.read(fd, _READ_BYTES):
            parts.append(part)
        return b"".join(parts)
    except OSError:
        return None
    finally:
        os.close(fd)


@dataclass(frozen=True, slots=True)
class ProcessStat:
    """What /proc/PID/stat says of a process.

    Attributes:
        name: Its command name, 15 bytes at most.
        state: One letter: R, S, D, T, Z and so on.
        parent: Its parent's PID.
        exiting: Whether it is on its way out: its memory and its groups are gone or going, though
            its state may still say R.
        started: Clock ticks since boot; with the PID it names a process for good.
    """

    name: str
    state: str
    parent: int
    exiting: bool
    started: int

    @property
    def alive(self) -> bool:
        """Whether it is running, waiting or stopped, and not dead or dying."""
        return not self.exiting and self.state not in "ZX"


def stat_of(pid: int) -> ProcessStat | None:
    """The process's own line in /proc; None where it has gone."""
    line = read_proc(f"/proc/{pid}/stat")
    if line is None:
        return None
    # The name is in parentheses and may hold both spaces and parentheses.
    left, right = line.index(b"("), line.rindex(b")")
    fields = line[right + 2 :].split()
    return ProcessStat(
        name=line[left + 1 : right].decode(errors="replace"),
        state=fields[0].decode(),
        parent=int(fields[1]),
        exiting=bool(int(fields[6]) & _PF_EXITING),
        started=int(fields[19]),
    )


def children(pid: int) -> list[int]:
    """The direct children of all threads of a process, zombies included."""
    folder = f"/proc/{pid}/task"
    try:
        # `.`, `..` and one for each thread: most processes have one, and need no listing.
        single = os.stat(folder).st_nlink == 3  # noqa: PTH116
        threads = [str(pid)] if single else os.listdir(folder)  # noqa: PTH208
    except OSError:
        return []
    found: list[int] = []
    for thread in threads:
        listed = read_proc(f"{folder}/{thread}/children")
        if listed:
            found.extend(map(int, listed.split()))
    return found


def descendants(roots: Iterable[int]) -> list[int]:
    """All processes below the roots, parents before their children; the roots are left out.

    One walk may miss a process that was just being forked: who must have all of them walks
    again until nothing new is found.
    """
    found: list[int] = []
    seen = set(roots)
    waiting = list(seen)
    while waiting:
        for child in children(waiting.pop()):
            if child not in seen:
                seen.add(child)
                found.append(child)
                waiting.append(child)
    return found


def alive(pid: int) -> bool:
    """Whether a process is there and not dead or dying."""
    stat = stat_of(pid)
    return stat is not None and stat.alive


def all_processes() -> list[int]:
    """Every process of this PID namespace."""
    return [int(name) for name in os.listdir("/proc") if name.isdigit()]  # noqa: PTH208


def tell(pids: Collection[int], number: int) -> None:
    """Send a signal to each; a process that has gone or isn't ours is passed over."""
    for pid in pids:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(pid, number)


def kill_all(members: Callable[[], Collection[int]]) -> None:
    """Kill all members, also those that fork faster than they are listed.

    A stopped process can't fork: members are stopped until a listing brings nothing new, and
    only then killed.

    Args:
        members: Lists the processes that are alive now.
    """
    stopped: set[int] = set()
    while new := set(members()) - stopped:
        tell(new, signal.SIGSTOP)
        stopped |= new
    tell(stopped, signal.SIGKILL)


def describe(pid: int) -> str:
    """A process for a person: `name (PID 123)`."""
    stat = stat_of(pid)
    return f"{stat.name} (PID {pid})" if stat is not None else f"PID {pid}"

"""Half a second of a machine: who used its processors, and how its clocks went."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from benchwright.execution import tree

WINDOW_S = 0.5
"""Long enough that one tick of the scheduler (10 ms) is 2 % of a processor."""

_CLOCK_READS = 50
"""The closest of so many readings is taken: in between, another process may run."""


@dataclass(frozen=True, slots=True)
class Clocks:
    """Three clocks at one moment, in seconds.

    Attributes:
        wall: Since the epoch.
        monotonic: Since some moment; its rate is adjusted to keep the time.
        raw: The same by the hardware alone.
    """

    wall: float
    monotonic: float
    raw: float

    @classmethod
    def now(cls) -> Clocks:
        """Read them as close together as it goes."""
        best, width = cls(0.0, 0.0, 0.0), float("inf")
        for _ in range(_CLOCK_READS):
            before = time.clock_gettime_ns(time.CLOCK_MONOTONIC)
            wall = time.clock_gettime_ns(time.CLOCK_REALTIME)
            raw = time.clock_gettime_ns(time.CLOCK_MONOTONIC_RAW)
            after = time.clock_gettime_ns(time.CLOCK_MONOTONIC)
            if after - before < width:
                width = after - before
                best = cls(wall / 1e9, (before + after) / 2e9, raw / 1e9)
        return best


@dataclass(frozen=True, slots=True)
class Window:
    """What was seen.

    Attributes:
        before, after: The clocks at its ends.
        users: CPU seconds of each process that used any, with its name, by process id; without
            the process that watched.
        stolen: Share of the processors' time that the hypervisor gave to others, 0 to 1; None
            where the kernel doesn't say.
        swapped: Pages that were read from or written to swap.
    """

    before: Clocks
    after: Clocks
    users: Mapping[int, tuple[str, float]] = field(default_factory=dict)
    stolen: float | None = None
    swapped: int = 0

    @property
    def seconds(self) -> float:
        """Its length."""
        return self.after.monotonic - self.before.monotonic


def watch(root: Path = Path("/"), seconds: float = WINDOW_S) -> Window:
    """Watch the machine for a while."""
    before, cpu, times, swaps = Clocks.now(), _cpu_seconds(), _times(root), _swaps(root)
    time.sleep(seconds)
    now, later, swaps_later = _cpu_seconds(), _times(root), _swaps(root)
    after = Clocks.now()
    users = {
        pid: (name, used - cpu.get(pid, (name, 0.0))[1])
        for pid, (name, used) in now.items()
        if pid != os.getpid() and used > cpu.get(pid, (name, 0.0))[1]
    }
    stolen = None
    if times and later:
        spans = [b - a for a, b in zip(times, later, strict=True)]
        total = sum(spans)
        stolen = spans[_STEAL] / total if total > 0 and len(spans) > _STEAL else None
    return Window(before, after, users, stolen, swaps_later - swaps)


_STEAL = 7
"""Place of stolen time in the first line of /proc/stat (proc(5))."""
_FIELDS = 8
"""User, nice, system, idle, iowait, irq, softirq, steal: guest time is part of user time."""


def _times(root: Path) -> list[int]:
    line = (root / "proc/stat").read_text().partition("\n")[0]
    return [int(word) for word in line.split()[1 : 1 + _FIELDS]]


def _swaps(root: Path) -> int:
    lines = (root / "proc/vmstat").read_text().splitlines()
    return sum(int(line.split()[1]) for line in lines if line.startswith(("pswpin ", "pswpout ")))


def _cpu_seconds() -> dict[int, tuple[str, float]]:
    """Name and CPU seconds of every process, all its threads included."""
    tick = os.sysconf("SC_CLK_TCK")
    found = {}
    for pid in tree.all_processes():
        line = tree.read_proc(f"/proc/{pid}/stat")
        if line is None:
            continue
        left, right = line.index(b"("), line.rindex(b")")
        fields = line[right + 2 :].split()
        used = (int(fields[11]) + int(fields[12])) / tick
        found[pid] = (line[left + 1 : right].decode(errors="replace"), used)
    return found

"""The memory of a stage's process tree: its budget, kept by the best mechanism, and its peak.

Mechanisms, best first, each tried for real when a stage starts:

`cgroup2`, `cgroup1`: a leaf group with the budget as its limit. The kernel reclaims the leaf's
page cache first and then kills, so nothing passes the budget and a file that was read is no
reason to die; its event wakes the guard, which ends the rest of the tree. A usage threshold below
the limit was tried and left out: it counts page cache, and fired on a stage that only read files.

`polling`: the tree's memory is read every 10 ms, sooner where it would pass the budget before.
The sum of resident sets costs little and is never below the proportional set size (PSS), so PSS,
which counts a shared page once, is read only where the sum could pass the budget. Files in a
memory file system that are not mapped, and memory of the kernel, are seen by a group only.

Without a budget nothing is guarded, and the same code measures the peak.
"""

from __future__ import annotations

import contextlib
import math
import os
import select
import signal
import time
from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

from benchwright.execution.cgroup import PREFIX, Group, Leaf, leaf_parent, subgroups
from benchwright.execution.tree import alive, descendants, read_proc, tell

MB = 10**6
PAGE = os.sysconf("SC_PAGE_SIZE")

MECHANISMS = ("cgroup2", "cgroup1", "polling")
"""Names of the mechanisms, best first."""

POLL_S = 0.010
"""Between two looks of the polling guard, far from the budget."""

POLL_SHORTEST_S = 0.001
"""Between two looks where the tree is about to pass its budget."""

POLL_MARGIN = 2.0
"""A look comes after 1/2 of the time that the tree needs to its budget at its present rate."""

PSS_EARLY = 0.6
"""From this share of the budget on, what the tree shares is found out before it matters."""

PSS_UNCLEAR = 0.1
"""Shared memory of at most this share of the budget is not worth finding out beforehand."""

PSS_S_PER_BYTE = 20e-3 / 1e9
"""PSS is found by a walk of the stage's page tables: about 20 ms for each GB."""

PSS_SHARE = 0.02
"""PSS is read for at most this share of the time where nothing is urgent."""

PSS_OUTDATED_S = 1.0
"""A sum of PSS is carried forward by the growth of the resident sets for this long, longer where
reading it is dear."""

BELL_S = 0.001
"""From the event that says the limit was hit to the look at the kernel's counter."""

GROUP_CHECK_S = 0.1
"""Between two checks that the leaf still holds the stage and its limit."""

SAMPLE_SHARE = 0.1
SAMPLE_FIRST_S = 0.010
SAMPLE_LAST_S = 0.1
"""The peak is sampled after each tenth of the time that the stage has run, within these bounds:
a short stage gets a fine grain, a long one is left alone."""


@dataclass(frozen=True, slots=True)
class Breach:
    """The guard wants the stage ended.

    Attributes:
        proven: Whether the tree has passed its budget; False where the guard itself was lost.
        detail: What was seen, as a sentence with the limit and the figure.
    """

    proven: bool
    detail: str


class Guard:
    """Watches the memory of one stage.

    Attributes:
        name: Mechanism in force, as `Usage.guard` gives it.
        join_fd: The stage writes `0` here before it becomes its program; None without a group.
        event: Descriptor and poll mask that call for a look at once; None without one.
        must_be_punctual: A look that comes late is a budget that is passed.
    """

    name = "none"
    must_be_punctual = False
    join_fd: int | None = None
    event: tuple[int, int] | None = None

    def begin(self, pid: int, now: float) -> None:
        """The stage's main process has become its program; nothing is looked at before."""
        raise NotImplementedError

    def next_look(self) -> float:
        """Monotonic time of the next look."""
        raise NotImplementedError

    def look(self, now: float) -> Breach | None:
        """Read the tree's memory, while the tree is there."""
        raise NotImplementedError

    def verdict(self) -> Breach | None:
        """The last word, when the tree is gone: what the kernel has counted."""
        return None

    def peak(self, largest_process: int | None) -> int | None:
        """Largest memory of the tree in bytes; None where nothing was seen.

        Args:
            largest_process: Largest resident set of one of its processes, which the kernel kept
                for those that came and went between two samples.
        """
        raise NotImplementedError

    def members(self) -> list[int]:
        """Processes in the stage's group; empty where it has none."""
        return []

    def kill(self) -> None:
        """Kill all members at once, where the kernel can."""

    def close(self) -> None:
        """Leave nothing behind. The tree is gone."""


def _sample_interval(ran_s: float) -> float:
    return min(max(ran_s * SAMPLE_SHARE, SAMPLE_FIRST_S), SAMPLE_LAST_S)


class GroupGuard(Guard):
    """A leaf group; with a budget, its limit.

    Args:
        group: The group below which the leaf is made.
        name: The leaf's name.
        budget: Bytes; None to measure only.

    Raises:
        OSError: The leaf can't be made or limited here.
    """

    def __init__(self, group: Group, name: str, budget: int | None) -> None:
        self._leaf = Leaf(group, name)
        self._budget = budget
        self._fds: list[int] = []
        self.name = f"cgroup{group.version}" if budget is not None else "none"
        self.join_fd = self._leaf.join_fd
        self._pid = 0
        self._began = self._checked = 0.0
        self._next = math.inf
        self._sampled = 0
        try:
            self._usage_file = "memory.current" if group.version == 2 else "memory.usage_in_bytes"
            self._peak_file = "memory.peak" if group.version == 2 else "memory.max_usage_in_bytes"
            self._limit_file = "memory.max" if group.version == 2 else "memory.limit_in_bytes"
            if self._leaf.read_int(self._usage_file) is None:
                raise OSError(f"{self._leaf.path} does not account memory")
            self._limit: int | None = None
            if budget is not None:
                self._limit = self._set_limit(budget)
                self.event = self._listen()
        except OSError:
            self.close()
            raise

    def _set_limit(self, budget: int) -> int:
        """Limit the leaf, swap included, and return what the kernel made of it."""
        self._leaf.write(self._limit_file, str(budget))
        with contextlib.suppress(OSError):  # no swap accounting in this kernel
            if self._leaf.version == 2:
                self._leaf.write("memory.swap.max", "0")
            else:
                self._leaf.write("memory.memsw.limit_in_bytes", str(budget))
        if self._leaf.version == 2:
            # The tree dies as one: a half-killed stage may report a success.
            self._leaf.write("memory.oom.group", "1")
        limit = self._leaf.read_int(self._limit_file)
        if limit is None or not budget - PAGE < limit <= budget:
            raise OSError(f"{self._leaf.path} did not take its limit")
        return limit

    def _listen(self) -> tuple[int, int]:
        """Have the kernel say when the limit is hit."""
        flags = os.O_RDONLY | os.O_CLOEXEC
        if self._leaf.version == 2:
            self._fds.append(events := os.open(self._leaf.path / "memory.events", flags))
            os.read(events, PAGE)  # arms the notification
            return events, select.POLLPRI
        self._fds.append(bell := os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK))
        control = os.open(self._leaf.path / "memory.oom_control", flags)
        try:
            self._leaf.write("cgroup.event_control", f"{bell} {control}")
        finally:
            os.close(control)
        return bell, select.POLLIN

    def begin(self, pid: int, now: float) -> None:
        """Start the clock of the samples."""
        self._pid, self._began, self._checked = pid, now, now
        self._next = now + SAMPLE_FIRST_S

    def next_look(self) -> float:
        """When the peak is sampled again."""
        return self._next

    def look(self, now: float) -> Breach | None:
        """Ask the kernel's counter, sample the peak, and check that the guard is still in force."""
        # The bell rings before the kernel has killed and counted.
        rung = self._bell_rang()
        self._next = now + (BELL_S if rung else _sample_interval(now - self._began))
        if (breach := self.verdict()) is not None:
            return breach
        self._sample()
        if self._budget is not None and now - self._checked >= GROUP_CHECK_S:
            self._checked = now
            return self._check()
        return None

    def _bell_rang(self) -> bool:
        """Whether the limit was hit since the last look; silences the bell."""
        if self.event is None:
            return False
        if self._leaf.version == 2:
            os.pread(self.event[0], PAGE, 0)
            return False
        try:
            return bool(os.read(self.event[0], 8))
        except BlockingIOError:
            return False

    def _sample(self) -> None:
        usage = self._leaf.read_int(self._usage_file)
        if usage is None:
            return
        if usage <= self._sampled:  # page cache included, and still no new peak
            return
        stat = self._leaf.read_table("memory.stat")
        if self._leaf.version == 2:
            cache = stat.get("file", 0) - stat.get("shmem", 0)
        else:
            cache = stat.get("total_cache", 0) - stat.get("total_shmem", 0)
        self._sampled = max(self._sampled, usage - cache)

    def _check(self) -> Breach | None:
        """Whether the limit is still there, and the stage still under it."""
        if self._leaf.read_int(self._limit_file) != self._limit:
            lost = "the limit of its group was changed or its group removed"
        elif not self._leaf.holds(self._pid) and alive(self._pid):
            lost = "its main process was moved out of its group"
        else:
            return None
        return Breach(False, f"The memory guard ({self.name}) was lost: {lost}.")

    def _oom_kills(self) -> int:
        """Processes of the leaf that the kernel has killed for memory."""
        if self._leaf.version == 2:
            return self._leaf.read_table("memory.events").get("oom_kill", 0)
        # Version 1 counts a victim in its own group only, not in the groups above.
        kills = self._leaf.read_table("memory.oom_control").get("oom_kill", 0)
        for below in subgroups(self._leaf.path):
            table = read_proc(f"{below}/memory.oom_control") or b""
            kills += int(table.rpartition(b"oom_kill ")[2] or 0)
        return kills

    def verdict(self) -> Breach | None:
        """What the group's counter of OOM kills says."""
        kills = self._oom_kills()
        if not kills:
            return None
        most = self._leaf.read_int(self._peak_file) or 0
        killed = f"the kernel killed {kills} of its processes for memory"
        if self._limit is not None and most >= self._limit - PAGE:
            return Breach(
                True,
                f"The stage reached its memory budget of {self._limit / MB:.0f} MB: {killed} "
                f"(group's counter oom_kill, guard {self.name}).",
            )
        budget = f", its budget {self._budget / MB:.0f} MB" if self._budget is not None else ""
        return Breach(
            True,
            f"The machine, or a group above the stage, ran out of memory: {killed} "
            f"(group's counter oom_kill). The stage's group held {most / MB:.0f} MB at most"
            f"{budget}.",
        )

    def peak(self, largest_process: int | None) -> int | None:
        """Between the group's own peak, which has page cache in it, and what was seen without."""
        seen = max(self._sampled, largest_process or 0)
        most = self._leaf.read_int(self._peak_file)
        # The group's own peak counts page cache too: it is the upper bound, not the answer.
        return min(seen or most or 0, most) if most else (seen or None)

    def members(self) -> list[int]:
        """Processes of the leaf."""
        return self._leaf.members()

    def kill(self) -> None:
        """Kill the leaf, in version 2."""
        if self._leaf.version == 2:
            self._leaf.kill()

    def close(self) -> None:
        """Remove the leaf."""
        for fd in self._fds:
            with contextlib.suppress(OSError):
                os.close(fd)
        self._fds.clear()
        self._leaf.close()


class PollingGuard(Guard):
    """Looks at the processes below this one again and again: at the stage's tree.

    A look reads two numbers of each process. What they can't decide is decided by PSS: read
    beforehand while the tree runs, and read with the tree stopped (a few milliseconds) when the
    budget seems to be passed. So a runaway gets nowhere during the look, and a stage that is
    within its budget is never ended on a guess.

    Args:
        budget: Bytes; None to measure only.
    """

    def __init__(self, budget: int | None) -> None:
        self._budget = budget
        self.name = "polling" if budget is not None else "none"
        self.must_be_punctual = budget is not None
        self._began = self._sample_at = 0.0
        self._next = math.inf
        self._peak = 0
        self._last: tuple[float, int] | None = None
        self._rate = 0.0
        self._pss: _PssSum | None = None

    def begin(self, pid: int, now: float) -> None:
        """Start the clock of the looks."""
        self._began = now
        self._next = now + POLL_S
        self._sample_at = now + SAMPLE_FIRST_S

    def next_look(self) -> float:
        """Monotonic time of the next look."""
        return self._next

    def look(self, now: float) -> Breach | None:
        """Compare the tree with its budget, and sample its peak."""
        sizes = _sizes()
        if self._budget is not None and (breach := self._compare(sizes, self._budget, now)):
            return breach
        left_s = math.inf
        if self._budget is not None:
            left_s = self._time_left(sizes, self._budget, now)
        # A walk of the page tables that outlasts the way to the budget would find it passed.
        if now >= self._sample_at and left_s >= POLL_MARGIN * max(POLL_S, self._walk_s(sizes)):
            self._sample(sizes, now)
        if self._budget is None:
            self._next = self._sample_at
        else:
            self._next = now + min(max(left_s / POLL_MARGIN, POLL_SHORTEST_S), POLL_S)
        return None

    def _compare(self, sizes: dict[int, _Size], budget: int, now: float) -> Breach | None:
        """Whether the tree has passed its budget, by the cheapest sign that proves it."""
        # Memory of its own is shared only with its forks, which are in the tree: it counts whole.
        largest = max((size.own for size in sizes.values()), default=0)
        if largest > budget:
            held = f"one of its processes alone held {largest / MB:.0f} MB of its own"
            return self._passed(budget, largest, held)
        bound = self._bound(sizes, now)
        # Between what one process has for itself and the bound lies what may be shared.
        tight = bound - largest <= budget * PSS_UNCLEAR
        if not tight and (bound > budget or (bound > budget * PSS_EARLY and self._may_read(now))):
            self._meet(sizes, now)
            bound = self._bound(sizes, now)
            tight = self._pss is not None and self._pss.tight
        if bound <= budget:
            return None
        # Only a tight bound is worth stopping the tree for.
        stopped = set(sizes) if tight else set()
        tell(stopped, signal.SIGSTOP)
        exact = self._read_all(sizes, now)
        if exact is not None and exact <= budget:
            tell(stopped, signal.SIGCONT)
            if stopped:
                # Nothing grows while it is stopped: that says nothing about its rate.
                self._last = (time.monotonic(), sum(size.resident for size in sizes.values()))
            return None
        if exact is None:
            return Breach(
                False,
                "The memory guard (polling) was lost: the proportional set size (PSS) of a process "
                f"of the stage can't be read, and their resident sets sum to {bound / MB:.0f} MB, "
                f"over the budget of {budget / MB:.0f} MB.",
            )
        held = f"its {len(sizes)} processes held {exact / MB:.0f} MB (sum of PSS)"
        return self._passed(budget, exact, held)

    def _passed(self, budget: int, use: int, held: str) -> Breach:
        self._peak = max(self._peak, use)
        return Breach(
            True,
            f"The stage passed its memory budget of {budget / MB:.0f} MB: {held}; guard polling.",
        )

    def _time_left(self, sizes: dict[int, _Size], budget: int, now: float) -> float:
        """Seconds until the tree passes its budget at its present rate; infinite if it shrinks.

        The rate is the higher one of the last two: who paused for a moment may go on.
        """
        total = sum(size.resident for size in sizes.values())
        before = self._rate
        if self._last is not None and now > self._last[0]:
            self._rate = (total - self._last[1]) / (now - self._last[0])
            self._last = (now, total)
        elif self._last is None:
            self._last = (now, total)
        rate = max(before, self._rate)
        return (budget - self._bound(sizes, now)) / rate if rate > 0 else math.inf

    def _walk_s(self, sizes: dict[int, _Size]) -> float:
        """What reading the tree's PSS takes, in seconds: more than it took the last time, or so."""
        total = sum(size.resident for size in sizes.values())
        return max(total * PSS_S_PER_BYTE, self._pss.cost_s if self._pss is not None else 0.0)

    def _bound(self, sizes: dict[int, _Size], now: float) -> int:
        """An upper bound of the tree's PSS that costs no walk of its page tables.

        PSS is at most the resident set, and the PSS of a tree grows by no more than its resident
        sets do. A process that drops shared pages while it takes as many new ones breaks the
        second rule, hence the time limit.
        """
        total = sum(size.resident for size in sizes.values())
        known = self._pss
        if known is None or now - known.read_at > max(PSS_OUTDATED_S, known.cost_s / PSS_SHARE):
            return total
        growth = 0
        for pid, size in sizes.items():
            before = known.sizes.get(pid)
            growth += max(0, size.resident - (before.resident if before is not None else 0))
        return min(total, known.total + growth)

    def _may_read(self, now: float) -> bool:
        """Whether PSS may be read where nothing is urgent."""
        known = self._pss
        return known is None or now - known.read_at > known.cost_s / PSS_SHARE

    def _meet(self, sizes: dict[int, _Size], now: float) -> None:
        """Read the PSS of processes that are new since the last sum.

        A fork is resident with all that it shares. What it shares is less than its PSS says for
        the others, so the new sum is a bound again, though not a tight one.
        """
        known = self._pss
        if known is None:
            self._read_all(sizes, now)
            return
        new = sizes.keys() - known.sizes.keys()
        if not new:
            return
        began = time.monotonic()
        pss = _sum_of_pss(new)
        if pss is not None:
            old = {pid: size for pid, size in sizes.items() if pid not in new}
            cost = known.cost_s + time.monotonic() - began
            total = self._bound(old, now) + pss
            self._pss = _PssSum(known.read_at, cost, total, sizes, tight=False)

    def _read_all(self, sizes: dict[int, _Size], now: float) -> int | None:
        """Sum of PSS of the tree; None where a living process doesn't let it be read."""
        began = time.monotonic()
        total = _sum_of_pss(sizes)
        if total is not None:
            self._pss = _PssSum(now, time.monotonic() - began, total, sizes, tight=True)
            self._peak = max(self._peak, total)
        return total

    def _sample(self, sizes: dict[int, _Size], now: float) -> None:
        """Read PSS where it could be a new peak; where that is too soon, take a tight bound."""
        self._sample_at = now + _sample_interval(now - self._began)
        bound = self._bound(sizes, now)
        if bound <= self._peak:
            return
        known = self._pss
        if known is None or self._may_read(now):
            self._read_all(sizes, now)
        elif known.tight and sizes.keys() <= known.sizes.keys():
            self._peak = bound

    def peak(self, largest_process: int | None) -> int | None:
        """The largest sum of PSS seen, or one process whose resident set was larger."""
        return max(self._peak, largest_process or 0) or None


class _Size(NamedTuple):
    """Memory of one process in bytes.

    Attributes:
        resident: Its resident set, shared pages included.
        own: The anonymous part of it.
    """

    resident: int
    own: int


class _PssSum(NamedTuple):
    """A sum of PSS.

    Attributes:
        read_at: Monotonic time.
        cost_s: What it took to read.
        total: The sum in bytes.
        sizes: What the processes' sizes were then.
        tight: Whether all were read at that time; otherwise the sum is a bound.
    """

    read_at: float
    cost_s: float
    total: int
    sizes: dict[int, _Size]
    tight: bool


def _sum_of_pss(pids: Iterable[int]) -> int | None:
    """PSS of some processes in bytes; None where a living one doesn't let it be read."""
    total = 0
    for pid in pids:
        rollup = read_proc(f"/proc/{pid}/smaps_rollup")
        if rollup and b"\nPss:" in rollup:
            total += int(rollup.split(b"\nPss:", 1)[1].split(None, 1)[0]) * 1024
        elif alive(pid):
            return None
    return total


def _sizes() -> dict[int, _Size]:
    """The stage's processes: all that is below its supervisor, this process."""
    sizes = {}
    for pid in descendants([os.getpid()]):
        statm = read_proc(f"/proc/{pid}/statm")
        if statm:
            _, resident, shared = map(int, statm.split(None, 3)[:3])
            sizes[pid] = _Size(resident * PAGE, (resident - shared) * PAGE)
    return sizes


_NO_GROUP = {
    "cgroup2": "this process is in no group of version 2 that was delegated with its memory "
    "controller; start it with: systemd-run --user --scope -p Delegate=yes",
    "cgroup1": "this process is in no memory group of version 1 below the root",
}


def mechanisms() -> dict[str, str]:
    """Each mechanism by name, best first, with why it doesn't work here; empty where it does.

    Tried for real, with a leaf that is removed again.
    """
    reasons = {}
    for name in MECHANISMS:
        try:
            arm(100.0, f"{PREFIX}probe-{os.getpid()}", name).close()
        except OSError as error:
            reasons[name] = str(error)
        else:
            reasons[name] = ""
    return reasons


def arm(budget_mb: float | None, leaf_name: str, mechanism: str | None = None) -> Guard:
    """The best guard that works here, tried by setting it up.

    Args:
        budget_mb: Budget of the tree in MB; None to measure only.
        leaf_name: Name of the leaf group, where one is made.
        mechanism: Takes this one only.

    Raises:
        OSError: The named mechanism doesn't work here.
    """
    budget = round(budget_mb * MB) if budget_mb is not None else None
    wanted = MECHANISMS if mechanism is None else (mechanism,)
    refusals: list[OSError] = []
    for name in wanted:
        if name == "polling":
            return PollingGuard(budget)
        group = leaf_parent(2 if name == "cgroup2" else 1)
        if group is None:
            refusals.append(OSError(f"{name}: {_NO_GROUP[name]}"))
            continue
        try:
            return GroupGuard(group, leaf_name, budget)
        except OSError as error:
            refusals.append(error)
    raise refusals[-1]

"""How noisy this machine is: what makes the same program take another time in the next run.

Each check names the command that would quiet it. What a virtual machine doesn't show is unknown,
not fine.
"""

from __future__ import annotations

import os
from pathlib import Path

from benchwright.identity.machine import CPU
from benchwright.identity.reading import key_values, text
from benchwright.planning.health.check import (
    Examination,
    Place,
    Seen,
    ok,
    unknown,
    warning,
)

QUIET_LOAD = 0.25
"""Processes that run or wait, on average over a minute, for each processor: above, a measurement
shares its processor now and then."""

BUSY_SHARE = 0.05
"""Share of one processor from which another process is worth naming."""

STOLEN_SHARE = 0.01
"""Share of the processors' time taken by other virtual machines: what one percent of `min_effect`
(the default) would drown in."""

NAMED = 5
"""Most processes that are named."""


def governor(place: Place) -> Seen:
    """The clock's governor: one that follows the load makes short programs slow."""
    files = sorted((place.root / CPU).glob("cpu[0-9]*/cpufreq/scaling_governor"))
    if not files:
        return unknown("the machine doesn't show its frequency governor: a hypervisor decides")
    others = sorted({text(file) for file in files} - {"performance"})
    if not others:
        return ok("the frequency governor is performance")
    return warning(
        f"the frequency governor is {', '.join(others)}: the clock follows the load",
        "sudo cpupower frequency-set --governor performance",
    )


def turbo(place: Place) -> Seen:
    """Turbo raises the clock for as long as heat allows: the first arm is cooler."""
    intel, boost = place.root / CPU / "intel_pstate/no_turbo", place.root / CPU / "cpufreq/boost"
    for file, on, off in ((intel, "0", "1"), (boost, "1", "0")):
        if file.exists():
            if text(file) != on:
                return ok("turbo is off")
            path = Path("/") / file.relative_to(place.root)
            return warning(
                "turbo is on: the clock depends on heat, and so on what ran before",
                f"echo {off} | sudo tee {path}",
            )
    return unknown("the machine doesn't show whether turbo is on: a hypervisor decides")


def smt(place: Place) -> Seen:
    """Two hardware threads of a core share its units: a neighbour on the other one slows it."""
    file = place.root / CPU / "smt/active"
    if not file.exists():
        return unknown("the kernel doesn't say whether cores are shared by hardware threads")
    if text(file) != "1":
        return ok("each processor is a core of its own")
    control = Path("/") / (CPU / "smt/control")
    return warning(
        "cores are shared by hardware threads (SMT): what runs on the other thread slows a"
        " measurement",
        f"echo off | sudo tee {control}",
    )


def load(place: Place) -> Seen:
    """What ran and waited here over the last minute."""
    average = float(text(place.root / "proc/loadavg").split()[0])
    processors = len(os.sched_getaffinity(0))
    said = (
        f"{average:.1f} processes ran or waited over the last minute, for {processors} processors"
    )
    if average <= QUIET_LOAD * processors:
        return ok(said)
    return warning(f"{said}: measurements wait for their turn", "top -o %CPU")


def others(place: Place) -> Seen:
    """Other processes that use the processors now."""
    window = place.window
    busy = sorted(
        (
            (used / window.seconds, name, pid)
            for pid, (name, used) in window.users.items()
            if used / window.seconds >= BUSY_SHARE
        ),
        reverse=True,
    )
    if not busy:
        return ok("no other process uses the processors")
    named = ", ".join(f"{name} ({pid}) {share:.0%}" for share, name, pid in busy[:NAMED])
    more = f" and {len(busy) - NAMED} more" if len(busy) > NAMED else ""
    pids = ",".join(str(pid) for _, _, pid in busy[:NAMED])
    return warning(
        f"other processes use the processors: {named}{more}",
        f"ps -o pid,user,pcpu,etime,args -p {pids}",
    )


def swap(place: Place) -> Seen:
    """Memory on a disk is read again when it is needed: at a moment nobody chose."""
    facts = key_values(place.root / "proc/meminfo")
    total, free = (int(facts[name].split()[0]) / 1000 for name in ("SwapTotal", "SwapFree"))
    if place.window.swapped:
        return warning(
            f"{place.window.swapped} pages were swapped in {place.window.seconds:.1f} s",
            "sudo swapoff --all",
        )
    if total == 0:
        return ok("there is no swap")
    if free == total:
        return ok("swap is empty")
    return warning(
        f"{total - free:.0f} MB are in swap: they are read from the disk when they are needed",
        "sudo swapoff --all && sudo swapon --all",
    )


def stolen(place: Place) -> Seen:
    """Time that a hypervisor gave to other virtual machines: no process of this one shows it."""
    share = place.window.stolen
    if share is None:
        return unknown("the kernel doesn't say how much time a hypervisor takes")
    if share < STOLEN_SHARE:
        return ok(f"{share:.1%} of the processors' time went to other virtual machines")
    return warning(
        f"{share:.1%} of the processors' time went to other virtual machines: no measurement here"
        " is steady",
        "vmstat 1 5   # column st; then another host, or dedicated processors",
    )


NOISE: tuple[Examination[Place], ...] = (
    Examination("governor", governor),
    Examination("turbo", turbo),
    Examination("SMT", smt),
    Examination("load", load),
    Examination("other processes", others),
    Examination("swap", swap),
    Examination("stolen time", stolen),
)
"""What makes measurements differ, checked one by one."""

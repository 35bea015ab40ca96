"""Whether a stage fits into this machine's memory, told before anything starts."""

from __future__ import annotations

from dataclasses import dataclass

from benchwright.errors import Difference, GateRefused, Where
from benchwright.execution.cgroup import memory_limit
from benchwright.execution.memory import MB
from benchwright.execution.tree import read_proc

RESERVE = 0.10
"""Of the capacity, for what an estimate misses: inside it a person has to agree."""

MACHINE_SHARE = 0.85
"""Of the machine, at most, for one stage: the rest is the kernel's, its page cache's and that of
everything else that keeps the machine usable."""


@dataclass(frozen=True, slots=True)
class MachineMemory:
    """Memory of a machine, in MB (10^6 bytes).

    Attributes:
        total_mb: What is built in, or the machine's share of it.
        available_mb: What new processes could take now without swapping.
        group_limit_mb: Lowest limit of the control groups that this process is in; None for none.
    """

    total_mb: float
    available_mb: float
    group_limit_mb: float | None = None

    @property
    def machine_mb(self) -> float:
        """What could ever be used from here."""
        return min(self.total_mb, self.group_limit_mb or self.total_mb)

    @property
    def capacity_mb(self) -> float:
        """What can be used now."""
        return min(self.machine_mb, self.available_mb)


def machine_memory() -> MachineMemory:
    """Read this machine's memory from /proc/meminfo and from the control groups."""
    fields = {}
    for line in (read_proc("/proc/meminfo") or b"").decode().splitlines():
        name, _, value = line.partition(":")
        fields[name] = int(value.split()[0]) * 1024 / MB
    total = fields["MemTotal"]
    limit = memory_limit()
    return MachineMemory(
        total_mb=total,
        available_mb=fields.get("MemAvailable", fields["MemFree"]),
        group_limit_mb=limit / MB if limit is not None and limit / MB < total else None,
    )


def check_memory(
    budget_mb: float | None,
    estimated_peak_mb: float | None,
    machine: MachineMemory,
    where: Where | None = None,
) -> str | None:
    """Check a stage's need against the machine.

    The need is the estimated peak, or the budget where nothing is estimated.

    Args:
        budget_mb: What the guard lets the stage take, in MB.
        estimated_peak_mb: What it is expected to take (measured before, or declared), in MB.
        machine: Of the machine that it will run on.
        where: Place of the budget in the configuration, for the error.

    Returns:
        A warning that a person has to acknowledge; None where the stage fits, or where nothing is
        known of its need.

    Raises:
        GateRefused: It doesn't fit: over 85 % of the machine, over the capacity, or estimated
            above its own budget.
    """
    need, name = estimated_peak_mb, "estimated peak"
    if need is None:
        need, name = budget_mb, "memory budget"
    if need is None:
        return None
    most = machine.machine_mb * MACHINE_SHARE
    for value, what in ((budget_mb, "memory budget"), (need, name)):
        if value is not None and value > most:
            raise _refusal(
                f"the {what} of {value:.0f} MB is over {MACHINE_SHARE:.0%} of this machine",
                Difference(
                    what.replace(" ", "_") + "_mb",
                    f"{value:.0f}",
                    f"{most:.0f}",
                    f"the machine has {machine.machine_mb:.0f} MB, and the system needs its part",
                ),
                where,
                f"set it to {most:.0f} MB or less, or run on a larger machine",
            )
    if budget_mb is not None and need > budget_mb:
        raise _refusal(
            f"the estimated peak of {need:.0f} MB is over the stage's own budget",
            Difference("memory_mb", f"{need:.0f}", f"{budget_mb:.0f}", "the guard would end it"),
            where,
            f"raise `resources.memory_mb` to {need / (1 - RESERVE):.0f}, or make the stage smaller",
        )
    headroom = machine.capacity_mb - need
    reserve = machine.capacity_mb * RESERVE
    if headroom < 0:
        raise _refusal(
            f"the {name} of {need:.0f} MB doesn't fit: headroom {headroom:.0f} MB",
            Difference(
                "capacity_mb",
                f"{need:.0f}",
                f"{machine.capacity_mb:.0f}",
                "the stage, or a neighbour, would be killed for memory",
            ),
            where,
            "end what else is using memory (`ps -eo rss,args --sort=-rss | head`), make the stage "
            "smaller, or run on a larger machine",
        )
    if headroom < reserve:
        return (
            f"the {name} of {need:.0f} MB leaves {headroom:.0f} MB of the "
            f"{machine.capacity_mb:.0f} MB that can be used now, less than the reserve of "
            f"{RESERVE:.0%} ({reserve:.0f} MB)"
        )
    return None


def _refusal(what: str, row: Difference, where: Where | None, hint: str) -> GateRefused:
    return GateRefused(
        what,
        differences=(row,),
        where=where,
        expected=f"at most {row.right} MB",
        hint=hint,
    )

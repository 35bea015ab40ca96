"""What a machine must have for its runs to be guarded, timed and recorded."""

from __future__ import annotations

import ctypes
import os
import re
import shutil
import time
from pathlib import Path
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from benchwright.execution.accelerators import read_machine
from benchwright.execution.memory import mechanisms
from benchwright.identity.reading import text
from benchwright.planning.health.check import (
    Examination,
    Place,
    Seen,
    broken,
    ok,
    unknown,
    warning,
)
from benchwright.planning.preflight import MIN_FREE_BYTES, TIGHT_FREE_BYTES

MIN_FREE_INODES = 10_000
"""A run makes some ten files, a build as many as it likes."""

STEP_S = 0.005
"""A wall clock that moves so far against the monotonic one within a window was set meanwhile."""

SLEW_PPM = 100.0
"""A clock that is being corrected by more than this is far off; ntpd and chrony keep a clock that
is in step within a few tens."""

SLOW_SOURCES = frozenset({"hpet", "acpi_pm", "jiffies", "refined-jiffies", "pit"})
"""Clock sources whose reading takes a microsecond or more, or that tick in milliseconds."""

NETWORK_FILES = frozenset({"nfs", "nfs4", "cifs", "smb3", "9p", "fuse.sshfs", "ceph", "lustre"})
"""File systems on which locks may not hold between machines, and SQLite is unsafe
(https://www.sqlite.org/faq.html#q5)."""

NVIDIA = "0x10de"
DISPLAY_CLASSES = ("0x0300", "0x0302")
"""PCI classes of graphics and 3D controllers."""


def disk(place: Place) -> Seen:
    """Whether records and builds have room."""
    there = _existing(place.home)
    found = os.statvfs(there)
    free = found.f_bavail * found.f_frsize
    prune = "benchwright cache prune --older-than 30"
    if free < MIN_FREE_BYTES:
        return broken(
            f"{there} has {free / 1e6:.0f} MB free, a run needs {MIN_FREE_BYTES / 1e6:.0f}", prune
        )
    if found.f_files and found.f_favail < MIN_FREE_INODES:
        return broken(f"{there} has room for {found.f_favail} more files only", prune)
    if free < TIGHT_FREE_BYTES:
        return warning(f"{there} has only {free / 1e9:.1f} GB free", prune)
    return ok(f"{there} has {free / 1e9:.0f} GB free")


def file_system(place: Place) -> Seen:
    """Whether locks and the local server's database are safe where the home lies."""
    there = _existing(place.home)
    kind = _kind_of(there, place.root)
    if not os.access(there, os.W_OK):
        return broken(f"you can't write in {there}", f"ls -ld {there}")
    if kind in NETWORK_FILES:
        return warning(
            f"{there} is on {kind}: a database there is unsafe, and locks may not hold between"
            " machines",
            "export BENCHMARK_HOME=/a/folder/of/this/machine",
        )
    return ok(f"{there} is on {kind}") if kind else unknown("the mounts can't be read")


def clock(place: Place) -> Seen:
    """Whether the wall clock goes as the monotonic one does, and both near the hardware's rate."""
    before, after = place.window.before, place.window.after
    span = after.monotonic - before.monotonic
    step = (after.wall - before.wall) - span
    if abs(step) > STEP_S:
        return warning(
            f"the wall clock was set while it was watched: it moved by {step * 1e3:+.1f} ms in"
            f" {span:.1f} s",
            "timedatectl timesync-status",
        )
    slew = (span / (after.raw - before.raw) - 1) * 1e6
    if abs(slew) > SLEW_PPM:
        return warning(
            f"the clock is being corrected by {slew:+.0f} millionths: it is far off",
            "timedatectl timesync-status",
        )
    return ok(f"the clocks agree ({step * 1e6:+.0f} µs in {span:.1f} s)")


class _Timex(ctypes.Structure):
    """`struct timex` up to what is read here (adjtimex(2)); the rest is padding."""

    _fields_ = (
        ("modes", ctypes.c_uint),
        ("offset", ctypes.c_long),
        ("freq", ctypes.c_long),
        ("maxerror", ctypes.c_long),
        ("esterror", ctypes.c_long),
        ("status", ctypes.c_int),
        ("padding", ctypes.c_char * 256),
    )


TIME_ERROR = 5
"""What adjtimex(2) gives for a clock that nothing keeps in step."""


def read_time_service() -> tuple[bool, float]:
    """Whether something keeps the clock in step, and the largest error that it claims (seconds).

    Raises:
        OSError: The kernel doesn't say (a container may be kept from asking).
    """
    state = _Timex()
    answer = ctypes.CDLL(None, use_errno=True).adjtimex(ctypes.byref(state))
    if answer < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    return answer != TIME_ERROR, state.maxerror / 1e6


def time_service(place: Place) -> Seen:
    """Whether a time service keeps the clock."""
    try:
        kept, error_s = read_time_service()
    except (OSError, AttributeError) as problem:
        return unknown(f"the kernel doesn't say whether the clock is kept in step: {problem}")
    if kept:
        return ok(f"a time service keeps the clock (within {error_s * 1e3:.0f} ms)")
    return warning(
        "nothing keeps the clock in step: records of several machines won't be in order",
        "sudo timedatectl set-ntp true",
    )


def clock_source(place: Place) -> Seen:
    """Whether reading the clock is quick."""
    file = place.root / "sys/devices/system/clocksource/clocksource0/current_clocksource"
    if not file.exists():
        return unknown("the kernel doesn't show its clock source")
    source = text(file)
    if source in SLOW_SOURCES:
        better = text(file.with_name("available_clocksource")).split()
        quick = next((name for name in better if name not in SLOW_SOURCES), "tsc")
        path = Path("/") / file.relative_to(place.root)
        return warning(
            f"the clock source is {source}: each reading takes a microsecond or more",
            f"echo {quick} | sudo tee {path}",
        )
    return ok(f"the clock source is {source}")


_POSIX_ZONE = re.compile(r"(<[+\-\w]+>|[A-Za-z]{3,})([+-]?\d.*)")
"""A zone by its rule, such as `CET-1CEST,M3.5.0,M10.5.0/3` (tzset(3))."""


def time_zone(place: Place) -> Seen:
    """Whether times are read in the zone that was meant: a misspelt TZ is UTC without a word."""
    named = place.environ.get("TZ", "").removeprefix(":")
    here = time.strftime("%Z %z")
    if named and not named.startswith("/") and not _POSIX_ZONE.fullmatch(named):
        try:
            ZoneInfo(named)
        except (ZoneInfoNotFoundError, ValueError, OSError):
            return warning(
                f"TZ={named} is no time zone that this machine knows: times are taken for UTC",
                "timedatectl list-timezones",
            )
    return ok(f"the time zone is {here}")


def memory_guard(place: Place) -> Seen:
    """Which mechanism guards a stage's memory here, and why not a better one."""
    reasons = mechanisms()
    chosen = next(name for name, reason in reasons.items() if not reason)
    better = {
        name: reason
        for name, reason in reasons.items()
        if reason and list(reasons).index(name) < list(reasons).index(chosen)
    }
    why = "; ".join(better.values())
    if chosen == "polling":
        return warning(
            f"a stage's memory is guarded by looking at it every 10 ms, the kernel doesn't help:"
            f" {why}",
            "systemd-run --user --scope -p Delegate=yes benchwright run ...",
        )
    return ok(f"a stage's memory is guarded by the kernel ({chosen})" + (f"; {why}" * bool(why)))


def gpu_driver(place: Place) -> Seen:
    """Whether the GPUs that are there can be used."""
    machine = read_machine(place.environ, place.root)
    if machine.gpus:
        names = ", ".join(sorted({device.name for device in machine.gpus}))
        return ok(f"{len(machine.gpus)} GPU(s): {names}")
    cards = nvidia_cards(place.root)
    if not cards:
        return ok("there is no GPU")
    command = "nvidia-smi"
    if "not installed" in machine.why_no_gpus:
        command = "pip install 'benchwright[gpu]'"
    return broken(f"{cards} NVIDIA GPU(s) can't be used: {machine.why_no_gpus}", command)


def nvidia_cards(root: Path) -> int:
    """GPUs of NVIDIA on the PCI bus, whether their driver works or not."""
    count = 0
    for device in (root / "sys/bus/pci/devices").glob("*"):
        vendor, kind = device / "vendor", device / "class"
        if vendor.exists() and kind.exists():
            count += text(vendor) == NVIDIA and text(kind).startswith(DISPLAY_CLASSES)
    return count


def shell(place: Place) -> Seen:
    """Whether stages with `cmd` have their shell."""
    found = shutil.which("bash", path=place.environ.get("PATH"))
    if found:
        return ok(f"commands run in {found}")
    return broken("bash is missing: stages with `cmd` run in it", "sudo apt-get install bash")


def _existing(home: Path) -> Path:
    return next(path for path in (home, *home.absolute().parents) if path.is_dir())


def _kind_of(path: Path, root: Path) -> str:
    """Kind of the file system that holds a path, from the mount that is nearest to it."""
    best, kind = -1, ""
    for line in text(root / "proc/self/mountinfo").splitlines():
        left, _, right = line.partition(" - ")
        point = re.sub(r"\\(\d{3})", lambda match: chr(int(match[1], 8)), left.split()[4])
        if path.absolute().is_relative_to(point) and len(point) >= best:
            best, kind = len(point), right.split()[0]
    return kind


MACHINE: tuple[Examination[Place], ...] = (
    Examination("shell", shell),
    Examination("disk", disk),
    Examination("file system", file_system),
    Examination("memory guard", memory_guard),
    Examination("GPU driver", gpu_driver),
    Examination("clock", clock),
    Examination("clock source", clock_source),
    Examination("time service", time_service),
    Examination("time zone", time_zone),
)
"""What runs stand on, checked one by one."""

"""Control groups: where this process stands, and a leaf below it for one stage.

A leaf is made below the process's own group, never at the root of a hierarchy: limits of the
groups above stay in force, and what other software manages is left alone.

In version 2 a group that has processes can't hand a controller on to groups below it. Only where
the group was delegated to us (`systemd-run --user --scope -p Delegate=yes ...`) its processes are
moved into an inner group first, as systemd asks of those it delegates to.
"""

from __future__ import annotations

import contextlib
import errno
import os
import time
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from benchwright.execution.tree import read_proc

PREFIX = "benchwright-"
"""Leaves of ours start with this, for the sweep that removes those of dead supervisors."""

INNER = "benchwright-main"
"""The inner group of a delegated group: holds what was in the group itself."""

_DELEGATED = ("user.delegate", "trusted.delegate")
"""Extended attributes by which systemd says that a group was handed over."""

_MOVES = 20
_REMOVE_PATIENCE_S = 2.0
"""A killed process leaves its group a moment after it is reaped; rmdir says EBUSY until then."""


@dataclass(frozen=True, slots=True)
class Group:
    """A control group that can account memory.

    Attributes:
        path: Its folder.
        version: 1 or 2.
    """

    path: Path
    version: int


def own_memory_group(version: int) -> Group | None:
    """The group of this process in the memory hierarchy of a version.

    Returns:
        None where that hierarchy isn't mounted, or this process stands at its root.
    """
    mount = _memory_mount(version)
    place = _own_place(version)
    if mount is None or place is None:
        return None
    root, point = mount
    # A container sees its own group as the root of the mount: the path counts from there.
    try:
        inside = Path(place).relative_to(root)
    except ValueError:
        return None
    path = Path(point) / inside
    if not path.is_dir() or is_root(path, version):
        return None
    return Group(path, version)


def leaf_parent(version: int) -> Group | None:
    """The group below which leaves can be made and limited; None where there is none."""
    own = own_memory_group(version)
    if own is None or version == 1:
        return own
    for group in (own.path, own.path.parent):
        if hands_on(group, "memory") and (group == own.path or own.path.name == INNER):
            return Group(group, 2)
    if is_delegated(own.path) and hand_on(own.path, "memory"):
        return own
    return None


def hands_on(path: Path, controller: str) -> bool:
    """Whether the groups below a group of version 2 have a controller."""
    return controller.encode() in (read_proc(f"{path}/cgroup.subtree_control") or b"").split()


def is_delegated(path: Path) -> bool:
    """Whether systemd has handed a group of version 2 over to whom it runs."""
    for name in _DELEGATED:
        with contextlib.suppress(OSError):
            if os.getxattr(path, name) == b"1":
                return True
    return False


def hand_on(path: Path, controller: str) -> bool:
    """Give the groups below a delegated group a controller; False where it can't be.

    The group's own processes, this one among them, are moved into an inner group.
    """
    inner = path / INNER
    try:
        inner.mkdir(exist_ok=True)
        for _ in range(_MOVES):  # a process may be forking while it is moved
            pids = (read_proc(f"{path}/cgroup.procs") or b"").split()
            if not pids:
                break
            for pid in pids:
                with contextlib.suppress(ProcessLookupError):
                    write(inner / "cgroup.procs", pid.decode())
        write(path / "cgroup.subtree_control", f"+{controller}")
    except OSError:
        return False
    return hands_on(path, controller)


def memory_limit() -> int | None:
    """Lowest memory limit of the groups that this process is in, in bytes; None for none."""
    limits = []
    for version, name in ((1, "memory.limit_in_bytes"), (2, "memory.max")):
        group = own_memory_group(version)
        mount = _memory_mount(version)
        if group is None or mount is None:
            continue
        path = group.path
        while path.is_relative_to(mount[1]):
            text = (read_proc(f"{path}/{name}") or b"").strip()
            # Version 1 writes "no limit" as the largest number of whole pages in 63 bits.
            if text.isdigit() and int(text) < 1 << 62:
                limits.append(int(text))
            path = path.parent
    return min(limits, default=None)


def is_root(path: Path, version: int) -> bool:
    """Whether a folder is the root of the machine's hierarchy, namespaces seen through.

    Version 1 shows `release_agent` at the root only, version 2 shows `cgroup.type` everywhere
    but there.
    """
    if version == 1:
        return (path / "release_agent").exists()
    return not (path / "cgroup.type").exists()


@cache
def _memory_mount(version: int) -> tuple[str, str] | None:
    """Root and mount point of the hierarchy, from /proc/self/mountinfo."""
    for line in (read_proc("/proc/self/mountinfo") or b"").decode(errors="replace").splitlines():
        left, separator, right = line.partition(" - ")
        if not separator:
            continue
        kind, _, options = right.split(" ", 2)
        fields = left.split(" ")
        root, point = (_unescape(field) for field in fields[3:5])
        if version == 2 and kind == "cgroup2":
            return root, point
        if version == 1 and kind == "cgroup" and "memory" in options.split(" ")[-1].split(","):
            return root, point
    return None


def _unescape(field: str) -> str:
    """Undo the octal escapes that the kernel writes for blanks in a path."""
    for code, character in (("\\040", " "), ("\\011", "\t"), ("\\012", "\n"), ("\\134", "\\")):
        field = field.replace(code, character)
    return field


def _own_place(version: int, pid: int | str = "self") -> str | None:
    """This process's path in the hierarchy, from /proc/PID/cgroup."""
    for line in (read_proc(f"/proc/{pid}/cgroup") or b"").decode(errors="replace").splitlines():
        number, controllers, place = line.split(":", 2)
        if version == 2 and number == "0":
            return place
        if version == 1 and "memory" in controllers.split(","):
            return place
    return None


class Leaf:
    """A group for one stage.

    Args:
        group: The group below which it is made.
        name: Its folder's name.

    Raises:
        OSError: It can't be made there, or a process can't be put into it.
    """

    def __init__(self, group: Group, name: str) -> None:
        self.path = group.path / name
        self.version = group.version
        self.path.mkdir()
        try:
            self.join_fd = os.open(self.path / "cgroup.procs", os.O_WRONLY | os.O_CLOEXEC)
        except OSError:
            self.path.rmdir()
            raise

    def read(self, name: str) -> bytes | None:
        """One of its files; None where it can't be read."""
        return read_proc(f"{self.path}/{name}")

    def read_int(self, name: str) -> int | None:
        """A file with one number; None where it can't be read or says `max`."""
        text = self.read(name)
        if text is None or not text.strip().isdigit():
            return None
        return int(text)

    def read_table(self, name: str) -> dict[str, int]:
        """A file of `key number` lines; empty where it can't be read."""
        table = {}
        for line in (self.read(name) or b"").decode().splitlines():
            key, _, value = line.partition(" ")
            if value.strip().isdigit():
                table[key] = int(value)
        return table

    def write(self, name: str, text: str) -> None:
        """Write one of its files.

        Raises:
            OSError: The kernel refused.
        """
        write(self.path / name, text)

    def members(self) -> list[int]:
        """Processes in it and in the groups below it."""
        return members(self.path)

    def holds(self, pid: int) -> bool:
        """Whether a process is in it or below it."""
        place = _own_place(self.version, pid)
        return place is not None and self.path.name in place.split("/")

    def kill(self) -> None:
        """Kill everything in it at once, where the kernel can (version 2, Linux 5.14)."""
        with contextlib.suppress(OSError):
            self.write("cgroup.kill", "1")

    def close(self) -> None:
        """Remove it, with what the stage made below it. Nothing may be running in it."""
        with contextlib.suppress(OSError):
            os.close(self.join_fd)
        remove(self.path)


def write(path: Path, text: str) -> None:
    """Write a control file in one call, as the kernel wants it."""
    fd = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
    try:
        os.write(fd, text.encode())
    finally:
        os.close(fd)


def subgroups(path: Path) -> list[Path]:
    """Groups below a group, deepest first."""
    try:
        # A group has as many links as a folder has: two, and one for each group in it.
        if path.stat().st_nlink == 2:
            return []
        inner = [Path(entry.path) for entry in os.scandir(path) if entry.is_dir()]
    except OSError:
        return []
    return [group for entry in inner for group in (*subgroups(entry), entry)]


def members(path: Path) -> list[int]:
    """Processes in a group and in the groups below it."""
    found: list[int] = []
    for group in (path, *subgroups(path)):
        found.extend(map(int, (read_proc(f"{group}/cgroup.procs") or b"").split()))
    return found


def remove(path: Path) -> bool:
    """Remove a group without processes, deepest groups first; False where it stays."""
    deadline = time.monotonic() + _REMOVE_PATIENCE_S
    while True:
        try:
            for group in (*subgroups(path), path):
                group.rmdir()
        except FileNotFoundError:
            return True
        except OSError as error:
            if error.errno != errno.EBUSY or time.monotonic() > deadline:
                return False
            time.sleep(0.002)
        else:
            return True

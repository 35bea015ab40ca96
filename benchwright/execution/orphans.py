"""The mark that a stage's processes carry, and the sweep that ends those left alone.

A stage's processes are ended by their supervisor, or by its zygote where the supervisor was
killed. Where both were killed in the same instant, this finds what is left: every process of a
stage carries in its environment which supervisor it belongs to, by PID and start time.
"""

from __future__ import annotations

import hashlib
import os
import time
from dataclasses import dataclass
from pathlib import Path

from benchwright.execution import cgroup, tree

VARIABLE = "BENCHWRIGHT_STAGE"

_LABEL_WIDTH = 48
_KILL_PATIENCE_S = 10.0


@dataclass(frozen=True, slots=True)
class Mark:
    """Whose a process is.

    Attributes:
        home: Digest of the home folder whose run it belongs to.
        namespace: PID namespace in which the supervisor's PID counts: a sweep outside a container
            must not take its stages for orphans.
        supervisor: PID of its supervisor.
        started: Start time of that process in clock ticks: the PID may be another's by now.
        token: Names the launch.
        label: The launch's label, as far as it fits.
    """

    home: str
    namespace: int
    supervisor: int
    started: int
    token: str
    label: str = ""

    def __str__(self) -> str:
        """The variable's value, of one width for all: the size of a program's environment shifts
        its stack and with it its speed (Mytkowicz et al., ASPLOS 2009), so it must not differ
        between two arms."""
        label = "".join(c if c.isascii() and c.isprintable() else "_" for c in self.label)
        return ":".join(
            (
                self.home,
                f"{self.namespace:010d}",
                f"{self.supervisor:010d}",
                f"{self.started:020d}",
                self.token,
                label[-_LABEL_WIDTH:].ljust(_LABEL_WIDTH, "-"),
            )
        )

    @classmethod
    def parse(cls, text: str) -> Mark | None:
        """A mark from the variable's value; None where it is none of ours."""
        parts = text.split(":", 5)
        if len(parts) != 6 or not all(part.isdigit() for part in parts[1:4]):
            return None
        home, namespace, supervisor, started, token, label = parts
        return cls(home, int(namespace), int(supervisor), int(started), token, label.rstrip("-"))

    @property
    def leaf(self) -> str:
        """Name of the stage's control group."""
        place = f"{self.home}-{self.namespace}-{self.supervisor}-{self.started}"
        return f"{cgroup.PREFIX}{place}-{self.token}"

    @classmethod
    def of_leaf(cls, name: str) -> Mark | None:
        """A mark from the name of a control group."""
        parts = name.removeprefix(cgroup.PREFIX).split("-")
        if not name.startswith(cgroup.PREFIX) or len(parts) != 5:
            return None
        return cls.parse(":".join((*parts, "")))

    @property
    def alone(self) -> bool:
        """Whether its supervisor is gone; False where that can't be told from here."""
        if self.namespace != pid_namespace():
            return False
        stat = tree.stat_of(self.supervisor)
        return stat is None or stat.started != self.started or not stat.alive


@dataclass(frozen=True, slots=True)
class Orphan:
    """A process that a sweep ended.

    Attributes:
        pid, name: The process.
        label: Label of the stage that it came from.
    """

    pid: int
    name: str
    label: str


def pid_namespace() -> int:
    """Names the PID namespace of this process; 0 where the kernel doesn't say."""
    try:
        return os.stat("/proc/self/ns/pid").st_ino  # noqa: PTH116
    except OSError:
        return 0


def digest_of(home: Path | None) -> str:
    """Names a home folder in a mark, eight hexadecimal digits."""
    return hashlib.sha256(os.fsencode(home.resolve() if home else "")).hexdigest()[:8]


def mark_of(pid: int) -> Mark | None:
    """The mark in a process's environment; None where it has none or it may not be read."""
    environ = tree.read_proc(f"/proc/{pid}/environ")
    if not environ:
        return None
    for entry in environ.split(b"\0"):
        name, _, value = entry.partition(b"=")
        if name == VARIABLE.encode():
            return Mark.parse(value.decode(errors="replace"))
    return None


def find_orphans(home: Path | None = None) -> list[Orphan]:
    """Every process of a stage whose supervisor is gone; see `sweep_orphans`, which ends them."""
    digest = digest_of(home) if home is not None else None
    found: dict[int, Orphan] = {}
    for pid in tree.all_processes():
        mark = mark_of(pid)
        if mark is not None and digest in (None, mark.home) and mark.alone and tree.alive(pid):
            _remember(found, pid, mark.label)
    return list(found.values())


def sweep_orphans(home: Path | None = None, token: str | None = None) -> list[Orphan]:
    """End every process of a stage whose supervisor is gone, and remove its control group.

    Args:
        home: Sweeps the runs of this home folder only; None sweeps all.
        token: Sweeps this launch only.

    Returns:
        What was ended.
    """
    digest = digest_of(home) if home is not None else None

    def ours(mark: Mark | None) -> bool:
        return (
            mark is not None
            and digest in (None, mark.home)
            and token in (None, mark.token)
            and mark.alone
        )

    leaves = [leaf for leaf in _leaves() if ours(Mark.of_leaf(leaf.name))]
    found: dict[int, Orphan] = {}

    def members() -> list[int]:
        pids = []
        for pid in tree.all_processes():
            mark = mark_of(pid)
            if ours(mark) and pid != os.getpid():
                assert mark is not None
                pids.append(pid)
                _remember(found, pid, mark.label)
        for leaf in leaves:
            for pid in cgroup.members(leaf):
                pids.append(pid)
                _remember(found, pid, "")
        return pids

    deadline = time.monotonic() + _KILL_PATIENCE_S
    while members() and time.monotonic() < deadline:
        tree.kill_all(members)
        time.sleep(0.005)
    for leaf in leaves:
        cgroup.remove(leaf)
    return list(found.values())


def _remember(found: dict[int, Orphan], pid: int, label: str) -> None:
    if pid not in found:
        stat = tree.stat_of(pid)
        found[pid] = Orphan(pid, stat.name if stat is not None else "", label)


def _leaves() -> list[Path]:
    """Control groups of stages below this process's own group."""
    leaves: list[Path] = []
    for version in (1, 2):
        group = cgroup.leaf_parent(version)
        if group is not None:
            leaves.extend(group.path.glob(f"{cgroup.PREFIX}*"))
    return leaves


def end_descendants(spare: set[int], leaf_token: str = "") -> None:
    """End all children of this process but the spared ones, with all that came from them.

    Args:
        spare: Children that go on.
        leaf_token: Also ends what is in the control group of this launch, and removes it.
    """
    leaves = [leaf for leaf in _leaves() if leaf_token and leaf.name.endswith(f"-{leaf_token}")]

    def members() -> list[int]:
        roots = [pid for pid in tree.children(os.getpid()) if pid not in spare]
        pids = roots + tree.descendants(roots)
        for leaf in leaves:
            pids += cgroup.members(leaf)
        return pids

    deadline = time.monotonic() + _KILL_PATIENCE_S
    while (alive := members()) and time.monotonic() < deadline:
        tree.kill_all(members)
        for pid in alive:
            try:
                os.waitpid(pid, os.WNOHANG)
            except ChildProcessError:
                continue  # a grandchild: it comes to us, or goes with its own parent
        time.sleep(0.001)
    for leaf in leaves:
        cgroup.remove(leaf)

"""The machine's part of a fingerprint: read from `/proc`, `/sys` and `/etc` alone.

What changes by itself (free memory, load, temperature) is no part of it.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from benchwright.identity.canonical import digest
from benchwright.identity.reading import (
    NONE,
    NOT_EXPOSED,
    Field,
    Unreadable,
    all_of,
    count_of,
    key_values,
    text,
)

KIB = 1024
GIB = 1024**3
MB = 1_000_000

NO_LIMIT_BYTES = 2**60
"""cgroup v1 writes "no limit" as the largest page-aligned number; any limit that could bind a
machine of today lies below this."""

CPU = Path("sys/devices/system/cpu")
DMI = Path("sys/class/dmi/id")
CGROUP = Path("sys/fs/cgroup")

VIRTUAL_VENDORS = {
    "QEMU": "QEMU/KVM",
    "Red Hat": "QEMU/KVM",
    "Amazon EC2": "Amazon EC2",
    "Google": "Google Compute Engine",
    "Microsoft Corporation": "Hyper-V",
    "VMware, Inc.": "VMware",
    "Xen": "Xen",
    "innotek GmbH": "VirtualBox",
    "DigitalOcean": "DigitalOcean",
    "OpenStack Foundation": "OpenStack",
}
"""DMI's `sys_vendor` of virtual machines, and what runs them."""


def _machine_id(root: Path) -> str:
    # machine-id(5) asks not to hand the id itself on, but a digest that only one program makes.
    return digest(f"benchwright\0{text(root / 'etc/machine-id')}")[:16]


def _cpu_model(root: Path) -> str:
    facts = key_values(root / "proc/cpuinfo")
    if "model name" in facts:
        return facts["model name"]
    names = ("CPU implementer", "CPU part", "CPU variant", "CPU revision")  # Arm
    return " ".join(f"{name.removeprefix('CPU ')} {facts[name]}" for name in names)


def _topology(root: Path) -> Iterator[tuple[str, str]]:
    """Package and core of each logical CPU that is online."""
    for cpu in (root / CPU).glob("cpu[0-9]*/topology"):
        package = text(cpu / "physical_package_id")
        yield package, text(cpu / "core_id")


def _cores(root: Path) -> str:
    return count_of(set(_topology(root)))


def _threads(root: Path) -> str:
    return count_of(_topology(root))


def _sockets(root: Path) -> str:
    return count_of({package for package, _ in _topology(root)})


def _usable(root: Path) -> str:
    return str(len(os.sched_getaffinity(0)))


def _governor(root: Path) -> str:
    files = sorted((root / CPU).glob("cpu[0-9]*/cpufreq/scaling_governor"))
    return all_of(text(file) for file in files) if files else NOT_EXPOSED


def _turbo(root: Path) -> str:
    no_turbo = root / CPU / "intel_pstate/no_turbo"
    if no_turbo.exists():
        return "off" if text(no_turbo) == "1" else "on"
    boost = root / CPU / "cpufreq/boost"
    if boost.exists():
        return "on" if text(boost) == "1" else "off"
    return NOT_EXPOSED


def _memory(root: Path) -> str:
    total = _kib(root, "MemTotal") * KIB / GIB
    # The kernel keeps a little more or less for itself at each boot: rounded, it's the machine's.
    return f"{total:.0f} GiB" if total >= 8 else f"{total:.1f} GiB"


def _swap(root: Path) -> str:
    total = _kib(root, "SwapTotal") * KIB / GIB
    return f"{total:.1f} GiB" if total else NONE


def _kib(root: Path, name: str) -> int:
    return int(key_values(root / "proc/meminfo")[name].split()[0])


def _numa(root: Path) -> str:
    nodes = root / "sys/devices/system/node"
    return str(len(list(nodes.glob("node[0-9]*")))) if nodes.exists() else NOT_EXPOSED


def _virtualisation(root: Path) -> str:
    if (root / "sys/hypervisor/type").exists():
        return text(root / "sys/hypervisor/type")
    vendor = text(root / DMI / "sys_vendor") if (root / DMI / "sys_vendor").exists() else ""
    for name, what in VIRTUAL_VENDORS.items():
        if vendor.startswith(name):
            return what
    facts = key_values(root / "proc/cpuinfo")
    if "hypervisor" in facts.get("flags", "").split():
        return "a hypervisor that gives no name"
    if not vendor and "flags" not in facts:
        # Arm has no such flag: without a vendor, nothing tells a virtual machine from a real one.
        raise Unreadable
    return NONE


def _kernel(root: Path) -> str:
    return text(root / "proc/sys/kernel/osrelease")


def _groups(root: Path, controller: str) -> Iterator[tuple[Path, bool]]:
    """This process's control group and those above it, and whether it's version 2."""
    for line in text(root / "proc/self/cgroup").splitlines():
        _, controllers, path = line.split(":", 2)
        if controllers and controller not in controllers.split(","):
            continue
        top = root / CGROUP / controllers
        if controllers and not top.exists():
            top = root / CGROUP / controller
        # Inside a container the path may be the host's, and nothing is there but the mount's root.
        here = top / path.lstrip("/")
        while here == top or top in here.parents:
            yield here, not controllers
            here = here.parent


def _memory_limit(root: Path) -> str:
    limits = []
    for group, second in _groups(root, "memory"):
        file = group / ("memory.max" if second else "memory.limit_in_bytes")
        value = text(file) if file.exists() else "max"
        if value != "max" and int(value) < NO_LIMIT_BYTES:
            limits.append(int(value))
    return f"{min(limits) / MB:.0f} MB" if limits else NONE


def _cpu_limit(root: Path) -> str:
    limits = []
    for group, second in _groups(root, "cpu"):
        if second:
            quota, period = _two(group / "cpu.max")
        else:
            quota, period = _one(group / "cpu.cfs_quota_us"), _one(group / "cpu.cfs_period_us")
        if quota not in {"max", "-1"}:
            limits.append(int(quota) / int(period))
    return f"{min(limits):.2f} CPUs" if limits else NONE


def _one(file: Path) -> str:
    return text(file) if file.exists() else "-1"


def _two(file: Path) -> tuple[str, str]:
    quota, period = text(file).split() if file.exists() else ("max", "100000")
    return quota, period


def _container(root: Path) -> str:
    if (root / "run/.containerenv").exists():
        return "podman"
    if (root / ".dockerenv").exists():
        return "docker"
    if os.environ.get("APPTAINER_CONTAINER") or os.environ.get("SINGULARITY_CONTAINER"):
        return "apptainer"
    if os.environ.get("KUBERNETES_SERVICE_HOST"):
        return "kubernetes"
    return os.environ.get("container") or NONE  # noqa: SIM112 - the name that systemd defines


def _container_image(root: Path) -> str | None:
    file = root / "run/.containerenv"
    if file.exists():
        facts = key_values(file, "=")
        image = facts.get("imageid", facts.get("image", "")).strip('"')
        return image or None
    apptainer = os.environ.get("APPTAINER_CONTAINER") or os.environ.get("SINGULARITY_CONTAINER")
    # Docker tells a container nothing of its image.
    return Path(apptainer).name if apptainer else None


MACHINE: tuple[Field[Path], ...] = (
    Field("machine.id", "another machine, be it of the same model, has other neighbours and other "
          "cooling", _machine_id),
    Field("machine.cpu_model", "another processor runs the same code at another speed", _cpu_model),
    Field("machine.cores", "parallel work scales with the cores", _cores),
    Field("machine.threads", "hardware threads share a core", _threads),
    Field("machine.sockets", "memory of another socket is farther away", _sockets),
    Field("machine.cpus_allowed", "fewer CPUs were allowed to one side", _usable),
    Field("machine.governor", "the frequency governor decides the clock under load", _governor),
    Field("machine.turbo", "turbo raises the clock for as long as heat allows", _turbo),
    Field("machine.memory_total", "what fits in memory is cached, the rest is read again", _memory),
    Field("machine.swap", "swapped memory is read from a disk", _swap),
    Field("machine.numa_nodes", "memory of another node is farther away", _numa),
    Field("machine.virtualisation", "a hypervisor takes time that the guest doesn't see",
          _virtualisation),
    Field("machine.kernel", "scheduler, file systems and mitigations differ between kernels",
          _kernel),
    Field("machine.memory_limit", "the page cache counts against a group's memory", _memory_limit),
    Field("machine.cpu_limit", "a CPU quota stops a group until its next period", _cpu_limit),
    Field("machine.container", "a container has other libraries and another file system",
          _container),
    Field("machine.container_image", "another image has other libraries", _container_image),
)  # fmt: skip
"""The machine's fields; each reader gets the root of the file system."""

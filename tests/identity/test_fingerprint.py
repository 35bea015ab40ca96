"""What a run ran on, and how two of them are compared (gate 2, rule 7)."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from benchwright.errors import BadInput
from benchwright.identity.accelerator import read_accelerator
from benchwright.identity.code import read_code
from benchwright.identity.fingerprint import (
    UNKNOWN,
    WHY,
    Fingerprint,
    compare_fingerprints,
    take_fingerprint,
    why_it_matters,
)
from benchwright.identity.machine import MACHINE
from benchwright.identity.reading import Field, read_fields

# -- taking --------------------------------------------------------------------------------------


def test_this_machine_has_a_fingerprint_with_every_section(tmp_path: Path) -> None:
    taken = take_fingerprint(folder=tmp_path, packages=("pytest", "no-such"), env={"A": "secret"})
    sections = [name.partition(".")[0] for name in taken.fields]
    assert list(dict.fromkeys(sections)) == ["machine", "software", "code", "accelerator"]
    assert taken.fields["machine.threads"] == str(os.cpu_count())
    assert taken.fields["software.package.pytest"] == pytest.__version__
    assert taken.fields["software.package.no-such"] == "not installed"
    assert "secret" not in str(taken.fields)
    assert all(taken.fields.values())


def test_two_in_a_row_are_the_same_and_take_little_time(tmp_path: Path) -> None:
    first = take_fingerprint(folder=tmp_path, packages=(), env={})
    times = []
    for _ in range(3):
        started = time.perf_counter()
        again = take_fingerprint(folder=tmp_path, packages=(), env={})
        times.append(time.perf_counter() - started)
        assert again == first
    assert min(times) < 0.15


def test_a_reader_that_fails_in_any_way_gives_unknown() -> None:
    def fail(_: None) -> str:
        raise ZeroDivisionError

    fields: tuple[Field[None], ...] = (
        Field("a.fails", "", fail),
        Field("a.empty", "", lambda _: " "),
        Field("a.absent", "", lambda _: None),
        Field("a.good", "", lambda _: "x"),
    )
    values = read_fields(fields, None)
    assert values == {"a.fails": UNKNOWN, "a.empty": UNKNOWN, "a.good": "x"}
    assert Fingerprint(values).unknown == ("a.fails", "a.empty")


def test_the_fingerprint_of_nothing_readable_is_unknown_not_an_error(tmp_path: Path) -> None:
    values = read_fields(MACHINE, tmp_path)
    unknown = {name for name, value in values.items() if value == UNKNOWN}
    assert {"machine.id", "machine.cpu_model", "machine.cores", "machine.kernel"} <= unknown
    assert {"machine.memory_total", "machine.swap", "machine.memory_limit"} <= unknown


def root_of(folder: Path, files: dict[str, str]) -> Path:
    for name, content in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(content)
    return folder


SERVER = {
    "etc/machine-id": "0123456789abcdef0123456789abcdef\n",
    "proc/cpuinfo": "processor : 0\nmodel name\t: Xeon Gold\nflags : fpu\n\nmodel name : Other\n",
    "proc/meminfo": "MemTotal: 131852220 kB\nMemFree: 1 kB\nSwapTotal: 8388604 kB\n",
    "proc/sys/kernel/osrelease": "6.1.0-18-amd64\n",
    "proc/self/cgroup": "0::/bench.slice/run.scope\n",
    "sys/fs/cgroup/cgroup.controllers": "cpu memory\n",
    "sys/fs/cgroup/bench.slice/memory.max": "8000000000\n",
    "sys/fs/cgroup/bench.slice/cpu.max": "400000 100000\n",
    "sys/fs/cgroup/bench.slice/run.scope/memory.max": "max\n",
    "sys/fs/cgroup/bench.slice/run.scope/cpu.max": "150000 100000\n",
    "sys/devices/system/cpu/intel_pstate/no_turbo": "1\n",
    "sys/devices/system/node/node0/cpulist": "0\n",
    "sys/devices/system/node/node1/cpulist": "2\n",
    "sys/class/dmi/id/sys_vendor": "Dell Inc.\n",
    **{
        f"sys/devices/system/cpu/cpu{cpu}/{name}": value
        for cpu in range(8)
        for name, value in {
            "topology/physical_package_id": str(cpu // 4),
            "topology/core_id": str(cpu // 2 % 2),
            "cpufreq/scaling_governor": "performance" if cpu else "powersave",
        }.items()
    },
}


def test_a_two_socket_server_is_read_from_its_files(tmp_path: Path) -> None:
    values = read_fields(MACHINE, root_of(tmp_path, SERVER))
    expected = {
        "machine.cpu_model": "Xeon Gold",
        "machine.cores": "4",
        "machine.threads": "8",
        "machine.sockets": "2",
        "machine.governor": "1 x powersave, 7 x performance",
        "machine.turbo": "off",
        "machine.memory_total": "126 GiB",
        "machine.swap": "8.0 GiB",
        "machine.numa_nodes": "2",
        "machine.virtualisation": "none",
        "machine.kernel": "6.1.0-18-amd64",
        "machine.memory_limit": "8000 MB",
        "machine.cpu_limit": "1.50 CPUs",
    }
    assert {name: values[name] for name in expected} == expected
    assert "0123456789abcdef" not in values["machine.id"]


@pytest.mark.parametrize(
    ("name", "change", "expected"),
    [
        ("machine.turbo", {"sys/devices/system/cpu/intel_pstate/no_turbo": "0"}, "on"),
        ("machine.virtualisation", {"sys/class/dmi/id/sys_vendor": "Amazon EC2"}, "Amazon EC2"),
        ("machine.virtualisation", {"sys/hypervisor/type": "xen"}, "xen"),
        (
            "machine.virtualisation",
            {"proc/cpuinfo": "flags : fpu hypervisor\n"},
            "a hypervisor that gives no name",
        ),
        (
            "machine.cpu_model",
            {
                "proc/cpuinfo": "CPU implementer : 0x41\nCPU variant : 0x3\n"
                "CPU part : 0xd0c\nCPU revision : 1\n"
            },
            "implementer 0x41 part 0xd0c variant 0x3 revision 1",
        ),
        ("machine.swap", {"proc/meminfo": "MemTotal: 1 kB\nSwapTotal: 0 kB\n"}, "none"),
        (
            "machine.memory_limit",
            {
                "proc/self/cgroup": "4:memory:/job\n2:cpu,cpuacct:/\n0::/\n",
                "sys/fs/cgroup/memory/job/memory.limit_in_bytes": "512000000\n",
                "sys/fs/cgroup/memory/memory.limit_in_bytes": "9223372036854771712\n",
            },
            "512 MB",
        ),
        (
            "machine.cpu_limit",
            {
                "proc/self/cgroup": "2:cpu,cpuacct:/docker/abc\n0::/\n",
                "sys/fs/cgroup/cpu,cpuacct/cpu.cfs_quota_us": "200000\n",
                "sys/fs/cgroup/cpu,cpuacct/cpu.cfs_period_us": "100000\n",
            },
            "2.00 CPUs",
        ),
        ("machine.container", {"run/.containerenv": ""}, "podman"),
        (
            "machine.container_image",
            {"run/.containerenv": 'image="docker.io/x:1"\nimageid="abc"\n'},
            "abc",
        ),
    ],
)
def test_other_machines_say_it_in_other_files(
    tmp_path: Path, name: str, change: dict[str, str], expected: str
) -> None:
    assert read_fields(MACHINE, root_of(tmp_path, {**SERVER, **change}))[name] == expected


# -- code ----------------------------------------------------------------------------------------


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """A repository with one commit."""
    place = tmp_path / "project"
    place.mkdir()
    git(place, "init", "-q", "-b", "trunk")
    (place / "run.py").write_text("print(1)\n")
    (place / ".gitignore").write_text("ignored\n")
    commit(place)
    return place


def git(place: Path, *arguments: str) -> str:
    identity = ["-c", "user.name=t", "-c", "user.email=t@t", "-c", "protocol.file.allow=always"]
    command = ["git", *identity, *arguments]
    return subprocess.run(
        command, cwd=place, check=True, capture_output=True, text=True
    ).stdout.strip()


def commit(place: Path) -> None:
    git(place, "add", "-A")
    git(place, "commit", "-q", "-m", "c")


def test_a_clean_repository_is_its_commit(repository: Path) -> None:
    (repository / "deep" / "er").mkdir(parents=True)
    assert read_code(repository / "deep" / "er") == {
        "code.repository": "project",
        "code.commit": git(repository, "rev-parse", "HEAD"),
        "code.branch": "trunk",
        "code.uncommitted": "none",
        "code.submodules": "none",
    }


def test_a_folder_in_no_repository_has_no_code(tmp_path: Path) -> None:
    assert set(read_code(tmp_path).values()) == {"none"}


def changed_content(place: Path) -> None:
    (place / "run.py").write_text("print(2)\n")


def changed_mode(place: Path) -> None:
    (place / "run.py").chmod(0o755)


def deleted(place: Path) -> None:
    (place / "run.py").unlink()


def untracked(place: Path) -> None:
    (place / "a new one.py").write_text("")


def untracked_with_content(place: Path) -> None:
    (place / "a new one.py").write_text("x = 1\n")


def staged(place: Path) -> None:
    (place / "b.py").write_text("")
    git(place, "add", "b.py")


CHANGES = (changed_content, changed_mode, deleted, untracked, untracked_with_content, staged)


def test_each_uncommitted_change_has_a_digest_of_its_own(repository: Path) -> None:
    seen = {read_code(repository)["code.uncommitted"]}
    for change in CHANGES:
        change(repository)
        seen.add(read_code(repository)["code.uncommitted"])
        git(repository, "reset", "-q", "--hard")
        git(repository, "clean", "-qfd")
    assert len(seen) == len(CHANGES) + 1
    assert read_code(repository)["code.uncommitted"] == "none"


def test_ignored_files_and_the_home_of_the_runs_are_no_change_of_the_code(
    repository: Path,
) -> None:
    (repository / "ignored").write_text("x")
    (repository / "benchmark_data" / "runs").mkdir(parents=True)
    (repository / "benchmark_data" / "runs" / "results.yaml").write_text("x")
    assert read_code(repository)["code.uncommitted"] != "none"
    home = repository / "benchmark_data"
    assert read_code(repository, exclude=(home,))["code.uncommitted"] == "none"


def test_a_repository_without_a_commit_has_none(tmp_path: Path) -> None:
    git(tmp_path, "init", "-q", "-b", "trunk")
    assert read_code(tmp_path)["code.commit"] == "none"


def test_a_submodules_other_commit_is_seen(repository: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.mkdir()
    git(other, "init", "-q")
    (other / "x").write_text("1")
    commit(other)
    git(repository, "submodule", "-q", "add", str(other), "sub")
    commit(repository)
    before = read_code(repository)
    assert before["code.submodules"] not in {"none", UNKNOWN}
    (repository / "sub" / "x").write_text("2")
    dirty = read_code(repository)
    assert dirty["code.uncommitted"] not in {"none", UNKNOWN}
    commit(repository / "sub")
    after = read_code(repository)
    assert after["code.submodules"] != before["code.submodules"]
    assert after["code.uncommitted"] not in {dirty["code.uncommitted"], "none", UNKNOWN}


def test_a_broken_repository_is_unknown_not_none(tmp_path: Path) -> None:
    (tmp_path / ".git").write_text("gitdir: nowhere\n")
    assert set(read_code(tmp_path).values()) == {UNKNOWN}


def test_a_machine_without_git_can_not_tell(
    repository: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(repository))
    assert set(read_code(repository).values()) == {UNKNOWN}


def test_a_program_that_the_repository_names_is_not_run(repository: Path) -> None:
    hook = repository.parent / "hook.sh"
    hook.write_text(f"#!/bin/sh\ntouch {repository.parent}/ran\n")
    hook.chmod(0o755)
    git(repository, "config", "core.fsmonitor", str(hook))
    read_code(repository)
    assert not (repository.parent / "ran").exists()


# -- accelerators --------------------------------------------------------------------------------


class StandInNvml:
    """NVML's binding with two devices that lack MIG, the second with ECC off."""

    NVML_ERROR_NOT_SUPPORTED = 3

    class NVMLError(Exception):
        def __init__(self, value: int) -> None:
            self.value = value

    class Memory:
        total = 80_000_000_000

    def __init__(self) -> None:
        self.open = 0

    def nvmlInit(self) -> None:  # noqa: N802 - NVML's own names, here and below
        self.open += 1

    def nvmlShutdown(self) -> None:  # noqa: N802
        self.open -= 1

    def nvmlDeviceGetCount(self) -> int:  # noqa: N802
        return 2

    def nvmlDeviceGetHandleByIndex(self, index: int) -> int:  # noqa: N802
        return index

    def nvmlDeviceGetName(self, device: int) -> bytes:  # noqa: N802
        return b"NVIDIA H100"

    def nvmlSystemGetDriverVersion(self) -> str:  # noqa: N802
        return "550.54"

    def nvmlSystemGetCudaDriverVersion(self) -> int:  # noqa: N802
        return 12040

    def nvmlDeviceGetMemoryInfo(self, device: int) -> Memory:  # noqa: N802
        return self.Memory()

    def nvmlDeviceGetEccMode(self, device: int) -> list[int]:  # noqa: N802
        return [1 - device, 1]

    def nvmlDeviceGetEnforcedPowerLimit(self, device: int) -> int:  # noqa: N802
        raise self.NVMLError(999)

    def nvmlDeviceGetMigMode(self, device: int) -> list[int]:  # noqa: N802
        raise self.NVMLError(self.NVML_ERROR_NOT_SUPPORTED)


def with_nvml(monkeypatch: pytest.MonkeyPatch, binding: object) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", binding)


def without_tpu(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("TPU_ACCELERATOR_TYPE", "ACCELERATOR_TYPE", "TPU_TOPOLOGY"):
        monkeypatch.delenv(name, raising=False)


def test_nvidia_devices_are_read_by_nvml_and_nvml_is_closed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    binding = StandInNvml()
    with_nvml(monkeypatch, binding)
    without_tpu(monkeypatch)
    values = read_accelerator(tmp_path)
    assert values == {
        "accelerator.model": "NVIDIA H100",
        "accelerator.count": "2",
        "accelerator.memory": "80000 MB",
        "accelerator.driver": "550.54",
        "accelerator.cuda": "12.4",
        "accelerator.ecc": "1 x on, 1 x off",
        "accelerator.power_limit": UNKNOWN,
        "accelerator.mig": "not supported",
        "accelerator.tpu_type": "none",
        "accelerator.tpu_topology": "none",
        "accelerator.tpu_chips": "none",
    }
    assert binding.open == 0


@pytest.mark.parametrize(("device", "expected"), [(False, "none"), (True, UNKNOWN)])
def test_without_nvml_a_device_file_means_unknown_and_none_means_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, device: bool, expected: str
) -> None:
    with_nvml(monkeypatch, None)  # the import fails
    root_of(tmp_path, {"dev/nvidia0": ""} if device else {})
    assert read_accelerator(tmp_path)["accelerator.model"] == expected


def test_tpus_are_read_from_device_files_and_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with_nvml(monkeypatch, None)
    without_tpu(monkeypatch)
    files = {}
    for chip in range(4):
        files[f"sys/bus/pci/devices/0000:00:0{chip}.0/vendor"] = "0x1ae0\n"
        files[f"sys/bus/pci/devices/0000:00:0{chip}.0/device"] = "0x0063\n"
    files["sys/bus/pci/devices/0000:00:09.0/vendor"] = "0x8086\n"
    monkeypatch.setenv("TPU_TOPOLOGY", "2x2")
    values = read_accelerator(root_of(tmp_path, files))
    tpu = {name: value for name, value in values.items() if "tpu" in name}
    assert tpu == {
        "accelerator.tpu_type": "v5e",
        "accelerator.tpu_topology": "2x2",
        "accelerator.tpu_chips": "4",
    }


# -- comparing -----------------------------------------------------------------------------------

BASE = {
    "machine.cpu_model": "Xeon",
    "machine.kernel": "6.1",
    "machine.governor": "performance",
    "software.python": "3.11.7",
    "software.package.numpy": "2.1",
    "code.repository": "project",
    "code.branch": "main",
    "code.commit": "abc",
}


def other(**changes: str) -> Fingerprint:
    return Fingerprint({**BASE, **{name.replace("__", "."): v for name, v in changes.items()}})


def test_the_same_fingerprint_is_the_same() -> None:
    assert compare_fingerprints(other(), other()).same


def test_gate_2_rule_7_a_difference_is_named_field_by_field_with_its_reason() -> None:
    found = compare_fingerprints(
        other(), other(machine__kernel="6.2", software__package__numpy="2")
    )
    assert [(row.field, row.left, row.right) for row in found.differences] == [
        ("machine.kernel", "6.1", "6.2"),
        ("software.package.numpy", "2.1", "2"),
    ]
    assert all(row.why for row in found.differences)
    assert not found.same


@pytest.mark.parametrize("allowed", ["machine.kernel", "machine"])
def test_gate_2_rule_7_an_allowed_field_or_section_is_kept_apart(allowed: str) -> None:
    changed = other(machine__kernel="6.2", software__python="3.12.0")
    found = compare_fingerprints(other(), changed, allow=(allowed,))
    assert [row.field for row in found.allowed] == ["machine.kernel"]
    assert [row.field for row in found.differences] == ["software.python"]


def test_unknown_on_either_side_or_on_both_is_never_equal() -> None:
    unknown = other(machine__governor=UNKNOWN)
    for a, b in ((unknown, other()), (other(), unknown), (unknown, unknown)):
        found = compare_fingerprints(a, b)
        assert (found.differences, found.unknowns) == ((), ("machine.governor",))
        assert not found.same


def test_a_field_that_one_side_never_looked_at_is_unknown_there() -> None:
    fewer = Fingerprint({k: v for k, v in BASE.items() if k != "software.package.numpy"})
    assert compare_fingerprints(other(), fewer).unknowns == ("software.package.numpy",)
    assert compare_fingerprints(fewer, other()).unknowns == ("software.package.numpy",)


def test_the_same_commit_on_another_branch_or_in_another_clone_is_the_same_code() -> None:
    clone = other(code__branch="(detached)", code__repository="project-2")
    assert compare_fingerprints(other(), clone).same


@pytest.mark.parametrize(
    ("allowed", "nearest"),
    [
        ("machine.kernal", "machine.kernel"),
        ("kernel", "machine.kernel"),
        ("numpy", "software.package.numpy"),
        ("machin", "machine"),
    ],
)
def test_a_name_that_allows_nothing_is_refused_with_the_nearest(allowed: str, nearest: str) -> None:
    with pytest.raises(BadInput, match=f"did you mean '{nearest}'"):
        compare_fingerprints(other(), other(), allow=(allowed,))


def test_a_field_that_is_the_same_may_be_allowed_in_advance() -> None:
    assert compare_fingerprints(other(), other(), allow=("accelerator.driver", "code")).same


def test_every_field_that_is_taken_has_a_reason(tmp_path: Path) -> None:
    taken = take_fingerprint(folder=tmp_path, packages=("pytest",), env={"A": "1"})
    assert all(why_it_matters(name) != "a field of the fingerprint" for name in taken.fields)
    assert all(WHY.values())

"""What a host computes on, and how the report names it: TPU, GPU, CPU."""

from __future__ import annotations

import runpy
import stat
from pathlib import Path
from typing import Any

import pytest

from benchwright.identity.accelerator import TPU_PCI_DEVICES
from domains.serving.probe import PROGRAM, Probe, _probe_of
from domains.serving.report import status_lines
from domains.serving.request import Target

NVIDIA_SMI = """#!/bin/sh
case "$*" in *--query-gpu=name,memory.total,driver_version,uuid*--format=csv,noheader*) ;;
*) exit 2 ;; esac
echo 'NVIDIA H200, 143771 MiB, 570.86.15, GPU-5d0a1c1e-0d6a-9a39-3b0e-0f7f0a3c5e11'
echo 'NVIDIA H200, 143771 MiB, 570.86.15, GPU-77aa3d0c-2c1f-61a5-8f0e-5a2f3cf8d2b4'
"""


def hardware(root: Path, **environ: str) -> dict[str, Any]:
    """What the probe's own program reads below a root, of a process with that environment."""
    program = runpy.run_path(str(PROGRAM))
    found: dict[str, Any] = program["hardware"]({"environ": environ}, TPU_PCI_DEVICES, str(root))
    return found


def pci(root: Path, number: int, vendor: str, device: str) -> None:
    folder = root / "sys/bus/pci/devices" / f"0000:00:{number:02x}.0"
    folder.mkdir(parents=True)
    (folder / "vendor").write_text(f"{vendor}\n")
    (folder / "device").write_text(f"{device}\n")


def seen(
    found: dict[str, Any], packages: dict[str, str] | None = None, **more: Any
) -> dict[str, Any]:
    """A whole answer of the probe's program, around what it read of the hardware."""
    return {
        "time": 0.0,
        "endpoint": {
            "health": 200,
            "health_problem": "",
            "models": ["m"],
            "models_problem": "",
            "models_status": 200,
        },
        "process": {
            "pid": 7,
            "user": "me",
            "args": ["/opt/venv/bin/python", "-m", "sgl_jax.launch_server", "--model-path", "/m"],
            "started_ticks": 5,
            "started": 0.0,
            "environ": {},
            "found_by": "user",
        },
        "problems": {},
        "versions": {
            "python": "3.12.9",
            "packages": {
                name: {"version": version, "direct_url": None}
                for name, version in (packages or {}).items()
            },
        },
        "engine": "sglang-jax",
        "engine_says": {},
        "repository": {"path": "/src", "commit": "c0ffee1", "branch": "main", "changed": False},
        "others": [],
        "peers": 0,
        "hardware": found,
        "machine": {"name": "h", "kernel": "6"},
        **more,
    }


def status(probe: Probe, evalscope: str | None = "1.14.1") -> str:
    return "\n".join(status_lines("success", probe, "http://127.0.0.1:30000", evalscope=evalscope))


@pytest.mark.parametrize(("device", "kind"), [("0x006f", "v6e"), ("0x0063", "v5e")])
def test_a_tpu_is_known_by_its_pci_device_whatever_its_device_files_are_called(
    tmp_path: Path, device: str, kind: str
) -> None:
    for number in range(4):
        pci(tmp_path, number, "0x1ae0", device)
    pci(tmp_path, 9, "0x1af4", "0x1000")  # a network card
    found = hardware(tmp_path)
    assert (found["tpu_type"], found["tpu_chips"]) == (kind, 4)


def test_another_makers_accelerator_is_no_tpu(tmp_path: Path) -> None:
    (tmp_path / "dev").mkdir()
    (tmp_path / "dev" / "accel0").write_text("")
    pci(tmp_path, 0, "0x8086", "0x7d1d")
    assert hardware(tmp_path)["tpu_chips"] == 0


def test_a_tpu_host_has_its_labels_and_versions_in_the_reports_words(tmp_path: Path) -> None:
    for number in range(4):
        pci(tmp_path, number, "0x1ae0", "0x006f")
    found = hardware(tmp_path, TPU_ACCELERATOR_TYPE="v6e-4", TPU_TOPOLOGY="2x2")
    packages = {"sglang-jax": "0.0.3", "jax": "0.7.2", "jaxlib": "0.7.2", "libtpu": "0.0.23"}
    probe = _probe_of(seen(found, packages), Target(), "tpu-1")
    text = status(probe)
    for line in (
        "- Target resource: TPU v6e-4",
        "  - TPU type: v6e-4\n  - Topology: 2x2\n  - Chips: 4",
        "  - sglang-jax: 0.0.3 @ c0ffee1 (main)\n  - evalscope: 1.14.1\n  - jax: 0.7.2\n"
        "  - libtpu: 0.0.23",
    ):
        assert line in text
    assert "- Model path: /m\n" in text
    # The speed report calls it the engine, and has no evalscope.
    assert "  - engine: sglang-jax 0.0.3 @ c0ffee1 (main)\n  - jax: 0.7.2" in status(probe, None)
    assert not [note for note in probe.notes if "TPU" in note or "Topology" in note]


def test_a_topology_that_nothing_tells_is_unknown_with_a_note(tmp_path: Path) -> None:
    pci(tmp_path, 0, "0x1ae0", "0x006f")
    probe = _probe_of(seen(hardware(tmp_path)), Target(), "tpu-1")
    assert probe.hardware == {"TPU type": "v6e", "Topology": "unknown", "Chips": "1"}
    assert any(note.startswith("Topology: ") for note in probe.notes)


@pytest.fixture
def gpus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """A host with two GPUs, as `nvidia-smi` prints them."""
    program = tmp_path / "bin" / "nvidia-smi"
    program.parent.mkdir()
    program.write_text(NVIDIA_SMI)
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("PATH", str(program.parent), prepend=":")
    return hardware(tmp_path)


@pytest.mark.parametrize(
    ("packages", "cuda"),
    [
        ({"torch": "2.8.0+cu128"}, "12.8"),
        ({"torch": "2.8.0", "nvidia-cuda-runtime-cu12": "12.8.90"}, "12.8.90"),
        ({"torch": "2.8.0"}, "unknown"),
    ],
)
def test_a_gpu_host_has_the_gpus_own_labels(
    gpus: dict[str, Any], packages: dict[str, str], cuda: str
) -> None:
    probe = _probe_of(seen(gpus, {"vllm": "0.11.0", **packages}, engine="vllm"), Target(), "gpu-1")
    text = status(probe)
    assert "- Target resource: GPU 2 x NVIDIA H200" in text
    assert "  - GPU: 2 x NVIDIA H200\n  - GPU memory: 143771 MiB\n  - Driver: 570.86.15" in text
    torch = packages["torch"]
    assert f"  - vllm: 0.11.0 @ c0ffee1 (main)\n  - evalscope: 1.14.1\n  - torch: {torch}" in text
    assert f"  - CUDA: {cuda}" in text


def test_what_a_person_says_of_the_hardware_goes_over_what_was_read(tmp_path: Path) -> None:
    target = Target(tpu_type="v5p-8", topology="2x2x1", chips=4)
    probe = _probe_of(seen(hardware(tmp_path)), target, "tpu-1")
    assert list(probe.hardware.values()) == ["v5p-8", "2x2x1", "4"]


@pytest.mark.parametrize(
    ("args", "path"),
    [
        ("python -m sgl_jax.launch_server --model-path /m --port 1", "/m"),
        ("python3 -m vllm.entrypoints.openai.api_server --model=org/m", "org/m"),
        ("/v/bin/python /v/bin/vllm serve org/m --port 1", "org/m"),
        ("/usr/bin/llama-server -m /m.gguf --port 1", "/m.gguf"),
        ("python -m some.server --port 1", "unknown"),
    ],
)
def test_the_models_path_is_the_servers_argument_and_not_a_modules_name(
    tmp_path: Path, args: str, path: str
) -> None:
    answer = seen(hardware(tmp_path))
    answer["process"]["args"] = args.split()
    assert _probe_of(answer, Target(), "h").model_path == path

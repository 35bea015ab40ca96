"""Devices of a machine: which are free, who keeps them, how a process is held to them."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from dataclasses import replace
from pathlib import Path

import pytest

from benchwright.errors import GateRefused, GuardEnded, Interrupted
from benchwright.execution import accelerators as module
from benchwright.execution.accelerators import (
    Accelerators,
    Machine,
    check_accelerators,
    choose,
    read_machine,
)
from benchwright.execution.device import Device, DeviceProcess, Vendor
from benchwright.execution.kfd import amd_devices
from benchwright.execution.pinning import allowed, pin
from benchwright.execution.tpu import tpu_chips
from benchwright.spec.model import Resources, Stage, StageKind
from tests.nvml import StandIn, nvml  # noqa: F401 - a fixture


def device(uuid: str, name: str = "H200", index: int = 0, **changes: object) -> Device:
    made = Device(uuid, name, index, Vendor.NVIDIA, 8000.0, 8000.0)
    return replace(made, **changes)  # type: ignore[arg-type]


def stage(gpus: int = 1, vram_mb: float | None = None, tpus: int = 0, **changes: object) -> Stage:
    wants = Resources(gpus=gpus, vram_mb=vram_mb, tpus=tpus)
    kinds = {"name": "train", "kind": StageKind.STEP, "cmd": "true", "resources": wants}
    return Stage.model_validate({**kinds, **changes})


def uuids(devices: tuple[Device, ...]) -> list[str]:
    return [one.uuid for one in devices]


# Choosing


def test_a_device_that_somebody_computes_on_is_passed_over_with_who_it_is() -> None:
    busy = device("GPU-a", processes=(DeviceProcess(os.getpid(), 5.0),))
    choice = choose([busy, device("GPU-b")], 1)
    assert uuids(choice.devices) == ["GPU-b"]
    assert f"PID {os.getpid()}" in choice.passed_over[0][1]


def test_a_display_server_keeps_nobody_from_a_device() -> None:
    drawn_on = device("GPU-a", processes=(DeviceProcess(1, 200.0, computes=False),))
    assert uuids(choose([drawn_on], 1).devices) == ["GPU-a"]


def test_memory_must_be_free_and_not_only_there() -> None:
    choice = choose([device("GPU-a", free_mb=900.0), device("GPU-b")], 1, vram_mb=1000.0)
    assert uuids(choice.devices) == ["GPU-b"]
    assert choice.passed_over == ((device("GPU-a", free_mb=900.0), "only 900 of 8000 MB are free"),)


def test_several_devices_are_of_one_model() -> None:
    mixed = [device("GPU-a", "T4"), device("GPU-b"), device("GPU-c")]
    assert uuids(choose(mixed, 2).devices) == ["GPU-b", "GPU-c"]
    assert len(choose(mixed, 3).devices) == 2


def test_one_process_gets_one_mig_instance_at_most() -> None:
    slices = [device(f"MIG-{n}", "1g", is_slice=True) for n in range(3)]
    assert uuids(choose(slices, 1).devices) == ["MIG-0"]
    assert choose(slices, 2).devices == ()
    assert uuids(choose([*slices, device("GPU-a")], 1).devices) == ["GPU-a"]


def test_later_replicates_get_the_devices_of_the_earlier_ones() -> None:
    assert uuids(choose([device("GPU-a"), device("GPU-b")], 1, prefer=["GPU-b"]).devices) == [
        "GPU-b"
    ]


# Reading


def test_devices_processes_and_memory_are_read_through_nvml(nvml: StandIn) -> None:  # noqa: F811
    nvml.add("process GPU-a 4321 500", "graphics GPU-b 99 50")
    machine = read_machine({})
    assert uuids(machine.gpus) == ["GPU-a", "GPU-b"]
    first, second = machine.gpus
    assert (first.name, first.total_mb, first.free_mb) == ("NVIDIA Test", 8000.0, 7400.0)
    assert first.processes == (DeviceProcess(4321, 500.0),)
    assert second.processes == (DeviceProcess(99, 50.0, computes=False),)


def test_a_gpu_with_mig_is_its_instances(nvml: StandIn) -> None:  # noqa: F811
    nvml.write(
        "device GPU-a NVIDIA_A100 40000 100",
        "mig MIG-1 NVIDIA_A100_MIG_1g.5gb 5000 0",
        "mig MIG-2 NVIDIA_A100_MIG_1g.5gb 5000 0",
        "device GPU-b NVIDIA_A100 40000 100",
        "process MIG-1 7 100",
    )
    machine = read_machine({})
    assert uuids(machine.gpus) == ["MIG-1", "MIG-2", "GPU-b"]
    assert uuids(choose(machine.gpus[:2], 1).devices) == ["MIG-2"]


def test_without_a_driver_there_are_no_gpus_and_the_reason_is_known(
    nvml: StandIn,  # noqa: F811
) -> None:
    nvml.file.unlink()
    machine = read_machine({})
    assert machine.gpus == ()
    assert "Driver Not Loaded" in machine.why_no_gpus


def test_a_driver_that_stops_answering_leaves_no_gpus(nvml: StandIn) -> None:  # noqa: F811
    nvml.add("lost")
    machine = read_machine({})
    assert machine.gpus == ()
    assert "stopped answering" in machine.why_no_gpus


@pytest.mark.parametrize(
    ("listed", "seen"),
    [
        ("0", ["GPU-a"]),
        ("1,0", ["GPU-b", "GPU-a"]),
        ("GPU-b", ["GPU-b"]),
        ("", []),
        ("-1", []),
        ("7,0", []),  # what follows an unknown entry isn't seen either
    ],
)
def test_what_a_cluster_leaves_its_caller_is_all_that_is_there(
    nvml: StandIn,  # noqa: F811
    listed: str,
    seen: list[str],
) -> None:
    assert uuids(read_machine({"CUDA_VISIBLE_DEVICES": listed}).gpus) == seen


def test_amd_devices_are_read_from_the_kernels_files(tmp_path: Path) -> None:
    nodes = tmp_path / "sys/class/kfd/kfd/topology/nodes"
    for number, facts in enumerate(
        ("simd_count 0\n", "simd_count 304\nunique_id 255\ndrm_render_minor 128\n")
    ):
        node = nodes / str(number)
        node.mkdir(parents=True)
        (node / "gpu_id").write_text("0\n" if number == 0 else "4711\n")
        (node / "properties").write_text(facts)
    card = tmp_path / "sys/class/drm/renderD128/device"
    card.mkdir(parents=True)
    (card / "mem_info_vram_total").write_text("192000000000\n")
    (card / "mem_info_vram_used").write_text("2000000000\n")
    (card / "product_name").write_text("AMD Instinct MI300X\n")
    process = tmp_path / "sys/class/kfd/kfd/proc/77"
    process.mkdir(parents=True)
    (process / "vram_4711").write_text("1000000000\n")
    (found,) = amd_devices(tmp_path)
    assert (found.uuid, found.name, found.index) == (f"GPU-{255:016x}", "AMD Instinct MI300X", 0)
    assert (found.total_mb, found.free_mb) == (192000.0, 190000.0)
    assert found.processes == (DeviceProcess(77, 1000.0),)


def test_tpu_chips_are_their_device_files_and_who_has_them_open(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TPU_ACCELERATOR_TYPE", "v5e")
    (tmp_path / "dev").mkdir()
    for number in range(4):
        (tmp_path / f"dev/accel{number}").touch()
    descriptors = tmp_path / "proc/42/fd"
    descriptors.mkdir(parents=True)
    (descriptors / "3").symlink_to(tmp_path / "dev/accel0")
    chips = tpu_chips(tmp_path)
    assert uuids(tuple(chips)) == ["TPU-0", "TPU-1", "TPU-2", "TPU-3"]
    assert chips[0].processes == (DeviceProcess(42, None),)
    chosen = choose(chips, 2)
    assert uuids(chosen.devices) == ["TPU-1", "TPU-2"]
    pins = pin(chosen.devices, tpu_chips=4)
    assert pins["TPU_VISIBLE_CHIPS"] == "1,2"
    assert pins["TPU_CHIPS_PER_PROCESS_BOUNDS"] == "1,2,1"


# Pinning


def test_a_process_is_held_to_its_devices_by_uuid() -> None:
    pins = pin([device("GPU-b", index=1), device("GPU-a")])
    assert pins == {"CUDA_VISIBLE_DEVICES": "GPU-b,GPU-a"}


def test_hip_counts_what_rocr_left_and_cudas_variable_stays_unset() -> None:
    pins = pin([device("GPU-00000000000000ff", index=3, vendor=Vendor.AMD)])
    assert pins == {"ROCR_VISIBLE_DEVICES": "GPU-00000000000000ff", "HIP_VISIBLE_DEVICES": "0"}


def test_an_index_of_a_scheduler_names_all_slices_of_its_gpu() -> None:
    slices = [device(f"MIG-{n}", index=n // 2, is_slice=True) for n in range(4)]
    assert uuids(tuple(allowed(slices, {"CUDA_VISIBLE_DEVICES": "1"}))) == ["MIG-2", "MIG-3"]


# Refusals before anything runs


def test_too_few_devices_name_the_stage_what_it_asks_and_what_is_there() -> None:
    machine = Machine(gpus=(device("GPU-a", processes=(DeviceProcess(1, 5.0),)), device("GPU-b")))
    with pytest.raises(GateRefused) as refused:
        check_accelerators([stage(gpus=2, vram_mb=1000)], machine)
    assert refused.value.what == (
        "stage 'train' asks for 2 GPUs with 1000 MB free on each; 1 of the 2 here can be had"
    )
    assert "in use by" in refused.value.differences[0].right


def test_no_driver_is_the_reason_for_no_gpus() -> None:
    with pytest.raises(GateRefused, match="there is no GPU here: NVML can't be used"):
        check_accelerators([stage()], Machine(why_no_gpus="NVML can't be used"))


def test_a_stage_that_pins_itself_is_refused() -> None:
    chosen = stage(env={"CUDA_VISIBLE_DEVICES": "0"})
    with pytest.raises(GateRefused, match="sets CUDA_VISIBLE_DEVICES itself"):
        check_accelerators([chosen], Machine(gpus=(device("GPU-a"),)))


def test_what_our_own_stages_have_will_come_back(nvml: StandIn) -> None:  # noqa: F811
    nvml.add(f"process GPU-a {os.getpid()} 7000", "process GPU-b 1 7000")
    with Accelerators({}).reserved(stage(gpus=0)):
        lock = module._Lock.take("GPU-a")
        assert lock is not None
        check_accelerators([stage(vram_mb=5000)], read_machine({}))
        lock.free()
    with pytest.raises(GateRefused, match="0 of the 2 here"):
        check_accelerators([stage(vram_mb=5000)], read_machine({}))


# Keeping them

HOLDER = """
import sys
from benchwright.execution.accelerators import Accelerators
from benchwright.spec.model import Stage
stage = Stage.model_validate({"name": "s", "kind": "step", "cmd": "true", "resources": {"gpus": 1}})
with Accelerators({}).reserved(stage) as devices:
    print(devices[0].uuid, flush=True)
    sys.stdin.read()
"""


def holder() -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", HOLDER],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )


def test_two_processes_never_get_the_same_device_and_a_killed_one_keeps_none(
    nvml: StandIn,  # noqa: F811
) -> None:
    first, second = holder(), holder()
    try:
        assert first.stdout is not None
        assert second.stdout is not None
        got = {first.stdout.readline().strip(), second.stdout.readline().strip()}
        assert got == {"GPU-a", "GPU-b"}
        waited: list[str] = []
        cancelled = threading.Event()
        desk = Accelerators({}, cancelled=cancelled, on_wait=waited.append)
        threading.Timer(0.1, first.kill).start()
        with desk.reserved(stage()) as devices:
            assert uuids(devices)[0] in got
        assert waited == ["devices that another stage has"]
    finally:
        for process in (first, second):
            process.kill()
            process.communicate()


def test_waiting_for_devices_ends_when_the_run_is_cancelled(nvml: StandIn) -> None:  # noqa: F811
    cancelled = threading.Event()
    outer = Accelerators({})
    inner = Accelerators({}, cancelled=cancelled, on_wait=lambda _: cancelled.set())
    with outer.reserved(stage(gpus=2)), pytest.raises(Interrupted), inner.reserved(stage()):
        pass


def test_devices_that_others_took_end_the_run_with_what_was_seen(
    nvml: StandIn,  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "SETTLE_S", 0.0)
    nvml.write("device GPU-a NVIDIA_Test 8000 100", "process GPU-a 1 500")
    with pytest.raises(GuardEnded) as ended, Accelerators({}).reserved(stage(vram_mb=1000)):
        pass
    assert "asks for 1 GPU with 1000 MB free" in ended.value.what
    assert "GPU-a (NVIDIA Test): in use by" in str(ended.value)


def test_a_process_that_is_just_ending_is_waited_for(
    nvml: StandIn,  # noqa: F811
) -> None:
    nvml.write("device GPU-a NVIDIA_Test 8000 100", "process GPU-a 1 500")
    timer = threading.Timer(0.1, lambda: nvml.write("device GPU-a NVIDIA_Test 8000 100"))
    timer.start()
    with Accelerators({}).reserved(stage()) as devices:
        assert uuids(devices) == ["GPU-a"]
    timer.join()

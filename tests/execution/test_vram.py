"""The guard of GPU memory, in a real supervisor, on devices that a stage fills as it runs."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from benchwright.execution.device import Device, DeviceProcess, Vendor
from benchwright.execution.launch import EndReason, StageLaunch, StageOutcome, Usage
from benchwright.execution.supervisor import Supervisor
from benchwright.execution.vram import WATCH, VramWatch, explained, ran_out, watch
from benchwright.spec.model import Resources, Stage, StageKind
from tests.nvml import StandIn, nvml  # noqa: F401 - a fixture


@pytest.fixture
def supervisor(nvml: StandIn) -> Iterator[Supervisor]:  # noqa: F811
    with Supervisor(watch=WATCH) as one:
        yield one


def run(
    supervisor: Supervisor, folder: Path, script: str, vram_mb: float | None = 1000.0
) -> StageOutcome:
    return supervisor.run(
        StageLaunch(
            argv=("sh", "-c", script),
            cwd=folder,
            env={"PATH": os.environ["PATH"], "DEVICES": os.environ["NVML_STANDIN"]},
            stdout=folder / "out",
            stderr=folder / "err",
            timeout_s=30.0,
            gpus=("GPU-a",),
            vram_mb=vram_mb,
        )
    )


def test_a_stage_that_outgrows_its_budget_is_ended_with_asked_held_and_free(
    supervisor: Supervisor, tmp_path: Path
) -> None:
    outcome = run(
        supervisor,
        tmp_path,
        'echo "process GPU-a $$ 400" >> $DEVICES; sleep 0.6; sed -i s/400/1500/ $DEVICES; sleep 60',
    )
    assert outcome.reason is EndReason.VRAM
    assert outcome.detail == (
        "The stage asked for 1000 MB on each device and held 1500 MB on GPU-a (NVIDIA Test); "
        "6400 of 8000 MB are free."
    )
    assert outcome.usage.vram_peak_mb == 1500.0
    assert 0.5 < outcome.usage.gpu_seconds < 20


def test_the_peak_is_that_of_the_whole_tree_by_pid(supervisor: Supervisor, tmp_path: Path) -> None:
    script = (
        'sleep 0.8 & echo "process GPU-a $! 300" >> $DEVICES;'
        ' echo "process GPU-a $$ 200" >> $DEVICES; wait'
    )
    outcome = run(supervisor, tmp_path, script)
    assert outcome.ok
    assert outcome.usage.vram_peak_mb == 500.0
    assert outcome.notes == ()


def test_on_a_device_that_others_use_no_figure_is_given(
    supervisor: Supervisor, tmp_path: Path
) -> None:
    outcome = run(
        supervisor,
        tmp_path,
        'echo "process GPU-a $$ 200" >> $DEVICES; echo "process GPU-a 1 100" >> $DEVICES;'
        " sleep 0.9",
    )
    assert outcome.ok
    assert outcome.usage.vram_peak_mb is None
    assert "not attributed to the stage" in outcome.notes[0]
    assert "(PID 1), which is not the stage's" in outcome.notes[0]


def test_a_lost_driver_ends_a_stage_with_a_budget(supervisor: Supervisor, tmp_path: Path) -> None:
    outcome = run(supervisor, tmp_path, "sleep 0.3; echo lost >> $DEVICES; sleep 60")
    assert outcome.reason is EndReason.FAILED
    assert "guard" in outcome.detail
    assert "NVML lost GPU-a" in outcome.detail


def test_a_lost_driver_costs_a_stage_without_a_budget_its_figure_only(
    supervisor: Supervisor, tmp_path: Path
) -> None:
    outcome = run(supervisor, tmp_path, "sleep 0.3; echo lost >> $DEVICES; sleep 0.5", vram_mb=None)
    assert outcome.ok
    assert outcome.usage.vram_peak_mb is None
    assert "stopped answering" in outcome.notes[0]


def test_a_guard_that_cant_see_whose_memory_it_is_ends_the_stage(
    supervisor: Supervisor,
    tmp_path: Path,
) -> None:
    """In a container without the host's PIDs the driver names processes that aren't there."""
    outcome = run(supervisor, tmp_path, 'echo "process GPU-a 4194303 1500" >> $DEVICES; sleep 60')
    assert outcome.reason is EndReason.FAILED
    assert "can't be watched: 1500 MB were taken there by no process" in outcome.detail


def test_a_stage_that_the_driver_never_names_has_no_figure(
    supervisor: Supervisor, tmp_path: Path
) -> None:
    outcome = run(supervisor, tmp_path, "true")
    assert outcome.ok
    assert outcome.usage.vram_peak_mb is None
    assert "may not have used them" in outcome.notes[0]


def test_a_stage_whose_device_is_gone_is_not_started(
    supervisor: Supervisor,
    tmp_path: Path,
    nvml: StandIn,  # noqa: F811
) -> None:
    nvml.write("device GPU-b NVIDIA_Test 8000 100")
    outcome = run(supervisor, tmp_path, "echo ran")
    assert outcome.reason is EndReason.FAILED
    assert "The stage was not started: its guard" in outcome.detail
    assert (tmp_path / "out").read_text() == ""


def test_a_stage_without_a_gpu_has_no_such_guard(tmp_path: Path) -> None:
    launch = StageLaunch(("true",), tmp_path, {}, tmp_path / "o", tmp_path / "e", gpus=("TPU-0",))
    assert watch(launch) is None


class Scripted:
    """A meter that gives one reading after the other."""

    def __init__(self, *readings: tuple[DeviceProcess, ...]) -> None:
        self.readings = list(readings)

    def device(self, uuid: str) -> Device:
        processes = self.readings.pop(0) if len(self.readings) > 1 else self.readings[0]
        used = sum(process.used_mb or 0.0 for process in processes)
        return Device(uuid, "H200", 0, Vendor.NVIDIA, 8000.0, 8000.0 - used, processes)


def test_a_child_that_the_driver_knows_before_we_do_is_nobody_elses() -> None:
    guard = VramWatch(Scripted((DeviceProcess(7, 100.0),)), ("GPU-a",))
    guard.look(frozenset({5}))
    guard.look(frozenset({5, 7}))
    assert guard.peak_mb() == 100.0
    assert guard.notes() == ()


def test_a_child_that_has_ended_is_still_the_stages() -> None:
    guard = VramWatch(Scripted((DeviceProcess(7, 100.0),)), ("GPU-a",))
    for pids in ({5, 7}, {5}, {5}):
        guard.look(frozenset(pids))
    assert guard.peak_mb() == 100.0


def test_memory_that_the_driver_keeps_to_itself_is_no_figure_and_ends_a_budget() -> None:
    silent = (DeviceProcess(5, None),)
    guard = VramWatch(Scripted(silent), ("GPU-a",))
    assert guard.look(frozenset({5})) is None
    assert guard.peak_mb() is None
    with pytest.raises(RuntimeError, match="doesn't say how much"):
        VramWatch(Scripted(silent), ("GPU-a",), 500.0).look(frozenset({5}))


# What a program says itself


@pytest.mark.parametrize(
    "line",
    [
        "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 20.00 GiB.",
        "RuntimeError: HIP out of memory. Tried to allocate 2 MiB",
        "jaxlib.xla_extension.XlaRuntimeError: RESOURCE_EXHAUSTED: Out of memory while trying",
        "CUDA_ERROR_OUT_OF_MEMORY: out of memory",
    ],
)
def test_a_program_that_ran_out_of_gpu_memory_says_so(line: str) -> None:
    assert ran_out(f"Traceback\n  {line}\nmore") == line


def failed_with(text: str, folder: Path) -> StageOutcome:
    log = folder / "err"
    log.write_text(text)
    outcome = StageOutcome(EndReason.FAILED, 1, None, Usage(1.0, vram_peak_mb=7000.0), "tail")
    stage = Stage(
        name="train", kind=StageKind.STEP, cmd="x", resources=Resources(gpus=1, vram_mb=500.0)
    )
    device = Device("GPU-a", "H200", 0, Vendor.NVIDIA, 8000.0, 7500.0)
    return explained(outcome, stage, [device], [log, folder / "missing"])


def test_its_failure_is_one_of_gpu_memory_with_asked_held_and_free(tmp_path: Path) -> None:
    outcome = failed_with("CUDA out of memory", tmp_path)
    assert outcome.reason is EndReason.VRAM
    for words in ("asked for 500 MB", "held 7000 MB", "GPU-a (H200): 7500 of 8000 MB are free"):
        assert words in outcome.detail


def test_another_failure_stays_what_it_was(tmp_path: Path) -> None:
    assert failed_with("MemoryError", tmp_path).detail == "tail"

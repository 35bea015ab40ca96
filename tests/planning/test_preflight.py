"""What is checked before anything starts: memory and accelerators."""

from __future__ import annotations

from dataclasses import replace

import pytest

from benchwright.errors import GateRefused
from benchwright.execution.capacity import MachineMemory
from benchwright.execution.launch import EndReason, Usage
from benchwright.execution.sample import Measurement, PrepResult, Sample
from benchwright.identity.fingerprint import Fingerprint
from benchwright.judgement.view import RunView
from benchwright.planning import preflight as module
from benchwright.planning.preflight import preflight_devices, preflight_memory
from benchwright.spec.manifest import Manifest
from benchwright.spec.model import BenchmarkConfig
from tests.nvml import StandIn, nvml  # noqa: F401 - a fixture


def config(
    memory_mb: float | None = None, host: str | None = None, gpus: int = 0, size: int = 1
) -> BenchmarkConfig:
    return BenchmarkConfig.model_validate(
        {
            "domain": "command",
            "params": {"size": size},
            "stages": [
                {
                    "name": "build",
                    "kind": "prep",
                    "cmd": "x",
                    "host": host,
                    "resources": {"memory_mb": memory_mb, "gpus": gpus},
                }
            ],
        }
    )


def earlier(peak_mb: float, made: BenchmarkConfig) -> RunView:
    usage = Usage(1.0, peak_memory_mb=peak_mb)
    prep = PrepResult("build", "only", "ab", False, "", 1.0, usage)
    sample = Sample(
        "build", "only", 0, 0, False, 1, "", 1.0, EndReason.COMPLETED, 0, "",
        Measurement({}), replace(usage, peak_memory_mb=peak_mb / 2),
    )  # fmt: skip
    return RunView("r", "", made, "", Manifest(), (sample,), Fingerprint(), prep=(prep,))


@pytest.fixture(autouse=True)
def machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """10 GB, of which 8 can be used now."""
    monkeypatch.setattr(module, "machine_memory", lambda: MachineMemory(10000.0, 8000.0))


def test_a_stage_that_fits_raises_no_objection() -> None:
    assert preflight_memory(config(memory_mb=4000.0), ()) == []
    assert preflight_memory(config(), ()) == []


def test_a_stage_that_reaches_into_the_reserve_is_challenged() -> None:
    (found,) = preflight_memory(config(memory_mb=7600.0), ())
    assert found.code == "memory-reserve"
    assert "Stage 'build'" in found.argument
    assert "10%" in found.argument


@pytest.mark.parametrize("memory_mb", [8100.0, 8600.0, 20000.0])
def test_a_stage_that_doesnt_fit_is_refused_with_its_place(memory_mb: float) -> None:
    with pytest.raises(GateRefused) as refused:
        preflight_memory(config(memory_mb=memory_mb), ())
    assert str(refused.value.where) == "stages.build.resources.memory_mb"


def test_the_peak_of_the_latest_run_with_the_same_parameters_is_the_estimate() -> None:
    made = config()
    with pytest.raises(GateRefused, match="estimated peak of 8100 MB"):
        preflight_memory(made, (earlier(8100.0, made),))
    assert preflight_memory(made, (earlier(8100.0, config(size=2)),)) == []
    assert preflight_memory(made, (earlier(8100.0, made), earlier(100.0, made))) == []


def test_an_estimate_above_the_stages_own_budget_is_refused() -> None:
    made = config(memory_mb=500.0)
    with pytest.raises(GateRefused, match="over the stage's own budget"):
        preflight_memory(made, (earlier(600.0, made),))


def test_another_hosts_memory_isnt_ours() -> None:
    assert preflight_memory(config(memory_mb=9e9, host="box"), ()) == []


def test_devices_are_looked_at_where_a_stage_asks_for_them(nvml: StandIn) -> None:  # noqa: F811
    assert preflight_devices(config(), {}).gpus == ()
    assert preflight_devices(config(gpus=5, host="box"), {}).gpus == ()
    assert len(preflight_devices(config(gpus=2), {}).gpus) == 2
    with pytest.raises(GateRefused, match="stage 'build' asks for 1 GPU"):
        preflight_devices(config(gpus=1), {"CUDA_VISIBLE_DEVICES": ""})

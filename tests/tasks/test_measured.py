"""A step's measurement stands in the record as samples do."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from benchwright.execution.launch import EndReason
from benchwright.identity.fingerprint import Fingerprint
from benchwright.spec.model import BenchmarkConfig, Stage, StageKind
from tasks.measured import take_measurements

STAGE = Stage(name="validate", kind=StageKind.STEP, function="m:f")


@pytest.fixture
def run() -> Any:
    written: list[Any] = []
    return SimpleNamespace(
        folder=SimpleNamespace(append_sample=written.append, written=written),
        samples=[],
        findings=[],
        fingerprint=Fingerprint({"machine.cpu_model": "x"}),
        config=BenchmarkConfig(domain="d"),
    )


def result(**more: Any) -> dict[str, Any]:
    measurement = {
        "metrics": {"score.a": 0.5},
        "items": {"score.a": {"q1": [1.0], "q2": [0.0]}},
        "effective": {"generation.max_tokens": 64},
    }
    return {"measurement": measurement, "state": "success", "notes": [], **more}


def test_a_measurement_becomes_a_sample_with_its_items_and_effective_values(run: Any) -> None:
    kept = take_measurements(run, STAGE, "only", result(fingerprint={"server.model": "m"}), 3.0)
    (sample,) = run.samples
    assert run.folder.written == [sample]
    assert sample.ok
    assert sample.measurement.metrics == {"score.a": 0.5}
    assert sample.measurement.items["score.a"] == {"q1": (1.0,), "q2": (0.0,)}
    assert sample.measurement.effective == {"generation.max_tokens": 64}
    assert run.fingerprint.fields == {"machine.cpu_model": "x", "server.model": "m"}
    # The items stand in the samples, and not a second time among the steps.
    assert kept == {"state": "success", "notes": [], "fingerprint": {"server.model": "m"}}


def test_several_units_are_as_many_samples(run: Any) -> None:
    blocks = [{"metrics": {"tok_s": value}} for value in (10.0, 11.0, 12.0)]
    take_measurements(run, STAGE, "only", result(measurements=blocks), 3.0)
    assert [sample.block for sample in run.samples] == [0, 1, 2]
    assert [sample.measurement.metrics["tok_s"] for sample in run.samples] == [10.0, 11.0, 12.0]


def test_a_failed_state_is_a_failed_sample_with_the_first_note_as_its_reason(run: Any) -> None:
    take_measurements(run, STAGE, "only", result(state="failed", notes=["no server"]), 1.0)
    (sample,) = run.samples
    assert not sample.ok
    assert (sample.reason, sample.error) == (EndReason.FAILED, "no server")


def test_a_partial_state_keeps_the_measurement_and_fails_the_run_in_judgement(run: Any) -> None:
    take_measurements(run, STAGE, "only", result(state="partial", notes=["2 of 9 failed"]), 1.0)
    assert run.samples[0].ok
    assert run.findings[0].failure
    assert "measured in part: 2 of 9 failed" in run.findings[0].message


def test_a_value_that_is_no_finite_number_is_no_measurement(run: Any) -> None:
    broken = result(measurement={"metrics": {"score.a": float("nan")}})
    take_measurements(run, STAGE, "only", broken, 1.0)
    (sample,) = run.samples
    assert not sample.ok
    assert "score.a" in sample.error


@pytest.mark.parametrize("returned", [None, "text", {"found": 3}, [1, 2]])
def test_a_step_that_measured_nothing_is_left_as_it_is(run: Any, returned: Any) -> None:
    assert take_measurements(run, STAGE, "only", returned, 1.0) == returned
    assert run.samples == []

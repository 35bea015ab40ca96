"""Going on with a run that was interrupted, where nothing that matters has changed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from benchwright.errors import BadInput, GateRefused
from benchwright.identity.fingerprint import Fingerprint, compare_fingerprints
from benchwright.planning.ground import fingerprint_of
from benchwright.record.run import RunRecord, Status
from benchwright.record.store import RunFolder

RESUMABLE = frozenset({Status.INTERRUPTED, Status.FAILED, Status.ABORTED_GUARDRAIL})


def fingerprint_run(record: RunRecord, home: Path, environ: Mapping[str, str]) -> Fingerprint:
    """The fingerprint that a recorded run has here and now."""
    return fingerprint_of(
        record.view.config,
        {name: Path(place) for name, place in record.folders.items()},
        domain_version=record.domain_version,
        home=home,
        environ=environ,
    )


def prepare_resume(folder: RunFolder, environ: Mapping[str, str]) -> RunRecord:
    """Check that a run can go on, and mark it as running again.

    Raises:
        BadInput: It runs, or it is complete.
        GateRefused: Its fingerprint has changed since it started.
    """
    status = folder.settle()
    if status not in RESUMABLE:
        raise BadInput(
            f"{folder.run_id} is {status.value}",
            expected="a run that was interrupted, failed or was ended by a guard",
            hint=f"benchwright status {folder.run_id}"
            if status is Status.IN_PROGRESS
            else f"run it again: benchwright run {folder.config_file}",
        )
    record = folder.read()
    if record.view.fingerprint.fields:
        compared = compare_fingerprints(
            record.view.fingerprint, fingerprint_run(record, folder.home, environ)
        )
        if compared.differences:
            raise GateRefused(
                f"{folder.run_id} can't go on here: what it ran on has changed",
                differences=compared.differences,
                hint=f"start it anew: benchwright run {folder.config_file}",
            )
    resumed = replace(record, status=Status.IN_PROGRESS, error="", finished="")
    folder.write_results(resumed)
    return resumed

"""Going on with a run that was interrupted, where nothing that matters has changed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from benchwright.errors import BadInput, GateRefused
from benchwright.identity.fingerprint import Fingerprint, compare_fingerprints, take_fingerprint
from benchwright.planning.signing import measure_scripts, sign_graph
from benchwright.record.run import RunRecord, Status
from benchwright.record.store import RunFolder
from benchwright.spec.arms import expand_arms
from benchwright.spec.model import StageKind

RESUMABLE = frozenset({Status.INTERRUPTED, Status.FAILED, Status.ABORTED_GUARDRAIL})


def fingerprint_run(record: RunRecord, home: Path, environ: Mapping[str, str]) -> Fingerprint:
    """The fingerprint of the machine, the code and the measuring scripts, for this run, now.

    What Benchwright itself writes below `home` is no change of the code.
    """
    config = record.view.config
    folders = {name: Path(place) for name, place in record.folders.items()}
    taken = take_fingerprint(
        folder=next(iter(folders.values()), Path.cwd()),
        packages=config.packages,
        env={},
        exclude=(home,),
    )
    signatures = sign_graph(
        config,
        expand_arms(config),
        folders=folders,
        domain_version=record.domain_version,
        environ=environ,
        kinds=(StageKind.MEASURE,),
    )
    return Fingerprint({**taken.fields, **measure_scripts(config, signatures)})


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

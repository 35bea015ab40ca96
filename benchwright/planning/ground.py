"""What a run would run on, as far as it is known before it starts: its fingerprint."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from benchwright.identity.cache import ArtifactCache
from benchwright.identity.fingerprint import Fingerprint, take_fingerprint
from benchwright.planning.signing import measure_scripts, sign_graph
from benchwright.spec.arms import expand_arms
from benchwright.spec.model import BenchmarkConfig, StageKind


def fingerprint_of(
    config: BenchmarkConfig,
    folders: Mapping[str, Path],
    *,
    domain_version: str,
    home: Path,
    environ: Mapping[str, str],
) -> Fingerprint:
    """The machine, the software, the code, and the scripts that measure, now.

    What Benchwright itself writes below `home` is no change of the code.
    """
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
        domain_version=domain_version,
        environ=environ,
        kinds=(StageKind.MEASURE,),
        memo=ArtifactCache(home / "cache").memo,
    )
    return Fingerprint({**taken.fields, **measure_scripts(config, signatures)})

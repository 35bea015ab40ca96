"""The signatures of a whole graph: every prep stage of every arm, upstream first."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from benchwright.errors import BadInput, Where
from benchwright.execution.command import PREP_RUN_NAMES, StagePaths, render_stage
from benchwright.identity.canonical import digest
from benchwright.identity.digests import DigestMemo
from benchwright.identity.fingerprint import MEASURED_BY
from benchwright.identity.signature import Signature, sign
from benchwright.spec.arms import Arm
from benchwright.spec.graph import uses
from benchwright.spec.model import BenchmarkConfig, Stage, StageKind
from benchwright.spec.template import parse

Signatures = dict[tuple[str, str], Signature]
"""Signature by (stage, arm)."""


def sign_graph(
    config: BenchmarkConfig,
    arms: Sequence[Arm],
    *,
    folders: Mapping[str, Path],
    domain_version: str,
    environ: Mapping[str, str],
    kinds: Sequence[StageKind] = (StageKind.PREP,),
    memo: DigestMemo | None = None,
) -> Signatures:
    """Sign the stages of these kinds, for every arm; `memo` remembers digests of large files.

    A prep stage's signature is its cache key. A measure stage's says which scripts measured: two
    runs whose scripts differ are not the same experiment.

    Raises:
        BadInput: An input is missing, or a prep stage uses a name that is new in every run.
    """
    signatures: Signatures = {}
    for stage in config.stages:  # in topological order
        if stage.kind is StageKind.PREP:
            refuse_run_names(stage)
        if stage.kind not in kinds and stage.kind is not StageKind.PREP:
            continue
        for arm in arms:
            signatures[stage.name, arm.name] = sign_stage(
                stage,
                arm,
                config,
                signatures,
                folders=folders,
                domain_version=domain_version,
                environ=environ,
                memo=memo,
            )
    return signatures


def sign_stage(
    stage: Stage,
    arm: Arm,
    config: BenchmarkConfig,
    upstream: Mapping[tuple[str, str], Signature],
    *,
    folders: Mapping[str, Path],
    domain_version: str,
    environ: Mapping[str, str],
    memo: DigestMemo | None = None,
) -> Signature:
    """Sign one stage of one arm; `upstream` has the signatures of the prep stages it needs."""
    producers = {other.name: other for other in config.stages}
    made_by = {
        artifact: need
        for need in stage.needs
        for artifact in producers[need].produces
        if (need, arm.name) in upstream
    }
    folder = folders[stage.name]
    rendered = render_stage(
        stage,
        arm,
        folder=folder,
        paths=StagePaths(
            inputs={
                artifact: f"<in:{artifact}>"
                for need in stage.needs
                for artifact in producers[need].produces
            },
            outputs={artifact: f"<out:{artifact}>" for artifact in stage.produces},
        ),
        run={
            "run.id": "<run.id>",
            "run.dir": "<run.dir>",
            "run.arm": arm.name,
            "run.seed": str(config.replication.seed),
            "run.replicate": "<run.replicate>",
            "run.block": "<run.block>",
        },
        environ=environ,
    )
    params = {name: arm.params[name] for name in sorted(uses(stage, config))}
    if stage.function is not None:  # a function receives the seed in its context
        params["run.seed"] = config.replication.seed
    return sign(
        stage.model_copy(update={"inputs": rendered.inputs}),
        command=rendered.command or "",
        params=params,
        env=rendered.env,
        folder=folder,
        cwd=rendered.cwd,
        upstream={name: upstream[need, arm.name].digest for name, need in made_by.items()},
        domain=config.domain,
        domain_version=domain_version,
        memo=memo,
    )


def refuse_run_names(stage: Stage) -> None:
    """Refuse a prep stage that uses `run.id` and the like: its output could never be reused.

    Raises:
        BadInput: Naming the stage and the names that it may use.
    """
    texts = [stage.cmd or "", stage.cwd or "", *stage.inputs]
    texts += [value for value in stage.env.values() if value]
    for text in texts:
        for name in parse(text).names:
            if name.name.startswith("run.") and name.name not in PREP_RUN_NAMES:
                raise BadInput(
                    f"prep stage '{stage.name}' uses {{{name.name}}}, which is new in every run",
                    where=Where(key=f"stages.{stage.name}"),
                    expected="of run.*, only " + " and ".join(sorted(PREP_RUN_NAMES)),
                    hint="make it a stage of `kind: measure`, or use an artifact's path",
                )


def measure_scripts(config: BenchmarkConfig, signatures: Signatures) -> dict[str, str]:
    """Fingerprint fields that say which files measured, one for each measure stage.

    Only the files: parameters and commands differ between arms by design.
    """
    fields: dict[str, str] = {}
    for stage in config.stages:
        if stage.kind is not StageKind.MEASURE:
            continue
        files = sorted(
            f"{name}={value}"
            for (name_of_stage, _), signature in signatures.items()
            if name_of_stage == stage.name
            for name, value in signature.parts.items()
            if name.startswith("file ")
        )
        fields[f"{MEASURED_BY}{stage.name}"] = (
            digest("\n".join(dict.fromkeys(files)))[:16] if files else "no files"
        )
    return fields

"""From a stage and an arm to a process: the command, its folder and its environment."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from benchwright.errors import BadInput, Where
from benchwright.spec.arms import Arm
from benchwright.spec.graph import environment as parameter_environment
from benchwright.spec.model import Stage
from benchwright.spec.template import parse
from benchwright.spec.values import as_text

SHELL = ("/bin/bash", "-e", "-o", "pipefail", "-c")
"""A command that fails in the middle, or in a pipe, fails the stage: no result is better than a
wrong one."""

INHERITED = frozenset(
    [
        "PATH",
        "HOME",
        "USER",
        "LOGNAME",
        "SHELL",
        "LANG",
        "LC_ALL",
        "LC_CTYPE",
        "LC_NUMERIC",
        "TZ",
        "TMPDIR",
        "VIRTUAL_ENV",
        "CONDA_PREFIX",
        "LD_LIBRARY_PATH",
        "http_proxy",
        "https_proxy",
        "no_proxy",
        "HTTP_PROXY",
        "HTTPS_PROXY",
        "NO_PROXY",
        "SSL_CERT_FILE",
        "SSL_CERT_DIR",
    ]
)
"""What every stage gets from its caller: where programs are and how to reach the network. The
rest is handed on only where the stage's `env` names it, since an undeclared variable that changes
the output would be a stale cache (a fault that others have had)."""

PREP_RUN_NAMES = frozenset({"run.seed", "run.arm"})
"""The `run.*` names that a prep stage may use: those that are the same in the next run too."""


@dataclass(frozen=True, slots=True)
class StagePaths:
    """Where a stage's artifacts lie.

    Attributes:
        inputs: Artifacts of the stages it needs, by name.
        outputs: Those that it makes, by name.
    """

    inputs: Mapping[str, Path | str]
    outputs: Mapping[str, Path | str]


@dataclass(frozen=True, slots=True)
class RenderedStage:
    """A stage with every template filled in.

    Attributes:
        command: For the shell; None for a Python function.
        cwd: Absolute working directory.
        env: The declared part of the environment: `env` and `params`.
        inputs: The `inputs` with templates filled in, as written otherwise.
        metrics_file, effective_file: Names relative to `cwd`; None where not used.
    """

    command: str | None
    cwd: Path
    env: Mapping[str, str]
    inputs: tuple[str, ...]
    metrics_file: str | None
    effective_file: str | None


def render_stage(
    stage: Stage,
    arm: Arm,
    *,
    folder: Path,
    paths: StagePaths,
    run: Mapping[str, str],
    environ: Mapping[str, str],
) -> RenderedStage:
    """Fill in a stage's templates for one arm.

    Args:
        stage: The stage.
        arm: Its parameters.
        folder: What the stage's relative paths start from.
        paths: Where its artifacts lie; placeholders when it is only signed.
        run: Values of `run.*`, by full name.
        environ: The caller's environment, for variables that `env` hands on.

    Raises:
        BadInput: A variable that `env` hands on isn't set.
    """
    values = {name: as_text(value) for name, value in arm.params.items()}
    values |= {name: str(path) for name, path in (*paths.inputs.items(), *paths.outputs.items())}
    values |= run

    def fill(text: str) -> str:
        return parse(text, shell=False).render(values)

    env = dict(parameter_environment(stage, arm.params))
    for name, value in stage.env.items():
        if value is not None:
            env[name] = fill(value)
        elif name in environ:
            env[name] = environ[name]
        else:
            raise BadInput(
                f"stage '{stage.name}' hands on the variable {name}, which isn't set here",
                where=Where(key=f"stages.{stage.name}.env.{name}"),
                expected="a variable of the environment that benchwright was started in",
                hint=f"set it ({name}=... benchwright run ...), or give it a value in the file",
            )
    metrics = stage.metrics_from
    return RenderedStage(
        command=parse(stage.cmd).render(values) if stage.cmd is not None else None,
        cwd=(folder / fill(stage.cwd)).resolve() if stage.cwd else folder,
        env=env,
        inputs=tuple(fill(name) for name in stage.inputs),
        metrics_file=fill(metrics.file) if metrics and metrics.file else None,
        effective_file=fill(stage.effective_from.file) if stage.effective_from else None,
    )


def process_environment(rendered: RenderedStage, environ: Mapping[str, str]) -> dict[str, str]:
    """The whole environment of a stage's process: inherited basics, then what is declared."""
    env = {name: environ[name] for name in sorted(INHERITED & environ.keys())}
    env.setdefault("PATH", os.defpath)
    return env | dict(rendered.env)

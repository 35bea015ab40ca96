"""Preflight: what must be there before anything starts, checked where the run would start."""

from __future__ import annotations

import os
import re
import shlex
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path

from benchwright.errors import BadInput, GuardEnded, Where
from benchwright.execution.accelerators import Machine, check_accelerators, read_machine
from benchwright.execution.capacity import check_memory, machine_memory
from benchwright.execution.command import SHELL
from benchwright.judgement.challenge import Challenge
from benchwright.judgement.view import RunView
from benchwright.spec.model import BenchmarkConfig, Stage

MIN_FREE_BYTES = 200 * 1000 * 1000
"""Under this much free space a run isn't started: its record could not be written to the end."""

TIGHT_FREE_BYTES = 2 * 1000 * 1000 * 1000
"""Under this much it is said."""


def preflight(config: BenchmarkConfig, folders: Mapping[str, Path], home: Path) -> list[str]:
    """Check the machine and the folders.

    Returns:
        Sentences on what is tight but bearable.

    Raises:
        BadInput: A folder, the shell or the right to write is missing.
        GuardEnded: The disk is full.
    """
    caveats: list[str] = []
    if any(stage.cmd for stage in config.stages) and not os.access(SHELL[0], os.X_OK):
        raise BadInput(f"{SHELL[0]} is missing: stages with `cmd` run in it", hint="install bash")
    for stage in config.stages:
        folder = folders[stage.name] / (stage.cwd or "")
        if stage.host is None and "{" not in str(folder) and not folder.is_dir():
            raise BadInput(
                f"the working directory of stage '{stage.name}' doesn't exist: {folder}",
                where=Where(key=f"stages.{stage.name}.cwd"),
                expected="a folder, relative to the configuration's",
            )
        caveats += check_program(stage, folder)
        if stage.host is not None:
            caveats.append(
                f"stage '{stage.name}' runs on the host '{stage.host}', which is looked up when"
                " the run starts"
            )
    place = next(path for path in (home, *home.absolute().parents) if path.is_dir())
    if not os.access(place, os.W_OK):
        raise BadInput(f"{place} can't be written to", hint="choose another with --home DIR")
    free = shutil.disk_usage(place).free
    if free < MIN_FREE_BYTES:
        raise GuardEnded(
            f"{place} has {free / 1e6:.0f} MB free",
            expected=f"at least {MIN_FREE_BYTES / 1e6:.0f} MB",
            hint="free some: benchwright cache prune",
        )
    if free < TIGHT_FREE_BYTES:
        caveats.append(f"{place} has only {free / 1e9:.1f} GB free")
    return caveats


def check_program(stage: Stage, folder: Path) -> list[str]:
    """Check the program that a command starts with, where its path is written out.

    Args:
        stage: The stage.
        folder: Its working directory.

    Returns:
        A sentence where a stage before it may still make the program.

    Raises:
        BadInput: It isn't there, or may not be executed, and no stage comes before.
    """
    try:
        first = shlex.split(stage.cmd or "", comments=True)[:1]
    except ValueError:  # an open quote: bash says it better
        return []
    if stage.host is not None or not first or not re.fullmatch(r"\.{0,2}/[\w./@+-]+", first[0]):
        return []
    program = folder / first[0]
    if program.is_file() and os.access(program, os.X_OK):
        return []
    missing = not program.exists()
    what = (
        f"stage '{stage.name}' starts with {first[0]}, which"
        f" {'does not exist' if missing else 'may not be executed'}"
    )
    if stage.needs:
        return [f"{what}, unless a stage before makes it so"]
    raise BadInput(
        what,
        where=Where(key=f"stages.{stage.name}.cmd"),
        expected=f"a program at {program}",
        hint="correct the path: it starts from the configuration's folder, or `cwd`"
        if missing
        else f"chmod +x {shlex.quote(str(program))}",
    )


def preflight_devices(config: BenchmarkConfig, environ: Mapping[str, str]) -> Machine:
    """Check that the machine has the accelerators that the stages ask for.

    Returns:
        The machine's devices; not looked at where no stage of this machine asks for any.

    Raises:
        GateRefused: Naming the stage, what it asks for and what is there.
    """
    asking = [
        stage
        for stage in config.stages
        if stage.host is None and (stage.resources.gpus or stage.resources.tpus)
    ]
    if not asking:
        return Machine()
    machine = read_machine(environ)
    check_accelerators(asking, machine)
    return machine


def preflight_memory(config: BenchmarkConfig, earlier: Sequence[RunView]) -> list[Challenge]:
    """Check each stage of this machine against its memory.

    The estimated peak is the largest that the stage had in the latest run with the same
    parameters: with others it says nothing.

    Returns:
        A challenge for each stage that would reach into the reserve.

    Raises:
        GateRefused: A stage doesn't fit.
    """
    found: list[Challenge] = []
    machine = None
    for stage in config.stages:
        budget = config.memory_budget_mb(stage)
        peak = _earlier_peak(stage.name, config, earlier)
        if stage.host is not None or (budget is None and peak is None):
            continue
        machine = machine or machine_memory()
        key = f"stages.{stage.name}.resources.memory_mb"
        warning = check_memory(budget, peak, machine, Where(key=key))
        if warning is not None:
            found.append(
                Challenge(
                    "memory-reserve",
                    f"Stage '{stage.name}': {warning}.",
                    "An estimate misses something: the stage, or a neighbour, may be killed.",
                    "End what else is using memory, or make the stage smaller.",
                )
            )
    return found


def _earlier_peak(stage: str, config: BenchmarkConfig, earlier: Sequence[RunView]) -> float | None:
    for view in reversed(earlier):
        same = (
            view.config.flat_params == config.flat_params
            and view.config.treatment_variable == config.treatment_variable
            and view.config.treatment_values == config.treatment_values
        )
        if not same:
            continue
        used = [sample.usage for sample in view.samples if sample.stage == stage]
        used += [p.usage for p in view.prep if p.stage == stage and p.usage is not None]
        peaks = [usage.peak_memory_mb for usage in used if usage.peak_memory_mb is not None]
        if peaks:
            return max(peaks)
    return None

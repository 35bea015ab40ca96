"""Manifest entries that name a command or a function: the value in use, read on the machine.

`effective: NAME` entries need nothing here: the measure stage itself reports them. The others
are asked once for each arm, after the last replicate, beside the artifacts that were measured.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from benchwright.errors import BenchwrightError
from benchwright.execution.runner import StageRunner
from benchwright.identity.effective import compare_effective
from benchwright.judgement.verdict import Finding
from benchwright.spec.arms import Arm
from benchwright.spec.manifest import Manifest, ManifestEntry
from benchwright.spec.model import Stage, StageKind

_FUNCTION = re.compile(r"\w+(\.\w+)*:\w+")

TIMEOUT_S = 60.0
"""A command that says a value has this long; one that takes longer verifies nothing."""


def verify_manifest(
    runner: StageRunner, manifest: Manifest, arms: Sequence[Arm], check: Callable[[], None]
) -> Iterator[Finding]:
    """Ask every command and function of a manifest for the value in use.

    Args:
        runner: Runs them, in the folder of the first stage.
        manifest: What was to be declared.
        arms: The arms that ran.
        check: Called before each; raises to end the run.

    Yields:
        `verified` for an entry whose value is the declared one in every arm, `drift` for another
        value, `not-verified` where it said nothing.
    """
    for entry in manifest.entries:
        if not entry.verify.strip() or entry.verify.strip().startswith("effective:"):
            continue
        found = []
        for arm in arms:
            if entry.name in arm.params:
                check()
                found += list(_ask(runner, entry, arm))
        if found:
            yield from found
        else:
            yield Finding("verified", entry.name)


def _ask(runner: StageRunner, entry: ManifestEntry, arm: Arm) -> Iterator[Finding]:
    """What is wrong with one entry in one arm; nothing where it is verified."""
    how = entry.verify.strip()
    body: dict[str, Any] = {"function": how} if _FUNCTION.fullmatch(how) else {"cmd": how}
    first = runner.config.stages[0]
    stage = Stage(
        name=f"verify-{''.join(c if c.isalnum() else '-' for c in entry.name)}",
        kind=StageKind.STEP,
        needs=tuple(s.name for s in runner.config.stages if s.kind is StageKind.PREP),
        timeout_s=TIMEOUT_S,
        **body,
    )
    try:
        answer = runner.ask(stage, arm, folder=runner.folders[first.name])
    except BenchwrightError as problem:
        yield Finding(
            "not-verified",
            f"The value of {entry.name} in use could not be read in {arm.name}: {problem.what}.",
            caveat=True,
            arm=arm.name,
        )
        return
    for row in compare_effective({entry.name: arm.params[entry.name]}, {entry.name: answer}):
        yield Finding(
            "drift",
            f"{entry.name} was declared as {row.left}, but {row.right} was in use in {arm.name}.",
            failure=True,
            arm=arm.name,
        )

"""From a plan to a run that can be started: its folder, with all that it needs to know."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from benchwright.identity.canonical import slug
from benchwright.planning.plan import Plan
from benchwright.planning.quoting import quote_plan, write_quote
from benchwright.record.store import RunFolder, RunStore
from benchwright.spec.model import StageKind


def create_run(plan: Plan, home: Path, *, because: str | None, name: str = "") -> RunFolder:
    """Create the folder of a run: configuration frozen, status IN_PROGRESS, nothing started.

    What it is estimated to cost lies beside it, for the gate that it meets first.

    Args:
        plan: What it will do; not refused.
        home: `$BENCHMARK_HOME`; made where it is missing.
        because: The reason that a person gave against the plan's challenges.
        name: The middle of the run's id; default the recipe's or the domain's name.
    """
    config = plan.config
    measures = len(plan.stages(StageKind.MEASURE))
    reason = (because or "").strip()
    overrides = {item.code: reason for item in plan.challenges} if reason else {}
    folder = RunStore(home).create(
        config,
        slug(name or config.recipe or config.domain),
        plan.resolved.manifest,
        config_hash=plan.config_hash,
        folders={stage: str(folder) for stage, folder in plan.resolved.folders.items()},
        overrides=overrides,
        domain_version=plan.resolved.domain.version,
        lessons=tuple(lesson.id for lesson in plan.lessons),
        expected_effect=config.hypothesis or "",
        expected=len(plan.slots) * measures,
        command=("benchwright", *sys.argv[1:]) if Path(sys.argv[0]).name == "benchwright" else (),
        cwd=str(Path.cwd()),
    )
    write_quote(folder.path, quote_plan(plan, os.environ))
    return folder

"""Tonight's run against the last one that may be believed."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from benchwright.errors import BenchwrightError, GateRefused
from benchwright.identity.fingerprint import compare_fingerprints
from benchwright.judgement.compare import compare_runs
from benchwright.record.index import config_prefix, read_index
from benchwright.record.nights import Against
from benchwright.record.run import Status
from benchwright.record.store import RunFolder, RunStore

if TYPE_CHECKING:
    from benchwright.judgement.view import RunView

MOST_READ = 20
"""Latest RELIABLE runs of a configuration that are looked at: each costs a file to read."""

CODE = ("code",)
"""What may differ between two nights: the code is what they are about."""


def reliable_before(home: Path, view: RunView) -> RunView | None:
    """The last RELIABLE run of the same configuration, on the same ground but for the code.

    Args:
        home: The benchmark home.
        view: Tonight's run.
    """
    shown = config_prefix(view.config_hash)
    rows = read_index(
        home,
        domain=view.config.domain,
        recipe=view.config.recipe or "",
        status=Status.COMPLETED,
        tag="RELIABLE",
    )
    same = [row for row in rows if row.config == shown and row.run_id != view.run_id]
    for row in same[: -MOST_READ - 1 : -1]:
        try:
            earlier = RunFolder(home, row.run_id).view()
        except BenchwrightError:
            continue  # listed as unreadable in the index; an older one may do
        if earlier.created >= view.created or earlier.config_hash != view.config_hash:
            continue
        if not compare_fingerprints(earlier.fingerprint, view.fingerprint, CODE).differences:
            return earlier
    return None


def against_earlier(home: Path, view: RunView, baseline: str | None = None) -> Against:
    """How tonight's run compares with an earlier one.

    Args:
        home: The benchmark home.
        view: Tonight's run.
        baseline: The run to compare with; None: the last RELIABLE one of the same configuration
            on the same ground.

    Returns:
        The decisions, or why there are none. A refusal is an answer, not an error.
    """
    try:
        earlier = RunStore(home).open(baseline).view() if baseline else reliable_before(home, view)
        if earlier is None:
            return Against(why="no RELIABLE run of this configuration on this ground yet")
        comparison = compare_runs(earlier, view, allow=allowed(earlier, view))
    except GateRefused as refusal:
        rows = [f"{row.field}: {row.left} against {row.right}" for row in refusal.differences]
        more = f" ({'; '.join(rows[:3])})" if rows else ""
        return Against(run_id=baseline or "", why=f"refused: {refusal.what}{more}")
    except BenchwrightError as problem:
        return Against(run_id=baseline or "", why=problem.what)
    return Against(
        run_id=earlier.run_id,
        tag=str(comparison.tag),
        decisions=tuple(
            {
                "metric": verdict.metric.name,
                "arm": verdict.treatment.arm.removeprefix(view.run_id).strip(),
                "decision": str(verdict.decision),
                "effect": verdict.effect,
                "low": verdict.interval.low,
                "high": verdict.interval.high,
            }
            for verdict in comparison.verdicts
        ),
    )


def allowed(earlier: RunView, view: RunView) -> tuple[str, ...]:
    """The code, where either run has any; `compare_runs` refuses a name that no run has."""
    fields = (*earlier.fingerprint.fields, *view.fingerprint.fields)
    return CODE if any(name.startswith("code.") for name in fields) else ()

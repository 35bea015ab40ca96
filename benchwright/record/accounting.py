"""What runs spent on accelerators: kept launch by launch, summed for a stage, a run, a domain.

`spending.jsonl` in a run's folder has a line for each launch that had devices or cost something,
written when the launch ended, so that a killed run is accounted for as well. The sums stand in
`results.yaml` under `extra.accounting`, estimated beside real. What is unknown is null, not zero.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchwright.execution.pricing import HOUR_S
from benchwright.execution.spending import Spending, total_usd
from benchwright.record.documents import dump_line, load_lines
from benchwright.record.files import append_line
from benchwright.record.index import read_index
from benchwright.record.store import RunFolder
from benchwright.spec.model import StageKind

if TYPE_CHECKING:
    from benchwright.judgement.verdict import Finding

SPENDING = "spending.jsonl"
EXTRA = "accounting"
"""Key of the sums in a record's `extra`."""


@dataclass(frozen=True, slots=True)
class Estimate:
    """What a stage was expected to take, over all its launches; None where nobody knows."""

    gpu_hours: float | None
    usd: float | None


def append_spending(folder: RunFolder, spending: Spending) -> None:
    """Record what a launch has spent; once this returns, it survives `kill -9`."""
    append_line(folder.path / SPENDING, dump_line(asdict(spending)))


def read_spending(folder: RunFolder) -> tuple[Spending, ...]:
    """Every launch that has spent something; a torn last line isn't counted."""
    if not (folder.path / SPENDING).exists():
        return ()
    rows, _ = load_lines(folder.path / SPENDING)
    return tuple(
        Spending(
            stage=str(row["stage"]),
            arm=str(row["arm"]),
            kind=StageKind(row["kind"]),
            devices=tuple(row["devices"]),
            models=tuple(row["models"]),
            gpu_seconds=float(row["gpu_seconds"]),
            usd=row["usd"],
            vram_peak_mb=row["vram_peak_mb"],
            notes=tuple(row["notes"]),
        )
        for _, row in rows
    )


def account(
    spent: Sequence[Spending], estimated: Mapping[str, Estimate], prices: str
) -> dict[str, Any]:
    """The sums of a run, as plain data for `extra.accounting`.

    Args:
        spent: Its launches.
        estimated: What each stage with devices was expected to take.
        prices: Which price file, of which date.

    Returns:
        `prices`, `stages` (a row for each: `stage`, `launches`, `devices`, `estimated_gpu_hours`,
        `gpu_hours`, `estimated_usd`, `usd`, `vram_peak_mb`, `notes`) and the totals
        `estimated_gpu_hours`, `gpu_hours`, `estimated_usd`, `usd`. Empty where no stage had a
        device and nothing cost anything.
    """
    names = dict.fromkeys((*estimated, *(one.stage for one in spent)))
    rows = [
        _row(name, [one for one in spent if one.stage == name], estimated.get(name))
        for name in names
    ]
    if not rows:
        return {}
    return {
        "prices": prices,
        "stages": rows,
        "estimated_gpu_hours": _sum(row["estimated_gpu_hours"] for row in rows),
        "gpu_hours": sum(row["gpu_hours"] for row in rows),
        "estimated_usd": _sum(row["estimated_usd"] for row in rows),
        "usd": _sum(row["usd"] for row in rows),
    }


def _row(stage: str, launches: Sequence[Spending], estimate: Estimate | None) -> dict[str, Any]:
    peaks = [one.vram_peak_mb for one in launches]
    known = [peak for peak in peaks if peak is not None]
    return {
        "stage": stage,
        "launches": len(launches),
        "devices": list(dict.fromkeys(name for one in launches for name in one.models)),
        "estimated_gpu_hours": estimate.gpu_hours if estimate else None,
        "gpu_hours": sum(one.gpu_seconds for one in launches) / HOUR_S,
        "estimated_usd": estimate.usd if estimate else None,
        "usd": total_usd(launches),
        # One launch without a figure leaves the largest unknown.
        "vram_peak_mb": max(known) if known and len(known) == len(peaks) else None,
        "notes": list(dict.fromkeys(note for one in launches for note in one.notes)),
    }


def _sum(values: Iterable[float | None]) -> float | None:
    listed = list(values)
    return None if None in listed else sum(value for value in listed if value is not None)


@dataclass(frozen=True, slots=True)
class DomainAccount:
    """What the runs of a domain have spent.

    Attributes:
        runs: How many spent anything.
        gpu_hours: Theirs.
        usd: Theirs; None where the price of any of it is unknown.
    """

    runs: int
    gpu_hours: float
    usd: float | None


def account_for_domain(home: Path, domain: str) -> DomainAccount:
    """Sum up the runs of a domain, those that failed or were killed too."""
    folders = (RunFolder(home, row.run_id) for row in read_index(home) if row.domain == domain)
    each = [spent for folder in folders if (spent := read_spending(folder))]
    everything = [one for spent in each for one in spent]
    return DomainAccount(
        runs=len(each),
        gpu_hours=sum(one.gpu_seconds for one in everything) / HOUR_S,
        usd=total_usd(everything),
    )


def findings_of(spent: Sequence[Spending]) -> tuple[Finding, ...]:
    """What the devices say about the result: replicates that ran on different ones."""
    from benchwright.judgement.verdict import Finding

    found = []
    for stage in dict.fromkeys(one.stage for one in spent if one.kind is StageKind.MEASURE):
        used = dict.fromkeys(
            tuple(sorted(one.devices)) for one in spent if one.stage == stage and one.devices
        )
        if len(used) > 1:
            found.append(
                Finding(
                    "device-changed",
                    f"Replicates of {stage} ran on different devices: "
                    + "; ".join(", ".join(devices) for devices in used)
                    + ". Two devices of one model differ by a few percent.",
                    caveat=True,
                )
            )
    return tuple(found)

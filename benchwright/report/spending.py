"""What a run spent on accelerators, estimated beside real: the words and rows of every report."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from benchwright.judgement.words import count, listed
from benchwright.record.accounting import EXTRA
from benchwright.record.run import RunRecord
from benchwright.report import numbers

CAPTION = "Accelerators and dollars, estimated and real"
HEADER = (
    "Stage",
    "Launches",
    "Devices",
    "GPU-hours estimated",
    "GPU-hours",
    "USD estimated",
    "USD",
    "Peak GPU memory",
)
NUMERIC = frozenset({1, 3, 4, 5, 6, 7})


def accounting(record: RunRecord) -> Mapping[str, Any] | None:
    """The sums of a run (see `record.accounting.account`); None where it had no accelerator."""
    sums = record.extra.get(EXTRA)
    return sums if isinstance(sums, Mapping) and sums.get("stages") else None


def rows(sums: Mapping[str, Any]) -> tuple[tuple[str, ...], ...]:
    """A row for each stage, and one for the run."""
    stages = [
        (
            str(row["stage"]),
            str(row["launches"]),
            listed(row["devices"]) if row["devices"] else "none",
            numbers.figure(row["estimated_gpu_hours"]),
            numbers.figure(row["gpu_hours"]),
            numbers.figure(row["estimated_usd"]),
            numbers.figure(row["usd"]),
            numbers.quantity(row["vram_peak_mb"], "MB"),
        )
        for row in sums["stages"]
    ]
    total = (
        "the run",
        str(sum(row["launches"] for row in sums["stages"])),
        "",
        numbers.figure(sums["estimated_gpu_hours"]),
        numbers.figure(sums["gpu_hours"]),
        numbers.figure(sums["estimated_usd"]),
        numbers.figure(sums["usd"]),
        "",
    )
    return (*stages, total)


def line(sums: Mapping[str, Any]) -> str:
    """The run in a line: `0.42 GPU-hours (0.5 estimated), 1.91 USD (2.27 estimated)`."""
    return (
        f"{numbers.figure(sums['gpu_hours'])} GPU-hours "
        f"({numbers.figure(sums['estimated_gpu_hours'])} estimated), {dollars(sums['usd'])} "
        f"({dollars(sums['estimated_usd'])} estimated)"
    )


def dollars(value: float | None) -> str:
    """An amount: `1.91 USD`; `unknown USD` where a price is."""
    return f"{numbers.figure(value)} USD"


def domain_line(sums: Mapping[str, Any]) -> str:
    """What all runs of the domain have spent, and which prices the dollars stand on."""
    domain = sums.get("domain")
    text = f"Dollars are reckoned with {sums['prices']}." if sums["prices"] else ""
    if domain:
        text = (
            f"All runs of {domain['name']} so far: {count(domain['runs'], 'run')}, "
            f"{numbers.figure(domain['gpu_hours'])} GPU-hours, {dollars(domain['usd'])}. {text}"
        )
    return text.strip()

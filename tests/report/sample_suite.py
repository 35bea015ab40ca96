"""A suite with sixty nights of rows, drawn from a seed, for the tests of its dashboard."""

from __future__ import annotations

import math
import random
from datetime import date, timedelta
from pathlib import Path

from benchwright.record.nights import Against, Figure, NightRow, SuiteFolder
from benchwright.report.suite import Board, make_board
from benchwright.spec.arms import expand_arms
from benchwright.spec.manifest import Manifest
from benchwright.spec.model import BenchmarkConfig
from benchwright.spec.suite import Suite

FIRST = date(2026, 1, 5)
NIGHTS = 60
STEP_AT, GROUND_AT, FAILED_AT = 40, 20, 30
ARMS = ("size=5", "size=9")

SUITE = Suite.model_validate(
    {
        "name": "nightly",
        "description": "Search and accuracy <b>every</b> night",
        "schedule": {"cron": "0 2 * * *", "timezone": "Europe/Berlin"},
        "hosts": {"gpu-a": {}},
        "entries": [
            {"name": "search", "experiment": "retrieval-index"},
            {"name": "gsm8k", "domain": "accuracy", "host": "gpu-a"},
            {"name": "never", "experiment": "retrieval-index"},
        ],
    }
)

CONFIG = BenchmarkConfig.model_validate(
    {
        "domain": "command",
        "params": {"size": 5},
        "stages": [{"name": "search", "kind": "measure", "cmd": "./search.sh {size}"}],
        "treatment_variable": "size",
        "treatment_values": [9],
        "metrics": [
            {"name": "p50_ms", "unit": "ms"},
            {"name": "rss_mb", "unit": "MB", "role": "secondary"},
        ],
    }
)


def ground(index: int) -> dict[str, str]:
    """The kernel was updated on the night `GROUND_AT`."""
    return {
        "machine.cpu_model": "Some CPU",
        "machine.kernel": "6.1.0" if index < GROUND_AT else "6.8.0",
        "configuration": "abcdef012345",
    }


def write_nights(home: Path, nights: int = NIGHTS, *, error: str = "no such index") -> SuiteFolder:
    """Write a suite's rows: the first arm gets 3 % slower on the night `STEP_AT`."""
    from benchwright.record.store import RunStore

    assert tuple(arm.name for arm in expand_arms(CONFIG)) == ARMS
    run = RunStore(home).create(CONFIG, "search", Manifest(), config_hash="abcdef0123456789")
    folder = SuiteFolder(home, SUITE.name)
    draw = random.Random(4)
    for index in range(nights):
        night = (FIRST + timedelta(days=index)).isoformat()
        level = 12.0 * (1.03 if index >= STEP_AT else 1.0) * (1.05 if index >= GROUND_AT else 1.0)
        failed = index == FAILED_AT
        figures = {
            arm: {
                "p50_ms": Figure(
                    (level if arm == ARMS[0] else 4.0) * math.exp(draw.gauss(0, 0.01)), 0.02, 10
                ),
                "rss_mb": Figure(100 + draw.gauss(0, 1), None, 10),
            }
            for arm in ARMS
        }
        folder.append(
            NightRow(
                night=night,
                entry="search",
                host="here",
                started=f"{night}T02:00:00.000+01:00",
                finished=f"{night}T02:10:00.000+01:00",
                status="FAILED" if failed else "COMPLETED",
                run_id=run.run_id,
                tag="UNRELIABLE" if failed else "RELIABLE",
                error=error if failed else "",
                commit=f"{index:012x}",
                figures={} if failed else figures,
                against=Against(
                    run_id="2026-01-04_search_aaaaaa",
                    tag="QUALIFIED",
                    decisions=(
                        {
                            "metric": "p50_ms",
                            "arm": ARMS[0],
                            "decision": "worse",
                            "effect": 1.031,
                            "low": 1.025,
                            "high": 1.037,
                        },
                    ),
                ),
            ),
            ground(index),
        )
    night = (FIRST + timedelta(days=nights - 1)).isoformat()
    folder.append(
        NightRow(
            night=night,
            entry="gsm8k",
            host="gpu-a",
            started=f"{night}T02:00:00.000+01:00",
            finished=f"{night}T02:00:01.000+01:00",
            status="REFUSED",
            error="the plan is challenged: <script>alert(1)</script>",
        ),
        {},
    )
    return folder


def board(home: Path, nights: int = NIGHTS, *, error: str = "no such index") -> Board:
    """The suite after so many nights."""
    return make_board(SUITE, write_nights(home, nights, error=error), "2026-03-06T02:10:00+01:00")

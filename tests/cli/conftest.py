"""A small experiment that takes milliseconds, and a home whose server and engine are up."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from deployments.local import client
from tests.cli.support import benchwright

BUILD = """#!/bin/sh
echo built >> builds.log
echo "size $1" > "$2"
"""

SEARCH = """#!/bin/sh
echo run >> searches.log
test -f fail && { echo "no such index" >&2; exit 3; }
test -f hang && { sleep 9999 & echo $! > child; wait; }
size=$(cut -d' ' -f2 "$1")
echo "{\\"t_ms\\": 1.$size$(($$ % 10)), \\"effective\\": {\\"size\\": $size}}"
"""


def experiment(folder: Path, **changes: Any) -> Path:
    """Write a configuration with its two scripts; returns the file."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in (("build.sh", BUILD), ("search.sh", SEARCH)):
        script = folder / name
        if not script.exists():
            script.write_text(f"{text}# {folder}\n")
            script.chmod(0o755)
    config: dict[str, Any] = {
        "domain": "command",
        "params": {"size": 5},
        "stages": [
            {
                "name": "build",
                "kind": "prep",
                "cmd": "./build.sh {size} {index}",
                "produces": ["index"],
            },
            {
                "name": "search",
                "kind": "measure",
                "needs": ["build"],
                "cmd": "./search.sh {index}",
                "metrics_from": {"stdout": True},
            },
        ],
        "treatment_variable": "size",
        "treatment_values": [9],
        "metrics": [{"name": "t_ms", "unit": "ms"}],
        "replication": {"replicates": 3, "warmup": 1},
    }
    path = folder / "experiment.yaml"
    path.write_text(json.dumps(config | changes))
    return path


@pytest.fixture
def home(local_home: Path) -> Path:
    """The home of the shared server; an experiment's scripts name its test, and so its builds."""
    return local_home


@pytest.fixture
def run(home: Path) -> Callable[..., Any]:
    """Call `benchwright` with the shared home."""

    def call(*args: str, cwd: Path, **env: str) -> Any:
        return benchwright(*args, cwd=cwd, home=home, **env)

    return call


@pytest.fixture(scope="session", autouse=True)
def engine_up(local_home: Path) -> None:
    """The first run shouldn't pay for everybody's start."""
    client.ensure_local(local_home)

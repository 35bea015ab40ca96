"""The command line as a user calls it: a process of its own, its output, its exit code."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

BENCHWRIGHT = (sys.executable, "-m", "cli.start")


def benchwright(
    *args: str, cwd: Path, home: Path | None = None, **env: str
) -> subprocess.CompletedProcess[str]:
    """Call the command line; `home` is its BENCHMARK_HOME."""
    environ = {k: v for k, v in os.environ.items() if not k.startswith(("PREFECT_", "BENCHMARK_"))}
    if home is not None:
        environ["BENCHMARK_HOME"] = str(home)
    return subprocess.run(
        [*BENCHWRIGHT, *args],
        cwd=cwd,
        env=environ | env,
        capture_output=True,
        text=True,
        stdin=subprocess.DEVNULL,
        timeout=110,
        check=False,
    )


def json_of(finished: subprocess.CompletedProcess[str]) -> dict[str, Any]:
    """The one object on standard output."""
    try:
        data = json.loads(finished.stdout)
    except ValueError:
        raise AssertionError(
            f"no JSON on standard output:\n{finished.stdout}\n--- stderr:\n{finished.stderr}"
        ) from None
    assert isinstance(data, dict)
    return data

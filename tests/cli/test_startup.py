"""What can be answered without Prefect doesn't import it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

SAMPLE = Path(__file__).parents[1] / "recipes" / "sample" / "config.yaml"

PROBE = """
import sys
from cli.main import call
code = call(sys.argv[1:])
heavy = sorted(name for name in ("prefect", "plotly", "scipy") if name in sys.modules)
print("IMPORTED", *heavy, file=sys.stderr)
sys.exit(code)
"""


def _imports(*args: str, home: Path) -> tuple[int, set[str]]:
    finished = subprocess.run(
        [sys.executable, "-c", PROBE, *args],
        env={"PATH": "/usr/bin:/bin", "BENCHMARK_HOME": str(home)},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    line = next(
        (line for line in finished.stderr.splitlines() if line.startswith("IMPORTED")), None
    )
    assert line is not None, finished.stderr
    return finished.returncode, set(line.split()[1:])


@pytest.mark.parametrize(
    ("args", "code"),
    [
        (["--help"], 0),
        (["run", "--help"], 0),
        (["history"], 0),
        (["status"], 0),
        (["recipes"], 0),
        (["plan", str(SAMPLE)], 0),
        (["run", "no-such-file.yaml"], 2),
        (["compare", "a1", "b2"], 2),
        (["cache", "list"], 0),
        (["lessons", "list"], 0),
        (["down"], 0),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else str(value),
)
def test_answers_without_importing_prefect(args: list[str], code: int, tmp_path: Path) -> None:
    got, imported = _imports(*args, home=tmp_path)
    assert got == code
    assert "prefect" not in imported
    assert "plotly" not in imported


def test_history_imports_no_statistics_either(tmp_path: Path) -> None:
    assert _imports("history", home=tmp_path)[1] == set()

"""Results of benchmarks: a JSON file with the machine's fingerprint beside the figures."""

from __future__ import annotations

import json
from datetime import datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

from benchwright.identity.fingerprint import take_fingerprint

RESULTS = Path(__file__).parent / "results"


def write_results(name: str, figures: dict[str, Any], packages: tuple[str, ...] = ()) -> Path:
    """Write `results/<name>.json` and return its path."""
    taken = take_fingerprint(folder=Path(__file__).parents[1], packages=packages, env={})
    machine = {
        key: value
        for key, value in taken.fields.items()
        if key.startswith(("machine.", "software.", "accelerator.", "code.commit"))
        and "path" not in key
    }
    RESULTS.mkdir(exist_ok=True)
    path = RESULTS / f"{name}.json"
    content = {
        "benchmark": name,
        "date": datetime.now().astimezone().isoformat(timespec="seconds"),
        "benchwright": version("benchwright"),
        "machine": machine,
        "figures": figures,
    }
    path.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
    return path

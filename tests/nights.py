"""A night of all three kinds: an experiment, an accuracy check and a speed check."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests.cli.conftest import experiment
from tests.domains.serving import serving_parts as parts

ITEMS = 12
"""Of the evaluation set."""

POINTS, PASSES = 2, 3
"""Of the load: requests in flight 2 and 4, each loaded so often."""


def asked(request: Any) -> dict[str, Any]:
    """What a request says beside its defaults, as a parameter."""
    data = request.model_dump(mode="json", exclude_unset=True)
    assert isinstance(data, dict)
    return data


def accuracy(port: int, place: Path) -> dict[str, Any]:
    """A small accuracy check of a stand-in."""
    return asked(parts.request(port, place))


def speed(port: int, place: Path) -> dict[str, Any]:
    """A small load of a stand-in."""
    return asked(parts.speed(port, place))


def suite_of_each(place: Path, port: int) -> dict[str, Any]:
    """A suite with one entry of each kind; the served model is a host of its own."""
    experiment(place, replication={"replicates": 2, "warmup": 0})
    right, fast = accuracy(port, place), speed(port, place)
    return {
        "hosts": {"lab": {"params": {"target": {"endpoint": {"port": port, "wait_s": 5.0}}}}},
        "entries": [
            {"name": "search", "experiment": str(place / "experiment.yaml")},
            {
                "name": "right",
                "domain": "accuracy",
                "host": "lab",
                "params": {key: right[key] for key in ("evaluate", "generation")},
            },
            {"name": "fast", "domain": "speed", "host": "lab", "params": {"load": fast["load"]}},
        ],
    }

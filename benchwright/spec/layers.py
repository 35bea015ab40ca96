"""Layers of a configuration laid over each other, with the place of every value.

Mappings are merged; lists are replaced whole, but for `metrics`, which are merged by name.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from benchwright.errors import Where
from benchwright.spec.source import Document, KeyPath, dotted

Origin = Literal["file", "recipe", "domain", "default", "command line"]
"""Who said a value."""


@dataclass(frozen=True, slots=True)
class Layer:
    """What one source says, its parameters nested."""

    origin: Origin
    document: Document
    data: Mapping[str, Any]

    def place(self, path: KeyPath) -> tuple[Origin, Where | None]:
        """Who said the value at a key path, and where."""
        # A parameter that was written `a.b: 1` has another path in the document.
        known = path in self.document.lines
        return self.origin, self.document.where(path if known else dotted(path, self.data))


@dataclass(slots=True)
class Layers:
    """The layers laid over each other, and the place of every value."""

    data: dict[str, Any] = field(default_factory=dict)
    places: dict[KeyPath, tuple[Origin, Where | None]] = field(default_factory=dict)

    def lay(self, layer: Layer) -> None:
        """Lay one layer over what is there."""
        for key, value in layer.data.items():
            if key == "metrics" and isinstance(value, list):
                self._lay_metrics(value, layer)
            else:
                self._lay(self.data, (key,), value, layer, (key,))

    def put(self, path: KeyPath, value: Any, where: Where) -> None:
        """Set one value from the command line."""
        here = self.data
        for part in path[:-1]:
            below = here.get(str(part))
            if not isinstance(below, dict):
                below = here[str(part)] = {}
            here = below
        here[str(path[-1])] = value
        self.places[path] = ("command line", where)

    def place(self, path: KeyPath) -> tuple[Origin, Where | None]:
        """Where a value came from; where the nearest value above it did, if it has no place."""
        for length in range(len(path), 0, -1):
            found = self.places.get(path[:length])
            if found is not None:
                return found
        return ("default", None)

    def _lay(
        self, into: dict[str, Any], path: KeyPath, value: Any, layer: Layer, said: KeyPath
    ) -> None:
        key = str(path[-1])
        self.places[path] = layer.place(said)
        if isinstance(value, Mapping):
            below = into.get(key)
            if not isinstance(below, dict):
                self._forget_below(path)
                below = into[key] = {}
            for name, part in value.items():
                self._lay(below, (*path, name), part, layer, (*said, name))
            return
        if isinstance(into.get(key), dict | list):
            self._forget_below(path)
        into[key] = copy.deepcopy(value)
        if isinstance(value, list):
            for place, part in enumerate(value):
                self._note(part, (*path, place), layer, (*said, place))

    def _note(self, value: Any, path: KeyPath, layer: Layer, said: KeyPath) -> None:
        """Write down the places of all that stands inside a list."""
        self.places[path] = layer.place(said)
        parts = (
            value.items()
            if isinstance(value, Mapping)
            else enumerate(value)
            if isinstance(value, list)
            else ()
        )
        for key, part in parts:
            self._note(part, (*path, key), layer, (*said, key))

    def _forget_below(self, path: KeyPath) -> None:
        for known in [known for known in self.places if known[: len(path)] == path]:
            if known != path:
                del self.places[known]

    def _lay_metrics(self, metrics: list[Any], layer: Layer) -> None:
        """Merge metrics by name: a file can change one field of a recipe's metric."""
        self.places.setdefault(("metrics",), (layer.origin, layer.document.where("metrics")))
        merged = self.data.get("metrics")
        if not isinstance(merged, list):
            merged = self.data["metrics"] = []
        taken = len(merged)
        names = {
            metric.get("name"): at
            for at, metric in enumerate(merged)
            if isinstance(metric, Mapping)
        }
        for place, metric in enumerate(metrics):
            name = metric.get("name") if isinstance(metric, Mapping) else None
            at = names.get(name) if isinstance(name, str) else None
            said: KeyPath = ("metrics", place)
            if at is None or at >= taken:
                merged.append(copy.deepcopy(metric))
                self._note(metric, ("metrics", len(merged) - 1), layer, said)
                continue
            for key, value in metric.items():
                self._lay(merged[at], ("metrics", at, key), value, layer, (*said, key))
            self.places["metrics", at] = layer.place(said)

"""The graph of a run's stages, laid out from left to right, as a template draws it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from benchwright.judgement.words import count
from benchwright.record.run import RunRecord
from benchwright.report import numbers
from benchwright.report.plain import cut
from benchwright.spec.model import StageKind

WIDTH, GAP_X, GAP_Y = 300, 56, 22
_LINE, _HEAD = 19, 56
_LINES_SHOWN = 5
_TEXT = 37
"""Characters that fit on a line of a box."""


@dataclass(frozen=True, slots=True)
class Line:
    """One line in a box; `hit` says whether it speaks of a cache hit, None: of no cache."""

    text: str
    hit: bool | None = None


@dataclass(frozen=True, slots=True)
class Box:
    """One stage: its place, its name, its kind, and what became of it in each arm."""

    x: int
    y: int
    height: int
    name: str
    kind: str
    lines: tuple[Line, ...]


@dataclass(frozen=True, slots=True)
class Graph:
    """Boxes, curves between them (as SVG paths), and the size of the whole in pixels."""

    boxes: tuple[Box, ...]
    paths: tuple[str, ...]
    width: int
    height: int
    caption: str
    alt: str


def graph(record: RunRecord) -> Graph | None:
    """The graph; None for a run whose configuration names no stages."""
    stages = {stage.name: stage for stage in record.view.config.stages}
    if not stages:
        return None
    level: dict[str, int] = {}
    for name in stages:
        _place(name, {n: s.needs for n, s in stages.items()}, level)
    columns: dict[int, list[str]] = {}
    for name in stages:
        columns.setdefault(level[name], []).append(name)

    boxes: dict[str, Box] = {}
    for column, names in sorted(columns.items()):
        y = 1
        for name in names:
            lines = _lines(record, name, stages[name].kind)
            height = _HEAD + _LINE * len(lines)
            x = 1 + column * (WIDTH + GAP_X)
            boxes[name] = Box(x, y, height, cut(name, _TEXT - 4), str(stages[name].kind), lines)
            y += height + GAP_Y
    paths = [
        _curve(boxes[need], boxes[name])
        for name, stage in stages.items()
        for need in stage.needs
        if need in boxes
    ]
    return Graph(
        boxes=tuple(boxes.values()),
        paths=tuple(paths),
        width=2 + max(box.x + WIDTH for box in boxes.values()),
        height=2 + max(box.y + box.height for box in boxes.values()),
        caption="The stages."
        + (" A full dot came from the cache, an empty one was built." if record.view.prep else ""),
        alt="Graph of the stages. " + " ".join(_spoken(box) for box in boxes.values()),
    )


def _place(name: str, needs: Mapping[str, tuple[str, ...]], level: dict[str, int]) -> int:
    """One column to the right of all that a stage needs; a circle in the graph ends at 0."""
    if name not in level:
        level[name] = 0
        before = [_place(need, needs, level) for need in needs[name] if need in needs]
        level[name] = 1 + max(before, default=-1)
    return level[name]


def _lines(record: RunRecord, name: str, kind: StageKind) -> tuple[Line, ...]:
    lines = []
    for result in record.view.prep:
        if result.stage == name:
            what = (
                "from the cache" if result.cached else f"built, {numbers.duration(result.wall_s)}"
            )
            lines.append(Line(_two(result.arm, what), result.cached))
    if kind is StageKind.MEASURE:
        for arm in dict.fromkeys(s.arm for s in record.view.samples if s.stage == name):
            counted = [
                s for s in record.view.samples if (s.stage, s.arm, s.warmup) == (name, arm, False)
            ]
            failed = sum(not sample.ok for sample in counted)
            what = count(len(counted), "replicate")
            if failed:
                what = f"{len(counted) - failed} of {len(counted)} finished"
            lines.append(Line(_two(arm, what)))
    if name in record.steps:
        lines.append(Line("done"))
    if len(lines) > _LINES_SHOWN:
        rest = len(lines) - _LINES_SHOWN + 1
        lines = [*lines[: _LINES_SHOWN - 1], Line(f"and {rest} more")]
    return tuple(lines)


def _two(arm: str, what: str) -> str:
    """An arm with what became of it, the arm shortened where both don't fit."""
    return f"{cut(arm, max(6, _TEXT - len(what) - 2))}: {what}"


def _curve(start: Box, end: Box) -> str:
    x0, y0 = start.x + WIDTH, start.y + start.height // 2
    x1, y1 = end.x - 7, end.y + end.height // 2
    bend = max(24, (x1 - x0) // 2)
    return f"M{x0} {y0} C{x0 + bend} {y0} {x1 - bend} {y1} {x1} {y1}"


def _spoken(box: Box) -> str:
    said = "; ".join(line.text for line in box.lines)
    return f"{box.name}, {box.kind}" + (f": {said}." if said else ".")

"""From samples to units of analysis (gate 2, rules 1, 8 and 10).

The unit is what was drawn anew. What repeats inside a unit is averaged first, never pooled: ten
timings from one process share that process's memory layout, and counting them as ten is how a
tool finds a difference between a program and itself.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from types import MappingProxyType

from benchwright.execution.sample import Sample
from benchwright.judgement.statistics import mean


class UnitKind(StrEnum):
    """What was drawn anew."""

    PROCESS = "process"
    """A fresh process: for a timing, a size, a rate."""
    ITEM = "item"
    """An item of the evaluation set: for a score."""
    SEED = "seed"
    """A seed: for a training."""

    @property
    def plural(self) -> str:
        """The word for several."""
        return "processes" if self is UnitKind.PROCESS else f"{self.value}s"


@dataclass(frozen=True, slots=True)
class Units:
    """The units of one metric in one arm.

    Attributes:
        arm, metric: Names.
        kind: What a unit is.
        by_key: One finite value for each unit, by what it is paired on: the block's number, the
            item's id, the seed.
    """

    arm: str
    metric: str
    kind: UnitKind
    by_key: Mapping[Hashable, float]

    @property
    def values(self) -> tuple[float, ...]:
        """The values in the order of their keys' first appearance."""
        return tuple(self.by_key.values())

    def __len__(self) -> int:
        return len(self.by_key)


@dataclass(frozen=True, slots=True)
class Pairs:
    """Units of two arms that belong together.

    Attributes:
        keys: What they are paired on.
        baseline, treatment: Values; pair i is (baseline[i], treatment[i]).
        left_out: Keys that only one arm has.
    """

    keys: tuple[Hashable, ...]
    baseline: tuple[float, ...]
    treatment: tuple[float, ...]
    left_out: tuple[Hashable, ...]


def analysed(samples: Iterable[Sample], arm: str | None = None) -> tuple[Sample, ...]:
    """The samples that the analysis stands on: no warm-ups, no failures, in order."""
    kept = (s for s in samples if s.ok and not s.warmup and (arm is None or s.arm == arm))
    return tuple(sorted(kept, key=lambda sample: sample.order))


def is_number(value: object) -> bool:
    """Whether a value is a finite number (gate 2, rule 10). `True` is not one."""
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def units_of(
    samples: Sequence[Sample],
    arm: str,
    metric: str,
    *,
    seeds: bool = False,
    itemised: bool = True,
) -> Units:
    """The units of one metric in one arm.

    A score with items has items as units; where the replicates are seeds of a training, the seed
    is the unit even then, for the win is to hold over seeds (gate 2, rule 8).

    Args:
        samples: The run's samples; warm-ups, failures and other arms are left out here.
        arm: Name of the arm.
        metric: Name of the metric.
        seeds: Whether each replicate has a seed of its own and is a unit because of it.
        itemised: Whether items count as units where the stage gave them; otherwise the processes
            do, whose course over the blocks `stability` looks at.
    """
    mine = [
        (sample, sample.measurement)
        for sample in analysed(samples, arm)
        if sample.measurement is not None and metric in sample.measurement.metrics
    ]
    has_items = bool(mine) and all(measurement.items.get(metric) for _, measurement in mine)
    if has_items and itemised and not seeds:
        items = [measurement.items[metric] for _, measurement in mine]
        return Units(arm, metric, UnitKind.ITEM, _by_item(items))
    values: defaultdict[Hashable, list[float]] = defaultdict(list)
    for sample, measurement in mine:
        value = measurement.metrics[metric]
        if is_number(value):
            values[sample.seed if seeds else sample.block].append(value)
    kind = UnitKind.SEED if seeds else UnitKind.PROCESS
    return Units(arm, metric, kind, _averaged(values))


def _by_item(replicates: Sequence[Mapping[str, Sequence[float]]]) -> Mapping[Hashable, float]:
    """Mean outcome of each item: repeats inside a replicate first, then the replicates."""
    outcomes: defaultdict[Hashable, list[float]] = defaultdict(list)
    for replicate in replicates:
        for item, repeats in replicate.items():
            good = [value for value in repeats if is_number(value)]
            if good:
                outcomes[item].append(mean(good))
    return _averaged(outcomes)


def _averaged(values: Mapping[Hashable, Sequence[float]]) -> Mapping[Hashable, float]:
    return MappingProxyType({key: mean(repeats) for key, repeats in values.items()})


def pair(baseline: Units, treatment: Units) -> Pairs:
    """Pair the units of two arms by block, item or seed; what only one arm has is left out."""
    keys = tuple(key for key in baseline.by_key if key in treatment.by_key)
    alone = [key for key in baseline.by_key if key not in treatment.by_key]
    alone += [key for key in treatment.by_key if key not in baseline.by_key]
    return Pairs(
        keys=keys,
        baseline=tuple(baseline.by_key[key] for key in keys),
        treatment=tuple(treatment.by_key[key] for key in keys),
        left_out=tuple(alone),
    )

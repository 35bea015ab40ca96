"""The order in which replicates run (gate 2, rule 2)."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass

from benchwright.spec.model import Replication


@dataclass(frozen=True, slots=True)
class Slot:
    """One replicate to run: its place in the order, its block, its arm, its seed."""

    order: int
    block: int
    arm: str
    warmup: bool
    seed: int


def schedule(arms: Sequence[str], replication: Replication) -> tuple[Slot, ...]:
    """Randomised blocks: each has one replicate of every arm, in an order drawn from the seed.

    Slow drift (heat, load) then meets all arms alike. Warm-up blocks come first. The same
    arguments give the same order, so that a run can be resumed and repeated.
    """
    draw = random.Random(replication.seed)
    slots: list[Slot] = []
    for warmup, blocks in ((True, replication.warmup), (False, replication.replicates)):
        for block in range(blocks):
            shuffled = list(arms)
            draw.shuffle(shuffled)
            seed = replication.seed + (block if replication.seeds_as_replicates else 0)
            slots += [
                Slot(len(slots) + place, block, arm, warmup, seed)
                for place, arm in enumerate(shuffled)
            ]
    return tuple(slots)

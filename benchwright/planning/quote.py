"""What a run is estimated to cost, with all that a person needs who is to approve it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

THIS_MACHINE = "this machine"
"""Provider of a quote whose every part is measured here, launch by launch."""


@dataclass(frozen=True, slots=True)
class CostItem:
    """One part of a cost.

    Attributes:
        what: What is paid for, such as `GPU, 1 x L4`.
        low_usd, high_usd: The range, in US dollars.
        basis: How it is reckoned, such as `0.80 USD an hour, 10 to 20 min`.
    """

    what: str
    low_usd: float
    high_usd: float
    basis: str = ""


@dataclass(frozen=True, slots=True)
class Alternative:
    """Another way to run it.

    Attributes:
        what: Provider and hardware.
        low_usd, high_usd: What it would cost, in US dollars.
        note: What speaks for or against it.
    """

    what: str
    low_usd: float
    high_usd: float
    note: str = ""


@dataclass(frozen=True, slots=True)
class Quote:
    """The estimated cost of a run.

    Attributes:
        provider: Who is paid.
        hardware: What runs it, such as `1 x L4 24 GB, 4 cores, 16 GiB`.
        low_s, high_s: How long it takes, in seconds.
        items: What the cost is made of.
        priced: Date of the prices, ISO 8601.
        usd_per_hour: What an hour costs at most while it runs; spending is reckoned with it.
        basis: What the duration stands on, as a sentence.
        alternatives: Other ways; `ordered` puts the free ones first.
    """

    provider: str
    hardware: str
    low_s: float
    high_s: float
    items: tuple[CostItem, ...]
    priced: str
    usd_per_hour: float
    basis: str = ""
    alternatives: tuple[Alternative, ...] = ()

    @property
    def low_usd(self) -> float:
        """The lower end, in US dollars."""
        return sum(item.low_usd for item in self.items)

    @property
    def high_usd(self) -> float:
        """The upper end, in US dollars; policies look at it."""
        return sum(item.high_usd for item in self.items)

    @property
    def ordered(self) -> tuple[Alternative, ...]:
        """The alternatives, free ones first, then by their upper end."""
        return tuple(sorted(self.alternatives, key=lambda one: (one.high_usd > 0, one.high_usd)))

    def as_json(self) -> dict[str, Any]:
        """As JSON values."""
        return asdict(self)

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Quote:
        """Read it back.

        Raises:
            TypeError: Something is missing, or not known.
        """
        parts = dict(data)
        parts["items"] = tuple(CostItem(**item) for item in parts.get("items", ()))
        parts["alternatives"] = tuple(Alternative(**one) for one in parts.get("alternatives", ()))
        return cls(**parts)

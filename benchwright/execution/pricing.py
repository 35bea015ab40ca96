"""What accelerators cost: a price file with a date, and the user's own prices laid over it.

A price that nobody wrote down is unknown, never zero.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from functools import lru_cache
from pathlib import Path
from typing import Any

from benchwright.errors import BadInput
from benchwright.spec.source import Document, read_yaml

VARIABLE = "BENCHWRIGHT_PRICES"
"""Names a file of the user's own prices."""

LOCAL = "local"
"""The provider that this machine is."""

HOUR_S = 3600.0

_SHIPPED = Path(__file__).with_name("prices")


@dataclass(frozen=True, slots=True)
class Price:
    """USD for a unit; two figures where the provider has a range."""

    low: float
    high: float


@dataclass(frozen=True, slots=True)
class ProviderPrices:
    """What one provider asks.

    Attributes:
        gpus: An hour of one GPU, by its name there; `*` in a name stands for anything.
        core_second, gib_second: A second of one processor core, of one GiB of main memory; None
            where they are part of the GPU's price, or not known.
        machine_hour: An hour of the machine, whatever runs on it.
    """

    gpus: Mapping[str, Price] = field(default_factory=dict)
    core_second: float | None = None
    gib_second: float | None = None
    machine_hour: float | None = None

    def gpu_hour(self, name: str) -> Price | None:
        """The price of an hour of one GPU; None where it is unknown.

        A pattern that doesn't speak of MIG doesn't price a MIG instance: a slice isn't worth the
        whole.
        """
        wanted = name.casefold()
        by_name = {key.casefold(): price for key, price in self.gpus.items()}
        if wanted in by_name:
            return by_name[wanted]
        for pattern, price in by_name.items():
            if ("mig" in wanted.split()) <= ("mig" in pattern) and fnmatchcase(wanted, pattern):
                return price
        return None


@dataclass(frozen=True, slots=True)
class Prices:
    """Prices by provider.

    Attributes:
        origin: Which file, and of which date, for whoever reads a figure.
        providers: By name: `local`, `modal`, `hf-jobs`, `hf-endpoints`, `beam`.
    """

    origin: str
    providers: Mapping[str, ProviderPrices]

    @property
    def local(self) -> ProviderPrices:
        """This machine's."""
        return self.providers.get(LOCAL, ProviderPrices())

    def provider(self, name: str) -> ProviderPrices:
        """One provider's. Raises BadInput for one that no file knows."""
        if name not in self.providers:
            raise BadInput(
                f"no prices are known of the provider '{name}'",
                expected="one of " + ", ".join(sorted(self.providers)),
                hint=f"write them into a file, and name it with {VARIABLE}",
            )
        return self.providers[name]


def read_prices(environ: Mapping[str, str]) -> Prices:
    """The shipped prices, with those of the user laid over them.

    Raises:
        BadInput: The user's file can't be read, or holds no prices; names file, line and key.
    """
    shipped = _shipped()
    own = environ.get(VARIABLE)
    if not own:
        return shipped
    mine = _read(Path(own))
    names = [*shipped.providers, *(n for n in mine.providers if n not in shipped.providers)]
    merged = {
        name: _over(
            shipped.providers.get(name, ProviderPrices()),
            mine.providers.get(name, ProviderPrices()),
        )
        for name in names
    }
    return Prices(f"{mine.origin}, over those {shipped.origin.removeprefix('prices ')}", merged)


def _over(below: ProviderPrices, above: ProviderPrices) -> ProviderPrices:
    # The user's own come first: the first pattern that fits is taken.
    gpus = {**above.gpus, **{name: p for name, p in below.gpus.items() if name not in above.gpus}}

    def first(upper: float | None, lower: float | None) -> float | None:
        return upper if upper is not None else lower

    return ProviderPrices(
        gpus,
        first(above.core_second, below.core_second),
        first(above.gib_second, below.gib_second),
        first(above.machine_hour, below.machine_hour),
    )


@lru_cache(maxsize=1)
def _shipped() -> Prices:
    return _read(max(_SHIPPED.glob("*.yaml")), "shipped with Benchwright")


_RATES = ("core_second", "gib_second", "machine_hour")


def _read(path: Path, called: str = "") -> Prices:
    source = read_yaml(path)
    date = str(source.data.get("date") or "")
    if not date:
        raise BadInput("prices without a date say nothing", where=source.where("date"),
                       expected="the month that they are of, such as `date: 2026-10`")  # fmt: skip
    providers = source.data.get("providers")
    if not isinstance(providers, Mapping):
        raise BadInput("holds no prices", where=source.where("providers"),
                       expected="`providers: {local: {gpus: {NVIDIA H200: 3.2}}}`")  # fmt: skip
    return Prices(
        f"prices of {date} ({called or path.name})",
        {str(name): _provider(source, str(name), entry) for name, entry in providers.items()},
    )


def _provider(source: Document, name: str, entry: Any) -> ProviderPrices:
    if not isinstance(entry, Mapping):
        raise BadInput("holds no prices", where=source.where(("providers", name)),
                       expected="a mapping with `gpus`")  # fmt: skip
    for key in entry:
        if key not in ("gpus", *_RATES):
            raise BadInput(
                f"'{key}' is no price",
                where=source.where(("providers", name, str(key))),
                expected="one of gpus, " + ", ".join(_RATES),
            )
    gpus = {
        str(gpu): _price(source, value, ("providers", name, "gpus", str(gpu)))
        for gpu, value in (entry.get("gpus") or {}).items()
    }
    rates = {
        key: _price(source, entry[key], ("providers", name, key)).high
        for key in _RATES
        if entry.get(key) is not None
    }
    return ProviderPrices(gpus, **rates)


def _price(source: Document, value: Any, key: tuple[str, ...]) -> Price:
    pair = value if isinstance(value, list) else [value, value]
    good = len(pair) == 2 and all(
        isinstance(one, int | float) and not isinstance(one, bool) and 0 <= one < float("inf")
        for one in pair
    )
    if not good or pair[0] > pair[1]:
        raise BadInput(f"{value!r} is no price", where=source.where(key),
                       expected="USD as a number, or [low, high]")  # fmt: skip
    return Price(float(pair[0]), float(pair[1]))

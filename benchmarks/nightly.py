"""How soon a suite finds a change, and how often it cries wolf: ours, thresholds, and the peers.

    python benchmarks/nightly.py [--histories N] [--seed N] [--no-peers]

Histories of 60 nights are drawn from a seed, and each method sees them as it would have: night by
night, only what was known by then. A method finds a change on the first night on which it reports
a change for the worse that began no more than three nights before the true one. It raises a false
alarm where it reports any change for the worse in a history without one.

Apache Otava (the maintained successor of DataStax Hunter) runs in an environment of its own with
its defaults; it is left out, with the reason, where it can't be installed.
"""

from __future__ import annotations

import argparse
import json
import math
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1]))

from benchmarks.peers import install
from benchmarks.results_file import write_results
from benchwright.judgement.history import Night, Shape, judge_history
from benchwright.judgement.statistics import wilson
from benchwright.spec.model import Metric

SEED = 20250101
NIGHTS = 60
SPREAD = 0.01
STEP, STEP_WITHIN = 0.03, 5
DRIFT, DRIFT_WITHIN = 0.005, 12
FALSE_ALARMS_ALLOWED = 0.05
OTAVA = "apache-otava==0.8.0"
SLOW = 50
"""Histories that the methods see which take a tenth of a second for a night."""
EARLY = 3
"""A change that is placed up to so many nights before the true one counts as that one."""

SPEED = Metric(name="ms", unit="ms")
ANY_SIZE = Metric(name="ms", unit="ms", min_effect=1e-9)

Alarms = list[tuple[int, int]]
"""(night on which it is reported, night on which the change is said to have begun), worse ones."""
Method = Callable[[np.ndarray], Alarms]
Noise = Callable[[np.random.Generator], np.ndarray]


def together(correlation: float) -> Noise:
    """Normal noise in which each night takes after the one before."""

    def draw(random: np.random.Generator) -> np.ndarray:
        fresh = random.standard_normal(NIGHTS) * math.sqrt(1 - correlation**2)
        noise = np.empty(NIGHTS)
        last = random.standard_normal()
        for night in range(NIGHTS):
            last = noise[night] = correlation * last + fresh[night]
        return noise

    return draw


NOISES: Mapping[str, Noise] = {
    "normal": lambda random: random.standard_normal(NIGHTS),
    "heavy-tailed (t, 3 degrees)": lambda random: random.standard_t(3, NIGHTS),
    "1 night in 20 is 10 spreads slower": lambda random: (
        random.standard_normal(NIGHTS) + 10.0 * (random.random(NIGHTS) < 0.05)
    ),
    "neighbours correlate, 0.3": together(0.3),
    "neighbours correlate, 0.5": together(0.5),
}


def values(noise: np.ndarray, logs: np.ndarray | float = 0.0, spread: float = SPREAD) -> np.ndarray:
    """A history in milliseconds from its noise, in spreads, and its change, in logarithms."""
    return 100.0 * np.exp(spread * noise + logs)


def step(at: int, size: float) -> np.ndarray:
    """The logarithm of a level that rises by `size` on night `at`."""
    return np.where(np.arange(NIGHTS) >= at, math.log1p(size), 0.0)


def drift(at: int, size: float) -> np.ndarray:
    """The logarithm of a level that rises by `size` each night from `at` on."""
    return math.log1p(size) * np.clip(np.arange(NIGHTS) - at + 1, 0, None)


# The methods


def ours(metric: Metric = SPEED, family: int = 1) -> Method:
    """The product's own way."""

    def find(history: np.ndarray) -> Alarms:
        nights = [Night(f"{number:03d}", float(value)) for number, value in enumerate(history)]
        found = judge_history(metric, nights, family=family).changes
        return [(change.found, change.first) for change in found if change.worse]

    return find


def threshold(share: float, against: str) -> Method:
    """A night is an alarm where it is so much slower than what it is held against."""

    def find(history: np.ndarray) -> Alarms:
        alarms = []
        for night in range(1, len(history)):
            before = history[night - 1] if against == "night before" else np.median(history[:night])
            if history[night] > (1 + share) * before:
                alarms.append((night, night))
        return alarms

    return find


def pelt(history: np.ndarray) -> Alarms:
    """ruptures' PELT with the squared-error cost and the BIC penalty, as its manual shows it."""
    import ruptures

    alarms: Alarms = []
    logs = np.log(history)
    for night in range(7, len(logs)):
        known = logs[: night + 1]
        spread = float(np.median(np.abs(np.diff(known)))) / 0.9539
        search = ruptures.Pelt(model="l2", min_size=3, jump=1).fit(known)
        cuts = search.predict(pen=2 * spread**2 * math.log(len(known)))
        starts = [0, *cuts[:-1]]
        for before, first, end in zip(starts, starts[1:], cuts[1:], strict=False):
            worse = known[first:end].mean() > known[before:first].mean()
            if worse and all(abs(first - begun) > EARLY for _, begun in alarms):
                alarms.append((night, first))
    return alarms


_OTAVA_PROGRAM = """
import json, sys
from otava.analysis import compute_change_points
out = []
for history in json.load(sys.stdin):
    alarms = []
    for night in range(7, len(history)):
        points, _ = compute_change_points(history[: night + 1])
        for point in points:
            first, stats = int(point.index), point.stats
            worse = stats.mean_2 > stats.mean_1
            if worse and all(abs(first - begun) > EARLY for _, begun in alarms):
                alarms.append((night, first))
    out.append(alarms)
json.dump(out, sys.stdout)
""".replace("EARLY", str(EARLY))


def otava(binaries: Path, histories: Sequence[np.ndarray]) -> list[Alarms]:
    """Otava's own detection, with its defaults, in its own environment."""
    finished = subprocess.run(
        [str(binaries / "python"), "-c", _OTAVA_PROGRAM],
        input=json.dumps([history.tolist() for history in histories]),
        capture_output=True,
        text=True,
        check=True,
    )
    return [[tuple(alarm) for alarm in alarms] for alarms in json.loads(finished.stdout)]


# The figures


def delay(alarms: Alarms, at: int) -> int | None:
    """Nights from a change until it is reported, the first of it included; None: never."""
    nights = [night for night, first in alarms if night >= at and first >= at - EARLY]
    return min(nights) - at + 1 if nights else None


def of_change(found: Sequence[Alarms], places: Sequence[int], within: int) -> dict[str, Any]:
    """How soon a change was found."""
    delays = [delay(alarms, at) for alarms, at in zip(found, places, strict=True)]
    known = sorted(one for one in delays if one is not None)
    in_time = sum(one is not None and one <= within for one in delays)
    early = sum(any(night < at for night, _ in a) for a, at in zip(found, places, strict=True))
    return {
        "histories": len(delays),
        f"found within {within} nights": in_time / len(delays),
        "interval": wilson_ends(in_time, len(delays)),
        "median nights": float(np.median(known)) if known else None,
        "95th percentile of nights": float(np.percentile(known, 95)) if known else None,
        "false alarm before it": early / len(delays),
    }


def of_none(found: Sequence[Alarms]) -> dict[str, Any]:
    """How often an alarm was raised where nothing had changed."""
    wrong = sum(bool(alarms) for alarms in found)
    return {
        "histories": len(found),
        "with a false alarm": wrong / len(found),
        "interval": wilson_ends(wrong, len(found)),
        "false alarms in all": sum(map(len, found)),
    }


def wilson_ends(many: int, of: int) -> list[float]:
    """Ends of the 95 % interval of a share."""
    low, high = wilson(many / of, of)
    return [round(low, 4), round(high, 4)]


def scenarios(histories: int, seed: int) -> dict[str, Any]:
    """The histories of the three scenarios; changes begin on nights 20 to 45."""
    draw = np.random.default_rng([seed, 1])
    places = [int(draw.integers(20, 46)) for _ in range(histories)]
    normal = NOISES["normal"]
    return {
        "places": places,
        "step": [values(normal(draw), step(at, STEP)) for at in places],
        "drift": [values(normal(draw), drift(at, DRIFT)) for at in places],
        "none": [values(normal(draw)) for _ in range(histories)],
    }


def figures_of(many: Callable[[Sequence[np.ndarray]], list[Alarms]], drawn: Any) -> dict[str, Any]:
    """One method on all three scenarios."""
    start = time.process_time()
    result = {
        "step of 3 %": of_change(many(drawn["step"]), drawn["places"], STEP_WITHIN),
        "drift of 0.5 % a night": of_change(many(drawn["drift"]), drawn["places"], DRIFT_WITHIN),
        "no change": of_none(many(drawn["none"])),
    }
    return {**result, "cpu_s": round(time.process_time() - start, 2)}


def each(method: Method) -> Callable[[Sequence[np.ndarray]], list[Alarms]]:
    """A method over many histories."""
    return lambda histories: [method(history) for history in histories]


def robustness(histories: int, seed: int) -> dict[str, Any]:
    """Ours where the noise is another, or where there is something that is no change."""
    draw = np.random.default_rng([seed, 2])
    any_size, normal = ours(ANY_SIZE), NOISES["normal"]
    table: dict[str, Any] = {
        "no change, every size of change counts": {
            name: of_none([any_size(values(noise(draw))) for _ in range(histories)])
            for name, noise in NOISES.items()
        }
    }

    def spoiled(size: float, nights: int) -> np.ndarray:
        at = int(draw.integers(20, 50))
        hit = (np.arange(NIGHTS) >= at) & (np.arange(NIGHTS) < at + nights)
        return values(normal(draw), np.where(hit, math.log1p(size), 0.0))

    table["bad nights that are no change"] = {
        f"{nights} of {size:.0%}": of_none(
            [ours()(spoiled(size, nights)) for _ in range(histories)]
        )
        for size in (0.1, 1.0)
        for nights in (1, 2)
    }
    table["a lasting change of 0.8 %, inside min_effect, at 0.3 % spread"] = of_none(
        [ours()(values(normal(draw), step(30, 0.008), 0.003)) for _ in range(histories)]
    )
    return table


def families(suites: int, seed: int, series: int = 20) -> dict[str, Any]:
    """A suite of 20 series: any false alarm in it, and how soon one of them is found."""
    draw = np.random.default_rng([seed, 3])
    method, normal = ours(ANY_SIZE, series), NOISES["normal"]
    alarmed = [
        [alarm for _ in range(series) for alarm in method(values(normal(draw)))]
        for _ in range(suites)
    ]
    drawn = scenarios(suites * 4, seed + 1)
    speed = ours(SPEED, series)
    return {
        "series": series,
        "no change, every size of change counts": of_none(alarmed),
        "step of 3 %": of_change(
            [speed(history) for history in drawn["step"]], drawn["places"], STEP_WITHIN
        ),
        "drift of 0.5 % a night": of_change(
            [speed(history) for history in drawn["drift"]], drawn["places"], DRIFT_WITHIN
        ),
    }


def drift_of_ten_nights(histories: int, seed: int) -> dict[str, Any]:
    """Ten nights of 1 % each, then level: found before they are over, and said to be a drift."""
    draw = np.random.default_rng([seed, 4])
    at, found, shapes = 30, [], []
    for _ in range(histories):
        logs = math.log1p(0.01) * np.clip(np.arange(NIGHTS) - at + 1, 0, 10)
        nights = [
            Night(f"{number:03d}", float(value))
            for number, value in enumerate(values(NOISES["normal"](draw), logs))
        ]
        worse = [change for change in judge_history(SPEED, nights).changes if change.worse]
        found.append([(change.found, change.first) for change in worse])
        shapes.append(any(change.shape is Shape.DRIFT for change in worse))
    return {
        **of_change(found, [at] * histories, 10),
        "called a drift": sum(shapes) / histories,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--histories", type=int, default=200)
    parser.add_argument("--seed", type=int, default=SEED)
    parser.add_argument("--no-peers", action="store_true")
    options = parser.parse_args()
    drawn = scenarios(options.histories, options.seed)
    methods: dict[str, Method] = {
        "ours": ours(),
        "5 % above the night before": threshold(0.05, "night before"),
        "10 % above the night before": threshold(0.10, "night before"),
        "5 % above the median so far": threshold(0.05, "median"),
        "10 % above the median so far": threshold(0.10, "median"),
    }
    table = {}
    for name, method in methods.items():
        table[name] = figures_of(each(method), drawn)
        print(name, json.dumps(table[name]), flush=True)
    few = {name: histories[:SLOW] for name, histories in drawn.items()}
    alone = "ruptures alone: PELT, squared error, BIC"
    table[alone] = figures_of(each(pelt), few)
    print(alone, json.dumps(table[alone]), flush=True)
    left_out = {}
    binaries = None if options.no_peers else install(OTAVA)
    if binaries is None:
        left_out[OTAVA] = "not asked for" if options.no_peers else "can't be installed"
    else:
        table[OTAVA] = figures_of(lambda histories: otava(binaries, histories), few)
        print(OTAVA, json.dumps(table[OTAVA]), flush=True)
    mine = table["ours"]
    figures = {
        "nights": NIGHTS,
        "spread": SPREAD,
        "seed": options.seed,
        "methods": table,
        "left_out": left_out,
        "ten nights of 1 %": drift_of_ten_nights(options.histories, options.seed),
        "ours, robustness": robustness(options.histories, options.seed),
        "ours, a suite of 20 series": families(max(options.histories // 4, 10), options.seed),
        "met": {
            "no alarm in at least 95 of 100 histories without a change": (
                mine["no change"]["with a false alarm"] <= FALSE_ALARMS_ALLOWED
            ),
            "median history: step within 5, drift within 12": (
                mine["step of 3 %"]["median nights"] <= STEP_WITHIN
                and mine["drift of 0.5 % a night"]["median nights"] <= DRIFT_WITHIN
            ),
            "step within 5 in at least 90 of 100 histories": (
                mine["step of 3 %"][f"found within {STEP_WITHIN} nights"] >= 0.9
            ),
            "drift within 12 in at least 95 of 100 histories": (
                mine["drift of 0.5 % a night"][f"found within {DRIFT_WITHIN} nights"] >= 0.95
            ),
        },
    }
    print(json.dumps(figures["met"], indent=2))
    print(write_results("nightly", figures, ("ruptures", "numpy", "scipy")))
    if not all(figures["met"].values()):
        sys.exit("a figure that is promised was not met")


if __name__ == "__main__":
    main()

"""How often each tool believes a difference that isn't there, and how often ours misses one.

    python benchmarks/belief.py [SECTION ...] [--quick] [--seed N]

Everything but the section `burner` is simulated from a seed: each tool gets the same numbers.
pyperf's and asv's own functions are called (`pip install pyperf asv`); a tool that isn't there is
left out with its reason. Sections: false-wins, coverage, power, burner, seeds, family, scores.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1]))

from benchmarks.results_file import write_results
from benchwright.execution.launch import EndReason, Usage
from benchwright.execution.sample import Measurement, Sample
from benchwright.identity.canonical import config_hash
from benchwright.identity.fingerprint import Fingerprint
from benchwright.judgement.decide import Contrast, contrast, decide
from benchwright.judgement.judge import judge_run
from benchwright.judgement.schedule import schedule
from benchwright.judgement.statistics import wilson
from benchwright.judgement.units import UnitKind, Units
from benchwright.judgement.verdict import Decision, Verdict
from benchwright.judgement.view import RunView
from benchwright.spec.arms import expand_arms
from benchwright.spec.manifest import Manifest
from benchwright.spec.model import (
    BenchmarkConfig,
    Direction,
    Metric,
    Replication,
    Scale,
    Stage,
    StageKind,
)

SEED = 20250101

MIXTURES = {"0 / 2 %": (0.00, 0.02), "1 / 1 %": (0.01, 0.01), "2 / 0.5 %": (0.02, 0.005)}
"""Spread between processes / within a process."""

SHAPES = {"20 of 3": (20, 3), "10 of 10": (10, 10), "2 of 10": (2, 10)}
"""Processes of so many values."""

MATTERS = 0.01
"""`min_effect` of the simulated metrics: the default."""

Noise = Callable[[np.random.Generator, tuple[int, ...]], np.ndarray]

NOISES: Mapping[str, Noise] = {
    "normal": lambda draw, shape: 1 + 0.02 * draw.standard_normal(shape),
    "lognormal": lambda draw, shape: np.exp(0.3 * draw.standard_normal(shape)),
    "heavy-tailed": lambda draw, shape: np.exp(0.02 * draw.standard_t(3, shape)),
    "bimodal": lambda draw, shape: (
        (1 + 0.1 * (draw.random(shape) < 0.5)) * np.exp(0.01 * draw.standard_normal(shape))
    ),
}
"""Noise around 1, between processes. Heavy-tailed: Student's t with 3 degrees of freedom.
Bimodal: half of the processes are 10 % slower."""

HARD_NOISES: Mapping[str, Noise] = {
    "t with 2 degrees": lambda draw, shape: np.exp(0.02 * draw.standard_t(2, shape)),
    "floor + lognormal": lambda draw, shape: 1 + 0.05 * np.exp(draw.standard_normal(shape)),
    "1 in 5 slow": lambda draw, shape: (
        (1 + 0.1 * (draw.random(shape) < 0.2)) * np.exp(0.01 * draw.standard_normal(shape))
    ),
}
"""Shapes where Student's t is known to be conservative: shown beside the four."""

SPEED = Metric(name="ms", unit="ms", min_effect=MATTERS)
SCORE = Metric(
    name="score",
    direction=Direction.HIGHER,
    scale=Scale.DIFFERENCE,
    min_effect=0.001,
    tolerance=0.01,
)
ACCURACY = Metric(
    name="accuracy", direction=Direction.HIGHER, scale=Scale.PROPORTION, min_effect=0.005
)


# Runs made of numbers


@lru_cache(maxsize=64)
def _plan(
    metric: Metric, treatments: int, replicates: int, seeds: bool
) -> tuple[BenchmarkConfig, str]:
    """A configuration whose arms are the values 0, 1, ... of the parameter `arm`; its hash."""
    config = BenchmarkConfig(
        domain="command",
        params={"arm": 0},
        stages=(Stage(name="measure", kind=StageKind.MEASURE, cmd="run {arm}"),),
        treatment_variable="arm",
        treatment_values=tuple(range(1, treatments + 1)),
        metrics=(metric,),
        replication=Replication(replicates=replicates, warmup=0, seeds_as_replicates=seeds),
    )
    return config, config_hash(config)


def run_of(metric: Metric, arms: Sequence[np.ndarray], *, seeds: bool = False) -> RunView:
    """A run whose arm i gave `arms[i]`: one row for each process, with what repeats inside."""
    config, digest = _plan(metric, len(arms) - 1, len(arms[0]), seeds)
    expanded = {arm.name: (index, arm) for index, arm in enumerate(expand_arms(config))}
    samples = []
    for slot in schedule(list(expanded), config.replication):
        index, arm = expanded[slot.arm]
        values = tuple(float(value) for value in np.atleast_1d(arms[index][slot.block]))
        measurement = Measurement(
            metrics={metric.name: math.fsum(values) / len(values)},
            values={metric.name: values},
            effective={"arm": arm.value},
        )
        samples.append(_sample(slot.arm, slot.block, slot.order, slot.seed, measurement))
    return _view(config, digest, samples)


def _sample(arm: str, block: int, order: int, seed: int, measurement: Measurement) -> Sample:
    return Sample(
        stage="measure",
        arm=arm,
        block=block,
        order=order,
        warmup=False,
        seed=seed,
        started="",
        duration_s=1.0,
        reason=EndReason.COMPLETED,
        exit_code=0,
        error="",
        measurement=measurement,
        usage=Usage(wall_s=1.0),
    )


def _view(config: BenchmarkConfig, digest: str, samples: Sequence[Sample]) -> RunView:
    return RunView(
        run_id="simulated",
        created="2025-01-01T00:00:00+00:00",
        config=config,
        config_hash=digest,
        manifest=Manifest(),
        samples=tuple(samples),
        fingerprint=Fingerprint(),
    )


def ours(metric: Metric, arms: Sequence[np.ndarray], *, seeds: bool = False) -> list[Verdict]:
    """The verdicts of `judge_run`: all of the product's own way, from samples to decision."""
    return list(judge_run(run_of(metric, arms, seeds=seeds)).verdicts)


def decided(verdict: Verdict) -> bool:
    """Whether a difference is claimed."""
    return verdict.decision in (Decision.BETTER, Decision.WORSE)


def excludes_none(verdict: Verdict, none: float = 1.0) -> bool:
    """Whether the interval excludes "no change", whatever its size."""
    low, high = verdict.interval.low, verdict.interval.high
    return low is not None and high is not None and not low <= none <= high


# The peers


def peers() -> tuple[dict[str, Callable[[np.ndarray, np.ndarray], bool]], dict[str, str]]:
    """The peers' own rules on the pooled values, and why one is missing."""
    found: dict[str, Callable[[np.ndarray, np.ndarray], bool]] = {}
    missing = {}
    try:
        from pyperf._utils import is_significant

        found["pyperf"] = lambda a, b: bool(
            is_significant(a.ravel().tolist(), b.ravel().tolist())[0]
        )
    except ImportError as error:
        missing["pyperf"] = f"not installed ({error})"
    try:
        from asv._stats import is_different
        from asv_runner.statistics import compute_stats

        def asv(a: np.ndarray, b: np.ndarray) -> bool:
            first, second = a.ravel().tolist(), b.ravel().tolist()
            return bool(
                is_different(first, second, compute_stats(first, 1)[1], compute_stats(second, 1)[1])
            )

        found["asv"] = asv
    except ImportError as error:
        missing["asv"] = f"not installed ({error})"
    return found, missing


# 1. False wins


def draw_processes(
    draw: np.random.Generator, between: float, within: float, shape: tuple[int, int]
) -> np.ndarray:
    """Timings of one program: a row for each process, each with its own level."""
    level = 1 + between * draw.standard_normal((shape[0], 1))
    return 100 * level * (1 + within * draw.standard_normal(shape))


def false_wins(comparisons: int, seed: int) -> dict[str, Any]:
    """Share of A/A comparisons in which a tool claims a difference."""
    rules, missing = peers()
    table = {}
    for shape_name, shape in SHAPES.items():
        for mixture_name, (between, within) in MIXTURES.items():
            draw = np.random.default_rng([seed, *shape, round(1e4 * between)])
            wins = {"ours": 0, "ours, interval without 1": 0, "no verdict": 0}
            wins |= dict.fromkeys(rules, 0)
            for _ in range(comparisons):
                a = draw_processes(draw, between, within, shape)
                b = draw_processes(draw, between, within, shape)
                verdict = ours(SPEED, [a, b])[0]
                wins["ours"] += decided(verdict)
                wins["ours, interval without 1"] += excludes_none(verdict)
                wins["no verdict"] += verdict.decision is Decision.NO_VERDICT
                for name, rule in rules.items():
                    wins[name] += rule(a, b)
            table[f"{shape_name}, {mixture_name}"] = {
                name: many / comparisons for name, many in wins.items()
            }
    return {"comparisons": comparisons, "share": table, "left_out": missing}


# 2. Coverage and power


def single(metric: Metric, a: Sequence[float], b: Sequence[float]) -> Contrast:
    """A contrast of two arms of processes."""
    units = [
        Units(arm, metric.name, UnitKind.PROCESS, dict(enumerate(values)))
        for arm, values in (("a", a), ("b", b))
    ]
    return contrast(metric, *units)


def coverage(
    repetitions: int, seed: int, noises: Mapping[str, Noise] | None = None
) -> dict[str, Any]:
    """Share of 95 % intervals that hold the true ratio."""
    truth = 1.05
    table: dict[str, dict[str, float]] = {}
    for name, noise in (noises or {**NOISES, **HARD_NOISES}).items():
        for replicates in (5, 10, 30):
            draw = np.random.default_rng([seed, replicates, len(name)])
            a = noise(draw, (repetitions, replicates))
            b = truth * noise(draw, (repetitions, replicates))
            held = 0
            for first, second in zip(a.tolist(), b.tolist(), strict=True):
                interval = decide([single(SPEED, first, second)])[0].interval
                if interval.low is not None and interval.high is not None:
                    held += interval.low <= truth <= interval.high
            table.setdefault(name, {})[str(replicates)] = held / repetitions
    return {"repetitions": repetitions, "share": table, "asked": list(NOISES)}


def power(repetitions: int, seed: int) -> dict[str, Any]:
    """Share of true 5 % effects that are found, at 2 % spread with 10 replicates."""
    draw = np.random.default_rng([seed, 5])
    found = {"5 % slower is worse": 0, "5 % faster is better": 0}
    for _ in range(repetitions):
        a, b = (1 + 0.02 * draw.standard_normal(10) for _ in range(2))
        slower = decide([single(SPEED, a.tolist(), (1.05 * b).tolist())])[0]
        faster = decide([single(SPEED, a.tolist(), (0.95 * b).tolist())])[0]
        found["5 % slower is worse"] += slower.decision is Decision.WORSE
        found["5 % faster is better"] += faster.decision is Decision.BETTER
    return {
        "repetitions": repetitions,
        "share": {name: many / repetitions for name, many in found.items()},
    }


# 3. The same command against itself, beside a burner


WORK = "sum(i * i for i in range(60_000))"
BURST_S = (0.1, 0.6)
"""The burner is on, then off, for a time drawn from this range: about one arm of hyperfine's."""


@contextmanager
def burner(seed: int) -> Iterator[None]:
    """Processes that keep every CPU busy, switched on and off at times drawn from the seed."""
    count = len(os.sched_getaffinity(0))
    burners = [
        subprocess.Popen([sys.executable, "-S", "-c", "while True: pass"]) for _ in range(count)
    ]
    stop = threading.Event()

    def switch() -> None:
        draw, running = random.Random(seed), True
        while not stop.wait(draw.uniform(*BURST_S)):
            running = not running
            for process in burners:
                process.send_signal(signal.SIGCONT if running else signal.SIGSTOP)

    switcher = threading.Thread(target=switch)
    switcher.start()
    try:
        yield
    finally:
        stop.set()
        switcher.join()
        for process in burners:
            process.kill()
            process.wait()


def burner_section(comparisons: int, seed: int, runs: int = 10) -> dict[str, Any]:
    """A command against itself while a burner switches on and off; hyperfine beside it."""
    command = [sys.executable, "-S", "-c", WORK]
    binary = shutil.which("hyperfine")
    claims = {"ours": 0, "hyperfine": 0}
    largest = {"ours": 1.0, "hyperfine": 1.0}
    ratios = []
    words: dict[str, int] = {}
    for number in range(comparisons):
        with burner(seed + number):
            verdict = _timed_by_us(command, runs, seed + number)
        claims["ours"] += decided(verdict)
        words[verdict.decision] = words.get(verdict.decision, 0) + 1
        if verdict.effect:
            largest["ours"] = max(largest["ours"], verdict.effect, 1 / verdict.effect)
        if binary:
            with burner(seed + number):
                ratio, sigma = _timed_by_hyperfine(binary, command, runs)
            claims["hyperfine"] += ratio - sigma > 1
            largest["hyperfine"] = max(largest["hyperfine"], ratio)
            ratios.append((round(ratio, 3), round(sigma, 3)))
    left_out = {} if binary else {"hyperfine": "not installed"}
    if not binary:
        claims.pop("hyperfine")
        largest.pop("hyperfine")
    return {
        "comparisons": comparisons,
        "runs_an_arm": runs,
        "claims": claims,
        "largest_ratio": largest,
        "decisions": words,
        "hyperfine_ratio_and_sigma": ratios,
        "left_out": left_out,
    }


def _timed_by_us(command: Sequence[str], runs: int, seed: int) -> Verdict:
    """Time a command against itself in our order: randomised blocks, fresh processes."""
    config = _plan(SPEED, 1, runs, False)[0]
    config = config.model_copy(update={"replication": Replication(replicates=runs, seed=seed)})
    arms = {arm.name: arm for arm in expand_arms(config)}
    samples = []
    for slot in schedule(list(arms), config.replication):
        begin = time.perf_counter()
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        took = time.perf_counter() - begin
        if slot.warmup:
            continue
        measurement = Measurement(
            metrics={"ms": 1000 * took}, effective={"arm": arms[slot.arm].value}
        )
        samples.append(_sample(slot.arm, slot.block, slot.order, slot.seed, measurement))
    return judge_run(_view(config, config_hash(config), samples)).verdicts[0]


def _timed_by_hyperfine(binary: str, command: Sequence[str], runs: int) -> tuple[float, float]:
    """hyperfine's own comparison of a command with itself: the ratio of means and its sigma."""
    line = " ".join([command[0], *command[1:-1], f"'{command[-1]}'"])
    with tempfile.TemporaryDirectory() as folder:
        export = Path(folder, "out.json")
        subprocess.run(
            [binary, "-N", "--style", "none", "--warmup", "1", "--runs", str(runs),
             "--export-json", str(export), line, line],
            check=True,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )  # fmt: skip
        results = json.loads(export.read_text(encoding="utf-8"))["results"]
    fast, slow = sorted(results, key=lambda result: result["mean"])
    ratio = slow["mean"] / fast["mean"]
    # As in hyperfine's src/benchmark/relative_speed.rs.
    sigma = ratio * math.hypot(slow["stddev"] / slow["mean"], fast["stddev"] / fast["mean"])
    return ratio, sigma


# 4. A lucky seed


def lucky_seeds(candidates: int, seed: int, seeds: int = 10) -> dict[str, Any]:
    """Candidates without an effect, trained with seeds that spread by 1 point."""
    draw = np.random.default_rng([seed, 4])
    wins = {"ours, 10 seeds": 0, "one seed each": 0, "best of 10 seeds": 0}
    for _ in range(candidates):
        baseline, candidate = 0.8 + 0.01 * draw.standard_normal((2, seeds))
        verdict = ours(SCORE, [baseline, candidate], seeds=True)[0]
        wins["ours, 10 seeds"] += verdict.win
        wins["one seed each"] += candidate[0] > baseline[0] + SCORE.min_effect
        wins["best of 10 seeds"] += candidate.max() > baseline.max() + SCORE.min_effect
    return {
        "candidates": candidates,
        "share": {name: many / candidates for name, many in wins.items()},
    }


# 5. Families


def family(runs: int, seed: int, noises: Mapping[str, Noise] = NOISES) -> dict[str, Any]:
    """Share of A/A runs with four treatments in which any of them is called different.

    `min_effect` is made so small that it protects nothing: what is seen is the family's error.
    """
    metric = SPEED.model_copy(update={"min_effect": 1e-9})
    table = {}
    for name, noise in noises.items():
        draw = np.random.default_rng([seed, 6, len(name)])
        wrong = alone = 0
        for _ in range(runs):
            verdicts = ours(metric, list(100 * noise(draw, (5, 10))))
            wrong += any(decided(verdict) for verdict in verdicts)
        for _ in range(runs):
            alone += decided(ours(metric, list(100 * noise(draw, (2, 10))))[0])
        table[name] = {"four treatments": wrong / runs, "one treatment": alone / runs}
    return {"runs": runs, "share": table}


# 6. Scores


def scores(comparisons: int, seed: int, items: int = 1319) -> dict[str, Any]:
    """Accuracies of two model servers on the same items: paired, and as two intervals.

    Each item has its own difficulty. One server in ten answers comes out otherwise.
    """
    wins = {}
    for name, gain in (("no difference", 0.0), ("3 points", 0.03)):
        draw = np.random.default_rng([seed, 7, round(100 * gain)])
        paired = apart = 0
        for _ in range(comparisons):
            first = draw.random(items) < 0.70
            flips = draw.random(items)
            second = np.where(first, flips >= 0.05, flips < 0.05 * 0.70 / 0.30 + gain / 0.30)
            units = [
                Units(arm, "accuracy", UnitKind.ITEM, dict(enumerate(map(float, outcome))))
                for arm, outcome in (("a", first), ("b", second))
            ]
            paired += decided(decide([contrast(ACCURACY, *units)])[0])
            (_, high), (low, _) = (
                wilson(first.mean(), items),
                wilson(second.mean(), items),
            )
            apart += low > high
        wins[name] = {"ours, paired": paired / comparisons, "two intervals": apart / comparisons}
    return {"comparisons": comparisons, "items": items, "share": wins}


# Printing


def percent(share: float) -> str:
    return f"{100 * share:6.1f} %"


def show(title: str, result: Mapping[str, Any]) -> None:
    """Print a section as a table: a row for each case, a column for each rule."""
    print(f"\n{title}")
    shares = result.get("share", {})
    if shares and all(isinstance(row, Mapping) for row in shares.values()):
        columns = list(next(iter(shares.values())))
        widths = [max(len(str(column)), 8) for column in columns]
        print(f"  {'':22}" + "  ".join(f"{c!s:>{w}}" for c, w in zip(columns, widths, strict=True)))
        for name, row in shares.items():
            cells = (f"{percent(row[c]):>{w}}" for c, w in zip(columns, widths, strict=True))
            print(f"  {name:22}" + "  ".join(cells))
    else:
        for name, share in shares.items():
            print(f"  {name:22}{percent(share)}")
    for key in ("claims", "largest_ratio", "decisions"):
        if key in result:
            print(f"  {key}: " + ", ".join(f"{n} {v:.3g}" for n, v in result[key].items()))
    for tool, reason in result.get("left_out", {}).items():
        print(f"  {tool} left out: {reason}")


SECTIONS: Mapping[str, tuple[str, Callable[[int, int], dict[str, Any]], int, int]] = {
    "false-wins": (
        "False wins on A/A comparisons (processes of values; spread between / within)",
        false_wins,
        2000,
        200,
    ),
    "coverage": ("Coverage of the 95 % interval, by number of replicates", coverage, 10_000, 1000),
    "power": ("Power for a true 5 % at 2 % spread, 10 replicates", power, 2000, 300),
    "burner": (
        "The same command against itself while a CPU burner switches on and off",
        burner_section,
        20,
        3,
    ),
    "seeds": ("A lucky seed: wins of candidates without an effect", lucky_seeds, 200, 200),
    "family": ("Any false difference in an A/A run (min_effect of nothing)", family, 2000, 200),
    "scores": ("Accuracy on 1,319 items, differences claimed", scores, 1000, 100),
}
"""Title, function, repetitions, and repetitions with --quick."""


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("sections", nargs="*", choices=[*SECTIONS, []], metavar="SECTION")
    parser.add_argument("--quick", action="store_true", help="a tenth of the repetitions")
    parser.add_argument("--seed", type=int, default=SEED)
    asked = parser.parse_args(arguments)
    figures: dict[str, Any] = {}
    for name in asked.sections or SECTIONS:
        title, function, full, quick = SECTIONS[name]
        begin = time.perf_counter()
        result = function(quick if asked.quick else full, asked.seed)
        seconds = round(time.perf_counter() - begin, 1)
        show(f"{title}, seed {asked.seed}, {seconds} s", result)
        figures[name] = {**result, "seconds": seconds, "seed": asked.seed}
    if asked.quick or asked.sections:
        print("\nNothing was written: only a whole run is a result.")
        return
    figures["hyperfine"] = hyperfine_version()
    path = write_results("belief", figures, ("numpy", "scipy", "pyperf", "asv"))
    print(f"\nWritten to {path}")


def hyperfine_version() -> str:
    """Version of the hyperfine in the path, or `absent`."""
    binary = shutil.which("hyperfine")
    if binary is None:
        return "absent"
    answer = subprocess.run([binary, "--version"], capture_output=True, text=True, check=False)
    return answer.stdout.strip() or "unknown"


if __name__ == "__main__":
    main()

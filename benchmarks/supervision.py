"""What supervision gives and what it costs.

1. Orphans after stages that leave processes behind, ended in each way that there is.
2. Memory: runaways within their budget, neighbours that live, claims that are true.
3. What the guard takes of a core while a tree of nine processes runs.
4. What a supervised start costs over a plain child process, beside hyperfine and BenchExec.

Each with its control. Memory by each mechanism that this machine gives.

    python benchmarks/supervision.py
    python benchmarks/supervision.py --only orphans cost --starts 300
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import random
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from benchmarks.harm import (
    ENDINGS,
    LEFTOVERS,
    NO_DEATH_BUDGET_MB,
    NO_MEMORY_DEATHS,
    attendant_of,
    cpu_seconds,
    group_reason,
    neighbour,
    orphans_after,
    orphans_without_supervisor,
    parent_group,
    program,
    requester,
    runaway_without_guard,
    stage,
)
from benchmarks.peers import install
from benchmarks.results_file import write_results
from benchwright.execution.launch import EndReason
from benchwright.execution.supervisor import Supervisor

BUDGET_MB = 500.0
START_MB = 350.0
"""Taken at once, so that the slow runaways need seconds, not minutes."""

OVERSHOOT = 1.05
RATES_GB_S = (0.1, 0.5, 2.0)
GUARD_LIMITS = {"cgroup1": 0.01, "polling": 0.05, "none": 0.01}
COST_LIMIT_MS = 10.0
BENCHEXEC = "benchexec==3.35"

Row = tuple[str, str, str]
"""What was measured, the figure, the target."""


def orphans(folder: Path, options: argparse.Namespace) -> tuple[list[Row], dict[str, Any]]:
    """Runs that leave processes behind, counted after each way to end them."""
    kinds = list(itertools.product(LEFTOVERS, ENDINGS))
    counts: dict[str, list[int]] = {}
    for number in range(options.orphan_runs):
        leftover, ending = kinds[number % len(kinds)]
        counts.setdefault(f"{leftover}, {ending}", []).append(
            orphans_after(leftover, ending, folder)
        )
    control = {leftover: orphans_without_supervisor(leftover) for leftover in LEFTOVERS}
    left = sum(map(sum, counts.values()))
    row = f"orphans in {options.orphan_runs} runs ({len(kinds)} kinds)"
    return (
        [(row, str(left), "0"), ("the same, plain child (4 runs)", str(sum(control.values())), "")],
        {"runs": options.orphan_runs, "left": counts, "control": control},
    )


def runaways(
    folder: Path, options: argparse.Namespace, mechanism: str
) -> tuple[list[Row], dict[str, Any]]:
    """Stages that take memory without end; their use by the account of a group around them."""
    ratios: dict[str, list[float]] = {}
    ended = 0
    combinations = list(itertools.product(RATES_GB_S, (1, 4)))
    for number in range(options.memory_runs):
        rate, processes = combinations[number % len(combinations)]
        argv = program(
            "runaway",
            rate_gb_s=rate,
            processes=processes,
            start_mb=START_MB,
            limit_mb=3 * BUDGET_MB,
        )
        with (
            parent_group() as group,
            requester(argv, folder, group=group, mechanism=mechanism, memory_mb=BUDGET_MB) as asked,
        ):
            reason = asked.outcome().reason
        assert asked.group_peak_mb is not None
        ratio = asked.group_peak_mb / BUDGET_MB
        ratios.setdefault(f"{rate:g} GB/s, {processes} processes", []).append(ratio)
        ended += reason is EndReason.MEMORY and ratio <= OVERSHOOT
    worst = max(itertools.chain.from_iterable(ratios.values()))
    runs = options.memory_runs
    return (
        [
            (f"{mechanism}: runaway ended within 105 %", f"{ended} of {runs}", f"{runs} of {runs}"),
            (f"{mechanism}: worst use of the budget", f"{worst:.1%}", "105%"),
        ],
        {"ended": ended, "runs": runs, "budget_mb": BUDGET_MB, "peak_over_budget": ratios},
    )


def neighbours(
    folder: Path, options: argparse.Namespace, mechanism: str
) -> tuple[list[Row], dict[str, Any]]:
    """A runaway in a group that an innocent process is in, larger than the runaway."""
    runs = options.neighbour_runs
    alive = died = 0
    for _ in range(runs):
        with parent_group(limit_mb=500) as group, neighbour(group, mb=280) as innocent:
            argv = program("runaway", rate_gb_s=2.0, limit_mb=1000)
            with requester(
                argv, folder, group=group, mechanism=mechanism, memory_mb=100.0
            ) as asked:
                asked.outcome()
            alive += innocent.poll() is None
    for _ in range(options.control_runs):
        with parent_group(limit_mb=500) as group, neighbour(group, mb=280) as innocent:
            runaway_without_guard(group, rate_gb_s=2.0, limit_mb=1000)
            with suppress(subprocess.TimeoutExpired):
                innocent.wait(2.0)
            died += innocent.poll() is not None
    control = options.control_runs
    return (
        [
            (f"{mechanism}: neighbour lives", f"{alive} of {runs}", f"{runs} of {runs}"),
            ("without a guard: neighbour dies", f"{died} of {control}", f"{control} of {control}"),
        ],
        {"alive": alive, "runs": runs, "control_died": died, "control_runs": control},
    )


def claims(
    folder: Path, options: argparse.Namespace, mechanism: str
) -> tuple[list[Row], dict[str, Any]]:
    """Ends that look like memory deaths and are none; memory that is shared."""
    wrong: list[str] = []
    names = list(NO_MEMORY_DEATHS)
    with Supervisor(mechanism=mechanism) as supervisor:
        for number in range(options.claim_runs):
            name = names[number % len(names)]
            script, expected = NO_MEMORY_DEATHS[name]
            launch = stage(folder, "sh", "-c", script, memory_mb=NO_DEATH_BUDGET_MB)
            reason = supervisor.run(launch).reason
            if reason is not expected:
                wrong.append(f"{name}: {reason}")
        argv = program("share", mb=1000, processes=10)
        shared = [
            supervisor.run(stage(folder, *argv, memory_mb=2000.0))
            for _ in range(options.shared_runs)
        ]
    lived = sum(outcome.ok for outcome in shared)
    runs = options.claim_runs
    target = f"{len(shared)} of {len(shared)}"
    return (
        [
            (f"{mechanism}: wrong claims of memory death", f"{len(wrong)} of {runs}", "0"),
            (
                f"{mechanism}: 1 GB shared by ten forks, 2 GB",
                f"{lived} of {len(shared)} live",
                target,
            ),
        ],
        {
            "wrong": wrong,
            "runs": runs,
            "shared_lived": lived,
            "shared_peak_mb": [outcome.usage.peak_memory_mb for outcome in shared],
        },
    )


def guard_cost(
    folder: Path, options: argparse.Namespace, mechanism: str
) -> tuple[list[Row], dict[str, Any]]:
    """CPU of the supervising process while nine processes hold memory; far from and near budget."""
    shares: dict[str, float] = {}
    for name, budget in (("far", 1000.0), ("near", 230.0)):
        argv = program("hold", mb=180, processes=9)
        with requester(argv, folder, mechanism=mechanism, memory_mb=budget) as asked:
            asked.wait_for(9)
            attendant = attendant_of(asked.tag)
            time.sleep(0.5)  # past the start, where the peak is sampled more often
            before, began = cpu_seconds(attendant), time.monotonic()
            time.sleep(options.guard_s)
            shares[name] = (cpu_seconds(attendant) - before) / (time.monotonic() - began)
    worst = max(shares.values())
    return (
        [
            (
                f"{mechanism}: the guard's share of a core",
                f"{worst:.2%}",
                f"{GUARD_LIMITS[mechanism]:.0%}",
            )
        ],
        {"share_of_a_core": shares, "seconds": options.guard_s},
    )


def start_cost(folder: Path, options: argparse.Namespace) -> tuple[list[Row], dict[str, Any]]:
    """A supervised `/bin/true` over a plain child, interleaved; peers beside."""
    command = "/bin/true"
    with Supervisor() as grouped, Supervisor(mechanism="polling") as polled:

        def plain() -> None:
            subprocess.run([command], stdout=subprocess.DEVNULL, check=True)

        def supervised() -> None:
            assert grouped.run(stage(folder, command)).ok

        def limited() -> None:
            assert grouped.run(stage(folder, command, memory_mb=500.0)).ok

        def polling() -> None:
            assert polled.run(stage(folder, command, memory_mb=500.0)).ok

        ways: dict[str, Callable[[], None]] = {
            "plain child": plain,
            "Benchwright": supervised,
            "Benchwright, budget": limited,
            "Benchwright, budget, polling": polling,
        }
        times: dict[str, list[float]] = {name: [] for name in ways}
        order = list(ways)
        draw = random.Random(1)
        for number in range(options.starts + 1):  # the first round starts the zygotes
            draw.shuffle(order)
            for name in order:
                began = time.perf_counter()
                ways[name]()
                if number:
                    times[name].append(time.perf_counter() - began)
    peers = {"hyperfine": hyperfine(options.starts), "BenchExec": benchexec(folder, options.starts)}
    times |= {name: spans for name, spans in peers.items() if spans is not None}
    base = statistics.median(times["plain child"])
    rows: list[Row] = []
    for name, spans in times.items():
        over = (statistics.median(spans) - base) * 1e3
        target = f"{COST_LIMIT_MS:.0f} ms" if name.startswith("Benchwright") else ""
        label = f"start of /bin/true over a plain child: {name}"
        if name == "plain child":
            rows.append(("start of /bin/true, plain child", f"{base * 1e3:.2f} ms", ""))
        else:
            rows.append((label, f"{over:.2f} ms", target))
    left_out = [name for name, spans in peers.items() if spans is None]
    return rows, {"seconds": times, "left_out": left_out}


def hyperfine(runs: int) -> list[float] | None:
    """Wall seconds a run of hyperfine itself, over batches, its own measuring included."""
    if shutil.which("hyperfine") is None:
        return None
    batches = []
    for _ in range(5):
        size = max(runs // 5, 10)
        argv = ["hyperfine", "--shell=none", "--style=none", f"--runs={size}", "/bin/true"]
        began = time.perf_counter()
        subprocess.run(
            argv, check=True, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )  # fmt: skip
        batches.append((time.perf_counter() - began) / size)
    return batches


BENCHEXEC_RUNS = """
import json, logging, sys, time
from benchexec.runexecutor import RunExecutor
logging.disable(logging.CRITICAL)
executor = RunExecutor(use_namespaces=False)
times = []
for _ in range(int(sys.argv[1])):
    began = time.perf_counter()
    result = executor.execute_run(["/bin/true"], sys.argv[2], memlimit=500_000_000)
    times.append(time.perf_counter() - began)
    assert result["exitcode"].value == 0, result
print(json.dumps(times))
"""


def benchexec(folder: Path, runs: int) -> list[float] | None:
    """Wall seconds of each run through BenchExec's API, with a memory limit, no container."""
    programs = install(BENCHEXEC)
    if programs is None:
        return None
    finished = subprocess.run(
        [
            str(programs / "python"),
            "-c",
            BENCHEXEC_RUNS,
            str(min(runs, 50)),
            str(folder / "be.log"),
        ],
        capture_output=True,
        text=True,
        check=False,
        env={key: value for key, value in os.environ.items() if not key.startswith("PYTHON")},
    )
    if finished.returncode:
        print("BenchExec can't run here:", finished.stderr.strip().splitlines()[-1:])
        return None
    times: list[float] = json.loads(finished.stdout.splitlines()[-1])
    return times


class Quiet:
    """How quiet the machine was: a look that comes late is memory that is taken."""

    def __init__(self) -> None:
        self._before = self._ticks()

    @staticmethod
    def _ticks() -> list[int]:
        return list(map(int, Path("/proc/stat").read_text().splitlines()[0].split()[1:9]))

    def facts(self) -> dict[str, float]:
        """Load of the last 15 minutes, and shares of the CPU time since the start."""
        spent = [after - before for before, after in zip(self._before, self._ticks(), strict=True)]
        total = sum(spent) or 1
        return {
            "load average": round(os.getloadavg()[2], 2),
            "idle": round(spent[3] / total, 3),
            "stolen by the host": round(spent[7] / total, 3),
        }


PARTS = ("orphans", "memory", "guard", "cost")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", nargs="+", choices=PARTS, default=PARTS)
    parser.add_argument("--orphan-runs", type=int, default=100)
    parser.add_argument("--memory-runs", type=int, default=54, help="by mechanism")
    parser.add_argument("--neighbour-runs", type=int, default=50, help="by mechanism")
    parser.add_argument("--control-runs", type=int, default=10)
    parser.add_argument("--claim-runs", type=int, default=50, help="by mechanism")
    parser.add_argument("--shared-runs", type=int, default=2, help="by mechanism")
    parser.add_argument("--guard-s", type=float, default=3.0)
    parser.add_argument("--starts", type=int, default=200)
    options = parser.parse_args()
    reason = group_reason()
    mechanisms = ["polling"] if reason else ["cgroup1", "polling"]
    rows: list[Row] = []
    figures: dict[str, Any] = {"mechanisms": mechanisms}
    quiet = Quiet()
    if reason:
        figures["left_out"] = f"groups, and what is measured with one: {reason}"
        print(figures["left_out"])
    with tempfile.TemporaryDirectory(prefix="benchwright-bench-") as place:
        folder = Path(place)

        def add(name: str, part: tuple[list[Row], dict[str, Any]]) -> None:
            for row in part[0]:
                print(f"{row[0]:<66}{row[1]:>16}{row[2]:>12}", flush=True)
            rows.extend(part[0])
            figures[name] = part[1]

        print(f"{'':<66}{'seen':>16}{'target':>12}")
        if "orphans" in options.only:
            add("orphans", orphans(folder, options))
        for mechanism in mechanisms:
            if "memory" in options.only:
                if not reason:
                    add(f"runaways {mechanism}", runaways(folder, options, mechanism))
                    add(f"neighbours {mechanism}", neighbours(folder, options, mechanism))
                add(f"claims {mechanism}", claims(folder, options, mechanism))
            if "guard" in options.only:
                add(f"guard {mechanism}", guard_cost(folder, options, mechanism))
        if "cost" in options.only:
            add("start", start_cost(folder, options))
    figures["table"] = rows
    figures["machine"] = quiet.facts()
    print("meanwhile:", ", ".join(f"{key} {value}" for key, value in figures["machine"].items()))
    print("written:", write_results("supervision", figures))


if __name__ == "__main__":
    main()

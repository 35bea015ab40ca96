"""What orchestration costs: a chain of 20 stages, each `cat` of the one before.

Benchwright on a running local server, Snakemake and DVC, interleaved in random order: cold (every
stage runs) and with nothing to do (Benchwright: every prep stage from the cache; its last stage
is a measurement, which always runs).

    python benchmarks/orchestration.py --rounds 10
"""

from __future__ import annotations

import argparse
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

import psutil

from benchmarks.peers import install
from benchmarks.results_file import write_results
from deployments.local import client
from deployments.local.state import LocalHome, read_server

STAGES = 20

RESTED_S, RESTED_PERCENT = 0.25, 5.0
"""The server rests when it takes less of a core than this over so long."""

SNAKEMAKE, DVC = "snakemake==9.27.0", "dvc==3.67.1"


class Ours:
    """`benchwright run` with its server and engine up."""

    name = "benchwright"

    def __init__(self, folder: Path) -> None:
        self.folder = folder / "ours"
        self.folder.mkdir()
        self.command = [str(Path(sys.executable).with_name("benchwright"))]
        self.env = {k: v for k, v in os.environ.items() if not k.startswith("PREFECT_")}
        self.env["BENCHMARK_HOME"] = str(self.folder / "home")
        stages = []
        for number in range(STAGES - 1):
            source = f"{{a{number - 1}}}" if number else "input.txt"
            stage = {
                "name": f"s{number}",
                "kind": "prep",
                "cmd": f"cat {source} > {{a{number}}}",
                "produces": [f"a{number}"],
            }
            stage["needs" if number else "inputs"] = [f"s{number - 1}"] if number else ["input.txt"]
            stages.append(stage)
        stages.append(
            {
                "name": f"s{STAGES - 1}",
                "kind": "measure",
                "needs": [f"s{STAGES - 2}"],
                "cmd": f"cat {{a{STAGES - 2}}} | wc -c | sed 's/^ */bytes: /'",
                "metrics_from": {"stdout": True, "format": "key_value", "fields": ["bytes"]},
            }
        )
        config = {
            "domain": "command",
            "stages": stages,
            "metrics": [{"name": "bytes", "unit": "B"}],
            "replication": {"replicates": 1, "warmup": 0},
        }
        (self.folder / "chain.yaml").write_text(json.dumps(config))
        subprocess.run([*self.command, "up"], env=self.env, check=True, cwd=self.folder)

    def make_cold(self, text: str) -> None:
        (self.folder / "input.txt").write_text(text)

    def run(self) -> None:
        _run([*self.command, "run", "chain.yaml", "--json"], self.folder, self.env)

    def rest(self) -> None:
        """Wait until nothing of the last run goes on: the next tool is not to pay for it.

        The terminal has its answer before Prefect has its last state, and the server stores the
        events of a run's tasks behind it.
        """
        home = LocalHome(self.folder / "home")
        client.wait_for_last_steps(home)
        record = read_server(home)
        assert record is not None
        server = psutil.Process(record.pid)
        while server.cpu_percent(interval=RESTED_S) > RESTED_PERCENT:
            pass

    def close(self) -> None:
        subprocess.run([*self.command, "down"], env=self.env, check=True, cwd=self.folder)


class Snakemake:
    """`snakemake --cores 1`."""

    name = "snakemake"

    def __init__(self, folder: Path, programs: Path) -> None:
        self.folder = folder / "snakemake"
        self.folder.mkdir()
        self.command = [str(programs / "snakemake"), "--cores", "1", "--quiet", "all"]
        rules = [f'rule all:\n    input: "s{STAGES - 1}.txt"\n']
        for number in range(STAGES):
            source = f"s{number - 1}.txt" if number else "input.txt"
            rules.append(
                f'rule s{number}:\n    input: "{source}"\n    output: "s{number}.txt"\n'
                '    shell: "cat {input} > {output}"\n'
            )
        (self.folder / "Snakefile").write_text("\n".join(rules))

    def make_cold(self, text: str) -> None:
        (self.folder / "input.txt").write_text(text)
        for number in range(STAGES):
            (self.folder / f"s{number}.txt").unlink(missing_ok=True)

    def run(self) -> None:
        _run(self.command, self.folder)

    def rest(self) -> None:
        """Nothing goes on after it."""


class Dvc:
    """`dvc repro`."""

    name = "dvc"

    def __init__(self, folder: Path, programs: Path) -> None:
        self.folder = folder / "dvc"
        self.folder.mkdir()
        self.command = [str(programs / "dvc"), "repro", "--quiet"]
        _run([str(programs / "dvc"), "init", "--no-scm", "--quiet"], self.folder)
        _run([str(programs / "dvc"), "config", "core.analytics", "false"], self.folder)
        lines = ["stages:"]
        for number in range(STAGES):
            source = f"s{number - 1}.txt" if number else "input.txt"
            lines += [
                f"  s{number}:",
                f"    cmd: cat {source} > s{number}.txt",
                f"    deps: [{source}]",
                f"    outs: [s{number}.txt]",
            ]
        (self.folder / "dvc.yaml").write_text("\n".join(lines) + "\n")

    def make_cold(self, text: str) -> None:
        (self.folder / "input.txt").write_text(text)

    def run(self) -> None:
        _run(self.command, self.folder)

    def rest(self) -> None:
        """Nothing goes on after it."""


def _run(command: list[str], folder: Path, env: dict[str, str] | None = None) -> None:
    done = subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{' '.join(command)} failed:\n{done.stdout}\n{done.stderr}")


def timed(action: Callable[[], None]) -> float:
    """Seconds of wall time."""
    start = time.perf_counter()
    action()
    return time.perf_counter() - start


def main() -> None:
    """Measure, print the ratios, write the results."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    draw = random.Random(options.seed)
    with tempfile.TemporaryDirectory(prefix="benchwright-bench-") as place:
        folder = Path(place)
        tools: list[Ours | Snakemake | Dvc] = [Ours(folder)]
        for kind, requirement in ((Snakemake, SNAKEMAKE), (Dvc, DVC)):
            programs = install(requirement)
            if programs is not None:
                tools.append(kind(folder, programs))
        times: dict[str, dict[str, list[float]]] = {
            tool.name: {"cold": [], "nothing to do": []} for tool in tools
        }
        try:
            for number in range(options.rounds + 1):  # the first round warms every tool up
                draw.shuffle(tools)
                for tool in tools:
                    tool.make_cold(f"round {number} {draw.random()}\n")
                    cold = timed(tool.run)
                    tool.rest()
                    nothing = timed(tool.run)
                    tool.rest()
                    if number:
                        times[tool.name]["cold"].append(cold)
                        times[tool.name]["nothing to do"].append(nothing)
        finally:
            for tool in tools:
                if isinstance(tool, Ours):
                    tool.close()
    report(times, options.rounds)


def report(times: dict[str, dict[str, list[float]]], rounds: int) -> None:
    """Print medians and ratios, and write them down."""
    ours = times["benchwright"]
    figures: dict[str, object] = {"stages": STAGES, "rounds": rounds, "seconds": times}
    print(f"a chain of {STAGES} stages, {rounds} rounds, interleaved; median seconds")
    print(f"{'tool':<14}{'cold':>8}{'nothing to do':>16}{'ours/its, cold':>18}{'nothing':>10}")
    ratios: dict[str, dict[str, float]] = {}
    for name, spans in times.items():
        medians = {kind: statistics.median(values) for kind, values in spans.items()}
        ratios[name] = {
            kind: statistics.median(ours[kind]) / median for kind, median in medians.items()
        }
        print(
            f"{name:<14}{medians['cold']:>8.2f}{medians['nothing to do']:>16.2f}"
            f"{ratios[name]['cold']:>18.2f}{ratios[name]['nothing to do']:>10.2f}"
        )
    figures["ratios"] = ratios
    print("written:", write_results("orchestration", figures, ("prefect",)))


if __name__ == "__main__":
    main()

"""What an accuracy run costs beside the bare `evalscope eval` of the same command.

`benchwright accuracy` (probe, data, job, validation, report, record, on a running local server) and
the bare evaluator, interleaved in random order, against a server that takes a fixed time for each
answer: so the evaluation takes as long on both sides, and what is left is ours. Two lengths tell
the fixed part from the part that grows.

    BENCHWRIGHT_SHARED=... python benchmarks/accuracy.py --rounds 5

Asked for: at most 3 % of a ten-minute run, plus 10 seconds.
"""

from __future__ import annotations

import argparse
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from benchmarks.results_file import write_results
from domains.serving import evalscope
from domains.serving.host import LocalHost
from domains.serving.request import EVALSCOPE_VERSION, accuracy_request, find_dataset

ROOT = Path(__file__).parents[1]
MODEL = "org/standin"
ANSWER_S = 4.0
"""Seconds for each answer; with 16 in flight."""

LENGTHS = (48, 160)
"""Items of a short and a long evaluation: 3 and 10 waves of answers."""

LIMIT_S = 0.03 * 600 + 10


@contextmanager
def server(answers: Path) -> Iterator[int]:
    """A stand-in that answers after a fixed time; its port."""
    program = ROOT / "tests" / "domains" / "serving" / "standin_server.py"
    process = subprocess.Popen(
        [
            *(sys.executable, str(program), "--model", MODEL, "--answers", str(answers)),
            *("--fault", f"slow:{ANSWER_S}"),
        ],
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    try:
        yield int(process.stdout.readline().split()[1])
    finally:
        process.kill()
        process.wait()


def timed(command: list[str], env: dict[str, str]) -> float:
    start = time.perf_counter()
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
    spent = time.perf_counter() - start
    if done.returncode != 0:
        raise SystemExit(
            f"{' '.join(command)} failed:\n{done.stdout[-2000:]}\n{done.stderr[-2000:]}"
        )
    return spent


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    data = Path(os.environ.get("BENCHWRIGHT_SHARED", ""), "data", "gsm8k")
    if not (data / "test.jsonl").is_file():
        raise SystemExit("BENCHWRIGHT_SHARED names no folder with data/gsm8k/test.jsonl")
    draw = random.Random(options.seed)
    spent: dict[str, dict[int, list[float]]] = {
        side: {length: [] for length in LENGTHS} for side in ("benchwright", "evalscope")
    }
    tool_dir = os.environ.get("BENCHWRIGHT_EVALSCOPE_DIR")
    tool = evalscope.ensure(LocalHost(), wanted=EVALSCOPE_VERSION, given=None, tool_dir=tool_dir)
    ours = str(Path(sys.executable).with_name("benchwright"))
    with tempfile.TemporaryDirectory(prefix="benchwright-bench-") as place:
        folder = Path(place)
        env = {k: v for k, v in os.environ.items() if not k.startswith("PREFECT_")}
        env["BENCHMARK_HOME"] = str(folder / "home")
        subprocess.run([ours, "up"], env=env, check=True)
        try:
            with server(data / "test.jsonl") as port:
                rounds = range(options.rounds)
                jobs = [(n, side, length) for n in rounds for side in spent for length in LENGTHS]
                draw.shuffle(jobs)
                for number, side, length in jobs:
                    if side == "benchwright":
                        command = [
                            *(ours, "accuracy", "--local", "--port", str(port)),
                            *("--dataset", f"gsm8k={data}", "--limit", str(length)),
                            *("-p", f"evaluate.evalscope={tool.program}", "--max-tokens", "64"),
                            *("-p", f"evaluate.work_root={folder / 'work'}"),
                        ]
                    else:
                        request = accuracy_request(
                            {
                                "target": {"endpoint": {"port": port}},
                                "evaluate": {"limit": length},
                                "generation": {"max_tokens": 64},
                            }
                        )
                        command = evalscope.eval_command(
                            tool,
                            request,
                            find_dataset(f"gsm8k={data}"),
                            MODEL,
                            data=str(data),
                            output=str(folder / "bare" / f"{number}-{length}"),
                        )
                    spent[side][length].append(timed(command, env))
        finally:
            subprocess.run([ours, "down"], env=env, check=True)
    report(spent, options.rounds)


def report(spent: dict[str, dict[int, list[float]]], rounds: int) -> None:
    medians = {
        side: {length: statistics.median(values) for length, values in lengths.items()}
        for side, lengths in spent.items()
    }
    bare, ours = medians["evalscope"], medians["benchwright"]
    over = {length: ours[length] - bare[length] for length in LENGTHS}
    short, long = LENGTHS
    growth = max((over[long] - over[short]) / (bare[long] - bare[short]), 0.0)
    fixed = max(over[short] - growth * bare[short], 0.0)
    at_ten_minutes = fixed + growth * 600
    print(f"{rounds} rounds, interleaved; median seconds")
    for length in LENGTHS:
        print(
            f"{length:>4} items: evalscope {bare[length]:.1f}, benchwright {ours[length]:.1f},"
            f" overhead {over[length]:.1f}"
        )
    print(
        f"fixed {fixed:.1f} s and {100 * growth:.1f} % of the run: {at_ten_minutes:.1f} s on ten"
        f" minutes; asked for: at most {LIMIT_S:.0f} s"
    )
    figures = {
        "rounds": rounds,
        "answer_s": ANSWER_S,
        "seconds": spent,
        "fixed_s": fixed,
        "growth": growth,
        "overhead_on_ten_minutes_s": at_ten_minutes,
        "limit_s": LIMIT_S,
    }
    print("written:", write_results("accuracy", figures, ("prefect",)))


if __name__ == "__main__":
    main()

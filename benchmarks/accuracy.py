"""What an accuracy run costs beside the bare `evalscope eval` of the same command.

`benchwright accuracy` (probe, data, job, validation, report, record, on a running local server) and
the bare evaluator, one right after the other in random order, against a server that takes a fixed
time for each answer: so the evaluation takes as long on both sides, and what is left is ours. Two
lengths tell the fixed part from the part that grows, each by the median of its pairs. A first run
of either side is left out.

    BENCHWRIGHT_SHARED=... python benchmarks/accuracy.py --rounds 5

A round takes about four minutes. `--lock FILE` holds that file's lock for each pair, so that
others wait who share the machine; `--add` keeps the rounds that were measured before on the same
machine.

Asked for: at most 3 % of a ten-minute run, plus 10 seconds.
"""

from __future__ import annotations

import argparse
import fcntl
import json
import os
import random
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from benchmarks.results_file import RESULTS, write_results
from benchwright.identity.fingerprint import take_fingerprint
from domains.serving import evalscope
from domains.serving.host import LocalHost
from domains.serving.request import EVALSCOPE_VERSION, accuracy_request, find_dataset

ROOT = Path(__file__).parents[1]
MODEL = "org/standin"
ANSWER_S = 12.0
"""Seconds for each answer; with 16 in flight. The evaluator's own work for each item takes a time
that varies, more so on a busy machine: with short answers little else would be compared."""

LENGTHS = (16, 128)
"""Items of a short and a long evaluation: 1 and 8 waves of answers."""

CALM_S = 2.0
"""Between getting the lock and the start: whoever had it has just ended."""

SIDES = ("benchwright", "evalscope")

Spent = dict[str, dict[int, list[float]]]
"""Seconds of each run, by side and by number of items."""

OURS = str(Path(sys.executable).with_name("benchwright"))

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


@contextmanager
def alone(lock: Path | None) -> Iterator[None]:
    """Hold a lock for as long as the block runs; the machine calms down first."""
    if lock is None:
        yield
        return
    with lock.open("a") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        time.sleep(CALM_S)
        yield


def timed(command: list[str], env: dict[str, str]) -> float:
    start = time.perf_counter()
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
    spent = time.perf_counter() - start
    if done.returncode != 0:
        raise SystemExit(
            f"{' '.join(command)} failed:\n{done.stdout[-2000:]}\n{done.stderr[-2000:]}"
        )
    return spent


def earlier() -> Spent:
    """The seconds of earlier rounds. Raises SystemExit: they are of another machine."""
    file = RESULTS / "accuracy.json"
    if not file.is_file():
        return {side: {length: [] for length in LENGTHS} for side in SIDES}
    known = json.loads(file.read_text(encoding="utf-8"))
    here = take_fingerprint(folder=ROOT, packages=(), env={}).fields["machine.id"]
    if known["machine"]["machine.id"] != here or known["figures"]["answer_s"] != ANSWER_S:
        raise SystemExit(f"{file} is of another machine or another load: leave --add out")
    return {
        side: {int(length): values for length, values in lengths.items()}
        for side, lengths in known["figures"]["seconds"].items()
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--add", action="store_true", help="keep the rounds measured before")
    parser.add_argument("--lock", type=Path, help="held for each run")
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    data = Path(os.environ.get("BENCHWRIGHT_SHARED", ""), "data", "gsm8k")
    if not (data / "test.jsonl").is_file():
        raise SystemExit("BENCHWRIGHT_SHARED names no folder with data/gsm8k/test.jsonl")
    spent: Spent = {side: {length: [] for length in LENGTHS} for side in SIDES}
    if options.add:
        spent = earlier()
    loads: list[float] = []
    draw = random.Random(options.seed + len(spent["evalscope"][LENGTHS[0]]))
    tool_dir = os.environ.get("BENCHWRIGHT_EVALSCOPE_DIR")
    tool = evalscope.ensure(LocalHost(), wanted=EVALSCOPE_VERSION, given=None, tool_dir=tool_dir)
    with tempfile.TemporaryDirectory(prefix="benchwright-bench-") as place:
        folder = Path(place)
        env = {k: v for k, v in os.environ.items() if not k.startswith("PREFECT_")}
        env["BENCHMARK_HOME"] = str(folder / "home")
        subprocess.run([OURS, "up"], env=env, check=True)
        try:
            with server(data / "test.jsonl") as port:
                for side in SIDES:
                    timed(command_of(side, tool, port, data, 1, folder / "first"), env)
                for number in range(options.rounds):
                    for length in draw.sample(LENGTHS, len(LENGTHS)):
                        with alone(options.lock):
                            loads.append(os.getloadavg()[0])
                            for side in draw.sample(SIDES, len(SIDES)):
                                output = folder / "work" / f"{number}-{length}"
                                command = command_of(side, tool, port, data, length, output)
                                spent[side][length].append(timed(command, env))
        finally:
            subprocess.run([OURS, "down"], env=env, check=True)
    report(spent, loads)


def command_of(
    side: str, tool: evalscope.Tool, port: int, data: Path, items: int, output: Path
) -> list[str]:
    """The command of either side: the same evaluation of so many items."""
    if side == "benchwright":
        return [
            *(OURS, "accuracy", "--local", "--port", str(port)),
            *("--dataset", f"gsm8k={data}", "--limit", str(items), "--max-tokens", "64"),
            *("-p", f"evaluate.evalscope={tool.program}"),
            *("-p", f"evaluate.work_root={output}"),
        ]
    request = accuracy_request(
        {
            "target": {"endpoint": {"port": port}},
            "evaluate": {"limit": items},
            "generation": {"max_tokens": 64},
        }
    )
    dataset = find_dataset(f"gsm8k={data}")
    return evalscope.eval_command(
        tool, request, dataset, MODEL, data=str(data), output=str(output / "bare")
    )


def report(spent: Spent, loads: list[float]) -> None:
    """Print and write the figures; `loads` are the machine's before each pair: ours, or others'."""
    rounds = len(spent["evalscope"][LENGTHS[0]])
    bare = {length: statistics.median(spent["evalscope"][length]) for length in LENGTHS}
    over = {
        length: statistics.median(
            ours - bare_s
            for ours, bare_s in zip(
                spent["benchwright"][length], spent["evalscope"][length], strict=True
            )
        )
        for length in LENGTHS
    }
    short, long = LENGTHS
    growth = max((over[long] - over[short]) / (bare[long] - bare[short]), 0.0)
    fixed = max(over[short] - growth * bare[short], 0.0)
    at_ten_minutes = fixed + growth * 600
    print(f"{rounds} rounds of pairs; median seconds")
    for length in LENGTHS:
        print(f"{length:>4} items: evalscope {bare[length]:.1f}, overhead {over[length]:.1f}")
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
        "load_before_a_pair": loads,
    }
    print("written:", write_results("accuracy", figures, ("prefect",)))


if __name__ == "__main__":
    main()

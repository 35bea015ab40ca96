"""What a run loses when a process of it is killed at a random moment: nothing that was finished.

The flow's process, the local engine, the Prefect server, the zygote that forks a stage's
attendants, an attendant, both of the last at once, and the flow with both, in turn, each at a
moment drawn from the length of a run. After each kill: every record parses, the index equals its
rebuild, no replicate that was reported as finished is missing, nothing of a stage is left,
`status` tells the truth within 30 s, and `resume` finishes what the kill has ended.

    python benchmarks/crashes.py --kills 200 --seed 1
"""

from __future__ import annotations

import argparse
import json
import os
import random
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from benchmarks.results_file import write_results
from benchwright.errors import BenchwrightError
from benchwright.execution import cgroup, tree
from benchwright.execution.orphans import digest_of, mark_of
from benchwright.planning.plan import make_plan
from benchwright.planning.start import create_run
from benchwright.record.home import Layout
from benchwright.record.index import rebuild_index
from benchwright.record.run import RunRecord, Status
from benchwright.record.store import LOST, UNCLAIMED, RunFolder, RunStore
from benchwright.spec.recipe import RecipeLibrary
from benchwright.spec.resolve import resolve
from deployments.local import client
from deployments.local.state import LocalHome, read_engine, read_server
from domains.library import known_domains, recipe_folders

ROOT = Path(__file__).parents[1]
TRUTH_S = 30.0
"""Within this long of the end of a run's process `status` says that it has ended."""
PATIENCE_S = 180.0
"""What takes longer hangs; generous, for busy machines."""
LEFT_S = 10.0
"""How long a stage's processes may outlive the run's, while they are being ended."""

SLEEP_S = 0.1
REPLICATES, WARMUP, ARMS = 3, 1, 2
LAUNCHES = ARMS * (REPLICATES + WARMUP)


def write_experiment(folder: Path, mark: str, host_sleep_s: float = SLEEP_S) -> Path:
    """Two scripts and a configuration; `mark` makes its builds its own. Returns the file."""
    folder.mkdir(parents=True, exist_ok=True)
    scripts = {
        "build.sh": f'sleep {host_sleep_s}; echo "size $1" > "$2"',
        "search.sh": f"sleep {host_sleep_s} & wait; size=$(cut -d' ' -f2 \"$1\");"
        ' echo "{\\"t_ms\\": 1.$size$(($$ % 10)), \\"effective\\": {\\"size\\": $size}}"',
    }
    for name, text in scripts.items():
        script = folder / name
        script.write_text(f"#!/bin/sh\n# {mark}\n{text}\n")
        script.chmod(0o755)
    config = {
        "domain": "command",
        "params": {"size": 5},
        "stages": [
            {
                "name": "build",
                "kind": "prep",
                "cmd": "./build.sh {size} {index}",
                "produces": ["index"],
            },
            {
                "name": "search",
                "kind": "measure",
                "needs": ["build"],
                "cmd": "./search.sh {index}",
                "metrics_from": {"stdout": True},
            },
        ],
        "treatment_variable": "size",
        "treatment_values": [9],
        "metrics": [{"name": "t_ms", "unit": "ms"}],
        "replication": {"replicates": REPLICATES, "warmup": WARMUP},
    }
    file = folder / "experiment.yaml"
    file.write_text(json.dumps(config))
    return file


# What has to hold after a kill


def unreadable(home: Path) -> list[str]:
    """Records that don't parse, and finished runs without a report, as sentences."""
    wrong = []
    for folder in RunStore(home).folders():
        try:
            record = folder.read()
        except BenchwrightError as problem:
            wrong.append(f"{folder.run_id} can't be read: {problem}")
            continue
        if record.status in (Status.COMPLETED, Status.FAILED) and not folder.report.is_file():
            wrong.append(f"{folder.run_id} is {record.status} and has no report")
        for name in ("samples.jsonl", "events.jsonl"):
            wrong += torn_lines(folder.path / name)
    return wrong


def torn_lines(file: Path) -> list[str]:
    """Lines of a file that are no JSON objects. The last one may be torn: it was never whole."""
    if not file.exists():
        return []
    wrong = []
    for number, line in enumerate(file.read_bytes().split(b"\n")[:-1], 1):
        try:
            json.loads(line)
        except ValueError:
            wrong.append(f"{file.parent.name}/{file.name}:{number} is no JSON: {line[:80]!r}")
    return wrong


def index_differs(home: Path) -> list[str]:
    """Whether the index is another one than the folders give."""
    path = Layout(home).index
    before = path.read_text() if path.exists() else ""
    rebuild_index(home)
    return [] if path.read_text() == before else ["the index differs from its rebuild"]


def stage_processes(home: Path) -> list[int]:
    """Living processes of stages of this home."""
    digest = digest_of(home)
    return [
        pid
        for pid in tree.all_processes()
        if (mark := mark_of(pid)) is not None and mark.home == digest and tree.alive(pid)
    ]


def stage_groups(home: Path) -> list[str]:
    """Control groups of stages of this home."""
    found = []
    for version in (1, 2):
        parent = cgroup.leaf_parent(version)
        if parent is not None:
            pattern = f"{cgroup.PREFIX}{digest_of(home)}-*"
            found += [str(path) for path in parent.path.glob(pattern)]
    return found


@dataclass(frozen=True, slots=True)
class Reported:
    """Replicates that were reported as finished: in the record, or to who follows.

    Attributes:
        samples: Start of each good replicate, by stage and place in the order.
        events: Stage and place in the order of each that was said to be done well.
    """

    samples: Mapping[tuple[str, int], str]
    events: frozenset[tuple[str, int]]

    @classmethod
    def of(cls, folder: RunFolder) -> Reported:
        events, _ = folder.events()
        return cls(
            {(s.stage, s.order): s.started for s in folder.samples() if s.ok},
            frozenset(
                (event["stage"], event["order"])
                for event in events
                if event["kind"] == "replicate_done" and event["ok"]
            ),
        )

    def missing_in(self, folder: RunFolder) -> list[str]:
        """What was reported and isn't in the record, or was run again."""
        now = Reported.of(folder).samples
        lost = [f"{key} was recorded and isn't" for key in self.samples if key not in now]
        lost += [f"{key} was said to be done and isn't recorded" for key in self.events - set(now)]
        return lost + [
            f"{key} was finished and was run again"
            for key, started in self.samples.items()
            if now.get(key, started) != started
        ]


# A home with its processes


@dataclass(slots=True)
class Site:
    """A home of its own, with its server, its engine and an experiment.

    Attributes:
        folder: Of all of it.
        environ: What the command line and the runs inherit.
    """

    folder: Path
    environ: dict[str, str] = field(init=False)

    def __post_init__(self) -> None:
        kept = {k: v for k, v in os.environ.items() if not k.startswith(("PREFECT_", "BENCHMARK_"))}
        locks = self.folder / "locks"
        locks.mkdir(parents=True, exist_ok=True)
        self.environ = kept | {
            "BENCHMARK_HOME": str(self.home),
            # Runs of others on this machine are not waited for: this measures no time.
            "BENCHWRIGHT_LOCK_DIR": str(locks),
            "PYTHONPATH": str(ROOT),
            "PREFECT_LOGGING_LEVEL": "WARNING",
        }

    @property
    def home(self) -> Path:
        """`$BENCHMARK_HOME`."""
        return self.folder / "home"

    def begin(self, number: int) -> Running:
        """Hand a run over to the engine."""
        file = write_experiment(self.folder / "experiment", f"trial {number}")
        resolved = resolve(
            str(file), domains=known_domains(file), recipes=RecipeLibrary(recipe_folders())
        )
        engine = client.ensure_local(self.home)
        run = create_run(make_plan(resolved, self.home, self.environ), self.home, because=None)
        began = time.monotonic()
        submission = client.submit(engine, run.path, cwd=file.parent, env=self.environ)
        submission.detach()
        return Running(self, run, submission.pid, os.pidfd_open(submission.pid), began)

    def call(self, *args: str) -> tuple[int, dict[str, Any]]:
        """`benchwright ARGS --json`: its exit code, and the object that it printed."""
        finished = subprocess.run(
            [sys.executable, "-m", "cli.main", *args, "--json"],
            cwd=self.folder,
            env=self.environ,
            capture_output=True,
            text=True,
            stdin=subprocess.DEVNULL,
            timeout=PATIENCE_S,
            check=False,
        )
        try:
            return finished.returncode, json.loads(finished.stdout)
        except ValueError:
            raise AssertionError(
                f"{args}: {finished.stdout[-2000:]}\n{finished.stderr[-2000:]}"
            ) from None

    def prefect_states(self, run_id: str) -> list[str]:
        """States of the run's flow runs on the server; empty where none answers."""
        import urllib.request

        record = read_server(LocalHome(self.home))
        if record is None:
            return []
        request = urllib.request.Request(
            f"{record.api_url}/flow_runs/filter",
            json.dumps({"flow_runs": {"name": {"any_": [run_id]}}}).encode(),
            {"Content-Type": "application/json"},
        )
        with urllib.request.urlopen(request, timeout=TRUTH_S) as answer:
            return [found["state_type"] for found in json.loads(answer.read())]

    def close(self) -> None:
        """End all of it."""
        client.down(self.home, cancel_runs=True)


@dataclass(slots=True)
class Running:
    """A run in progress.

    Attributes:
        site: Where.
        folder: Its record.
        pid: Its process.
        handle: Descriptor of that process (pidfd).
        began: When it was handed over (monotonic).
    """

    site: Site
    folder: RunFolder
    pid: int
    handle: int
    began: float

    def over(self, within_s: float = 0.0) -> bool:
        """Whether its process has ended, or does within this long."""
        return bool(select.select([self.handle], [], [], within_s)[0])


# Victims


def flow_process(run: Running) -> list[int]:
    return [run.pid]


def engine_process(run: Running) -> list[int]:
    place = LocalHome(run.site.home)
    records = [read_engine(place, key) for key in place.engine_keys()]
    return [record.pid for record in records if record is not None]


def server_process(run: Running) -> list[int]:
    record = read_server(LocalHome(run.site.home))
    return [record.pid] if record is not None else []


def zygote_process(run: Running) -> list[int]:
    return [
        pid
        for pid in tree.children(run.pid)
        if (stat := tree.stat_of(pid)) is not None and stat.name == "bw zygote" and stat.alive
    ]


def attendant_process(run: Running) -> list[int]:
    marks = [mark_of(pid) for pid in stage_processes(run.site.home)]
    return sorted({mark.supervisor for mark in marks if mark is not None and not mark.alone})


def supervisor_processes(run: Running) -> list[int]:
    return [*attendants, *zygote_process(run)] if (attendants := attendant_process(run)) else []


def all_of_a_run(run: Running) -> list[int]:
    return [run.pid, *supervisors] if (supervisors := supervisor_processes(run)) else []


VICTIMS: Mapping[str, Callable[[Running], list[int]]] = {
    "flow": flow_process,
    "engine": engine_process,
    "server": server_process,
    "zygote": zygote_process,
    "attendant": attendant_process,
    "attendant and zygote": supervisor_processes,
    "flow, attendant, zygote": all_of_a_run,
}

GOES_ON = frozenset({"engine", "server"})
"""A run isn't ended when these are killed."""


# One kill


@dataclass(slots=True)
class Trial:
    """What came of one kill.

    Attributes:
        victim: What was killed.
        at_s: When, since the run was handed over; None: the run ended before there was one.
        finished: Replicates that were reported as finished by then.
        status: The run's status once its process was gone.
        after: Its status at last, after `resume` where it was needed.
        truth_s: From the end of the run's process until `status` said so.
        left_s: From the end of the run's process until nothing of a stage was left.
        problems: What should not have been, as sentences.
    """

    victim: str
    at_s: float | None = None
    finished: int = 0
    status: str = ""
    after: str = ""
    truth_s: float = 0.0
    left_s: float = 0.0
    problems: list[str] = field(default_factory=list)


def kill_at(run: Running, victim: str, moment_s: float) -> float | None:
    """Kill the victim at that moment, or as soon as there is one; None: the run was over."""
    find = VICTIMS[victim]
    run.over(max(0.0, run.began + moment_s - time.monotonic()))
    while not run.over():
        pids = find(run)
        if pids:
            for pid in pids:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            return time.monotonic() - run.began
        time.sleep(0.001)
    return None


def one_kill(site: Site, number: int, victim: str, moment_s: float) -> Trial:
    """Start a run, kill, and see what is left."""
    trial = Trial(victim)
    run = site.begin(number)
    try:
        trial.at_s = kill_at(run, victim, moment_s)
        reported = Reported.of(run.folder)
        trial.finished = len(reported.samples)
        if "flow" not in victim and not run.over():
            said = site.call("status")[1]["running"]
            # What has written its result may still be on its way out.
            recorded = run.folder.read()
            if run.folder.run_id not in said and not run.over() and unwritten(recorded):
                trial.problems.append("`status` doesn't list a run that lives")
        if not run.over(PATIENCE_S):
            trial.problems.append("the run doesn't end")
            os.kill(run.pid, signal.SIGKILL)
            run.over(PATIENCE_S)
        ended = time.monotonic()
        after_the_end(site, run, trial, ended)
        if trial.status != Status.COMPLETED:
            if victim in GOES_ON and trial.at_s is not None:
                error = run.folder.read().error
                trial.problems.append(f"the run did not survive: {trial.status}: {error}")
            code, result = site.call("resume", run.folder.run_id)
            trial.after = result.get("status", "")
            if code or trial.after != Status.COMPLETED:
                trial.problems.append(f"`resume` gave {code}: {json.dumps(result)[:400]}")
        else:
            trial.after = trial.status
        good = Reported.of(run.folder)
        if trial.after == Status.COMPLETED and len(good.samples) != LAUNCHES:
            trial.problems.append(f"{len(good.samples)} of {LAUNCHES} replicates are recorded")
        trial.problems += reported.missing_in(run.folder)
        trial.problems += good.missing_in(run.folder)
        trial.problems += unreadable(site.home) + index_differs(site.home)
    finally:
        os.close(run.handle)
    return trial


def unwritten(record: RunRecord) -> bool:
    """Whether a run's own process has not said yet how it ended."""
    return record.status is Status.IN_PROGRESS or record.error in (LOST, UNCLAIMED)


def after_the_end(site: Site, run: Running, trial: Trial, ended: float) -> None:
    """See how long it takes until the truth is told and nothing is left."""
    run_id = run.folder.run_id
    groups: list[str] = []
    while (
        (left := stage_processes(site.home)) or (groups := stage_groups(site.home))
    ) and time.monotonic() < ended + LEFT_S:
        time.sleep(0.005)
    trial.left_s = time.monotonic() - ended
    if left:
        trial.problems.append(f"{len(left)} processes of a stage are left")
        for pid in left:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
    if groups:
        trial.problems.append(f"control groups are left: {groups}")
    while (running := run_id in site.call("status")[1]["running"]) and (
        time.monotonic() < ended + TRUTH_S
    ):
        time.sleep(0.1)
    trial.truth_s = time.monotonic() - ended
    trial.status = str(run.folder.status)
    if running:
        trial.problems.append(f"`status` lists a run as running {TRUTH_S:g} s after its end")
    while (open_states := unfinished(site, run_id)) and time.monotonic() < ended + TRUTH_S:
        time.sleep(0.1)
    if open_states:
        trial.problems.append(f"Prefect says {open_states} {TRUTH_S:g} s after the run's end")


def unfinished(site: Site, run_id: str) -> list[str]:
    """States of the run's flow runs that aren't final."""
    states = site.prefect_states(run_id)
    return [state for state in states if state in ("SCHEDULED", "PENDING", "RUNNING", "CANCELLING")]


def length_of_a_run(site: Site, number: int) -> float:
    """Seconds that an undisturbed run takes, from its hand-over to its end."""
    run = site.begin(number)
    try:
        assert run.over(PATIENCE_S), "a run without a kill doesn't end"
        took = time.monotonic() - run.began
        record = run.folder.read()
        assert record.status is Status.COMPLETED, f"{record.status}: {record.error}"
        return took
    finally:
        os.close(run.handle)


def trials(site: Site, kills: int, seed: int) -> Iterator[Trial]:
    """Kill each victim in turn at moments drawn from the length of a run.

    A kill that came too late, because the run had ended or had no such process any more, is drawn
    again: `kills` are made.
    """
    draw = random.Random(seed)
    length_of_a_run(site, -2)  # starts server and engine
    length = length_of_a_run(site, -1)
    names = list(VICTIMS)
    made = number = 0
    while made < kills:
        trial = one_kill(site, number, names[made % len(names)], draw.uniform(0.0, length))
        made += trial.at_s is not None
        number += 1
        yield trial


def summary(done: list[Trial]) -> dict[str, dict[str, Any]]:
    """Figures by victim."""
    table: dict[str, dict[str, Any]] = {}
    for victim in VICTIMS:
        mine = [trial for trial in done if trial.victim == victim and trial.at_s is not None]
        if mine:
            table[victim] = {
                "kills": len(mine),
                "ended_as": dict(Counter(trial.status for trial in mine)),
                "completed_at_last": sum(trial.after == Status.COMPLETED for trial in mine),
                "replicates_finished_before": sum(trial.finished for trial in mine),
                "worst_s_until_status_is_true": max(trial.truth_s for trial in mine),
                "worst_s_until_nothing_is_left": max(trial.left_s for trial in mine),
                "problems": [problem for trial in mine for problem in trial.problems],
            }
    return table


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--keep", action="store_true", help="keep the folder for a look")
    options = parser.parse_args()
    # Ended by others, it takes down what it has started, too.
    signal.signal(signal.SIGTERM, signal.default_int_handler)

    def show(trial: Trial) -> None:
        at = "too late" if trial.at_s is None else f"{trial.at_s:.2f} s"
        print(
            f"{trial.victim:<24}{at:>9} {trial.finished:>2} finished "
            f"{trial.status:<13}{trial.after:<11} truth {trial.truth_s:5.2f} s "
            f"left {trial.left_s:5.2f} s  {'; '.join(trial.problems)}",
            flush=True,
        )

    # Engines are started from here, too: they are to run the code that this file lies beside.
    os.environ["PYTHONPATH"] = str(ROOT)
    place = Path(tempfile.mkdtemp(prefix="benchwright-crashes-"))
    site = Site(place)
    done: list[Trial] = []
    try:
        for trial in trials(site, options.kills, options.seed):
            show(trial)
            done.append(trial)
    except KeyboardInterrupt:
        print("interrupted: what was seen so far")
    finally:
        site.close()
        if not options.keep:
            shutil.rmtree(place, ignore_errors=True)
    kills = sum(trial.at_s is not None for trial in done)
    figures = {"kills": kills, "seed": options.seed, "victims": summary(done)}
    problems = [problem for trial in done for problem in trial.problems]
    print(f"{kills} kills, {len(problems)} problems")
    print("written:", write_results("crashes", figures))
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())

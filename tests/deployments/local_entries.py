"""Entry points that an engine under test calls; it finds this module through PYTHONPATH."""

from __future__ import annotations

import contextlib
import json
import os
import resource
import signal
import sys
import time
from pathlib import Path


def entry(run_dir: Path) -> int:
    """Do what `action` in the run's folder names."""
    action, _, argument = (run_dir / "action").read_text().partition(" ")
    return ACTIONS[action](run_dir, argument)


def give(run_dir: Path, code: str) -> int:
    return int(code)


def describe(run_dir: Path, argument: str) -> int:
    umask = os.umask(0)
    os.umask(umask)
    found = {
        "cwd": str(Path.cwd()),
        "env": dict(os.environ),
        "argv": sys.argv,
        "pid": os.getpid(),
        "session": os.getsid(0),
        "stdin": str(Path("/proc/self/fd/0").readlink()),
        "stdout": str(Path("/proc/self/fd/1").readlink()),
        "fds": sorted(open_files()),
        "umask": umask,
        "nofile": resource.getrlimit(resource.RLIMIT_NOFILE)[0],
        "processors": sorted(os.sched_getaffinity(0)),
    }
    (run_dir / "found.json").write_text(json.dumps(found))
    return 0


def open_files() -> list[str]:
    found = []
    for entry in Path("/proc/self/fd").iterdir():
        # The one that lists the folder is closed by now.
        with contextlib.suppress(FileNotFoundError):
            found.append(str(entry.readlink()))
    return found


def events(run_dir: Path, count: str) -> int:
    with (run_dir / "events.jsonl").open("a") as file:
        for number in range(int(count)):
            file.write(json.dumps({"event": "step", "number": number}) + "\n")
            file.flush()
        file.write('{"event": "half')
    return 0


def tell_and_linger(run_dir: Path, name: str) -> int:
    """Say that all is done, and go on until a file appears."""
    with (run_dir / "events.jsonl").open("a") as file:
        file.write('{"kind": "all_done"}\n')
    return wait_for(run_dir, name)


def wait_for(run_dir: Path, name: str) -> int:
    """Until a file appears."""
    (run_dir / "begun").touch()
    while not (run_dir / name).exists():
        time.sleep(0.01)
    (run_dir / "finished").touch()
    return 0


def interrupted(run_dir: Path, argument: str) -> int:
    try:
        return wait_for(run_dir, "never")
    except KeyboardInterrupt:
        (run_dir / "interrupted").touch()
        return 130


def stubborn(run_dir: Path, argument: str) -> int:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    return wait_for(run_dir, "never")


def fail(run_dir: Path, argument: str) -> int:
    raise RuntimeError("a mistake of the application")


def leave(run_dir: Path, code: str) -> int:
    """Leave a thread and an exit function behind, which Prefect does too."""
    import atexit
    import threading

    def last() -> None:
        with (run_dir / "left").open("a") as file:
            file.write(", then exit function")
        print("printed last")

    def thread() -> None:
        time.sleep(0.05)
        (run_dir / "left").write_text("thread")

    atexit.register(last)
    threading.Thread(target=thread).start()
    return int(code)


def rise(run_dir: Path, argument: str) -> int:
    """Random numbers from each source that a fork could share."""
    import random
    import uuid

    (run_dir / "random").write_text(f"{random.random()} {uuid.uuid4()}")
    return 0


def tasks(run_dir: Path, count: str) -> int:
    from prefect import flow, task

    @task
    def one(number: int) -> int:
        return number

    @flow(name="twenty", flow_run_name=run_dir.name)
    def twenty() -> None:
        for number in range(int(count)):
            one(number)

    twenty()
    return 0


def hang(run_dir: Path, argument: str) -> int:
    """A flow with a task that never ends."""
    from prefect import flow, task

    @task
    def never() -> None:
        wait_for(run_dir, "never")

    @flow(name="hang", flow_run_name=run_dir.name)
    def hanging() -> None:
        never()

    hanging()
    return 0


def steps(run_dir: Path, count: str) -> int:
    """A flow that waits in its first task, and has more to do."""
    from prefect import flow, task

    @task
    def first() -> None:
        wait_for(run_dir, "go")

    @task
    def one(number: int) -> int:
        return number

    @flow(name="steps", flow_run_name=run_dir.name)
    def stepping() -> None:
        first()
        for number in range(int(count)):
            one(number)

    stepping()
    return 0


ACTIONS = {
    "tell": tell_and_linger,
    "hang": hang,
    "steps": steps,
    "give": give,
    "describe": describe,
    "events": events,
    "wait": wait_for,
    "interrupted": interrupted,
    "stubborn": stubborn,
    "fail": fail,
    "leave": leave,
    "rise": rise,
    "tasks": tasks,
}

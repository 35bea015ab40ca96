"""One measurement at a time on a machine."""

from __future__ import annotations

import multiprocessing
import os
import threading
import time
from pathlib import Path

import pytest

from benchwright.errors import Interrupted
from benchwright.execution.host import building, holders, measuring


@pytest.fixture(autouse=True)
def own_locks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BENCHWRIGHT_LOCK_DIR", str(tmp_path))


def _measure(path: str, times: int) -> None:
    for _ in range(times):
        with measuring(), Path(path).open("a") as log:
            log.write("in\n")
            log.flush()
            time.sleep(0.001)
            log.write("out\n")


def test_measurements_of_many_processes_never_overlap(tmp_path: Path) -> None:
    log = tmp_path / "log"
    crowd = [multiprocessing.Process(target=_measure, args=(str(log), 10)) for _ in range(4)]
    for one in crowd:
        one.start()
    for one in crowd:
        one.join()
    lines = log.read_text().split()
    assert lines == ["in", "out"] * 40


def test_builds_run_beside_each_other_but_not_beside_a_measurement() -> None:
    with building(), building():
        cancelled, waited = threading.Event(), threading.Event()
        cancelled.set()
        with pytest.raises(Interrupted), measuring(cancelled, waited.set):
            pass
        assert waited.is_set()


def test_a_waiting_measurement_comes_before_builds_that_ask_later() -> None:
    order: list[str] = []
    waiting, done = threading.Event(), threading.Event()

    def measure() -> None:
        with measuring(on_wait=waiting.set):
            order.append("measure")

    def build() -> None:
        with building(on_wait=done.set):
            order.append("build")

    with building():
        first = threading.Thread(target=measure)
        first.start()
        waiting.wait(10)
        second = threading.Thread(target=build)
        second.start()
        assert done.wait(10), "a build that asks later must wait behind the measurement"
    first.join()
    second.join()
    assert order == ["measure", "build"]


def _hold_and_die(entered: multiprocessing.synchronize.Event) -> None:
    with measuring():
        entered.set()
        time.sleep(60)


def test_a_holder_that_is_killed_frees_the_machine() -> None:
    entered = multiprocessing.Event()
    holder = multiprocessing.Process(target=_hold_and_die, args=(entered,))
    holder.start()
    entered.wait(10)
    holder.kill()
    holder.join()
    with measuring():
        pass


def test_who_waits_is_told_which_process_has_the_machine() -> None:
    assert holders() == ()
    with measuring():
        assert holders() == (os.getpid(),)
    assert holders() == ()

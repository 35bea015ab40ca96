"""Each source of noise is seen, and the command that would quiet it is said."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from benchwright.planning.health import noise
from benchwright.planning.health.check import Place, Seen, State
from benchwright.planning.health.window import watch
from tests.planning.health.made_up import STILL, place

CPU = "sys/devices/system/cpu/"
MEMORY = "MemTotal: 100 kB\nSwapTotal: {total} kB\nSwapFree: {free} kB\n"


@pytest.mark.parametrize(
    ("look", "files", "state", "word", "command"),
    [
        (
            noise.governor,
            {f"{CPU}cpu0/cpufreq/scaling_governor": "performance\n"},
            State.OK,
            "performance",
            "",
        ),
        (
            noise.governor,
            {
                f"{CPU}cpu0/cpufreq/scaling_governor": "performance\n",
                f"{CPU}cpu1/cpufreq/scaling_governor": "powersave\n",
            },
            State.WARNING,
            "powersave",
            "sudo cpupower frequency-set --governor performance",
        ),
        (noise.governor, {}, State.UNKNOWN, "hypervisor", ""),
        (noise.turbo, {f"{CPU}intel_pstate/no_turbo": "1\n"}, State.OK, "off", ""),
        (
            noise.turbo,
            {f"{CPU}intel_pstate/no_turbo": "0\n"},
            State.WARNING,
            "turbo is on",
            f"echo 1 | sudo tee /{CPU}intel_pstate/no_turbo",
        ),
        (noise.turbo, {f"{CPU}cpufreq/boost": "0\n"}, State.OK, "off", ""),
        (
            noise.turbo,
            {f"{CPU}cpufreq/boost": "1\n"},
            State.WARNING,
            "turbo is on",
            f"echo 0 | sudo tee /{CPU}cpufreq/boost",
        ),
        (noise.turbo, {}, State.UNKNOWN, "hypervisor", ""),
        (noise.smt, {f"{CPU}smt/active": "0\n"}, State.OK, "a core of its own", ""),
        (
            noise.smt,
            {f"{CPU}smt/active": "1\n"},
            State.WARNING,
            "SMT",
            f"echo off | sudo tee /{CPU}smt/control",
        ),
        (noise.smt, {}, State.UNKNOWN, "doesn't say", ""),
        (noise.load, {"proc/loadavg": "0.00 0.10 0.20 1/100 1\n"}, State.OK, "0.0 processes", ""),
        (
            noise.load,
            {"proc/loadavg": "9999.5 1 1 1/100 1\n"},
            State.WARNING,
            "9999.5 processes",
            "top -o %CPU",
        ),
        (noise.swap, {"proc/meminfo": MEMORY.format(total=0, free=0)}, State.OK, "no swap", ""),
        (noise.swap, {"proc/meminfo": MEMORY.format(total=9, free=9)}, State.OK, "empty", ""),
        (
            noise.swap,
            {"proc/meminfo": MEMORY.format(total=9000, free=4000)},
            State.WARNING,
            "5 MB are in swap",
            "sudo swapoff --all && sudo swapon --all",
        ),
    ],
)
def test_a_setting_of_the_machine_is_judged(
    look: Callable[[Place], Seen],
    files: dict[str, str],
    state: State,
    word: str,
    command: str,
    tmp_path: Path,
) -> None:
    seen = look(place(tmp_path, files))
    assert (seen.state, seen.command) == (state, command)
    assert word in seen.sentence


def test_pages_that_are_swapped_now_are_a_warning_whatever_swap_holds(tmp_path: Path) -> None:
    files = {"proc/meminfo": MEMORY.format(total=0, free=0)}
    seen = noise.swap(place(tmp_path, files, replace(STILL, swapped=7)))
    assert seen.state is State.WARNING
    assert "7 pages" in seen.sentence


@pytest.mark.parametrize(
    ("share", "state"),
    [(0.0, State.OK), (0.009, State.OK), (0.02, State.WARNING), (None, State.UNKNOWN)],
)
def test_stolen_time_is_seen(share: float | None, state: State, tmp_path: Path) -> None:
    assert noise.stolen(place(tmp_path, window=replace(STILL, stolen=share))).state is state


def test_other_processes_are_named_with_the_command_that_shows_them(tmp_path: Path) -> None:
    users = {7: ("burner", 0.4), 8: ("sleeper", 0.001), 9: ("other", 0.1)}
    seen = noise.others(place(tmp_path, window=replace(STILL, users=users)))
    assert seen.state is State.WARNING
    assert "burner (7) 80%, other (9) 20%" in seen.sentence
    assert seen.command.endswith("-p 7,9")
    quiet = noise.others(place(tmp_path, window=replace(STILL, users={8: ("sleeper", 0.001)})))
    assert quiet.state is State.OK


def test_a_process_that_burns_is_found_on_the_real_machine() -> None:
    burner = subprocess.Popen([sys.executable, "-c", "while True: pass"])
    try:
        window = watch(seconds=0.5)
    finally:
        burner.kill()
        burner.wait()
    name, used = window.users[burner.pid]
    assert name.startswith("python")
    assert 0 < used <= window.seconds + 0.05
    assert window.stolen is None or 0 <= window.stolen <= 1

"""The few calls of the Linux kernel that Python's standard library has no name for."""

from __future__ import annotations

import contextlib
import ctypes
import os

_PR_SET_PDEATHSIG = 1
_PR_SET_NAME = 15
_PR_SET_CHILD_SUBREAPER = 36

_libc = ctypes.CDLL(None, use_errno=True)


def _prctl(option: int, value: int | bytes) -> None:
    if _libc.prctl(option, value, 0, 0, 0) != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))


def die_with_parent(number: int) -> None:
    """Have the kernel send this process a signal when its parent dies, by whatever way."""
    _prctl(_PR_SET_PDEATHSIG, number)


def adopt_orphans() -> None:
    """Make this process the parent of every descendant whose own parent has died."""
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)


def set_name(name: str) -> None:
    """Name this process in listings; the kernel keeps 15 bytes."""
    _prctl(_PR_SET_NAME, name.encode(errors="replace")[:15])


def go_first() -> None:
    """Have this process run the moment it wakes, where its rights allow; its children don't."""
    with contextlib.suppress(OSError):
        policy = os.SCHED_FIFO | os.SCHED_RESET_ON_FORK
        os.sched_setscheduler(0, policy, os.sched_param(os.sched_get_priority_min(os.SCHED_FIFO)))

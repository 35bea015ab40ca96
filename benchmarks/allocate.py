"""What a stage can do with memory: `allocate.py runaway|hold|share '{...}'`.

A program of its own, with the standard library only: it is what the guard is tried on.
"""

from __future__ import annotations

import ctypes
import json
import mmap
import os
import signal
import sys
import time
from collections.abc import Callable
from contextlib import suppress

MB = 10**6


def _touch(size: int, huge: bool = False) -> mmap.mmap:
    """Private memory, written to."""
    block = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    if huge:
        with suppress(OSError):
            block.madvise(mmap.MADV_HUGEPAGE)
    ctypes.memset(ctypes.addressof(ctypes.c_char.from_buffer(block)), 1, size)
    return block


def runaway(
    rate_gb_s: float, processes: float = 1, limit_mb: float = 4000.0, start_mb: float = 0.0
) -> None:
    """Take memory at a rate, shared among processes, up to a limit; the first part at once."""
    _forks(int(processes))
    blocks = [_touch(int(start_mb * MB / processes))] if start_mb else []
    step_s = 0.001
    # Whole huge pages: at 2 GB/s small ones don't keep up.
    size = max(int(rate_gb_s * 1e9 * step_s / processes), 4096)
    began, taken = time.monotonic(), 0
    limit_mb -= start_mb
    while taken * processes < limit_mb * MB:
        blocks.append(_touch(size, huge=size >= 1 << 21))
        taken += size
        ahead = taken * processes / (rate_gb_s * 1e9) - (time.monotonic() - began)
        if ahead > 0:
            time.sleep(ahead)
    signal.pause()


def hold(mb: float, processes: float = 1, hold_s: float = 3600.0) -> None:
    """Take memory, say so when all processes have theirs, and keep it for a while."""
    ready, ready_in = os.pipe()
    go, go_in = os.pipe()
    children = _forks(int(processes))
    block = _touch(int(mb * MB / processes))
    if processes > 1 and not children:
        os.close(go_in)
        os.write(ready_in, b".")
        os.read(go, 1)  # until the first one ends its wait
        block.close()
        return
    for _ in children:
        os.read(ready, 1)
    os.write(1, b"held\n")
    time.sleep(hold_s)
    os.close(go_in)
    block.close()
    for child in children:
        os.waitpid(child, 0)


def share(mb: float, processes: float, own_mb: float = 0.0, hold_s: float = 0.5) -> None:
    """Have forks read memory of the parent: resident in each, there only once.

    Each then takes `own_mb` of its own.
    """
    size = int(mb * MB)
    block = _touch(size)
    children = _forks(int(processes))
    with memoryview(block) as pages:
        total = sum(bytes(pages[::4096]))
    own = _touch(int(own_mb * MB)) if own_mb else None
    time.sleep(hold_s)
    os.write(1, b"shared %d\n" % total)
    for child in children:
        os.waitpid(child, 0)
    if own is not None:
        own.close()


def _forks(processes: int) -> list[int]:
    """Become so many processes; the first one gets the others' numbers."""
    children: list[int] = []
    for _ in range(processes - 1):
        child = os.fork()
        if child == 0:
            return []
        children.append(child)
    return children


if __name__ == "__main__":
    mode, text = sys.argv[1:]
    modes: dict[str, Callable[..., None]] = {"runaway": runaway, "hold": hold, "share": share}
    modes[mode](**json.loads(text))

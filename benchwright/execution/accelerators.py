"""Which devices a stage gets: free ones, kept for it on this machine until it has ended.

A device is kept by a lock of the machine (`flock`, see `host`), one for each UUID, for all homes
and all users; the kernel frees it when its holder dies. A device that somebody else computes on
isn't free, whoever that is.
"""

from __future__ import annotations

import fcntl
import os
import threading
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

from benchwright.errors import Difference, GateRefused, GuardEnded, Interrupted, Where
from benchwright.execution import tree
from benchwright.execution.device import Device, Vendor
from benchwright.execution.host import lock_folder, open_lock
from benchwright.execution.kfd import amd_devices
from benchwright.execution.nvml import Nvml, NvmlUnavailable
from benchwright.execution.pinning import PINS, allowed
from benchwright.execution.tpu import tpu_chips
from benchwright.spec.model import Resources, Stage

POLL_S = 0.25
"""How often a stage that waits for devices looks again."""

SETTLE_S = 10.0
"""A driver takes its time to give back what a process that has ended held: a device that is in
use only for so long isn't in the way."""


@dataclass(frozen=True, slots=True)
class Machine:
    """The devices of this machine that its caller may use.

    Attributes:
        gpus: Of one vendor; NVIDIA's where both are there.
        tpus: TPU chips.
        why_no_gpus: Where there are none: what was tried, as a sentence without its full stop.
    """

    gpus: tuple[Device, ...] = ()
    tpus: tuple[Device, ...] = ()
    why_no_gpus: str = ""


def read_machine(environ: Mapping[str, str], root: Path = Path("/")) -> Machine:
    """Look at the devices. Never fails: what can't be read isn't there, and the reason is."""
    why = ""
    gpus: list[Device] = []
    try:
        with Nvml() as nvml:
            gpus = nvml.devices()
    except NvmlUnavailable as problem:
        why = str(problem)
    if not gpus:
        gpus = amd_devices(root)
    visible = tuple(allowed(gpus, environ))
    if gpus and not visible:
        why = "the variables that pin this process to devices leave it none"
    return Machine(visible, tuple(allowed(tpu_chips(root), environ)), why)


@dataclass(frozen=True, slots=True)
class Choice:
    """What could be chosen.

    Attributes:
        devices: The chosen ones; fewer than asked where there aren't enough.
        passed_over: The others, each with why it wasn't taken.
    """

    devices: tuple[Device, ...]
    passed_over: tuple[tuple[Device, str], ...] = ()


def choose(
    devices: Sequence[Device],
    count: int,
    vram_mb: float | None = None,
    taken: Collection[str] = (),
    prefer: Collection[str] = (),
) -> Choice:
    """Choose devices for a stage.

    Args:
        devices: As they are now.
        count: How many are asked for.
        vram_mb: Memory that must be free on each.
        taken: UUIDs that another stage of ours has.
        prefer: UUIDs to take first: those of the stage's earlier replicates, so that all arms
            are measured on the same ones.
    """
    fit: dict[str, list[Device]] = {}
    passed: list[tuple[Device, str]] = []
    # Whole devices before slices: a process sees one MIG instance at most.
    for device in sorted(devices, key=lambda one: (one.uuid not in prefer, one.is_slice)):
        why = _unfit(device, vram_mb, taken)
        if not why and count > 1 and device.is_slice:
            why = "a process can use one MIG instance only"
        if why:
            passed.append((device, why))
        else:
            fit.setdefault(device.name, []).append(device)
    # Of one model: the work is split evenly, and the slowest device sets the time.
    enough = (name for name, some in fit.items() if len(some) >= count)
    model = next(enough, None) or max(fit, key=lambda name: len(fit[name]), default="")
    for name, some in fit.items():
        left = some[count:] if name == model else some
        why = "it is not needed" if name == model else f"it is another model than {model}"
        passed += [(device, why) for device in left]
    return Choice(tuple(fit.get(model, ())[:count]), tuple(passed))


def _unfit(device: Device, vram_mb: float | None, taken: Collection[str]) -> str:
    """Why a device can't be taken; empty where it can."""
    if device.uuid in taken:
        return TAKEN
    if device.computing:
        users = ", ".join(tree.describe(process.pid) for process in device.computing[:3])
        return f"in use by {users}"
    if vram_mb is not None and device.free_mb is not None and device.free_mb < vram_mb:
        return f"only {device.free_mb:.0f} of {device.total_mb or 0:.0f} MB are free"
    return ""


TAKEN = "another stage has it"


def asked(resources: Resources) -> str:
    """What a stage asks for, for a person: `2 GPUs with 8000 MB free on each`."""
    parts = []
    for number, noun in ((resources.gpus, "GPU"), (resources.tpus, "TPU chip")):
        if number:
            parts.append(f"{number} {noun}{'' if number == 1 else 's'}")
    text = " and ".join(parts) or "no accelerator"
    if resources.vram_mb is not None and resources.gpus:
        each = " on each" if resources.gpus > 1 else ""
        text += f" with {resources.vram_mb:.0f} MB free{each}"
    return text


def check_accelerators(stages: Sequence[Stage], machine: Machine) -> None:
    """Refuse stages that this machine can't serve, before anything runs.

    Devices that another stage of ours has count: it will give them back. Stages on other hosts
    aren't looked at.

    Raises:
        GateRefused: Too few devices, too little memory, or others compute on them.
    """
    for stage in stages:
        wants = stage.resources
        if stage.host is not None or not (wants.gpus or wants.tpus):
            continue
        own = [name for name in PINS if name in stage.env]
        if own:
            raise GateRefused(
                f"stage '{stage.name}' asks for {asked(wants)} and sets {own[0]} itself",
                where=Where(key=f"stages.{stage.name}.env.{own[0]}"),
                expected="one of the two: the devices are chosen and pinned here",
                hint=f"remove {own[0]}; the stage finds it set",
            )
        kept = _kept((*machine.gpus, *machine.tpus))
        for count, there, noun in (
            (wants.gpus, machine.gpus, "GPU"),
            (wants.tpus, machine.tpus, "TPU chip"),
        ):
            vram = wants.vram_mb if noun == "GPU" else None
            # What one of our own stages has will come back, with its memory.
            idle = [_idle(device) if device.uuid in kept else device for device in there]
            choice = choose(idle, count, vram)
            if len(choice.devices) < count:
                raise _refusal(stage, noun, there, choice, machine)


def _refusal(
    stage: Stage, noun: str, there: Sequence[Device], choice: Choice, machine: Machine
) -> GateRefused:
    wants = asked(stage.resources)
    if there:
        found = f"{len(choice.devices)} of the {len(there)} here can be had"
    else:
        found = f"there is no {noun} here"
        if noun == "GPU" and machine.why_no_gpus:
            found += f": {machine.why_no_gpus}"
    return GateRefused(
        f"stage '{stage.name}' asks for {wants}; {found}",
        differences=[
            Difference(device.uuid, wants, why, device.name) for device, why in choice.passed_over
        ],
        where=Where(key=f"stages.{stage.name}.resources"),
        expected="devices that are there, have the memory, and that nobody else computes on",
        hint="ask for less, end what uses them, or run on another machine",
    )


def _idle(device: Device) -> Device:
    return replace(device, free_mb=device.total_mb, processes=())


def _kept(devices: Iterable[Device]) -> set[str]:
    """UUIDs of those that a stage of ours has, in whichever run."""
    kept = set()
    for device in devices:
        lock = _Lock.take(device.uuid)
        if lock is None:
            kept.add(device.uuid)
        else:
            lock.free()
    return kept


@dataclass(slots=True)
class Accelerators:
    """Hands the devices of this machine to the stages of one run.

    Attributes:
        environ: The environment that the run was asked for in.
        declared: Whether any stage of the run asks for a device; then a stage that asks for none
            sees none.
        cancelled: Ends the waiting when it is set.
        on_wait: Called with a sentence where devices are waited for.
    """

    environ: Mapping[str, str]
    declared: bool = True
    cancelled: threading.Event = field(default_factory=threading.Event)
    on_wait: Callable[[str], None] | None = None
    root: Path = Path("/")
    chips: int = 0
    """TPU chips of the machine, once a stage asked for some."""
    _earlier: dict[str, tuple[Device, ...]] = field(default_factory=dict)

    @contextmanager
    def reserved(self, stage: Stage) -> Iterator[tuple[Device, ...]]:
        """Keep the devices that a stage asks for until its process has ended.

        Waits where other stages of ours have them, and, for `SETTLE_S`, where a process that is
        just ending does.

        Raises:
            GuardEnded: They aren't there any more, lack memory, or others took them.
            Interrupted: It was cancelled while it waited.
        """
        wants = stage.resources
        if not (wants.gpus or wants.tpus):
            yield ()
            return
        with ExitStack() as held:
            devices = self._wait(stage, held)
            self._earlier[stage.name] = devices
            yield devices

    def _wait(self, stage: Stage, held: ExitStack) -> tuple[Device, ...]:
        wants = stage.resources
        patience = time.monotonic() + SETTLE_S
        said = False
        while True:
            machine = read_machine(self.environ, self.root)
            self.chips = len(machine.tpus)
            with ExitStack() as locks:
                chosen: list[Device] = []
                short: list[tuple[Device, str]] = []
                complete = True
                for count, there in ((wants.gpus, machine.gpus), (wants.tpus, machine.tpus)):
                    choice = self._take(stage, count, there, locks)
                    chosen += choice.devices
                    if len(choice.devices) < count:
                        complete = False
                        short += choice.passed_over
                if complete:
                    held.push(locks.pop_all())
                    return tuple(chosen)
            # All or none: two stages that each keep one of two devices would wait for ever.
            waits_for_us = any(why == TAKEN for _, why in short)
            if not waits_for_us and time.monotonic() > patience:
                raise _ended(stage, machine, short)
            if waits_for_us:
                patience = time.monotonic() + SETTLE_S
                if not said and self.on_wait is not None:
                    self.on_wait("devices that another stage has")
                said = True
            if self.cancelled.wait(POLL_S):
                raise Interrupted("the run was cancelled while it waited for devices")

    def _take(self, stage: Stage, count: int, there: Sequence[Device], locks: ExitStack) -> Choice:
        """Choose and lock; what another process locked in between is taken."""
        earlier = self._earlier.get(stage.name, ())
        models = {device.name for device in earlier if device.vendor in {d.vendor for d in there}}
        same = [device for device in there if not models or device.name in models]
        vram = stage.resources.vram_mb if there and there[0].vendor is not Vendor.TPU else None
        # A device that is in use by a stage of ours will come back; one that others use may not.
        busy = [device for device in same if device.computing]
        taken = _kept(busy)
        mine: dict[str, _Lock] = {}
        while True:
            choice = choose(same, count, vram, taken, [device.uuid for device in earlier])
            lost = False
            for device in choice.devices:
                if device.uuid not in mine:
                    lock = _Lock.take(device.uuid)
                    if lock is None:
                        taken.add(device.uuid)
                        lost = True
                    else:
                        locks.callback(lock.free)
                        mine[device.uuid] = lock
            if not lost:
                return choice


def _ended(stage: Stage, machine: Machine, short: Sequence[tuple[Device, str]]) -> GuardEnded:
    seen = "; ".join(f"{device.uuid} ({device.name}): {why}" for device, why in short)
    return GuardEnded(
        f"stage '{stage.name}' asks for {asked(stage.resources)}, which aren't free"
        if seen
        else f"stage '{stage.name}' asks for {asked(stage.resources)}, which aren't there"
        + (f": {machine.why_no_gpus}" if machine.why_no_gpus else ""),
        where=Where(key=f"stages.{stage.name}.resources"),
        expected=f"seen: {seen}" if seen else None,
        hint="end what uses them (nvidia-smi), ask for less, or run when they are free",
    )


class _Lock:
    """A device that is kept."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    @classmethod
    def take(cls, uuid: str) -> _Lock | None:
        """Keep it, or None where somebody does."""
        descriptor = open_lock(lock_folder() / f"benchwright-device-{uuid}.lock")
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(descriptor)
            return None
        return cls(descriptor)

    def free(self) -> None:
        os.close(self._descriptor)

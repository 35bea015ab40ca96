"""The load of a speed run: its points, their order, their prompts, the commands that send them."""

from __future__ import annotations

import json
import random
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Literal

from domains.serving import evalscope
from domains.serving.probe import UNKNOWN, Probe
from domains.serving.request import LoadOptions, Record, SpeedRequest

KILL_AFTER_S = 10
"""Seconds between TERM and KILL for a load program that passed its deadline."""


class Point(Record):
    """One load: so many requests in flight (closed loop), or so many a second (open loop).

    An open loop sends on schedule whatever the server does, so waiting shows in the latencies; a
    closed loop slows down with the server and hides it.
    """

    loop: Literal["closed", "open"]
    value: float

    @property
    def name(self) -> str:
        """Short and safe in paths and metric names: `c8`, `r2.5`."""
        return f"{'c' if self.loop == 'closed' else 'r'}{self.value:g}"

    @property
    def label(self) -> str:
        """For a person."""
        return f"{self.value:g} in flight" if self.loop == "closed" else f"{self.value:g} req/s"


class Slot(Record):
    """One replicate of one point: a fresh load program."""

    order: int
    block: int
    warmup: bool
    point: Point
    seed: int

    @property
    def name(self) -> str:
        """Its folder's name; sorts in the order of running."""
        kind = "warmup" if self.warmup else "block"
        return f"{self.order:03d}-{kind}{self.block}-{self.point.name}"


def points_of(load: LoadOptions) -> tuple[Point, ...]:
    """The points in the order of the request."""
    closed = load.batch_sizes if load.closed_loop else ()
    return (
        *(Point(loop="closed", value=size) for size in dict.fromkeys(closed)),
        *(Point(loop="open", value=rate) for rate in dict.fromkeys(load.rates)),
    )


def slots_of(load: LoadOptions) -> tuple[Slot, ...]:
    """Randomised blocks over the points, warm-ups first: drift meets every point alike."""
    from benchwright.judgement.schedule import schedule
    from benchwright.spec.model import Replication

    points = {point.name: point for point in points_of(load)}
    replication = Replication(replicates=load.replicates, warmup=load.warmup, seed=load.seed)
    return tuple(
        Slot(
            order=slot.order,
            block=slot.block,
            warmup=slot.warmup,
            point=points[slot.arm],
            # Fresh prompts for each slot: repeated ones would be answered from the prefix cache.
            seed=load.seed + slot.order,
        )
        for slot in schedule(list(points), replication)
    )


def requests_of(load: LoadOptions, point: Point) -> int:
    """Number of requests that a slot sends."""
    if point.loop == "closed":
        return load.requests_per_slot * int(point.value)
    return load.requests_per_rate


WORDS = tuple(
    """
    time year people way day man thing woman life child world school state family student group
    country problem hand part place case week company system program question work government
    number night point home water room mother area money story fact month lot right study book
    eye job word business issue side kind head house service friend father power hour game line
    end member law car city community name president team minute idea kid body information back
    parent face others level office door health person art war history party result change
    morning reason research girl guy moment air teacher force education foot boy age policy
    music market sense nation plan college interest death experience effect use class control
    field development role effort rate heart drug show leader light voice wife police mind price
    report decision son view relationship town road arm difference value building action season
    society tax director position player record paper space ground form event official matter
    center couple site project activity star table need court oil half situation cost industry
    figure street image phone data picture practice piece land product doctor wall patient
    worker news test movie north love support technology
    """.split()  # noqa: SIM905 - a list of words reads best as words
)
"""Common English words: in the usual vocabularies one token each, so that N words are about N
tokens. What the server really counted is in the report."""


def prompts_of(load: LoadOptions, slot: Slot) -> bytes:
    """JSON lines with one question of about `input_tokens` random words for each request."""
    draw = random.Random(slot.seed)
    lines = (
        json.dumps({"question": " ".join(draw.choices(WORDS, k=load.input_tokens))})
        for _ in range(requests_of(load, slot.point))
    )
    return ("\n".join(lines) + "\n").encode()


def slot_command(
    request: SpeedRequest, before: Probe, slot: Slot, program: Sequence[str], folder: str
) -> list[str]:
    """The command of one slot.

    Args:
        request: What was asked.
        before: The probe: the served model, and the server's Python for the sgl-jax bench.
        slot: The slot.
        program: The words that start evalscope, or the Python that has the sgl-jax bench.
        folder: The slot's folder on the host.
    """
    if request.load.backend == "sgl-jax":
        return _sgl_jax_command(request, before, slot, program, folder)
    return _evalscope_command(request, before, slot, program, folder)


def _evalscope_command(
    request: SpeedRequest, before: Probe, slot: Slot, program: Sequence[str], folder: str
) -> list[str]:
    load = request.load
    command = [
        *program,
        "perf",
        *("--url", f"{request.target.endpoint.url}/v1/chat/completions"),
        *("--model", before.model),
        *("--api", "openai"),
        *("--number", str(requests_of(load, slot.point))),
        *("--max-tokens", str(load.output_tokens)),
        *("--temperature", "0"),
        *("--seed", str(slot.seed)),
        *("--outputs-dir", f"{folder}/out"),
        *("--no-timestamp", "--stream"),
    ]
    if slot.point.loop == "closed":
        command += ["--parallel", f"{slot.point.value:g}"]
    else:
        command += ["--open-loop", "--rate", f"{slot.point.value:g}"]
    if load.ignore_eos:
        command += ["--extra-args", json.dumps({"ignore_eos": True})]
    if load.dataset != "random":
        command += ["--dataset", load.dataset]
    elif load.tokenizer is not None:
        length = str(load.input_tokens)
        command += ["--dataset", "random", "--tokenizer-path", load.tokenizer]
        command += ["--min-prompt-length", length, "--max-prompt-length", length]
    else:
        command += ["--dataset", "openqa", "--dataset-path", f"{folder}/prompts.jsonl"]
    return command


def _sgl_jax_command(
    request: SpeedRequest, before: Probe, slot: Slot, program: Sequence[str], folder: str
) -> list[str]:
    """Of `python -m sgl_jax.bench_serving`; the server's own tokenizer counts its prompts."""
    load = request.load
    command = [
        *(*program, "-m", "sgl_jax.bench_serving"),
        *("--backend", "sgl-jax"),
        *("--base-url", request.target.endpoint.url),
        *("--model", before.model),
        *("--dataset-name", load.dataset, "--random-range-ratio", "1"),
        *("--random-input-len", str(load.input_tokens)),
        *("--random-output-len", str(load.output_tokens)),
        *("--num-prompts", str(requests_of(load, slot.point))),
        *("--warmup-requests", "0"),
        *("--seed", str(slot.seed)),
        *("--output-file", f"{folder}/bench.jsonl", "--output-details"),
    ]
    if slot.point.loop == "closed":
        command += ["--max-concurrency", f"{slot.point.value:g}"]
    else:
        command += ["--request-rate", f"{slot.point.value:g}"]
    if not load.ignore_eos:
        command.append("--disable-ignore-eos")
    tokenizer = load.tokenizer or (before.model_path if before.model_path != UNKNOWN else "")
    if tokenizer:
        command += ["--tokenizer", tokenizer]
    return command


def needs_prompts(load: LoadOptions) -> bool:
    """Whether the prompts are ours."""
    return load.backend == "evalscope" and load.dataset == "random" and load.tokenizer is None


def slot_files(
    request: SpeedRequest,
    before: Probe,
    slots: tuple[Slot, ...],
    program: Sequence[str],
    work: str,
) -> Mapping[str, bytes | Path]:
    """Every slot's script, and its prompts, by their names below the work directory."""
    files: dict[str, bytes | Path] = {}
    for slot in slots:
        folder = f"{work}/slots/{slot.name}"
        command = slot_command(request, before, slot, program, folder)
        files[f"slots/{slot.name}/command.sh"] = evalscope.script_of(
            command, openai=request.load.backend == "sgl-jax"
        ).encode()
        if needs_prompts(request.load):
            files[f"slots/{slot.name}/prompts.jsonl"] = prompts_of(request.load, slot)
    return files


def driver_script(request: SpeedRequest, slots: tuple[Slot, ...], work: str) -> str:
    """The job: every slot in turn, each with its own deadline.

    A slot that fails is left behind and the others go on. `timeout` is needed: a load program on a
    server that went away never ends by itself.
    """
    endpoint = request.target.endpoint
    port = shlex.quote(f"/dev/tcp/{endpoint.host}/{endpoint.port}")
    names = " ".join(shlex.quote(slot.name) for slot in slots)
    return (
        "#!/usr/bin/env bash\n"
        f"cd -- {shlex.quote(f'{work}/slots')} || exit 90\n"
        f"for slot in {names}; do\n"
        f"  if (exec 3<>{port}) 2>/dev/null; then\n"
        f'    (cd "$slot" && timeout -k {KILL_AFTER_S} {request.load.timeout_s:g}'
        " bash ./command.sh >log 2>&1)\n"
        '    code=$?\n  else\n    code="server down"\n  fi\n'
        '  echo "$code" >"$slot/exit.part" && mv "$slot/exit.part" "$slot/exit"\n'
        "done\n"
    )

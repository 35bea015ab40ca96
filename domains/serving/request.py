"""What is asked: the target, the evaluation, the load; checked before anything runs."""

from __future__ import annotations

import difflib
import json
import math
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar, get_args

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

from benchwright.errors import BadInput, Where
from benchwright.spec.values import unflatten


class Record(BaseModel):
    """A model that can't be changed and that accepts no unknown key."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)


EVALSCOPE_VERSION = "1.14.1"
"""The pinned release of the evaluator: a score only stands beside scores of the same one."""

GENERATION_KEYS = frozenset(
    [
        "timeout",
        "retries",
        "retry_interval",
        "stream",
        "max_tokens",
        "top_p",
        "temperature",
        "stop_seqs",
        "frequency_penalty",
        "presence_penalty",
        "repetition_penalty",
        "logit_bias",
        "seed",
        "do_sample",
        "top_k",
        "n",
        "logprobs",
        "top_logprobs",
        "parallel_tool_calls",
        "reasoning_effort",
        "reasoning_tokens",
        "reasoning_summary",
        "reasoning_history",
        "response_schema",
        "extra_body",
        "extra_query",
        "extra_headers",
    ]
)
"""What evalscope 1.14.1 knows (`evalscope.api.model.GenerateConfig`). It drops others silently, so
a misspelled one would leave the default in force under a report that says otherwise. `batch_size`
is known too, and overwritten: it is `evaluate.batch_size` here."""

EMPTY_SHARE = 0.02
"""Above this share of empty answers something other than the model's skill is measured."""

TRUNCATED_SHARE = 0.10
"""Above this share of answers cut at `max_tokens` the score is that of the limit."""


KEY_VARIABLE = "BENCHWRIGHT_ENDPOINT_KEY"
"""The variable that holds an endpoint's API key on the target host, and here where a block has the
key."""


class SshTarget(Record):
    """How the host is reached."""

    host: str
    """Name or address; an alias of the user's SSH configuration works."""
    user: str | None = None
    """Left out: what the SSH configuration says, or your own name."""
    port: Annotated[int, Field(ge=1, le=65535)] | None = None
    """Left out: what the SSH configuration says, or 22."""
    key: str | None = None
    """Path of the private key on this machine."""
    known_hosts: str | None = None
    """File of accepted host keys; left out: the user's own."""


class Endpoint(Record):
    """Where the server listens, as seen from the target host."""

    host: str = "127.0.0.1"
    """Name or address."""
    port: Annotated[int, Field(ge=1, le=65535)] = 30000
    """Port."""
    wait_s: Annotated[float, Field(ge=0)] = 900.0
    """How long a loading server is waited for."""
    key_env: str | None = None
    """Name of the environment variable that holds the endpoint's API key, where it asks for one."""

    @field_validator("key_env")
    @classmethod
    def _name_of_a_variable(cls, value: str | None) -> str | None:
        # The message names no value: it may be the key itself, given by mistake.
        if value is not None and re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", value) is None:
            raise ValueError("this is no name of an environment variable; the key itself stays out")
        return value

    @property
    def url(self) -> str:
        """The base address."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"http://{host}:{self.port}"


class Target(Record):
    """What is measured: a served model and the code and hardware behind it."""

    ssh: SshTarget | None = None
    """Left out: this machine."""
    endpoint: Endpoint = Endpoint()
    """Where it listens, as seen from the host."""
    model: str | None = None
    """The id that must be served; left out: the first one that is."""
    model_path: str | None = None
    """For the report, where the server's arguments don't say it."""
    repository: str | None = None
    """Working copy of the engine on the host; left out: the one it was installed from."""
    branch: str | None = None
    """The branch that must be checked out there."""
    commit: str | None = None
    """The commit that must be checked out there; a prefix of at least 7 digits will do."""
    python: str | None = None
    """The server's Python; left out: the one that the process runs in."""
    tpu_type: str | None = None
    """The TPUs' type, such as v6e-4, where the host can't tell."""
    topology: str | None = None
    """Their topology, such as 2x2, where the host can't tell."""
    chips: Annotated[int, Field(ge=1)] | None = None
    """How many TPU chips, where the host can't tell."""
    gpu: str | None = None
    """The GPUs' label where the host can't tell."""


class Dataset(Record):
    """One evaluation set: a name that evalscope knows, with its data where the hub isn't used."""

    name: str
    """Name in reports, such as `gsm8k`."""
    adapter: str
    """The evalscope benchmark that reads and scores it."""
    folder: str | None = None
    """Its data on this machine, copied to the host; or on the host, where `on_host`."""
    on_host: bool = False
    args: dict[str, Any] = {}
    """What evalscope's `--dataset-args` gets beside the folder."""
    version: str = ""
    """The set's own version, where it has one."""


class EvaluateOptions(Record):
    """How the evaluation runs."""

    datasets: tuple[str, ...] = ("gsm8k",)
    """Names, or NAME=FOLDER (this machine) or NAME=host:FOLDER (the target host)."""
    limit: Annotated[float, Field(gt=0, allow_inf_nan=False)] | None = None
    """Items of each subset: a count, or a share below 1; left out: all."""
    batch_size: Annotated[int, Field(ge=1)] = 16
    """Requests in flight."""
    repeats: Annotated[int, Field(ge=1)] = 1
    """Answers to each item."""
    seed: int = 42
    """Seed of what the evaluation draws."""
    work_root: str | None = None
    """Folder on the host in which the work directory is made; left out: ~/benchwright_runs."""
    work_dir: str | None = None
    """A work directory of one's own on the host; it must not hold anything."""
    evaluator: Literal["auto", "evalscope", "run_eval"] = "auto"
    """`auto`: evalscope, and the fallback runner where that can't be installed."""
    evalscope_version: str = EVALSCOPE_VERSION
    """The evaluator's version: scores of two versions aren't compared."""
    evalscope: str | None = None
    """Path of an evalscope program on the host, used as it is."""
    tool_dir: str | None = None
    """Where evalscope is installed on the host; left out: a folder of its own for the version."""
    run_eval: str | None = None
    """Path on the host of a run_eval.py to use instead of ours as the fallback runner."""
    run_eval_python: str | None = None
    """Python on the host for the fallback runner; left out: the server's own."""
    timeout_s: Annotated[float, Field(gt=0, allow_inf_nan=False)] = 6 * 3600.0
    """Deadline of each dataset."""
    reconnect_s: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 600.0
    """How long a lost connection is tried again."""

    @field_validator("datasets", mode="before")
    @classmethod
    def _one_or_many(cls, value: Any) -> Any:
        return (value,) if isinstance(value, str) else value

    @field_validator("limit")
    @classmethod
    def _count_or_share(cls, value: float | None) -> float | None:
        if value is not None and value >= 1 and value != math.floor(value):
            raise ValueError("a limit is a whole count, or a share between 0 and 1")
        return value


class Limits(Record):
    """What an evaluation's answers may look like before the run is only partial."""

    empty_share: Annotated[float, Field(ge=0, le=1)] = EMPTY_SHARE
    """Share of empty answers above which a run is only partial."""
    truncated_share: Annotated[float, Field(ge=0, le=1)] = TRUNCATED_SHARE
    """Share of answers cut at the limit above which a run is only partial."""


class AccuracyRequest(Record):
    """Everything that an accuracy run is asked."""

    target: Target = Target()
    """What is measured."""
    evaluate: EvaluateOptions = EvaluateOptions()
    """The evaluation sets, and how they are run."""
    generation: dict[str, Any] = {"max_tokens": 4096, "temperature": 0.0}
    """What is sent with each request, such as `temperature`."""
    limits: Limits = Limits()
    """What the answers may look like before the run is only partial."""

    @model_validator(mode="after")
    def _known_generation_keys(self) -> AccuracyRequest:
        for key in self.generation:
            if key not in GENERATION_KEYS:
                near = difflib.get_close_matches(key, GENERATION_KEYS, n=1)
                meant = f"; did you mean `{near[0]}`?" if near else ""
                raise ValueError(
                    f"generation key `{key}` is not known to evalscope, which would drop it"
                    f" silently{meant}"
                )
        return self

    @property
    def generation_config(self) -> dict[str, Any]:
        """What is sent: one retry unless asked otherwise.

        A failing sample costs three requests for each try, and evalscope's default is five tries.
        """
        return {"retries": 1, **self.generation}


SGL_JAX_DATASETS = ("random", "random-ids", "sharegpt", "generated-shared-prefix", "mmmu")
"""What `sgl_jax.bench_serving` knows. Its `random` draws from ShareGPT, which it fetches from the
internet; `random-ids` needs none."""


class LoadOptions(Record):
    """The load of a speed run."""

    backend: Literal["evalscope", "sgl-jax"] = "evalscope"
    """The load program."""
    batch_sizes: Annotated[tuple[Annotated[int, Field(ge=1)], ...], Field(min_length=1)] = (
        2,
        4,
        8,
        16,
    )
    """Requests in flight, a point each (closed loop)."""
    rates: tuple[Annotated[float, Field(gt=0, allow_inf_nan=False)], ...] = ()
    """Requests a second, a point each (open loop), beside or instead of the batch sizes."""
    closed_loop: bool = True
    """False: only the open-loop points run."""
    requests_per_slot: Annotated[int, Field(ge=1)] = 3
    """Requests of a closed-loop point for each one in flight."""
    requests_per_rate: Annotated[int, Field(ge=1)] = 32
    """Requests of an open-loop point."""
    replicates: Annotated[int, Field(ge=1)] = 5
    """Measured passes over every point; fewer than 5 give no verdict."""
    warmup: Annotated[int, Field(ge=0)] = 1
    """Passes over every point that are run first and left out."""
    seed: int = 20250101
    """Seed of the order of points, and of the drawn prompts."""
    dataset: str = "random"
    """`random`, or an evalscope perf dataset, or a file of JSON lines with `question`."""
    input_tokens: Annotated[int, Field(ge=1)] = 1024
    """Length of a prompt."""
    output_tokens: Annotated[int, Field(ge=1)] = 128
    """Length of an answer."""
    tokenizer: str | None = None
    """Path on the host of the tokenizer that `random` draws tokens from; left out: words."""
    ignore_eos: bool = True
    """Every answer has `output_tokens` tokens: otherwise two builds are timed on other lengths."""
    ttft_limit_ms: Annotated[float, Field(gt=0)] | None = None
    """Longest time to the first token of a good request, in ms."""
    tpot_limit_ms: Annotated[float, Field(gt=0)] | None = None
    """Limits of a good request: goodput counts the requests that keep both."""
    timeout_s: Annotated[float, Field(gt=0, allow_inf_nan=False)] = 1800.0
    """Deadline of one replicate of one point: perf never ends by itself with the server down."""
    work_root: str | None = None
    """Folder on the host for its files; left out: ~/benchwright_runs."""
    evalscope_version: str = EVALSCOPE_VERSION
    """Version of the load program: figures of two versions aren't compared."""
    evalscope: str | None = None
    """Path of an evalscope program on the host, used as it is."""
    tool_dir: str | None = None
    """Where evalscope is installed on the host; left out: a folder of its own for the version."""
    bench_python: str | None = None
    """Python of the sgl-jax benchmark on the host; left out: the server's own."""
    reconnect_s: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 600.0
    """How long a lost connection is tried again, in seconds."""

    @field_validator("batch_sizes", "rates", mode="before")
    @classmethod
    def _one_or_many(cls, value: Any) -> Any:
        return (value,) if isinstance(value, int | float) else value

    @model_validator(mode="after")
    def _some_point(self) -> LoadOptions:
        if not self.closed_loop and not self.rates:
            raise ValueError("`closed_loop: false` needs `rates`")
        if self.backend == "sgl-jax" and self.dataset not in SGL_JAX_DATASETS:
            raise ValueError(
                f"the sgl-jax bench has no dataset {self.dataset!r}; it has"
                f" {', '.join(SGL_JAX_DATASETS)}"
            )
        return self


class SpeedRequest(Record):
    """Everything that a speed run is asked."""

    target: Target = Target()
    """What is measured."""
    load: LoadOptions = LoadOptions()
    """The load."""


def accuracy_request(params: Mapping[str, Any]) -> AccuracyRequest:
    """The request that parameters stand for, nested or by dotted name. Raises BadInput."""
    return _read(AccuracyRequest, params)


def speed_request(params: Mapping[str, Any]) -> SpeedRequest:
    """The request that parameters stand for, nested or by dotted name. Raises BadInput."""
    return _read(SpeedRequest, params)


def declared(kind: type[Record]) -> dict[str, Any]:
    """Every parameter of a request at its default, so that each can be set by its name."""
    values = kind().model_dump(mode="json")
    ssh = dict.fromkeys(SshTarget.model_fields)
    return {**values, "target": {**values["target"], "ssh": ssh}}


_R = TypeVar("_R", bound=Record)


def _read(kind: type[_R], params: Mapping[str, Any]) -> _R:
    flat = any("." in name for name in params)
    nested = unflatten(dict(params)) if flat else dict(params)
    target = nested.get("target")
    ssh = target.get("ssh") if isinstance(target, dict) else None
    if isinstance(ssh, dict) and ssh.get("host") is None:
        # The domain declares every parameter; without a host it is this machine that is meant.
        nested = {**nested, "target": {**nested["target"], "ssh": None}}
    try:
        return kind.model_validate(nested)
    except ValidationError as problem:
        raise _bad_input(kind, problem) from None


def _bad_input(kind: type[Record], problem: ValidationError) -> BadInput:
    first = problem.errors()[0]
    key = ".".join(str(part) for part in first["loc"] if not isinstance(part, int))
    if first["type"] == "extra_forbidden":
        known = _known_keys(kind, [str(part) for part in first["loc"][:-1]])
        near = difflib.get_close_matches(str(first["loc"][-1]), known, n=1)
        return BadInput(
            "this parameter is not known",
            where=Where(key=key),
            expected=f"one of {', '.join(known)}",
            hint=f"did you mean `{near[0]}`?" if near else None,
        )
    return BadInput(first["msg"].removeprefix("Value error, "), where=Where(key=key or None))


def _known_keys(kind: type[BaseModel], path: Sequence[str]) -> list[str]:
    for part in path:
        inner = kind.model_fields[part].annotation
        options = [inner, *get_args(inner)]
        kind = next(o for o in options if isinstance(o, type) and issubclass(o, BaseModel))
    return sorted(kind.model_fields)


SETS = Path(__file__).parent / "sets"
"""Our own evaluation sets, each a folder with a `set.json`."""


def find_dataset(spec: str) -> Dataset:
    """What a dataset's name stands for.

    `NAME` is one of our sets, or a benchmark that evalscope fetches from its hub. `NAME=FOLDER` is
    data on this machine, `NAME=host:FOLDER` on the target host. A folder with a `set.json` says
    itself how it is read; `general_mcq` takes its subsets from the `*_val.jsonl` in the folder.

    Raises:
        BadInput: The folder isn't there, or its `set.json` can't be understood.
    """
    name, given, folder = spec.partition("=")
    if not name or (given and not folder):
        raise BadInput(
            f"{spec!r} names no dataset",
            where=Where(key="evaluate.datasets"),
            expected="NAME, NAME=FOLDER or NAME=host:FOLDER",
        )
    if folder.startswith("host:"):
        return Dataset(name=name, adapter=name, folder=folder[len("host:") :], on_host=True)
    if not folder:
        if not (SETS / name).is_dir():
            return Dataset(name=name, adapter=name)
        folder = str(SETS / name)
    path = Path(folder).expanduser()
    if not path.is_dir():
        raise BadInput(
            f"the folder of dataset {name!r} isn't there",
            where=Where(file=path, key="evaluate.datasets"),
            hint="give a folder of this machine, or NAME=host:FOLDER for one on the target host",
        )
    return _described(name, path) if (path / "set.json").is_file() else _plain(name, path)


def _described(name: str, path: Path) -> Dataset:
    file = path / "set.json"
    try:
        said = json.loads(file.read_text(encoding="utf-8"))
        return Dataset(
            name=name,
            adapter=said["adapter"],
            folder=str(path),
            args=said.get("args", {}),
            version=str(said["version"]),
        )
    except (ValueError, KeyError, AttributeError) as problem:
        raise BadInput(
            f"the description of dataset {name!r} can't be understood: {problem!r}",
            where=Where(file=file),
            expected='an object with "adapter", "version" and "args"',
        ) from None


def _plain(name: str, path: Path) -> Dataset:
    args: dict[str, Any] = {}
    if name in ("general_mcq", "general_qa"):
        pattern = "*_val.jsonl" if name == "general_mcq" else "*.jsonl"
        subsets = sorted(file.stem.removesuffix("_val") for file in path.glob(pattern))
        if not subsets:
            raise BadInput(
                f"dataset {name!r} has no data",
                where=Where(file=path),
                expected=f"files named {pattern}",
            )
        args["subset_list"] = subsets
    return Dataset(name=name, adapter=name, folder=str(path), args=args)

"""`benchwright accuracy` and `benchwright speed`: a served model, measured where it runs.

Both turn their options into a configuration of their domain and hand it to `start`, which plans,
runs, follows and records it like any other experiment.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from benchwright.errors import BadInput, Where
from cli.options import home_option, json_option, open_home
from cli.output import print_json

if TYPE_CHECKING:
    from benchwright.record.store import RunFolder
    from benchwright.spec.resolve import Resolved
    from domains.serving.request import AccuracyRequest, SpeedRequest

Command = TypeVar("Command", bound=Callable[..., Any])

NOT_A_SUCCESS = 4
"""Exit code of a run whose report says partial or failed: a stage didn't give what it was for."""


@dataclass(frozen=True, slots=True)
class RunOptions:
    """What both verbs say about the run itself.

    Attributes:
        overrides: `KEY=VALUE` for any parameter.
        hypothesis: What is expected, in words.
        because: The reason to go on in spite of the plan's challenges.
        detach: Return at once with the run's id.
        home: Where records are kept.
        as_json: One JSON object on standard output.
        max_cost: Approved beforehand, in US dollars.
        deployment: Submit to it instead of running here; None: as PREFECT_API_URL says.
        on: The host that a deployment's run goes to.
        insecure: Use a server that isn't protected.
        server: The model-server block that says the target.
    """

    overrides: tuple[str, ...] = ()
    hypothesis: str | None = None
    because: str | None = None
    detach: bool = False
    home: str | None = None
    as_json: bool = False
    max_cost: float | None = None
    deployment: str | None = None
    on: str = ""
    insecure: bool = False
    server: str | None = None


def start(config: Mapping[str, Any], options: RunOptions) -> int:
    """Run the configuration, follow it, and say what came of it.

    On the local engine; at a deployment where one is named, or where PREFECT_API_URL names a
    server.

    Returns:
        The exit code.

    Raises:
        BenchwrightError: It can't be planned or started.
    """
    if options.deployment or os.environ.get("PREFECT_API_URL"):
        return _submit(config, options)
    if options.on:
        raise BadInput(
            f"the run stays on this machine: no server is named that knows a host '{options.on}'",
            where=Where(key="--on"),
            hint="set PREFECT_API_URL, or name a --deployment",
        )
    from cli.run import print_detached, run_here
    from domains.serving.key import key_of

    with _block_of(options) as target:
        resolved = _resolve(_over_block(config, target), options)
        key_of(_read(str(config["domain"]), resolved.config.params).target.endpoint)
        folder, code = run_here(
            resolved,
            open_home(options.home),
            because=options.because,
            max_cost=options.max_cost,
            detach=options.detach,
        )
    if code is None:
        print_detached(folder.run_id, options.as_json)
        return 0
    shown = show(str(config["domain"]), folder, options.as_json)
    return code or shown


def _resolve(config: Mapping[str, Any], options: RunOptions) -> Resolved:
    from benchwright.spec.recipe import RecipeLibrary
    from benchwright.spec.resolve import from_mapping
    from domains.library import known_domains, recipe_folders

    return from_mapping(
        config,
        folder=Path.cwd(),
        domains=known_domains(),
        recipes=RecipeLibrary(recipe_folders()),
        overrides=options.overrides,
        hypothesis=options.hypothesis,
    )


@contextmanager
def _block_of(options: RunOptions) -> Iterator[dict[str, Any]]:
    """The `target` parameters of the block that is named, with its API key in the environment.

    Raises:
        BadInput: There is no such block.
    """
    if options.server is None:
        yield {}
        return
    from cli.server import at_server

    with at_server(options.home, insecure=options.insecure):
        from blocks.hosts import ModelServer
        from blocks.named import load

        block = load(ModelServer, options.server)
    if block is None:
        raise BadInput(
            f"there is no model-server block named {options.server!r}",
            where=Where(key="--target"),
            hint="list them: prefect block ls; or say the target by options: --host",
        )
    before = dict(os.environ)
    os.environ.update(block.environment())
    try:
        yield block.target()
    finally:
        os.environ.clear()
        os.environ.update(before)


def _over_block(config: Mapping[str, Any], block: Mapping[str, Any]) -> dict[str, Any]:
    """A configuration whose target is a block's, but for what the options say."""
    params = config["params"]
    said = params["target"]
    target = {**block, **said}
    if "endpoint" in block:
        target["endpoint"] = {**block["endpoint"], **said.get("endpoint", {})}
    return {**config, "params": {**params, "target": target}}


def _submit(config: Mapping[str, Any], options: RunOptions) -> int:
    """Submit to a deployment of the domain's own flow.

    A block is named to the flow, which takes its API key from it where it runs.

    Raises:
        BadInput: Options say something else of the target than the block that is named.
    """
    from cli.server import at_server
    from cli.submit import submit_to
    from deployments.security import INSECURE_TAG

    domain = str(config["domain"])
    said = {name for name in config["params"]["target"] if name != "endpoint"}
    endpoint = set(config["params"]["target"].get("endpoint", {})) - {"wait_s"}
    if options.server is not None and (said or endpoint):
        raise BadInput(
            "a deployment takes the whole target from the block",
            where=Where(key="--target"),
            expected="no other option that says what the target is",
            hint=f"change the block {options.server!r}, or say the target by options alone",
        )
    name = options.deployment or domain
    if "/" not in name:
        name = f"{domain}/{name}"
    if not name.startswith(f"{domain}/"):
        raise BadInput(
            f"{name} is no deployment of the flow `{domain}`",
            where=Where(key="--deployment"),
            expected=f"{domain}/NAME, or NAME alone",
        )
    resolved = _resolve(config, options)
    request = _read(domain, resolved.config.params)
    parameters: dict[str, Any] = {"request": request.model_dump(mode="json", exclude_defaults=True)}
    if options.server is not None:
        parameters["server"] = options.server
    if options.hypothesis is not None:
        parameters["hypothesis"] = options.hypothesis
    with at_server(options.home, insecure=options.insecure) as server:
        return submit_to(
            name,
            parameters,
            resolved,
            because=options.because,
            max_cost=options.max_cost,
            tags=[INSECURE_TAG] if server.insecure else [],
            detach=options.detach,
            as_json=options.as_json,
            on=options.on,
        )


def _read(domain: str, params: Mapping[str, Any]) -> AccuracyRequest | SpeedRequest:
    from domains.serving.request import accuracy_request, speed_request

    return accuracy_request(params) if domain == "accuracy" else speed_request(params)


def show(domain: str, folder: RunFolder, as_json: bool) -> int:
    """Print the domain's own report. Returns 0 for success, 4 for partial, failed and none."""
    import json

    from cli.run import show_result

    place = folder.path / domain
    if not (place / "report.json").is_file():  # it was interrupted before there was one
        show_result(folder.read(), as_json)
        return NOT_A_SUCCESS
    facts: dict[str, Any] = json.loads((place / "report.json").read_text(encoding="utf-8"))
    if as_json:
        from benchwright.report.json import run_json

        print_json({**run_json(folder.read()), domain: facts})
    else:
        click.echo((place / "report.md").read_text(encoding="utf-8"), nl=False)
        click.echo(f"\nrun {folder.run_id}\nreport {place / 'report.html'}", err=True)
    return 0 if facts["state"] == "success" else NOT_A_SUCCESS


def target_options(command: Command) -> Command:
    """Where the server is and what it has to be."""
    options = (
        click.option("--target", "block", metavar="NAME", help="A model-server block."),
        click.option("--local", is_flag=True, help="The server runs on this machine."),
        click.option("--host", metavar="HOST", help="The machine that it runs on, by SSH."),
        click.option("--user", metavar="USER", help="As whom; default: as SSH is configured."),
        click.option("--ssh-port", type=click.IntRange(1, 65535), metavar="PORT", help="SSH port."),
        click.option("--key", metavar="FILE", help="Private key; default: an agent, own keys."),
        click.option("--known-hosts", metavar="FILE", help="Accepted host keys; default: own."),
        click.option("--endpoint-host", metavar="HOST", help="Default: 127.0.0.1, as seen there."),
        click.option(
            "--port", type=click.IntRange(1, 65535), metavar="PORT", help="Endpoint; default 30000."
        ),
        click.option(
            "--api-key-env",
            metavar="NAME",
            help="The variable that holds the endpoint's API key; default: it asks for none.",
        ),
        click.option("--model", metavar="ID", help="Must be served; default: the first that is."),
        click.option("--model-path", metavar="PATH", help="For the report."),
        click.option("--repository", metavar="PATH", help="The engine's working copy there."),
        click.option("--branch", metavar="NAME", help="Must be checked out there."),
        click.option("--commit", metavar="SHA", help="Must be checked out there."),
        click.option("--python", metavar="PATH", help="The server's Python; default: it is found."),
        click.option("--tpu-type", metavar="NAME", help="Such as v6e-4."),
        click.option("--topology", metavar="NAME", help="Such as 2x2."),
        click.option("--chips", type=click.IntRange(1), metavar="N", help="Number of TPU chips."),
        click.option("--gpu", metavar="NAME", help="The GPUs, where the host can't tell."),
        click.option("--wait", type=float, metavar="S", help="For a loading server; default 900."),
    )
    return _with(options, command)


def run_options(command: Command) -> Command:
    """What is said about the run itself."""
    options = (
        click.option(
            "-p",
            "--param",
            "overrides",
            multiple=True,
            metavar="KEY=VALUE",
            help="Set any parameter by its dotted name; can be repeated.",
        ),
        click.option("--hypothesis", metavar="TEXT", help="What is expected."),
        click.option("--because", metavar="TEXT", help="Go on in spite of the plan's challenges."),
        click.option("--detach", is_flag=True, help="Return at once with the run's id."),
        click.option(
            "--max-cost",
            type=click.FloatRange(0),
            metavar="USD",
            help="Approve up to this cost beforehand; without it, what costs something is asked.",
        ),
        click.option(
            "--deployment",
            metavar="NAME",
            help="Submit to this deployment of $PREFECT_API_URL, else of the local server, and"
            " follow it. Default with PREFECT_API_URL: the verb's own.",
        ),
        click.option(
            "--on",
            default="",
            metavar="HOST",
            help="With a deployment: the host that it runs on. Default: any.",
        ),
        click.option(
            "--insecure",
            is_flag=True,
            help="Use a server that others reach and that isn't protected; a tag says so.",
        ),
        home_option,
        json_option,
    )
    return _with(options, command)


def _with(options: tuple[Callable[[Any], Any], ...], command: Command) -> Command:
    for option in reversed(options):
        command = option(command)
    return command


TARGET_KEYS = (
    *("model", "model_path", "repository", "branch", "commit", "python"),
    *("tpu_type", "topology", "chips", "gpu"),
)


def target_params(values: Mapping[str, Any]) -> dict[str, Any]:
    """The `target` parameters that the options stand for; a block's come to them later.

    Raises:
        BadInput: None, or more than one, of --local, --host and --target says where the server is.
    """
    ways = [name for name in ("local", "host", "block") if values[name]]
    if len(ways) != 1:
        raise BadInput(
            "it must be said where the server is"
            if not ways
            else "more than one option says where the server is",
            where=Where(key="--host, --target, --local"),
            expected="--host HOST by SSH, --target NAME of a block, or --local for this machine",
        )
    params: dict[str, Any] = {}
    if values["host"]:
        names = ("host", "user", "key", "known_hosts")
        ssh = {name: values[name] for name in names if values[name] is not None}
        if values["ssh_port"] is not None:
            ssh["port"] = values["ssh_port"]
        params["ssh"] = ssh
    endpoint = _said(
        values,
        {"host": "endpoint_host", "port": "port", "wait_s": "wait", "key_env": "api_key_env"},
    )
    said = {name: values[name] for name in TARGET_KEYS if values[name] is not None}
    return {**params, **said, **({"endpoint": endpoint} if endpoint else {})}


def _said(values: Mapping[str, Any], names: Mapping[str, str]) -> dict[str, Any]:
    """The parameters whose options were given, by parameter name."""
    found = {name: values[option] for name, option in names.items()}
    return {name: value for name, value in found.items() if value not in (None, ())}


def _dataset(spec: str) -> str:
    """A dataset with its folder absolute: the run looks from a folder of its own."""
    name, given, folder = spec.partition("=")
    if not given or folder.startswith("host:"):
        return spec
    return f"{name}={Path(folder).expanduser().absolute()}"


def _generation(pairs: tuple[str, ...]) -> dict[str, Any]:
    from benchwright.spec.source import plain_scalar

    found = {}
    for pair in pairs:
        key, equals, value = pair.partition("=")
        if not equals:
            raise BadInput(f"{pair!r} is no KEY=VALUE", where=Where(key="--generation"))
        found[key] = plain_scalar(value)
    return found


@click.command(
    epilog="\b\nExamples:\n"
    "  benchwright accuracy --host tpu-1 --user me\n"
    "  benchwright accuracy --local --port 8000 --dataset everyday --max-tokens 256\n"
    "  benchwright accuracy --host gpu-1 --dataset gsm8k=./gsm8k --dataset everyday --limit 200\n"
    "\b\nExit codes: 0 success, 2 bad input, 3 a gate refused, 4 partial or failed,\n"
    "5 a guard or a budget ended it, 130 interrupted."
)
@target_options
@click.option(
    "--dataset",
    "datasets",
    multiple=True,
    metavar="NAME[=FOLDER]",
    help="An evaluation set, with its data on this machine, or =host:FOLDER; can be repeated."
    " Default: gsm8k.",
)
@click.option("--limit", type=float, metavar="N", help="Items of each set: a count, or a share.")
@click.option("--batch-size", type=click.IntRange(1), metavar="N", help="Default 16.")
@click.option("--repeats", type=click.IntRange(1), metavar="N", help="Answers to each item.")
@click.option("--max-tokens", type=click.IntRange(1), metavar="N", help="Default 4096.")
@click.option("--temperature", type=float, metavar="T", help="Default 0.")
@click.option(
    "-g",
    "--generation",
    multiple=True,
    metavar="KEY=VALUE",
    help="A key of the generation configuration; can be repeated.",
)
@click.option(
    "--evaluator",
    type=click.Choice(["auto", "evalscope", "run_eval"]),
    help="Default auto: evalscope, else the fallback runner.",
)
@click.option("--work-dir", metavar="DIR", help="A new, empty directory on the host.")
@click.option("--tool-dir", metavar="DIR", help="Where evalscope is installed on the host.")
@run_options
def accuracy(**values: Any) -> int:
    """Say whether a served model still answers right.

    The server is probed, evalscope evaluates it on its host, and the result is validated: a fresh
    report, the requested count, errors, empty and cut answers, the same model and process from
    start to end.
    """
    names = {
        "limit": "limit",
        "batch_size": "batch_size",
        "repeats": "repeats",
        "evaluator": "evaluator",
        "work_dir": "work_dir",
        "tool_dir": "tool_dir",
    }
    evaluate = _said(values, names)
    if values["datasets"]:
        evaluate["datasets"] = [_dataset(spec) for spec in values["datasets"]]
    generation = _generation(values["generation"])
    generation |= _said(values, {"max_tokens": "max_tokens", "temperature": "temperature"})
    params = {"target": target_params(values), "evaluate": evaluate, "generation": generation}
    return start({"domain": "accuracy", "params": params}, _options(values))


def _numbers(text: str | None, kind: type[Any], option: str) -> list[Any] | None:
    if text is None:
        return None
    try:
        return [kind(part) for part in text.split(",") if part.strip()]
    except ValueError:
        raise BadInput(
            f"{text!r} is no list of numbers", where=Where(key=option), expected="such as 2,4,8"
        ) from None


@click.command(
    epilog="\b\nExamples:\n"
    "  benchwright speed --host tpu-1 --user me\n"
    "  benchwright speed --local --port 8000 --batch-sizes 1,4 --input-tokens 256\n"
    "  benchwright speed --host gpu-1 --rates 1,2,4 --ttft-limit-ms 500 --tpot-limit-ms 50\n"
    "\b\nExit codes: as for `accuracy`."
)
@target_options
@click.option(
    "--backend", type=click.Choice(["evalscope", "sgl-jax"]), help="Default: evalscope perf."
)
@click.option("--batch-sizes", metavar="N,N,...", help="Requests in flight; default 2,4,8,16.")
@click.option("--rates", metavar="R,R,...", help="Requests a second, sent on schedule.")
@click.option("--dataset", metavar="NAME", help="Default: random.")
@click.option("--input-tokens", type=click.IntRange(1), metavar="N", help="Default 1024.")
@click.option("--output-tokens", type=click.IntRange(1), metavar="N", help="Default 128.")
@click.option("--tokenizer", metavar="PATH", help="On the host; default: common words.")
@click.option("--replicates", type=click.IntRange(1), metavar="N", help="Default 5.")
@click.option("--warmup", type=click.IntRange(0), metavar="N", help="Default 1.")
@click.option("--ttft-limit-ms", type=float, metavar="MS", help="Goodput: time to first token.")
@click.option("--tpot-limit-ms", type=float, metavar="MS", help="Goodput: time per token.")
@click.option("--tool-dir", metavar="DIR", help="Where evalscope is installed on the host.")
@run_options
def speed(**values: Any) -> int:
    """Say how fast a served model answers.

    Every load point runs in random order, warmed up and replicated, each with a fresh load program
    and fresh prompts. Failed requests are counted and enter no figure.
    """
    names = {
        "backend": "backend",
        "dataset": "dataset",
        "input_tokens": "input_tokens",
        "output_tokens": "output_tokens",
        "tokenizer": "tokenizer",
        "replicates": "replicates",
        "warmup": "warmup",
        "ttft_limit_ms": "ttft_limit_ms",
        "tpot_limit_ms": "tpot_limit_ms",
        "tool_dir": "tool_dir",
    }
    load = _said(values, names)
    for name, kind in (("batch_sizes", int), ("rates", float)):
        numbers = _numbers(values[name], kind, f"--{name.replace('_', '-')}")
        if numbers is not None:
            load[name] = numbers
    if values["rates"] and not values["batch_sizes"]:
        load["closed_loop"] = False
    params = {"target": target_params(values), "load": load}
    return start({"domain": "speed", "params": params}, _options(values))


def _options(values: Mapping[str, Any]) -> RunOptions:
    return RunOptions(
        overrides=values["overrides"],
        hypothesis=values["hypothesis"],
        because=values["because"],
        detach=values["detach"],
        home=values["home"],
        as_json=values["as_json"],
        max_cost=values["max_cost"],
        deployment=values["deployment"],
        on=values["on"],
        insecure=values["insecure"],
        server=values["block"],
    )

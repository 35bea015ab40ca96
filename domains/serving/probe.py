"""What is served, read on the target host at the point of use."""

from __future__ import annotations

import json
import re
import shlex
import time
from collections.abc import Callable, Container, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from pydantic import Field

from benchwright.errors import StageFailed
from benchwright.identity.accelerator import TPU_PCI_DEVICES
from domains.serving.host import Host
from domains.serving.key import hide, key_of
from domains.serving.request import Record, Target

UNKNOWN = "unknown"

PROGRAM = Path(__file__).parent / "programs" / "host_probe.py"

POLL_S = 2.0
"""How often a loading server is asked."""

LOADING = frozenset({503, 502, 425, 429})
"""Answers of a server that is there and not ready yet; a refused connection is one too."""

NO_ENTRY = frozenset({401, 403})
"""Answers of a server that asks who is there."""

SECRET_ARGUMENT = re.compile(r"(api[-_]?key|token|secret|password|passwd)(?!izer)", re.IGNORECASE)
"""Launch arguments whose value is no one else's business."""


def utc(epoch: float) -> str:
    """Seconds since 1970 as text."""
    return datetime.fromtimestamp(epoch, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


class ServerProcess(Record):
    """The process that owns the port.

    Two reads speak of the same process exactly where `pid`, `started_ticks` and the host's boot
    agree: a pid alone is given out again.
    """

    pid: int
    user: str
    args: tuple[str, ...]
    started_ticks: int | None
    started: float | None
    exp_id: str | None
    found_by: str


class Health(Record):
    """What the endpoint answered.

    Attributes:
        state: `healthy`, `unhealthy` or `unknown`.
        status: Of `/health`; None for no answer.
        models: Ids of the served models, in order.
        reason: Why it is not healthy.
    """

    state: str
    status: int | None
    models: tuple[str, ...]
    reason: str


class Probe(Record):
    """What was seen of the server at one moment. Texts are `unknown` where each way failed."""

    time: str
    epoch: float
    """Wall clock of the target host, seconds since 1970."""
    health: Health
    model: str
    """The id that requests will name."""
    process: ServerProcess | None
    engine: str = UNKNOWN
    engine_version: str = UNKNOWN
    commit: str = UNKNOWN
    branch: str = UNKNOWN
    model_path: str = UNKNOWN
    versions: dict[str, str] = Field(default_factory=dict)
    hardware: dict[str, str] = Field(default_factory=dict)
    machine: dict[str, str] = Field(default_factory=dict)
    resource: str = UNKNOWN
    host: str = ""
    failures: tuple[str, ...] = ()
    """Why nothing may be evaluated here; empty: go on."""
    notes: tuple[str, ...] = ()

    @property
    def server(self) -> str:
        """How a person calls the server process."""
        if self.process is None:
            return UNKNOWN
        label = f"pid {self.process.pid}"
        if self.process.started is not None:
            label += f", started {utc(self.process.started)}"
        if self.process.user:
            label += f", user {self.process.user}"
        return f"{self.process.exp_id} ({label})" if self.process.exp_id else label

    @property
    def launch_args(self) -> str:
        """The server's command line, each argument quoted as a shell would want it."""
        return shlex.join(self.process.args) if self.process and self.process.args else UNKNOWN


Said = Callable[[str], None]
"""Receives a line of progress."""


def probe(
    host: Host,
    target: Target,
    *,
    own_jobs: Container[str] = (),
    say: Said = lambda _: None,
) -> Probe:
    """Wait until the server answers, then read all that a report needs.

    Args:
        host: The target host.
        target: What is asked for there.
        own_jobs: Ids of this run's own jobs, from before it was cut off: they may load the server.
        say: Receives progress while a server loads.

    Returns:
        What was seen. `failures` says why nothing may be evaluated: the server is down or not
        ready in time, it serves another model than asked, another evaluation loads it, or the
        working copy isn't the one asked for.

    Raises:
        HostUnreachable, HostRefused: No word from the host at all.
        StageFailed: The host has no Python to probe with.
    """
    started, last_said = time.monotonic(), ""
    limit = target.endpoint.wait_s
    seen = _read(host, target, light=False, own_jobs=own_jobs)
    health = _health(seen["endpoint"])
    if health.state == "healthy" or not _may_become_ready(seen):
        return _probe_of(seen, target, host.name)
    while health.state != "healthy" and (waited := time.monotonic() - started) < limit:
        line = f"waiting for the server: {health.reason} ({waited:.0f} s of {limit:.0f} s)"
        if line != last_said:
            say(line)
            last_said = line
        time.sleep(min(POLL_S, max(limit - waited, 0.05)))
        health = _health(_read(host, target, light=True)["endpoint"])
    return _probe_of(_read(host, target, light=False, own_jobs=own_jobs), target, host.name)


def look_again(host: Host, target: Target) -> Probe:
    """Only what tells whether the server is still the same. Raises as `probe` does."""
    return _probe_of(_read(host, target, light=True), target, host.name)


def _may_become_ready(seen: dict[str, Any]) -> bool:
    """Whether waiting can help: the port is held by someone, or answers that it loads.

    With nobody on the port it may still be about to start, but nothing says so: a report now is
    worth more than one in a quarter of an hour.
    """
    return seen["endpoint"]["health"] in LOADING or seen["process"] is not None


def _read(
    host: Host, target: Target, *, light: bool, own_jobs: Container[str] = ()
) -> dict[str, Any]:
    key = key_of(target.endpoint)
    request = {
        "key": key or "",
        "host": target.endpoint.host,
        "port": target.endpoint.port,
        "repository": target.repository,
        "python": target.python,
        "light": light,
        "tpu_types": TPU_PCI_DEVICES,
    }
    script = (
        'folder=$(mktemp -d "${TMPDIR:-/tmp}/benchwright-probe.XXXXXXXX") || exit 90\n'
        "trap 'rm -rf -- \"$folder\"' EXIT\n"
        f'head -c {len(PROGRAM.read_bytes())} >"$folder/host_probe.py"\n'
        'cat >"$folder/request.json"\n'
        "command -v python3 >/dev/null || exit 91\n"
        'python3 "$folder/host_probe.py" "$folder/request.json"\n'
    )
    stdin = PROGRAM.read_bytes() + json.dumps(request).encode()
    ran = host.run(script, timeout_s=300, stdin=stdin)
    if ran.code == 91:
        raise StageFailed(
            f"{host.name} has no python3 on the path of its login shell",
            expected="Python 3.7 or later, for the probe and for evalscope",
            hint="install it there, or set the path in the shell's start-up files",
        )
    try:
        answer = json.loads(hide(ran.text, key).strip().splitlines()[-1])
    except (ValueError, IndexError):
        raise StageFailed(
            f"the probe on {host.name} failed with exit code {ran.code}",
            hint=hide(ran.error_text, key),
        ) from None
    if not isinstance(answer, dict):
        raise StageFailed(f"the probe on {host.name} answered {answer!r}")
    others = answer.get("others", [])
    foreign = [other for other in others if not other["job"] or other["job"] not in own_jobs]
    if len(foreign) < len(others):
        answer |= {"others": foreign, "peers": 0}
    return answer


def _health(endpoint: dict[str, Any]) -> Health:
    """Healthy by the status code of /health alone, or by a filled /v1/models."""
    status, models = endpoint["health"], tuple(endpoint["models"])
    if status == 200 or (models and status not in LOADING):
        return Health(state="healthy", status=status, models=models, reason="")
    if status in NO_ENTRY:
        reason = f"/health answered {status}: it asks for an API key, or doesn't accept this one"
        return Health(state="unhealthy", status=status, models=models, reason=reason)
    if status is None:
        reason = f"no answer ({endpoint['health_problem'] or 'connection refused'})"
        return Health(state="unknown", status=None, models=models, reason=reason)
    reason = f"/health answered {status}" + (", still loading" if status in LOADING else "")
    return Health(state="unhealthy", status=status, models=models, reason=reason)


def _probe_of(seen: dict[str, Any], target: Target, host_name: str) -> Probe:
    health = _health(seen["endpoint"])
    notes = [f"{field}: {problem}" for field, problem in sorted(seen["problems"].items())]
    model, failures = _chosen_model(health, seen, target, notes)
    process = _process(seen["process"])
    if process is not None and process.found_by == "name":
        notes.append("server process: found by its command line, not by the port it holds")
    base: dict[str, Any] = {
        "time": utc(seen["time"]),
        "epoch": seen["time"],
        "health": health,
        "model": model,
        "process": process,
        "host": host_name,
    }
    if "versions" not in seen:
        return Probe(**base, failures=tuple(failures), notes=tuple(notes))
    failures += [_other_load(other) for other in seen["others"]]
    if seen["peers"]:
        notes.append(
            f"{seen['peers']} connections to the endpoint were open before the start: what they"
            " ask is load beside ours"
        )
    repository = seen["repository"]
    failures += _wrong_checkout(repository, target)
    if repository.get("changed"):
        notes.append(
            f"{repository['path']} has uncommitted changes: the commit isn't all that runs"
        )
    fields: dict[str, Any] = {
        "engine": seen["engine"] or UNKNOWN,
        "engine_version": _engine_version(seen),
        "commit": repository.get("commit") or UNKNOWN,
        "branch": repository.get("branch") or UNKNOWN,
        "model_path": _model_path(process, seen, target),
        "versions": _versions(seen["versions"]),
        "hardware": _hardware(seen["hardware"], target),
        "machine": {key: str(value) for key, value in seen["machine"].items()},
    }
    fields["resource"] = _resource(fields["hardware"])
    notes += _unknown_fields(fields, notes)
    return Probe(**base, **fields, failures=tuple(failures), notes=tuple(notes))


def _unknown_fields(fields: dict[str, Any], notes: Sequence[str]) -> list[str]:
    """A line for each field of the report that nothing told and that no note explains yet."""
    explained = {note.partition(":")[0] for note in notes}
    found = []
    for name in ("engine", "engine_version", "commit", "branch", "model_path"):
        if fields[name] == UNKNOWN and "repository" not in explained:
            found.append(f"{name.replace('_', ' ')}: nothing on the host tells it")
    for label, value in fields["hardware"].items():
        if value == UNKNOWN:
            found.append(f"{label}: neither the server's environment nor the host tells it")
    wanted = {"TPU type": ("jax", "libtpu"), "GPU": ("torch",)}
    for label, packages in wanted.items():
        for name in packages if label in fields["hardware"] else ():
            if name not in fields["versions"] and "versions" not in explained:
                found.append(f"{name}: not installed in the environment that the server runs in")
    return found


def _chosen_model(
    health: Health, seen: dict[str, Any], target: Target, notes: list[str]
) -> tuple[str, list[str]]:
    place = f"{target.endpoint.url} on the target host"
    if health.state != "healthy":
        return target.model or UNKNOWN, [f"no healthy server at {place}: {health.reason}"]
    if not health.models:
        return target.model or UNKNOWN, [
            f"{place} lists no served model: {_no_models(seen, target)}"
        ]
    if target.model is None or target.model == health.models[0]:
        return health.models[0], []
    if target.model in health.models:
        notes.append(f"served model: {target.model} is listed, the first one is {health.models[0]}")
        return target.model, []
    return target.model, [
        f"{place} serves {health.models[0]!r}, and {target.model!r} was asked for (the server would"
        " answer under any name)"
    ]


def _no_models(seen: dict[str, Any], target: Target) -> str:
    status = seen["endpoint"]["models_status"]
    if status not in NO_ENTRY:
        return str(seen["endpoint"]["models_problem"])
    if target.endpoint.key_env is None:
        return f"it asks for an API key (status {status}): name the variable that holds it"
    return f"it doesn't accept the API key in {target.endpoint.key_env} (status {status})"


def _process(seen: dict[str, Any] | None) -> ServerProcess | None:
    if seen is None:
        return None
    environ = seen["environ"]
    return ServerProcess(
        pid=seen["pid"],
        user=seen["user"],
        args=_without_secrets(seen["args"]),
        started_ticks=seen["started_ticks"],
        started=seen["started"],
        exp_id=environ.get("EXP_ID") or environ.get("EXPERIMENT_ID"),
        found_by=seen["found_by"],
    )


def _without_secrets(args: Sequence[str]) -> tuple[str, ...]:
    kept: list[str] = []
    hide_next = False
    for arg in args:
        name, equals, _ = arg.partition("=")
        secret = arg.startswith("-") and SECRET_ARGUMENT.search(name) is not None
        if hide_next and not arg.startswith("-"):
            kept.append("***")
        else:
            kept.append(f"{name}=***" if secret and equals else arg)
        hide_next = secret and not equals
    return tuple(kept)


def _other_load(other: dict[str, Any]) -> str:
    return (
        f"another evaluation runs against the same endpoint: pid {other['pid']}, user"
        f" {other['user'] or UNKNOWN}: {' '.join(_without_secrets(other['args']))[:400]}"
    )


def _wrong_checkout(repository: dict[str, Any], target: Target) -> list[str]:
    failures = []
    commit, branch = repository.get("commit", ""), repository.get("branch", "")
    if target.commit and commit and not commit.startswith(target.commit):
        failures.append(
            f"{repository['path']} is at commit {commit}, and {target.commit} was asked for"
        )
    if target.branch and branch and branch != target.branch:
        failures.append(
            f"{repository['path']} is on branch {branch}, and {target.branch} was asked for"
        )
    return failures


def argument_of(args: Sequence[str], *names: str) -> str:
    """Value of a launch argument, written as `--name value` or `--name=value`; empty if absent."""
    for index, arg in enumerate(args):
        name, equals, value = arg.partition("=")
        if name in names:
            if equals:
                return value
            return args[index + 1] if index + 1 < len(args) else ""
    return ""


ENGINE_PACKAGES = {
    "sglang-jax": ("sgl-jax", "sglang-jax"),
    "sglang": ("sglang",),
    "vllm": ("vllm", "vllm-tpu"),
    "llama.cpp": ("xllamacpp", "llama-cpp-python"),
}
"""The distributions that an engine comes in."""

REPORTED_PACKAGES = (
    "jax",
    "jaxlib",
    "libtpu",
    "libtpu-nightly",
    "torch",
    "torch-xla",
    "transformers",
)


def _engine_version(seen: dict[str, Any]) -> str:
    packages = seen["versions"].get("packages", {})
    for name in ENGINE_PACKAGES.get(seen["engine"], ()):
        if name in packages:
            return str(packages[name]["version"])
    said = seen["engine_says"]
    return str(said.get("version") or said.get("build_info") or UNKNOWN)


def _versions(found: dict[str, Any]) -> dict[str, str]:
    packages = {name: str(entry["version"]) for name, entry in found.get("packages", {}).items()}
    return {"python": str(found.get("python", UNKNOWN)), **packages}


def _model_path(process: ServerProcess | None, seen: dict[str, Any], target: Target) -> str:
    args = process.args if process else ()
    # `python -m MODULE` names no model: -m does for llama.cpp's own program alone.
    names = ["--model-path", "--model_path", "--model"]
    names += ["-m"] if args and "llama-server" in args[0] else []
    found = [argument_of(args, name) for name in names]
    if "serve" in args:  # vllm serve MODEL
        found.append(argument_of(args, "serve"))
    return next(filter(None, found), "") or str(
        seen["engine_says"].get("model_path") or target.model_path or UNKNOWN
    )


def _hardware(seen: dict[str, Any], target: Target) -> dict[str, str]:
    """The accelerator by its own labels: TPU fields, or GPU fields, or the CPU."""
    if target.tpu_type or seen["tpu_type"] or seen["tpu_chips"]:
        return {
            "TPU type": target.tpu_type or seen["tpu_type"] or UNKNOWN,
            "Topology": target.topology or seen["tpu_topology"] or UNKNOWN,
            "Chips": str(target.chips or seen["tpu_chips"] or UNKNOWN),
        }
    if seen["gpus"]:
        names = [gpu[0] for gpu in seen["gpus"]]
        return {
            "GPU": ", ".join(f"{names.count(name)} x {name}" for name in sorted(set(names))),
            "GPU memory": seen["gpus"][0][1] if len(seen["gpus"][0]) > 1 else UNKNOWN,
            "Driver": seen["gpus"][0][2] if len(seen["gpus"][0]) > 2 else UNKNOWN,
        }
    if target.gpu:
        return {"GPU": target.gpu}
    return {"CPU": seen["cpu"] or UNKNOWN, "Cores": str(seen["cores"] or UNKNOWN)}


def _resource(hardware: dict[str, str]) -> str:
    if "TPU type" in hardware:
        return f"TPU {hardware['TPU type']}"
    return f"GPU {hardware['GPU']}" if "GPU" in hardware else f"CPU {hardware['CPU']}"

"""Everything that is particular to evalscope: installing it, its command, what it leaves behind."""

from __future__ import annotations

import hashlib
import json
import re
import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean
from typing import Any

from benchwright.errors import StageFailed
from domains.serving.host import Host
from domains.serving.key import OPENAI
from domains.serving.request import AccuracyRequest, Dataset, Record

FORM_FAULT = re.compile(
    r"generation[-_ ]config.*(invalid|must|expect|could not|cannot|error|pars)"
    r"|JSONDecodeError|Expecting (value|property name)|not a valid (JSON|dict)",
    re.IGNORECASE,
)
"""What a version says that wants the generation configuration as key=value."""

INSTALL_S = 1800.0
"""The tool is 112 packages, 786 MB."""

INSTALL = r"""
python_of() {  # the Python beside a program, else the one that its first line names
    beside=$(dirname "$(readlink -f "$1")")/python
    if [ -x "$beside" ]; then echo "$beside"; else head -n 1 "$1" | sed -n 's/^#!//p'; fi
}
fits() {  # a program: prints its version where it runs in a Python of its own
    [ -x "$1" ] || return 1
    "$(python_of "$1")" -c 'import sys
from importlib.metadata import version
from importlib.util import find_spec
if sys.argv[1] and find_spec(sys.argv[1]) is None: sys.exit(3)
print(version("evalscope"))' "$needs" 2>/dev/null
}
report() {
    printf 'program=%s\nversion=%s\ninstalled=%s\npython=%s\n' "$1" "$2" "$3" "$(python_of "$1")"
    exit 0
}
if [ -n "$given" ]; then
    version=$(fits "$given") || { echo "$given is no evalscope that runs" >&2; exit 1; }
    report "$given" "$version" no
fi
root=${tool_dir:-${XDG_DATA_HOME:-$HOME/.local/share}/benchwright/evalscope-$wanted}
for program in "$root/evalscope/bin/evalscope" "$(command -v evalscope)"; do
    [ "$(fits "$program")" = "$wanted" ] && report "$program" "$wanted" no
done
mkdir -p "$root" || exit 1
exec 9>"$root/.install.lock" && flock 9
ours=$root/evalscope/bin/evalscope
[ "$(fits "$ours")" = "$wanted" ] && report "$ours" "$wanted" no
uv=$(command -v uv) || uv=$HOME/.local/bin/uv
if ! [ -x "$uv" ]; then
    # An environment of its own: the system's Python and the user's stay as they are.
    uv=$root/uv/bin/uv
    if ! [ -x "$uv" ]; then
        python3 -m venv "$root/uv" >&2 && "$root/uv/bin/pip" install -q uv >&2 || exit 1
    fi
fi
export UV_TOOL_DIR=$root UV_TOOL_BIN_DIR=$root/bin
"$uv" tool install --force "evalscope[perf]==$wanted" >&2 || exit 1
version=$(fits "$ours") || exit 1
report "$ours" "$version" yes
"""


class Tool(Record):
    """An evalscope that runs on the host."""

    program: str
    version: str
    installed: bool
    """Whether it was installed just now."""
    python: str
    """The Python that it runs in."""


def ensure(
    host: Host,
    *,
    wanted: str,
    given: str | None,
    tool_dir: str | None,
    needs: str = "",
    say: Callable[[str], None] = lambda _: None,
) -> Tool:
    """Find evalscope on the host, or install it there with uv, in an environment of its own.

    Args:
        host: Where.
        wanted: The pinned version.
        given: Path of a program to use as it is.
        tool_dir: Where it is kept; left out: a folder of its own for each version.
        needs: A module that must be there too, such as `uvicorn` for `evalscope perf`.
        say: Receives progress.

    Raises:
        StageFailed: It isn't there and can't be installed.
    """
    say(f"looking for evalscope {wanted} on {host.name} (it is installed where missing)")
    settings = "".join(
        f"{name}={shlex.quote(value or '')}\n"
        for name, value in (
            ("wanted", wanted),
            ("given", given),
            ("tool_dir", tool_dir),
            ("needs", needs),
        )
    )
    ran = host.run(settings + INSTALL, timeout_s=INSTALL_S)
    said = dict(line.partition("=")[::2] for line in ran.text.splitlines())
    if not ran.ok or "program" not in said:
        raise StageFailed(
            f"evalscope {wanted} is not on {host.name} and can't be installed there",
            hint=ran.error_text.splitlines()[-1] if ran.error_text else None,
        )
    return Tool(
        program=said["program"],
        version=said["version"],
        installed=said["installed"] == "yes",
        python=said["python"],
    )


def model_id(model: str) -> str:
    """A name for folders that keeps the whole id: orgA/m and orgB/m stay two models."""
    safe = re.sub(r"[^A-Za-z0-9.-]", "_", model.strip("/").replace("/", "--"))
    safe = re.sub(r"_+", "_", safe).strip("._") or "model"
    if safe.replace("--", "/") == model:
        return safe
    return f"{safe}-{hashlib.sha256(model.encode()).hexdigest()[:6]}"


def eval_command(
    tool: Tool,
    request: AccuracyRequest,
    dataset: Dataset,
    model: str,
    *,
    data: str | None,
    output: str,
    key_value: bool = False,
    launcher: str | None = None,
) -> list[str]:
    """The command of one dataset.

    Args:
        tool: The program.
        request: What was asked.
        dataset: The set.
        model: The served id.
        data: Folder of the set's data on the host; None: from the hub.
        output: A new work directory on the host.
        key_value: Write the generation configuration as key=value for an old version.
        launcher: The program on the host that hands over the endpoint's API key, where it has one.
    """
    evaluate = request.evaluate
    command = [
        *keyed(tool, launcher),
        "eval",
        *("--model", model),
        *("--model-id", model_id(model)),
        *("--eval-type", "openai_api"),
        *("--api-url", f"{request.target.endpoint.url}/v1/chat/completions"),
        *(() if launcher else ("--api-key", "EMPTY")),
        *("--datasets", dataset.adapter),
        *("--generation-config", _generation(request.generation_config, key_value)),
        *("--eval-batch-size", str(evaluate.batch_size)),
        *("--seed", str(evaluate.seed)),
        *("--work-dir", output),
        # A sample that fails must not take the others with it; our checks count it.
        *("--no-timestamp", "--ignore-errors"),
    ]
    args = dict(dataset.args)
    if data is not None:
        args["local_path" if dataset.adapter.startswith("general_") else "dataset_id"] = data
    if args:
        command += ["--dataset-args", json.dumps({dataset.adapter: args}, ensure_ascii=False)]
    if evaluate.limit is not None:
        command += ["--limit", f"{evaluate.limit:g}"]
    if evaluate.repeats > 1:
        command += ["--repeats", str(evaluate.repeats)]
    return command


def keyed(tool: Tool, launcher: str | None) -> tuple[str, ...]:
    """How the tool is started: by the launcher where an API key has to be handed over."""
    return (tool.python, launcher, tool.program) if launcher else (tool.program,)


def _generation(config: Mapping[str, Any], key_value: bool) -> str:
    if not key_value:
        return json.dumps(config)
    return ",".join(f"{key}={value}" for key, value in config.items())


def takes_key_value(config: Mapping[str, Any]) -> bool:
    """Whether key=value can carry the configuration: it splits at each comma."""
    return all(
        isinstance(value, int | float | bool | str) and "," not in str(value)
        for value in config.values()
    )


def script_of(command: Sequence[str], *, openai: bool = False) -> str:
    """A bash script that runs one command, an option a line, so that a person can read it.

    Args:
        command: The words.
        openai: Whether the program looks for its API key in OPENAI_API_KEY.
    """
    exports = {"PYTHONUNBUFFERED": "1", "NO_COLOR": "1", "COLUMNS": "200"}
    head = "".join(f"export {name}={shlex.quote(value)}\n" for name, value in exports.items())
    if openai:
        head += OPENAI
    return f"#!/usr/bin/env bash\n{head}exec {in_lines(command)}\n"


def in_lines(command: Sequence[str]) -> str:
    """A command as a shell takes it, an option a line."""
    lines = [shlex.quote(command[0])]
    for word in command[1:]:
        if word.startswith("--"):
            lines.append(shlex.quote(word))
        else:
            lines[-1] += " " + shlex.quote(word)
    return " \\\n  ".join(lines)


def is_form_fault(log: str, code: int | None) -> bool:
    """Whether a failed command was refused for its form: before any request was sent."""
    return code not in (0, None) and FORM_FAULT.search(log) is not None


@dataclass(slots=True)
class Answers:
    """What the predictions say of the answers.

    Attributes:
        count: Number of answers.
        empty, truncated: Answers without text, and answers cut at the limit of tokens.
        models: Names that the answers came under, with their counts.
        latency_s, input_tokens, output_tokens: Means; None where they weren't collected.
        output_tok_s: Output tokens a second of a request, averaged over the requests.
    """

    count: int = 0
    empty: int = 0
    truncated: int = 0
    models: dict[str, int] = field(default_factory=dict)
    latency_s: float | None = None
    input_tokens: float | None = None
    output_tokens: float | None = None
    output_tok_s: float | None = None


@dataclass(slots=True)
class EvalReport:
    """What evalscope's own report says; `problem` where it can't be understood."""

    file: Path | None = None
    problem: str = ""
    metric: str = ""
    score: float | None = None
    num: int | None = None
    requested: int | None = None
    succeeded: int | None = None
    errored: int | None = None
    incomplete: bool | None = None
    dataset: str = ""
    model: str = ""


@dataclass(slots=True)
class EvalOutput:
    """All that one `evalscope eval` left behind."""

    report: EvalReport
    items: dict[str, list[float]]
    """Outcome by item id, from the reviews."""
    review_problem: str
    answers: Answers
    version: str
    """evalscope's version as its own configuration says."""
    evaluation_version: str
    """The version of the benchmark's scoring."""
    prompt_digest: str
    """Of what shapes the prompts beside the data: templates, shots, splits."""
    revision: str
    """Of the dataset in its hub; empty where it has none."""
    effective: dict[str, Any]
    """Values that evalscope says it used, under our parameters' names."""


def read_output(output: Path, adapter: str, safe_model: str) -> EvalOutput:
    """Read an output directory, tolerantly: what can't be understood is said, never guessed."""
    report = _read_report(output, adapter, safe_model)
    items, problem = _read_reviews(output / "reviews" / safe_model, adapter, report.metric)
    config = _read_config(output / "configs" / "task_config.yaml")
    benchmarks = (config.get("evaluation_identity") or {}).get("benchmarks") or {}
    spec = dict((config.get("resolved_benchmarks") or {}).get(adapter) or {})
    revision = spec.pop("dataset_revision", None)
    for place in ("dataset_id", "dataset_hub"):
        spec.pop(place, None)
    spec.pop("extra_params", None) if not spec.get("extra_params") else None
    digest = hashlib.sha256(json.dumps(spec, sort_keys=True, default=str).encode()).hexdigest()
    return EvalOutput(
        report=report,
        items=items,
        review_problem=problem,
        answers=_read_predictions(output / "predictions" / safe_model, adapter),
        version=str(config.get("evalscope_version") or ""),
        evaluation_version=str((benchmarks.get(adapter) or {}).get("evaluation_version") or ""),
        prompt_digest=digest[:16] if spec else "",
        revision=str(revision or ""),
        effective=_effective(config),
    )


def _effective(config: Mapping[str, Any]) -> dict[str, Any]:
    """What the run's own configuration says, by the names that our parameters have."""
    if not config:
        return {}
    used = {
        f"generation.{key}": value
        for key, value in (config.get("generation_config") or {}).items()
        if key != "batch_size" and isinstance(value, int | float | str | bool)
    }
    for ours, theirs in (
        ("batch_size", "eval_batch_size"),
        ("repeats", "repeats"),
        ("seed", "seed"),
    ):
        if theirs in config:
            used[f"evaluate.{ours}"] = config[theirs]
    if config.get("limit") is not None:
        used["evaluate.limit"] = config["limit"]
    if config.get("evalscope_version"):
        used["evaluate.evalscope_version"] = str(config["evalscope_version"])
    return used


def _read_report(output: Path, adapter: str, safe_model: str) -> EvalReport:
    file = output / "reports" / safe_model / f"{adapter}.json"
    if not file.is_file():
        others = sorted(str(p.relative_to(output)) for p in output.glob("reports/*/*.json"))
        problem = "no report was written"
        if others:
            problem = f"no report of this model and dataset; there is {', '.join(others)}"
        return EvalReport(problem=problem)
    try:
        said = json.loads(file.read_text(encoding="utf-8"))
        return _parse_report(file, said)
    except (ValueError, KeyError, TypeError, AttributeError, IndexError) as problem:
        return EvalReport(file=file, problem=f"{file.name} can't be understood: {problem!r}")


def _parse_report(file: Path, said: dict[str, Any]) -> EvalReport:
    version = said.get("schema_version", 1)
    if version not in (1, 2):
        return EvalReport(
            file=file, problem=f"{file.name} has schema version {version}, not 1 or 2"
        )
    summary = said.get("execution_summary") or {}
    report = EvalReport(
        file=file,
        requested=summary.get("requested"),
        succeeded=summary.get("succeeded"),
        errored=summary.get("errored"),
        incomplete=summary.get("incomplete"),
        dataset=str(said.get("dataset_name", "")),
        model=str(said.get("model_name", "")),
    )
    metrics = said["metrics"]
    if not metrics:
        report.problem = "the report has no metric: no sample was scored"
        return report
    chosen = metrics[0]
    primary = said.get("primary_metric_identity")
    for metric in metrics:
        if primary is not None and metric.get("identity") == primary:
            chosen = metric
    identity = chosen.get("identity") or {}
    report.metric = str(identity.get("name") or chosen.get("name") or "score")
    score = chosen["score"]
    if isinstance(score, bool) or not isinstance(score, int | float) or score != score:
        report.problem = f"the score of {report.metric} is {score!r}, no finite number"
        return report
    report.score, report.num = float(score), int(chosen["num"])
    return report


def _read_reviews(folder: Path, adapter: str, metric: str) -> tuple[dict[str, list[float]], str]:
    """Outcomes by item id: subset, position, and a digest of the question and its target.

    The digest keeps items of two versions of a set apart where their positions agree.
    """
    items: dict[str, list[float]] = {}
    for file in sorted(folder.glob(f"{adapter}_*.jsonl")):
        subset = file.stem.removeprefix(f"{adapter}_")
        for number, line in enumerate(file.read_text(encoding="utf-8").splitlines(), 1):
            try:
                review = json.loads(line)
                scored = review["sample_score"]
                if scored["score"].get("status", "success") != "success":
                    continue
                values = scored["score"]["value"]
                name = scored["score"].get("main_score_name") or metric
                value = float(values[name] if name in values else next(iter(values.values())))
                position = scored.get("group_id", scored.get("sample_id", review["index"]))
            except (ValueError, KeyError, TypeError, StopIteration) as problem:
                return items, f"{file.name}:{number} can't be understood: {problem!r}"
            asked = [
                m.get("content") for m in review.get("messages", []) if m.get("role") != "assistant"
            ]
            text = json.dumps([asked, review.get("target")], sort_keys=True)
            digest = hashlib.sha256(text.encode()).hexdigest()[:8]
            items.setdefault(f"{subset}/{position}#{digest}", []).append(value)
    return dict(sorted(items.items())), "" if items else "no review was written"


def _read_predictions(folder: Path, adapter: str) -> Answers:
    answers = Answers()
    latency: list[float] = []
    speed: list[float] = []
    tokens: dict[str, list[float]] = {"input_tokens": [], "output_tokens": []}
    for file in sorted(folder.glob(f"{adapter}_*.jsonl")):
        for line in file.read_text(encoding="utf-8").splitlines():
            try:
                output = json.loads(line)["model_output"]
                choice = output["choices"][0]
            except (ValueError, KeyError, TypeError, IndexError):
                continue
            answers.count += 1
            message = choice.get("message") or {}
            answers.empty += not _plain_text(message.get("content")) and not message.get(
                "tool_calls"
            )
            answers.truncated += choice.get("stop_reason") in (
                "max_tokens",
                "length",
                "model_length",
            )
            model = str(output.get("model") or "")
            answers.models[model] = answers.models.get(model, 0) + 1
            usage = output.get("usage") or {}
            for name, values in tokens.items():
                if isinstance(usage.get(name), int | float):
                    values.append(float(usage[name]))
            if isinstance(output.get("time"), int | float) and output["time"] > 0:
                latency.append(float(output["time"]))
                if isinstance(usage.get("output_tokens"), int | float):
                    speed.append(float(usage["output_tokens"]) / float(output["time"]))
    answers.latency_s = fmean(latency) if latency else None
    answers.output_tok_s = fmean(speed) if speed else None
    answers.input_tokens = fmean(tokens["input_tokens"]) if tokens["input_tokens"] else None
    answers.output_tokens = fmean(tokens["output_tokens"]) if tokens["output_tokens"] else None
    return answers


def _plain_text(content: Any) -> str:
    if isinstance(content, list):
        return "".join(
            str(part.get("text", "")) for part in content if isinstance(part, dict)
        ).strip()
    return str(content or "").strip()


def _read_config(file: Path) -> dict[str, Any]:
    from ruamel.yaml import YAML
    from ruamel.yaml.error import YAMLError

    try:
        loaded = YAML(typ="safe", pure=True).load(file.read_text(encoding="utf-8"))
    except (OSError, YAMLError):
        return {}
    return loaded if isinstance(loaded, dict) else {}

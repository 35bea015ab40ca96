"""The accuracy report: one set of facts, as Markdown in its fixed shape, as JSON, as HTML."""

from __future__ import annotations

import html
import json
import re
from pathlib import Path
from typing import Any

from domains.serving import scoring
from domains.serving.probe import UNKNOWN, Probe
from domains.serving.request import AccuracyRequest
from domains.serving.results import DatasetResult, Evaluation
from domains.serving.validate import Validation


def status_lines(
    state: str,
    probe: Probe | None,
    endpoint: str,
    *,
    evalscope: str | None,
    radix_cache: str | None = None,
) -> list[str]:
    """The Status section, the same in both reports but for two lines.

    Args:
        state: success, partial or failed.
        probe: What was seen of the server; None: nothing.
        endpoint: Base address.
        evalscope: The evaluator's version for an accuracy report; None: a speed report, which has
            the label `engine` and no evalscope.
        radix_cache: Stands after the server id in a speed report.
    """
    process = probe.process if probe else None
    lines = [
        "## Status",
        "",
        f"- State: {state}",
        f"- Target resource: {probe.resource if probe else UNKNOWN}",
        f"- Endpoint: {endpoint}",
        f"- Model path: {probe.model_path if probe else UNKNOWN}",
        f"- Server: {probe.health.state if probe else UNKNOWN}",
        f"- Server id: {probe.server if probe else UNKNOWN}",
    ]
    if radix_cache is not None:
        lines.append(f"- Radix cache: {radix_cache}")
    hardware = probe.hardware if probe else {}
    labels = hardware or {"TPU type": UNKNOWN, "Topology": UNKNOWN, "Chips": UNKNOWN}
    lines.append("- Hardware:")
    lines += [f"  - {label}: {value}" for label, value in labels.items()]
    lines.append("- Versions:")
    lines += [f"  - {label}: {value}" for label, value in _versions(probe, evalscope)]
    lines += [
        "- Server launch args:",
        "",
        *fence(probe.launch_args if process and probe else UNKNOWN),
    ]
    return lines


def _versions(probe: Probe | None, evalscope: str | None) -> list[tuple[str, str]]:
    if probe is None:
        label = "engine" if evalscope is None else "sglang-jax"
        rows = [(label, f"{UNKNOWN} @ {UNKNOWN} ({UNKNOWN})")]
        versions: dict[str, str] = {}
        accelerator = "TPU type"
    else:
        engine = probe.engine if probe.engine != UNKNOWN else "engine"
        label = "engine" if evalscope is None else engine
        said = f"{probe.engine_version} @ {probe.commit} ({probe.branch})"
        rows = [(label, said if label != "engine" else f"{probe.engine} {said}")]
        versions = probe.versions
        accelerator = next(iter(probe.hardware), "")
    if evalscope is not None:
        rows.append(("evalscope", evalscope))
    if accelerator == "TPU type":
        rows.append(("jax", versions.get("jax", UNKNOWN)))
        rows.append(("libtpu", versions.get("libtpu") or versions.get("libtpu-nightly", UNKNOWN)))
    elif accelerator == "GPU":
        torch = versions.get("torch", UNKNOWN)
        rows += [("torch", torch), ("CUDA", _cuda(versions, torch))]
    return rows


def _cuda(versions: dict[str, str], torch: str) -> str:
    """From the runtime's package, else from the build that torch's version names."""
    for name in ("nvidia-cuda-runtime-cu13", "nvidia-cuda-runtime-cu12", "nvidia-cuda-runtime"):
        if name in versions:
            return versions[name]
    built = re.search(r"\+cu(\d+)(\d)$", torch)
    return f"{built[1]}.{built[2]}" if built else UNKNOWN


def fence(text: str) -> list[str]:
    """A code block whose fence is longer than any run of backticks in it."""
    longest = max((len(run) for run in re.findall(r"`+", text)), default=0)
    fence = "`" * max(3, longest + 1)
    return [fence, text, fence, ""]


def markdown(
    request: AccuracyRequest,
    probe: Probe | None,
    evaluation: Evaluation | None,
    verdict: Validation,
) -> str:
    """The report in its fixed shape and order."""
    version = (evaluation.evaluator_version if evaluation else "") or UNKNOWN
    if evaluation is not None and evaluation.evaluator not in ("", "evalscope"):
        version = f"not used ({evaluation.evaluator} {version})"
    lines = [
        "# Benchmark",
        "",
        *status_lines(verdict.state, probe, request.target.endpoint.url, evalscope=version),
        "## Accuracy Benchmark",
        "",
    ]
    for result in evaluation.datasets if evaluation else ():
        lines += _dataset(result, verdict)
    for spec in request.evaluate.datasets:
        name = spec.partition("=")[0]
        if not any(result.name == name for result in (evaluation.datasets if evaluation else ())):
            lines += [f"### {name}", "", "Not evaluated; see Notes.", ""]
    lines += ["## Notes", ""]
    lines += [f"- {note}" for note in unique(verdict.notes)] or ["None"]
    return "\n".join(lines) + "\n"


def unique(notes: tuple[str, ...]) -> list[str]:
    """Each note once, on one line, in order."""
    return list(dict.fromkeys(note.replace("\n", " ") for note in notes))


def score_of(result: DatasetResult) -> scoring.Score:
    """The dataset's score with its interval.

    From the items' outcomes; from the reported share and count where there are none.
    """
    if result.items:
        return scoring.score(result.items)
    if result.score is None:
        return scoring.Score(None, None, None, 0, 0, None, "no score")
    from benchwright.judgement.statistics import wilson

    if not result.num or not 0 <= result.score <= 1:
        return scoring.Score(result.score, None, None, 0, 0, None, "unknown: no count")
    low, high = wilson(result.score, result.num)
    return scoring.Score(
        result.score, low, high, result.num, result.num, round(result.score * result.num), "Wilson"
    )


def _dataset(result: DatasetResult, verdict: Validation) -> list[str]:
    found = score_of(result)
    judged = verdict.of(result.name)
    count = UNKNOWN if result.num is None else str(result.num)
    correct = UNKNOWN if found.correct is None else f"{found.correct}/{found.samples}"
    lines = [
        f"### {result.name}",
        "",
        *fence(result.command),
        "| Dataset | Metric | Sample count | Correct | Score |",
        "| --- | --- | --- | --- | --- |",
        row(result.name, result.metric or UNKNOWN, count, correct, _number(result.score)),
        "",
    ]
    if result.latency_s is not None:
        lines += [
            "| Average latency (s) | Average throughput (tok/s) | Average input (tok) |"
            " Average output (tok) |",
            "| --- | --- | --- | --- |",
            row(
                _number(result.latency_s, 3),
                _number(result.output_tok_s, 2),
                _number(result.input_tokens, 1),
                _number(result.output_tokens, 1),
            ),
            "",
        ]
    interval = UNKNOWN
    if found.low is not None and found.high is not None:
        interval = f"{found.low:.4f} to {found.high:.4f} ({found.method})"
    lines += [
        "| State | n (items) | 95 % interval | Errors | Empty | Truncated | Scoring version |"
        " Dataset version |",
        "| --- | --- | --- | --- | --- | --- | --- | --- |",
        row(
            judged.state,
            str(found.items) if found.items else UNKNOWN,
            interval,
            _of(result.errored, result.requested),
            _of(result.empty, result.answers),
            _of(result.truncated, result.answers),
            f"{result.evaluator} {result.evaluator_version or UNKNOWN},"
            f" {result.evaluation_version or UNKNOWN}",
            dataset_version(result),
        ),
        "",
        f"Artifacts: {result.artifacts} (on the host: {result.work_dir})",
        "",
    ]
    return lines


def dataset_version(result: DatasetResult) -> str:
    """The set's own version and its content's digest, as far as each is known."""
    parts = [result.set_version, result.data_digest and f"sha256:{result.data_digest[:12]}"]
    return ", ".join(part for part in parts if part) or UNKNOWN


def _of(count: int | None, total: int | None) -> str:
    if count is None:
        return UNKNOWN
    return f"{count}/{total}" if total else str(count)


def _number(value: float | None, digits: int = 4) -> str:
    return UNKNOWN if value is None else f"{value:.{digits}f}"


def row(*cells: str) -> str:
    """A row of a Markdown table."""
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def facts(
    request: AccuracyRequest,
    probe: Probe | None,
    evaluation: Evaluation | None,
    verdict: Validation,
) -> dict[str, Any]:
    """The report as JSON values."""
    datasets = []
    for result in evaluation.datasets if evaluation else ():
        found = score_of(result)
        judged = verdict.of(result.name)
        shown = result.model_dump(
            mode="json", exclude={"items", "server_after", "log_tail", "notes", "effective"}
        )
        datasets.append(
            {
                **shown,
                "state": judged.state.value,
                "n": found.items,
                "correct": found.correct,
                "interval": None if found.low is None else [found.low, found.high],
                "interval_method": found.method,
                "checks": [check.model_dump(mode="json") for check in judged.checks],
            }
        )
    return {
        "state": verdict.state.value,
        "endpoint": request.target.endpoint.url,
        "server": probe.model_dump(mode="json") if probe else None,
        "evaluator": evaluation.evaluator if evaluation else None,
        "evaluator_version": evaluation.evaluator_version if evaluation else None,
        "work_dir": evaluation.work_dir if evaluation else None,
        "datasets": datasets,
        "notes": unique(verdict.notes),
    }


def write(folder: Path, text: str, values: dict[str, Any], page: str) -> dict[str, str]:
    """Write report.md, report.json and report.html into a folder; their names by kind."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in (
        ("report.md", text),
        ("report.json", json.dumps(values, indent=1, ensure_ascii=False)),
        ("report.html", page),
    ):
        part = folder / f"{name}.part"
        part.write_text(content, encoding="utf-8")
        part.replace(folder / name)
    return {kind: f"report.{kind}" for kind in ("md", "json", "html")}


STYLE = """
body{font:15px/1.5 system-ui,sans-serif;max-width:62rem;margin:2rem auto}
body{padding:0 1rem;color:#1b1f24}
table{border-collapse:collapse;margin:.6rem 0}
td,th{border:1px solid #d0d7de;padding:.3rem .7rem;text-align:left}
th{background:#f6f8fa}pre{background:#f6f8fa;padding:.7rem;overflow:auto;white-space:pre-wrap}
.success{color:#116329}.partial{color:#7d4e00}.failed{color:#a40e26}h1 small{font-weight:normal}
figure{margin:1rem 0}figcaption{color:#57606a;font-size:13px}
svg text{font:12px system-ui,sans-serif}
"""


def page(title: str, state: str, text: str, pictures: str = "") -> str:
    """The Markdown report as a self-contained HTML page; nothing is fetched from anywhere."""
    from markdown_it import MarkdownIt

    body = MarkdownIt("commonmark", {"html": False}).enable("table").render(text)
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{html.escape(title)}: {html.escape(state)}</title><style>{STYLE}</style></head>"
        f'<body class="report"><p class="{html.escape(state)}"><strong>{html.escape(title)}:'
        f" {html.escape(state)}</strong></p>{pictures}{body}</body></html>"
    )


def figure(picture: str, caption: str) -> str:
    """A picture with what it shows; empty for none."""
    if not picture:
        return ""
    return f"<figure>{picture}<figcaption>{html.escape(caption)}</figcaption></figure>"


def score_picture(evaluation: Evaluation | None) -> str:
    """Each dataset's score with its interval, as a small SVG."""
    rows = [
        (result.name, score_of(result))
        for result in (evaluation.datasets if evaluation else ())
        if result.score is not None
    ]
    rows = [(name, found) for name, found in rows if found.value is not None]
    if not rows:
        return ""
    left, width, step = 180, 480, 34
    height = step * len(rows) + 30
    parts = [
        f'<svg role="img" aria-label="scores with 95 % intervals" width="{left + width + 40}"'
        f' height="{height}">'
    ]
    for tick in (0, 0.25, 0.5, 0.75, 1):
        x = left + width * tick
        parts.append(
            f'<line x1="{x}" x2="{x}" y1="0" y2="{height - 22}" stroke="#d0d7de"/>'
            f'<text x="{x}" y="{height - 6}" text-anchor="middle">{tick:g}</text>'
        )
    for index, (name, found) in enumerate(rows):
        y = step * index + step / 2
        value = left + width * min(max(found.value or 0.0, 0.0), 1.0)
        parts.append(
            f'<text x="{left - 10}" y="{y + 4}" text-anchor="end">{html.escape(name)}</text>'
        )
        if found.low is not None and found.high is not None:
            low, high = left + width * found.low, left + width * found.high
            parts.append(
                f'<line x1="{low:.1f}" x2="{high:.1f}" y1="{y}" y2="{y}" stroke="#0969da"'
                ' stroke-width="3"/>'
            )
        parts.append(f'<circle cx="{value:.1f}" cy="{y}" r="5" fill="#0969da"/>')
    return figure("".join(parts) + "</svg>", "Each score with its 95 % interval")

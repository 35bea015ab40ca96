"""The written form of a run: which of its facts lie in which file, and how they are read back.

Three files hold what isn't a replicate. `config.yaml` is what was asked, `launch.json` what was
known when it was created and never changes, `results.yaml` what became of it. The head of
`results.yaml` is one line for each fact that the index shows, so that a row costs a few lines of
reading, however large the rest is.
"""

from __future__ import annotations

import contextlib
import hashlib
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchwright.errors import BadInput, Where
from benchwright.record.run import SCHEMA, RunRecord, Status
from benchwright.spec.source import Document, dump_yaml, parse_written, written

if TYPE_CHECKING:
    from pydantic import TypeAdapter

    from benchwright.execution.sample import PrepResult, Sample
    from benchwright.judgement.verdict import ArmSummary, Finding, Judgement
    from benchwright.spec.manifest import Manifest
    from benchwright.spec.model import BenchmarkConfig

_AFTER_HEAD = "\narms:"
"""The first key of `results.yaml` that isn't part of its head."""
_AFTER_ARMS = "\ncache:"
"""The key that follows the summaries of the arms."""

MOST_CONFIGS = 256
_CONFIGS: dict[str, BenchmarkConfig] = {}
"""Configurations by their text: the runs before a run have mostly the same, it is looked at several
times, and reading YAML costs milliseconds. What they mean is frozen."""

_NOT_WRITABLE = re.compile("[\x00\ud800-\udfff]")

_SUMMARY_FIELDS = ("n", "mean", "median", "min", "max", "spread")


@dataclass(frozen=True, slots=True)
class Launch:
    """What is known of a run when it is created; `launch.json`.

    The attributes are those of `RunView` and `RunRecord` of the same names.
    """

    run_id: str
    created: str
    config_hash: str
    manifest: Manifest
    host: str
    domain_version: str = ""
    folders: Mapping[str, str] = field(default_factory=dict)
    overrides: Mapping[str, str] = field(default_factory=dict)
    lessons: tuple[str, ...] = ()
    expected_effect: str = ""
    expected: int | None = None
    command: tuple[str, ...] = ()
    cwd: str = ""


@dataclass(frozen=True, slots=True)
class Results:
    """What became of a run; `results.yaml`.

    The attributes are those of `RunView` and `RunRecord` of the same names.
    """

    status: Status
    finished: str
    error: str
    judgement: Judgement | None
    prep: tuple[PrepResult, ...]
    findings: tuple[Finding, ...]
    fingerprint: Mapping[str, str]
    steps: Mapping[str, Any]
    extra: Mapping[str, Any]


@cache
def _adapter(name: str) -> TypeAdapter[Any]:
    """The reader and writer of a type, made once: pydantic knows our dataclasses as they are."""
    from pydantic import TypeAdapter

    return TypeAdapter(_types()[name])


def prepare() -> None:
    """Make all readers and writers; without it, each is made when it is first needed."""
    for name in _types():
        _adapter(name)


@cache
def _types() -> dict[str, Any]:
    """The types that have a written form, by the names of this module."""
    from benchwright.execution.sample import PrepResult, Sample
    from benchwright.judgement.verdict import ArmSummary, Finding, Judgement
    from benchwright.spec.manifest import Manifest
    from benchwright.spec.model import BenchmarkConfig

    # A dataclass of this module names these types for the type checker only.
    return {
        "Sample": Sample,
        "Judgement": Judgement,
        "PrepResults": tuple[PrepResult, ...],
        "Findings": tuple[Finding, ...],
        "BenchmarkConfig": BenchmarkConfig,
        "Manifest": Manifest,
        "Summaries": dict[str, dict[str, ArmSummary]],
        "Texts": dict[str, str],
        "Words": tuple[str, ...],
        "Count": int | None,
        "Status": Status,
    }


def plain(name: str, value: Any) -> Any:
    """A value of a contract type as plain data."""
    return _adapter(name).dump_python(value, mode="json")


def _value(name: str, data: Any, source: Document, key: tuple[str | int, ...] = ()) -> Any:
    """Plain data as a contract type. Raises BadInput, naming file, line and key."""
    from pydantic import ValidationError

    try:
        return _adapter(name).validate_python(data)
    except ValidationError as error:
        first = error.errors()[0]
        raise BadInput(
            f"can't be understood: {first['msg']}",
            where=source.where((*key, *first["loc"])),
            hint="the file was changed by hand or is damaged; no other run depends on it",
        ) from error


def read_config(text: str, path: Path) -> BenchmarkConfig:
    """The frozen configuration in the text of `config.yaml`. Raises BadInput."""
    known = _CONFIGS.get(text)
    if known is None:
        source = parse_written(text, path)
        known = _value("BenchmarkConfig", source.data, source)
        if len(_CONFIGS) < MOST_CONFIGS:
            _CONFIGS[text] = known
    return known


def write_config(config: BenchmarkConfig) -> str:
    """The text of `config.yaml`: the whole configuration, defaults included."""
    return dump_yaml(config.model_dump(mode="json"))


def write_launch(launch: Launch) -> str:
    """The text of `launch.json`."""
    import json

    return json.dumps(
        {
            "schema": SCHEMA,
            "run_id": launch.run_id,
            "created": launch.created,
            "config_hash": launch.config_hash,
            "host": launch.host,
            "domain_version": launch.domain_version,
            "folders": dict(launch.folders),
            "overrides": dict(launch.overrides),
            "lessons": list(launch.lessons),
            "expected_effect": launch.expected_effect,
            "expected": launch.expected,
            "command": list(launch.command),
            "cwd": launch.cwd,
            "manifest": launch.manifest.model_dump(mode="json"),
        },
        indent=2,
        ensure_ascii=False,
    )


def read_launch(text: str, path: Path) -> Launch:
    """The facts in the text of `launch.json`. Raises BadInput."""
    import json

    try:
        data = json.loads(text)
    except json.JSONDecodeError as error:
        raise BadInput(
            f"can't be read as JSON: {error.msg}", where=Where(path, error.lineno)
        ) from error
    if not isinstance(data, dict):
        raise BadInput("holds no JSON object", where=Where(path, 1))
    source = Document(path, data)
    check_schema(source)

    def fact(key: str, name: str) -> Any:
        return _value(name, _needed(source, key), source, (key,))

    return Launch(
        run_id=str(_needed(source, "run_id")),
        created=str(_needed(source, "created")),
        config_hash=str(_needed(source, "config_hash")),
        manifest=fact("manifest", "Manifest"),
        host=str(data.get("host", "")),
        domain_version=str(data.get("domain_version", "")),
        folders=fact("folders", "Texts"),
        overrides=fact("overrides", "Texts"),
        lessons=fact("lessons", "Words"),
        expected_effect=str(data.get("expected_effect", "")),
        expected=fact("expected", "Count"),
        command=fact("command", "Words"),
        cwd=str(data.get("cwd", "")),
    )


def check_schema(source: Document) -> None:
    """Refuse a file that a newer version wrote. Raises BadInput."""
    schema = source.data.get("schema")
    if not isinstance(schema, int) or isinstance(schema, bool):
        raise BadInput(
            f"says no schema version (found {schema!r})",
            where=source.where("schema"),
            expected=f"a number up to {SCHEMA}",
        )
    if schema > SCHEMA:
        raise BadInput(
            f"was written by a newer version (schema {schema})",
            where=source.where("schema"),
            expected=f"a schema up to {SCHEMA}",
            hint="update benchwright on this machine",
        )


def _needed(source: Document, key: str) -> Any:
    if key not in source.data:
        raise BadInput("is missing", where=Where(source.file, key=key))
    return source.data[key]


def results_data(record: RunRecord) -> dict[str, Any]:
    """What `results.yaml` says, as plain data; its text is `dump_yaml` of it."""
    view, judgement = record.view, record.view.judgement
    head: dict[str, Any] = {
        "schema": SCHEMA,
        "run_id": view.run_id,
        "status": str(record.status),
        "tag": str(judgement.tag) if judgement else None,
        "tag_reason": judgement.tag_reason if judgement else "",
        "headline": headline(judgement),
        "domain": view.config.domain,
        "recipe": view.config.recipe or "",
        "created": view.created,
        "finished": record.finished,
        "host": record.host,
        "config_hash": view.config_hash,
        "error": record.error,
    }
    hits = sum(result.cached for result in view.prep)
    body: dict[str, Any] = {
        "arms": _write_summaries(judgement.summaries) if judgement else {},
        "cache": {"hits": hits, "misses": len(view.prep) - hits},
        "prep": plain("PrepResults", view.prep),
        "findings": plain("Findings", view.findings),
        "judgement": _write_judgement(judgement),
        "fingerprint": dict(view.fingerprint.fields),
        "steps": dict(record.steps),
        "extra": dict(record.extra),
    }
    data: dict[str, Any] = _writable(head | body)
    return data


def _writable(data: Any) -> Any:
    """Data that YAML can hold and that is read back: whatever a stage printed, a record is made.

    NUL and half characters become U+FFFD; a number that isn't finite becomes a text.
    """
    if isinstance(data, Mapping):
        return {_writable(str(key)): _writable(value) for key, value in data.items()}
    if isinstance(data, list | tuple):
        return [_writable(value) for value in data]
    if isinstance(data, str):
        return _NOT_WRITABLE.sub("\ufffd", data)
    if isinstance(data, float) and not math.isfinite(data):
        return str(data)
    return data


def write_shadow(text: str, data: Mapping[str, Any]) -> str:
    """The text of the shadow of `results.yaml`: the same data, read ten times as fast.

    Args:
        text: What `results.yaml` holds.
        data: What that text means.
    """
    import json

    return f"{_digest(text)}\n{json.dumps(data, ensure_ascii=False)}"


def _read_shadow(text: str, shadow: str) -> dict[str, Any] | None:
    """What a text of `results.yaml` means by its shadow; None where that is of another text."""
    import json

    digest, _, data = shadow.partition("\n")
    if digest != _digest(text):
        return None
    with contextlib.suppress(ValueError):
        read = json.loads(data)
        return read if isinstance(read, dict) else None
    return None


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode(errors="surrogatepass")).hexdigest()


def read_results(text: str, path: Path, shadow: str = "") -> Results:
    """The content of `results.yaml`. Raises BadInput.

    Args:
        text: The file's text, which has the last word.
        path: The file.
        shadow: What `write_shadow` made of that text or an earlier one.
    """
    known = _read_shadow(text, shadow)
    source = written(known, text, path) if known is not None else parse_written(text, path)
    check_schema(source)
    data = source.data
    judgement = _needed(source, "judgement")
    if judgement is not None:
        said = _read_judgement(judgement, data.get("arms") or {}, source)
        judgement = _value("Judgement", said, source, ("judgement",))

    def part(key: str, name: str) -> Any:
        return _value(name, _needed(source, key), source, (key,))

    return Results(
        status=part("status", "Status"),
        finished=str(data.get("finished") or ""),
        error=str(data.get("error") or ""),
        judgement=judgement,
        prep=part("prep", "PrepResults"),
        findings=part("findings", "Findings"),
        fingerprint=part("fingerprint", "Texts"),
        steps=data.get("steps") or {},
        extra=data.get("extra") or {},
    )


def read_head(text: str, path: Path) -> dict[str, Any]:
    """The facts at the head of `results.yaml`, without reading the rest. Raises BadInput."""
    source = parse_written(text.partition(_AFTER_HEAD)[0], path)
    check_schema(source)
    for key in ("run_id", "status", "domain", "created"):
        _needed(source, key)
    return source.data


def read_summaries(text: str, path: Path) -> dict[str, dict[str, ArmSummary]]:
    """arm -> metric -> summary in `results.yaml`, without reading the rest. Raises BadInput."""
    _, _, after = text.partition(_AFTER_HEAD)
    source = parse_written(f"arms:{after.partition(_AFTER_ARMS)[0]}\n", path)
    arms = _with_arms(source.data["arms"], source)
    summaries: dict[str, dict[str, ArmSummary]] = _value("Summaries", arms, source)
    return summaries


def replace_head(text: str, path: Path, changes: Mapping[str, Any]) -> str:
    """The text of `results.yaml` with other facts at its head; the rest stays byte for byte."""
    _, after, body = text.partition(_AFTER_HEAD)
    return dump_yaml({**read_head(text, path), **changes}).removesuffix("\n") + after + body


def headline(judgement: Judgement | None) -> str:
    """A run's result in a few words, for a row of the index."""
    if judgement is None or not judgement.verdicts or not judgement.verdicts[0].units:
        return ""
    from benchwright.judgement import words

    verdict = judgement.verdicts[0]
    metric = verdict.metric
    moved = f" {words.change(metric, verdict.effect)}" if verdict.effect is not None else ""
    more = f"; {len(judgement.verdicts) - 1} more" if len(judgement.verdicts) > 1 else ""
    return f"{metric.name}{moved} with {verdict.treatment.arm}: {verdict.decision}{more}"


def _write_summaries(summaries: Mapping[str, Mapping[str, ArmSummary]]) -> dict[str, Any]:
    return {
        arm: {
            metric: {name: getattr(summary, name) for name in _SUMMARY_FIELDS}
            for metric, summary in metrics.items()
        }
        for arm, metrics in summaries.items()
    }


def _write_judgement(judgement: Judgement | None) -> dict[str, Any] | None:
    """Everything but the summaries, which stand under `arms` for people, and once only."""
    if judgement is None:
        return None
    data: dict[str, Any] = plain("Judgement", judgement)
    del data["summaries"]
    return data


def _read_judgement(data: Any, arms: Any, source: Document) -> dict[str, Any]:
    if not isinstance(data, Mapping) or not isinstance(arms, Mapping):
        raise BadInput("holds no mapping", where=source.where("judgement"))
    return {**data, "summaries": _with_arms(arms, source)}


def _with_arms(arms: Any, source: Document) -> dict[str, Any]:
    """The table of the arms with each arm's name in its rows, as `ArmSummary` has it."""
    try:
        return {
            arm: {metric: {"arm": arm, **row} for metric, row in metrics.items()}
            for arm, metrics in arms.items()
        }
    except (AttributeError, TypeError) as error:
        raise BadInput("holds no table of metrics", where=source.where("arms")) from error


def write_sample(sample: Sample) -> dict[str, Any]:
    """A replicate as a row of `samples.jsonl`."""
    row: dict[str, Any] = plain("Sample", sample)
    return row


def read_sample(row: Mapping[str, Any], path: Path, line: int) -> Sample:
    """The replicate in one row of `samples.jsonl`. Raises BadInput, naming the line."""
    from pydantic import ValidationError

    try:
        sample: Sample = _adapter("Sample").validate_python(row)
    except ValidationError as error:
        first = error.errors()[0]
        raise BadInput(
            f"holds no replicate: {first['msg']}",
            where=Where(path, line, ".".join(map(str, first["loc"]))),
        ) from error
    return sample

"""Canonical form: one spelling for each value, so that equal content has an equal digest."""

from __future__ import annotations

import hashlib
import json
import math
import re
import unicodedata
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from benchwright.errors import BadInput, Where
from benchwright.spec.values import flatten

if TYPE_CHECKING:
    from benchwright.spec.model import BenchmarkConfig

SLUG_LENGTH = 40
"""Longest slug, in characters: a run id stays readable in a terminal's column."""


def canonical_json(value: Any) -> bytes:
    """The one spelling of a value, as ASCII JSON.

    Keys are sorted by code point, there is no white space, tuples are written as lists, floats
    in their shortest exact form. `1`, `1.0`, `"1"` and `true` stay four different values. Text is
    taken as it is: two spellings of the same letter in Unicode are two texts.

    Raises:
        BadInput: For a value that has no canonical form (NaN, an infinity, a date, a key that is
            no text), with the dotted place of it.
    """
    checked = _plain(value, "")
    return json.dumps(
        checked, sort_keys=True, separators=(",", ":"), ensure_ascii=True, allow_nan=False
    ).encode("ascii")


def _plain(value: Any, place: str) -> Any:
    """The value in JSON's own types, or BadInput."""
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, str):
        return str.__str__(value)
    if isinstance(value, int):
        return int(value)
    if isinstance(value, float):
        if not math.isfinite(value):
            raise BadInput(
                f"{value} has no canonical form",
                where=Where(key=place or None),
                expected="a finite number",
                hint="write the value as text if it is meant as a word",
            )
        return float(value)
    if isinstance(value, Mapping):
        plain: dict[str, Any] = {}
        for key, part in value.items():
            if not isinstance(key, str):
                raise BadInput(
                    f"the key {key!r} is no text",
                    where=Where(key=place or None),
                    expected="keys that are text",
                    hint=f'write it in quotes: "{key}"',
                )
            plain[str.__str__(key)] = _plain(part, f"{place}.{key}" if place else key)
        return plain
    if isinstance(value, list | tuple):
        return [_plain(part, f"{place}[{index}]") for index, part in enumerate(value)]
    raise BadInput(
        f"a {type(value).__name__} has no canonical form",
        where=Where(key=place or None),
        expected="text, a number, true, false, null, or a list or mapping of these",
        hint="write the value as text, in quotes",
    )


def digest(content: bytes | str) -> str:
    """SHA-256 in hex; text is taken as UTF-8 (undecodable file names keep their bytes)."""
    if isinstance(content, str):
        content = content.encode("utf-8", "surrogateescape")
    return hashlib.sha256(content).hexdigest()


def config_hash(config: BenchmarkConfig) -> str:
    """SHA-256 of a configuration's canonical form (gate 1, rule 1).

    Everything that a configuration says is part of it, replicates, seeds and limits included.
    Left out are words for a reader only: `notes`, `justified`, and a metric's `meaning`. The run
    id, times, places and the file's name aren't in a configuration, and so not in its hash.
    The order of keys doesn't matter, the order of lists does; a parameter written as `a: {b: 1}`
    and as `a.b: 1` is the same one.
    """
    content = config.model_dump(mode="python", exclude={"notes", "justified", "params"})
    content["params"] = flatten(config.params)
    for metric in content["metrics"]:
        del metric["meaning"]
    return digest(canonical_json(content))


def slug(text: str) -> str:
    """A text as a piece of a file name: lower case ASCII, digits and single hyphens.

    It never starts with a dot or a hyphen, has no separator in it, and is never empty.
    """
    plain = unicodedata.normalize("NFKD", text).encode("ascii", "ignore").decode().lower()
    short = re.sub(r"[^a-z0-9]+", "-", plain).strip("-")[:SLUG_LENGTH].strip("-")
    return short or "unnamed"

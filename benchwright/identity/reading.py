"""How one field of a fingerprint is read: a name, why it matters, and a tiny function."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Generic, TypeVar

UNKNOWN = "unknown"
"""The value of a field that couldn't be read. It never equals another `unknown` silently."""

NONE = "none"
"""There is no such thing here, as far as the machine says; that is known, unlike `unknown`."""

NOT_EXPOSED = "not exposed"
"""The kernel offers no such setting, as in most virtual machines."""

Source = TypeVar("Source")


class Unreadable(Exception):
    """Raised by a reader that can't tell a field's value; so does any other exception."""


@dataclass(frozen=True, slots=True)
class Field(Generic[Source]):
    """One field of a fingerprint.

    Attributes:
        name: Dotted name, the section first.
        why: Why a difference in it matters, as a sentence without its full stop.
        read: Gives its value as text, or None where there is nothing to say (the field is left
            out then). Whatever it raises means `unknown`.
    """

    name: str
    why: str
    read: Callable[[Source], str | None]


def read_fields(fields: Iterable[Field[Source]], source: Source) -> dict[str, str]:
    """The value of each field, in order. Never raises."""
    values = {field.name: _value(field, source) for field in fields}
    return {name: value for name, value in values.items() if value is not None}


def _value(field: Field[Source], source: Source) -> str | None:
    try:
        value = field.read(source)
    except Exception:  # a fingerprint never fails: what can't be read is unknown, and is said so
        return UNKNOWN
    return value.strip() or UNKNOWN if value is not None else None


def count_of(things: Iterable[object]) -> str:
    """How many there are. None at all means that they couldn't be read."""
    count = len(list(things))
    if not count:
        raise Unreadable
    return str(count)


def text(path: Path) -> str:
    """A small file's text, without the white space around it. Raises OSError."""
    return path.read_text(errors="replace").strip("\0 \n\t")


def key_values(path: Path, separator: str = ":") -> Mapping[str, str]:
    """A file of `key: value` lines; the first of a repeated key counts. Raises OSError."""
    values: dict[str, str] = {}
    for line in text(path).splitlines():
        key, found, value = line.partition(separator)
        if found:
            values.setdefault(key.strip(), value.strip())
    return values


def all_of(values: Iterable[str]) -> str:
    """One text for the values of several devices: `2 x A, 1 x B`, or `A` for a single one."""
    counts: dict[str, int] = {}
    for value in values:
        counts[value] = counts.get(value, 0) + 1
    if not counts:
        return NONE
    if len(counts) == 1:
        return next(iter(counts))
    return ", ".join(f"{count} x {value}" for value, count in counts.items())

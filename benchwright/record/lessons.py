"""`lessons.md` and `risks.md`: what people learned and what they fear, append-only.

Both are Markdown that reads as prose and is read back by this module: a heading for each entry,
lines that say what it is about, and its text as a quotation.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path

from benchwright.errors import BadInput, Where
from benchwright.record import clock
from benchwright.record.documents import read_lossy
from benchwright.record.files import append_block
from benchwright.record.home import Layout
from benchwright.spec.values import Value, as_text

ANY = ""
"""Value of a parameter for which an entry holds whatever it is set to."""


class Kind(StrEnum):
    """What an entry is; its value is the first letter of its ids."""

    LESSON = "L"
    RISK = "R"


_TITLES = {
    Kind.LESSON: "# Lessons\n\nWhat was learned. Add one with `benchwright lessons add`.\n",
    Kind.RISK: "# Risks\n\nWhat may go wrong. Add one with `benchwright risks add`.\n",
}


@dataclass(frozen=True, slots=True)
class Entry:
    """A lesson or a risk.

    Attributes:
        id: `L0001`, `R0001`, ... in the order in which they were added.
        date: Day on which it was added, YYYY-MM-DD.
        text: What it says; may have several lines.
        domain, recipe: What it is about; empty: any.
        params: Parameters that it is about, by dotted name, with the value as text; an empty
            value: any.
    """

    id: str
    date: str
    text: str
    domain: str = ""
    recipe: str = ""
    params: Mapping[str, str] = field(default_factory=dict)

    def matches(self, domain: str, recipe: str | None, params: Mapping[str, Value]) -> bool:
        """Whether it speaks of such an experiment: all that it names agrees."""
        return (
            self.domain in ("", domain)
            and self.recipe in ("", recipe)
            and all(
                name in params and value in (ANY, as_text(params[name]))
                for name, value in self.params.items()
            )
        )


def _path(home: Path, kind: Kind) -> Path:
    return Layout(home).lessons if kind is Kind.LESSON else Layout(home).risks


_HEADING = re.compile(r"## ([LR]\d{4,}) \((\d{4}-\d{2}-\d{2})\)")
_FACT = re.compile(r"- (domain|recipe|parameter): `([^`]*)`(?: = `([^`]*)`)?")


def add(
    home: Path,
    kind: Kind,
    text: str,
    *,
    domain: str = "",
    recipe: str = "",
    params: Mapping[str, str] | None = None,
) -> Entry:
    """Append an entry; two that are added at once both stay, under two ids.

    Raises:
        BadInput: The text is empty, or a name can't be written on its line.
    """
    text = "\n".join(line.rstrip() for line in text.strip().splitlines())
    if not text:
        raise BadInput("there is nothing to add", where=Where(key="TEXT"), expected="a sentence")
    about = {"--domain": domain, "--recipe": recipe}
    about |= {f"-p {name}": f"{name}{value}" for name, value in (params or {}).items()}
    for option, said in about.items():
        if "`" in said or "\n" in said:
            raise BadInput(f"{said!r} can't be written down", where=Where(key=option))

    path = _path(home, kind)
    date = f"{clock.now():%Y-%m-%d}"

    def block(before: str) -> str:
        number = 1 + max((int(entry.id[1:]) for entry in _parse(before)), default=0)
        return ((before and "\n") or f"{_TITLES[kind]}\n") + _write(
            Entry(f"{kind}{number:04d}", date, text, domain, recipe, dict(params or {}))
        )

    return _parse(append_block(path, block))[-1]


def _write(entry: Entry) -> str:
    facts = [("domain", entry.domain), ("recipe", entry.recipe)]
    lines = [f"- {name}: `{value}`" for name, value in facts if value]
    lines += [
        f"- parameter: `{name}`" + (f" = `{value}`" if value != ANY else "")
        for name, value in entry.params.items()
    ]
    quoted = [f"> {line}".rstrip() for line in entry.text.splitlines()]
    about = [*lines, ""] if lines else []
    return "\n".join([f"## {entry.id} ({entry.date})", "", *about, *quoted]) + "\n"


def entries(home: Path, kind: Kind) -> tuple[Entry, ...]:
    """All entries, oldest first; lines that this module didn't write are passed over."""
    path = _path(home, kind)
    return _parse(read_lossy(path)) if path.exists() else ()


def matching(
    home: Path, kind: Kind, domain: str, recipe: str | None, params: Mapping[str, Value]
) -> tuple[Entry, ...]:
    """The entries that speak of such an experiment, oldest first."""
    return tuple(entry for entry in entries(home, kind) if entry.matches(domain, recipe, params))


def by_id(home: Path, ids: tuple[str, ...]) -> tuple[Entry, ...]:
    """The lessons and risks with these ids, in the order of the files."""
    return tuple(entry for kind in Kind for entry in entries(home, kind) if entry.id in ids)


def _parse(text: str) -> tuple[Entry, ...]:
    found: list[Entry] = []
    for part in re.split(r"^(?=## )", text, flags=re.MULTILINE):
        heading = _HEADING.match(part)
        if heading is None:
            continue
        about = {"domain": "", "recipe": ""}
        params: dict[str, str] = {}
        quoted: list[str] = []
        for line in part.splitlines()[1:]:
            if line.startswith(">"):
                quoted.append(line[1:].removeprefix(" "))
            elif fact := _FACT.fullmatch(line):
                name, value, setting = fact[1], fact[2], fact[3]
                if name == "parameter":
                    params[value] = setting or ANY
                else:
                    about[name] = value
        if quoted:
            found.append(
                Entry(
                    heading[1],
                    heading[2],
                    "\n".join(quoted),
                    about["domain"],
                    about["recipe"],
                    params,
                )
            )
    return tuple(found)

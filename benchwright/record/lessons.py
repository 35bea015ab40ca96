"""`lessons.md` and `risks.md`: what people learned and what they fear, append-only.

Both are Markdown that reads as prose and is read back by this module: a heading for each entry,
lines that say what it is about, and its text as a quotation.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from benchwright.errors import BadInput, Where
from benchwright.record import clock
from benchwright.record.documents import read_lossy
from benchwright.record.files import append_block
from benchwright.record.home import Layout
from benchwright.spec.values import Value, as_text


class Kind(StrEnum):
    """What a notebook holds."""

    LESSONS = "lessons"
    RISKS = "risks"

    @property
    def letter(self) -> str:
        """The first letter of its ids."""
        return self.value[0].upper()


_TITLES = {
    Kind.LESSONS: "# Lessons\n\nWhat was learned. Add one with `benchwright lessons add`.\n",
    Kind.RISKS: "# Risks\n\nWhat may go wrong. Add one with `benchwright risks add`.\n",
}


@dataclass(frozen=True, slots=True)
class Entry:
    """A lesson or a risk.

    Attributes:
        id: `L0001`, `R0001`, ... in the order in which they were added.
        date: Day on which it was added, YYYY-MM-DD.
        text: What it says; may have several lines.
        domain, recipe: What it is about; empty: any.
        params: Parameters that it is about: `a.b=1` for one value, `a.b` for any.
    """

    id: str
    date: str
    text: str
    domain: str = ""
    recipe: str = ""
    params: tuple[str, ...] = ()

    def matches(self, domain: str, recipe: str | None, params: Mapping[str, Value]) -> bool:
        """Whether it speaks of such an experiment: all that it names agrees."""
        return (
            self.domain in ("", domain)
            and self.recipe in ("", recipe)
            and all(_agrees(named, params) for named in self.params)
        )


def _agrees(named: str, params: Mapping[str, Value]) -> bool:
    name, given, value = named.partition("=")
    return name in params and (not given or as_text(params[name]) == value)


_HEADING = re.compile(r"## ([LR]\d{4,}) \((\d{4}-\d{2}-\d{2})\)")
_FACT = re.compile(r"- (domain|recipe|parameter): `([^`]*)`")


def notebook(home: Path, kind: str) -> Notebook:
    """The lessons or the risks of a benchmark home."""
    return Notebook(home, Kind(kind))


@dataclass(frozen=True, slots=True)
class Notebook:
    """One append-only file.

    Attributes:
        home: The benchmark home.
        kind: Lessons or risks.
    """

    home: Path
    kind: Kind

    @property
    def path(self) -> Path:
        """The file; there once something was added."""
        layout = Layout(self.home)
        return layout.lessons if self.kind is Kind.LESSONS else layout.risks

    def add(
        self, text: str, *, domain: str = "", recipe: str = "", params: tuple[str, ...] = ()
    ) -> Entry:
        """Append an entry; two that are added at once both stay, under two ids.

        Raises:
            BadInput: The text is empty, or a name can't be written on its line.
        """
        text = "\n".join(line.rstrip() for line in text.strip().splitlines())
        if not text:
            raise BadInput(
                "there is nothing to add", where=Where(key="TEXT"), expected="a sentence"
            )
        for said in (domain, recipe, *params):
            if "`" in said or len(said.splitlines()) > 1:
                raise BadInput(f"{said!r} can't be written down", expected="a name on one line")
        date = f"{clock.now():%Y-%m-%d}"

        def block(before: str) -> str:
            number = 1 + max((int(entry.id[1:]) for entry in _parse(before)), default=0)
            entry = Entry(f"{self.kind.letter}{number:04d}", date, text, domain, recipe, params)
            return ("\n" if before else f"{_TITLES[self.kind]}\n") + _write(entry)

        return _parse(append_block(self.path, block))[-1]

    def list(self) -> tuple[Entry, ...]:
        """All entries, oldest first; what this module didn't write is passed over."""
        return _parse(read_lossy(self.path)) if self.path.exists() else ()

    def matching(
        self, domain: str, recipe: str | None, params: Mapping[str, Value]
    ) -> tuple[Entry, ...]:
        """The entries that speak of such an experiment, oldest first."""
        return tuple(entry for entry in self.list() if entry.matches(domain, recipe, params))


def by_id(home: Path, ids: tuple[str, ...]) -> tuple[Entry, ...]:
    """The lessons and risks with these ids, in the order of the files."""
    return tuple(e for kind in Kind for e in Notebook(home, kind).list() if e.id in ids)


def _write(entry: Entry) -> str:
    facts = [("domain", entry.domain), ("recipe", entry.recipe)]
    facts += [("parameter", named) for named in entry.params]
    about = [f"- {name}: `{value}`" for name, value in facts if value]
    quoted = [f"> {line}".rstrip() for line in entry.text.splitlines()]
    heading = f"## {entry.id} ({entry.date})"
    return "\n".join([heading, "", *about, *([""] if about else []), *quoted]) + "\n"


def _parse(text: str) -> tuple[Entry, ...]:
    found: list[Entry] = []
    for part in re.split(r"^(?=## )", text, flags=re.MULTILINE):
        heading = _HEADING.match(part)
        if heading is None:
            continue
        about: dict[str, list[str]] = {"domain": [], "recipe": [], "parameter": []}
        quoted: list[str] = []
        for line in part.splitlines()[1:]:
            if line.startswith(">"):
                quoted.append(line[1:].removeprefix(" "))
            elif fact := _FACT.fullmatch(line):
                about[fact[1]].append(fact[2])
        if quoted:
            found.append(
                Entry(
                    id=heading[1],
                    date=heading[2],
                    text="\n".join(quoted),
                    domain="".join(about["domain"][:1]),
                    recipe="".join(about["recipe"][:1]),
                    params=tuple(about["parameter"]),
                )
            )
    return tuple(found)

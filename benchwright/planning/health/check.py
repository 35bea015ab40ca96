"""A check: what it says, and how many of them are run and mended."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import cached_property
from pathlib import Path
from typing import Generic, TypeVar

from benchwright.planning.health.window import Window, watch


class State(StrEnum):
    """What a check found."""

    OK = "ok"
    WARNING = "warning"
    BROKEN = "broken"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class Seen:
    """What was seen.

    Attributes:
        state: How bad it is.
        sentence: What was found, with its figure, for a person.
        command: The exact next command; empty where there is nothing to do.
    """

    state: State
    sentence: str
    command: str = ""


def ok(sentence: str) -> Seen:
    """As it should be."""
    return Seen(State.OK, sentence)


def warning(sentence: str, command: str) -> Seen:
    """Works, but costs a result some of its worth, or will break."""
    return Seen(State.WARNING, sentence, command)


def broken(sentence: str, command: str) -> Seen:
    """Runs fail, or their results are wrong, as long as it is so."""
    return Seen(State.BROKEN, sentence, command)


def unknown(sentence: str, command: str = "") -> Seen:
    """Can't be told from here."""
    return Seen(State.UNKNOWN, sentence, command)


@dataclass(frozen=True)
class Place:
    """What is looked at.

    Attributes:
        home: `$BENCHMARK_HOME`; need not exist.
        environ: The environment that runs would be asked for in.
        root: Root of the file system; another one for made-up machines.
    """

    home: Path
    environ: dict[str, str]
    root: Path = Path("/")

    @cached_property
    def window(self) -> Window:
        """Half a second of this machine, watched once for all checks."""
        return watch(self.root)


Subject = TypeVar("Subject", bound=Place)


@dataclass(frozen=True, slots=True)
class Examination(Generic[Subject]):
    """One check.

    Attributes:
        name: What is looked at, in a word or two.
        look: Looks, and changes nothing.
        mend: Mends what `look` found, and says what it did; None where only a person can.
    """

    name: str
    look: Callable[[Subject], Seen]
    mend: Callable[[Subject], str] | None = None


@dataclass(frozen=True, slots=True)
class Check:
    """What came of an examination.

    Attributes:
        name: Its name.
        seen: What was seen at last.
        mended: What was done about what was seen first; empty where nothing was.
    """

    name: str
    seen: Seen
    mended: str = ""


def examine(
    subject: Subject,
    examinations: Iterable[Examination[Subject]],
    *,
    fix: bool = False,
    on_start: Callable[[str], None] = lambda _name: None,
) -> tuple[Check, ...]:
    """Run checks one after the other.

    Args:
        subject: What is looked at.
        examinations: The checks.
        fix: Mend what can be mended, and look again.
        on_start: Called with the name of each check before it runs.
    """
    checks = []
    for one in examinations:
        on_start(one.name)
        check = Check(one.name, _look(one, subject))
        if fix and one.mend is not None and check.seen.state in (State.WARNING, State.BROKEN):
            try:
                said = one.mend(subject)
            except Exception as problem:  # what can't be mended is said, and the rest goes on
                sentence = f"{check.seen.sentence}; mending it failed: {_first_line(problem)}"
                check = replace(check, seen=replace(check.seen, sentence=sentence))
            else:
                check = Check(one.name, _look(one, subject), said)
        checks.append(check)
    return tuple(checks)


def _look(one: Examination[Subject], subject: Subject) -> Seen:
    try:
        return one.look(subject)
    except Exception as problem:  # a check that fails says so, and hides no other
        return unknown(f"it can't be looked at: {_first_line(problem)}")


def _first_line(problem: Exception) -> str:
    text = str(problem).partition("\n")[0]
    return text or type(problem).__name__


def is_healthy(checks: Iterable[Check]) -> bool:
    """Whether nothing is broken."""
    return not any(check.seen.state is State.BROKEN for check in checks)

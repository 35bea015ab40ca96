"""A suite: the experiments and checks that a team wants to see every night, and where they run."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Sequence
from datetime import date
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field, model_validator

from benchwright.errors import BadInput, Where
from benchwright.spec.model import Frozen, Name
from benchwright.spec.schema import build, conform
from benchwright.spec.source import Document, NotFinite, plain_scalar, read_yaml
from benchwright.spec.suggest import did_you_mean, nearest, one_of
from benchwright.spec.values import as_text, flatten

HERE = "here"
"""Name of the host of an entry that names none: where the suite's own flow runs."""

DEFAULT_CRON = "0 2 * * *"
"""Two in the morning: after the day's last commit, done before the first person looks."""


class Schedule(Frozen):
    """When the suite runs."""

    cron: str = DEFAULT_CRON
    """Five fields: minute, hour, day of the month, month, day of the week."""
    timezone: str = "UTC"
    """IANA name, such as `Europe/Berlin`: the hour is that of its clocks, summer and winter."""


class Host(Frozen):
    """A machine that entries run on, one at a time."""

    deployment: str | None = None
    """`flow/deployment` whose worker is on that machine and shares the home; left out: entries
    run where the suite's flow does, and reach the machine by their own parameters."""
    params: dict[str, Any] = Field(default_factory=dict)
    """Parameters of every entry on this host, such as how it is reached."""


class Accepted(Frozen):
    """A change for the worse that a person has accepted."""

    until: str
    """ISO date: changes that began by then are no alarm any more."""
    because: str = Field(min_length=1)
    """Why it was accepted."""
    metrics: tuple[str, ...] = ()
    """The metrics that this speaks of; none: all of the entry."""


class Entry(Frozen):
    """One experiment or check."""

    name: Name
    """Unique in the suite; its history goes by this name."""
    experiment: str | None = None
    """A configuration file, relative to the suite's, or a recipe."""
    domain: Name | None = None
    """Instead of `experiment`: a domain, such as `accuracy` or `speed`, with its `params`."""
    host: str = HERE
    """One of `hosts`; left out: where the suite's flow runs."""
    params: dict[str, Any] = Field(default_factory=dict)
    """Parameters that differ from the experiment's, by dotted name or nested."""
    replicates: Annotated[int, Field(ge=1)] | None = None
    """Replicates of each arm, instead of the experiment's."""
    baseline: str | None = None
    """Run that each night is compared with; left out: the last RELIABLE run of the same
    configuration on the same ground."""
    metrics: tuple[str, ...] = ()
    """The metrics that are watched; none: every primary metric and guardrail."""
    because: str | None = None
    """The reason to run in spite of the plan's challenges."""
    max_cost_usd: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 0.0
    """What a night may cost: nobody is asked at night. The default runs only what is free."""
    accepted: tuple[Accepted, ...] = ()
    """Changes for the worse that are no alarm any more."""

    @model_validator(mode="after")
    def _one_experiment(self) -> Entry:
        if (self.experiment is None) == (self.domain is None):
            raise ValueError("exactly one of `experiment` and `domain` is needed")
        return self

    def accepted_for(self, metric: str) -> tuple[str, ...]:
        """Dates by which changes of a metric were accepted."""
        return tuple(one.until for one in self.accepted if not one.metrics or metric in one.metrics)


class Suite(Frozen):
    """What runs every night."""

    name: Name
    """Left out: the file's name. Its history and its dashboard go by this name."""
    description: str = ""
    """One line for the dashboard."""
    schedule: Schedule = Schedule()
    hosts: dict[str, Host] = Field(default_factory=dict)
    """The machines, by name."""
    entries: Annotated[tuple[Entry, ...], Field(min_length=1)]

    def entry(self, name: str) -> Entry:
        """The entry of that name. Raises KeyError."""
        for entry in self.entries:
            if entry.name == name:
                return entry
        raise KeyError(name)

    def by_host(self) -> dict[str, tuple[Entry, ...]]:
        """The entries of each host, in the order of the file."""
        names = dict.fromkeys(entry.host for entry in self.entries)
        return {
            host: tuple(entry for entry in self.entries if entry.host == host) for host in names
        }

    def host(self, entry: Entry) -> Host:
        """Where an entry runs."""
        return self.hosts.get(entry.host, Host())

    def overrides(self, entry: Entry) -> tuple[str, ...]:
        """The parameters that the suite sets for an entry, as `-p` takes them."""
        merged = flatten(self.host(entry).params) | flatten(entry.params)
        return tuple(f"{key}={_option(value)}" for key, value in merged.items())


def chosen(suite: Suite, only: Sequence[str], where: Where) -> Suite:
    """The suite with these entries alone; all of it where none is named.

    Args:
        suite: The suite.
        only: Names of entries.
        where: Where they were named.

    Raises:
        BadInput: It has no such entry, with the nearest.
    """
    known = [entry.name for entry in suite.entries]
    for name in only:
        if name not in known:
            raise BadInput(
                f"the suite {suite.name} has no entry `{name}`",
                where=where,
                expected=one_of(known),
                hint=did_you_mean(name, known),
            )
    if not only:
        return suite
    entries = tuple(entry for entry in suite.entries if entry.name in only)
    return suite.model_copy(update={"entries": entries})


def _option(value: Any) -> str:
    """A value as `-p` reads it back: a list in YAML's flow style, a text that looks like something
    else in quotes."""
    if isinstance(value, tuple | list):
        return "[" + ", ".join(_option(part) for part in value) + "]"
    if value is None:
        return "null"
    if isinstance(value, str) and (value[:1] in "'\"[" or not _stays_text(value)):
        return json.dumps(value, ensure_ascii=False) if value else ""
    return as_text(value)


def _stays_text(value: str) -> bool:
    try:
        return isinstance(plain_scalar(value), str)
    except NotFinite:
        return False


def suite_files(name: str, folders: Sequence[Path]) -> Path:
    """The file of a suite: a path, or the name of one in these folders.

    Raises:
        BadInput: There is none, with the nearest.
    """
    path = Path(name)
    if path.suffix in (".yaml", ".yml") or len(path.parts) > 1:
        if path.is_file():
            return path
        beside = [p.name for p in path.parent.glob("*.y*ml")] if path.parent.is_dir() else []
        match = nearest(path.name, beside)
        raise BadInput(
            "there is no such file",
            where=Where(path),
            expected="a suite: a YAML file with `entries`",
            hint=f"did you mean {path.with_name(match)}?" if match else None,
        )
    known = {
        found.stem: found
        for folder in reversed(folders)
        if folder.is_dir()
        for found in sorted(folder.glob("*.yaml"))
    }
    if name not in known:
        raise BadInput(
            f"there is no suite `{name}`",
            expected=f"a YAML file, or {one_of(sorted(known))}" if known else "a YAML file",
            hint=did_you_mean(name, known),
        )
    return known[name]


def read_suite(path: Path | str) -> Suite:
    """Read a suite file.

    Raises:
        BadInput: What can't be understood, with file, line, key and the nearest known name.
    """
    path = Path(path)
    document = read_yaml(path)
    data = conform(document, Suite)
    data.setdefault("name", _name_of(path))
    suite = build(Suite, data, document.where)
    _check_schedule(suite.schedule, document)
    _check_entries(suite, document)
    return suite


def _name_of(path: Path) -> str:
    return re.sub(r"[^A-Za-z0-9_-]+", "-", path.stem).strip("-") or "suite"


def _check_entries(suite: Suite, document: Document) -> None:
    times = Counter(entry.name for entry in suite.entries)
    for place, entry in enumerate(suite.entries):
        if times[entry.name] > 1:
            raise BadInput(
                f"the name `{entry.name}` stands {times[entry.name]} times",
                where=document.where(("entries", place, "name")),
                expected="a name of its own for each entry: its history goes by it",
            )
        if entry.host != HERE and entry.host not in suite.hosts:
            raise BadInput(
                f"`{entry.host}` is no host of this suite",
                where=document.where(("entries", place, "host")),
                expected=one_of([*suite.hosts, HERE]),
                hint=did_you_mean(entry.host, [*suite.hosts, HERE])
                or "name it under `hosts:` at the top of the file",
            )
        if entry.experiment is not None and entry.experiment.endswith((".yaml", ".yml")):
            _check_file(entry.experiment, place, document)
        for number, one in enumerate(entry.accepted):
            try:
                date.fromisoformat(one.until)
            except ValueError:
                raise BadInput(
                    f"`until` is the text '{one.until}'",
                    where=document.where(("entries", place, "accepted", number, "until")),
                    expected="a date, such as 2026-03-02",
                ) from None


def _check_file(experiment: str, place: int, document: Document) -> None:
    assert document.file is not None
    path = document.file.parent / experiment
    if path.is_file():
        return
    beside = [p.name for p in path.parent.glob("*.y*ml")] if path.parent.is_dir() else []
    match = nearest(path.name, beside)
    raise BadInput(
        f"there is no file {experiment}",
        where=document.where(("entries", place, "experiment")),
        expected="a configuration file, relative to this one, or a recipe's name",
        hint=f"did you mean {Path(experiment).with_name(match)}?" if match else None,
    )


_RANGES = (
    ("minute", 0, 59),
    ("hour", 0, 23),
    ("day of the month", 1, 31),
    ("month", 1, 12),
    ("day of the week", 0, 7),
)
_STEP = re.compile(r"(\*|[0-9A-Za-z]+(?:-[0-9A-Za-z]+)?)(?:/([0-9]+))?")


def _check_schedule(schedule: Schedule, document: Document) -> None:
    from zoneinfo import ZoneInfo, available_timezones

    try:
        ZoneInfo(schedule.timezone)
    except (KeyError, ValueError, OSError):
        raise BadInput(
            f"there is no time zone `{schedule.timezone}`",
            where=document.where("schedule.timezone"),
            expected="an IANA name, such as Europe/Berlin or UTC",
            hint=did_you_mean(schedule.timezone, available_timezones()),
        ) from None
    where = document.where("schedule.cron")
    fields = schedule.cron.split()
    if len(fields) != len(_RANGES):
        raise BadInput(
            f"`cron` has {len(fields)} fields",
            where=where,
            expected="five fields: minute, hour, day of the month, month, day of the week",
            hint=f"every night at two: {DEFAULT_CRON}",
        )
    for text, (name, low, high) in zip(fields, _RANGES, strict=True):
        for part in text.split(","):
            match = _STEP.fullmatch(part)
            numbers = [int(n) for n in re.findall(r"[0-9]+", part.partition("/")[0])]
            if match is None or any(not low <= number <= high for number in numbers):
                raise BadInput(
                    f"the {name} of `cron` is `{text}`",
                    where=where,
                    expected=f"`*`, or numbers from {low} to {high}, with `,`, `-` and `/`",
                )

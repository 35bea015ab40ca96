"""Fingerprints: the machine, the software, the code and the accelerator that a run really had."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches
from pathlib import Path

from benchwright.errors import BadInput, Difference, Where
from benchwright.identity.accelerator import GPU, TPU, read_accelerator
from benchwright.identity.code import CODE, FOR_THE_READER, read_code
from benchwright.identity.machine import MACHINE
from benchwright.identity.reading import UNKNOWN as UNKNOWN
from benchwright.identity.reading import read_fields
from benchwright.identity.software import (
    ENVIRONMENT,
    PACKAGE,
    SOFTWARE,
    WHY_ENVIRONMENT,
    WHY_PACKAGE,
    read_software,
)


@dataclass(frozen=True, slots=True)
class Fingerprint:
    """What a run ran on.

    Attributes:
        fields: Value as text by dotted name: `machine.cpu_model`, `software.python`,
            `code.commit`, `accelerator.driver`, ... In a fixed order.
    """

    fields: Mapping[str, str] = field(default_factory=dict)

    @property
    def unknown(self) -> tuple[str, ...]:
        """Names of the fields that couldn't be read."""
        return tuple(name for name, value in self.fields.items() if value == UNKNOWN)


@dataclass(frozen=True, slots=True)
class FingerprintComparison:
    """How two fingerprints differ.

    Attributes:
        differences: Fields that differ, each with why it matters. Any refuses the comparison.
        allowed: Fields that differ and that a person allowed: QUALIFIED at best.
        unknowns: Fields that are unknown on either side, so that nobody can tell: a caveat.
    """

    differences: tuple[Difference, ...]
    allowed: tuple[Difference, ...]
    unknowns: tuple[str, ...]

    @property
    def same(self) -> bool:
        """Whether every field is known and equal on both sides."""
        return not (self.differences or self.allowed or self.unknowns)


MEASURED_BY = "code.measured_by."
"""Fields with the digest of the files that a measure stage runs; named after the stage."""

WHY_MEASURED_BY = "another script, or another version of it, did the measuring"

WHY: Mapping[str, str] = {
    row.name: row.why for rows in (MACHINE, SOFTWARE, CODE, GPU, TPU) for row in rows
}
"""Why each field matters."""


def take_fingerprint(
    *,
    folder: Path,
    packages: Sequence[str],
    env: Mapping[str, str],
    exclude: Sequence[Path] = (),
) -> Fingerprint:
    """What this process runs on. Never fails: a field that can't be read is `unknown`.

    Args:
        folder: The experiment's folder, whose repository is the code.
        packages: Python packages whose versions belong to it.
        env: The declared environment; only digests of its values are kept.
        exclude: Folders whose changes are no change of the code: the home of the runs, above
            all, which lies in the repository where nobody said otherwise.
    """
    fields = read_fields(MACHINE, Path("/"))
    fields |= read_software(packages, env)
    fields |= read_code(folder, exclude)
    fields |= read_accelerator()
    return Fingerprint(fields)


def compare_fingerprints(
    a: Fingerprint, b: Fingerprint, allow: Iterable[str] = ()
) -> FingerprintComparison:
    """Compare two fingerprints field by field (gate 2, rule 7).

    A field that one side lacks is unknown there: that side never looked. `code.repository` and
    `code.branch` are names for a reader and aren't compared.

    Args:
        a: The first run's.
        b: The second run's.
        allow: Fields that may differ, or whole sections: `machine.kernel`, `software.package`,
            `machine`.

    Raises:
        BadInput: A name in `allow` is neither a field nor a section.
    """
    names = tuple(dict.fromkeys((*a.fields, *b.fields)))
    allowed_names = tuple(allow)
    for name in allowed_names:
        _check_allowed(name, (*names, *WHY))
    differences: list[Difference] = []
    allowed: list[Difference] = []
    unknowns: list[str] = []
    for name in names:
        left, right = a.fields.get(name, UNKNOWN), b.fields.get(name, UNKNOWN)
        if name in FOR_THE_READER:
            continue
        if UNKNOWN in (left, right):
            unknowns.append(name)
        elif left != right:
            permitted = any(_covers(one, name) for one in allowed_names)
            (allowed if permitted else differences).append(
                Difference(name, left, right, why_it_matters(name))
            )
    return FingerprintComparison(tuple(differences), tuple(allowed), tuple(unknowns))


def why_it_matters(name: str) -> str:
    """Why a difference in a field matters."""
    if name.startswith(MEASURED_BY):
        return WHY_MEASURED_BY
    if name.startswith(PACKAGE):
        return WHY_PACKAGE
    if name.startswith(ENVIRONMENT):
        return WHY_ENVIRONMENT
    return WHY.get(name, "a field of the fingerprint")


def _covers(allowed: str, name: str) -> bool:
    return name == allowed or name.startswith(f"{allowed}.")


def _check_allowed(allowed: str, names: Sequence[str]) -> None:
    if any(_covers(allowed, name) for name in names):
        return
    sections = {name.rpartition(".")[0] for name in names} | {n.partition(".")[0] for n in names}
    known = sorted({*names, *sections})
    near = get_close_matches(allowed, known, n=1, cutoff=0.5)
    last = [name for name in known if name.rpartition(".")[2] == allowed]
    nearest = next(iter((*last, *near)), None)
    raise BadInput(
        f"there is no fingerprint field or section '{allowed}'",
        where=Where(key="--allow"),
        expected="a field such as machine.kernel, or a section such as machine",
        hint=f"did you mean '{nearest}'?" if nearest else "`status RUN` lists a run's fields",
    )

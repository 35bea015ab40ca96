"""Manifests: the parameters that an experiment must declare (gate 1, rule 2)."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path
from typing import Any

from benchwright.errors import BadInput
from benchwright.spec.model import Frozen


class ManifestEntry(Frozen):
    """A parameter that must be declared, even at its default."""

    name: str
    """Dotted name of the parameter."""
    reason: str
    """Why it must be declared."""
    default: Any = None
    verify: str = ""
    """`effective: NAME` (the measure stage reports it), a shell command that prints the value in
    use, or `module:function`; empty: it can't be verified, which is a caveat."""
    impact: str = ""
    """What happens to the result if it drifts."""
    since: str = ""
    """The version of the manifest that brought it in."""

    def declared_in(self, names: Collection[str]) -> bool:
        """Whether the parameter, or one below it, is among these dotted names."""
        return self.name in names or any(name.startswith(f"{self.name}.") for name in names)


class Manifest(Frozen):
    """The entries of a recipe or domain. A manifest only grows."""

    entries: tuple[ManifestEntry, ...] = ()

    def joined(self, other: Manifest) -> Manifest:
        """This manifest's entries and the other's; the other's win where both name a parameter."""
        by_name = {entry.name: entry for entry in (*self.entries, *other.entries)}
        return Manifest(entries=tuple(by_name.values()))


def read_manifest(path: Path | str) -> Manifest:
    """Read a `manifest.yaml`: a list under `entries`, each with name, reason and since.

    Raises:
        BadInput: With file, line and key.
    """
    from benchwright.spec.schema import build, conform
    from benchwright.spec.source import read_yaml

    document = read_yaml(path)
    manifest = build(Manifest, conform(document, Manifest), document.where)
    first: dict[str, int] = {}
    for place, entry in enumerate(manifest.entries):
        for key in ("name", "reason", "since"):
            if not getattr(entry, key).strip():
                raise BadInput(
                    f"the entry `{entry.name}` has no `{key}`",
                    where=document.where(("entries", place, key)),
                    expected=_ASKED[key],
                )
        if entry.name in first:
            raise BadInput(
                f"the parameter `{entry.name}` stands twice",
                where=document.where(("entries", place, "name")),
                expected="one entry for each parameter",
                hint=f"its first entry is number {first[entry.name] + 1}",
            )
        first[entry.name] = place
    return manifest


_ASKED = {
    "name": "the dotted name of a parameter",
    "reason": "why the parameter must be declared",
    "since": "the version of the manifest that brought the entry in",
}


def manifest_only_grows(old: Manifest, new: Manifest) -> list[str]:
    """What the new manifest lost of the old one, a sentence each; empty where it only grew."""
    entries = {entry.name: entry for entry in new.entries}
    problems = []
    for before in old.entries:
        after = entries.get(before.name)
        if after is None:
            problems.append(f"the entry `{before.name}` was removed")
            continue
        problems += [
            f"the entry `{before.name}` lost its `{key}`"
            for key in ("reason", "verify")
            if getattr(before, key).strip() and not getattr(after, key).strip()
        ]
    return problems

"""Manifests: the parameters that an experiment must declare (gate 1, rule 2)."""

from __future__ import annotations

from typing import Any

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


class Manifest(Frozen):
    """The entries of a recipe or domain. A manifest only grows."""

    entries: tuple[ManifestEntry, ...] = ()

"""The software's part of a fingerprint: the interpreter, named packages, declared environment."""

from __future__ import annotations

import platform
from collections.abc import Mapping, Sequence
from importlib import metadata
from pathlib import Path

from benchwright.identity.canonical import digest
from benchwright.identity.reading import UNKNOWN, Field, read_fields

PACKAGE = "software.package."
ENVIRONMENT = "software.environment."

SOFTWARE: tuple[Field[Path], ...] = (
    Field(
        "software.python",
        "interpreters differ in speed from version to version",
        lambda _: platform.python_version(),
    ),
    Field(
        "software.implementation",
        "CPython and PyPy run the same code at other speeds",
        lambda _: platform.python_implementation(),
    ),
)

WHY_PACKAGE = "another version of a package does the same work in another way"
WHY_ENVIRONMENT = "a declared variable changes what the program does"


def read_software(packages: Sequence[str], env: Mapping[str, str]) -> dict[str, str]:
    """Versions of the interpreter and of the packages, and digests of declared variables."""
    fields = read_fields(SOFTWARE, Path("/"))
    for package in sorted(set(packages)):
        fields[PACKAGE + package] = _version(package)
    for name, value in sorted(env.items()):
        # Never the value: it may be a secret.
        fields[ENVIRONMENT + name] = digest(f"{name}\0{value}")[:16]
    return fields


def _version(package: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return "not installed"
    except Exception:  # a broken installation
        return UNKNOWN

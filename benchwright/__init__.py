"""Benchwright: experiments on any system, and whether their results may be believed.

Someone who writes a domain imports from here only:

    from benchwright import Domain, Metric, Stage, StageContext, StageKind
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from benchwright.errors import BadInput as BadInput
    from benchwright.spec.context import Approval as Approval
    from benchwright.spec.context import StageContext as StageContext
    from benchwright.spec.domain import Domain as Domain
    from benchwright.spec.manifest import Manifest as Manifest
    from benchwright.spec.manifest import ManifestEntry as ManifestEntry
    from benchwright.spec.model import BenchmarkConfig as BenchmarkConfig
    from benchwright.spec.model import Direction as Direction
    from benchwright.spec.model import EffectiveFrom as EffectiveFrom
    from benchwright.spec.model import Metric as Metric
    from benchwright.spec.model import MetricsFormat as MetricsFormat
    from benchwright.spec.model import MetricsFrom as MetricsFrom
    from benchwright.spec.model import Resources as Resources
    from benchwright.spec.model import Role as Role
    from benchwright.spec.model import Scale as Scale
    from benchwright.spec.model import Stage as Stage
    from benchwright.spec.model import StageKind as StageKind

__version__ = "0.1.0"

_PUBLIC = {
    "BadInput": "benchwright.errors",
    "Approval": "benchwright.spec.context",
    "Domain": "benchwright.spec.domain",
    "StageContext": "benchwright.spec.context",
    "Manifest": "benchwright.spec.manifest",
    "ManifestEntry": "benchwright.spec.manifest",
    "BenchmarkConfig": "benchwright.spec.model",
    "Direction": "benchwright.spec.model",
    "EffectiveFrom": "benchwright.spec.model",
    "Metric": "benchwright.spec.model",
    "MetricsFormat": "benchwright.spec.model",
    "MetricsFrom": "benchwright.spec.model",
    "Resources": "benchwright.spec.model",
    "Role": "benchwright.spec.model",
    "Scale": "benchwright.spec.model",
    "Stage": "benchwright.spec.model",
    "StageKind": "benchwright.spec.model",
}

__all__ = ["__version__", *_PUBLIC]


def __getattr__(name: str) -> Any:
    """Import a public name when it is first asked for: `history` needs none of them."""
    if name not in _PUBLIC:
        raise AttributeError(f"module 'benchwright' has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(_PUBLIC[name]), name)

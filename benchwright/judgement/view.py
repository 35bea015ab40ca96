"""What judgement needs to know of a run: the record's content, without its files."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from benchwright.execution.sample import PrepResult, Sample
from benchwright.identity.fingerprint import Fingerprint
from benchwright.judgement.verdict import Finding, Judgement, Tag
from benchwright.spec.manifest import Manifest
from benchwright.spec.model import BenchmarkConfig


@dataclass(frozen=True, slots=True)
class RunView:
    """One run as judgement sees it.

    Attributes:
        run_id: Its id.
        created: Wall clock at its start, ISO 8601 with time zone.
        config: The frozen configuration.
        config_hash: SHA-256 of its canonical form, in hex.
        manifest: What the recipe and the domain ask to be declared.
        samples: Every replicate, warm-ups and failures included, in order.
        fingerprint: What it ran on.
        prep: Its prep stages.
        tag: Its tag now (after reclassification); None before it is judged.
        judgement: What was said of it when it ended; None before.
        expected: Number of replicates that were to run, warm-ups included.
        findings: What was seen while it ran (a guard's kill, work skipped, a missing counter).
    """

    run_id: str
    created: str
    config: BenchmarkConfig
    config_hash: str
    manifest: Manifest
    samples: tuple[Sample, ...]
    fingerprint: Fingerprint
    prep: tuple[PrepResult, ...] = ()
    tag: Tag | None = None
    judgement: Judgement | None = None
    expected: int | None = None
    findings: tuple[Finding, ...] = field(default=())
    overrides: Mapping[str, str] = field(default_factory=dict)
    """Challenges that a person overrode, by code, each with the reason given."""
    lowered: str = ""
    """The reason with which a person lowered its tag last; empty where nobody did."""

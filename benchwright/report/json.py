"""Results as JSON values: what `--json` prints."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from benchwright.judgement.verdict import (
    ArmSummary,
    Finding,
    GuardrailResult,
    Interval,
    Verdict,
)
from benchwright.record.run import RunRecord
from benchwright.report.spending import accounting
from benchwright.spec.model import Metric

if TYPE_CHECKING:
    from benchwright.judgement.compare import Comparison


def run_json(record: RunRecord) -> dict[str, Any]:
    """A run as JSON values; unknown numbers are null, never NaN.

    Returns:
        `run_id`, `status`, `tag`, `tag_reason`, `hypothesis`, `arms` (arm -> metric -> n, mean,
        median, min, max, spread), `verdicts`, `guardrails`, `findings`, `cache` (hits, misses),
        `replicates` (expected, finished, failed), `accounting` (see `record.accounting.account`;
        null without accelerators), `report`, `report_html`, and what identifies the run.
    """
    view, judgement = record.view, record.view.judgement
    hits = sum(result.cached for result in view.prep)
    failed = sum(not sample.ok for sample in view.samples)
    return {
        "run_id": view.run_id,
        "status": str(record.status),
        "tag": str(view.tag) if view.tag is not None else None,
        "tag_reason": judgement.tag_reason if judgement else "",
        "hypothesis": _hypothesis(record),
        "error": record.error,
        "created": view.created,
        "finished": record.finished,
        "host": record.host,
        "domain": view.config.domain,
        "recipe": view.config.recipe,
        "config_hash": view.config_hash,
        "arms": {
            arm: {name: _summary(summary) for name, summary in summaries.items()}
            for arm, summaries in (judgement.summaries if judgement else {}).items()
        },
        "verdicts": [_verdict(verdict) for verdict in (judgement.verdicts if judgement else ())],
        "guardrails": [_guardrail(one) for one in (judgement.guardrails if judgement else ())],
        "findings": [_finding(one) for one in (judgement.findings if judgement else view.findings)],
        "cache": {"hits": hits, "misses": len(view.prep) - hits},
        "replicates": {
            "expected": view.expected,
            "finished": len(view.samples) - failed,
            "failed": failed,
        },
        "accounting": accounting(record),
        "flagged": list(record.flagged),
        "audit": list(record.audit),
        "report": _report(record, "report.md"),
        "report_html": _report(record, "report.html"),
    }


def comparison_json(comparison: Comparison) -> dict[str, Any]:
    """A comparison of two runs as JSON values."""
    return {
        "baseline": comparison.left,
        "treatment": comparison.right,
        "differs": comparison.treatment,
        "tag": str(comparison.tag),
        "tag_reason": comparison.tag_reason,
        "verdicts": [_verdict(verdict) for verdict in comparison.verdicts],
        "guardrails": [_guardrail(guardrail) for guardrail in comparison.guardrails],
        "findings": [_finding(finding) for finding in comparison.findings],
        "allowed": [
            {"field": row.field, "baseline": row.left, "treatment": row.right, "why": row.why}
            for row in comparison.allowed
        ],
    }


def _hypothesis(record: RunRecord) -> dict[str, Any] | None:
    text, judgement = record.view.config.hypothesis, record.view.judgement
    if text is None:
        return None
    verdict = judgement.hypothesis if judgement else None
    return {
        "text": text,
        "verdict": str(verdict) if verdict is not None else None,
        "reason": judgement.hypothesis_reason if judgement else "",
    }


def _report(record: RunRecord, name: str) -> str | None:
    """The report's path, once it is there."""
    if record.folder is None:
        return None
    path = record.folder / name
    return str(path) if path.exists() else None


def finite(value: float | None) -> float | None:
    """A number that JSON can hold; what isn't finite is unknown."""
    return value if value is not None and math.isfinite(value) else None


def _summary(summary: ArmSummary) -> dict[str, Any]:
    return {
        "n": summary.n,
        "mean": finite(summary.mean),
        "median": finite(summary.median),
        "min": finite(summary.min),
        "max": finite(summary.max),
        "spread": finite(summary.spread),
    }


def _interval(interval: Interval) -> dict[str, Any]:
    return {
        "low": finite(interval.low),
        "high": finite(interval.high),
        "level": interval.level,
    }


def _metric(metric: Metric) -> dict[str, Any]:
    return {
        "metric": metric.name,
        "unit": metric.unit,
        "direction": str(metric.direction),
        "role": str(metric.role),
    }


def _verdict(verdict: Verdict) -> dict[str, Any]:
    return {
        **_metric(verdict.metric),
        "arm": verdict.treatment.arm,
        "baseline_arm": verdict.baseline.arm,
        "decision": str(verdict.decision),
        "win": verdict.win,
        "scale": str(verdict.metric.scale),
        "effect": finite(verdict.effect),
        "interval": _interval(verdict.interval),
        "min_effect": verdict.metric.min_effect,
        "detectable": finite(verdict.detectable),
        "replicates_needed": verdict.replicates_needed,
        "units": verdict.units,
        "leans": verdict.leans,
        "method": verdict.method,
        "reasons": list(verdict.reasons),
    }


def _guardrail(guardrail: GuardrailResult) -> dict[str, Any]:
    return {
        **_metric(guardrail.metric),
        "arm": guardrail.arm,
        "held": guardrail.held,
        "observed": finite(guardrail.observed),
        "limit": guardrail.limit,
        "reason": guardrail.reason,
    }


def _finding(finding: Finding) -> dict[str, Any]:
    return {
        "code": finding.code,
        "message": finding.message,
        "number": finite(finding.number),
        "limit": finite(finding.limit),
        "caveat": finding.caveat,
        "failure": finding.failure,
        "metric": finding.metric,
        "arm": finding.arm,
    }

"""The comparison of two runs as Markdown, for Prefect's pages."""

from __future__ import annotations

from benchwright.errors import GateRefused
from benchwright.judgement.compare import Comparison
from benchwright.report import numbers
from benchwright.report.markdown import escape
from benchwright.report.plain import cut

_TEXT_SHOWN = 300
_ROWS_SHOWN = 40


def render_comparison_artifact(said: Comparison) -> str:
    """What run B says against run A: treatment, verdicts, guardrails, caveats."""
    parts = [
        f"## {_text(said.right)} against {_text(said.left)}",
        f"**{said.tag}**: {_text(said.tag_reason)}",
        f"What differs: {_text(said.treatment)}" if said.treatment else "Nothing differs.",
    ]
    if said.verdicts:
        rows = [
            "| Metric | Arm | Change | Interval | Decision |",
            "| --- | --- | ---: | ---: | --- |",
        ]
        rows += [
            f"| {_text(one.metric.name, 60)} | {_text(one.treatment.arm, 60)}"
            f" | {numbers.effect(one.effect, one.metric)}"
            f" | {numbers.interval(one.interval, one.metric)} | **{one.decision}** |"
            for one in said.verdicts[:_ROWS_SHOWN]
        ]
        parts.append("\n".join(rows))
    if said.findings:
        parts.append("\n".join(f"- {_text(item.message)}" for item in said.findings[:_ROWS_SHOWN]))
    return "\n\n".join(parts) + "\n"


def render_refusal_artifact(left: str, right: str, refusal: GateRefused) -> str:
    """Why two runs can't be compared, difference by difference."""
    parts = [f"## {_text(right)} against {_text(left)}: refused", _text(refusal.what)]
    if refusal.differences:
        rows = ["| What | A | B | Why it matters |", "| --- | --- | --- | --- |"]
        rows += [
            f"| {_text(row.field, 80)} | {_text(row.left, 80)} | {_text(row.right, 80)}"
            f" | {_text(row.why)} |"
            for row in refusal.differences[:_ROWS_SHOWN]
        ]
        parts.append("\n".join(rows))
    if refusal.hint:
        parts.append(f"Next: {_text(refusal.hint)}")
    return "\n\n".join(parts) + "\n"


def _text(text: str, limit: int = _TEXT_SHOWN) -> str:
    return escape(cut(text, limit))

"""The short summary that a run carries in Prefect's pages."""

from __future__ import annotations

from benchwright.record.run import RunRecord
from benchwright.report import numbers
from benchwright.report.background import background
from benchwright.report.markdown import escape
from benchwright.report.outcome import went_wrong
from benchwright.report.plain import cut
from benchwright.report.sections import tag_line, title
from benchwright.spec.model import Role

MOST_BYTES = 5000
"""A page that shows many runs stays quick; the whole report lies on disk."""

_VERDICTS_SHOWN = 8
_MEANS_BYTES = 1500
_WRONG_SHOWN = 3
_TEXT_SHOWN = 200


def render_artifact(record: RunRecord) -> str:
    """A run in a few lines of Markdown, less than 5 kB: tag, verdicts, what went wrong, where."""
    view = record.view
    tag, reason = tag_line(record)
    parts = [
        f"## {_text(title(record))}",
        f"**{_text(tag)}**" + (f": {_text(reason)}" if reason else ""),
    ]
    verdicts = view.judgement.verdicts if view.judgement else ()
    if verdicts:
        rows = [
            "| Metric | Arm | Change | Interval | Decision |",
            "| --- | --- | ---: | ---: | --- |",
        ]
        for verdict in verdicts[:_VERDICTS_SHOWN]:
            metric = verdict.metric
            cells = (
                _text(metric.name, 60),
                _text(verdict.treatment.arm, 60),
                numbers.effect(verdict.effect, metric),
                numbers.interval(verdict.interval, metric),
                f"**{verdict.decision}**",
            )
            rows.append("| " + " | ".join(cells) + " |")
        parts.append("\n".join(rows))
        if len(verdicts) > _VERDICTS_SHOWN:
            parts.append(f"and {len(verdicts) - _VERDICTS_SHOWN} more in the report")
    else:
        parts += _means(record)
    wrong = went_wrong(record, background(record).priors)
    bullets = [f"- {_text(line)}" for line in wrong[:_WRONG_SHOWN]]
    if len(wrong) > _WRONG_SHOWN:
        bullets.append(f"- and {len(wrong) - _WRONG_SHOWN} more in the report")
    parts += ["What went wrong or remained unknown:", "\n".join(bullets)]
    where = record.folder / "report.html" if record.folder is not None else None
    parts.append(f"Run {_text(view.run_id)} on {_text(record.host or numbers.UNKNOWN)}")
    if where is not None:
        # A browser may refuse to follow a page of a server to a file: the path can be copied.
        link = f"[report.html]({where.absolute().as_uri()})"
        parts.append(f"{link}, a file on that machine: {_text(str(where))}")
    return "\n\n".join(parts) + "\n"


def _means(record: RunRecord) -> list[str]:
    """The primary metrics of a run that compares nothing, such as a check of a served model."""
    judgement = record.view.judgement
    found = [
        (metric, arm, summaries[metric.name])
        for arm, summaries in (judgement.summaries if judgement else {}).items()
        for metric in record.view.config.metrics
        if metric.role is Role.PRIMARY and metric.name in summaries
    ]
    if not found:
        return []
    rows = ["| Metric | Arm | n | Mean | Spread |", "| --- | --- | ---: | ---: | ---: |"]
    for metric, arm, summary in found:
        cells = (
            _text(metric.name, 60),
            _text(arm, 60),
            str(summary.n),
            numbers.quantity(summary.mean, metric.unit),
            numbers.spread(summary.spread, metric),
        )
        row = "| " + " | ".join(cells) + " |"
        if len("\n".join([*rows, row]).encode()) > _MEANS_BYTES:
            return ["\n".join(rows), f"and {len(found) - len(rows) + 2} more in the report"]
        rows.append(row)
    return ["\n".join(rows)]


def _text(text: str, limit: int = _TEXT_SHOWN) -> str:
    return escape(cut(text, limit))

"""What the terminal prints: a run's result, a comparison, an analysis, the table of runs.

Plain text where the output is no terminal. Colours only repeat what a word says.
"""

from __future__ import annotations

import shutil
import sys
from collections.abc import Iterable, Sequence
from io import StringIO
from typing import TYPE_CHECKING, Any

from benchwright.report.plain import one_line

if TYPE_CHECKING:
    from rich.console import Console

    from benchwright.judgement.compare import Comparison
    from benchwright.judgement.verdict import (
        ArmSummary,
        Finding,
        GuardrailResult,
        Judgement,
        Verdict,
    )
    from benchwright.judgement.view import RunView
    from benchwright.record.index import IndexRow
    from benchwright.record.run import RunRecord

PLAIN_WIDTH = 100
"""Columns where the output is no terminal."""

_STYLES = {
    "better": "bold green",
    "worse": "bold red",
    "equivalent": "bold",
    "inconclusive": "bold yellow",
    "no verdict": "bold yellow",
    "RELIABLE": "bold green",
    "QUALIFIED": "bold cyan",
    "EXPLORATORY": "bold yellow",
    "UNRELIABLE": "bold red",
    "PASS": "bold green",
    "PARTIAL": "bold yellow",
    "FAIL": "bold red",
    "INCONCLUSIVE": "bold yellow",
    "held": "green",
    "broken": "bold red",
    "unknown": "bold yellow",
    "not judged": "bold yellow",
    "failure": "bold red",
    "caveat": "bold yellow",
}

_LABEL_WIDTH = 13

_FIGURES = ("metric", "arm", "n", "mean", "median", "min", "max", "spread")


def terminal_width() -> int | None:
    """Columns of the terminal that standard output is; None: it is a file or a pipe."""
    if not sys.stdout.isatty():
        return None
    return shutil.get_terminal_size((PLAIN_WIDTH, 24)).columns


class _Page:
    """Lines for a terminal, collected."""

    def __init__(self, color: bool) -> None:
        from rich.console import Console

        width = terminal_width() or PLAIN_WIDTH
        self.color = color
        self._file = StringIO()
        self._console: Console = Console(
            file=self._file,
            force_terminal=color,
            no_color=not color,
            color_system="standard" if color else None,
            width=width,
            markup=False,
            emoji=False,
            highlight=False,
            legacy_windows=False,
        )

    def line(self, text: str = "", style: str = "") -> None:
        """One line of prose, wrapped at the width."""
        from rich.text import Text

        self._console.print(Text(one_line(text), style=style))

    def labelled(self, label: str, lines: Iterable[str], style: str = "") -> None:
        """Lines with a word before them, as in a list of definitions."""
        from rich.padding import Padding
        from rich.table import Table
        from rich.text import Text

        grid = Table.grid(padding=(0, 1))
        grid.add_column(width=_LABEL_WIDTH, no_wrap=True)
        grid.add_column(overflow="fold")
        for number, line in enumerate(lines):
            word = Text(label, style=style or _STYLES.get(label, "bold")) if number == 0 else Text()
            grid.add_row(word, Text(one_line(line)))
        self._console.print(Padding(grid, (0, 0, 0, 2)))

    def exact(self, label: str, text: str) -> None:
        """A word and a text to be copied, such as a path: never wrapped or shortened."""
        from rich.text import Text

        line = (
            Text("  ").append(label.ljust(_LABEL_WIDTH), style="bold").append(f" {one_line(text)}")
        )
        self._console.print(line, soft_wrap=True)

    def table(self, header: Sequence[str], rows: Iterable[Sequence[str]], right: range) -> None:
        """A table; columns in `right` are set flush right."""
        from rich import box
        from rich.table import Table
        from rich.text import Text

        table = Table(box=box.SIMPLE_HEAD if self.color else None, pad_edge=True, padding=(0, 1))
        for column, name in enumerate(header):
            table.add_column(
                name,
                justify="right" if column in right else "left",
                no_wrap=column in right,
                overflow="fold",
            )
        for row in rows:
            table.add_row(*(Text(one_line(cell)) for cell in row))
        self._console.print(table)

    def text(self) -> str:
        """What was collected, without spaces at the ends of lines."""
        return "".join(f"{line.rstrip()}\n" for line in self._file.getvalue().splitlines())


def render_run(record: RunRecord, *, color: bool = False) -> str:
    """A finished run: the arms, the verdicts, the guardrails, the tag, where the report is."""
    from benchwright.report import numbers
    from benchwright.report.sections import elapsed, tag_line, title
    from benchwright.report.spending import accounting, line

    view, judgement = record.view, record.view.judgement
    page = _Page(color)
    page.line(title(record), "bold")
    took = elapsed(record)
    page.line(
        f"{view.run_id} on {record.host or numbers.UNKNOWN}: {record.status}"
        + (f" after {numbers.duration(took)}" if took is not None else "")
    )
    measured = judgement is not None and any(
        summary.n for of_arm in judgement.summaries.values() for summary in of_arm.values()
    )
    if measured:
        _arms(page, record)
    page.line()
    if record.error:
        page.labelled("error", record.error.splitlines(), "bold red")
    tag, reason = tag_line(record)
    if judgement is not None and measured:
        _verdicts(page, judgement.verdicts)
        _guardrails(page, judgement.guardrails)
        if judgement.hypothesis is not None:
            page.labelled("hypothesis", [_hypothesis(judgement, reason)], "bold")
    page.labelled(tag, [reason or "no reason given"])
    if record.flagged:
        page.labelled("flagged", record.flagged, "bold yellow")
    if measured or not record.error:
        _wrong(page, record)
    hits = sum(result.cached for result in view.prep)
    if view.prep:
        page.labelled("prep", [f"{hits} from the cache, {len(view.prep) - hits} built"], "bold")
    sums = accounting(record)
    if sums is not None:
        page.labelled("spent", [line(sums)], "bold")
    if record.folder is not None:
        if (record.folder / "report.html").exists():
            page.exact("report", str(record.folder / "report.html"))
        if record.error and (record.folder / "logs").exists():
            page.exact("logs", str(record.folder / "logs"))
    return page.text()


def _hypothesis(judgement: Judgement, tag_reason: str) -> str:
    """The verdict on the hypothesis; what the tag gives as its reason too isn't said twice."""
    text = judgement.hypothesis_reason
    for finding in judgement.findings:
        if finding.message in text and finding.message in tag_reason:
            text = text.replace(finding.message, "see below.")
    return f"{judgement.hypothesis}: {text}"


_WRONG_SHOWN = 4
"""Lines on what went wrong; the report has all."""

_SAID_BY_PREP = ("cache-hit", "cache-miss")
"""Codes of the findings that the line on prep stands for."""


def _wrong(page: _Page, record: RunRecord) -> None:
    """What went wrong or remained unknown, and has no line of its own."""
    from benchwright.report.background import background
    from benchwright.report.outcome import NOT_REPRODUCED, went_wrong

    told, said = set(record.flagged), [record.error.partition("\n")[0]]
    judgement = record.view.judgement
    if judgement is not None:
        told |= {NOT_REPRODUCED}
        told |= {one.message for one in judgement.findings if one.code in _SAID_BY_PREP}
        said += [guardrail.reason for guardrail in judgement.guardrails]
        said += [verdict.reasons[0] for verdict in judgement.verdicts if verdict.reasons]
        said += [one.message for one in judgement.findings if one.message in judgement.tag_reason]
    wrong = [
        line
        for line in went_wrong(record, background(record).priors)
        if line not in told and not any(text.rstrip(".") in line for text in said if text)
    ]
    lines = wrong[:_WRONG_SHOWN]
    if len(wrong) > _WRONG_SHOWN:
        lines.append(f"and {len(wrong) - _WRONG_SHOWN} more in the report")
    if lines:
        page.labelled("unclear", lines, "bold yellow")


def _arms(page: _Page, record: RunRecord) -> None:
    from benchwright.report.sections import arm_names, metric_of

    judgement = record.view.judgement
    assert judgement is not None
    rows: list[tuple[str, ...]] = []
    names = dict.fromkeys(name for of_arm in judgement.summaries.values() for name in of_arm)
    for name in names:
        metric = metric_of(record, name)
        shown = f"{name} ({metric.unit})" if metric.unit else name
        for arm in arm_names(record):
            summary = judgement.summaries.get(arm, {}).get(name)
            if summary is not None:
                rows.append((shown, arm, *_figures(summary, metric)))
                shown = ""
    page.line()
    page.table(_FIGURES, rows, range(2, 8))


def _figures(summary: ArmSummary, metric: Any) -> tuple[str, ...]:
    from benchwright.report import numbers

    values = (summary.mean, summary.median, summary.min, summary.max)
    return (
        str(summary.n),
        *(numbers.figure(value) for value in values),
        numbers.spread(summary.spread, metric),
    )


def _verdicts(page: _Page, verdicts: Sequence[Verdict]) -> None:
    from benchwright.report.sections import because

    for verdict in verdicts:
        page.labelled(str(verdict.decision), because(verdict))


def _guardrails(page: _Page, guardrails: Sequence[GuardrailResult]) -> None:
    for guardrail in guardrails:
        word = {True: "held", False: "broken", None: "unknown"}[guardrail.held]
        page.labelled(word, [f"guardrail: {guardrail.reason}"])


_SAID_BEFORE = frozenset({"allowed-difference", "guardrail", "inconclusive", "no-verdict"})
"""Findings of a comparison that repeat what stands above them."""


def render_comparison(comparison: Comparison, *, color: bool = False) -> str:
    """What one run says against another."""
    page = _Page(color)
    page.line(f"{comparison.right} against {comparison.left}", "bold")
    page.line(f"what differs: {comparison.treatment or 'nothing that is recorded'}")
    _compared_arms(page, comparison.verdicts)
    page.line()
    _verdicts(page, comparison.verdicts)
    _guardrails(page, comparison.guardrails)
    page.labelled(str(comparison.tag), [comparison.tag_reason])
    for row in comparison.allowed:
        page.labelled(
            "allowed", [f"{row.field}: {row.left} against {row.right}. {row.why}"], "bold yellow"
        )
    _findings(page, [one for one in comparison.findings if one.code not in _SAID_BEFORE])
    return page.text()


def _compared_arms(page: _Page, verdicts: Sequence[Verdict]) -> None:
    """The figures of both runs, for each metric that has a verdict."""
    rows: list[tuple[str, ...]] = []
    for verdict in verdicts:
        metric = verdict.metric
        shown = f"{metric.name} ({metric.unit})" if metric.unit else metric.name
        rows.append((shown, verdict.baseline.arm, *_figures(verdict.baseline, metric)))
        rows.append(("", verdict.treatment.arm, *_figures(verdict.treatment, metric)))
    if rows:
        page.line()
        page.table(_FIGURES, rows, range(2, 8))


def render_analysis(view: RunView, findings: Sequence[Finding], *, color: bool = False) -> str:
    """A sceptic's reading of a run: what was seen, the number, the limit, what to do next."""
    from benchwright.record.run import RunRecord, Status
    from benchwright.report.sections import title

    page = _Page(color)
    page.line(title(RunRecord(view, Status.COMPLETED)), "bold")
    page.line(f"{view.run_id}: {view.tag or 'not judged'}")
    page.line()
    seen = [finding for finding in findings if finding.code != "next"]
    _findings(page, seen)
    if not seen:
        page.line("Nothing to object to was found in the record.")
    page.line()
    for step in findings:
        if step.code == "next":
            page.labelled("next", [f"{step.message}:" if step.command else step.message], "bold")
            if step.command:
                page.exact("", step.command)
    return page.text()


def _findings(page: _Page, findings: Sequence[Finding]) -> None:
    from benchwright.report import numbers

    for finding in findings:
        word = "failure" if finding.failure else "caveat" if finding.caveat else "seen"
        figures = ""
        if finding.number is not None:
            figures = f" ({numbers.figure(finding.number)}"
            if finding.limit is not None:
                figures += f", limit {numbers.figure(finding.limit)}"
            figures += ")"
        page.labelled(word, [f"{finding.code}: {finding.message}{figures}"])


_HISTORY = ("run_id", "status", "tag", "headline", "note")


def render_history(rows: Sequence[IndexRow], *, color: bool = False) -> str:
    """The table of runs, the newest last. Made without a library: it may have 10,000 rows."""
    if not rows:
        return "no run that fits is recorded here; start one: benchwright run FILE|RECIPE\n"
    limit = terminal_width()
    cells = [[one_line(getattr(row, name)) for name in _HISTORY] for row in rows]
    header = ["run", "status", "tag", "result", "note"]
    if not any(row[-1] for row in cells):
        header, cells = header[:-1], [row[:-1] for row in cells]
    widths = [max(map(len, column)) for column in zip(header, *cells, strict=True)]
    lines = []
    for number, row in enumerate([header, *cells]):
        line = "  ".join(
            cell.ljust(width) for cell, width in zip(row, widths, strict=True)
        ).rstrip()
        if limit is not None and len(line) > limit:
            line = f"{line[: limit - 1]}…"
        lines.append(f"\x1b[1m{line}\x1b[0m" if color and number == 0 else line)
    return "\n".join(lines) + "\n"

"""`report.md`: the report as Markdown that any viewer shows alike."""

from __future__ import annotations

import re

from benchwright.record.run import RunRecord
from benchwright.report.background import Background
from benchwright.report.plain import one_line
from benchwright.report.sections import (
    Block,
    Bullets,
    Commands,
    Facts,
    Paragraph,
    Section,
    Table,
    sections,
    title,
)

_ENTITIES = {"&": "&amp;", "<": "&lt;"}
_SPECIAL = re.compile(r"[\\`*\[\]|~&<]|(?<![^\W_])_|_(?![^\W_])|!(?=\[)")
_LEADING = re.compile(r"^(?:[#+\-=>]|\d+(?=[.)](?:\s|$)))")
_LINK = re.compile(r"(?i)\b(https?|ftp|mailto|www)(?=[:.])")


def escape(text: str) -> str:
    """A text as one line that shows as itself: no markup, no HTML, no link, no new line.

    Underscores inside words stay as they are: no dialect takes `p50_ms` for emphasis.
    """
    line = _SPECIAL.sub(lambda match: _ENTITIES.get(match[0], f"\\{match[0]}"), one_line(text))
    line = _LEADING.sub(_defused, line)
    # GitHub's dialect makes links of bare addresses; what a stage prints shall not be clicked.
    return _LINK.sub(lambda match: f"{match[0]}<!-- -->", line)


def _defused(match: re.Match[str]) -> str:
    found = match[0]
    return f"{found}\\" if found.isdigit() else f"\\{found}"


def render_markdown(record: RunRecord, around: Background | None = None) -> str:
    """A run's report as Markdown.

    Args:
        record: The run.
        around: What surrounds it: earlier runs and the notes that were applied.
    """
    parts = [f"# {escape(title(record))}"]
    for section in sections(record, around):
        parts += section_parts(section)
    return "\n\n".join(parts) + "\n"


def section_parts(section: Section) -> list[str]:
    """A section as paragraphs of Markdown."""
    return [f"## {section.title}", *(_block(block) for block in section.blocks)]


def _block(block: Block) -> str:
    match block:
        case Paragraph(text):
            return escape(text)
        case Bullets(items):
            return "\n".join(f"- {escape(item)}" for item in items)
        case Facts(rows):
            return _table(("", ""), rows)
        case Table(caption, header, rows, numeric):
            return f"**{escape(caption)}**\n\n{_table(header, rows, numeric)}"
        case Commands(lines):
            return "\n\n".join(f"{escape(purpose)}:\n\n{_code(line)}" for line, purpose in lines)


def _code(line: str) -> str:
    """A command as a block of code, fenced by more backticks than it has in a row."""
    longest = max((len(run) for run in re.findall(r"`+", line)), default=0)
    fence = "`" * max(3, longest + 1)
    return f"{fence}sh\n{one_line(line)}\n{fence}"


def _table(
    header: tuple[str, ...],
    rows: tuple[tuple[str, ...], ...],
    numeric: frozenset[int] = frozenset(),
) -> str:
    rule = ["---:" if column in numeric else "---" for column in range(len(header))]
    lines = [header, rule, *(tuple(map(escape, row)) for row in rows)]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)

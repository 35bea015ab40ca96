"""What the terminal shows: tables, errors, JSON. Colours only on a terminal.

Results go to standard output, progress and errors to standard error; with `--json` standard
output has one object and nothing else.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TextIO

import click

from benchwright.errors import BenchwrightError, GateRefused

if TYPE_CHECKING:
    from rich.console import Console

PLAIN_WIDTH = 120
"""Width of tables where the output is no terminal: nothing is cut off in a log."""


def print_json(data: Mapping[str, Any]) -> None:
    """Print one JSON object; NaN and infinity are refused, as JSON has none."""
    click.echo(json.dumps(data, indent=2, ensure_ascii=False, allow_nan=False, default=str))


def in_color(stream: TextIO) -> bool:
    """Whether a stream gets colours: a terminal does, unless `NO_COLOR` says otherwise.

    `NO_COLOR` set to nothing is not set (no-color.org).
    """
    return stream.isatty() and not os.environ.get("NO_COLOR")


def console(stream: TextIO | None = None) -> Console:
    """A rich console that is plain text where the stream is no terminal."""
    from rich.console import Console

    class _Console(Console):
        def on_broken_pipe(self) -> None:
            """Leave it to the caller: rich would end the program with code 1."""
            raise

    stream = stream or sys.stdout
    terminal = in_color(stream)
    return _Console(
        file=stream,
        force_terminal=terminal or None,
        color_system="auto" if terminal else None,
        width=None if stream.isatty() else PLAIN_WIDTH,
        highlight=False,
        soft_wrap=not stream.isatty(),
    )


def print_table(
    columns: Sequence[str],
    rows: Iterable[Sequence[str]],
    *,
    right: Iterable[str] = (),
    stream: TextIO | None = None,
) -> None:
    """Print a table; the columns named in `right` are aligned to the right."""
    from rich import box
    from rich.table import Table
    from rich.text import Text

    to_right = set(right)
    table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, header_style="bold")
    for name in columns:
        table.add_column(
            name, justify="right" if name in to_right else "left", overflow="fold", no_wrap=False
        )
    for row in rows:
        table.add_row(*(Text(cell) for cell in row))
    console(stream).print(table)


def show_markdown(text: str, stream: TextIO | None = None) -> None:
    """Show Markdown: laid out on a terminal, as it is written elsewhere."""
    stream = stream or sys.stdout
    if not stream.isatty():
        click.echo(text, file=stream)
        return
    from rich.markdown import Markdown

    console(stream).print(Markdown(text))


def print_error(problem: BenchwrightError | click.ClickException, *, as_json: bool) -> None:
    """Print an error for a person; with `--json`, an object with the same content."""
    if as_json:
        print_json({"error": error_json(problem)})
    if isinstance(problem, BenchwrightError):
        message = str(problem)
    elif isinstance(problem, click.UsageError):
        command = problem.ctx.command_path if problem.ctx else "benchwright"
        message = f"{problem.format_message()}\n  next: {command} --help"
    else:
        message = problem.format_message()
    label = click.style("error: ", fg="red", bold=True) if in_color(sys.stderr) else "error: "
    click.echo(label + message, err=True)
    if isinstance(problem, GateRefused) and problem.differences:
        print_table(
            ("what", *problem.columns, "why it matters"),
            [(row.field, row.left, row.right, row.why) for row in problem.differences],
            stream=sys.stderr,
        )


def error_json(problem: BenchwrightError | click.ClickException) -> dict[str, Any]:
    """An error as data."""
    if not isinstance(problem, BenchwrightError):
        return {"kind": "BadInput", "what": problem.format_message(), "exit_code": 2}
    data: dict[str, Any] = {
        "kind": type(problem).__name__,
        "what": problem.what,
        "where": str(problem.where) if problem.where else None,
        "expected": problem.expected,
        "next": problem.hint,
        "exit_code": problem.exit_code,
    }
    if isinstance(problem, GateRefused):
        data["differences"] = [
            {"field": row.field, "a": row.left, "b": row.right, "why": row.why}
            for row in problem.differences
        ]
    return data


def seconds(value: float | None) -> str:
    """A duration as people say it."""
    if value is None:
        return "unknown"
    if value < 90:
        return f"{value:.0f} s" if value >= 10 else f"{value:.1f} s"
    minutes, rest = divmod(round(value), 60)
    if minutes < 90:
        return f"{minutes} min {rest} s"
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min"

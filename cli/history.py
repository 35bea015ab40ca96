"""`benchwright history`: earlier runs, or a metric's course over them."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from dataclasses import asdict
from pathlib import Path

import click

from benchwright.errors import BadInput, Where
from cli.options import home_option, json_option, open_home
from cli.output import in_color, print_json


@click.command(
    epilog="\b\nExamples:\n"
    "  benchwright history --tag RELIABLE\n"
    "  benchwright history --recipe retrieval-index --metric p50_ms --html course.html"
)
@click.option("--tag", help="Only runs with this tag.")
@click.option("--domain", help="Only runs of this domain.")
@click.option("--recipe", help="Only runs of this recipe.")
@click.option("--status", help="Only runs with this status.")
@click.option("--metric", metavar="NAME", help="Show this metric's course over the runs.")
@click.option("--html", metavar="FILE", help="Write the course as a page instead.")
@click.option("--rebuild", is_flag=True, help="Make the index again from the runs' folders.")
@home_option
@json_option
def history(
    tag: str | None,
    domain: str | None,
    recipe: str | None,
    status: str | None,
    metric: str | None,
    html: str | None,
    rebuild: bool,
    home: str | None,
    as_json: bool,
) -> None:
    """List earlier runs, the newest last, or a metric's course over them."""
    from benchwright.record.index import UNREADABLE, read_index, rebuild_index
    from benchwright.record.run import Status

    place = open_home(home, reading=not rebuild)
    if tag is not None:
        from benchwright.judgement.verdict import Tag

        tag = one_of_these(tag, Tag, "--tag")
    if status is not None:
        status = one_of_these(status, (*Status, UNREADABLE), "--status")
    if rebuild:
        rebuild_index(place)
    rows = read_index(place, tag=tag, domain=domain, recipe=recipe, status=status)
    if metric is not None:
        _course(place, [row.run_id for row in rows], metric, html, as_json)
    elif html is not None:
        raise click.UsageError("--html shows a metric's course: add --metric NAME")
    elif as_json:
        print_json({"runs": [asdict(row) for row in rows]})
    else:
        from benchwright.report.text import render_history

        click.echo(render_history(rows, color=in_color(sys.stdout)), nl=False)


def one_of_these(text: str, known: Iterable[str], option: str) -> str:
    """The known word that a person wrote in any case. Raises BadInput."""
    word, words = text.strip().upper(), [str(name) for name in known]
    if word not in words:
        raise BadInput(
            f"there is no '{text}'",
            where=Where(key=option),
            expected=f"one of {', '.join(words)}",
        )
    return word


def _course(home: Path, run_ids: list[str], metric: str, html: str | None, as_json: bool) -> None:
    from benchwright.report.course import course_of, render_course, render_course_html

    course = course_of(home, run_ids, metric)
    if html is not None:
        Path(html).write_text(render_course_html(course), encoding="utf-8")
        click.echo(html)
    elif as_json:
        print_json({"metric": metric, "course": [asdict(point) for point in course.points]})
    else:
        click.echo(render_course(course, color=in_color(sys.stdout)), nl=False)

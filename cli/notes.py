"""`benchwright lessons` and `risks`: what was learned, and what may go wrong."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING

import click

from cli.options import home_option, json_option, open_home
from cli.output import print_json, print_table

if TYPE_CHECKING:
    from benchwright.record.lessons import Entry


def _notes(name: str, what: str) -> click.Group:
    """The verbs of one append-only list."""

    @click.group(
        name=name,
        help=f"{what} Append-only; `plan` shows those that match.",
        epilog=f"\b\nExample:\n  benchwright {name} add 'merge before you measure'"
        " --recipe retrieval-index",
    )
    def group() -> None:
        pass

    @group.command()
    @click.argument("text")
    @click.option("--domain", default="", help="Only for this domain.")
    @click.option("--recipe", default="", help="Only for this recipe.")
    @click.option(
        "-p",
        "--param",
        "params",
        multiple=True,
        metavar="NAME[=VALUE]",
        help="Only where this parameter is declared, or has this value.",
    )
    @home_option
    @json_option
    def add(
        text: str,
        domain: str,
        recipe: str,
        params: tuple[str, ...],
        home: str | None,
        as_json: bool,
    ) -> None:
        """Add one."""
        from benchwright.record.lessons import notebook

        entry = notebook(open_home(home), name).add(
            text, domain=domain, recipe=recipe, params=params
        )
        if as_json:
            print_json({"id": entry.id, "text": entry.text})
        else:
            click.echo(entry.id)

    @group.command("list")
    @home_option
    @json_option
    def list_entries(home: str | None, as_json: bool) -> None:
        """List them, the oldest first."""
        from benchwright.record.lessons import notebook

        found = notebook(open_home(home, reading=True), name).list()
        if as_json:
            print_json({name: [asdict(entry) for entry in found]})
            return
        print_table(
            ("id", "date", "about", "text"),
            [(entry.id, entry.date, _about(entry), entry.text) for entry in found],
        )

    return group


def _about(entry: Entry) -> str:
    return " ".join(filter(None, (entry.domain, entry.recipe, *entry.params)))


lessons = _notes("lessons", "What was learned.")
risks = _notes("risks", "What may go wrong.")

"""`benchwright lessons` and `risks`: what was learned, and what may go wrong."""

from __future__ import annotations

import click

from cli.options import home_option, json_option, open_home
from cli.output import print_json, print_table


def _notes(kind: str, what: str) -> click.Group:
    """The verbs of one append-only list."""

    @click.group(
        name=kind,
        help=f"{what} Append-only; `plan` shows those that match.",
        epilog=f"\b\nExample:\n  benchwright {kind} add 'merge before you measure'"
        " --recipe retrieval-index",
    )
    def group() -> None:
        pass

    @group.command()
    @click.argument("text")
    @click.option("--domain", default="", help="Only for this domain.")
    @click.option("--recipe", default="", help="Only for this recipe.")
    @click.option(
        "-p", "--param", "params", multiple=True, metavar="NAME", help="Only with this parameter."
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

        note = notebook(open_home(home), kind).add(
            text, domain=domain, recipe=recipe, params=params
        )
        if as_json:
            print_json({"id": note.id, "text": note.text})
        else:
            click.echo(note.id)

    @group.command("list")
    @home_option
    @json_option
    def list_notes(home: str | None, as_json: bool) -> None:
        """List them, the oldest first."""
        from benchwright.record.lessons import notebook

        found = notebook(open_home(home), kind).list()
        if as_json:
            rows = [{"id": n.id, "date": n.date, "text": n.text} for n in found]
            print_json({kind: rows})
            return
        print_table(
            ("id", "date", "for", "text"),
            [
                (n.id, n.date, " ".join(filter(None, (n.domain, n.recipe, *n.params))), n.text)
                for n in found
            ],
        )

    return group


lessons = _notes("lessons", "What was learned.")
risks = _notes("risks", "What may go wrong.")

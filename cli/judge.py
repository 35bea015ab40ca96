"""`benchwright compare`, `analyze` and `reclassify`: believing a result, or not."""

from __future__ import annotations

import sys
from dataclasses import asdict

import click

from cli.options import home_option, json_option, open_home
from cli.output import in_color, print_json


@click.command(
    epilog="\b\nExamples:\n"
    "  benchwright compare 1a2b3c 4d5e6f\n"
    "  benchwright compare 1a2b3c 4d5e6f --allow machine.kernel"
)
@click.argument("a")
@click.argument("b")
@click.option(
    "--allow",
    multiple=True,
    metavar="FIELD",
    help="Compare in spite of this difference; the result is QUALIFIED at best.",
)
@home_option
@json_option
def compare(a: str, b: str, allow: tuple[str, ...], home: str | None, as_json: bool) -> None:
    """Compare run B with run A, its baseline.

    The gates come first: unless the two are the same experiment but for the treatment, and were
    measured alike, the comparison is refused, with every difference.
    """
    from benchwright.judgement.compare import compare_runs
    from benchwright.record.audit import record_comparison
    from benchwright.record.run_id import find_run
    from benchwright.record.store import RunStore

    place = open_home(home)
    store = RunStore(place)
    first, second = (store.open(find_run(place, name)) for name in (a, b))
    comparison = compare_runs(first.view(), second.view(), allow=allow)
    record_comparison(place, first.run_id, second.run_id)
    if as_json:
        from benchwright.report.json import comparison_json

        print_json(comparison_json(comparison))
    else:
        from benchwright.report.text import render_comparison

        click.echo(render_comparison(comparison, color=in_color(sys.stdout)), nl=False)


@click.command(epilog="\b\nExample:\n  benchwright analyze 1a2b3c")
@click.argument("run")
@home_option
@json_option
def analyze(run: str, home: str | None, as_json: bool) -> None:
    """Read RUN as a sceptic would, from its record alone."""
    from benchwright.judgement.sceptic import analyze as read
    from benchwright.record.prior import priors
    from benchwright.record.run_id import find_run
    from benchwright.record.store import RunStore
    from benchwright.report.sections import command_in_place

    place = open_home(home, reading=True)
    record = RunStore(place).open(find_run(place, run)).read()
    view = record.view
    earlier = [
        prior
        for prior in priors(
            place,
            view.config.domain,
            view.config.recipe,
            config_hash=view.config_hash,
            before=view.run_id,
            like=view.config,
        )
        if prior.created < view.created and prior.run_id != view.run_id
    ]
    findings = read(view, earlier, command_in_place(record))
    if as_json:
        print_json({"run_id": view.run_id, "findings": [asdict(item) for item in findings]})
    else:
        from benchwright.report.text import render_analysis

        click.echo(render_analysis(view, findings, color=in_color(sys.stdout)), nl=False)


@click.command(
    epilog="\b\nExample:\n"
    "  benchwright reclassify 1a2b3c UNRELIABLE --reason 'a backup ran beside it'"
)
@click.argument("run")
@click.argument("tag")
@click.option("--reason", required=True, metavar="TEXT", help="Why; kept in the record.")
@home_option
@json_option
def reclassify(run: str, tag: str, reason: str, home: str | None, as_json: bool) -> None:
    """Lower RUN's tag to TAG. Runs that were compared with it are flagged; nothing is deleted.

    A tag is never raised except by running again.
    """
    from benchwright.judgement.reclassify import check_lowering, parse_tag
    from benchwright.record.audit import record_reclassification
    from benchwright.record.run_id import find_run
    from benchwright.record.store import RunStore

    place = open_home(home)
    folder = RunStore(place).open(find_run(place, run))
    was = folder.view(samples=False).tag
    wanted = parse_tag(tag)
    check_lowering(was, wanted)
    flagged = record_reclassification(place, folder.run_id, wanted, reason, was=was)
    if as_json:
        print_json({"run_id": folder.run_id, "tag": wanted.value, "flagged": list(flagged)})
        return
    click.echo(f"{folder.run_id} is {wanted.value} now")
    for other in flagged:
        click.echo(f"flagged, since it was compared with it: {other}")

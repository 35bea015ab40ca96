"""Options that several verbs share."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

if TYPE_CHECKING:
    from benchwright.spec.resolve import Resolved

Command = TypeVar("Command", bound=Callable[..., Any])


def home_option(command: Command) -> Command:
    """`--home DIR`."""
    return click.option(
        "--home",
        metavar="DIR",
        help="Where records are kept. Default: $BENCHMARK_HOME, else ./benchmark_data.",
    )(command)


def json_option(command: Command) -> Command:
    """`--json`."""
    return click.option(
        "--json", "as_json", is_flag=True, help="Print one JSON object, and nothing else."
    )(command)


def experiment_options(command: Command) -> Command:
    """The experiment and what the command line changes about it."""
    command = click.option(
        "--because",
        metavar="TEXT",
        help="The reason for what -p changes since the latest RELIABLE run, and for going on in"
        " spite of the plan's challenges; kept in the record.",
    )(command)
    command = click.option(
        "--replicates",
        type=click.IntRange(1),
        metavar="N",
        help="Replicates of each arm, instead of the configuration's.",
    )(command)
    command = click.option(
        "-p",
        "--param",
        "overrides",
        multiple=True,
        metavar="KEY=VALUE",
        help="Set a parameter by its dotted name; can be repeated.",
    )(command)
    return click.argument("target", metavar="FILE|RECIPE")(command)


def resolve_target(
    target: str,
    overrides: tuple[str, ...],
    replicates: int | None,
    hypothesis: str | None = None,
    because: str | None = None,
) -> Resolved:
    """The complete configuration of what the command line names. Raises BadInput."""
    from benchwright.spec.recipe import RecipeLibrary
    from benchwright.spec.resolve import resolve
    from domains.library import known_domains, recipe_folders

    return resolve(
        target,
        domains=known_domains(target),
        recipes=RecipeLibrary(recipe_folders()),
        overrides=overrides,
        replicates=replicates,
        hypothesis=hypothesis,
        because=because,
    )


def open_home(option: str | None, *, reading: bool = False) -> Path:
    """The folder of records and artifacts. Raises BadInput where it can't be used."""
    from benchwright.record.home import benchmark_home

    return benchmark_home(option, reading=reading)

"""`benchwright recipes`: the experiments that are ready to run."""

from __future__ import annotations

import click

from cli.options import json_option
from cli.output import print_json, print_table


@click.command(epilog="\b\nExample:\n  benchwright run retrieval-index")
@json_option
def recipes(as_json: bool) -> None:
    """List the experiments that are ready to run."""
    from benchwright.spec.recipe import RecipeLibrary
    from domains.library import recipe_folders

    library = RecipeLibrary(recipe_folders())
    found = [library.get(name) for name in library.names()]
    if as_json:
        print_json({"recipes": [{"name": r.name, "summary": r.summary} for r in found]})
        return
    print_table(("recipe", "what it asks"), [(recipe.name, recipe.summary) for recipe in found])

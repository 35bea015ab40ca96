"""`benchwright domain`: a configuration or a Python domain to start from."""

from __future__ import annotations

from pathlib import Path

import click

from benchwright.errors import BadInput, Where
from cli.options import json_option
from cli.output import print_json


@click.command(
    epilog="\b\nExamples:\n"
    "  benchwright domain my-index --recipe retrieval-index\n"
    "  benchwright domain sorting"
)
@click.argument("name")
@click.option("--recipe", metavar="R", help="Write a configuration that starts from this recipe.")
@click.option(
    "--python/--yaml", "as_python", default=None, help="A typed Python domain, or a YAML file."
)
@click.option("--into", metavar="DIR", default=".", help="Where to write. Default: here.")
@json_option
def domain(name: str, recipe: str | None, as_python: bool | None, into: str, as_json: bool) -> None:
    """Write a commented, runnable configuration, or a typed Python domain with its test.

    With --recipe, or --yaml: NAME.yaml. Otherwise a Python domain.
    """
    from domains.scaffold import scaffold_config, scaffold_domain

    if as_python and recipe:
        raise BadInput("--recipe writes YAML, and --python a Python domain", hint="leave one out")
    if recipe or as_python is False:
        files = {f"{name}.yaml": scaffold_config(recipe)}
    else:
        files = {str(path): text for path, text in scaffold_domain(name).items()}
    for path in files:
        if Path(into, path).exists():
            raise BadInput(
                f"{Path(into, path)} exists; nothing was written", hint="choose another name"
            )
    written = [_write(Path(into, path), text) for path, text in files.items()]
    first = next(path for path in written if path.suffix == ".yaml")
    if as_json:
        print_json({"written": [str(path) for path in written], "configuration": str(first)})
        return
    for path in written:
        click.echo(path)
    click.echo(f"next: benchwright plan {first}", err=True)


def _write(target: Path, text: str) -> Path:
    """Write one file; a script can be executed."""
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(text, encoding="utf-8")
        if text.startswith("#!"):
            target.chmod(0o755)
    except OSError as problem:
        raise BadInput(
            f"can't be written: {problem.strerror}",
            where=Where(file=problem.filename or target),
            expected="a folder that you may write to",
            hint="name another one with --into DIR",
        ) from problem
    return target

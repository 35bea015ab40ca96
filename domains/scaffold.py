"""What `benchwright domain` writes: a configuration or a typed domain to start from.

Everything here runs as it is, and is made to be changed: each line that can be is commented.
"""

from __future__ import annotations

import json
import keyword
import sys
from collections.abc import Iterator, Mapping
from importlib.util import find_spec
from pathlib import Path
from textwrap import wrap
from typing import Any

from benchwright.errors import BadInput

TEMPLATES = Path(__file__).parent / "templates"


def scaffold_config(recipe: str | None) -> str:
    """A commented configuration that runs.

    Args:
        recipe: The recipe that fills in what the file leaves out; None for a file that says it all.

    Raises:
        BadInput: There is no such recipe, with the nearest.
    """
    if recipe is None:
        return (TEMPLATES / "experiment.yaml").read_text(encoding="utf-8")
    from benchwright.spec.recipe import RecipeLibrary
    from benchwright.spec.values import flatten
    from domains.library import recipe_folders

    found = RecipeLibrary(recipe_folders()).get(recipe)
    said = found.document.data
    reasons = {entry.name: entry.reason for entry in found.manifest.entries}
    variable = said.get("treatment_variable")
    return _fill(
        "from_recipe.yaml.j2",
        recipe=found.name,
        summary=found.summary or "an experiment that is filled in already",
        domain=said["domain"],
        hypothesis=_folded(str(said.get("hypothesis") or "p50_ms falls by 10 %")),
        params="\n".join(_commented(said.get("params") or {}, reasons)) or "# params: {}",
        variable=variable or "PARAMETER",
        values=_yaml(list(said.get("treatment_values") or ())),
        baseline=_yaml(flatten(said.get("params") or {}).get(variable or "", "unknown")),
        comment="" if variable else "# ",
    )


def scaffold_domain(name: str) -> dict[Path, str]:
    """A typed Python domain, its stages' functions, its test, and a configuration that uses it.

    Args:
        name: The word after `domain:`. Its module has `_` where the name has `-`.

    Raises:
        BadInput: The name is no domain's name, or its module would hide another one.
    """
    module = name.replace("-", "_")
    if not module.isidentifier() or not module.isascii() or keyword.iskeyword(module):
        raise BadInput(
            f"'{name}' can't be a domain's name",
            expected="a letter first, then letters, digits, '_' and '-'; no word of Python's",
        )
    for taken in (module, f"{module}_stages"):
        if taken in sys.stdlib_module_names or _installed(taken):
            raise BadInput(
                f"a domain '{name}' would have the module '{taken}', which Python has already",
                expected="a name of its own",
                hint=f"benchwright domain my-{name}",
            )
    words = {
        "name": name,
        "module": module,
        "Class": "".join(part[:1].upper() + part[1:] for part in module.split("_")) + "Domain",
    }

    return {
        Path(f"{module}.py"): _fill("domain.py.j2", **words),
        Path(f"{module}_stages.py"): _fill("stages.py.j2", **words),
        Path(f"test_{module}.py"): _fill("test_domain.py.j2", **words),
        Path(f"{name}.yaml"): _fill("domain.yaml.j2", **words),
    }


def _fill(template: str, **words: str) -> str:
    """A template with its words filled in; a word that is missing is an error."""
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    environment = Environment(
        loader=FileSystemLoader(TEMPLATES),
        undefined=StrictUndefined,
        keep_trailing_newline=True,
        autoescape=False,  # YAML and Python, not HTML
    )
    return environment.get_template(template).render(words)


def _installed(module: str) -> bool:
    """Whether the module can be imported from elsewhere than the current folder."""
    try:
        spec = find_spec(module)
    except (ImportError, ValueError):
        return False
    origin = spec.origin if spec is not None else None
    return origin is not None and Path(origin).resolve().parent != Path.cwd()


def _commented(
    params: Mapping[str, Any], reasons: Mapping[str, str], prefix: str = "", depth: int = 1
) -> Iterator[str]:
    """The parameters as commented YAML, each with why the manifest asks for it."""
    if not prefix and params:
        yield "# params:"
    for key, value in params.items():
        name = f"{prefix}{key}"
        indent = "#" + " " * (2 * depth + 1)
        if isinstance(value, Mapping):
            yield f"{indent}{key}:"
            yield from _commented(value, reasons, f"{name}.", depth + 1)
        else:
            if name in reasons:
                yield f"{indent}# {reasons[name]}"
            yield f"{indent}{key}: {_yaml(value)}"


def _folded(text: str) -> str:
    """A text as the lines of a `>-` block that the template has begun."""
    return "\n  ".join(wrap(" ".join(text.split()), 90))


def _yaml(value: Any) -> str:
    """A value on one line, as YAML 1.2 and JSON both read it; plain words without quotes."""
    if isinstance(value, str) and value.isidentifier():
        return value
    return json.dumps(value)

"""From a flow's parameters to a run: one that exists already, or one that is planned here."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

from benchwright.errors import BadInput, Where
from benchwright.planning.plan import make_plan, refuse_challenged
from benchwright.planning.start import create_run
from benchwright.record.home import benchmark_home
from benchwright.record.store import RunFolder, RunStore
from benchwright.spec.model import BenchmarkConfig
from benchwright.spec.recipe import RecipeLibrary
from benchwright.spec.resolve import Resolved, from_mapping, resolve
from domains.library import known_domains, recipe_folders


def open_run(
    *,
    config: BenchmarkConfig | None,
    path: str | None,
    digest: str | None,
    run_id: str | None,
    home: str | None,
    folder: str | None,
    because: str | None,
) -> RunFolder:
    """The folder of the run that a flow was started for; see `flows.benchmark.benchmark`.

    Raises:
        BadInput: Not exactly one of `config`, `path` and `run_id`, or a file that has changed.
        GateRefused: The plan is refused.
    """
    given = [
        name for name, value in (("config", config), ("path", path), ("run_id", run_id)) if value
    ]
    if len(given) != 1:
        raise BadInput(
            f"the flow was given {' and '.join(given) or 'no experiment'}",
            expected="exactly one of config, path and run_id",
        )
    place = benchmark_home(home)
    if run_id is not None:
        return RunStore(place).open(run_id)
    resolved = _resolved(config, path, digest, folder)
    plan = make_plan(resolved, place, os.environ)
    refuse_challenged(plan, because)
    return create_run(plan, place, because=because)


def _resolved(
    config: BenchmarkConfig | None, path: str | None, digest: str | None, folder: str | None
) -> Resolved:
    near = path if config is None else folder or Path.cwd()
    domains, recipes = known_domains(near), RecipeLibrary(recipe_folders())
    if config is not None:
        return from_mapping(
            config.model_dump(mode="json", exclude_unset=True),
            folder=Path(folder) if folder else Path.cwd(),
            domains=domains,
            recipes=recipes,
        )
    assert path is not None
    if digest is not None:
        found = hashlib.sha256(Path(path).read_bytes()).hexdigest()
        if found != digest.lower():
            raise BadInput(
                "the configuration is not the one that was asked for",
                where=Where(file=path),
                expected=f"SHA-256 {digest}",
                hint=f"its SHA-256 is {found}: submit it again",
            )
    return resolve(path, domains=domains, recipes=recipes)

"""What `benchwright domain` writes runs as it is."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from benchwright.errors import BadInput
from benchwright.spec.recipe import RecipeLibrary
from benchwright.spec.resolve import resolve
from benchwright.spec.template import parse
from benchwright.spec.values import as_text
from domains.library import known_domains, recipe_folders
from domains.scaffold import scaffold_config, scaffold_domain


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """An empty folder; what is imported from it is forgotten afterwards."""
    monkeypatch.chdir(tmp_path)
    modules, paths = set(sys.modules), list(sys.path)
    yield tmp_path
    for name in set(sys.modules) - modules:
        del sys.modules[name]
    sys.path[:] = paths


def resolved(file: Path):
    return resolve(
        str(file), domains=known_domains(file), recipes=RecipeLibrary(recipe_folders())
    ).config


def test_the_commented_experiment_is_complete_and_its_commands_give_its_metrics(folder):
    (folder / "experiment.yaml").write_text(scaffold_config(None))
    config = resolved(folder / "experiment.yaml")
    data, compress = config.stages
    sizes = {}
    for level in (6, 1):
        flat = {**config.flat_params, "data.lines": 5000, "gzip.level": level}
        values = {name: as_text(value) for name, value in flat.items()}
        values["visits"] = str(folder / "visits with spaces")
        for stage in (data, compress):
            assert stage.cmd is not None
            done = subprocess.run(
                ["bash", "-e", "-o", "pipefail", "-c", parse(stage.cmd).render(values)],
                env={**os.environ, **{k: v or "" for k, v in stage.env.items()}},
                capture_output=True,
                text=True,
                check=True,
            )
        found = json.loads(done.stdout)
        assert found.keys() == {metric.name for metric in config.metrics}
        assert found["compress_ms"] > 0
        sizes[level] = found["bytes"]
    assert sizes[6] < sizes[1] < 1.33 * sizes[6], "the guardrail has something to guard"


def test_a_file_from_a_recipe_says_the_same_as_the_recipe(folder):
    (folder / "mine.yaml").write_text(scaffold_config("retrieval-index"))
    mine = resolved(folder / "mine.yaml")
    theirs = resolve(
        "retrieval-index", domains=known_domains(), recipes=RecipeLibrary(recipe_folders())
    ).config
    assert mine == theirs


def test_the_commented_parameters_of_a_recipe_are_its_own_when_uncommented(folder):
    text = scaffold_config("retrieval-index")
    lines = text.splitlines()
    start = lines.index("# params:")
    end = next(number for number in range(start, len(lines)) if not lines[number])
    lines[start:end] = [line.removeprefix("# ") for line in lines[start:end]]
    changed = "\n".join(lines).replace("n_docs: 20000", "n_docs: 123")
    (folder / "mine.yaml").write_text(changed)
    params = resolved(folder / "mine.yaml").flat_params
    recipe = RecipeLibrary(recipe_folders()).get("retrieval-index")
    defaults = {entry.name: entry.default for entry in recipe.manifest.entries}
    assert params == {**defaults, "corpus.n_docs": 123}
    assert all(entry.reason in text for entry in recipe.manifest.entries)


def test_an_unknown_recipe_is_refused_with_the_nearest():
    with pytest.raises(BadInput, match="there is no recipe") as refused:
        scaffold_config("retrieval-idnex")
    assert "retrieval-index" in str(refused.value)


def test_a_scaffolded_domain_resolves_and_its_own_test_passes(folder):
    for path, text in scaffold_domain("zz-hashing").items():
        path.write_text(text)
    assert {path.name for path in folder.iterdir()} == {
        "zz_hashing.py",
        "zz_hashing_stages.py",
        "test_zz_hashing.py",
        "zz-hashing.yaml",
    }
    config = resolved(folder / "zz-hashing.yaml")
    assert [stage.name for stage in config.stages] == ["write", "read"]
    assert {metric.name for metric in config.metrics} == {"hash_ms", "right"}
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(folder)],
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout
    assert "4 passed" in done.stdout


def test_a_scaffolded_domain_is_written_as_this_projects_own_code_is(folder):
    for path, text in scaffold_domain("zz-hashing").items():
        path.write_text(text)
    files = [str(path) for path in folder.glob("*.py")]
    ruff = [sys.executable, "-m", "ruff"]
    settings = ["--config", str(Path(__file__).parents[2] / "pyproject.toml")]
    ignored = ["--ignore", "D1,I"]  # imports are sorted by what a folder holds
    for command in (
        ["check", *settings, *ignored, *files],
        ["format", "--check", *settings, *files],
    ):
        done = subprocess.run([*ruff, *command], capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout


@pytest.mark.parametrize("name", ["json", "a b", "2nd", "class", "../evil", "", "pytest", "é"])
def test_a_name_that_cant_be_a_module_is_refused(folder, name):
    with pytest.raises(BadInput):
        scaffold_domain(name)
    assert list(folder.iterdir()) == []

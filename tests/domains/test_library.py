"""Which domains and recipes can be named, and what happens to those that can't be loaded."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest

from benchwright import BadInput, BenchmarkConfig
from domains import library
from domains.command import CommandDomain
from domains.library import known_domains, recipe_folders

LOCAL = """
from benchwright import Domain, Stage, StageKind

class Local(Domain):
    name = "{name}"
    def stages(self, config):
        return (Stage(name="go", kind=StageKind.MEASURE, function="{module}:go"),)

def go(context):
    return {{"ms": 1.0}}
"""


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    """A configuration's folder; what is imported from it is forgotten afterwards."""
    modules, paths = set(sys.modules), list(sys.path)
    yield tmp_path
    for name in set(sys.modules) - modules:
        del sys.modules[name]
    sys.path[:] = paths


def test_command_takes_the_stages_of_the_configuration_and_refuses_one_without():
    domain = known_domains().known["command"]
    assert isinstance(domain, CommandDomain)
    empty = BenchmarkConfig(domain="command")
    with pytest.raises(BadInput, match="has no stages") as refused:
        domain.check(empty)
    assert "benchwright recipes" in str(refused.value)
    stages = ({"name": "go", "kind": "measure", "cmd": "true"},)
    config = BenchmarkConfig.model_validate({"domain": "command", "stages": stages})
    domain.check(config)
    assert domain.stages(config) == config.stages


def test_a_domain_beside_a_configuration_is_found_from_the_file_and_from_its_folder(folder):
    (folder / "zz_local.py").write_text(LOCAL.format(name="zz-local", module="zz_local"))
    (folder / "config.yaml").write_text("domain: zz-local\n")
    for near in (folder, folder / "config.yaml", str(folder / "config.yaml")):
        domain = known_domains(near).known["zz-local"]
        assert domain.stages(BenchmarkConfig(domain="zz-local"))[0].function == "zz_local:go"
    assert "zz-local" not in known_domains().known
    assert "zz-local" not in known_domains("a-recipe").known


def test_scripts_beside_a_configuration_are_not_run_by_looking_for_domains(folder):
    mark = folder / "ran"
    harm = f"open({str(mark)!r}, 'w')\n"
    (folder / "build_index.py").write_text(harm + "class Index: pass\n")
    (folder / "talks.py").write_text(harm + "# mentions Domain\n")
    (folder / "old.py").write_text(harm + "print 'Domain of Python 2'\n")
    assert "command" in known_domains(folder).known
    assert not mark.exists()


def test_a_file_that_defines_a_domain_and_fails_is_refused_with_its_line(folder):
    text = LOCAL.format(name="x", module="zz_broken") + "\nimport nowhere_to_be_found\n"
    (folder / "zz_broken.py").write_text(text)
    with pytest.raises(BadInput, match="nowhere_to_be_found") as refused:
        known_domains(folder)
    line = len(text.splitlines())
    assert str(refused.value).startswith(f"{folder / 'zz_broken.py'}:{line}: ")
    assert "zz_broken" not in sys.modules


def test_a_file_that_has_the_name_of_another_module_is_refused(folder):
    (folder / "pytest.py").write_text(LOCAL.format(name="x", module="pytest"))
    with pytest.raises(BadInput, match="name of a module that is loaded already"):
        known_domains(folder)


def announce(monkeypatch: pytest.MonkeyPatch, value: str) -> None:
    entry = EntryPoint("theirs", value, library.ENTRY_POINTS)
    monkeypatch.setattr(library, "entry_points", lambda group: [entry])


def test_a_domain_of_an_installed_package_is_known_by_its_own_name(monkeypatch):
    announce(monkeypatch, "tests.domains.samples:SortingDomain")
    assert known_domains().known["sorting"].version == "1"


@pytest.mark.parametrize(
    "value", ["nowhere_to_be_found:Domain", "tests.domains.samples:Nothing", "json:JSONDecoder"]
)
def test_a_package_that_cant_be_loaded_harms_only_those_who_use_it(monkeypatch, value):
    announce(monkeypatch, value)
    domains = known_domains().known
    assert "command" in domains
    config = BenchmarkConfig(domain="theirs")
    for use in (domains["theirs"].check, domains["theirs"].stages):
        with pytest.raises(BadInput, match="can't be loaded"):
            use(config)


def test_recipes_are_looked_for_here_first_and_then_in_those_that_came_along(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    packaged = recipe_folders()
    assert [(path / "retrieval-index" / "recipe.yaml").exists() for path in packaged] == [True]
    (tmp_path / "recipes").mkdir()
    assert recipe_folders() == (tmp_path / "recipes", *packaged)

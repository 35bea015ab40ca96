"""Recipes and manifests: what is found, what is refused, and that a manifest only grows."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchwright.errors import BadInput
from benchwright.spec.manifest import (
    Manifest,
    ManifestEntry,
    manifest_only_grows,
    read_manifest,
)
from benchwright.spec.recipe import RecipeLibrary

MANIFEST = """\
entries:
  - name: corpus.n_docs
    reason: a larger collection is slower
    default: 20000
    verify: "effective: n_docs"
    impact: times differ by its size
    since: "1"
  - name: seed
    reason: another collection
    since: "1"
"""


def add_recipe(folder: Path, name: str, text: str, manifest: str | None = None) -> Path:
    recipe = folder / name
    recipe.mkdir(parents=True)
    (recipe / "recipe.yaml").write_text(text)
    if manifest is not None:
        (recipe / "manifest.yaml").write_text(manifest)
    return recipe


def test_recipes_are_found_by_name_and_the_first_folder_counts(tmp_path: Path) -> None:
    add_recipe(tmp_path / "a", "fast", "domain: command\nsummary: mine\n")
    add_recipe(tmp_path / "b", "fast", "domain: command\nsummary: theirs\n")
    add_recipe(tmp_path / "b", "slow", "domain: command\n", MANIFEST)
    (tmp_path / "b" / "no-recipe").mkdir()
    library = RecipeLibrary([tmp_path / "a", tmp_path / "b", tmp_path / "none"])
    assert library.names() == ("fast", "slow")
    assert library.get("fast").summary == "mine"
    assert library.get("fast").manifest == Manifest()
    assert library.get("slow").summary == ""
    assert [entry.name for entry in library.get("slow").manifest.entries] == [
        "corpus.n_docs",
        "seed",
    ]
    assert library.get("slow").folder == tmp_path / "b" / "slow"


@pytest.mark.parametrize("name", ["fst", "../a/fast", "", "."])
def test_an_unknown_recipe_is_refused(tmp_path: Path, name: str) -> None:
    add_recipe(tmp_path, "fast", "domain: command\n")
    with pytest.raises(BadInput, match="there is no recipe") as caught:
        RecipeLibrary([tmp_path]).get(name)
    if name == "fst":
        assert "did you mean `fast`?" in str(caught.value)


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("reason: a larger", "reasn: a larger", ":3: entries.corpus.n_docs.reasn: "),
        ("reason: another collection", "reason: ''", ":9: entries.seed.reason: "),
        ('    since: "1"\n  - name', "  - name", ":2: entries.corpus.n_docs.since: "),
        ("name: seed", "name: corpus.n_docs", "stands twice"),
        ("    reason: another collection\n", "", "`reason` is missing"),
        ("entries:\n", "entries: 5\nother:\n", "`other` is no key of"),
    ],
)
def test_a_manifest_that_is_not_complete_is_refused(
    tmp_path: Path, old: str, new: str, said: str
) -> None:
    file = tmp_path / "manifest.yaml"
    file.write_text(MANIFEST.replace(old, new, 1))
    with pytest.raises(BadInput) as caught:
        read_manifest(file)
    assert said in str(caught.value)
    assert str(caught.value).startswith(str(file))


def entry(name: str, reason: str = "r", verify: str = "") -> ManifestEntry:
    return ManifestEntry(name=name, reason=reason, verify=verify, since="1")


def test_a_manifest_that_grows_has_no_problem() -> None:
    old = Manifest(entries=(entry("a"), entry("b", verify="effective: b")))
    new = Manifest(entries=(entry("b", verify="cmd"), entry("a", "better"), entry("c")))
    assert manifest_only_grows(old, new) == []


def test_a_manifest_that_shrinks_is_told_what_it_lost() -> None:
    old = Manifest(entries=(entry("a"), entry("b", verify="x"), entry("c")))
    new = Manifest(entries=(entry("b"), entry("c", reason=" ")))
    assert manifest_only_grows(old, new) == [
        "the entry `a` was removed",
        "the entry `b` lost its `verify`",
        "the entry `c` lost its `reason`",
    ]


def test_joined_manifests_name_each_parameter_once() -> None:
    joined = Manifest(entries=(entry("a"), entry("b"))).joined(
        Manifest(entries=(entry("b", "mine"), entry("c")))
    )
    assert [(e.name, e.reason) for e in joined.entries] == [("a", "r"), ("b", "mine"), ("c", "r")]


def test_a_group_is_declared_by_any_parameter_below_it() -> None:
    assert entry("a").declared_in({"a.b": 1})
    assert entry("a.b").declared_in({"a.b": 1})
    assert not entry("a.b").declared_in({"a.bc": 1})

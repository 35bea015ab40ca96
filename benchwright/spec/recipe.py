"""Recipes: experiments that are filled in already, each in a folder of its own."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from benchwright.errors import BadInput
from benchwright.spec.manifest import Manifest, read_manifest
from benchwright.spec.source import Document, read_yaml
from benchwright.spec.suggest import did_you_mean, one_of

RECIPE_FILE = "recipe.yaml"
MANIFEST_FILE = "manifest.yaml"


@dataclass(frozen=True, slots=True)
class Recipe:
    """One recipe.

    Attributes:
        name: The name of its folder.
        folder: What its stages' relative paths start from.
        document: Its `recipe.yaml`: a configuration, with a `summary`.
        manifest: What it asks to be declared.
    """

    name: str
    folder: Path
    document: Document
    manifest: Manifest

    @property
    def summary(self) -> str:
        """One line on what it asks."""
        return str(self.document.data.get("summary") or "")


@dataclass(frozen=True, slots=True)
class RecipeLibrary:
    """The recipes below some folders; of two with one name, the first folder's counts."""

    folders: Sequence[Path]

    def names(self) -> tuple[str, ...]:
        """The names of all recipes, sorted."""
        return tuple(sorted(self._found()))

    def get(self, name: str) -> Recipe:
        """Read a recipe. Raises BadInput for an unknown name, with the nearest, or a bad file."""
        found = self._found()
        if name not in found:
            raise BadInput(
                f"there is no recipe `{name}`",
                expected=one_of(sorted(found)),
                hint=did_you_mean(name, found) or "list them with: benchwright recipes",
            )
        folder = found[name]
        manifest = folder / MANIFEST_FILE
        return Recipe(
            name=name,
            folder=folder,
            document=read_yaml(folder / RECIPE_FILE),
            manifest=read_manifest(manifest) if manifest.exists() else Manifest(),
        )

    def _found(self) -> dict[str, Path]:
        found: dict[str, Path] = {}
        for folder in self.folders:
            for recipe in sorted(Path(folder).glob(f"*/{RECIPE_FILE}")):
                found.setdefault(recipe.parent.name, recipe.parent.resolve())
        return found

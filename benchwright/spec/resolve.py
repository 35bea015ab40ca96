"""From a file or a recipe to a complete, frozen configuration, with where each value came from.

Layers, each over the one before: the domain's defaults, the recipe, the file, `-p` and the other
options of the command line. Mappings are merged; lists are replaced whole, but for `metrics`,
which are merged by name.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchwright.errors import BadInput, BenchwrightError, Where
from benchwright.spec.domain import Domain, Domains
from benchwright.spec.graph import check_graph, check_treatment, order, reported_metrics
from benchwright.spec.layers import Layer, Layers, Origin
from benchwright.spec.manifest import Manifest, ManifestEntry
from benchwright.spec.model import BenchmarkConfig, Stage
from benchwright.spec.parameters import (
    flat_params,
    nested_params,
    option_value,
    unknown_parameter,
)
from benchwright.spec.recipe import Recipe, RecipeLibrary
from benchwright.spec.schema import Locate, build, conform
from benchwright.spec.source import (
    Document,
    KeyPath,
    as_document,
    dotted,
    plain_scalar,
    read_yaml,
)
from benchwright.spec.suggest import did_you_mean, nearest, one_of
from benchwright.spec.values import Value, as_text

_YAML_FILE = (".yaml", ".yml")


@dataclass(frozen=True, slots=True)
class Provenance:
    """Where a value of the configuration came from.

    Attributes:
        origin: Who said it.
        where: The file and line, where it came from one.
        value_text: The value as a program would receive it.
    """

    origin: Origin
    where: Where | None
    value_text: str


@dataclass(frozen=True, slots=True)
class Resolved:
    """A complete configuration and what stands around it.

    Attributes:
        config: The configuration, its stages in an order in which they can run.
        domain: Its domain.
        manifest: What the domain and the recipe ask to be declared.
        folders: The folder that each stage's relative paths start from, by stage name.
        folder: The folder of the configuration itself.
        provenance: Where each value came from, by dotted key.
        notes: What a person may not expect, a sentence each.
        missing: The manifest's entries that nothing declares.
        source: The file that was read; None: it came as data.
    """

    config: BenchmarkConfig
    domain: Domain
    manifest: Manifest
    folders: Mapping[str, Path]
    folder: Path
    provenance: Mapping[str, Provenance]
    notes: tuple[str, ...] = ()
    missing: tuple[ManifestEntry, ...] = ()
    source: Where | None = None

    @contextmanager
    def locating(self) -> Iterator[None]:
        """Give the errors raised inside, which know a key at most, the file and the line of it."""
        try:
            yield
        except BenchwrightError as problem:
            if problem.where is None or problem.where.file is None:
                problem.where = self.place(problem.where.key if problem.where else None)
            raise

    def place(self, key: str | None) -> Where | None:
        """The file and line that say a key of the configuration, or the nearest key around it.

        Args:
            key: A dotted key; None: the file as a whole. One that is no key of a configuration,
                such as an environment variable, is given back as it is.
        """
        if key is None:
            return self.source
        name = key
        while name:
            for known, item in self.provenance.items():
                inside = known == name or known.startswith(f"{name}.")
                if inside and item.where is not None:
                    where = item.where
                    return where if where.file is None else Where(where.file, where.line, key)
            name = name.rpartition(".")[0]
        return Where(key=key)


def resolve(
    target: str | Path,
    *,
    domains: Domains,
    recipes: RecipeLibrary,
    overrides: Sequence[str] = (),
    replicates: int | None = None,
    hypothesis: str | None = None,
    because: str | None = None,
) -> Resolved:
    """Complete the configuration of a YAML file, or a recipe.

    Args:
        target: Path of the file, or name of the recipe.
        domains: The known domains.
        recipes: The known recipes.
        overrides: `key=value` for parameters, as `-p` gives them.
        replicates: Replaces `replication.replicates`.
        hypothesis: Replaces `hypothesis`.
        because: The reason for the overrides: it is put down for each under `justified`.

    Raises:
        BadInput: What can't be understood, with file, line, key and the nearest known name.
        GateRefused: The treatment reaches no stage.
    """
    if _is_recipe(target, recipes):
        recipe = recipes.get(str(target))
        document = Document(recipe.document.file, {"recipe": recipe.name})
        folder = recipe.folder
    else:
        path = Path(target)
        if not path.exists():
            raise _no_target(path, recipes)
        document, folder = read_yaml(path), path.resolve().parent
    return _Resolver(domains, recipes, document, folder).resolve(
        overrides, replicates, hypothesis, because
    )


def from_mapping(
    data: Mapping[str, Any],
    *,
    folder: Path,
    domains: Domains,
    recipes: RecipeLibrary,
    overrides: Sequence[str] = (),
    replicates: int | None = None,
    hypothesis: str | None = None,
    because: str | None = None,
) -> Resolved:
    """Complete a configuration that came as data, such as a deployment's parameter.

    Args:
        data: What a file would say.
        folder: What relative paths start from.
        domains: The known domains.
        recipes: The known recipes.
        overrides: `key=value` for parameters.
        replicates: Replaces `replication.replicates`.
        hypothesis: Replaces `hypothesis`.
        because: The reason for the overrides: it is put down for each under `justified`.

    Raises:
        BadInput: As `resolve`, with the key.
        GateRefused: The treatment reaches no stage.
    """
    document = as_document(data)
    return _Resolver(domains, recipes, document, folder.resolve()).resolve(
        overrides, replicates, hypothesis, because
    )


# --- the target --------------------------------------------------------------------------------


def _is_recipe(target: str | Path, recipes: RecipeLibrary) -> bool:
    """A bare name of a recipe is the recipe; with a folder or `.yaml` it is a file."""
    text = str(target)
    if isinstance(target, Path) or "/" in text or text.endswith(_YAML_FILE):
        return False
    return text in recipes.names()


def _no_target(path: Path, recipes: RecipeLibrary) -> BadInput:
    names = recipes.names()
    where = Where(path)
    if path.suffix in _YAML_FILE or len(path.parts) > 1:
        beside = [p.name for p in path.parent.glob("*.y*ml")] if path.parent.is_dir() else []
        match = nearest(path.name, beside)
        return BadInput(
            "there is no such file",
            where=where,
            expected="a YAML file, or the name of a recipe",
            hint=f"did you mean {path.with_name(match)}?" if match else None,
        )
    return BadInput(
        "there is no recipe of that name, and no such file",
        where=where,
        expected=f"a YAML file, or {one_of(names)}",
        hint=did_you_mean(path.name, names) or "list the recipes with: benchwright recipes",
    )


# --- the resolver ------------------------------------------------------------------------------


@dataclass(slots=True)
class _Resolver:
    """Completes one document."""

    domains: Domains
    recipes: RecipeLibrary
    document: Document
    folder: Path
    notes: list[str] = field(default_factory=list)
    merged: Layers = field(default_factory=Layers)
    recipe_metrics: frozenset[str] = frozenset()

    def resolve(
        self,
        overrides: Sequence[str],
        replicates: int | None,
        hypothesis: str | None,
        because: str | None,
    ) -> Resolved:
        file = self._layer("file", self.document)
        recipe = self._recipe(file)
        from_recipe = self._layer("recipe", recipe.document) if recipe else None
        if from_recipe:
            self.recipe_metrics = _metric_names(from_recipe.data)
        domain = self._domain(file, from_recipe)
        defaults = as_document(domain.defaults())
        layers = [self._layer("domain", defaults), from_recipe, file]
        for layer in layers:
            if layer is not None:
                self._lay(layer)
        self.merged.data["domain"] = domain.name
        manifest = domain.manifest().joined(recipe.manifest if recipe else Manifest())
        for name in self._override(overrides, manifest):
            if because and name not in (self.merged.data.get("justified") or {}):
                self.merged.put(("justified", name), because, Where(key="--because"))
        if replicates is not None:
            self.merged.put(("replication", "replicates"), replicates, Where(key="--replicates"))
        if hypothesis is not None:
            self.merged.put(("hypothesis",), hypothesis, Where(key="HYPOTHESIS"))
        return self._complete(domain, recipe, manifest)

    # The layers.

    def _layer(self, origin: Origin, document: Document) -> Layer:
        also = ("summary",) if origin == "recipe" else ()
        data = conform(document, BenchmarkConfig, also=also)
        data.pop("summary", None)
        if origin == "recipe" and "recipe" in data:
            raise BadInput(
                "a recipe can't build on another recipe",
                where=document.where("recipe"),
                expected="all that it says in its own file",
            )
        params = data.get("params")
        if isinstance(params, Mapping):
            data["params"] = nested_params(params, document)
        _check_duplicate_metrics(data, document)
        return Layer(origin, document, data)

    def _recipe(self, file: Layer) -> Recipe | None:
        name = file.data.get("recipe")
        if name is None:
            return None
        where = self.document.where("recipe")
        if not isinstance(name, str):
            raise BadInput("`recipe` is no text", where=where, expected="the name of a recipe")
        try:
            return self.recipes.get(name)
        except BadInput as error:
            error.where = error.where or where
            raise

    def _domain(self, file: Layer, recipe: Layer | None) -> Domain:
        said = [layer for layer in (file, recipe) if layer and layer.data.get("domain") is not None]
        if not said:
            raise BadInput(
                "`domain` is missing",
                where=self.document.where(()),
                expected=one_of(sorted(self.domains.known)),
                hint="say what kind of system this is: `domain: command` for shell commands",
            )
        name = said[0].data["domain"]
        where = said[0].document.where("domain")
        if not isinstance(name, str) or name not in self.domains.known:
            raise BadInput(
                f"there is no domain `{name}`",
                where=where,
                expected=one_of(sorted(self.domains.known)),
                hint=did_you_mean(str(name), self.domains.known),
            )
        if said[-1].data["domain"] != name:
            raise BadInput(
                f"the recipe `{file.data['recipe']}` is for the domain "
                f"`{said[-1].data['domain']}`, not `{name}`",
                where=where,
                expected=f"`domain: {said[-1].data['domain']}`, or another recipe",
            )
        return self.domains.known[name]

    def _lay(self, layer: Layer) -> None:
        """Lay a layer; another treatment variable leaves the earlier one's values behind."""
        named = self.merged.data.get("treatment_variable")
        if layer.data.get("treatment_variable", named) != named:
            dropped = self.merged.data.pop("treatment_values", None)
            if dropped and "treatment_values" not in layer.data:
                self.notes.append(
                    f"the recipe's treatment values belong to `{named}` and were left out"
                )
        self.merged.lay(layer)
        if layer.origin == "file":
            self._note_numbers(layer)

    def _note_numbers(self, layer: Layer) -> None:
        """Say where a program receives a number in another form than it was written."""
        for path, written in layer.document.texts.items():
            if path[0] not in ("params", "treatment_values"):
                continue
            received = as_text(plain_scalar(written))
            if received != written:
                where = layer.document.where(path)
                self.notes.append(
                    f"{where}: `{written}` is a value, and programs receive `{received}`; "
                    f"quote it, if its text is meant"
                )

    def _override(self, overrides: Sequence[str], manifest: Manifest) -> set[str]:
        """Set the parameters that `-p` names; returns their names."""
        declared = flat_params(self.merged.data.get("params"))
        given: set[str] = set()
        for text in overrides:
            key, equals, value = text.partition("=")
            key = key.strip()
            where = Where(key=f"-p {key}" if equals and key else "-p")
            if not equals or not key:
                raise BadInput(f"`{text}` sets nothing", where=where, expected="`-p NAME=VALUE`")
            if key in given:
                raise BadInput(f"`{key}` is set twice", where=where, expected="each one once")
            given.add(key)
            known = dict.fromkeys([*declared, *(entry.name for entry in manifest.entries)])
            if key not in known:
                error = unknown_parameter(key, known, where)
                top, _, rest = key.partition(".")
                if rest in known and top == "params":
                    error.hint = f"leave `params.` out: -p {rest}={value}"
                elif top in BenchmarkConfig.model_fields:
                    error.hint = f"`{top}` is no parameter: set it in the file"
                raise error
            parsed = option_value(value, declared.get(key), where)
            self.merged.put(("params", *key.split(".")), parsed, where)
        return given

    # The whole.

    def _complete(self, domain: Domain, recipe: Recipe | None, manifest: Manifest) -> Resolved:
        data = self.merged.data
        stages_given = data.get("stages") or []
        try:
            config = build(BenchmarkConfig, data, self._locate)
        except BadInput as error:
            if recipe and error.where and error.where.file == recipe.document.file:
                error.what += f" (the recipe `{recipe.name}` says so)"
            raise
        with self._placed():
            stages = tuple(domain.stages(config))
        made = not stages_given
        if not made and _named_stages(stages) != _named_stages(config.stages):
            raise BadInput(
                f"the domain `{domain.name}` makes its own stages",
                where=self._locate(("stages",)),
                expected="no `stages` in the file",
            )
        if not stages:
            raise BadInput(
                "there are no stages",
                where=self._locate(("stages",)) if "stages" in data else self.document.where(()),
                expected="`stages:` with one of `kind: measure`, or a recipe that has some",
            )
        locate = self._locate_made(domain, stages) if made else self._locate
        config = config.model_copy(update={"stages": stages})
        if not config.metrics:
            config = config.model_copy(update={"metrics": tuple(domain.metrics(config))})
        params = config.flat_params
        missing = tuple(entry for entry in manifest.entries if not entry.declared_in(params))
        awaited = [entry.name for entry in missing]
        check_graph(stages, config=config, locate=locate, awaited=awaited)
        config = self._without_unreported(config)
        with self._placed():
            domain.check(config)
        filled = {**config.params, **dict.fromkeys(awaited, "")}
        check_treatment(config.model_copy(update={"params": filled}), stages, locate=locate)
        config = config.model_copy(update={"stages": order(stages)})
        return Resolved(
            config=config,
            domain=domain,
            manifest=manifest,
            folders=self._folders(stages, recipe),
            folder=self.folder,
            provenance=self._provenance(config, made),
            notes=tuple(self.notes),
            missing=missing,
            source=Where(self.document.file) if self.document.file is not None else None,
        )

    def _without_unreported(self, config: BenchmarkConfig) -> BenchmarkConfig:
        """Settle the metrics that no measure stage names in its `fields`.

        One of the file's own is refused. One of the recipe's, beside stages of the file, is left
        out. Beside the recipe's stages it stays: they may print it, and needn't.
        """
        reported = reported_metrics(config.stages)
        if reported is None:
            return config
        own_stages = self.merged.place(("stages",))[0] == "file"
        dropped = []
        for place, metric in enumerate(config.metrics):
            if metric.name in reported:
                continue
            own = self.merged.place(("metrics", place, "name"))[0] == "file"
            recipes_too = metric.name in self.recipe_metrics
            if own and (own_stages or not recipes_too):
                raise BadInput(
                    f"no measure stage reports the metric `{metric.name}`",
                    where=self._locate(("metrics", place)),
                    expected=f"`{metric.name}` in the `metrics_from.fields` of a measure stage",
                    hint=did_you_mean(metric.name, reported),
                )
            if own_stages:
                dropped.append(place)
        if dropped:
            names = ", ".join(config.metrics[place].name for place in dropped)
            self.notes.append(
                f"no measure stage reports {names}: left out (only the recipe or the domain "
                "declares them, and no `metrics_from.fields` names them)"
            )
        kept = [place for place in range(len(config.metrics)) if place not in dropped]
        places = self.merged.places
        moved = {
            path: places.pop(path)
            for path in list(places)
            if path[0] == "metrics" and len(path) > 1
        }
        for path, said in moved.items():
            if path[1] in kept:
                places["metrics", kept.index(int(path[1])), *path[2:]] = said
        return config.model_copy(update={"metrics": tuple(config.metrics[at] for at in kept)})

    @contextmanager
    def _placed(self) -> Iterator[None]:
        """Give a domain's refusal, which knows the key at most, its file and line."""
        try:
            yield
        except BenchwrightError as error:
            if error.where is None:
                error.where = self.document.where(())
            elif error.where.file is None and error.where.key:
                key = error.where.key
                known = (p for p in self.merged.places if dotted(p, self.merged.data) == key)
                error.where = self._locate(next(known, (key,)))
            raise

    def _locate(self, path: KeyPath) -> Where:
        """The place of a key of the merged configuration; the key itself, where none said it."""
        origin, where = self.merged.place(path)
        name = dotted(path, self.merged.data)
        if where is None or origin == "default":
            top = self.document.where(())
            return Where(top.file, top.line, name)
        if origin == "command line":
            return where
        return Where(where.file, where.line, name)

    def _locate_made(self, domain: Domain, stages: Sequence[Stage]) -> Locate:
        """Places in stages that the domain made: they stand in no file."""

        def locate(path: KeyPath) -> Where:
            if path[0] != "stages" or len(path) < 2 or not isinstance(path[1], int):
                return self._locate(path)
            rest = dotted(("stages", stages[path[1]].name, *path[2:]))
            return Where(f"domain {domain.name}", None, rest)

        return locate

    def _folders(self, stages: Sequence[Stage], recipe: Recipe | None) -> dict[str, Path]:
        origin, _ = self.merged.place(("stages",))
        folder = recipe.folder if recipe and origin == "recipe" else self.folder
        return {stage.name: folder for stage in stages}

    def _provenance(self, config: BenchmarkConfig, made: bool) -> dict[str, Provenance]:
        """Every value of the configuration that says something, with who said it."""
        data = config.model_dump(mode="json")
        provenance: dict[str, Provenance] = {}
        ordered = {stage["name"]: stage for stage in data["stages"]}
        said = [stage.get("name") for stage in self.merged.data.get("stages") or ()]
        for path, value in _leaves(data):
            if made and path[0] == "stages":
                origin: Origin = "domain" if value not in (None, "", [], {}) else "default"
                where: Where | None = None
            else:
                origin, where = self._origin(path, said, list(ordered))
            says_nothing = value in (None, "", [], {}) or path[0] == "stages"
            if origin == "default" and says_nothing:
                continue
            text = as_text(_hashable(value))
            provenance[dotted(path, data)] = Provenance(origin, where, text)
        return provenance

    def _origin(
        self, path: KeyPath, said: list[str], ordered: list[str]
    ) -> tuple[Origin, Where | None]:
        """Who said exactly this value; stages are looked up by name, since they were reordered."""
        if path[0] == "stages" and len(path) > 1 and isinstance(path[1], int):
            path = ("stages", said.index(ordered[path[1]]), *path[2:])
        found = self.merged.places.get(path)
        if found is None and path == ("domain",):
            return self.merged.place(path)
        return found or ("default", None)


# --- small parts -------------------------------------------------------------------------------


def _check_duplicate_metrics(data: Mapping[str, Any], document: Document) -> None:
    seen: set[str] = set()
    for place, name in _named_metrics(data):
        if name in seen:
            raise BadInput(
                f"the metric `{name}` stands twice",
                where=document.where(("metrics", place, "name")),
                expected="each metric once",
            )
        seen.add(name)


def _metric_names(data: Mapping[str, Any]) -> frozenset[str]:
    return frozenset(name for _, name in _named_metrics(data))


def _named_metrics(data: Mapping[str, Any]) -> Iterator[tuple[int, str]]:
    """The metrics that have a name, each with its position; nothing is validated yet."""
    metrics = data.get("metrics")
    for place, metric in enumerate(metrics if isinstance(metrics, list) else ()):
        name = metric.get("name") if isinstance(metric, Mapping) else None
        if isinstance(name, str):
            yield place, name


def _hashable(value: Any) -> Value:
    """A value with tuples for its lists, as parameters have them."""
    return tuple(_hashable(part) for part in value) if isinstance(value, list) else value  # type: ignore[misc]


def _named_stages(stages: Sequence[Stage]) -> dict[str, Stage]:
    return {stage.name: stage for stage in stages}


def _leaves(data: Any, path: KeyPath = ()) -> list[tuple[KeyPath, Any]]:
    """Every scalar and every list of scalars, by key path."""
    if isinstance(data, Mapping) and data:
        return [leaf for key, part in data.items() for leaf in _leaves(part, (*path, key))]
    if isinstance(data, list) and any(isinstance(part, Mapping) for part in data):
        return [leaf for at, part in enumerate(data) for leaf in _leaves(part, (*path, at))]
    return [(path, data)]

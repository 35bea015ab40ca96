"""From a file or a recipe to a complete, frozen configuration, with where each value came from.

Layers, each over the one before: the domain's defaults, the recipe, the file, `-p` and the other
options of the command line. Mappings are merged; lists are replaced whole, but for `metrics`,
which are merged by name.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from benchwright.errors import BadInput, BenchwrightError, Where
from benchwright.spec.domain import Domain, Domains
from benchwright.spec.graph import check_graph, check_treatment, order, reported_metrics
from benchwright.spec.manifest import Manifest, ManifestEntry
from benchwright.spec.model import BenchmarkConfig, Stage
from benchwright.spec.recipe import Recipe, RecipeLibrary
from benchwright.spec.schema import Locate, build, conform
from benchwright.spec.source import (
    Document,
    KeyPath,
    NotFinite,
    as_document,
    dotted,
    parse_yaml,
    plain_scalar,
    read_yaml,
)
from benchwright.spec.suggest import did_you_mean, nearest, one_of
from benchwright.spec.template import RUN_NAMES
from benchwright.spec.values import as_text

Origin = Literal["file", "recipe", "domain", "default", "command line"]

_PARAMETER_PART = re.compile(r"[\w@:+/-]+")
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
    """

    config: BenchmarkConfig
    domain: Domain
    manifest: Manifest
    folders: Mapping[str, Path]
    folder: Path
    provenance: Mapping[str, Provenance]
    notes: tuple[str, ...] = ()
    missing: tuple[ManifestEntry, ...] = ()


def resolve(
    target: str | Path,
    *,
    domains: Domains,
    recipes: RecipeLibrary,
    overrides: Sequence[str] = (),
    replicates: int | None = None,
    hypothesis: str | None = None,
) -> Resolved:
    """Complete the configuration of a YAML file, or a recipe.

    Args:
        target: Path of the file, or name of the recipe.
        domains: The known domains.
        recipes: The known recipes.
        overrides: `key=value` for parameters, as `-p` gives them.
        replicates: Replaces `replication.replicates`.
        hypothesis: Replaces `hypothesis`.

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
    return _Resolver(domains, recipes, document, folder).resolve(overrides, replicates, hypothesis)


def from_mapping(
    data: Mapping[str, Any],
    *,
    folder: Path,
    domains: Domains,
    recipes: RecipeLibrary,
    overrides: Sequence[str] = (),
    replicates: int | None = None,
    hypothesis: str | None = None,
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

    Raises:
        BadInput: As `resolve`, with the key.
        GateRefused: The treatment reaches no stage.
    """
    document = as_document(data)
    return _Resolver(domains, recipes, document, folder.resolve()).resolve(
        overrides, replicates, hypothesis
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


# --- layers ------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Layer:
    """What one source says, its parameters nested."""

    origin: Origin
    document: Document
    data: Mapping[str, Any]

    def place(self, path: KeyPath) -> tuple[Origin, Where | None]:
        """Who said the value at a key path, and where."""
        # A parameter that was written `a.b: 1` has another path in the document.
        known = path in self.document.lines
        return self.origin, self.document.where(path if known else dotted(path, self.data))


@dataclass(slots=True)
class _Merged:
    """The layers laid over each other, and the place of every value."""

    data: dict[str, Any] = field(default_factory=dict)
    places: dict[KeyPath, tuple[Origin, Where | None]] = field(default_factory=dict)

    def lay(self, layer: _Layer) -> None:
        """Lay one layer over what is there."""
        for key, value in layer.data.items():
            if key == "metrics" and isinstance(value, list):
                self._lay_metrics(value, layer)
            else:
                self._lay(self.data, (key,), value, layer, (key,))

    def put(self, path: KeyPath, value: Any, where: Where) -> None:
        """Set one value from the command line."""
        here = self.data
        for part in path[:-1]:
            below = here.get(str(part))
            if not isinstance(below, dict):
                below = here[str(part)] = {}
            here = below
        here[str(path[-1])] = value
        self.places[path] = ("command line", where)

    def place(self, path: KeyPath) -> tuple[Origin, Where | None]:
        """Where a value came from; where the nearest value above it did, if it has no place."""
        for length in range(len(path), 0, -1):
            found = self.places.get(path[:length])
            if found is not None:
                return found
        return ("default", None)

    def _lay(
        self, into: dict[str, Any], path: KeyPath, value: Any, layer: _Layer, said: KeyPath
    ) -> None:
        key = str(path[-1])
        self.places[path] = layer.place(said)
        if isinstance(value, Mapping):
            below = into.get(key)
            if not isinstance(below, dict):
                below = into[key] = {}
            for name, part in value.items():
                self._lay(below, (*path, name), part, layer, (*said, name))
            return
        self._forget_below(path)
        into[key] = copy.deepcopy(value)
        if isinstance(value, list):
            for place, part in enumerate(value):
                self._note(part, (*path, place), layer, (*said, place))

    def _note(self, value: Any, path: KeyPath, layer: _Layer, said: KeyPath) -> None:
        """Write down the places of all that stands inside a list."""
        self.places[path] = layer.place(said)
        parts = (
            value.items()
            if isinstance(value, Mapping)
            else enumerate(value)
            if isinstance(value, list)
            else ()
        )
        for key, part in parts:
            self._note(part, (*path, key), layer, (*said, key))

    def _forget_below(self, path: KeyPath) -> None:
        for known in [known for known in self.places if known[: len(path)] == path]:
            if known != path:
                del self.places[known]

    def _lay_metrics(self, metrics: list[Any], layer: _Layer) -> None:
        """Merge metrics by name: a file can change one field of a recipe's metric."""
        self.places.setdefault(("metrics",), (layer.origin, layer.document.where("metrics")))
        merged = self.data.get("metrics")
        if not isinstance(merged, list):
            merged = self.data["metrics"] = []
        taken = len(merged)
        names = {
            metric.get("name"): at
            for at, metric in enumerate(merged)
            if isinstance(metric, Mapping)
        }
        for place, metric in enumerate(metrics):
            name = metric.get("name") if isinstance(metric, Mapping) else None
            at = names.get(name) if isinstance(name, str) else None
            said: KeyPath = ("metrics", place)
            if at is None or at >= taken:
                merged.append(copy.deepcopy(metric))
                self._note(metric, ("metrics", len(merged) - 1), layer, said)
                continue
            for key, value in metric.items():
                self._lay(merged[at], ("metrics", at, key), value, layer, (*said, key))
            self.places["metrics", at] = (
                layer.origin,
                layer.document.where(dotted(said, layer.data)),
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
    merged: _Merged = field(default_factory=_Merged)
    recipe_metrics: frozenset[str] = frozenset()

    def resolve(
        self, overrides: Sequence[str], replicates: int | None, hypothesis: str | None
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
        self._override(overrides, manifest)
        if replicates is not None:
            self.merged.put(("replication", "replicates"), replicates, Where(key="--replicates"))
        if hypothesis is not None:
            self.merged.put(("hypothesis",), hypothesis, Where(key="HYPOTHESIS"))
        return self._complete(domain, recipe, manifest)

    # The layers.

    def _layer(self, origin: Origin, document: Document) -> _Layer:
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
            data["params"] = _nested(params, document)
        _check_duplicate_metrics(data, document)
        return _Layer(origin, document, data)

    def _recipe(self, file: _Layer) -> Recipe | None:
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

    def _domain(self, file: _Layer, recipe: _Layer | None) -> Domain:
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
        if name not in self.domains.known:
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

    def _lay(self, layer: _Layer) -> None:
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

    def _note_numbers(self, layer: _Layer) -> None:
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

    def _override(self, overrides: Sequence[str], manifest: Manifest) -> None:
        declared = _flat(self.merged.data.get("params"))
        given: set[str] = set()
        for text in overrides:
            key, equals, value = text.partition("=")
            key = key.strip()
            where = Where(key=f"-p {key}" if equals else "-p")
            if not equals or not key:
                raise BadInput(f"`{text}` sets nothing", where=where, expected="`-p NAME=VALUE`")
            if key in given:
                raise BadInput(f"`{key}` is set twice", where=where, expected="each one once")
            given.add(key)
            known = dict.fromkeys([*declared, *(entry.name for entry in manifest.entries)])
            if key not in known:
                raise _no_parameter(key, list(known), where)
            parsed = _option_value(value, declared.get(key), where)
            self.merged.put(("params", *key.split(".")), parsed, where)

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
        if not made and _by_name(stages) != _by_name(config.stages):
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
        config = self._without_unreported(config)
        with self._placed():
            domain.check(config)
        check_graph(stages, config=config, locate=locate)
        check_treatment(config, stages, locate=locate)
        config = config.model_copy(update={"stages": order(stages)})
        params = config.flat_params
        return Resolved(
            config=config,
            domain=domain,
            manifest=manifest,
            folders=self._folders(stages, recipe),
            folder=self.folder,
            provenance=self._provenance(config, made),
            notes=tuple(self.notes),
            missing=tuple(e for e in manifest.entries if not e.declared_in(params)),
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
            text = as_text(tuple(value) if isinstance(value, list) else value)
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


# --- parameters --------------------------------------------------------------------------------


def _nested(params: Mapping[str, Any], document: Document) -> dict[str, Any]:
    """The parameters with dotted keys written out, every name and value one that can be used.

    Raises:
        BadInput: With the key.
    """
    nested: dict[str, Any] = {}
    _nest(params, (), nested, ("params",), document)
    return nested


def _nest(
    params: Mapping[str, Any],
    above: tuple[str, ...],
    nested: dict[str, Any],
    said: KeyPath,
    document: Document,
) -> None:
    for key, value in params.items():
        path = (*said, key)
        names = (*above, *str(key).split("."))
        for part in names:
            if not _PARAMETER_PART.fullmatch(part):
                raise BadInput(
                    f"`{key}` can't be the name of a parameter",
                    where=document.where(path),
                    expected="letters, digits and _ - @ : + /, in parts joined by dots",
                )
        if names[0] == "run":
            raise BadInput(
                "parameters below `run` would hide what is said of the run itself",
                where=document.where(path),
                expected=f"another name; taken are {', '.join(RUN_NAMES)}",
            )
        if isinstance(value, Mapping):
            _nest(value, names, nested, path, document)
            continue
        _check_value(value, path, document)
        here = nested
        for part in names[:-1]:
            below = here.setdefault(part, {})
            if not isinstance(below, dict):
                raise _twice(names, path, document)
            here = below
        if names[-1] in here:
            raise _twice(names, path, document)
        here[names[-1]] = value


def _twice(names: tuple[str, ...], path: KeyPath, document: Document) -> BadInput:
    return BadInput(
        f"the parameter `{'.'.join(names)}` stands twice, or below another parameter",
        where=document.where(path),
        expected="each parameter once",
    )


def _check_value(value: Any, path: KeyPath, document: Document) -> None:
    parts = value if isinstance(value, list) else [value]
    for part in parts:
        if isinstance(part, float) and not -float("inf") < part < float("inf"):
            raise BadInput(
                f"`{part}` is not a finite number",
                where=document.where(path),
                expected="a finite number",
            )
        if not isinstance(part, str | int | float | bool | None):
            raise BadInput(
                "a list of a parameter has more than single values in it",
                where=document.where(path),
                expected="a list of texts, numbers, true and false",
            )


def _flat(params: Any, above: str = "") -> dict[str, Any]:
    """The merged parameters by dotted name."""
    found: dict[str, Any] = {}
    for key, value in (params or {}).items() if isinstance(params, Mapping | None) else ():
        if isinstance(value, Mapping):
            found |= _flat(value, f"{above}{key}.")
        else:
            found[f"{above}{key}"] = value
    return found


def _no_parameter(key: str, known: Sequence[str], where: Where) -> BadInput:
    below = [name for name in known if name.startswith(f"{key}.")]
    if below:
        return BadInput(
            f"`{key}` is a group of parameters, not one", where=where, expected=one_of(below)
        )
    hint = did_you_mean(key, known)
    if key in BenchmarkConfig.model_fields:
        hint = f"`{key}` is no parameter: set it in the file"
    return BadInput(
        f"`{key}` is no declared parameter", where=where, expected=one_of(known), hint=hint
    )


def _option_value(text: str, before: Any, where: Where) -> Any:
    """The value of a `-p`: read as in a file, except that nothing after `=` is empty text.

    A text in quotes is what the quotes hold. A list is read where the parameter is one.
    """
    quoted = len(text) > 1 and text[0] == text[-1] and text[0] in "'\""
    if quoted or (isinstance(before, list) and text.startswith("[")):
        try:
            value = parse_yaml(f"value: {text}\n").data["value"]
        except BadInput as error:
            raise BadInput(f"`{text}`: {error.what}", where=where, hint=error.hint) from None
        _check_value(value, (), Document(None, {}))
        return value
    if not text:
        return ""
    try:
        return plain_scalar(text)
    except NotFinite:
        raise BadInput(
            f"`{text}` is not a finite number",
            where=where,
            expected="a finite number",
            hint=f"quote it, if the text itself is meant: -p '...=\"{text}\"'",
        ) from None


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


def _by_name(stages: Sequence[Stage]) -> dict[str, Stage]:
    return {stage.name: stage for stage in stages}


def _leaves(data: Any, path: KeyPath = ()) -> list[tuple[KeyPath, Any]]:
    """Every scalar and every list of scalars, by key path."""
    if isinstance(data, Mapping) and data:
        return [leaf for key, part in data.items() for leaf in _leaves(part, (*path, key))]
    if isinstance(data, list) and any(isinstance(part, Mapping) for part in data):
        return [leaf for at, part in enumerate(data) for leaf in _leaves(part, (*path, at))]
    return [(path, data)]

"""The graph of stages: whether it makes sense, its order, and which parameter reaches what."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass

from benchwright.errors import BadInput, GateRefused, Where
from benchwright.spec.model import BenchmarkConfig, Role, Stage, StageKind
from benchwright.spec.parameters import unknown_parameter
from benchwright.spec.schema import Locate
from benchwright.spec.source import KeyPath, dump_yaml
from benchwright.spec.suggest import did_you_mean, one_of
from benchwright.spec.template import RUN_NAMES, Template, parse, variable
from benchwright.spec.values import Value, as_text

PROTECTED = frozenset(
    {"PATH", "HOME", "SHELL", "USER", "LOGNAME", "PWD", "OLDPWD", "TMPDIR", "LANG", "IFS", "ENV"}
    | {"BASH_ENV", "SHELLOPTS", "LD_PRELOAD", "LD_LIBRARY_PATH", "PYTHONPATH", "PYTHONHOME"}
)
"""Variables that decide how a program is found and started; a parameter doesn't replace them."""

SHOWN_COMMAND = 100
"""Characters of a command that an error repeats; a longer one is cut to `...`."""

_FUNCTION = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*:[^\W\d]\w*")


def order(stages: Sequence[Stage]) -> tuple[Stage, ...]:
    """The stages, each after those it needs, otherwise in their given order.

    The graph has no circle (`check_graph`).
    """
    waiting, done, ordered = list(stages), set[str](), list[Stage]()
    while waiting:
        ready = next(stage for stage in waiting if done.issuperset(stage.needs))
        waiting.remove(ready)
        done.add(ready.name)
        ordered.append(ready)
    return tuple(ordered)


def artifacts(stage: Stage, stages: Sequence[Stage]) -> dict[str, str]:
    """The artifacts whose paths a stage may name, each with the stage that makes it.

    Those of the stages in `needs`, and its own.
    """
    makers = [other for other in stages if other.name in stage.needs or other.name == stage.name]
    return {artifact: maker.name for maker in makers for artifact in maker.produces}


def declared_names(
    stage: Stage, stages: Sequence[Stage], params: Collection[str]
) -> frozenset[str]:
    """All names that the stage's templates may use."""
    return frozenset({*params, *artifacts(stage, stages), *RUN_NAMES})


def templates(stage: Stage) -> Iterator[tuple[KeyPath, Template]]:
    """Every text of a stage in which names are filled in, by its key path below the stage."""
    if stage.cmd is not None:
        yield ("cmd",), parse(stage.cmd)
    plain: list[tuple[KeyPath, str | None]] = [
        *((("env", name), value) for name, value in stage.env.items()),
        *((("inputs", place), value) for place, value in enumerate(stage.inputs)),
        (("cwd",), stage.cwd),
        (("metrics_from", "file"), stage.metrics_from.file if stage.metrics_from else None),
        (("effective_from", "file"), stage.effective_from.file if stage.effective_from else None),
    ]
    for path, text in plain:
        if text is not None:
            yield path, parse(text, shell=False)


def handed_over(stage: Stage, params: Collection[str]) -> tuple[str, ...]:
    """The parameters that the stage's `params` name; `a` stands for all of `a.b` and `a.c` too.

    Raises:
        BadInput: A name that is no parameter, with the nearest.
    """
    found: dict[str, None] = {}
    for name in stage.params:
        below = [known for known in params if known == name or known.startswith(f"{name}.")]
        if not below:
            raise unknown_parameter(name, params, Where(key=f"stages.{stage.name}.params"))
        found |= dict.fromkeys(below)
    return tuple(found)


def environment(stage: Stage, params: Mapping[str, Value]) -> dict[str, str]:
    """The variables that hand parameters over: `a.b` as `A_B`, its value as text.

    Args:
        stage: The stage; only what its `params` name is handed over.
        params: All parameters of the arm, by dotted name.

    Raises:
        BadInput: An unknown parameter, two with one variable, or a variable that a program needs.
    """
    where = Where(key=f"stages.{stage.name}.params")
    owners: dict[str, str] = {}
    for name in handed_over(stage, params):
        key = variable(name)
        if key in owners:
            raise BadInput(
                f"the parameters `{owners[key]}` and `{name}` would both be the variable {key}",
                where=where,
                expected="one parameter for each variable",
                hint=f"use a template instead of one of them: {{{name}}}",
            )
        if key in PROTECTED:
            raise BadInput(
                f"the parameter `{name}` would replace the variable {key}",
                where=where,
                expected="a name that no program needs for something else",
                hint=f"rename the parameter, or use a template: {{{name}}}",
            )
        if key in stage.env:
            raise BadInput(
                f"the parameter `{name}` and the stage's `env` both set the variable {key}",
                where=where,
                expected="one value for each variable",
                hint=f"remove {key} from `env`, or `{name}` from `params`",
            )
        owners[key] = name
    return {key: as_text(params[name]) for key, name in owners.items()}


def uses(stage: Stage, config: BenchmarkConfig) -> frozenset[str]:
    """The parameters that the stage depends on: those in its templates and its `params`.

    A Python function without `params` sees all parameters, and so depends on all.

    Raises:
        BadInput: `params` names an unknown parameter.
    """
    params = config.flat_params
    if stage.function is not None and not stage.params:
        return frozenset(params)
    named = {name for _, template in templates(stage) for name in template.used(params)}
    return frozenset({*named, *handed_over(stage, params)})


def reached_by(stages: Sequence[Stage], parameter: str, config: BenchmarkConfig) -> tuple[str, ...]:
    """Names of the stages that depend on a parameter themselves, in the given order."""
    return tuple(stage.name for stage in stages if parameter in uses(stage, config))


def is_link(stage: Stage, stages: Sequence[Stage]) -> bool:
    """Whether a measure stage only prepares its replicate for another one, as a training does.

    It runs anew in each replicate, and the stage that needs it gives the metrics.
    """
    return (
        stage.kind is StageKind.MEASURE
        and stage.cmd is not None
        and stage.metrics_from is None
        and any(other.kind is StageKind.MEASURE and stage.name in other.needs for other in stages)
    )


def reported_metrics(stages: Sequence[Stage]) -> frozenset[str] | None:
    """The metrics that the measure stages say they report; None where one may report any.

    A graph of steps says nothing beforehand: what its steps return holds the measurements.
    """
    if not any(stage.kind is StageKind.MEASURE for stage in stages):
        return None
    reported: set[str] = set()
    for stage in stages:
        if stage.kind is not StageKind.MEASURE or is_link(stage, stages):
            continue
        if stage.metrics_from is None or not stage.metrics_from.fields:
            return None
        reported.update(stage.metrics_from.fields)
    return frozenset(reported)


def check_graph(
    stages: Sequence[Stage],
    *,
    config: BenchmarkConfig | None = None,
    locate: Locate | None = None,
    awaited: Collection[str] = (),
) -> None:
    """Refuse a graph that can't run, or that would measure something else than it seems to.

    Args:
        stages: The stages, in the order of the file.
        config: The configuration; with it, templates, parameters and metrics are checked too.
        locate: Where a key path such as `("stages", 0, "needs", 1)` was written.
        awaited: Parameters that a manifest asks for and nothing declares: a plan that lacks them
            is refused for that, with the value to give them, and not for a template's name.

    Raises:
        BadInput: With the stages named.
    """
    graph = _Graph(tuple(stages), locate or _by_name(stages))
    graph.check_names()
    graph.check_needs()
    graph.check_circles()
    graph.check_artifacts()
    graph.check_kinds()
    graph.check_bodies()
    if config is not None:
        graph.check_parameters({**dict.fromkeys(awaited, ""), **config.flat_params})
        graph.check_metrics(config)


def check_treatment(
    config: BenchmarkConfig, stages: Sequence[Stage], *, locate: Locate | None = None
) -> None:
    """Refuse a treatment that isn't one, or that never reaches what is measured.

    Raises:
        BadInput: The variable is no parameter, or its values are missing or repeat each other.
        GateRefused: No stage that the measurement depends on uses the variable.
    """
    locate = locate or _by_name(stages)
    variable_name = config.treatment_variable
    if variable_name is None:
        if config.treatment_values:
            raise BadInput(
                "there are treatment values, and no parameter that takes them",
                where=locate(("treatment_values",)),
                expected="`treatment_variable: NAME` beside `treatment_values`",
            )
        return
    _check_values(config, variable_name, locate)
    if not any(stage.kind is StageKind.MEASURE for stage in stages):
        raise BadInput(
            "there is a treatment, and no stage measures anything",
            where=locate(("treatment_variable",)),
            expected="a stage of `kind: measure`",
        )
    reached = reached_by(stages, variable_name, config)
    measured = _measured(stages)
    if not measured.intersection(reached):
        raise _never_reached(config, stages, reached, measured, locate)


# --- the treatment -----------------------------------------------------------------------------


def _check_values(config: BenchmarkConfig, name: str, locate: Locate) -> None:
    params = config.flat_params
    if name not in params:
        raise unknown_parameter(name, params, locate(("treatment_variable",)))
    if not config.treatment_values:
        raise BadInput(
            f"the treatment `{name}` has no values",
            where=locate(("treatment_variable",)),
            expected=f"`treatment_values: [...]`, each another value than the baseline's "
            f"{as_text(params[name])}",
        )
    seen: dict[str, int] = {}
    for place, value in enumerate(config.treatment_values):
        text = as_text(value)
        if text in seen:
            raise BadInput(
                f"the treatment value {text} stands twice: a program receives both as `{text}`",
                where=locate(("treatment_values", place)),
                expected="each value once",
            )
        seen[text] = place


def _measured(stages: Sequence[Stage]) -> set[str]:
    """Names of the stages that a measurement depends on, measure stages included."""
    by_name = {stage.name: stage for stage in stages}
    found: set[str] = set()
    waiting = [stage.name for stage in stages if stage.kind is StageKind.MEASURE]
    while waiting:
        name = waiting.pop()
        if name not in found and name in by_name:
            found.add(name)
            waiting += by_name[name].needs
    return found


def _never_reached(
    config: BenchmarkConfig,
    stages: Sequence[Stage],
    reached: Sequence[str],
    measured: Collection[str],
    locate: Locate,
) -> GateRefused:
    name = config.treatment_variable or ""
    target = next((s for s in stages if s.name in measured and s.cmd is not None), stages[0])
    if reached:
        what = f"the treatment `{name}` reaches only {_named(reached)}, which no measurement needs"
    else:
        what = f"the treatment `{name}` reaches no stage: all arms would run the same"
    command = (target.cmd or "").strip()
    shown = command if len(command) <= SHOWN_COMMAND and "\n" not in command else "..."
    line = dump_yaml({"cmd": f"{shown} {{{name}}}"}).rstrip()
    return GateRefused(
        what,
        where=locate(("treatment_variable",)),
        expected="a stage that the measurement depends on uses it",
        hint=f"hand it over in one of two ways, here in the stage `{target.name}`:\n"
        f"    a template in its command:\n"
        f"      {line}\n"
        f"    a variable in its environment, read there as ${variable(name)}:\n"
        f"      params: [{name}]",
    )


# --- the graph ---------------------------------------------------------------------------------


def _by_name(stages: Sequence[Stage]) -> Locate:
    """Places by the stages' names alone, for a graph that came from no file."""

    def locate(path: KeyPath) -> Where:
        parts = [str(part) for part in path]
        if len(path) > 1 and path[0] == "stages" and isinstance(path[1], int):
            parts[1] = stages[path[1]].name
        return Where(key=".".join(parts))

    return locate


def _named(names: Sequence[str]) -> str:
    quoted = [f"`{name}`" for name in names]
    return " and ".join([", ".join(quoted[:-1]), quoted[-1]] if len(quoted) > 1 else quoted)


@dataclass(frozen=True, slots=True)
class _Graph:
    """The checks of a graph, each one rule."""

    stages: tuple[Stage, ...]
    locate: Locate

    def check_names(self) -> None:
        first: dict[str, int] = {}
        for place, stage in enumerate(self.stages):
            if stage.name in first:
                raise BadInput(
                    f"two stages are named `{stage.name}`",
                    where=self.locate(("stages", place, "name")),
                    expected="a name of its own for each stage",
                )
            first[stage.name] = place

    def check_needs(self) -> None:
        names = [stage.name for stage in self.stages]
        makers = {artifact: stage.name for stage in self.stages for artifact in stage.produces}
        for place, stage in enumerate(self.stages):
            for at, need in enumerate(stage.needs):
                if need in names:
                    continue
                others = [name for name in names if name != stage.name]
                hint = did_you_mean(need, others)
                if need in makers:
                    hint = f"`{need}` is an artifact; the stage that makes it is `{makers[need]}`"
                raise BadInput(
                    f"the stage `{stage.name}` needs `{need}`, and there is no such stage",
                    where=self.locate(("stages", place, "needs", at)),
                    expected=one_of(others),
                    hint=hint,
                )

    def check_circles(self) -> None:
        by_name = {stage.name: stage for stage in self.stages}
        done: set[str] = set()

        def circle(name: str, path: list[str]) -> list[str] | None:
            if name in path:
                return [*path[path.index(name) :], name]
            if name in done:
                return None
            for need in by_name[name].needs:
                found = circle(need, [*path, name])
                if found:
                    return found
            done.add(name)
            return None

        for place, stage in enumerate(self.stages):
            found = circle(stage.name, [])
            if found:
                raise BadInput(
                    "the stages need each other in a circle: "
                    + " needs ".join(f"`{name}`" for name in found),
                    where=self.locate(("stages", self._place(found[0], place), "needs")),
                    expected="stages that can run one after the other",
                )

    def check_artifacts(self) -> None:
        makers: dict[str, str] = {}
        for place, stage in enumerate(self.stages):
            for at, artifact in enumerate(stage.produces):
                if artifact in makers:
                    both = dict.fromkeys((makers[artifact], stage.name))
                    raise BadInput(
                        f"the artifact `{artifact}` is produced twice, by {_named(list(both))}",
                        where=self.locate(("stages", place, "produces", at)),
                        expected="one stage for each artifact",
                    )
                makers[artifact] = stage.name

    def check_kinds(self) -> None:
        by_name = {stage.name: stage for stage in self.stages}
        for place, stage in enumerate(self.stages):
            if stage.kind is not StageKind.PREP:
                continue
            path = self._path_to_measure(stage, by_name)
            if path:
                raise BadInput(
                    f"the prep stage `{stage.name}` needs the measure stage `{path[-1]}`"
                    + (f" (by way of {_named(path[:-1])})" if len(path) > 1 else ""),
                    where=self.locate(("stages", place, "needs")),
                    expected="a prep stage runs before every measurement, once for all replicates",
                )
        kinds = {stage.kind for stage in self.stages}
        if StageKind.PREP in kinds and StageKind.MEASURE not in kinds:
            raise BadInput(
                f"no stage measures anything: {_named([stage.name for stage in self.stages])}",
                where=self.locate(("stages",)),
                expected="a stage of `kind: measure`",
            )

    def check_bodies(self) -> None:
        for place, stage in enumerate(self.stages):
            if stage.function is not None and not _FUNCTION.fullmatch(stage.function):
                raise BadInput(
                    f"`{stage.function}` names no function",
                    where=self.locate(("stages", place, "function")),
                    expected="`package.module:function`",
                )
            if stage.cmd is not None and not stage.cmd.strip():
                raise BadInput(
                    f"the stage `{stage.name}` has an empty command",
                    where=self.locate(("stages", place, "cmd")),
                    expected="a shell command",
                )
            by_command = stage.kind is StageKind.MEASURE and stage.cmd is not None
            if by_command and stage.metrics_from is None and not is_link(stage, self.stages):
                raise BadInput(
                    f"the measure stage `{stage.name}` doesn't say where its metrics are",
                    where=self.locate(("stages", place)),
                    expected="`metrics_from: {stdout: true}` or `metrics_from: {file: PATH}`; only "
                    "a stage that another measure stage needs may go without",
                )

    def check_parameters(self, params: Mapping[str, Value]) -> None:
        for place, stage in enumerate(self.stages):
            for at, artifact in enumerate(stage.produces):
                if artifact in params:
                    raise BadInput(
                        f"the artifact `{artifact}` has the name of a parameter",
                        where=self.locate(("stages", place, "produces", at)),
                        expected="a name that means one thing",
                    )
            for at, name in enumerate(stage.params):
                if not any(known == name or known.startswith(f"{name}.") for known in params):
                    raise unknown_parameter(
                        name, params, self.locate(("stages", place, "params", at))
                    )
            try:
                environment(stage, params)
            except BadInput as error:
                error.where = self.locate(("stages", place, "params"))
                raise
            declared = declared_names(stage, self.stages, params)
            elsewhere = self._elsewhere(stage, declared)
            for path, template in templates(stage):
                where = self.locate(("stages", place, *path))
                template.check(declared, where=where, elsewhere=elsewhere)

    def check_metrics(self, config: BenchmarkConfig) -> None:
        """What stages report is declared, and something is."""
        known = [metric.name for metric in config.metrics]
        measuring = any(stage.kind is StageKind.MEASURE for stage in self.stages)
        for place, stage in enumerate(self.stages):
            fields = stage.metrics_from.fields if stage.metrics_from else ()
            for at, name in enumerate(fields):
                if name not in known:
                    raise BadInput(
                        f"`{name}` is no declared metric",
                        where=self.locate(("stages", place, "metrics_from", "fields", at)),
                        expected=one_of(known),
                        hint=did_you_mean(name, known)
                        or f"declare it: `metrics: [{{name: {name}, direction: lower, "
                        f"role: {Role.SECONDARY.value}}}]`",
                    )
        if measuring and not known:
            raise BadInput(
                "no metric is declared, so that nothing could be judged",
                where=self.locate(("metrics",)),
                expected="`metrics: [{name: p50_ms, unit: ms, direction: lower}]`",
            )

    def _elsewhere(self, stage: Stage, declared: Collection[str]) -> dict[str, str]:
        """Artifacts that the stage can't name yet, each with what would make it so."""
        return {
            artifact: f"add `{other.name}` to the `needs` of `{stage.name}`"
            for other in self.stages
            for artifact in other.produces
            if artifact not in declared
        }

    def _path_to_measure(self, stage: Stage, by_name: Mapping[str, Stage]) -> list[str]:
        """The needs that lead from a stage to a measure stage; empty where none do."""
        for need in stage.needs:
            if by_name[need].kind is StageKind.MEASURE:
                return [need]
            further = self._path_to_measure(by_name[need], by_name)
            if further:
                return [need, *further]
        return []

    def _place(self, name: str, default: int) -> int:
        return next((n for n, stage in enumerate(self.stages) if stage.name == name), default)

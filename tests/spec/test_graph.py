"""The graph of stages: what is refused, its order, and which parameter reaches what."""

from __future__ import annotations

from typing import Any

import pytest

from benchwright.errors import BadInput, GateRefused
from benchwright.spec.graph import (
    artifacts,
    check_graph,
    check_treatment,
    environment,
    order,
    reached_by,
    reported_metrics,
    uses,
)
from benchwright.spec.model import BenchmarkConfig, Stage
from benchwright.spec.values import Value


def stage(name: str, kind: str = "prep", **more: Any) -> Stage:
    if kind == "measure" and "function" not in more:
        more = {"metrics_from": {"stdout": True, "fields": ["t"]}, **more}
    if "function" not in more:
        more = {"cmd": "true", **more}
    return Stage.model_validate({"name": name, "kind": kind, **more})


BUILD = stage("build", cmd="./b {a.x} --out {index}", produces=["index"])
SEARCH = stage("search", "measure", needs=["build"], cmd="./s {index}")


def config(*stages: Stage, **more: Any) -> BenchmarkConfig:
    data: dict[str, Any] = {
        "domain": "command",
        "params": {"a": {"x": 1, "y": 2}, "ax": 3, "path": "p"},
        "metrics": [{"name": "t"}],
        "stages": stages,
    }
    return BenchmarkConfig.model_validate(data | more)


def refusal(*stages: Stage, **more: Any) -> str:
    with pytest.raises(BadInput) as caught:
        check_graph(stages, config=config(*stages, **more))
    assert caught.value.exit_code == 2
    assert caught.value.where is not None
    return str(caught.value)


def test_a_good_graph_passes() -> None:
    check_graph((BUILD, SEARCH), config=config(BUILD, SEARCH))


def test_a_graph_of_steps_and_gates_needs_no_measurement() -> None:
    probe, ask = stage("probe", "step"), stage("ask", "gate", needs=["probe"], function="m:f")
    run = stage("run", "step", needs=["ask"])
    check_graph((probe, ask, run), config=config(probe, ask, run, metrics=[]))


@pytest.mark.parametrize(
    ("stages", "said"),
    [
        (
            [BUILD, stage("search", "measure", needs=["biuld"])],
            "stages.search.needs.0: the stage `search` needs `biuld`, and there is no such stage\n"
            "  expected: `build`\n  next: did you mean `build`?",
        ),
        ([BUILD, stage("search", "measure", needs=["index"])], "`index` is an artifact"),
        (
            [stage("a", needs=["c"]), stage("b", needs=["a"]), stage("c", needs=["b"])],
            "in a circle: `a` needs `c` needs `b` needs `a`",
        ),
        ([stage("a", needs=["a"])], "in a circle: `a` needs `a`"),
        ([BUILD, stage("build"), SEARCH], "two stages are named `build`"),
        (
            [BUILD, stage("other", produces=["index"]), SEARCH],
            "the artifact `index` is produced twice, by `build` and `other`",
        ),
        ([stage("a", produces=["p", "p"])], "the artifact `p` is produced twice, by `a`"),
        (
            [BUILD, SEARCH, stage("merge", needs=["search"])],
            "the prep stage `merge` needs the measure stage `search`",
        ),
        (
            [BUILD, SEARCH, stage("s", "step", needs=["search"]), stage("m", needs=["s"])],
            "the prep stage `m` needs the measure stage `search` (by way of `s`)",
        ),
        ([BUILD, stage("other")], "no stage measures anything: `build` and `other`"),
        (
            [stage("m", "measure", metrics_from=None)],
            "the measure stage `m` doesn't say where its metrics are",
        ),
        ([BUILD, SEARCH, stage("z", produces=["ax"])], "has the name of a parameter"),
        ([BUILD, SEARCH, stage("z", cmd=" ")], "the stage `z` has an empty command"),
        ([stage("m", "measure", function="no function")], "names no function"),
        (
            [stage("m", "measure", params=["a.z"])],
            "stages.m.params.0: `a.z` is no declared parameter",
        ),
        ([stage("m", "measure", params=["path"])], "would replace the variable PATH"),
        (
            [stage("m", "measure", params=["a"], env={"A_X": "1"})],
            "the parameter `a.x` and the stage's `env` both set the variable A_X",
        ),
        (
            [BUILD, stage("search", "measure", cmd="./s {index}")],
            "add `build` to the `needs` of `search`",
        ),
        ([stage("m", "measure", cmd="./s {a.z}")], "stages.m.cmd: `{a.z}`"),
        ([stage("m", "measure", env={"Q": "{a.z}"})], "stages.m.env.Q: `{a.z}`"),
        ([stage("m", "measure", inputs=["{a.z}"])], "stages.m.inputs.0: `{a.z}`"),
        ([stage("m", "measure", cwd="{a.z}")], "stages.m.cwd: `{a.z}`"),
        (
            [stage("m", "measure", metrics_from={"file": "{a.z}"})],
            "stages.m.metrics_from.file: `{a.z}`",
        ),
        (
            [stage("m", "measure", effective_from={"file": "{run.idd}"})],
            "did you mean `{run.id}`?",
        ),
        (
            [stage("m", "measure", metrics_from={"stdout": True, "fields": ["t", "tt"]})],
            "stages.m.metrics_from.fields.1: `tt` is no declared metric",
        ),
    ],
)
def test_a_graph_that_cannot_run_is_refused(stages: list[Stage], said: str) -> None:
    assert said in refusal(*stages)


def test_measuring_without_a_metric_is_refused() -> None:
    only = stage("m", "measure", metrics_from={"stdout": True})
    assert "no metric is declared" in refusal(only, metrics=[])


def test_two_parameters_with_one_variable_are_refused() -> None:
    both = stage("m", "measure", params=["a.x", "a_x"])
    said = refusal(both, params={"a": {"x": 1}, "a_x": 2})
    assert "the parameters `a.x` and `a_x` would both be the variable A_X" in said


def test_the_order_is_topological_and_otherwise_that_of_the_file() -> None:
    stages = [
        stage("report", "step", needs=["search", "z"]),
        stage("search", "measure", needs=["b", "a"]),
        stage("z"),
        stage("b"),
        stage("a", needs=["z"]),
    ]
    assert [s.name for s in order(stages)] == ["z", "b", "a", "search", "report"]
    assert order(order(stages)) == order(stages)


def test_a_stage_sees_the_artifacts_of_its_needs_and_its_own() -> None:
    assert artifacts(SEARCH, (BUILD, SEARCH)) == {"index": "build"}
    assert artifacts(BUILD, (BUILD, SEARCH)) == {"index": "build"}
    assert artifacts(stage("x"), (BUILD, SEARCH)) == {}


@pytest.mark.parametrize(
    ("found", "names"),
    [
        (BUILD, {"a.x"}),
        (SEARCH, set()),
        (stage("s", params=["a"]), {"a.x", "a.y"}),
        (stage("s", params=["a.y"], cmd="# {ax}\n./s '{a.x}'"), {"a.x", "a.y"}),
        (stage("s", env={"N": "{ax}"}), {"ax"}),
        (stage("s", inputs=["{a.y}/in"], cwd="{ax}"), {"a.y", "ax"}),
        (stage("m", "measure", metrics_from={"file": "{a.x}.json"}), {"a.x"}),
        (stage("m", "measure", effective_from={"file": "{a.x}.json"}), {"a.x"}),
        (stage("s", cmd="awk '{print $1}' # {ax}"), set()),
        (stage("f", function="m:f"), {"a.x", "a.y", "ax", "path"}),
        (stage("f", function="m:f", params=["a.x"]), {"a.x"}),
    ],
)
def test_a_stage_uses_what_its_templates_and_params_name(found: Stage, names: set[str]) -> None:
    assert uses(found, config(found)) == names


def test_parameters_are_handed_over_in_the_environment() -> None:
    found = stage("s", params=["a", "r@1-2"])
    params: dict[str, Value] = {"a.x": 1e-3, "a.y": (1, 2), "r@1-2": True, "b": 3}
    assert environment(found, params) == {"A_X": "0.001", "A_Y": "1,2", "R_1_2": "true"}


def test_reached_by_names_the_stages_in_order() -> None:
    stages = (BUILD, stage("search", "measure", cmd="./s {index} {a.x}", needs=["build"]))
    assert reached_by(stages, "a.x", config(*stages)) == ("build", "search")
    assert reached_by(stages, "ax", config(*stages)) == ()


# --- the treatment ------------------------------------------------------------------------------


def treated(*stages: Stage, variable: str | None = "a.x", values: Any = (2,)) -> BenchmarkConfig:
    return config(*stages, treatment_variable=variable, treatment_values=values)


def test_a_treatment_that_reaches_a_prep_stage_of_the_measurement_passes() -> None:
    check_treatment(treated(BUILD, SEARCH), (BUILD, SEARCH))


def test_a_treatment_that_reaches_no_stage_is_refused_with_both_ways_to_hand_it_over() -> None:
    build = stage("build", cmd="./b --out {index}", produces=["index"])
    with pytest.raises(GateRefused, match="reaches no stage") as caught:
        check_treatment(treated(build, SEARCH), (build, SEARCH))
    assert caught.value.exit_code == 3
    assert "cmd: ./b --out {index} {a.x}\n" in str(caught.value)
    assert "params: [a.x]" in str(caught.value)
    assert "$A_X" in str(caught.value)


@pytest.mark.parametrize(
    "way", [{"cmd": "./b --out {index} {a.x}"}, {"params": ["a.x"]}, {"params": ["a"]}]
)
def test_each_way_that_the_refusal_names_is_accepted(way: dict[str, Any]) -> None:
    build = stage("build", **{"cmd": "./b --out {index}", "produces": ["index"], **way})
    check_treatment(treated(build, SEARCH), (build, SEARCH))


def test_a_treatment_that_only_reaches_what_no_measurement_needs_is_refused() -> None:
    search = stage("search", "measure", cmd="./s")
    with pytest.raises(GateRefused, match="reaches only `build`, which no measurement needs"):
        check_treatment(treated(BUILD, search), (BUILD, search))


@pytest.mark.parametrize(
    ("variable", "values", "said"),
    [
        ("a.xx", [2], "did you mean `a.x`?"),
        ("a", [2], "`a` is a group of parameters, not one"),
        ("a.x", [], "the treatment `a.x` has no values"),
        (None, [2], "no parameter that takes them"),
        ("a.x", [2, 3, "2"], "treatment_values.2: the treatment value 2 stands twice"),
        ("a.x", [[1, 2], "1,2"], "the treatment value 1,2 stands twice"),
    ],
)
def test_a_treatment_that_is_none_is_refused(
    variable: str | None, values: list[Any], said: str
) -> None:
    with pytest.raises(BadInput) as caught:
        check_treatment(treated(BUILD, SEARCH, variable=variable, values=values), (BUILD, SEARCH))
    assert said in str(caught.value)


def test_a_treatment_without_a_measurement_is_refused() -> None:
    only = stage("probe", "step", cmd="./p {a.x}")
    with pytest.raises(BadInput, match="no stage measures anything"):
        check_treatment(treated(only), (only,))


def test_a_training_needs_no_metrics_of_its_own_where_an_evaluation_needs_it() -> None:
    train = stage("train", "measure", cmd="./train {run.seed} {model}", metrics_from=None,
                  produces=["model"])  # fmt: skip
    evaluate = stage("eval", "measure", cmd="./eval {model}", needs=["train"])
    check_graph((train, evaluate), config=config(train, evaluate))
    told = stage("eval", "measure", cmd="./eval {model}", needs=["train"],
                 metrics_from={"stdout": True, "fields": ["t"]})  # fmt: skip
    assert reported_metrics((train, told)) == {"t"}
    with pytest.raises(BadInput, match="doesn't say where its metrics are"):
        check_graph((train, evaluate.model_copy(update={"needs": ()})))

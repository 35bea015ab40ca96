"""Any domain's graph becomes tasks: their order, their names, what they wait for."""

from __future__ import annotations

from benchwright.judgement.schedule import schedule
from benchwright.spec.arms import expand_arms
from benchwright.spec.model import BenchmarkConfig, Replication, Stage, StageKind
from flows.compiler import compile_graph


def _config(*stages: Stage, treatment: bool = True) -> BenchmarkConfig:
    return BenchmarkConfig(
        domain="command",
        params={"segments": 16},
        stages=stages,
        treatment_variable="segments" if treatment else None,
        treatment_values=(1,) if treatment else (),
        replication=Replication(replicates=2, warmup=1),
    )


def _nodes(config: BenchmarkConfig) -> list[tuple[str, str, int | None]]:
    arms = expand_arms(config)
    slots = schedule([arm.name for arm in arms], config.replication)
    return [node.key for node in compile_graph(config, arms, slots)]


BUILD = Stage(name="build", kind=StageKind.PREP, cmd="b {segments}", produces=("index",))
SEARCH = Stage(name="search", kind=StageKind.MEASURE, cmd="s {index}", needs=("build",))


def test_every_arm_is_built_before_the_first_replicate_runs() -> None:
    keys = _nodes(_config(BUILD, SEARCH))
    assert keys[:2] == [("build", "segments=16", None), ("build", "segments=1", None)]
    assert [order for _, _, order in keys[2:]] == list(range(6))


def test_a_replicate_waits_for_its_own_arms_artifact() -> None:
    config = _config(BUILD, SEARCH)
    arms = expand_arms(config)
    nodes = compile_graph(config, arms, schedule([a.name for a in arms], config.replication))
    for node in nodes[2:]:
        assert node.waits_for == (("build", node.arm, None),)


def test_task_runs_have_names_that_a_person_can_read() -> None:
    config = _config(BUILD, SEARCH)
    arms = expand_arms(config)
    nodes = compile_graph(config, arms, schedule([a.name for a in arms], config.replication))
    names = [node.name for node in nodes]
    assert names[0] == "build, segments=16"
    assert "search, segments=1, warm-up 1" in names
    assert "search, segments=16, replicate 2" in names
    assert len(set(names)) == len(names)


def test_a_chain_of_measure_stages_runs_whole_for_each_replicate() -> None:
    train = Stage(name="train", kind=StageKind.MEASURE, cmd="t", needs=("build",))
    evaluate = Stage(name="eval", kind=StageKind.MEASURE, cmd="e", needs=("train",))
    config = _config(BUILD, train, evaluate)
    keys = _nodes(config)
    assert [key[0] for key in keys[2:6]] == ["train", "eval", "train", "eval"]
    arms = expand_arms(config)
    nodes = compile_graph(config, arms, schedule([a.name for a in arms], config.replication))
    last = nodes[-1]
    assert last.waits_for == (("train", last.arm, last.slot.order if last.slot else None),)


def test_a_graph_of_steps_and_a_gate_has_no_arms_and_no_replicates() -> None:
    steps = (
        Stage(name="probe", kind=StageKind.STEP, cmd="p"),
        Stage(name="approve", kind=StageKind.GATE, function="m:f", needs=("probe",)),
        Stage(name="evaluate", kind=StageKind.STEP, cmd="e", needs=("approve",), host="tpu"),
    )
    config = _config(*steps, treatment=False)
    nodes = compile_graph(config, expand_arms(config), ())
    assert [node.name for node in nodes] == ["probe", "approve", "evaluate"]
    assert nodes[2].waits_for == (("approve", "only", None),)
    assert "host:tpu" in nodes[2].tags


def test_a_step_that_needs_a_measurement_runs_after_the_last_replicate() -> None:
    summary = Stage(name="summary", kind=StageKind.STEP, cmd="x", needs=("search",))
    keys = _nodes(_config(BUILD, SEARCH, summary))
    assert keys[-1] == ("summary", "segments=16", None)


def test_tags_say_kind_arm_and_accelerators() -> None:
    gpu = Stage.model_validate(
        {"name": "train", "kind": "measure", "cmd": "t", "resources": {"gpus": 2, "tpus": 1}}
    )
    config = _config(gpu)
    arms = expand_arms(config)
    node = compile_graph(config, arms, schedule([a.name for a in arms], config.replication))[0]
    assert {"kind:measure", "gpu", "gpus:2", "tpu", "tpus:1", f"arm:{node.arm}"} <= node.tags

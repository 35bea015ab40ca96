"""A stage that is a Python function, called in a process of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from benchwright.errors import StageFailed
from benchwright.execution.call import function_argv, read_result, write_request
from benchwright.spec.context import Approval, StageContext
from benchwright.spec.model import Stage, StageKind

MODULE = """
import os, sys
from benchwright import Approval, BadInput, StageContext

def give(context: StageContext):
    context.outputs["made"].write_text(context.inputs["from"].read_text().upper())
    print("hello from the stage")
    return {
        "params": dict(context.params),
        "is_tuple": isinstance(context.params["list"], tuple),
        "probe": context.results["probe"],
        "seed": context.seed, "arm": context.arm, "replicate": context.replicate,
        "dir": str(context.run_dir),
    }

def ask(context): return Approval("May I?", "**why**", (1.0, 2.5))
def nothing(context): return None
def see(context): return sorted(context.params)
def want(context): return context.params["a.b"]
def fail(context): raise ValueError("the disk is made of cheese")
def refuse(context): raise BadInput("size is negative", hint="use a positive one")
def leave(context): os._exit(0)
def quit(context): sys.exit(3)
def odd(context): return {"x": {1, 2}}
def heavy(context):
    return {"heavy": [name for name in ("pydantic", "prefect", "numpy") if name in sys.modules]}
def numbers(context):
    import numpy
    return {"a": numpy.float32(0.5), "b": numpy.arange(3)}
not_a_function = 3
"""


@pytest.fixture
def call(tmp_path: Path):
    (tmp_path / "experiment.py").write_text(MODULE)
    (tmp_path / "json.py").write_text("raise RuntimeError('this folder is no library')")
    (tmp_path / "input").write_text("abc")

    def call(function: str, *params: str) -> tuple[subprocess.CompletedProcess[str], Path]:
        stage = Stage(name="work", kind=StageKind.STEP, function=function, params=params)
        request, result = tmp_path / "request.json", tmp_path / "result.json"
        context = StageContext(
            params={"a.b": 1, "list": (1, 2), "odd": "$(id) 'x'"},
            inputs={"from": tmp_path / "input"},
            outputs={"made": tmp_path / "made"},
            results={"probe": {"model": "m"}},
            run_dir=tmp_path,
            seed=7,
            arm="n=1",
            replicate=3,
        )
        write_request(request, stage=stage, context=context, folder=tmp_path, result=result)
        done = subprocess.run(
            function_argv(request), capture_output=True, text=True, cwd=tmp_path, check=False
        )
        return done, result

    return call


def test_the_function_receives_its_context_and_its_result_comes_back(call, tmp_path):
    done, result = call("experiment:give")
    assert done.returncode == 0, done.stderr
    assert done.stdout == "hello from the stage\n"
    assert (tmp_path / "made").read_text() == "ABC"
    assert read_result(result) == {
        "params": {"a.b": 1, "list": [1, 2], "odd": "$(id) 'x'"},
        "is_tuple": True,
        "probe": {"model": "m"},
        "seed": 7,
        "arm": "n=1",
        "replicate": 3,
        "dir": str(tmp_path),
    }


def test_a_function_sees_only_the_parameters_that_its_stage_names(call):
    assert read_result(call("experiment:see")[1]) == ["a.b", "list", "odd"]
    assert read_result(call("experiment:see", "a", "odd")[1]) == ["a.b", "odd"]
    done, _ = call("experiment:want", "odd")
    assert done.returncode == 1
    assert done.stderr.startswith("this stage has no parameter 'a.b'\n  expected: odd\n")
    assert "add it to the stage's `params`" in done.stderr


def test_a_gate_can_ask_and_a_stage_can_give_nothing(call):
    _, result = call("experiment:ask")
    assert read_result(result) == Approval("May I?", "**why**", (1.0, 2.5))
    _, result = call("experiment:nothing")
    assert read_result(result) is None


def test_numpy_values_become_numbers_and_lists(call):
    _, result = call("experiment:numbers")
    assert read_result(result) == {"a": 0.5, "b": [0, 1, 2]}


def test_the_child_loads_neither_pydantic_nor_prefect_nor_numpy(call):
    _, result = call("experiment:heavy")
    assert read_result(result) == {"heavy": []}


def test_an_exception_shows_where_the_stage_failed_and_nothing_of_ours(call):
    done, _ = call("experiment:fail")
    assert done.returncode == 1
    assert done.stderr.endswith("ValueError: the disk is made of cheese\n")
    assert "experiment.py" in done.stderr
    assert "execution/call.py" not in done.stderr


def test_an_error_written_for_a_person_is_shown_without_a_traceback(call):
    done, _ = call("experiment:refuse")
    assert done.returncode == 1
    assert done.stderr == "size is negative\n  next: use a positive one\n"


@pytest.mark.parametrize(
    ("function", "said"),
    [
        ("experiment:giv", "did you mean 'experiment:give'?"),
        ("experiment:not_a_function", "is a int, which can't be called"),
        ("nowhere:f", "there is no module 'nowhere'"),
        ("experiment", "doesn't name a function"),
    ],
)
def test_a_function_that_cant_be_called_is_refused_by_its_key(call, function, said):
    done, _ = call(function)
    assert done.returncode == 1
    assert "stages.work.function" in done.stderr
    assert said in done.stderr
    assert "Traceback" not in done.stderr


def test_a_module_that_lacks_one_of_its_own_imports_shows_that_import(call, tmp_path):
    (tmp_path / "broken.py").write_text("import nowhere_to_be_found\n")
    done, _ = call("broken:f")
    assert done.returncode == 1
    assert "No module named 'nowhere_to_be_found'" in done.stderr
    assert "broken.py" in done.stderr


def test_a_result_that_is_no_json_names_the_type(call):
    done, _ = call("experiment:odd")
    assert done.returncode == 1
    assert "experiment:odd returned can't be written as JSON" in done.stderr
    assert "set" in done.stderr


def test_a_process_that_ends_before_the_function_returns_has_no_result(call):
    call("experiment:give")
    done, result = call("experiment:leave")
    assert done.returncode == 0
    with pytest.raises(StageFailed, match="ended its process before it returned"):
        read_result(result)
    assert call("experiment:quit")[0].returncode == 3


def test_request_and_result_are_for_their_owner_only(call, tmp_path):
    _, result = call("experiment:give")
    for path in (tmp_path / "request.json", result):
        assert oct(path.stat().st_mode & 0o777) == "0o600"


def test_a_function_of_a_module_that_is_off_the_path_is_found_where_it_was_loaded_from(tmp_path):
    import tests.domains.samples  # noqa: F401 - loaded by pytest, from a folder the child lacks

    stage = Stage(name="probe", kind=StageKind.STEP, function="tests.domains.samples:probe")
    context = StageContext({}, {}, {}, {}, tmp_path, 1, "only")
    write_request(
        tmp_path / "q.json",
        stage=stage,
        context=context,
        folder=tmp_path,
        result=tmp_path / "r.json",
    )
    environment = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"}
    argv = function_argv(tmp_path / "q.json")
    assert argv[0] == sys.executable
    subprocess.run(argv, cwd=tmp_path, env=environment, check=True)
    assert read_result(tmp_path / "r.json") == {"model": "parrot-1", "ready": True}

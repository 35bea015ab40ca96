"""Calls a stage that is a Python function in a process of its own.

The parent writes a request file and starts `function_argv`; the child imports the function, calls
it with a `StageContext`, and writes what it returned as JSON. Nothing is pickled: what crosses the
border can be read by a person, and is kept with the run's logs.

The child imports neither pydantic nor Prefect: its start is part of every replicate's duration.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchwright.errors import BadInput, BenchwrightError, StageFailed, Where
from benchwright.spec.context import Approval, StageContext

if TYPE_CHECKING:
    from benchwright.spec.model import Stage

TRACEBACK_FRAMES = 8
"""Frames of a stage's exception that are shown: the innermost ones, where its fault is."""


def function_argv(request: Path) -> tuple[str, ...]:
    """The command that runs a request.

    `-P` keeps the working directory off `sys.path` while this module's own imports are resolved: a
    file such as `json.py` beside a configuration would otherwise replace the standard library's.
    """
    return (sys.executable, "-P", "-m", "benchwright.execution.call", str(request))


def write_request(
    request: Path, *, stage: Stage, context: StageContext, folder: Path, result: Path
) -> None:
    """Write down what the child is to call.

    Args:
        request: File to write; readable by its owner only.
        stage: A stage with a `function`.
        context: What the function receives. Of its parameters only those that the stage's
            `params` name, where it names any: what it can't see can't make a cached artifact stale.
        folder: The folder that the stage's relative paths start from; modules are looked for
            there first.
        result: File that the child writes the result to. An old one is removed.
    """
    assert stage.function is not None, "only a stage with a function can be called"
    result.unlink(missing_ok=True)
    content = {
        "stage": stage.name,
        "function": stage.function,
        "folder": str(folder.resolve()),
        "paths": _import_paths(stage.function),
        "result": str(result),
        "context": {
            "params": _seen(stage, context.params),
            "inputs": {name: str(path) for name, path in context.inputs.items()},
            "outputs": {name: str(path) for name, path in context.outputs.items()},
            "results": dict(context.results),
            "run_dir": str(context.run_dir),
            "seed": context.seed,
            "arm": context.arm,
            "replicate": context.replicate,
        },
    }
    _write_private(request, json.dumps(content, indent=1, default=_plain))


def read_result(path: Path) -> Any:
    """What the function returned: a JSON value, or an `Approval`.

    Raises:
        StageFailed: The child ended without writing a result, or the file is damaged.
    """
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        approval = content.get("approval")
        if approval is None:
            return content["result"]
        estimate = approval["estimate_usd"]
        return Approval(
            question=approval["question"],
            details=approval["details"],
            estimate_usd=None if estimate is None else (estimate[0], estimate[1]),
        )
    except FileNotFoundError:
        raise StageFailed(
            "the function ended its process before it returned",
            where=Where(file=path),
            expected="a function that returns",
            hint="look for sys.exit(), os._exit() or a fork in it",
        ) from None
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as problem:
        raise StageFailed(
            f"the function's result can't be read: {problem}",
            where=Where(file=path),
            hint="run again; the file was damaged after the function wrote it",
        ) from None


def _seen(stage: Stage, params: Mapping[str, Any]) -> dict[str, Any]:
    """The parameters that the stage depends on; `a` in its `params` stands for `a.b` too."""
    if not stage.params:
        return dict(params)
    return {
        name: value
        for name, value in params.items()
        if any(name == own or name.startswith(f"{own}.") for own in stage.params)
    }


def _import_paths(function: str) -> list[str]:
    """Folders that this process imports from, for the child to look in after its own.

    First where this process has the function's package from, if it was loaded off `sys.path` (a
    domain beside its configuration, a test).
    """
    paths = []
    package = sys.modules.get(function.partition(":")[0].partition(".")[0])
    if package is not None:
        places = [str(place) for place in getattr(package, "__path__", ())]
        file = getattr(package, "__file__", None)
        origin = places[0] if places else file
        if origin:
            paths.append(str(Path(origin).resolve().parent))
    paths += [str(Path(path).resolve()) for path in sys.path if Path(path).is_dir()]
    return list(dict.fromkeys(paths))


def _write_private(path: Path, text: str) -> None:
    """Write a file that only its owner can read, beside it first: no reader sees half of it."""
    beside = path.with_name(f"{path.name}.{os.getpid()}.tmp")
    descriptor = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "w", encoding="utf-8") as file:
        file.write(text)
    beside.replace(path)


def _plain(value: Any) -> Any:
    """JSON's form of what isn't JSON but has an obvious one; anything else is refused."""
    if hasattr(value, "tolist"):  # numpy's scalars and arrays
        return value.tolist()
    if isinstance(value, Path):
        return str(value)
    if isinstance(value, Mapping):
        return dict(value)
    if isinstance(value, Approval):
        return _approval(value)
    raise TypeError(f"a value of type {type(value).__name__} has no JSON form")


def _approval(value: Approval) -> dict[str, Any]:
    return {
        "question": value.question,
        "details": value.details,
        "estimate_usd": value.estimate_usd,
    }


class _Params(dict[str, Any]):
    """The parameters that a stage sees; another one is refused with what to do."""

    def __missing__(self, name: str) -> Any:
        raise BadInput(
            f"this stage has no parameter '{name}'",
            expected=", ".join(sorted(self)) or "no parameter at all",
            hint="add it to the stage's `params`: what a stage uses decides when its artifacts"
            " can be taken from the cache",
        )


def _context(content: Mapping[str, Any]) -> StageContext:
    return StageContext(
        params=_Params(
            (name, tuple(value) if isinstance(value, list) else value)
            for name, value in content["params"].items()
        ),
        inputs={name: Path(path) for name, path in content["inputs"].items()},
        outputs={name: Path(path) for name, path in content["outputs"].items()},
        results=content["results"],
        run_dir=Path(content["run_dir"]),
        seed=content["seed"],
        arm=content["arm"],
        replicate=content["replicate"],
    )


def _load(stage: str, name: str) -> Callable[[StageContext], Any]:
    """Import `package.module:function`. Raises BadInput where it isn't there."""
    where = Where(key=f"stages.{stage}.function")
    module_name, colon, attribute = name.partition(":")
    if not colon or not module_name or not attribute:
        raise BadInput(
            f"'{name}' doesn't name a function",
            where=where,
            expected="`package.module:function`",
        )
    from importlib import import_module

    try:
        found: Any = import_module(module_name)
    except ModuleNotFoundError as problem:
        missing = problem.name or ""
        if not f"{module_name}.".startswith(f"{missing}."):
            raise  # the module is there; something that it imports isn't
        raise BadInput(
            f"there is no module '{missing}'",
            where=where,
            expected=f"{module_name.replace('.', '/')}.py beside the configuration, or an"
            " installed package",
            hint=f"looked in: {', '.join(sys.path)}",
        ) from None
    for part in attribute.split("."):
        if not hasattr(found, part):
            from difflib import get_close_matches

            names = [n for n in dir(found) if callable(getattr(found, n)) and n[:1] != "_"]
            near = get_close_matches(part, names, 1)
            raise BadInput(
                f"the module '{module_name}' has no function '{attribute}'",
                where=where,
                hint=f"did you mean '{module_name}:{near[0]}'?" if near else None,
            )
        found = getattr(found, part)
    if not callable(found):
        raise BadInput(
            f"'{name}' is a {type(found).__name__}, which can't be called",
            where=where,
            expected="a function that takes a StageContext",
        )
    return found  # type: ignore[no-any-return]


def _result_text(stage: str, function: str, value: Any) -> str:
    if isinstance(value, Approval):
        content: dict[str, Any] = {"approval": _approval(value)}
    else:
        content = {"result": value}
    try:
        return json.dumps(content, default=_plain)
    except (TypeError, ValueError, RecursionError) as problem:
        raise StageFailed(
            f"what {function} returned can't be written as JSON: {problem}",
            where=Where(key=f"stages.{stage}.function"),
            expected="None, or a dict of texts, numbers, lists and dicts with text keys",
        ) from None


def _call(request: Path) -> None:
    content = json.loads(request.read_text(encoding="utf-8"))
    sys.path.insert(0, content["folder"])
    sys.path += [path for path in content["paths"] if path not in sys.path]
    stage, name = content["stage"], content["function"]
    function = _load(stage, name)
    value = function(_context(content["context"]))
    _write_private(Path(content["result"]), _result_text(stage, name, value))


def main(arguments: list[str]) -> int:
    """Run the request named by the only argument.

    A fault of the stage is told on standard error: the text alone for an error that was written
    for a person, else the innermost frames.
    """
    try:
        _call(Path(arguments[0]))
    except BenchwrightError as problem:
        print(problem, file=sys.stderr)
        return 1
    except Exception as problem:
        import traceback

        summary = traceback.TracebackException.from_exception(problem, limit=-TRACEBACK_FRAMES)
        own = [frame for frame in summary.stack if frame.filename != __file__]
        summary.stack = traceback.StackSummary.from_list(own)
        print("".join(summary.format()), end="", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

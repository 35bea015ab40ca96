"""What makes another signature, and what does not."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

import benchwright
from benchwright.errors import BadInput
from benchwright.identity.signature import Signature, explain, sign
from benchwright.spec.model import Stage
from benchwright.spec.values import Value


def experiment(folder: Path) -> Path:
    """A folder with a build script, what it sources and imports, and its data."""
    (folder / "lib").mkdir(parents=True)
    (folder / "pkg").mkdir()
    (folder / "data" / "parts").mkdir(parents=True)
    write(folder / "build_index.sh", '#!/bin/bash\nsource "$(dirname "$0")/lib/common.sh"\n'
          'python3 "$here/make.py" --out "$1" > build.log\n', mode=0o755)  # fmt: skip
    write(folder / "lib/common.sh", "set -u\n. lib/paths.sh\n")
    write(folder / "lib/paths.sh", "here=.\n")
    write(folder / "make.py", "import json\nimport pkg.words\nfrom helper import mix\n")
    write(folder / "helper.py", "def mix(): ...\n")
    write(folder / "pkg/__init__.py", "")
    write(folder / "pkg/words.py", "from . import zipf\n")
    write(folder / "pkg/zipf.py", "EXPONENT = 1.1\n")
    write(folder / "unused.py", "")
    write(folder / "data/corpus.txt", "one\ntwo\n")
    write(folder / "data/parts/a.txt", "a\n")
    write(folder / "target.txt", "behind a link\n")
    (folder / "data/link.txt").symlink_to("../target.txt")
    return folder


def write(path: Path, text: str, mode: int = 0o644) -> None:
    path.write_text(text)
    path.chmod(mode)


STAGE = Stage(
    name="build",
    kind="prep",
    cmd="./build_index.sh {index}",
    produces=("index",),
    inputs=("data",),
)
PARAMS: Mapping[str, Value] = {
    "base_model": "MiniLM-L6",
    "generation.temperature": 0.0,
    "corpus.n_docs": 20000,
}


def signed(folder: Path, **changes: Any) -> Signature:
    stage = changes.pop("stage", STAGE)
    arguments: dict[str, Any] = {
        "command": "./build_index.sh --docs 20000 <out:index>",
        "params": PARAMS,
        "env": {"OMP_NUM_THREADS": "4"},
        "folder": folder,
        "cwd": folder,
        "upstream": {"corpus": "a" * 64},
        "domain": "command",
        "domain_version": "1",
    }
    return sign(stage, **{**arguments, **changes})


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return experiment(tmp_path / "experiment")


def assert_changed(new: Signature, old: Signature, sentence: str) -> None:
    assert new.digest != old.digest
    assert explain(new, old.parts) == sentence


def test_nothing_changed_gives_the_same_signature_and_nothing_to_say(folder: Path) -> None:
    old, new = signed(folder), signed(folder)
    assert new.digest == old.digest
    assert explain(new, old.parts) == ""


# Case 10: a cache once ignored the model, and the temperature.
@pytest.mark.parametrize(
    ("name", "value", "sentence"),
    [
        ("base_model", "MiniLM-L12", 'parameter base_model: "MiniLM-L6" -> "MiniLM-L12"'),
        ("generation.temperature", 0.7, "parameter generation.temperature: 0.0 -> 0.7"),
        ("corpus.n_docs", 20000.0, "parameter corpus.n_docs: 20000 -> 20000.0"),
    ],
)
def test_case_10_one_parameter_only(folder: Path, name: str, value: Value, sentence: str) -> None:
    new = signed(folder, params={**PARAMS, name: value})
    assert_changed(new, signed(folder), sentence)


def test_case_10_one_environment_variable_only(folder: Path) -> None:
    new = signed(folder, env={"OMP_NUM_THREADS": "8"})
    assert_changed(new, signed(folder), "environment OMP_NUM_THREADS changed")


@pytest.mark.parametrize(
    "name",
    [
        "build_index.sh",
        "lib/common.sh",  # sourced through $(dirname "$0")
        "lib/paths.sh",  # sourced by the one sourced
        "make.py",  # named after a variable
        "helper.py",  # imported
        "pkg/__init__.py",
        "pkg/words.py",
        "pkg/zipf.py",  # imported by a relative import
    ],
)
def test_case_10_one_script_only(folder: Path, name: str) -> None:
    old = signed(folder)
    with (folder / name).open("a") as script:
        script.write("# changed\n")
    assert_changed(signed(folder), old, f"file {name} changed")


def test_a_file_that_nothing_names_is_no_part_of_it(folder: Path) -> None:
    old = signed(folder)
    (folder / "unused.py").write_text("changed = True\n")
    assert signed(folder).digest == old.digest


def test_the_target_of_a_redirection_is_no_part_of_it(folder: Path) -> None:
    # The first build writes build.log; were it read, the second plan would always miss.
    old = signed(folder, command="./build_index.sh <out:index> >run.log 2> errors.log")
    for name in ("build.log", "run.log", "errors.log"):
        (folder / name).write_text("done\n")
    new = signed(folder, command="./build_index.sh <out:index> >run.log 2> errors.log")
    assert new.digest == old.digest


def test_the_executable_bit_only(folder: Path) -> None:
    old = signed(folder)
    (folder / "build_index.sh").chmod(0o644)
    assert_changed(signed(folder), old, "file build_index.sh is no longer executable")
    (folder / "data/corpus.txt").chmod(0o755)
    (folder / "build_index.sh").chmod(0o755)
    assert_changed(signed(folder), old, "input data/corpus.txt is now executable")


def test_the_content_of_a_links_target_only(folder: Path) -> None:
    old = signed(folder)
    (folder / "target.txt").write_text("changed\n")
    assert_changed(signed(folder), old, "input data/link.txt changed")


def test_where_a_link_leads_does_not_matter_where_the_content_is_the_same(folder: Path) -> None:
    old = signed(folder)
    shutil.copy(folder / "target.txt", folder / "copy.txt")
    (folder / "data/link.txt").unlink()
    (folder / "data/link.txt").symlink_to("../copy.txt")
    assert signed(folder).digest == old.digest


def test_a_file_added_to_an_input_folder_and_one_removed_are_named(folder: Path) -> None:
    old = signed(folder)
    (folder / "data/parts/b.txt").write_text("b\n")
    (folder / "data/parts/a.txt").unlink()
    sentence = "input data/parts/a.txt is gone; input data/parts/b.txt is new"
    assert_changed(signed(folder), old, sentence)


def test_an_empty_folder_in_an_input_counts(folder: Path) -> None:
    old = signed(folder)
    (folder / "data/empty").mkdir()
    assert_changed(signed(folder), old, "input data/empty/ is new")


def test_what_python_writes_beside_an_input_does_not_count(folder: Path) -> None:
    old = signed(folder)
    (folder / "data/__pycache__").mkdir()
    (folder / "data/__pycache__/x.pyc").write_bytes(b"x")
    assert signed(folder).digest == old.digest


def test_a_large_folder_is_one_part_and_still_read_whole(folder: Path) -> None:
    for number in range(300):
        (folder / f"data/parts/{number}.txt").write_text("x\n")
    old = signed(folder)
    assert "input data" in old.parts
    (folder / "data/parts/299.txt").write_text("y\n")
    assert_changed(signed(folder), old, "input data changed")


def test_another_folder_with_the_same_content_gives_the_same_signature(tmp_path: Path) -> None:
    one, two = experiment(tmp_path / "one"), experiment(tmp_path / "two" / "deeper")
    command = "{0}/build_index.sh --cwd {0} <out:index>"
    first = signed(one, command=command.format(one), env={"DATA": f"{one}/data"})
    second = signed(two, command=command.format(two), env={"DATA": f"{two}/data"})
    assert first.digest == second.digest
    assert str(tmp_path) not in str(first.parts)


def test_a_script_outside_the_folder_is_known_by_content_wherever_it_lies(
    folder: Path, tmp_path: Path
) -> None:
    signatures = []
    for place in ("here", "there"):
        (tmp_path / place).mkdir()
        write(tmp_path / place / "tool.py", "import extra\n")
        write(tmp_path / place / "extra.py", "")
        command = f"python3 {tmp_path / place / 'tool.py'} <out:index>"
        signatures.append(signed(folder, command=command))
    assert signatures[0].digest == signatures[1].digest
    (tmp_path / "there" / "extra.py").write_text("x = 1\n")
    assert_changed(signed(folder, command=command), signatures[0], "file extra.py changed")


def test_programs_of_the_machine_are_no_part_of_it(folder: Path) -> None:
    parts = signed(folder, command="/bin/cat /etc/../usr/bin/env <in:corpus>").parts
    assert not [name for name in parts if name.startswith("file ")]


def test_a_module_started_by_name_is_found(folder: Path) -> None:
    old = signed(folder, command="python3 -m pkg.words <out:index>")
    assert {"file pkg/words.py", "file pkg/zipf.py"} <= set(old.parts)


def test_a_declared_pythonpath_is_searched(folder: Path) -> None:
    (folder / "shared").mkdir()
    write(folder / "shared/tools.py", "")
    write(folder / "make.py", "import tools\n")
    parts = signed(folder, env={"PYTHONPATH": "shared"}).parts
    assert "file shared/tools.py" in parts


def test_a_data_file_in_quotes_with_an_apostrophe_is_found(folder: Path) -> None:
    write(folder / "it's data.txt", "x")
    parts = signed(folder, command="""./build_index.sh 'it'"'"'s data.txt' <out:index>""").parts
    assert "file it's data.txt" in parts


def test_a_words_file_behind_an_option_is_found(folder: Path) -> None:
    write(folder / "queries.txt", "x")
    parts = signed(folder, command="./build_index.sh --queries=queries.txt <out:index>").parts
    assert "file queries.txt" in parts


def test_a_script_with_broken_syntax_and_a_circle_of_imports_are_no_trouble(folder: Path) -> None:
    write(folder / "helper.py", "import make\n")
    write(folder / "pkg/zipf.py", "def (:\n")
    parts = signed(folder).parts
    assert "file pkg/zipf.py" in parts


def test_a_word_of_the_command_is_shown_as_it_was_and_is(folder: Path) -> None:
    new = signed(folder, command="./build_index.sh --docs 20000 --fast <out:index>")
    assert_changed(new, signed(folder), "command: (nothing) -> --fast")


def test_a_command_that_only_follows_a_parameter_is_not_named_besides(folder: Path) -> None:
    new = signed(
        folder,
        command="./build_index.sh --docs 50000 <out:index>",
        params={**PARAMS, "corpus.n_docs": 50000},
    )
    assert_changed(new, signed(folder), "parameter corpus.n_docs: 20000 -> 50000")


def test_a_parameter_and_a_script_are_both_named(folder: Path) -> None:
    old = signed(folder)
    with (folder / "build_index.sh").open("a") as script:
        script.write("true\n")
    new = signed(folder, params={**PARAMS, "corpus.n_docs": 50000})
    sentence = "parameter corpus.n_docs: 20000 -> 50000; file build_index.sh changed"
    assert_changed(new, old, sentence)


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"upstream": {"corpus": "b" * 64}}, "upstream corpus changed"),
        ({"domain_version": "2"}, "domain version: 1 -> 2"),
        ({"domain": "seismic"}, "domain: command -> seismic"),
        (
            {"stage": STAGE.model_copy(update={"params": ("base_model",)})},
            "exported parameters: none -> BASE_MODEL",
        ),
        ({"stage": STAGE.model_copy(update={"host": "gpu-1"})}, "host is new: gpu-1"),
    ],
)
def test_other_parts_each_count(folder: Path, changes: dict[str, Any], sentence: str) -> None:
    assert_changed(signed(folder, **changes), signed(folder), sentence)


def test_limits_and_the_stages_name_do_not_count(folder: Path) -> None:
    other = STAGE.model_copy(update={"name": "make", "timeout_s": 9.0})
    assert signed(folder, stage=other).digest == signed(folder).digest


def test_many_changes_are_counted_not_listed(folder: Path) -> None:
    old = signed(folder, params={f"p{number}": 1 for number in range(20)})
    new = signed(folder, params={f"p{number}": 2 for number in range(20)})
    assert explain(new, old.parts).endswith("and 14 more changes")


def test_a_secret_in_the_environment_is_never_kept_in_clear(folder: Path) -> None:
    parts = signed(folder, env={"API_TOKEN": "hunter2-secret", "OTHER": "hunter2-secret"}).parts
    assert "hunter2" not in str(parts)
    assert parts["environment API_TOKEN"] != parts["environment OTHER"]


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda data: (data / "gone.txt").symlink_to("nowhere"), "'data/gone.txt' does not exist"),
        (lambda data: (data / "up").symlink_to(".."), "leads back to a folder above"),
        (lambda data: (data / "self").symlink_to("self"), "leads back to itself"),
        (lambda data: shutil.rmtree(data), "input 'data' does not exist"),
    ],
    ids=["dangling", "circle", "self", "missing"],
)
def test_a_bad_input_is_refused_with_stage_and_path(folder: Path, make: Any, message: str) -> None:
    make(folder / "data")
    with pytest.raises(BadInput, match=message) as refusal:
        signed(folder)
    assert "stage 'build'" in str(refusal.value)


FUNCTION = Stage(name="build", kind="prep", function="steps.build:make", produces=("index",))


def function_folder(folder: Path) -> Path:
    (folder / "steps").mkdir(parents=True)
    write(folder / "steps/__init__.py", "raise RuntimeError('never imported')\n")
    write(folder / "steps/build.py", "import json\nfrom steps.words import count\nimport other\n")
    write(folder / "steps/words.py", "from .deep import x\n")
    write(folder / "steps/deep.py", "x = 1\n")
    write(folder / "other.py", "")
    return folder


@pytest.mark.parametrize("name", ["__init__", "build", "words", "deep"])
def test_a_functions_module_and_its_packages_modules_count(tmp_path: Path, name: str) -> None:
    folder = function_folder(tmp_path / "f")
    old = signed(folder, stage=FUNCTION, command=None)
    with (folder / f"steps/{name}.py").open("a") as module:
        module.write("# changed\n")
    new = signed(folder, stage=FUNCTION, command=None)
    assert_changed(new, old, f"file steps/{name}.py changed")


def test_a_function_is_bound_to_its_interpreter_and_found_without_running_it(
    tmp_path: Path,
) -> None:
    parts = signed(function_folder(tmp_path / "f"), stage=FUNCTION, command=None).parts
    assert parts["interpreter"] == f"python {sys.version_info.major}.{sys.version_info.minor}"
    assert parts["function"] == "steps.build:make"
    assert "file other.py" not in parts


def test_an_installed_functions_signature_has_no_path_in_it(tmp_path: Path) -> None:
    stage = FUNCTION.model_copy(update={"function": "benchwright.identity.canonical:slug"})
    parts = signed(tmp_path, stage=stage, command=None).parts
    assert "file benchwright/identity/canonical.py" in parts
    assert "file benchwright/errors.py" in parts
    assert str(Path(benchwright.__file__).parents[1]) not in str(parts)


def test_a_function_that_is_not_there_is_refused(tmp_path: Path) -> None:
    stage = FUNCTION.model_copy(update={"function": "nowhere.at_all:make"})
    with pytest.raises(
        BadInput, match=r"stage 'build': there is no Python module 'nowhere.at_all'"
    ):
        signed(tmp_path, stage=stage, command=None)


def test_a_folder_that_the_command_changes_to_is_searched(folder: Path) -> None:
    parts = signed(folder, command="cd lib && ./common.sh <out:index>").parts
    assert "file lib/common.sh" in parts


def test_a_pythonpath_that_the_command_sets_is_searched(folder: Path) -> None:
    (folder / "shared").mkdir()
    write(folder / "shared/tools.py", "")
    write(folder / "make.py", "import tools\n")
    parts = signed(folder, command="PYTHONPATH=shared:more python3 make.py <out:index>").parts
    assert "file shared/tools.py" in parts


def test_a_file_that_a_parameter_or_variable_names_counts(folder: Path) -> None:
    write(folder / "settings.ini", "a = 1")
    changes = {"params": {"dataset": "data/corpus.txt"}, "env": {"SETTINGS": "settings.ini"}}
    old = signed(folder, **changes)
    write(folder / "settings.ini", "a = 2")
    assert_changed(signed(folder, **changes), old, "file settings.ini changed")
    assert "file data/corpus.txt" in old.parts


def test_an_exported_parameter_is_named_once_and_not_as_a_variable(folder: Path) -> None:
    stage = STAGE.model_copy(update={"params": ("base_model",)})
    old, new = (
        signed(folder, stage=stage, params={"base_model": model}, env={"BASE_MODEL": model})
        for model in ("small", "large")
    )
    assert_changed(new, old, 'parameter base_model: "small" -> "large"')


def test_a_script_behind_a_link_finds_what_lies_beside_its_target(
    folder: Path, tmp_path: Path
) -> None:
    (tmp_path / "tools").mkdir()
    write(tmp_path / "tools/real.py", "import beside\n")
    write(tmp_path / "tools/beside.py", "")
    (folder / "linked.py").symlink_to(tmp_path / "tools/real.py")
    old = signed(folder, command="python3 linked.py <out:index>")
    (tmp_path / "tools/beside.py").write_text("x = 1\n")
    new = signed(folder, command="python3 linked.py <out:index>")
    assert new.digest != old.digest
    assert "beside.py changed" in explain(new, old.parts)


def test_of_absolute_names_in_a_script_only_what_is_sourced_or_run_counts(
    folder: Path, tmp_path: Path
) -> None:
    write(tmp_path / "library.sh", "")
    write(tmp_path / "program", "", mode=0o755)
    write(tmp_path / "scratch.log", "")
    script = f". {tmp_path}/library.sh\n{tmp_path}/program | tee {tmp_path}/scratch.log\n"
    write(folder / "build_index.sh", script)
    names = {Path(name.partition(" ")[2]).name for name in signed(folder).parts}
    assert {"library.sh", "program"} <= names
    assert "scratch.log" not in names

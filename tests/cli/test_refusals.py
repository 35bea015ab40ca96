"""Every refusal of the sample experiment, as a user sees it: one exit code, file, line and key.

`plan` and `run` refuse alike, print no result, and leave no folder behind.
"""

from __future__ import annotations

import json
import shutil
from dataclasses import dataclass
from pathlib import Path

import pytest

from cli.main import call

SAMPLE = Path(__file__).parents[1] / "recipes" / "sample"
CONFIG = (SAMPLE / "config.yaml").read_text()
END = "treatment_variable: "


@dataclass(frozen=True)
class Case:
    """One change of the sample, and what it is refused with."""

    old: str
    new: str
    place: str
    said: str
    code: int = 2


CASES = {
    "the treatment reaches no stage": Case(
        " --segments {forcemerge.max_num_segments}",
        "",
        "config.yaml:13: treatment_variable",
        "params: [forcemerge.max_num_segments]",
        3,
    ),
    "a duplicate key": Case("domain: command", "domain: command\ndomain: x", ":2: domain", "twice"),
    "an unknown key": Case(
        END, "treatment_varable: ", ":13: treatment_varable", "mean `treatment_"
    ),
    "an unknown key of a stage": Case(
        "needs: [build]", "need: [build]", ":10: stages.search.need", "`needs`"
    ),
    "an unknown key of metrics_from": Case(
        "stdout: true", "stdot: true", ":12: stages.search.metrics_from.stdot", "`stdout`"
    ),
    "an unknown key of the budget": Case(
        END, f"budget: {{wal_s: 3}}\n{END}", ":13: budget.wal_s", "`wall_s`"
    ),
    "an unknown key of the resources": Case(
        "kind: prep",
        "kind: prep\n    resources: {gpu: 1}",
        ":6: stages.build.resources.gpu",
        "`gpus`",
    ),
    "an unknown key of a metric": Case(
        END,
        f"metrics: [{{name: p50_ms, min_efect: 1}}]\n{END}",
        ":13: metrics.p50_ms.",
        "min_effect",
    ),
    "a needed stage that isn't there": Case(
        "needs: [build]", "needs: [biuld]", ":10: stages.search.needs[0]", "mean `build`"
    ),
    "a circle": Case(
        "kind: prep",
        "kind: prep\n    needs: [search]",
        ":6: stages.build.needs",
        "`build` needs `search` needs `build`",
    ),
    "an artifact that two stages produce": Case(
        "metrics_from:", "produces: [index]\n    metrics_from:", ":12: ", "`build` and `search`"
    ),
    "a prep stage that needs a measure stage": Case(
        END,
        "  - {name: late, kind: prep, needs: [search], cmd: 'true', produces: [x]}\n" + END,
        ":13: stages.late.needs",
        "search",
    ),
    "no measure stage": Case(
        CONFIG[CONFIG.index("  - name: search") : CONFIG.index(END)], "", ":3: stages", "`build`"
    ),
    "a template that isn't declared": Case(
        "{corpus.n_docs}", "{corpus.n_doc}", ":6: stages.build.cmd", "mean `{corpus.n_docs}`"
    ),
    "an artifact of a stage that isn't needed": Case(
        "needs: [build]", "needs: []", ":11: stages.search.cmd", "add `build` to the `needs`"
    ),
    "a treatment that is no parameter": Case(
        END + "forcemerge.max_num_segments",
        END + "forcemerge.max_num_segment",
        ":13: treatment_variable",
        "mean `forcemerge.max_num_segments`",
    ),
    "a wrong kind": Case("kind: prep", "kind: prepare", ":5: stages.build.kind", "mean `prep`"),
    "an unknown recipe": Case(
        "recipe: retrieval-index", "recipe: retrieval-indx", ":2: recipe", "mean `retrieval-index`"
    ),
    "an unknown domain": Case("domain: command", "domain: comand", ":1: domain", "mean `command`"),
    "a number out of its range": Case(
        END, f"replication: {{replicates: 0}}\n{END}", ":13: replication.replicates", "at least 1"
    ),
    "a metric that no stage prints": Case(
        "fields: [p50_ms", "fields: [p50_us", "fields[0]", "mean `p50_ms`"
    ),
    "an input that isn't there": Case(
        "produces: [index]",
        "produces: [index]\n    inputs: [none.txt]",
        ":8: stages.build.inputs",
        "'none.txt'",
    ),
    "a folder that isn't there": Case(
        "produces: [index]", "produces: [index]\n    cwd: none", ":8: stages.build.cwd", "none"
    ),
    "a script that isn't there": Case(
        "./build_index.sh", "./build_indx.sh", ":6: stages.build.cmd", "./build_indx.sh"
    ),
    "a script that may not be executed": Case(
        "./build_index.sh", "./config.yaml", ":6: stages.build.cmd", "chmod +x"
    ),
    "no YAML": Case(END, END + "[", ":14", "not valid YAML"),
    "a tag of YAML": Case("domain: command", "domain: !!str command", ":1", "not allowed"),
    "not a number": Case(
        END, f"params: {{n_queries: .nan}}\n{END}", ":13: params.n_queries", "finite"
    ),
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return Path(shutil.copytree(SAMPLE, tmp_path / "an experiment's folder"))


@pytest.mark.parametrize("verb", ["plan", "run"])
@pytest.mark.parametrize("what", CASES)
def test_it_is_refused_with_its_file_line_and_key(
    what: str,
    verb: str,
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    case = CASES[what]
    assert case.old in CONFIG
    (folder / "config.yaml").write_text(CONFIG.replace(case.old, case.new, 1))
    monkeypatch.chdir(folder)
    before = sorted(folder.rglob("*"))
    code = call([verb, "config.yaml"])
    printed = capsys.readouterr()
    assert (code, printed.out) == (case.code, ""), printed
    first = printed.err.splitlines()[0]
    assert first.startswith("error: config.yaml:"), first
    assert case.place in first
    assert case.said in printed.err
    assert sorted(folder.rglob("*")) == before, "nothing is written"


def test_with_json_a_refusal_is_one_object(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(folder)
    (folder / "config.yaml").write_text(CONFIG.replace("kind: prep", "kind: prepare"))
    assert call(["run", "config.yaml", "--json"]) == 2
    error = json.loads(capsys.readouterr().out)["error"]
    assert error["where"] == "config.yaml:5: stages.build.kind"
    assert (error["exit_code"], error["next"]) == (2, "did you mean `prep`?")


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ("forcemerge.max_num_segment=3", "did you mean `forcemerge.max_num_segments`?"),
        ("params.n_queries=3", "leave `params.` out: -p n_queries=3"),
        ("replication.replicates=3", "`replication` is no parameter: set it in the file"),
        ("n_queries", "`-p NAME=VALUE`"),
    ],
)
def test_an_option_that_sets_nothing_says_what_would(
    given: str, said: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert call(["plan", str(folder / "config.yaml"), "-p", given]) == 2
    printed = capsys.readouterr()
    assert printed.err.startswith("error: -p")
    assert said in printed.err


def test_a_program_that_a_stage_before_may_make_is_no_refusal(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = CONFIG.replace("./search_bench.sh", "./made_by_build").replace(
        END, "notes: 'the build compiles it'\n" + END
    )
    (folder / "config.yaml").write_text(text)
    assert call(["plan", str(folder / "config.yaml"), "--home", str(folder / "home")]) == 0
    assert "unless a stage before makes it so" in " ".join(capsys.readouterr().out.split())


def test_a_host_is_looked_up_later_and_the_plan_says_so(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = CONFIG.replace("needs: [build]", "needs: [build]\n    host: gpu-box")
    (folder / "config.yaml").write_text(text)
    assert call(["plan", str(folder / "config.yaml"), "--home", str(folder / "home")]) == 0
    assert "host 'gpu-box', which is looked up" in capsys.readouterr().out

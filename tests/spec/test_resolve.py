"""From a file or a recipe to a complete configuration: layers, places, refusals."""

# ruff: noqa: E501 - a table of refusals reads best with one on a line

from __future__ import annotations

import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

import pytest

from benchwright.errors import BadInput, BenchwrightError, GateRefused, Where
from benchwright.spec.arms import expand_arms
from benchwright.spec.domain import Domain, Domains
from benchwright.spec.manifest import Manifest, ManifestEntry
from benchwright.spec.model import BenchmarkConfig, Metric, Role, Stage, StageKind
from benchwright.spec.recipe import RecipeLibrary
from benchwright.spec.resolve import Resolved, from_mapping, resolve
from benchwright.spec.source import dump_yaml, read_yaml
from benchwright.spec.template import parse
from benchwright.spec.values import as_text

RECIPE = """\
summary: does merging make it faster?
domain: command
params:
  corpus:
    n_docs: 20000
  forcemerge:
    max_num_segments: 16
  n_queries: 2000
stages:
  - name: build
    kind: prep
    cmd: "python3 build.py {corpus.n_docs} {forcemerge.max_num_segments} {index}"
    produces: [index]
  - name: search
    kind: measure
    needs: [build]
    cmd: "python3 search.py {index} {n_queries}"
    metrics_from: {stdout: true, fields: [p50_ms, qps, "recall@10"]}
treatment_variable: forcemerge.max_num_segments
treatment_values: [1]
metrics:
  - {name: p50_ms, unit: ms, min_effect: 0.05}
  - {name: p95_ms, unit: ms, role: secondary}
  - {name: qps, unit: 1/s, direction: higher, role: secondary}
  - {name: recall@10, direction: higher, role: guardrail, scale: proportion, floor: 0.99}
replication: {replicates: 10, warmup: 2}
"""

MANIFEST = """\
entries:
  - {name: forcemerge.max_num_segments, reason: it is what is asked, since: "1"}
  - {name: tokenizer, reason: other words are found, since: "1"}
"""

SAMPLE = """\
domain: command
recipe: retrieval-index
stages:
  - name: build
    kind: prep
    cmd: "./build_index.sh --docs {corpus.n_docs} --segments {forcemerge.max_num_segments} --out {index}"
    produces: [index]
  - name: search
    kind: measure
    needs: [build]
    cmd: "./search_bench.sh --index {index} --queries {n_queries}"
    metrics_from: {stdout: true, fields: [p50_ms, "recall@10"]}
treatment_variable: forcemerge.max_num_segments
"""

ALONE = """\
domain: command
params:
  size: 10
  a.b: 1
stages:
  - name: run
    kind: measure
    cmd: "./run {size}"
    metrics_from: {stdout: true}
metrics:
  - name: t
"""


class Command(Domain):
    """Stages from the file."""

    name: ClassVar[str] = "command"

    def stages(self, config: BenchmarkConfig) -> Sequence[Stage]:
        return config.stages


class Typed(Domain):
    """Makes its own stages, out of order."""

    name: ClassVar[str] = "typed"

    def stages(self, config: BenchmarkConfig) -> Sequence[Stage]:
        if config.flat_params["size"] == "broken":
            raise BadInput("no such size", where=Where(key="params.size"))
        return (
            Stage(name="measure", kind=StageKind.MEASURE, function="m:measure", needs=("prep",)),
            Stage(name="prep", kind=StageKind.PREP, function="m:prep", params=("size",)),
        )

    def defaults(self) -> Mapping[str, Any]:
        return {"params": {"size": 5, "seed": 1}, "replication": {"replicates": 7}}

    def metrics(self, config: BenchmarkConfig) -> Sequence[Metric]:
        return (Metric(name="t", unit="s"),)

    def manifest(self) -> Manifest:
        return Manifest(entries=(ManifestEntry(name="model", reason="another model"),))

    def check(self, config: BenchmarkConfig) -> None:
        if config.flat_params["seed"] == 13:
            raise BadInput("no", where=Where(key="params.seed"))


class Place:
    """A folder with recipes and a configuration file."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.file = folder / "e.yaml"
        recipe = folder / "recipes" / "retrieval-index"
        recipe.mkdir(parents=True)
        (recipe / "recipe.yaml").write_text(RECIPE)
        (recipe / "manifest.yaml").write_text(MANIFEST)
        self.recipe = recipe
        self.recipes = RecipeLibrary([folder / "recipes"])
        self.domains = Domains()
        self.domains.add(Command())
        self.domains.add(Typed())

    def resolve(self, text: str | None = None, **options: Any) -> Resolved:
        target = options.pop("target", self.file)
        if text is not None:
            self.file.write_text(text)
        return resolve(target, domains=self.domains, recipes=self.recipes, **options)

    def refusal(self, text: str | None = None, **options: Any) -> str:
        with pytest.raises(BadInput) as caught:
            self.resolve(text, **options)
        assert caught.value.exit_code == 2
        return str(caught.value).replace(f"{self.folder}/", "")


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)


# --- what is resolved ---------------------------------------------------------------------------


def test_the_sample_takes_from_the_recipe_what_it_leaves_out(place: Place) -> None:
    found = place.resolve(SAMPLE)
    config = found.config
    assert config.flat_params == {
        "corpus.n_docs": 20000,
        "forcemerge.max_num_segments": 16,
        "n_queries": 2000,
    }
    assert [stage.name for stage in config.stages] == ["build", "search"]
    assert config.stages[0].cmd is not None
    assert config.stages[0].cmd.startswith("./build_index.sh")
    assert config.treatment_values == (1,)
    assert [metric.name for metric in config.metrics] == ["p50_ms", "recall@10"]
    assert config.metric("recall@10").role is Role.GUARDRAIL
    assert config.replication.warmup == 2
    assert [arm.name for arm in expand_arms(config)] == [
        "max_num_segments=16",
        "max_num_segments=1",
    ]
    assert found.folders == {"build": place.folder, "search": place.folder}
    assert found.folder == place.folder
    assert [entry.name for entry in found.missing] == ["tokenizer"]
    assert any("p95_ms, qps: left out" in note for note in found.notes)


def test_every_value_says_where_it_came_from(place: Place) -> None:
    found = place.resolve(
        SAMPLE.replace("treatment", "params: {n_queries: 5}\ntreatment", 1),
        overrides=["corpus.n_docs=1e3"],
        replicates=6,
    ).provenance

    def said(key: str) -> tuple[str, str, str]:
        entry = found[key]
        where = str(entry.where).replace(f"{place.folder}/", "") if entry.where else ""
        return entry.origin, where, entry.value_text

    assert said("params.n_queries") == ("file", "e.yaml:13: params.n_queries", "5")
    assert said("params.corpus.n_docs") == ("command line", "-p corpus.n_docs", "1000.0")
    assert said("params.forcemerge.max_num_segments") == (
        "recipe",
        "recipes/retrieval-index/recipe.yaml:7: params.forcemerge.max_num_segments",
        "16",
    )
    assert said("replication.replicates") == ("command line", "--replicates", "6")
    assert said("replication.warmup")[0] == "recipe"
    assert said("replication.seed") == ("default", "", "20250101")
    assert said("stages.search.cmd")[:2] == ("file", "e.yaml:11: stages.search.cmd")
    assert said("metrics.recall@10.floor")[0] == "recipe"
    assert said("metrics.recall@10.floor")[1].endswith("recipe.yaml:25: metrics.recall@10.floor")
    assert said("metrics.p50_ms.tolerance")[0] == "default"
    assert said("treatment_values")[0] == "recipe"
    assert said("domain") == ("file", "e.yaml:1: domain", "command")


def test_a_recipe_runs_by_its_name_from_its_own_folder(place: Place) -> None:
    found = place.resolve(target="retrieval-index")
    assert found.config.recipe == "retrieval-index"
    assert found.folder == place.recipe
    assert set(found.folders.values()) == {place.recipe}
    assert [m.name for m in found.config.metrics] == ["p50_ms", "p95_ms", "qps", "recall@10"]


def test_stages_of_the_recipe_start_from_its_folder(place: Place) -> None:
    found = place.resolve("recipe: retrieval-index\nparams: {n_queries: 5}\n")
    assert set(found.folders.values()) == {place.recipe}
    assert found.folder == place.folder
    assert found.config.domain == "command"


def test_maps_are_merged_and_lists_replaced(place: Place) -> None:
    found = place.resolve(
        "recipe: retrieval-index\nparams: {corpus: {seed: 7}, n_queries: 5}\n"
        "treatment_values: [2, 4]\nreplication: {replicates: 3}\n"
    ).config
    assert found.params == {
        "corpus": {"n_docs": 20000, "seed": 7},
        "forcemerge": {"max_num_segments": 16},
        "n_queries": 5,
    }
    assert found.treatment_values == (2, 4)
    assert (found.replication.replicates, found.replication.warmup) == (3, 2)


def test_metrics_are_merged_by_name(place: Place) -> None:
    found = place.resolve(
        "recipe: retrieval-index\nmetrics:\n  - {name: qps, role: primary}\n"
        "  - {name: p50_ms, min_effect: 0.2}\n"
    )
    assert [m.name for m in found.config.metrics] == ["p50_ms", "p95_ms", "qps", "recall@10"]
    assert found.config.metric("p50_ms").min_effect == 0.2
    assert found.config.metric("p50_ms").unit == "ms"
    assert found.config.metric("qps").role is Role.PRIMARY
    assert found.provenance["metrics.qps.role"].origin == "file"
    assert found.provenance["metrics.qps.unit"].origin == "recipe"


def test_dotted_and_nested_parameters_are_the_same(place: Place) -> None:
    found = place.resolve(
        "recipe: retrieval-index\nparams:\n  corpus.n_docs: 5\n  forcemerge: {x.y: 1}\n"
    )
    assert found.config.params["corpus"] == {"n_docs": 5}
    assert found.config.params["forcemerge"] == {"max_num_segments": 16, "x": {"y": 1}}
    assert str(found.provenance["params.corpus.n_docs"].where).endswith(
        "e.yaml:3: params.corpus.n_docs"
    )


def test_another_treatment_leaves_the_recipes_values_behind(place: Place) -> None:
    said = place.refusal(
        SAMPLE.replace("variable: forcemerge.max_num_segments", "variable: n_queries")
    )
    assert said.startswith("e.yaml:13: treatment_variable: the treatment `n_queries` has no values")
    found = place.resolve("recipe: retrieval-index\ntreatment_variable: null\n")
    assert found.config.treatment_values == ()
    assert any("treatment values belong to" in note for note in found.notes)


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("size=20", 20),
        ("size=1e-3", 0.001),
        ("size=010", "010"),
        ("size=on", "on"),
        ("size=12:30", "12:30"),
        ("size='5'", "5"),
        ('size="a\\tb"', "a\tb"),
        ("size=true", True),
        ("size=null", None),
        ("size=", ""),
        ("size=a=b", "a=b"),
        ("size=it's # $(x) {y}", "it's # $(x) {y}"),
        ("size='a' or 'b'", "'a' or 'b'"),
        ("size=[1, 2]", "[1, 2]"),
        ("size= x ", " x "),
    ],
)
def test_an_option_reads_its_value_as_a_file_would(place: Place, option: str, value: Any) -> None:
    found = place.resolve(ALONE, overrides=[option]).config.flat_params["size"]
    assert (found, type(found)) == (value, type(value))


def test_an_option_reads_a_list_where_the_parameter_is_one(place: Place) -> None:
    text = ALONE.replace("size: 10", "size: [1, 2]")
    assert place.resolve(text, overrides=["size=[3, on]"]).config.flat_params["size"] == (3, "on")


def test_a_parameter_of_the_manifest_can_be_set_though_no_file_declares_it(place: Place) -> None:
    found = place.resolve(SAMPLE, overrides=["tokenizer=010"])
    assert found.config.flat_params["tokenizer"] == "010"
    assert found.missing == ()


@pytest.mark.parametrize(
    "written", ["on", "no", "010", "12:30", "1_000", "1,25", "it's", "a#b", "a%s|{x}"]
)
def test_what_the_author_wrote_reaches_the_program_as_value_and_under_any_key(
    place: Place, written: str
) -> None:
    key = written if written in ("on", "no", "010", "12:30", "1_000") else "size2"
    text = ALONE.replace("size: 10", f"size: 10\n  {key}: {written}")
    found = place.resolve(text.replace("{size}", f"{{{key}}}", 1).replace("./run", "printf %s"))
    values = {name: as_text(value) for name, value in found.config.flat_params.items()}
    command = parse(found.config.stages[0].cmd or "").render(values)
    assert subprocess.check_output(["bash", "-c", command]).decode() == written


def test_a_list_among_the_treatment_values_is_one_value(place: Place) -> None:
    text = ALONE.replace("size: 10", "size: [1, 2]")
    found = place.resolve("treatment_variable: size\ntreatment_values: [[3, 4], 5]\n" + text)
    assert [arm.name for arm in expand_arms(found.config)] == ["size=1,2", "size=3,4", "size=5"]
    assert found.provenance["treatment_values"].value_text == "3,4,5"


def test_numbers_of_any_size_stay_exact(place: Place) -> None:
    text = ALONE.replace("size: 10", f"size: {10**40 + 1}\n  small: 1.5e-300")
    params = place.resolve(text).config.flat_params
    assert (params["size"], params["small"]) == (10**40 + 1, 1.5e-300)


def test_a_typed_domain_brings_defaults_stages_metrics_and_manifest(place: Place) -> None:
    found = place.resolve("domain: typed\nparams: {size: 9}\n")
    assert [stage.name for stage in found.config.stages] == ["prep", "measure"]
    assert found.config.flat_params == {"size": 9, "seed": 1}
    assert found.config.replication.replicates == 7
    assert [metric.name for metric in found.config.metrics] == ["t"]
    assert [entry.name for entry in found.missing] == ["model"]
    assert found.provenance["params.seed"].origin == "domain"
    assert found.provenance["stages.prep.function"].origin == "domain"
    assert found.folders == {"prep": place.folder, "measure": place.folder}
    assert found.domain.name == "typed"


def test_a_domains_refusal_gets_its_file_and_line(place: Place) -> None:
    said = place.refusal("domain: typed\nparams:\n  size: 9\n  seed: 13\n")
    assert said.startswith("e.yaml:4: params.seed: no")
    said = place.refusal("domain: typed\nparams:\n  size: broken\n")
    assert said.startswith("e.yaml:3: params.size: no such size")


def test_a_number_that_programs_receive_otherwise_is_noted(place: Place) -> None:
    notes = place.resolve(ALONE.replace("size: 10", "size: 3.10")).notes
    assert len(notes) == 1
    assert "e.yaml:3: params.size: `3.10` is a value, and programs receive `3.1`" in notes[0]
    assert place.resolve(ALONE.replace("size: 10", "size: '3.10'")).notes == ()


def test_text_fields_take_a_bare_number_as_it_was_written(place: Place) -> None:
    text = ALONE.replace(
        "    kind:", "    env: {THREADS: 010, N: 1.50, ON: on, T: True}\n    kind:"
    )
    found = place.resolve(text.replace('"./run {size}"', "true")).config.stages[0]
    assert found.env == {"THREADS": "010", "N": "1.50", "ON": "on", "T": "True"}
    assert found.cmd == "true"


def test_a_mapping_resolves_as_its_file_does(place: Place) -> None:
    found = place.resolve(SAMPLE)
    again = from_mapping(
        read_yaml(place.file).data,
        folder=place.folder,
        domains=place.domains,
        recipes=place.recipes,
    )
    assert again.config == found.config
    assert again.folders == found.folders
    assert again.provenance["params.n_queries"] == found.provenance["params.n_queries"]


@pytest.mark.parametrize("text", [SAMPLE, ALONE, "domain: typed\n"])
def test_a_complete_configuration_resolves_to_itself(place: Place, text: str) -> None:
    found = place.resolve(text)
    (place.folder / "again.yaml").write_text(dump_yaml(found.config.model_dump(mode="json")))
    again = place.resolve(target=place.folder / "again.yaml")
    assert again.config == found.config


# --- what is refused ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("params:", "parms:", "e.yaml:2: parms: `parms` is no key of a configuration"),
        ("params:", "parms:", "did you mean `params`?"),
        (
            "    kind:",
            "    knd: 1\n    kind:",
            "e.yaml:7: stages.run.knd: `knd` is no key of `stages.run`",
        ),
        ("    kind:", "    knd: 1\n    kind:", "did you mean `kind`?"),
        ("{stdout: true}", "{stdot: true}", "e.yaml:9: stages.run.metrics_from.stdot: "),
        ("  - name: t", "  - {name: t, unti: s}", "e.yaml:11: metrics.t.unti: "),
        ("domain:", "replication: {replicate: 3}\ndomain:", "did you mean `replicates`?"),
        ("domain:", "budget: {walls: 3}\ndomain:", "e.yaml:1: budget.walls: "),
        ("domain:", "summary: x\ndomain:", "e.yaml:1: summary: `summary` is no key"),
        ("command", "comand", "e.yaml:1: domain: there is no domain `comand`"),
        ("command", "comand", "did you mean `command`?"),
        ("domain: command\n", "", "e.yaml:1: `domain` is missing"),
        ("command", "[command]", "e.yaml:1: domain: there is no domain"),
        ("domain:", "recipe: retrieval-indx\ndomain:", "e.yaml:1: recipe: there is no recipe"),
        ("domain:", "recipe: retrieval-indx\ndomain:", "did you mean `retrieval-index`?"),
        (
            "domain: command",
            "recipe: retrieval-index\ndomain: typed",
            "e.yaml:2: domain: the recipe",
        ),
        ("kind: measure", "kind: mesure", "e.yaml:7: stages.run.kind: `kind` is the text 'mesure'"),
        ("kind: measure", "kind: mesure", "one of `prep`, `measure`, `step`, `gate`"),
        ("kind: measure", "kind: mesure", "did you mean `measure`?"),
        ("    kind: measure\n", "", "e.yaml:6: stages.run.kind: `kind` is missing"),
        (
            "stdout: true",
            "stdout: yes",
            "e.yaml:9: stages.run.metrics_from.stdout: `stdout` is the text 'yes'",
        ),
        ("stdout: true", "stdout: yes", "expected: true or false"),
        ("stdout: true", "stdout: false", "e.yaml:9: stages.run.metrics_from: exactly one of"),
        ('"./run {size}"', "{size}", "a text that begins with { or [ needs quotes"),
        ("  - name: run", "  - name: r n", "e.yaml:6: stages.r n.name: a name has letters"),
        ("  - name: run", "  - run\n  - name: run", "e.yaml:6: stages[0]: this is the text 'run'"),
        (
            "domain:",
            "replication: {replicates: 0}\ndomain:",
            "`replicates` is 0\n  expected: a number of at least 1",
        ),
        (
            "domain:",
            "replication: {replicates: 010}\ndomain:",
            "e.yaml:1: replication.replicates: `replicates` is the text '010'",
        ),
        ("domain:", "replication: {replicates: 2.5}\ndomain:", "expected: a whole number"),
        ("domain:", "replication: 5\ndomain:", "`replication` is 5\n  expected: a mapping"),
        (
            "domain:",
            "budget: {wall_s: 60s}\ndomain:",
            "expected: a number\n  next: a number has no quotes",
        ),
        ("domain:", "budget: {wall_s: -1}\ndomain:", "expected: a number above 0"),
        ("  - name: t", "  - {name: t, min_effect: 0,05}", "`05` is no key"),
        ("  - name: t", '  - {name: t, min_effect: "0,05"}', "a point for the decimals"),
        ("  - name: t", "  - {name: t, floor: 1}", "e.yaml:11: metrics.t: `floor` and"),
        (
            "  - name: t",
            "  - {name: t}\n  - {name: t}",
            "e.yaml:12: metrics.t.name: the metric `t` stands twice",
        ),
        ("  - name: t", "  - {unit: s}", "e.yaml:11: metrics[0].name: `name` is missing"),
        ("metrics:\n  - name: t\n", "metrics: t\n", "expected: a list"),
        ("metrics:\n  - name: t\n", "", "metrics: no metric is declared"),
        ("size: 10", "size: .inf", "e.yaml:3: params.size: `.inf` is not a finite number"),
        ("size: 10", "size: [[1]]", "e.yaml:3: params.size: a list of a parameter"),
        ("a.b: 1", "a.b: 1\n  a: {b: 2}", "e.yaml:5: params.a.b: the parameter `a.b` stands twice"),
        ("a.b: 1", "a.b: 1\n  a: 2", "e.yaml:5: params.a: the parameter `a` stands twice"),
        ("a.b: 1", "a: 2\n  a.b: 1", "e.yaml:5: params.a.b: the parameter `a.b` stands twice"),
        ("a.b: 1", "run: {id: 1}", "e.yaml:4: params.run: parameters below `run`"),
        ("a.b: 1", "a..b: 1", "e.yaml:4: params.a..b: `a..b` can't be the name"),
        ("a.b: 1", '"a b": 1', "e.yaml:4: params.a b: `a b` can't be the name"),
        (
            "params:\n  size: 10\n  a.b: 1\n",
            "params: [size]\n",
            "`params` is a list\n  expected: a mapping",
        ),
        (
            "{size}",
            "{sise}",
            "e.yaml:8: stages.run.cmd: `{sise}` (outside quotes) is no declared name",
        ),
        ("{size}", "{sise}", "did you mean `{size}`?"),
        ("    kind:", "    needs: [biuld]\n    kind:", "e.yaml:7: stages.run.needs[0]: "),
        (
            "    kind:",
            "    params: [sise]\n    kind:",
            "e.yaml:7: stages.run.params[0]: `sise` is no declared parameter",
        ),
        (
            "{stdout: true}",
            "{stdout: true, fields: [tt]}",
            "e.yaml:9: stages.run.metrics_from.fields[0]: `tt`",
        ),
        (
            "domain:",
            "treatment_variable: sise\ntreatment_values: [1]\ndomain:",
            "e.yaml:1: treatment_variable: `sise` is no",
        ),
        (
            "domain:",
            "treatment_values: [1]\ndomain:",
            "e.yaml:1: treatment_values: there are treatment values",
        ),
        (
            "domain:",
            "treatment_variable: size\ntreatment_values: [1,\n  '1']\ndomain:",
            "e.yaml:3: treatment_values[1]: ",
        ),
        ("domain:", "code_evidence: {}\ndomain:", "e.yaml:1: code_evidence: exactly one of"),
    ],
)
def test_a_file_that_cannot_be_meant_so_is_refused(
    place: Place, old: str, new: str, said: str
) -> None:
    assert old in ALONE
    assert said in place.refusal(ALONE.replace(old, new, 1))


def test_a_metric_of_the_file_that_no_stage_reports_is_refused(place: Place) -> None:
    text = ALONE.replace("{stdout: true}", "{stdout: true, fields: [t]}") + "  - name: tt\n"
    said = place.refusal(text)
    assert said.startswith("e.yaml:12: metrics.tt: no measure stage reports the metric `tt`")
    assert "did you mean `t`?" in said


def test_stages_that_are_not_there_are_asked_for(place: Place) -> None:
    assert "e.yaml:1: there are no stages" in place.refusal("domain: command\n")


def test_a_typed_domain_makes_its_own_stages(place: Place) -> None:
    said = place.refusal(ALONE.replace("command", "typed"))
    assert said.startswith("e.yaml:5: stages: the domain `typed` makes its own stages")


def test_a_mistake_of_the_recipe_names_the_recipes_file(place: Place) -> None:
    text = RECIPE.replace("warmup: 2", "warmup: two")
    (place.recipe / "recipe.yaml").write_text(text)
    said = place.refusal(SAMPLE)
    assert said.startswith("recipes/retrieval-index/recipe.yaml:26: replication.warmup: ")
    assert "(the recipe `retrieval-index` says so)" in said
    (place.recipe / "recipe.yaml").write_text(RECIPE + "recipe: other\n")
    assert "recipe.yaml:27: recipe: a recipe can't build on another" in place.refusal(SAMPLE)


def test_a_treatment_that_reaches_no_stage_is_refused_by_the_gate(place: Place) -> None:
    text = SAMPLE.replace(" --segments {forcemerge.max_num_segments}", "")
    with pytest.raises(GateRefused) as caught:
        place.resolve(text)
    said = str(caught.value)
    assert caught.value.exit_code == 3
    assert said.startswith(f"{place.file}:13: treatment_variable: ")
    assert "--out {index} {forcemerge.max_num_segments}\n" in said
    assert "params: [forcemerge.max_num_segments]" in said
    handed = text.replace(
        "    produces:", "    params: [forcemerge.max_num_segments]\n    produces:"
    )
    assert place.resolve(handed).config.stages[0].params == ("forcemerge.max_num_segments",)


@pytest.mark.parametrize(
    ("overrides", "said"),
    [
        (
            ["sise=1"],
            "-p sise: `sise` is no declared parameter\n  expected: one of `size`, `a.b`\n",
        ),
        (["sise=1"], "did you mean `size`?"),
        (["a=1"], "-p a: `a` is a group of parameters"),
        (["size"], "-p: `size` sets nothing"),
        (["=1"], "-p: `=1` sets nothing"),
        (["size=1", "size=2"], "-p size: `size` is set twice"),
        (["size=.nan"], "-p size: `.nan` is not a finite number"),
        (["size=x\udcff"], "-p size: the character U+DCFF can't be handed to a program"),
        (["treatment_values=1"], "`treatment_values` is no parameter: set it in the file"),
    ],
)
def test_an_option_that_sets_no_parameter_is_refused(
    place: Place, overrides: list[str], said: str
) -> None:
    assert said in place.refusal(ALONE, overrides=overrides)


def test_too_few_replicates_are_refused_as_the_option(place: Place) -> None:
    said = place.refusal(ALONE, replicates=0)
    assert said == "--replicates: `replicates` is 0\n  expected: a number of at least 1"


@pytest.mark.parametrize(
    ("target", "said"),
    [
        ("retrieval-idx", "retrieval-idx: there is no recipe of that name, and no such file"),
        ("retrieval-idx", "did you mean `retrieval-index`?"),
        ("f.yaml", "f.yaml: there is no such file"),
        ("{folder}/ee.yaml", "did you mean e.yaml?"),
        ("{folder}", "this is a folder"),
    ],
)
def test_a_target_that_is_neither_file_nor_recipe_is_refused(
    place: Place, target: str, said: str
) -> None:
    place.file.write_text(ALONE)
    assert said in place.refusal(target=target.format(folder=place.folder))


def test_data_that_came_from_no_file_is_refused_by_its_key(place: Place) -> None:
    place.file.write_text(ALONE)
    data = read_yaml(place.file).data
    data["stages"][0]["knd"] = 1
    with pytest.raises(BenchwrightError) as caught:
        from_mapping(data, folder=place.folder, domains=place.domains, recipes=place.recipes)
    assert str(caught.value).startswith("stages.run.knd: `knd` is no key of `stages.run`")


def test_a_parameter_that_the_manifest_misses_is_left_to_the_plan_though_a_stage_names_it(
    place: Place,
) -> None:
    text = SAMPLE.replace(" --segments", " --tokenizer {tokenizer} --segments")
    found = place.resolve(text)
    assert [entry.name for entry in found.missing] == ["tokenizer"]
    assert "is no declared name" in place.refusal(text.replace("{tokenizer}", "{tokeniser}"))

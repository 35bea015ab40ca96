"""The reference says what the models have, and its examples do what it says."""

from __future__ import annotations

import ast
import dataclasses
import re
from pathlib import Path

import pytest
from pydantic import BaseModel

from benchwright import Domain, ManifestEntry, Metric, Stage, StageContext
from benchwright.errors import StageFailed
from benchwright.execution.metrics import read_measurement
from benchwright.spec.model import (
    BenchmarkConfig,
    Budget,
    CodeEvidence,
    EffectiveFrom,
    MetricsFormat,
    MetricsFrom,
    Replication,
    Resources,
    StageKind,
)
from benchwright.spec.template import RUN_NAMES

ROOT = Path(__file__).parents[2]
CONFIGURATION = (ROOT / "docs" / "configuration.md").read_text(encoding="utf-8")
DOMAINS = (ROOT / "docs" / "domains.md").read_text(encoding="utf-8")


def rows(text: str) -> dict[str, tuple[str, ...]]:
    """The first cell of each row of a table that is a name, with the other cells."""
    found = {}
    for line in text.splitlines():
        cells = [cell.strip() for cell in line.strip("|").split(" | ")]
        if line.startswith("| `") and len(cells) > 1:
            found[re.split(r"[`:(]", cells[0])[1]] = tuple(cells[1:])
    return found


def section(name: str) -> str:
    return CONFIGURATION.split(f"\n## {name}\n")[1].split("\n## ")[0]


@pytest.mark.parametrize(
    ("model", "heading"),
    [
        (BenchmarkConfig, "Top level"),
        (Stage, "Stages"),
        (MetricsFrom, "Where metrics are read"),
        (Metric, "Metrics"),
        (Replication, "Replication"),
        (Budget, "Budget"),
        (ManifestEntry, "Recipes"),
    ],
)
def test_the_reference_has_every_key_and_no_other(model: type[BaseModel], heading: str):
    named = set(rows(section(heading)))
    if heading == "Where metrics are read":
        named &= {"stdout", "file", "format", "fields"}
    assert named == set(model.model_fields)


@pytest.mark.parametrize("model", [Metric, Replication])
def test_the_defaults_in_the_reference_are_those_of_the_model(model: type[BaseModel]):
    headings = {
        Metric: "Metrics",
        Replication: "Replication",
        MetricsFrom: "Where metrics are read",
    }
    said = rows(section(headings[model]))
    for name, field in model.model_fields.items():
        if isinstance(field.default, int | float):
            assert said[name][-1].strip("`").lower() == str(field.default).lower(), name


@pytest.mark.parametrize("model", [Resources, CodeEvidence, EffectiveFrom])
def test_the_reference_names_every_key_of_the_small_models(model: type[BaseModel]):
    for name in model.model_fields:
        assert re.search(rf"`[^`]*\b{name}\b[^`]*`", CONFIGURATION), name


def test_the_reference_names_everything_that_is_said_of_the_run():
    assert all(f"{{{name}}}" in CONFIGURATION for name in RUN_NAMES)


def test_the_first_example_is_the_sample():
    sample = ROOT / "tests" / "recipes" / "sample" / "config.yaml"
    assert sample.read_text(encoding="utf-8") in CONFIGURATION


def examples() -> list[tuple[MetricsFormat, str]]:
    blocks = re.findall(r"```\n(.*?)```", section("Where metrics are read"), re.DOTALL)
    forms = [MetricsFormat.JSON, MetricsFormat.KEY_VALUE, *[MetricsFormat.CSV] * 3]
    # A remark stands right of some lines, two spaces or more away.
    plain = ["\n".join(re.split(r" {2,}", line)[0] for line in b.splitlines()) for b in blocks]
    return list(zip(forms, plain, strict=True))


@pytest.mark.parametrize(("form", "text"), examples())
def test_each_example_of_an_output_is_read(tmp_path: Path, form: MetricsFormat, text: str):
    (tmp_path / "out").write_text(text)
    stage = Stage(
        name="search",
        kind=StageKind.MEASURE,
        cmd="true",
        metrics_from=MetricsFrom(stdout=True, format=form),
    )
    found = read_measurement(stage, stdout=tmp_path / "out", cwd=tmp_path, expected=["p50_ms"])
    assert found.metrics["p50_ms"] == pytest.approx(1.25 if "repeat" not in text else 1.28)


def refused() -> list[list[str]]:
    """What the table of errors says is written, one output each."""
    table = section("Where metrics are read").split("| written | refused because |")[1]
    cells = [line.split(" | ")[0] for line in table.splitlines()[2:] if line.startswith("| `")]
    return [re.findall(r"`([^`]*)`", cell) for cell in cells]


@pytest.mark.parametrize("lines", refused())
def test_each_row_of_the_table_of_errors_is_an_error(tmp_path: Path, lines: list[str]):
    (tmp_path / "out").write_text("\n".join(lines))
    stage = Stage(
        name="search",
        kind=StageKind.MEASURE,
        cmd="true",
        metrics_from=MetricsFrom(stdout=True),
    )
    with pytest.raises(StageFailed):
        read_measurement(stage, stdout=tmp_path / "out", cwd=tmp_path, expected=["p50_ms"])


def test_the_guide_to_domains_names_all_that_a_domain_and_a_context_have():
    said = rows(DOMAINS)
    members = {name for name in vars(Domain) if name[0] != "_"} | {"name"}
    fields = {field.name for field in dataclasses.fields(StageContext)}
    assert members | fields == set(said)


def test_the_python_in_the_guide_is_python_and_imports_from_the_front_door_only():
    for block in re.findall(r"```python\n(.*?)```", DOMAINS, re.DOTALL):
        code = block if "import" in block else f"def f():\n    {block}"
        for node in ast.walk(ast.parse(code)):
            if isinstance(node, ast.ImportFrom) and node.module and "benchwright" in node.module:
                assert node.module == "benchwright"

"""A suite's file: what it means, and refusals that name file, line, key and the nearest name."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchwright.errors import BadInput
from benchwright.spec.suite import HERE, read_suite, suite_files

WHOLE = """\
description: What we ship
schedule: {cron: "30 1 * * mon-fri", timezone: Europe/Berlin}
hosts:
  gpu-a:
    deployment: benchmark/gpu-a
    params: {reach.host: gpu-a.lan, port: 8000}
entries:
  - name: search
    experiment: search.yaml
    replicates: 20
  - name: gsm8k
    domain: accuracy
    host: gpu-a
    baseline: 2026-01-01_gsm8k_aaaaaa
    params: {port: 9000, sets: [a, "1"], note: "yes", none: null, on: true}
    metrics: [score.gsm8k]
    accepted:
      - {until: 2026-03-02, because: a safer tokenizer, metrics: [score.gsm8k]}
"""


def write(folder: Path, text: str, name: str = "our suite.yaml") -> Path:
    (folder / "search.yaml").write_text("domain: command\n")
    path = folder / name
    path.write_text(text)
    return path


def refusal(folder: Path, text: str) -> str:
    with pytest.raises(BadInput) as told:
        read_suite(write(folder, text))
    return str(told.value)


def test_a_suite_says_what_runs_where_and_when(tmp_path: Path) -> None:
    suite = read_suite(write(tmp_path, WHOLE))
    assert suite.name == "our-suite"
    assert suite.schedule.timezone == "Europe/Berlin"
    assert {host: [e.name for e in entries] for host, entries in suite.by_host().items()} == {
        HERE: ["search"],
        "gpu-a": ["gsm8k"],
    }
    gsm8k = suite.entry("gsm8k")
    assert suite.host(gsm8k).deployment == "benchmark/gpu-a"
    assert gsm8k.accepted_for("score.gsm8k") == ("2026-03-02",)
    assert gsm8k.accepted_for("errors.gsm8k") == ()


def test_a_hosts_parameters_are_its_entries_and_an_entrys_own_ones_win(tmp_path: Path) -> None:
    suite = read_suite(write(tmp_path, WHOLE))
    assert suite.overrides(suite.entry("gsm8k")) == (
        "reach.host=gpu-a.lan",
        "port=9000",
        'sets=[a, "1"]',
        "note=yes",
        "none=null",
        "on=true",
    )


@pytest.mark.parametrize(
    "value", ["5", "1e3", "true", "null", "~", "a b", "'x'", '"', "[a", "", ".nan", "=", "#x"]
)
def test_a_text_reaches_the_experiment_as_the_text_it_is(tmp_path: Path, value: str) -> None:
    import json

    from benchwright.errors import Where
    from benchwright.spec.parameters import option_value

    entry = {"name": "a", "domain": "accuracy", "params": {"x": value}}
    suite = read_suite(write(tmp_path, json.dumps({"entries": [entry]})))
    (option,) = suite.overrides(suite.entry("a"))
    assert option_value(option.partition("=")[2], "text", Where()) == value


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("entries: []\n", ("suite.yaml:1", "entries")),
        ("entries:\n  - name: a\n", (":2", "entries.a", "`experiment` and `domain`")),
        (
            "entries:\n  - {name: a, domain: speed}\n  - {name: a, domain: speed}\n",
            (":2", "entries.a.name", "stands 2 times"),
        ),
        (
            "entries:\n  - name: a\n    experimnt: search.yaml\n",
            (":3", "experimnt", "did you mean `experiment`"),
        ),
        (
            "entries:\n  - name: a\n    experiment: serch.yaml\n",
            (":3", "entries.a.experiment", "did you mean search.yaml"),
        ),
        (
            "hosts: {gpu-a: {}}\nentries:\n  - {name: a, domain: speed, host: gpu-b}\n",
            (":3", "entries.a.host", "`gpu-b` is no host", "did you mean `gpu-a`"),
        ),
        (
            "hosts: {gpu-a: {deploymnt: x}}\nentries:\n  - {name: a, domain: speed}\n",
            (":1", "deploymnt", "did you mean `deployment`"),
        ),
        (
            "schedule: {cron: 0 2 * *}\nentries:\n  - {name: a, domain: speed}\n",
            (":1", "schedule.cron", "4 fields", "0 2 * * *"),
        ),
        (
            "schedule: {cron: 0 25 * * *}\nentries:\n  - {name: a, domain: speed}\n",
            (":1", "the hour of `cron` is `25`", "0 to 23"),
        ),
        (
            "schedule: {timezone: Europe/Berln}\nentries:\n  - {name: a, domain: speed}\n",
            (":1", "schedule.timezone", "did you mean `Europe/Berlin`"),
        ),
        (
            "entries:\n  - name: a\n    domain: speed\n    accepted: [{until: soon, because: x}]\n",
            (":4", "until", "a date, such as"),
        ),
        (
            "entries:\n  - {name: a, domain: speed, max_cost_usd: -1}\n",
            (":2", "max_cost_usd", "at least 0"),
        ),
    ],
)
def test_a_mistake_is_named_with_its_place(
    tmp_path: Path, text: str, said: tuple[str, ...]
) -> None:
    told = refusal(tmp_path, text)
    for part in said:
        assert part in told


def test_a_suite_is_found_by_its_name_in_the_first_folder_that_has_it(tmp_path: Path) -> None:
    own, packaged = tmp_path / "own", tmp_path / "packaged"
    for folder in (own, packaged):
        folder.mkdir()
        write(folder, "entries:\n  - {name: a, domain: speed}\n", "nightly.yaml")
    assert suite_files("nightly", [own, packaged]) == own / "nightly.yaml"
    (own / "nightly.yaml").unlink()
    assert suite_files("nightly", [own, packaged]) == packaged / "nightly.yaml"
    with pytest.raises(BadInput, match="no suite `nightli`") as told:
        suite_files("nightli", [own, packaged])
    assert "did you mean `nightly`" in str(told.value)
    with pytest.raises(BadInput, match="no such file") as told:
        suite_files(str(own / "serch.yaml"), [])
    assert "search.yaml" in str(told.value)

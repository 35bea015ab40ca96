"""Belief from end to end: what the terminal says of runs that are sound, and of runs that aren't.

Each test has stages of its own name, so that none inherits from another's runs.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest

from benchwright.record.store import RunStore
from benchwright.report.artifact import MOST_BYTES
from tasks.report import artifact_key
from tests.cli.support import benchwright, json_of

BENCH = '''"""Prints a time that depends on the size, with what `fault.json` adds to it."""
import json, random, sys
size = sys.argv[1]
with open("fault.json") as file:
    fault = json.load(file)
noise = 1 + random.SystemRandom().gauss(0, 0.01)
out = {"t_ms": {"5": 10.0, "7": 9.0, "9": 7.0}[size] * noise, "effective": {"size": size}}
out.update(fault.get(size, {}))
print(json.dumps(out))
'''


class Bench:
    """An experiment in a folder, and the command line on it."""

    def __init__(self, folder: Path, home: Path, name: str) -> None:
        self.folder, self.home, self.name = folder, home, name
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "bench.py").write_text(f"{BENCH}# {name}\n")
        self.fault()
        self.configure()

    def fault(self, **by_size: Any) -> None:
        """What the script prints beside or instead, by size (`at_5`, `at_9`)."""
        told = {key.removeprefix("at_"): value for key, value in by_size.items()}
        (self.folder / "fault.json").write_text(json.dumps(told))

    def configure(self, **changes: Any) -> None:
        config = {
            "domain": "command",
            "hypothesis": "t_ms falls by 20 %",
            "params": {"size": 5, "corpus": {"n": 10}},
            "stages": [
                {
                    "name": self.name,
                    "kind": "measure",
                    "cmd": "python3 -S bench.py {size} {corpus.n}",
                    "metrics_from": {"stdout": True},
                }
            ],
            "treatment_variable": "size",
            "treatment_values": [9],
            "metrics": [
                {"name": "t_ms", "unit": "ms", "min_effect": 0.03, "tolerance": 0.2},
            ],
            "replication": {"replicates": 5, "warmup": 0},
        }
        (self.folder / "experiment.yaml").write_text(json.dumps(config | changes))

    def __call__(self, verb: str, *args: str) -> Any:
        return benchwright(verb, *args, cwd=self.folder, home=self.home)

    def run(self, *args: str) -> dict[str, Any]:
        """Run it in spite of what a sceptic has to say of so small an experiment."""
        done = self("run", "experiment.yaml", "--because", "a trial", "--json", *args)
        assert done.returncode == 0, done.stderr
        return json_of(done)


@pytest.fixture
def bench(tmp_path: Path, home: Path) -> Callable[[str], Bench]:
    def make(name: str) -> Bench:
        return Bench(tmp_path / name, home, name)

    return make


@pytest.fixture(scope="module")
def twice(
    tmp_path_factory: pytest.TempPathFactory, local_home: Path
) -> tuple[Bench, dict[str, Any], dict[str, Any]]:
    """The same experiment run twice."""
    bench = Bench(tmp_path_factory.mktemp("twice"), local_home, "twice")
    return bench, bench.run(), bench.run()


Twice = tuple[Bench, dict[str, Any], dict[str, Any]]


def test_gate_1_rule_1_the_same_experiment_twice_is_reliable_and_says_why(twice: Twice) -> None:
    _, first, second = twice
    assert first["config_hash"] == second["config_hash"]
    assert (first["tag"], second["tag"]) == ("QUALIFIED", "RELIABLE")
    assert first["run_id"] in second["tag_reason"]
    assert second["verdicts"][0]["decision"] == "better"
    assert second["verdicts"][0]["win"]


def test_gate_1_rule_1_a_frozen_configuration_runs_as_the_same_experiment(twice: Twice) -> None:
    bench, first, _ = twice
    frozen = RunStore(bench.home).open(first["run_id"]).config_file
    planned = json_of(
        benchwright(
            "plan", str(frozen), "--because", "x", "--json", cwd=bench.home, home=bench.home
        )
    )
    assert planned["config_hash"] == first["config_hash"]


def test_the_prefect_run_has_a_short_summary_and_a_link_to_the_report(
    twice: Twice, local_api_url: str
) -> None:
    _, first, _ = twice
    wanted = {"artifacts": {"key": {"any_": [artifact_key(first["run_id"])]}}}
    (artifact,) = httpx.post(f"{local_api_url}/artifacts/filter", json=wanted).json()
    assert len(artifact["data"].encode()) < MOST_BYTES
    assert "QUALIFIED" in artifact["data"]
    assert f"({Path(first['report_html']).as_uri()})" in artifact["data"]


def test_a_third_run_is_challenged_and_the_reason_is_kept_and_shown(twice: Twice) -> None:
    bench, _, second = twice
    refused = bench("run", "experiment.yaml")
    assert refused.returncode == 3
    assert "already-answered" in refused.stderr
    assert second["run_id"] in refused.stderr
    assert bench("plan", "experiment.yaml", "--because", " ").returncode == 3, (
        "a blank is no reason"
    )
    shown = bench("plan", "experiment.yaml", "--because", "a colleague doubts it")
    assert shown.returncode == 0
    assert "already-answered" in shown.stdout
    assert "a colleague doubts it" in shown.stdout
    third = json_of(bench("run", "experiment.yaml", "--because", "a colleague doubts it", "--json"))
    report = Path(third["report"]).read_text()
    assert "already-answered" in report
    assert "a colleague doubts it" in report


def test_gate_1_rule_3_a_change_without_a_reason_is_refused_with_the_earlier_value(
    twice: Twice,
) -> None:
    bench, *_ = twice
    refused = bench("plan", "experiment.yaml", "-p", "corpus.n=11", "--json")
    assert refused.returncode == 3
    (row,) = json_of(refused)["error"]["differences"]
    assert (row["field"], row["a"]) == ("corpus.n", "11")
    assert row["b"].startswith("10 (in ")
    other = Bench(bench.folder / "other", bench.home, "no-kin-of-it")
    other.configure(params={"size": 5, "corpus": {"n": 11}})
    planned = other("plan", "experiment.yaml", "--because", "a trial")
    assert planned.returncode == 0, "other stages are no kin"


def test_compare_says_as_much_as_a_run_and_that_they_were_not_interleaved(twice: Twice) -> None:
    bench, first, second = twice
    said = bench("compare", first["run_id"], second["run_id"])
    assert said.returncode == 0
    for word in ("mean", "median", "not interleaved", "QUALIFIED"):
        assert word in said.stdout
    assert "equivalent" in said.stdout or "inconclusive" in said.stdout, "its noise is drawn anew"
    told = json_of(bench("compare", first["run_id"], second["run_id"], "--json"))
    assert told["tag"] == "QUALIFIED"
    assert {one["decision"] for one in told["verdicts"]} <= {"equivalent", "inconclusive"}
    itself = json_of(bench("compare", first["run_id"], first["run_id"], "--json"))
    assert not any(one["win"] for one in itself["verdicts"])


@pytest.mark.slow
def test_gate_2_rule_7_a_swapped_script_is_refused_and_an_allowed_one_is_qualified(
    bench: Callable[[str], Bench],
) -> None:
    one = bench("swapped")
    before = one.run()
    with (one.folder / "bench.py").open("a") as script:
        script.write("# another version\n")
    after = one.run()
    assert after["tag"] == "QUALIFIED"
    assert "code.measured_by.swapped" in after["tag_reason"]
    refused = one("compare", before["run_id"], after["run_id"], "--json")
    assert refused.returncode == 3
    fields = [row["field"] for row in json_of(refused)["error"]["differences"]]
    assert fields == ["code.measured_by.swapped"]
    allowed = one(
        "compare",
        before["run_id"],
        after["run_id"],
        "--allow",
        "code.measured_by.swapped",
        "--json",
    )
    told = json_of(allowed)
    assert told["tag"] == "QUALIFIED"
    assert told["allowed"][0]["field"] == "code.measured_by.swapped"


def test_analyze_ends_with_commands_that_can_be_typed_as_they_are(twice: Twice) -> None:
    bench, first, _ = twice
    said = json_of(bench("analyze", first["run_id"], "--json"))
    steps = [one for one in said["findings"] if one["code"] == "next"]
    assert steps
    printed = bench("analyze", first["run_id"]).stdout
    for step in steps:
        assert step["command"] in printed, "on one line, not wrapped"
        words = shlex.split(step["command"].rpartition("&&")[2])
        assert words[0] == "benchwright"
        assert "$" not in step["command"]


def test_gate_1_rule_4_a_drifted_run_is_unreliable_and_never_compared(
    bench: Callable[[str], Bench],
) -> None:
    one = bench("drifted")
    good = one.run()
    one.fault(at_9={"effective": {"size": 5}})
    done = one("run", "experiment.yaml", "--because", "a trial", "--json")
    assert done.stderr.count("size was declared as 9, and 5 is in use") == 1, "said while it runs"
    drifted = json_of(done)
    assert drifted["tag"] == "UNRELIABLE"
    assert "size was declared as 9" in drifted["tag_reason"]
    assert "the treatment never ran" in json.dumps(drifted["findings"])
    assert drifted["verdicts"][0]["decision"] == "no verdict"
    assert "size was declared as 9" in Path(drifted["report"]).read_text()
    refused = one("compare", good["run_id"], drifted["run_id"])
    assert refused.returncode == 3
    assert "never compared" in refused.stderr


@pytest.mark.slow
def test_gate_1_rule_6_evidence_in_the_baseline_is_unreliable(
    bench: Callable[[str], Bench],
) -> None:
    one = bench("evidence")
    one.configure(code_evidence={"counter": "fast.path"})
    told = {"effective": {"size": 9, "fast.path": 3}}
    one.fault(at_9=told, at_5={"effective": {"size": 5, "fast.path": 0}})
    assert one.run()["tag"] == "QUALIFIED"
    one.fault(at_9=told, at_5={"effective": {"size": 5, "fast.path": 3}})
    run = one.run()
    assert run["tag"] == "UNRELIABLE"
    assert not run["verdicts"][0]["win"]
    assert "ran in the baseline" in run["tag_reason"]


def test_gate_2_rule_10_a_value_that_is_no_number_fails_the_stage_by_its_name(
    bench: Callable[[str], Bench],
) -> None:
    one = bench("nan")
    one.fault(at_9={"t_ms": float("nan")})
    done = one("run", "experiment.yaml", "--because", "a trial", "--json")
    assert done.returncode == 4
    result = json_of(done)
    assert result["tag"] == "UNRELIABLE"
    assert "'t_ms' is NaN" in result["tag_reason"]


def test_gate_2_rule_5_one_replicate_is_exploratory_without_a_nan(
    bench: Callable[[str], Bench],
) -> None:
    one = bench("single")
    run = one.run("--replicates", "1")
    assert run["tag"] == "EXPLORATORY"
    assert run["verdicts"][0]["decision"] == "no verdict"
    assert run["arms"]["size=5"]["t_ms"]["spread"] is None
    assert "nan" not in Path(run["report"]).read_text().lower()


@pytest.mark.slow
def test_gate_2_rule_3_several_arms_share_the_error(bench: Callable[[str], Bench]) -> None:
    one = bench("three")
    one.configure(treatment_values=[7, 9])
    run = one.run()
    levels = {v["arm"]: v["interval"]["level"] for v in run["verdicts"]}
    assert set(levels) == {"size=7", "size=9"}
    assert max(levels.values()) == pytest.approx(0.975)


def test_gate_2_rule_8_a_training_in_each_replicate_has_seeds_as_units(
    bench: Callable[[str], Bench],
) -> None:
    one = bench("seeds")
    (one.folder / "train.sh").write_text(
        'test "$2" = 5 && base=70 || base=75\necho "$((base * 100 + $1 % 7)) $1 $2" > "$3"\n'
    )
    (one.folder / "eval.sh").write_text(
        'read -r score seed size < "$1"\n'
        'echo "{\\"score\\": $score, \\"effective\\": {\\"size\\": $size, \\"seed\\": $seed}}"\n'
    )
    one.configure(
        hypothesis="score rises by 5 %",
        stages=[
            {
                "name": "train",
                "kind": "measure",
                "cmd": "sh train.sh {run.seed} {size} {model}",
                "produces": ["model"],
            },
            {
                "name": "eval",
                "kind": "measure",
                "needs": ["train"],
                "cmd": "sh eval.sh {model}",
                "metrics_from": {"stdout": True},
            },
        ],
        metrics=[{"name": "score", "direction": "higher", "min_effect": 0.01}],
        replication={"replicates": 5, "warmup": 0, "seeds_as_replicates": True},
    )
    run = one.run()
    (verdict,) = run["verdicts"]
    assert verdict["decision"] == "better"
    assert verdict["units"] == 5
    samples = RunStore(one.home).open(run["run_id"]).samples()
    seeds = {
        s.measurement.effective["seed"] for s in samples if s.measurement and s.stage == "eval"
    }
    assert len(seeds) == 5
    assert "did not report the parameter" not in Path(run["report"]).read_text()


def test_lowering_the_run_that_confirmed_it_flags_a_reliable_one(
    bench: Callable[[str], Bench],
) -> None:
    one = bench("lowered")
    first, second = one.run(), one.run()
    assert second["tag"] == "RELIABLE"
    raised = one("reclassify", first["run_id"], "RELIABLE", "--reason", "I like it")
    assert raised.returncode == 3
    lowered = one("reclassify", first["run_id"], "UNRELIABLE", "--reason", "a backup ran", "--json")
    assert json_of(lowered)["flagged"] == [second["run_id"]]
    status = one("status", second["run_id"]).stdout
    assert "flagged" in status
    assert "a backup ran" in status
    assert "would be QUALIFIED" in one("analyze", second["run_id"]).stdout
    refused = one("compare", first["run_id"], second["run_id"])
    assert refused.returncode == 3
    assert "a backup ran" in refused.stderr
    audit = (RunStore(one.home).open(first["run_id"]).path / "audit.jsonl").read_text()
    assert json.loads(audit)["reason"] == "a backup ran"


def test_lessons_and_risks_that_match_are_shown_in_the_plan_and_in_the_report(
    bench: Callable[[str], Bench],
) -> None:
    one = bench("noted")
    one.configure(params={"size": 5, "corpus": {"n": 10}, "noted": 1})
    lesson = one("lessons", "add", "size nine trades memory", "-p", "noted").stdout.strip()
    risk = one("risks", "add", "the disk is shared", "-p", "noted=1").stdout.strip()
    other = one("lessons", "add", "of something else", "-p", "noted=2").stdout.strip()
    plan = one("plan", "experiment.yaml").stdout
    assert f"{lesson}: size nine trades memory" in plan
    assert f"{risk}: the disk is shared" in plan
    assert other not in plan
    report = Path(one.run()["report"]).read_text()
    assert lesson in report.partition("## Lessons")[2]
    assert risk in report.partition("## Risks and limits")[2].partition("##")[0]


def test_history_shows_a_course_with_its_interval_and_refuses_a_tag_that_there_is_none_of(
    twice: Twice, tmp_path: Path
) -> None:
    bench, _, second = twice
    course = bench("history", "--metric", "t_ms")
    assert "95 % interval" in course.stdout
    page = tmp_path / "course.html"
    assert bench("history", "--metric", "t_ms", "--html", str(page)).returncode == 0
    assert page.stat().st_size < 6_000_000
    assert second["run_id"] in bench("history", "--tag", "reliable").stdout
    refused = bench("history", "--tag", "GOOD")
    assert refused.returncode == 2
    assert "RELIABLE" in refused.stderr

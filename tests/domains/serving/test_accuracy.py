"""An accuracy run against a server that has each fault in turn; the evaluator is a stand-in."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from benchwright.errors import BadInput
from domains.serving import evalscope, job
from domains.serving.host import LocalHost
from domains.serving.results import Progress, Reporter
from domains.serving.runner import AccuracyResult, run_accuracy
from domains.serving.validate import State
from tests.domains.serving import serving_parts as parts


def run(
    port: int, tmp: Path, reporter: Reporter | None = None, **changes: object
) -> AccuracyResult:
    return run_accuracy(parts.request(port, tmp, **changes), tmp / "run", reporter=reporter)


def notes(result: AccuracyResult) -> str:
    return "\n".join(result.validation.notes)


def text(tmp: Path) -> str:
    return (tmp / "run" / "accuracy" / "report.md").read_text()


def failed_checks(result: AccuracyResult) -> set[str]:
    checks = result.validation.of("gsm8k").checks
    return {check.name for check in checks if check.passed is False}


@pytest.fixture
def answers(tmp_path: Path) -> Path:
    return parts.write_gsm8k(tmp_path / "gsm8k") / "test.jsonl"


def test_a_good_run_gives_score_interval_items_and_the_report_in_its_shape(
    tmp_path: Path, answers: Path
) -> None:
    seen: list[Progress] = []
    with parts.standin(answers=answers, args=("--skill", "0.5", "--api-key", "hush")) as server:
        result = run(server.port, tmp_path, Reporter(progress=seen.append))
    assert result.state is State.SUCCESS, notes(result)
    assert result.measurement is not None
    items = result.measurement["items"]["score.gsm8k"]
    assert len(items) == 12
    right = sum(value for (value,) in items.values())
    assert 0 < right < 12
    assert result.measurement["metrics"]["score.gsm8k"] == pytest.approx(right / 12)
    assert result.measurement["effective"]["generation.max_tokens"] == 64
    assert result.fingerprint["evaluator.version"] == "1.14.1"
    assert result.fingerprint["suite.gsm8k.data"].startswith("sha256:")
    assert seen[-1].done == 12
    report = text(tmp_path)
    order = ["# Benchmark", "## Status", "- State: success", "- Target resource:", "- Endpoint:",
             "- Model path:", "- Server: healthy", "- Server id: pid", "- Hardware:",
             "- Versions:", "- Server launch args:", "## Accuracy Benchmark", "### gsm8k",
             "| Dataset | Metric | Sample count | Correct | Score |",
             "| Average latency (s) |", "Artifacts:", "## Notes"]  # fmt: skip
    places = [report.index(label) for label in order]
    assert places == sorted(places)
    assert f"{right:.0f}/12" in report
    assert "hush" not in report
    assert "--api-key '***'" in report
    assert "hush" not in (tmp_path / "run" / "accuracy" / "report.json").read_text()
    assert parts.marked_processes(tmp_path) == []


def test_a_server_that_is_down_fails_at_once_and_says_so(tmp_path: Path) -> None:
    begun = time.monotonic()
    result = run(1, tmp_path)
    assert result.state is State.FAILED
    assert "no healthy server at http://127.0.0.1:1" in notes(result)
    assert "refused" in notes(result)
    assert result.measurement is None
    assert "- State: failed" in text(tmp_path)
    assert "Not evaluated; see Notes." in text(tmp_path)
    assert time.monotonic() - begun < 5


def test_a_loading_server_is_waited_for_with_progress(tmp_path: Path, answers: Path) -> None:
    said: list[str] = []
    with parts.standin("warming:2", answers=answers) as server:
        result = run(server.port, tmp_path, Reporter(say=said.append))
    assert result.state is State.SUCCESS, notes(result)
    assert any("/health answered 503, still loading" in line for line in said)


def test_a_server_that_loads_for_too_long_fails_with_its_status(tmp_path: Path) -> None:
    with parts.standin("loading:60") as server:
        result = run(server.port, tmp_path, target__endpoint__wait_s=0.5)
    assert result.state is State.FAILED
    assert "/health answered 503" in notes(result)
    assert "- Server: unhealthy" in text(tmp_path)


def test_a_server_that_answers_503_to_every_request_has_no_score(
    tmp_path: Path, answers: Path
) -> None:
    with parts.standin("busy", answers=answers) as server:
        result = run(server.port, tmp_path)
    assert result.state is State.FAILED
    assert "no sample was scored" in notes(result)
    assert result.measurement is None


@pytest.mark.parametrize("fault", ["500:4", "400:4", "drop:4", "half:4"])
def test_errors_for_some_leave_a_partial_run_that_counts_them(
    tmp_path: Path, answers: Path, fault: str
) -> None:
    with parts.standin(fault, answers=answers) as server:
        result = run(server.port, tmp_path)
    assert result.state is State.PARTIAL
    assert "3 of 12 samples ended in an error" in notes(result)
    assert "9 of 12 requested samples were scored" in notes(result)
    assert result.measurement is not None
    assert result.measurement["metrics"]["errors.gsm8k"] == 0.25
    assert "| 3/12 |" in text(tmp_path)


def test_empty_answers_are_counted_and_above_the_limit_the_run_is_partial(
    tmp_path: Path, answers: Path
) -> None:
    with parts.standin("empty:4", answers=answers) as server:
        result = run(server.port, tmp_path)
    assert result.state is State.PARTIAL
    assert failed_checks(result) == {"empty answers"}
    assert "3 of 12 answers (25.0%) have no text; the limit is 2.0%" in notes(result)


def test_answers_cut_at_max_tokens_are_counted_and_above_the_limit_the_run_is_partial(
    tmp_path: Path, answers: Path
) -> None:
    with parts.standin("cut:3", answers=answers) as server:
        result = run(server.port, tmp_path)
    assert result.state is State.PARTIAL
    assert failed_checks(result) == {"truncated answers"}
    assert "4 of 12 answers (33.3%) were cut at max_tokens" in notes(result)


def test_another_model_than_asked_is_refused_before_anything_is_evaluated(tmp_path: Path) -> None:
    with parts.standin() as server:
        result = run(server.port, tmp_path, target__model="org/wanted")
        assert server.completions() == 0
    assert result.state is State.FAILED
    assert "serves 'org/standin', and 'org/wanted' was asked for" in notes(result)


def test_a_model_listed_behind_the_first_one_is_evaluated_with_a_note(
    tmp_path: Path, answers: Path
) -> None:
    with parts.standin(answers=answers, model="org/base,org/adapter") as server:
        result = run(server.port, tmp_path, target__model="org/adapter")
    assert result.state is State.SUCCESS, notes(result)
    assert "org/adapter is listed, the first one is org/base" in notes(result)


def test_a_model_swapped_half_way_fails_the_run(tmp_path: Path, answers: Path) -> None:
    with parts.standin("swap:6:org/newer", answers=answers) as server:
        result = run(server.port, tmp_path)
    assert result.state is State.FAILED
    assert failed_checks(result) == {"served model unchanged"}
    assert "more than one model answered" in notes(result)
    assert "'org/newer'" in notes(result)
    assert result.measurement is None


def test_a_swap_that_the_answers_do_not_show_is_seen_in_the_list_of_models(
    tmp_path: Path, answers: Path
) -> None:
    with parts.standin("swap:6:org/newer", "other:constant", answers=answers) as server:
        result = run(server.port, tmp_path)
    assert result.state is State.FAILED
    assert "served 'org/standin' at the start and 'org/newer' at the end" in notes(result)


def test_a_slow_server_meets_the_deadline_and_nothing_is_left_on_the_host(
    tmp_path: Path, answers: Path
) -> None:
    with parts.standin("slow:30", answers=answers) as server:
        result = run(server.port, tmp_path, evaluate__timeout_s=1.0)
    assert result.state is State.FAILED
    assert "passed its deadline and was ended" in notes(result)
    assert parts.marked_processes(tmp_path) == []


def test_a_server_that_dies_half_way_fails_the_run(tmp_path: Path, answers: Path) -> None:
    with parts.standin("die:6", answers=answers) as server:
        result = run(server.port, tmp_path)
    assert result.state is State.FAILED
    assert "served model unchanged" in failed_checks(result)
    assert "after the evaluation the server was not healthy: no answer" in notes(result)
    assert "no process at the end" in notes(result)


def test_a_port_taken_over_by_another_process_fails_the_run(tmp_path: Path, answers: Path) -> None:
    with parts.standin("die:6", "slow:0.2", answers=answers) as server:
        program = str(parts.HERE / "standin_server.py")
        words = ["--port", str(server.port), "--model", parts.MODEL, "--wait-for-port"]
        second = subprocess.Popen([sys.executable, program, *words, "--answers", str(answers)])
        try:
            result = run(server.port, tmp_path)
        finally:
            second.kill()
            second.wait()
    assert result.state is State.FAILED
    assert "server process unchanged" in failed_checks(result)
    assert f"pid {server.process.pid} held the port at the start, and pid {second.pid}" in notes(
        result
    )


def test_a_page_that_is_no_list_of_models_is_said(tmp_path: Path) -> None:
    with parts.standin("garbage") as server:
        result = run(server.port, tmp_path)
    assert result.state is State.FAILED
    assert "lists no served model: /v1/models is no list of models" in notes(result)


def test_a_work_directory_with_an_old_report_is_refused(tmp_path: Path, answers: Path) -> None:
    old = tmp_path / "old work"
    (old / "reports").mkdir(parents=True)
    with parts.standin(answers=answers) as server, pytest.raises(BadInput, match="reports"):
        run(server.port, tmp_path, evaluate__work_dir=str(old))


def test_a_report_that_is_older_than_the_run_is_an_older_runs(
    tmp_path: Path, answers: Path
) -> None:
    tool = parts.fake_tool(tmp_path / "stale", kind="stale")
    with parts.standin(answers=answers) as server:
        result = run(server.port, tmp_path, evaluate__evalscope=tool)
    assert result.state is State.FAILED
    assert failed_checks(result) == {"report is fresh"}
    assert "was written at 1970-01-01T00:00:01Z, before this run started at" in notes(result)
    assert result.measurement is None


def test_two_organisations_with_one_model_name_are_two_models() -> None:
    names = [evalscope.model_id(name) for name in ("orgA/m", "orgB/m", "orgA--m", "/data/m", "m")]
    assert len(set(names)) == len(names)
    assert names[:2] == ["orgA--m", "orgB--m"]


def test_a_misspelled_generation_key_is_refused_with_the_nearest(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match=r"`max_token`.*did you mean `max_tokens`"):
        parts.request(1, tmp_path, generation__max_token=5)


def test_another_evaluation_of_the_same_endpoint_is_refused_with_who(
    tmp_path: Path, answers: Path
) -> None:
    with parts.standin(answers=answers) as server:
        url = f"http://127.0.0.1:{server.port}/v1/chat/completions"
        line = "import time; time.sleep(60)"
        other = subprocess.Popen(
            [sys.executable, "-c", line, "evalscope", "eval", "--api-url", url]
        )
        try:
            result = run(server.port, tmp_path)
            assert server.completions() == 0
        finally:
            other.kill()
            other.wait()
    assert result.state is State.FAILED
    assert f"another evaluation runs against the same endpoint: pid {other.pid}" in notes(result)


def test_a_shell_that_will_run_an_evaluator_later_is_no_evaluation(
    tmp_path: Path, answers: Path
) -> None:
    with parts.standin(answers=answers) as server:
        program = f"read wait; evalscope eval --api-url http://127.0.0.1:{server.port}/v1"
        shell = subprocess.Popen(["sh", "-c", program], stdin=subprocess.PIPE)
        try:
            result = run(server.port, tmp_path)
        finally:
            shell.kill()
            shell.communicate()
    assert result.state is State.SUCCESS, notes(result)


def test_two_runs_of_ours_do_not_share_an_endpoint(tmp_path: Path, answers: Path) -> None:
    with parts.standin("slow:1", answers=answers) as server:
        host = LocalHost()
        lock = f"/tmp/benchwright-endpoint-127.0.0.1-{server.port}.lock"
        first = job.new_job(str(tmp_path / "first"))
        job.start(host, first, "sleep 60", owner="run one of someone", lock=lock, deadline_s=60)
        try:
            result = run(server.port, tmp_path)
        finally:
            job.cancel(host, first)
        assert not Path(lock).exists()
    assert result.state is State.FAILED
    assert "another evaluation of ours runs against the same endpoint: run one of someone" in notes(
        result
    )


def test_an_old_version_gets_key_value_once_in_a_fresh_directory(
    tmp_path: Path, answers: Path
) -> None:
    old = parts.fake_tool(tmp_path / "old", kind="old")
    with parts.standin(answers=answers) as server:
        result = run(server.port, tmp_path, evaluate__evalscope=old)
    assert result.state is State.SUCCESS, notes(result)
    assert "refused as JSON; run again with key=value, in a fresh directory" in notes(result)
    assert "max_tokens=64" in text(tmp_path)
    assert result.evaluation is not None
    assert "/attempt-2/out" in result.evaluation.datasets[0].work_dir


def test_without_evalscope_the_fallback_runner_evaluates_and_the_report_says_so(
    tmp_path: Path, answers: Path
) -> None:
    with parts.standin("500:4", answers=answers) as server:
        result = run(server.port, tmp_path, evaluate__evalscope="/nowhere/evalscope")
    assert result.state is State.PARTIAL
    assert "the fallback runner run_eval ran instead of evalscope" in notes(result)
    assert "- evalscope: not used (run_eval 1)" in text(tmp_path)
    assert "3 of 12 samples ended in an error" in notes(result)
    assert result.measurement is not None
    assert result.measurement["metrics"]["score.gsm8k"] == 1.0
    assert len(result.measurement["items"]["score.gsm8k"]) == 9


def test_a_dataset_that_fails_leaves_the_others_scored(tmp_path: Path, answers: Path) -> None:
    data = f"gsm8k={answers.parent}"
    with parts.standin(answers=answers) as server:
        result = run(server.port, tmp_path, evaluate__datasets=[data, "broken=host:/nowhere"])
    assert result.state is State.PARTIAL
    assert "dataset 'broken' can't be read on" in notes(result)
    assert "### broken\n\nNot evaluated; see Notes." in text(tmp_path)


def test_repeats_share_their_item(tmp_path: Path, answers: Path) -> None:
    with parts.standin(answers=answers, args=("--skill", "0.5")) as server:
        result = run(server.port, tmp_path, evaluate__repeats=3)
    assert result.state is State.SUCCESS, notes(result)
    assert result.measurement is not None
    items = result.measurement["items"]["score.gsm8k"]
    assert [len(values) for values in items.values()] == [3] * 12
    assert "| success | 12 |" in text(tmp_path)


CHILD = """
import sys
from pathlib import Path
from domains.serving.runner import run_accuracy
from tests.domains.serving import serving_parts as parts
tmp = Path(sys.argv[2])
run_accuracy(parts.request(int(sys.argv[1]), tmp), tmp / "run")
"""


def start_child(port: int, tmp: Path) -> subprocess.Popen[bytes]:
    return subprocess.Popen([sys.executable, "-c", CHILD, str(port), str(tmp)])


def wait_for(condition: object, seconds: float = 20.0) -> None:
    assert callable(condition)
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it did not come about in time"
        time.sleep(0.02)


def test_a_run_that_lost_its_client_is_found_again_and_asks_nothing_twice(
    tmp_path: Path, answers: Path
) -> None:
    said: list[str] = []
    with parts.standin("slow:0.3", answers=answers) as server:
        child = start_child(server.port, tmp_path)
        wait_for(lambda: server.completions() >= 2)
        child.send_signal(signal.SIGKILL)
        child.wait()
        assert parts.marked_processes(tmp_path)
        result = run(server.port, tmp_path, Reporter(say=said.append))
        assert server.completions() == 12
    assert result.state is State.SUCCESS, notes(result)
    assert any("found again" in line for line in said)


def test_an_interrupted_run_leaves_nothing_on_the_host(tmp_path: Path, answers: Path) -> None:
    with parts.standin("slow:5", answers=answers) as server:
        child = start_child(server.port, tmp_path)
        wait_for(lambda: server.completions() >= 2)
        child.send_signal(signal.SIGINT)
        child.wait(timeout=20)
        assert parts.marked_processes(tmp_path) == []

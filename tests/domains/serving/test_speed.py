"""A speed run: its order, its figures, its faults, and its report."""

from __future__ import annotations

import csv
import json
import threading
from collections import Counter
from pathlib import Path

import pytest

from benchwright.errors import BadInput
from domains.serving.load import Point, prompts_of, slots_of
from domains.serving.load_results import Replicate, Sent, figures_of, summarise
from domains.serving.request import LoadOptions, speed_request
from domains.serving.results import Progress, Reporter, telling_line
from domains.serving.speed_report import COLUMNS, summary_csv
from domains.serving.speed_runner import SpeedResult, run_speed
from domains.serving.validate import State
from tests.domains.serving import serving_parts as parts


def notes(result: SpeedResult) -> str:
    return "\n".join(result.validation.notes)


def test_points_run_in_random_blocks_after_their_warm_ups_from_the_seed() -> None:
    load = LoadOptions(batch_sizes=(1, 2, 4, 8), replicates=6, warmup=1, rates=(3.0,))
    slots = slots_of(load)
    assert [slot.warmup for slot in slots] == [True] * 5 + [False] * 30
    blocks = [[s.point.name for s in slots[n : n + 5]] for n in range(5, 35, 5)]
    assert all(Counter(block) == Counter(["c1", "c2", "c4", "c8", "r3"]) for block in blocks)
    assert len({tuple(block) for block in blocks}) > 1
    assert slots == slots_of(load)
    assert slots != slots_of(load.model_copy(update={"seed": 7}))


def test_no_prompt_is_sent_twice() -> None:
    load = LoadOptions(batch_sizes=(2, 4), replicates=3, input_tokens=16)
    lines = [line for slot in slots_of(load) for line in prompts_of(load, slot).splitlines()]
    assert len(set(lines)) == len(lines)
    assert all(len(json.loads(line)["question"].split()) == 16 for line in lines)


LOAD = LoadOptions(batch_sizes=(2,), replicates=2, warmup=0, ttft_limit_ms=150, tpot_limit_ms=100)


def replicate(requests: list[Sent], *, block: int = 0, failed: int = 0) -> Replicate:
    slot = slots_of(LOAD)[block]
    return Replicate(
        slot=slot,
        exit="0",
        sent=len(requests) + failed,
        failed=failed,
        duration_s=2.0,
        requests=tuple(requests),
    )


def sent(start: float = 0.0, ttft: float = 0.1, gap: float = 0.1, tokens: int = 11) -> Sent:
    gaps = (gap,) * (tokens - 1)
    return Sent(
        start=start,
        ttft=ttft,
        latency=ttft + sum(gaps),
        gaps=gaps,
        input_tokens=20,
        output_tokens=tokens,
    )


def test_figures_are_worked_out_from_the_requests_that_succeeded() -> None:
    found = figures_of(replicate([sent(), sent(ttft=0.3)], failed=2), LOAD)
    assert found.output_tok_s == pytest.approx(22 / 2)
    assert found.input_tok_s == pytest.approx(40 / 2)
    assert found.total_tok_s == pytest.approx(62 / 2)
    assert found.e2e_ms == pytest.approx((1100 + 1300) / 2)
    assert found.ttft_ms == pytest.approx(200)
    assert found.tpot_ms == pytest.approx(100)
    assert found.itl_ms == pytest.approx(100)
    # One of the four that were sent kept both limits: the failed ones kept none.
    assert found.good_share == pytest.approx(1 / 4)
    assert found.goodput_per_s == pytest.approx(1 / 2)


def test_the_peak_is_the_fullest_second() -> None:
    # The first second has 10 of one request's tokens, and all 11 of another's.
    found = figures_of(replicate([sent(gap=0.11), sent(start=0.2, gap=0.01)]), LOAD)
    assert found.peak_output_tok_s == pytest.approx(21)


def test_a_99th_percentile_stands_only_on_a_hundred_requests() -> None:
    few = [replicate([sent()] * 49, block=0), replicate([sent()] * 50, block=1)]
    (summary,) = summarise(few, LOAD)
    assert summary.p99_itl_ms is None
    assert summary_csv([summary], "closed").splitlines()[1].endswith("n/a")
    enough = [replicate([sent()] * 50, block=0), replicate([sent()] * 50, block=1)]
    (summary,) = summarise(enough, LOAD)
    assert summary.p99_itl_ms == pytest.approx(100)


def test_a_good_run_gives_the_table_the_intervals_the_plot_and_a_measurement_a_block(
    tmp_path: Path,
) -> None:
    seen: list[Progress] = []
    with parts.standin() as server:
        asked = parts.speed(
            server.port,
            tmp_path,
            load__rates=[20.0],
            load__requests_per_rate=4,
            load__ttft_limit_ms=1000.0,
        )
        result = run_speed(asked, tmp_path / "run", reporter=Reporter(progress=seen.append))
    assert result.state is State.SUCCESS, notes(result)
    assert str(seen[-1]) == "load: 12 of 12 replicates"
    folder = tmp_path / "run" / "speed"
    rows = list(csv.reader((folder / "summary.csv").open()))
    assert tuple(rows[0]) == COLUMNS
    assert [row[0] for row in rows[1:]] == ["2", "4"]
    # Shorter than a second: there is no peak to speak of.
    cells = [cell for row in rows[1:] for cell in row]
    assert all(float(cell) > 0 for cell in cells if cell not in ("unknown", "n/a"))
    assert {row[COLUMNS.index("Mean TTFT ms")] for row in rows[1:]}.isdisjoint({"unknown", "0.00"})
    text = (folder / "report.md").read_text()
    order = [
        "# Benchmark",
        "## Status",
        "- State: success",
        "- Server id:",
        "- Radix cache:",
        "- Hardware:",
        "\n    - engine:",
        "## Speed Benchmark",
        "- Status:",
        "- Output dir:",
        "- Summary CSV:",
        "- Backend:",
        "- Dataset:",
        "\n    - Workload shape:",
        "- Cache hit rate:",
        "- Goodput:",
        "- Metrics:",
        "- Artifacts:",
        "## Notes",
    ]
    places = [text.index(label.strip()) for label in order]
    assert places == sorted(places)
    assert "- evalscope:" not in text
    assert "100.0% of those sent (time to first token <= 1000 ms)" in text
    page = (folder / "report.html").read_text()
    assert page.count("<circle") == 3
    assert len(result.measurements) == 3
    assert set(result.measurements[0]) >= {"output_tok_s.c2", "ttft_ms.c4", "e2e_ms.r20"}
    assert parts.marked_processes(tmp_path) == []


def test_failed_requests_are_counted_and_in_no_figure(tmp_path: Path) -> None:
    with parts.standin("500:3") as server:
        result = run_speed(parts.speed(server.port, tmp_path), tmp_path / "run")
    assert result.state is State.PARTIAL
    assert "requests failed; they are in no figure" in notes(result)
    assert sum(summary.failed for summary in result.validation.summaries) == 18
    for summary in result.validation.summaries:
        assert summary.means is not None
        assert summary.means.e2e_ms > 0


def test_a_point_that_fails_is_left_out_and_the_others_go_on(tmp_path: Path) -> None:
    with parts.standin() as server:
        asked = parts.speed(server.port, tmp_path, kind="fails-at-4")
        result = run_speed(asked, tmp_path / "run")
    assert result.state is State.PARTIAL
    assert "4 in flight: 3 of 3 replicates gave nothing" in notes(result)
    assert "exit code 1: out of memory" in notes(result)
    text = (tmp_path / "run" / "speed" / "report.md").read_text()
    assert "- Status: partial (1 of 2 points measured)" in text
    rows = (tmp_path / "run" / "speed" / "summary.csv").read_text().splitlines()
    assert len(rows) == 2


def test_a_load_program_that_failed_is_quoted_with_its_reason_and_not_its_last_words() -> None:
    log = (
        "Running[perf]: 0%\nTraceback (most recent call last):\n"
        "ValueError: Error: Unable to retrieve usage information\n\n"
        "This error occurs when:\n1. The API response does not contain usage data\n\n"
        "If you continue to experience issues, please open an issue on our GitHub repository\n"
    )
    assert telling_line(log) == "ValueError: Error: Unable to retrieve usage information"
    assert telling_line("loading\nout of memory\n") == "out of memory"
    assert telling_line("") == ""


def test_a_server_that_refuses_every_request_gives_no_row(tmp_path: Path) -> None:
    with parts.standin("busy") as server:
        result = run_speed(parts.speed(server.port, tmp_path), tmp_path / "run")
    assert result.state is State.FAILED
    assert "all 6 requests failed" in notes(result)
    assert "no point has a row" in notes(result)
    assert "- Summary CSV: none" in (tmp_path / "run" / "speed" / "report.md").read_text()


def test_a_server_that_is_down_fails_at_once(tmp_path: Path) -> None:
    result = run_speed(parts.speed(1, tmp_path), tmp_path / "run")
    assert result.state is State.FAILED
    assert "no healthy server at" in notes(result)


def test_a_server_that_dies_half_way_fails_the_run_and_the_rest_is_not_waited_for(
    tmp_path: Path,
) -> None:
    with parts.standin("die:20") as server:
        result = run_speed(parts.speed(server.port, tmp_path), tmp_path / "run")
    assert result.state is State.FAILED
    assert "the server accepted no connection" in notes(result)
    assert "no process at the end" in notes(result)
    assert result.measurements == ()


def test_a_model_swapped_under_the_load_fails_the_run(tmp_path: Path) -> None:
    with parts.standin("swap:20:org/newer") as server:
        result = run_speed(parts.speed(server.port, tmp_path), tmp_path / "run")
    assert result.state is State.FAILED
    assert "served 'org/standin' at the start and 'org/newer' at the end" in notes(result)
    assert result.measurements == ()


def test_a_replicate_that_hangs_meets_its_deadline_and_the_others_go_on(tmp_path: Path) -> None:
    with parts.standin("slow:30") as server:
        asked = parts.speed(
            server.port,
            tmp_path,
            load__batch_sizes=[2],
            load__replicates=1,
            load__warmup=0,
            load__timeout_s=0.7,
        )
        result = run_speed(asked, tmp_path / "run")
    assert result.state is State.FAILED
    assert "it passed its deadline" in notes(result)
    assert parts.marked_processes(tmp_path) == []


def test_two_speed_runs_never_overlap_on_one_endpoint(tmp_path: Path) -> None:
    with parts.standin("slow:0.4") as server:
        results: dict[str, SpeedResult] = {}

        def run(name: str) -> None:
            asked = parts.speed(server.port, tmp_path / name, load__batch_sizes=[2])
            results[name] = run_speed(asked, tmp_path / name / "run")

        threads = [threading.Thread(target=run, args=(name,)) for name in ("one", "two")]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    states = sorted(result.state for result in results.values())
    assert states == [State.FAILED, State.SUCCESS]
    lost = next(result for result in results.values() if result.state is State.FAILED)
    assert "against the same endpoint" in notes(lost)


def test_the_radix_cache_is_disabled_only_where_the_launch_arguments_say_so(
    tmp_path: Path,
) -> None:
    with parts.standin(args=("--disable-radix-cache",)) as server:
        asked = parts.speed(server.port, tmp_path, load__batch_sizes=[1], load__replicates=1)
        run_speed(asked, tmp_path / "run")
    assert "- Radix cache: disabled" in (tmp_path / "run" / "speed" / "report.md").read_text()


def test_a_load_without_a_point_is_refused() -> None:
    with pytest.raises(BadInput, match=r"`closed_loop: false` needs `rates`"):
        speed_request({"load": {"closed_loop": False}})


def test_a_point_is_named_for_metrics_and_for_people() -> None:
    assert Point(loop="closed", value=8).name == "c8"
    assert Point(loop="open", value=2.5).label == "2.5 req/s"

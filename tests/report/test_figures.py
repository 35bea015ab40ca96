"""The figures show what the record holds."""

from __future__ import annotations

import json
from dataclasses import replace

from benchwright.report.figures import MARKERS, figures, label
from benchwright.report.graph import graph
from tests.report.sample_record import bare_record, record


def drawn() -> dict[str, object]:
    return {f.key: f for group in figures(record()).values() for f in group}


def test_every_analysed_replicate_is_a_point_and_warm_ups_and_failures_are_none() -> None:
    figure = drawn()["replicates-0"]
    points = [t for t in figure.data if t["marker"]["symbol"] in MARKERS]  # type: ignore[attr-defined]
    assert [len(trace["x"]) for trace in points] == [10, 9]
    measured = [
        s.measurement.metrics["p50_ms"]
        for s in record().view.samples
        if s.measurement and not s.warmup
    ]
    assert sorted(x for trace in points for x in trace["x"]) == sorted(measured)


def test_arms_differ_in_colour_and_in_marker() -> None:
    course = drawn()["course-0"]
    colours = {trace["marker"]["color"] for trace in course.data}  # type: ignore[attr-defined]
    shapes = {trace["marker"]["symbol"] for trace in course.data}  # type: ignore[attr-defined]
    assert (len(colours), len(shapes)) == (2, 2)


def test_a_failed_replicate_is_marked_in_its_block() -> None:
    (mark,) = drawn()["course-0"].layout["annotations"]  # type: ignore[attr-defined]
    assert (mark["x"], mark["text"]) == (6, "✕")


def test_the_effect_stands_against_the_smallest_that_matters() -> None:
    figure = drawn()["effects-ratio"]
    (trace,) = figure.data  # type: ignore[attr-defined]
    band = next(s for s in figure.layout["shapes"] if s["type"] == "rect")  # type: ignore[attr-defined]
    assert trace["x"] == [0.1024]
    assert (band["x0"], band["x1"]) == (0.99, 1.01)
    assert trace["marker"]["symbol"] == "triangle-up"


def test_an_effect_without_an_interval_is_not_drawn() -> None:
    whole = record()
    said = whole.view.judgement
    assert said is not None
    verdict = replace(said.verdicts[0], effect=None)
    view = replace(whole.view, judgement=replace(said, verdicts=(verdict,)))
    keys = [f.key for group in figures(replace(whole, view=view)).values() for f in group]
    assert "effects-ratio" not in keys
    assert "replicates-0" in keys


def test_a_run_without_a_measurement_has_no_figures() -> None:
    assert [f for group in figures(bare_record()).values() for f in group] == []


def test_figures_hold_finite_numbers_only() -> None:
    for figure in drawn().values():
        json.dumps([figure.data, figure.layout], allow_nan=False)  # type: ignore[attr-defined]


def test_a_name_is_no_markup_for_plotly() -> None:
    assert (
        label("<b>x</b> & <a href='y'>z</a>")
        == "&lt;b&gt;x&lt;/b&gt; &amp; &lt;a href='y'&gt;z&lt;/a&gt;"
    )


def test_the_graph_shows_hits_and_misses_from_left_to_right() -> None:
    shown = graph(record())
    assert shown is not None
    build, search = shown.boxes
    assert build.x + 300 < search.x
    assert [line.hit for line in build.lines] == [True, False]
    assert [line.text for line in search.lines] == [
        "max_num_segments=16: 10 replicates",
        "max_num_segments=1: 9 of 10 finished",
    ]
    assert "from the cache" in shown.alt


def test_a_run_without_stages_has_no_graph() -> None:
    whole = record()
    config = whole.view.config.model_copy(update={"stages": ()})
    assert graph(replace(whole, view=replace(whole.view, config=config))) is None

"""What counts as a measurement, and how each thing that doesn't is refused."""

from __future__ import annotations

import locale
import math
from pathlib import Path

import pytest

from benchwright.errors import StageFailed
from benchwright.execution.metrics import (
    measurement_from_result,
    read_effective,
    read_measurement,
)
from benchwright.execution.sample import Measurement
from benchwright.spec.model import (
    EffectiveFrom,
    MetricsFormat,
    MetricsFrom,
    Stage,
    StageKind,
)

JSON, KEY_VALUE, CSV = MetricsFormat.JSON, MetricsFormat.KEY_VALUE, MetricsFormat.CSV


@pytest.fixture
def read(tmp_path: Path):
    """Reads a standard output the way a run does."""

    def read(
        text: str | bytes,
        form: MetricsFormat | None = None,
        *,
        expected: tuple[str, ...] = ("p50_ms",),
        fields: tuple[str, ...] = (),
    ) -> Measurement:
        stdout = tmp_path / "search.out"
        stdout.write_bytes(text if isinstance(text, bytes) else text.encode())
        stage = Stage(
            name="search",
            kind=StageKind.MEASURE,
            cmd="true",
            metrics_from=MetricsFrom(stdout=True, format=form, fields=fields),
        )
        return read_measurement(stage, stdout=stdout, cwd=tmp_path, expected=expected)

    return read


@pytest.fixture
def refusal(read):
    """The text of the refusal of an output that must be refused."""

    def refusal(*args, **kwargs) -> str:
        with pytest.raises(StageFailed) as refused:
            read(*args, **kwargs)
        return str(refused.value)

    return refusal


# --- JSON ---------------------------------------------------------------------------------------


def test_the_last_of_three_json_lines_is_the_result_and_the_first_is_set_up(read):
    found = read(
        '{"phase": "load", "p50_ms": 90}\n{"phase": "warm-up", "p50_ms": 9}\n{"p50_ms": 1.25}\n'
    )
    assert found.metrics == {"p50_ms": 1.25}


def test_an_earlier_json_line_never_fills_in_for_the_result(refusal):
    text = refusal('{"p50_ms": 90}\n{"phase": "done"}\n')
    assert "has no 'p50_ms'" in text
    assert "on line 1, has it: print the result last" in text


def test_a_result_that_was_cut_off_is_refused_although_a_whole_line_stands_before_it(refusal):
    text = refusal('{"p50_ms": 90}\n{"p50_ms": 1.2, "rec')
    assert "search.out:2" in text
    assert "is cut off" in text


def test_pretty_printed_json_behind_log_lines_is_read_whole(read):
    found = read('loading...\n{\n  "p50_ms": 1.25,\n  "deep": {\n    "x": 2\n  }\n}\n')
    assert found.metrics == {"p50_ms": 1.25, "deep.x": 2.0}


def test_an_object_inside_a_list_is_no_result(refusal):
    assert "only a JSON list" in refusal('[\n  {"p50_ms": 1},\n  {"p50_ms": 2}\n]\n', JSON)


@pytest.mark.parametrize(
    ("value", "said"),
    [
        ("NaN", "NaN"),
        ("Infinity", "Infinity"),
        ("-Infinity", "-Infinity"),
        ("null", "null"),
        ("true", "true"),
        ('"1.25"', "the text '1.25'"),
        ("[]", "an empty list"),
        ("[1, null]", "null"),
        ("{}", "an object"),
        ("1e400", "'1e400', which no double holds"),
        ("1" * 400, "which no double holds"),
        ("[1e308, 1e308]", "a list whose mean no double holds"),
    ],
)
def test_what_is_no_finite_number_is_no_measurement(refusal, value, said):
    text = refusal(f'set-up\n{{"p50_ms": {value}}}\n', JSON)
    assert "search.out:2" in text
    assert "stage 'search': 'p50_ms' is" in text
    assert said in text


def test_a_metric_that_is_missing_is_named_with_the_nearest_that_is_there(refusal):
    text = refusal('{"p50ms": 1.25, "qps": 3}')
    assert "has no 'p50_ms'" in text
    assert "it has 'p50ms'" in text


def test_a_key_twice_with_two_values_is_refused_and_with_one_value_is_not(read, refusal):
    assert "given twice, as '1' and as '2'" in refusal('{"p50_ms": 1, "p50_ms": 2}')
    assert "given twice" in refusal('{"p50_ms": null, "p50_ms": 2}')
    assert "given twice" in refusal('{"a.b": 1, "a": {"b": 2}}', expected=("a.b",))
    assert read('{"p50_ms": 2, "p50_ms": 2}').metrics == {"p50_ms": 2.0}


def test_a_list_is_repeats_inside_the_process_kept_and_averaged(read):
    found = read('{"p50_ms": [1, 2, 6]}')
    assert found.metrics == {"p50_ms": 3.0}
    assert found.values == {"p50_ms": (1.0, 2.0, 6.0)}


def test_only_the_fields_must_be_there_and_further_numbers_are_kept(read):
    found = read(
        '{"p50_ms": 1, "rss_mb": 12.5, "version": "3.1", "note": null, "bad": NaN, "ok": true}',
        expected=("p50_ms", "p95_ms"),
        fields=("p50_ms",),
    )
    assert found.metrics == {"p50_ms": 1.0, "rss_mb": 12.5}


def test_a_configured_metric_that_is_there_must_be_finite_even_where_it_isnt_required(refusal):
    text = refusal('{"p50_ms": 1, "p95_ms": NaN}', expected=("p95_ms",), fields=("p50_ms",))
    assert "'p95_ms' is NaN" in text


def test_effective_values_are_read_nested_and_dotted_with_their_types(read):
    found = read(
        '{"p50_ms": 1, "effective": {"forcemerge": {"max_num_segments": 1}, "a.b": "on",'
        ' "c": [1, "x"], "d": null}, "effective.e": true}'
    )
    assert found.effective == {
        "forcemerge.max_num_segments": 1,
        "a.b": "on",
        "c": (1, "x"),
        "d": None,
        "e": True,
    }
    assert found.metrics == {"p50_ms": 1.0}


def test_an_effective_value_that_is_nan_or_given_twice_is_refused(refusal):
    assert "'a' is NaN" in refusal('{"p50_ms": 1, "effective": {"a": NaN}}')
    assert "given twice" in refusal('{"p50_ms": 1, "effective": {"a": 1, "a": 2}}')


def test_items_are_kept_by_id_and_averaged_item_by_item(read):
    found = read(
        '{"items": {"accuracy": {"q1": true, "q2": 0, "q3": [0, 1, 1, 1]}}}',
        expected=("accuracy",),
    )
    assert found.items == {"accuracy": {"q1": (1.0,), "q2": (0.0,), "q3": (0.0, 1.0, 1.0, 1.0)}}
    assert found.metrics["accuracy"] == pytest.approx((1 + 0 + 0.75) / 3)


@pytest.mark.parametrize("outcome", ["null", '"yes"', "NaN", "[]"])
def test_an_item_without_an_outcome_is_refused_by_its_id(refusal, outcome):
    text = refusal(f'{{"items": {{"accuracy": {{"q7": {outcome}}}}}}}', expected=("accuracy",))
    assert "item 'q7' of 'accuracy'" in text


def test_an_item_that_is_there_twice_is_refused(refusal):
    text = refusal('{"items": {"accuracy": {"q1": 1, "q1": 0}}}', expected=("accuracy",))
    assert "item 'q1' of 'accuracy' is there twice" in text


def test_json_nested_too_deep_is_a_refusal_and_no_crash(refusal):
    assert "no JSON object" in refusal('{"a":' * 100_000, JSON)


# --- name: value --------------------------------------------------------------------------------


def test_lines_of_name_and_value_are_read_between_others(read):
    found = read("starting\n p50_ms : 1.25 \nrecall@10=1\r\n12:30:01 done\n", KEY_VALUE)
    assert found.metrics["p50_ms"] == 1.25
    assert found.metrics["recall@10"] == 1.0


def test_a_decimal_comma_is_a_clear_error_under_every_locale(refusal):
    before = locale.setlocale(locale.LC_ALL)
    for name in ("de_DE.UTF-8", "de_DE.utf8", "fr_FR.UTF-8"):
        try:
            locale.setlocale(locale.LC_ALL, name)
        except locale.Error:
            continue
        text = refusal("p50_ms: 1,25\n")
        assert "'1,25'" in text
    locale.setlocale(locale.LC_ALL, before)
    text = refusal("p50_ms: 1,25\n")
    assert "has a comma, which may be a decimal or a thousands separator" in text
    assert "LC_ALL=C" in text


@pytest.mark.parametrize(
    "value", ["1,250", "1.234,5", "1,234.5", "1'234", "1_000", "1 234", "1\u202f234"]
)
def test_a_thousands_separator_is_refused(refusal, value):
    text = refusal(f"p50_ms: {value}\n")
    assert "separator" in text
    assert "search.out:1" in text


@pytest.mark.parametrize("value", ["1.25 ms", "1.25ms", "12%", "3 µs", "7 MB/s", "1e3 req/s"])
def test_a_unit_behind_the_number_is_refused_with_where_it_belongs(refusal, value):
    text = refusal(f"p50_ms: {value}\n")
    assert "has a unit behind the number" in text
    assert "metrics: unit" in text


@pytest.mark.parametrize("value", ["nan", "inf", "-Infinity", "n/a", "", "true", "0x10", "１２"])
def test_words_and_other_digits_are_no_numbers(refusal, value):
    assert "'p50_ms'" in refusal(f"p50_ms: {value}\n")


def test_a_name_given_two_values_is_refused_wherever_they_stand(read, refusal):
    text = refusal("p50_ms: 1\n" + "progress\n" * 200_000 + "p50_ms: 2\n")
    assert "search.out:200002" in text
    assert "given twice, as '1' and as '2'" in text
    assert read("p50_ms: 1\np50_ms: 1\n").metrics == {"p50_ms": 1.0}


def test_a_line_that_only_mentions_the_metric_is_quoted(refusal):
    text = refusal("INFO p50_ms: 1.25\n")
    assert "line 1 mentions it" in text
    assert "'INFO p50_ms: 1.25'" in text


def test_effective_values_of_lines_keep_their_text_where_it_is_no_plain_number(read):
    found = read("p50_ms: 1\neffective.n: 16\neffective.mode: 010\neffective.fast: true\n")
    assert found.effective == {"n": 16, "mode": "010", "fast": True}


def test_a_list_of_repeats_can_stand_on_a_line(read):
    assert read("p50_ms: [1, 2]\n").values == {"p50_ms": (1.0, 2.0)}


# --- CSV ----------------------------------------------------------------------------------------


def test_csv_with_one_row_behind_other_lines(read):
    found = read("connecting\np50_ms,recall@10\n1.25,1\n", CSV, expected=("p50_ms", "recall@10"))
    assert found.metrics == {"p50_ms": 1.25, "recall@10": 1.0}


def test_csv_with_a_row_for_each_metric(read):
    found = read("metric,value,unit\np50_ms,1.25,ms\neffective.n,16,\n", CSV)
    assert found.metrics == {"p50_ms": 1.25}
    assert found.effective == {"n": 16}


def test_csv_rows_of_nothing_but_metrics_are_repeats(read):
    found = read("repeat,p50_ms\n1,1.0\n2,3.0\n", CSV)
    assert found.metrics == {"p50_ms": 2.0}
    assert found.values == {"p50_ms": (1.0, 3.0)}


def test_csv_rows_that_a_column_tells_apart_are_refused_rather_than_the_first_one_read(refusal):
    text = refusal("phase,p50_ms\nload,90\nsearch,1.25\n", CSV)
    assert "2 rows, which the column 'phase' tells apart" in text


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("p50_ms,qps\n1,25,3\n", "a decimal comma splits a cell"),
        ('p50_ms,qps\n"1,25",3\n', "has a comma"),
        ("p50_ms;qps\n1;3\n", "separate the columns by commas"),
        ("p50_ms,qps\n", "has no row"),
        ("p50_ms,p50_ms\n1,2\n", "'p50_ms' twice"),
        ("metric,value\np50_ms,1\np50_ms,2\n", "given twice"),
        ("latency,qps\n1,2\n", "no CSV header with p50_ms"),
    ],
)
def test_csv_that_can_be_read_in_two_ways_is_refused(refusal, text, said):
    assert said in refusal(text, CSV)


# --- any output ---------------------------------------------------------------------------------


def test_without_a_format_an_output_with_a_json_object_is_json_and_any_other_is_lines(read):
    assert read('p50_ms: 9\n{"p50_ms": 1}\n').metrics == {"p50_ms": 1.0}
    assert read("{braces} are no JSON\np50_ms: 2\n").metrics == {"p50_ms": 2.0}


@pytest.mark.parametrize("result", ["p50_ms: 1.25\n", '{"p50_ms": 1.25}\n'])
def test_bytes_that_are_no_text_and_a_line_of_ten_megabytes_do_no_harm(read, result):
    noise = b"\xff\xfe\x00\x80" + b"x" * 10_000_000 + b"\n\xc3(\n"
    assert read(noise + result.encode()).metrics["p50_ms"] == 1.25


def test_a_result_at_the_end_of_200_mb_is_found_with_its_line(read, refusal, tmp_path):
    stdout = tmp_path / "search.out"
    line = b"progress 12 % of all documents, and this line is as long as logs are ......\n"
    count = 200_000_000 // len(line)
    with stdout.open("wb") as file:
        for _ in range(count // 10_000):
            file.write(line * 10_000)
        lines = count // 10_000 * 10_000
        file.write(b'{"p50_ms": 1.25, "qps": NaN}\n')
    stage = Stage(
        name="search",
        kind=StageKind.MEASURE,
        cmd="true",
        metrics_from=MetricsFrom(stdout=True),
    )
    found = read_measurement(stage, stdout=stdout, cwd=tmp_path, expected=["p50_ms"])
    assert found.metrics["p50_ms"] == 1.25
    with pytest.raises(StageFailed, match=f"search.out:{lines + 1}: .*'qps' is NaN"):
        read_measurement(stage, stdout=stdout, cwd=tmp_path, expected=["qps"])


def test_an_empty_output_a_missing_file_and_a_folder_are_refused_by_name(refusal, tmp_path):
    assert "its standard output is empty" in refusal(" \n")
    stage = Stage(
        name="search", kind=StageKind.MEASURE, cmd="true", metrics_from=MetricsFrom(file="m.json")
    )
    with pytest.raises(StageFailed, match=r"m\.json isn't there"):
        read_measurement(stage, stdout=tmp_path / "none", cwd=tmp_path, expected=["a"])
    (tmp_path / "m.json").mkdir()
    with pytest.raises(StageFailed, match=r"m\.json is no file"):
        read_measurement(stage, stdout=tmp_path / "none", cwd=tmp_path, expected=["a"])


def test_a_byte_order_mark_is_no_part_of_the_first_name(read):
    assert read(b"\xef\xbb\xbfp50_ms: 1\n").metrics == {"p50_ms": 1.0}


def test_what_an_error_quotes_is_short_and_printable(refusal):
    text = refusal("p50_ms: \x1b[31m" + "9" * 500 + "x\n")
    assert "\x1b" not in text
    assert max(map(len, text.splitlines())) < 400


# --- effective_from, results of functions -------------------------------------------------------


@pytest.mark.parametrize(
    ("form", "text"),
    [
        (JSON, '{"forcemerge": {"max_num_segments": 1}, "codec": "best"}'),
        (JSON, '{"effective": {"forcemerge.max_num_segments": 1, "codec": "best"}, "other": 2}'),
        (KEY_VALUE, "# in use\nforcemerge.max_num_segments = 1\ncodec: best\n"),
        (CSV, "name,value\nforcemerge.max_num_segments,1\ncodec,best\n"),
    ],
)
def test_effective_values_are_read_from_a_file_of_their_own(tmp_path, form, text):
    (tmp_path / "used").write_text(text)
    found = read_effective(EffectiveFrom(file="used", format=form), tmp_path)
    assert found == {"forcemerge.max_num_segments": 1, "codec": "best"}


def test_two_sources_of_effective_values_must_agree(tmp_path):
    (tmp_path / "out").write_text('{"p50_ms": 1, "effective": {"n": 16}}')
    (tmp_path / "used").write_text('{"n": 1, "m": 2}')
    stage = Stage(
        name="search",
        kind=StageKind.MEASURE,
        cmd="true",
        metrics_from=MetricsFrom(stdout=True),
        effective_from=EffectiveFrom(file="used"),
    )
    with pytest.raises(StageFailed, match="'n' is 16 here and 1 in used"):
        read_measurement(stage, stdout=tmp_path / "out", cwd=tmp_path, expected=["p50_ms"])
    (tmp_path / "used").write_text('{"m": 2}')
    found = read_measurement(stage, stdout=tmp_path / "out", cwd=tmp_path, expected=["p50_ms"])
    assert found.effective == {"n": 16, "m": 2}


def test_what_a_function_returned_is_read_like_json_on_standard_output():
    stage = Stage(name="sort", kind=StageKind.MEASURE, function="m:f")
    found = measurement_from_result(
        stage, {"ms": [1, 3], "effective": {"n": 2}, "items": {"a": {"x": 1}}}, expected=["ms"]
    )
    assert found == Measurement({"ms": 2.0}, {"ms": (1.0, 3.0)}, {"a": {"x": (1.0,)}}, {"n": 2})
    for result, said in [
        ({"ms": math.nan}, "'ms' is NaN"),
        ({"ms": "1"}, "'ms' is the text '1'"),
        ({}, "has no 'ms'"),
        (None, "m:f returned null"),
        (3.5, "m:f returned"),
    ]:
        with pytest.raises(StageFailed, match=said):
            measurement_from_result(stage, result, expected=["ms"])

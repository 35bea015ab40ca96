"""Reading YAML: what values mean, where they stand, what is refused, and writing them again."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchwright.errors import BadInput
from benchwright.spec.model import BenchmarkConfig
from benchwright.spec.source import (
    MAX_BYTES,
    as_document,
    dump_yaml,
    parse_written,
    parse_yaml,
    plain_scalar,
    read_yaml,
)
from benchwright.spec.values import as_text

TRAPS = ["on", "off", "yes", "no", "y", "N", "010", "007.5", "12:30", "1_000", "1,25", "2024-01-01"]


@pytest.mark.parametrize("written", [*TRAPS, "0b1", "0o8", "+", ".", "e3", "1e", "--1", "nan", "="])
def test_what_older_readers_mistake_stays_the_text_that_was_written(written: str) -> None:
    document = parse_yaml(f"value: {written}\n{written}: 1\nlist: [{written!r}]\n")
    assert document.data == {"value": written, written: 1, "list": [written]}


@pytest.mark.parametrize(
    ("written", "value", "received"),
    [
        ("1e-3", 0.001, "0.001"),
        ("-12", -12, "-12"),
        ("+3", 3, "3"),
        ("0", 0, "0"),
        ("1.50", 1.5, "1.5"),
        ("6.02e23", 6.02e23, "6.02e+23"),
        (".5", 0.5, "0.5"),
        ("0x1F", 31, "31"),
        ("0o17", 15, "15"),
        ("true", True, "true"),
        ("FALSE", False, "false"),
        ("~", None, "null"),
        ("", None, "null"),
        ("123456789012345678901234567890", 123456789012345678901234567890, None),
    ],
)
def test_core_schema_scalars_have_their_types(
    written: str, value: object, received: str | None
) -> None:
    found = parse_yaml(f"value: {written}\n").data["value"]
    assert (found, type(found)) == (value, type(value))
    assert as_text(found) == (received or written)


@pytest.mark.parametrize("quoted", ["'1'", '"1"', "|-\n  1"])
def test_quotes_make_a_text_of_a_number(quoted: str) -> None:
    assert parse_yaml(f"value: {quoted}\n").data == {"value": "1"}


def test_keys_are_the_text_that_was_written() -> None:
    text = "on: 1\n010: 2\n1e-3: 3\n12:30: 4\nnull: 5\ntrue: 6\n1.50: 7\n'': 8\n".replace(
        "'': 8\n", ""
    )
    assert list(parse_yaml(text).data) == ["on", "010", "1e-3", "12:30", "null", "true", "1.50"]


SAMPLE = """\
domain: command
params:
  corpus: {n_docs: 010, seed: 1}
  a.b: 2
stages:
  - name: build
    cmd: |
      one
      two
    produces: [index,
      log]
  - {kind: measure}
"""


@pytest.mark.parametrize(
    ("key", "place"),
    [
        ("domain", "e.yaml:1: domain"),
        ("params.corpus.n_docs", "e.yaml:3: params.corpus.n_docs"),
        ("params.a.b", "e.yaml:4: params.a.b"),
        (("stages", 0, "cmd"), "e.yaml:7: stages.build.cmd"),
        ("stages.build.cmd", "e.yaml:7: stages.build.cmd"),
        ("stages.build.produces[1]", "e.yaml:11: stages.build.produces[1]"),
        (("stages", 1, "kind"), "e.yaml:12: stages[1].kind"),
        (("stages", 0, "cwd"), "e.yaml:6: stages.build.cwd"),
        ("nothing.like.it", "e.yaml:1: nothing.like.it"),
        ((), "e.yaml:1"),
    ],
)
def test_every_key_knows_its_file_and_line(key: str | tuple[str | int, ...], place: str) -> None:
    assert str(parse_yaml(SAMPLE, Path("e.yaml")).where(key)) == place


def test_a_scalar_knows_how_it_was_written() -> None:
    document = parse_yaml("a: {b: 1e-3, c: on, d: '1'}\n")
    assert [document.written(("a", key)) for key in "bcd"] == ["1e-3", None, None]


def test_aliases_are_written_out() -> None:
    document = parse_yaml("a: &x {b: [1, 2]}\nc: *x\nd: *x\n", Path("f"))
    assert document.data == {name: {"b": [1, 2]} for name in "acd"}
    document.data["c"]["b"].append(3)
    assert document.data["d"] == {"b": [1, 2]}


BOMB = "a0: &a0 [x, x]\n" + "".join(f"a{n}: &a{n} [*a{n - 1}, *a{n - 1}]\n" for n in range(1, 40))


@pytest.mark.parametrize(
    ("text", "line", "said"),
    [
        ("a: 1\nb: {c: 1,\n  c: 2}\n", 3, "b.c: the key `c` stands twice, first on line 2"),
        ("a: 1\na: 1\n", 2, "the key `a` stands twice, first on line 1"),
        ("1: a\n'1': b\n", 2, "the key `1` stands twice"),
        ("a: &x {b: 1}\nc:\n  <<: *x\n", 3, "c.<<: the merge key `<<` is not part of YAML 1.2"),
        ("a: 1\nb: !x 1\n", 2, "the tag `!x` is not allowed"),
        ("a: !!str 1\n", 1, "is not allowed"),
        ("a: !!python/object:os.system {}\n", 1, "is not allowed"),
        ("a: 1\n---\nb: 1\n", 2, "a second document begins here"),
        ("a: 1\n...\n---\nb: 1\n", 3, "a second document begins here"),
        ("%YAML 1.1\n---\na: on\n", 2, "the file says it is YAML 1.1"),
        ("- 1\n", 1, "the top of the file is a list"),
        ("text\n", 1, "the top of the file is a single value"),
        ("", None, "the file is empty"),
        ("# a comment\n", None, "the file is empty"),
        ("---\n", None, "the file says nothing"),
        ("a:\n\tb: 1\n", 2, "a tab is used to indent"),
        ("a: .nan\n", 1, "a: `.nan` is not a finite number"),
        ("a: [1, -.INF]\n", 1, "a[1]: `-.INF` is not a finite number"),
        ("a:\n  b: 1e999\n", 2, "a.b: `1e999` is not a finite number"),
        ("a: b: c\n", 1, "not valid YAML"),
        ("a: 'x\n\n", 3, "not valid YAML"),
        ("a: @x\n", 1, "not valid YAML"),
        ("a: [1\nb: 2\n", 2, "not valid YAML"),
        ("a: *x\n", 1, "the alias `*x` names no anchor"),
        ("a: &x [1, *x]\n", 1, "an alias stands inside the value that it names"),
        ("? [a]\n: 1\n", 1, "a key is a list"),
        ("a:\n  '': 1\n", 2, "a: a key is empty"),
        ('a: "\\0"\n', 1, "the character U+0000 can't be handed to a program"),
        ('a: "\\ud800"\n', 1, "the character U+D800 can't be handed to a program"),
        ("a: 1\nb: \x07\n", 2, "the character U+0007 is not allowed"),
        (BOMB, None, "more than 20,000 values"),
        ("a: " + "[" * 60 + "]" * 60, 1, "nested deeper than 50 levels"),
        ("a: " + "[" * 5000, 1, "nested deeper than 50 levels"),
    ],
)
def test_what_would_mislead_is_refused_with_its_line(
    text: str, line: int | None, said: str
) -> None:
    with pytest.raises(BadInput) as caught:
        parse_yaml(text, Path("e.yaml"))
    assert said in str(caught.value)
    assert caught.value.exit_code == 2
    assert caught.value.where is not None
    assert caught.value.where.file == Path("e.yaml")
    if line is not None:
        assert caught.value.where.line == line


def test_a_file_that_is_no_text_in_utf_8_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "e.yaml"
    file.write_bytes(b"a: 1\nb: na\xefve\n")
    with pytest.raises(BadInput, match="byte 0xef is not UTF-8") as caught:
        read_yaml(file)
    assert str(caught.value.where) == f"{file}:2"


def test_a_byte_order_mark_and_crlf_are_read(tmp_path: Path) -> None:
    file = tmp_path / "e.yaml"
    file.write_bytes(b"\xef\xbb\xbfa: 1\r\nb: on\r\n")
    assert read_yaml(file).data == {"a": 1, "b": "on"}


def test_what_cannot_be_read_is_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="there is no such file"):
        read_yaml(tmp_path / "none.yaml")
    with pytest.raises(BadInput, match="this is a folder"):
        read_yaml(tmp_path)
    huge = tmp_path / "huge.yaml"
    huge.write_bytes(b"#" * (MAX_BYTES + 1))
    with pytest.raises(BadInput, match="bytes"):
        read_yaml(huge)


@pytest.mark.parametrize(
    ("data", "said"),
    [
        ({"a": {1: 2}}, "a: the key 1 is no text"),
        ({"a": [float("nan")]}, "a[0]: nan is not a finite number"),
        ({"a": {"b": {1, 2}}}, "a.b: a value of the type set"),
        ({"a": "x\0"}, "a: the character U+0000"),
    ],
)
def test_data_that_no_file_could_hold_is_refused(data: dict[str, object], said: str) -> None:
    with pytest.raises(BadInput) as caught:
        as_document(data)
    assert said in str(caught.value)


# --- writing ------------------------------------------------------------------------------------

TEXT = (
    st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=30)
    | st.text("'\"\\$`(){}#|&;<>!*?~%= \n\tab-1:,[].@", max_size=12)
    | st.sampled_from(TRAPS)
)
NUMBERS = st.integers() | st.floats(allow_nan=False, allow_infinity=False)
KEYS = TEXT.filter(bool)
VALUES = st.recursive(
    TEXT | NUMBERS | st.booleans() | st.none(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(KEYS, inner, max_size=4),
    max_leaves=12,
)


@settings(max_examples=150, deadline=None)
@given(st.dictionaries(KEYS, VALUES, max_size=4))
def test_what_is_written_is_read_back(data: dict[str, object]) -> None:
    text = dump_yaml(data)
    assert parse_written(text).data == data, "the fast reader agrees"
    assert parse_yaml(text).data == data
    assert repr(parse_yaml(text).data) == repr(data)


def test_written_text_is_quoted_where_any_reader_could_mistake_it() -> None:
    lines = dump_yaml({"values": [*TRAPS, "plain", "1e3", "null", "a: b"]}).splitlines()
    assert lines[1:] == [
        *(f"- '{trap}'" for trap in TRAPS),
        "- plain",
        "- '1e3'",
        "- 'null'",
        "- 'a: b'",
    ]


def test_a_configuration_is_the_same_after_writing_and_reading() -> None:
    config = BenchmarkConfig.model_validate(
        {
            "domain": "command",
            "hypothesis": "p50_ms falls: 20 %",
            "params": {"on": "010", "x": {"y": [1, 2.5e-7, "12:30"], "z": None}, "e": ""},
            "stages": [
                {
                    "name": "search",
                    "kind": "measure",
                    "cmd": "awk '{print $2}' |\n  ./s.sh {x.y}\n",
                    "metrics_from": {"stdout": True, "fields": ["recall@10"]},
                    "env": {"A": "no", "B": None},
                    "resources": {"gpus": 1, "memory_mb": 1e9},
                }
            ],
            "treatment_variable": "x.y",
            "treatment_values": [[3, 4], "on", 1e-3],
            "metrics": [{"name": "recall@10", "role": "guardrail", "floor": 0.99}],
            "budget": {"wall_s": 60},
        }
    )
    text = dump_yaml(config.model_dump(mode="json"))
    again = BenchmarkConfig.model_validate(parse_yaml(text).data)
    assert again == config
    assert parse_yaml(text).data["params"]["on"] == "010"


def test_a_plain_scalar_of_many_digits_stays_text() -> None:
    assert plain_scalar("1" * 5000) == "1" * 5000

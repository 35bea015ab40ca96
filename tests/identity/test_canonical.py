"""One spelling for each value, and the hash of a configuration."""

from __future__ import annotations

import json
import math
from types import MappingProxyType
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchwright.errors import BadInput
from benchwright.identity.canonical import SLUG_LENGTH, canonical_json, config_hash, digest, slug
from benchwright.spec.model import BenchmarkConfig, Metric, Replication, StageKind

JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=20,
)  # fmt: skip


@given(JSON_VALUES)
def test_the_canonical_form_reads_back_as_the_same_value(value: Any) -> None:
    assert json.loads(canonical_json(value)) == value


@given(st.dictionaries(st.text(), st.integers()))
def test_the_order_of_keys_does_not_matter(value: dict[str, int]) -> None:
    turned = dict(reversed(list(value.items())))
    assert canonical_json(turned) == canonical_json(value)


def test_the_form_has_no_white_space_and_sorted_keys() -> None:
    assert canonical_json({"b": [1, 2.5], "a": "é"}) == b'{"a":"\\u00e9","b":[1,2.5]}'


def test_one_as_integer_float_text_and_true_are_four_values() -> None:
    assert len({canonical_json(value) for value in (1, 1.0, "1", True)}) == 4


def test_floats_are_written_shortest_and_exact() -> None:
    assert canonical_json([0.1, 1e-3, 1e22]) == b"[0.1,0.001,1e+22]"


def test_tuples_lists_read_only_mappings_and_enumerations_are_plain_values() -> None:
    value = MappingProxyType({"kind": StageKind.PREP, "values": (1, 2)})
    assert canonical_json(value) == b'{"kind":"prep","values":[1,2]}'


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf, {1}, b"x", object()])
def test_a_value_without_a_canonical_form_is_refused_with_its_place(bad: Any) -> None:
    with pytest.raises(BadInput) as refusal:
        canonical_json({"corpus": {"sizes": [1, bad]}})
    assert refusal.value.where is not None
    assert refusal.value.where.key == "corpus.sizes[1]"


def test_a_key_that_is_no_text_is_refused() -> None:
    with pytest.raises(BadInput, match="the key 8 is no text"):
        canonical_json({"ports": {8: "a"}})


def test_text_and_bytes_have_the_digest_that_sha256_gives() -> None:
    expected = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"
    assert digest("abc") == digest(b"abc") == expected


CONFIG = BenchmarkConfig(
    domain="command",
    params={"a": {"b": 1}, "c": 2},
    metrics=(Metric(name="p50_ms", unit="ms"),),
    treatment_variable="c",
    treatment_values=(3,),
)


def test_notes_reasons_and_a_metrics_meaning_are_no_part_of_the_hash() -> None:
    meant = Metric(name="p50_ms", unit="ms", meaning="the median")
    words = CONFIG.model_copy(
        update={
            "notes": "tried on a Monday",
            "justified": {"c": "a larger machine"},
            "metrics": (meant,),
        }
    )
    assert config_hash(words) == config_hash(CONFIG)


@pytest.mark.parametrize(
    "change",
    [
        {"params": {"a": {"b": 1}, "c": 2.0}},
        {"params": {"a": {"b": "1"}, "c": 2}},
        {"replication": Replication(replicates=11)},
        {"replication": Replication(seed=7)},
        {"metrics": (Metric(name="p50_ms", unit="ms", tolerance=0.04),)},
        {"treatment_values": (3, 4)},
        {"hypothesis": "p50_ms falls"},
        {"packages": ("numpy",)},
    ],
    ids=lambda change: next(iter(change)),
)
def test_anything_else_is_part_of_the_hash(change: dict[str, Any]) -> None:
    assert config_hash(CONFIG.model_copy(update=change)) != config_hash(CONFIG)


def test_gate_1_rule_1_how_parameters_are_nested_or_ordered_makes_no_other_experiment() -> None:
    same = CONFIG.model_copy(update={"params": {"c": 2, "a.b": 1}})
    assert config_hash(same) == config_hash(CONFIG)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Search: 16 segments vs. 1", "search-16-segments-vs-1"),
        ("../../etc/passwd", "etc-passwd"),
        ("Größe", "groe"),
        ("", "unnamed"),
        ("...", "unnamed"),
        ("日本", "unnamed"),
    ],
)
def test_a_slug_is_a_safe_piece_of_a_file_name(text: str, expected: str) -> None:
    assert slug(text) == expected


@given(st.text())
def test_a_slug_of_any_text_is_short_and_plain(text: str) -> None:
    piece = slug(text)
    assert 0 < len(piece) <= SLUG_LENGTH
    assert set(piece) <= set("abcdefghijklmnopqrstuvwxyz0123456789-")
    assert not piece.startswith("-")

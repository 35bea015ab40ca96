"""The nearest known name."""

from __future__ import annotations

import pytest

from benchwright.spec.suggest import did_you_mean, nearest, one_of

KNOWN = ("corpus.n_docs", "forcemerge.max_num_segments", "n_queries", "Index")


@pytest.mark.parametrize(
    ("name", "match"),
    [
        ("corpus.n_doc", "corpus.n_docs"),
        ("n_docs", "corpus.n_docs"),
        ("max_num_segments", "forcemerge.max_num_segments"),
        ("N_QUERIES", "n_queries"),
        ("index", "Index"),
        ("elephant", None),
        ("", None),
    ],
)
def test_the_nearest_name_is_found_by_spelling_or_by_its_last_part(
    name: str, match: str | None
) -> None:
    assert nearest(name, KNOWN) == match


def test_a_last_part_that_two_names_share_is_no_hint_for_either() -> None:
    assert nearest("b", ["left.b", "right.b"]) is None


def test_what_is_said_of_known_names_is_short() -> None:
    assert did_you_mean("n_querys", KNOWN) == "did you mean `n_queries`?"
    assert did_you_mean("elephant", KNOWN) is None
    assert one_of(["a"]) == "`a`"
    assert one_of(["a", "b"]) == "one of `a`, `b`"
    assert one_of([]) == "none is known"
    assert one_of([f"n{i}" for i in range(20)]).endswith("`n11` and 8 more")

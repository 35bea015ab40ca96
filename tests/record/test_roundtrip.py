"""Whatever a stage gave or a person wrote is read back as it was."""

from __future__ import annotations

import tempfile
from dataclasses import replace
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st

from benchwright.execution.sample import Measurement
from benchwright.record import form
from benchwright.record.index import _escape, _unescape
from benchwright.record.lessons import notebook
from benchwright.record.store import RunFolder
from benchwright.spec.source import dump_yaml
from tests.report.sample_record import record

FINITE = st.floats(allow_nan=False, allow_infinity=False)
# NUL and half characters can't be written; they become U+FFFD, which is tested beside the store.
TEXT = st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=40)
SCALAR = st.one_of(st.none(), st.booleans(), st.integers(), FINITE, TEXT)
VALUE = st.one_of(SCALAR, st.lists(SCALAR, max_size=3).map(tuple))


@given(
    metrics=st.dictionaries(TEXT, FINITE, max_size=3),
    effective=st.dictionaries(TEXT, VALUE, max_size=3),
    error=TEXT,
    duration=FINITE,
)
@settings(max_examples=30, deadline=None)
def test_a_replicate_is_read_back_to_the_last_bit(
    metrics: dict[str, float], effective: dict[str, object], error: str, duration: float
) -> None:
    sample = replace(
        record().view.samples[0],
        measurement=Measurement(metrics=metrics, effective=effective),  # type: ignore[arg-type]
        error=error,
        duration_s=duration,
    )
    with tempfile.TemporaryDirectory() as home:
        folder = RunFolder(Path(home), "2026-03-02_x_3fa91c")
        folder.path.mkdir(parents=True)
        folder.append_sample(sample)
        (back,) = folder.samples()
    assert repr(back) == repr(sample)


@given(text=TEXT, reason=TEXT)
@settings(max_examples=30, deadline=None)
def test_results_are_read_back_whatever_their_texts_hold(text: str, reason: str) -> None:
    whole = record()
    assert whole.view.judgement is not None
    said = replace(whole.view.judgement, tag_reason=reason)
    whole = replace(whole, error=text, view=replace(whole.view, judgement=said))
    data = form.results_data(whole)
    written = dump_yaml(data)
    path = Path("results.yaml")
    back = form.read_results(written, path)
    assert (back.error, back.judgement) == (text, said)
    assert form.read_results(written, path, form.write_shadow(written, data)) == back
    assert form.read_head(written, path)["error"] == text
    assert form.read_summaries(written, path) == said.summaries


@given(text=TEXT)
@settings(max_examples=100, deadline=None)
def test_a_cell_of_the_index_never_ends_early_and_is_read_back(text: str) -> None:
    cell = _escape(text)
    assert not set(cell.replace("<br>", "")) & set("|\n\r<>`*[]\\")
    assert len(cell.splitlines()) <= 1
    # Line ends of all kinds become one kind; all else comes back.
    assert _unescape(cell).split() == text.split()


@given(text=TEXT.filter(str.strip))
@settings(max_examples=30, deadline=None)
def test_a_lesson_is_read_back_whatever_it_says(text: str) -> None:
    with tempfile.TemporaryDirectory() as home:
        book = notebook(Path(home), "lessons")
        first = book.add(text)
        second = book.add("another")
        assert book.list() == (first, second)
        assert first.text.split() == text.split()

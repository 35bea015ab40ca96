"""The default experiment, for real at small sizes: segments, recall, and nothing left to chance."""

from __future__ import annotations

import hashlib
import importlib
import json
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from benchwright.spec.manifest import Manifest, ManifestEntry, manifest_only_grows, read_manifest
from benchwright.spec.model import BenchmarkConfig
from benchwright.spec.schema import build, conform
from benchwright.spec.source import read_yaml

RECIPE = Path(__file__).parents[2] / "recipes" / "retrieval-index"
SCRIPTS = ("fts5_segments", "make_corpus", "make_queries", "build_index", "search_bench")

DECLARED_SINCE_1 = [
    "corpus.n_docs",
    "corpus.vocabulary",
    "corpus.doc_length",
    "corpus.zipf",
    "corpus.seed",
    "ingest.flushes",
    "forcemerge.max_num_segments",
    "n_queries",
    "search.terms",
    "search.top_k",
    "search.cache_kib",
    "search.warmup_queries",
]

IMPORT = "import sys; sys.path.insert(0, sys.argv[1]); __import__(sys.argv[2])"


@pytest.fixture
def scripts(monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, ModuleType]]:
    """The recipe's scripts as modules, which they aren't outside this test."""
    monkeypatch.syspath_prepend(RECIPE)
    yield {name: importlib.import_module(name) for name in SCRIPTS}
    for name in SCRIPTS:
        sys.modules.pop(name, None)


def script(name: str, *arguments: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(RECIPE / f"{name}.py"), *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def run(name: str, *arguments: object) -> str:
    done = script(name, *arguments)
    assert done.returncode == 0, done.stderr
    return done.stdout


def corpus(out: Path, *, docs: int = 400, seed: int = 3) -> Path:
    sizes = ("--docs", docs, "--vocabulary", 300, "--length", 20, "--zipf", 1.0)
    run("make_corpus", *sizes, "--seed", seed, "--out", out)
    return out


def queries(collection: Path, out: Path, *, count: int = 200) -> Path:
    sizes = ("--queries", count, "--terms", 2, "--top-k", 10)
    run("make_queries", "--collection", collection, *sizes, "--out", out)
    return out


def index(collection: Path, out: Path, *, flushes: int = 16, segments: int = 4) -> Path:
    sizes = ("--flushes", flushes, "--segments", segments)
    run("build_index", "--collection", collection, *sizes, "--out", out)
    return out


def search(built: Path, asked: Path) -> dict[str, Any]:
    sizes = ("--top-k", 10, "--cache-kib", 4096, "--warmup", 5)
    last = run("search_bench", "--index", built, "--queries", asked, *sizes).splitlines()[-1]
    return json.loads(last)


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A small collection, its queries, and an index of four segments."""
    folder = tmp_path_factory.mktemp("small")
    collection = corpus(folder / "collection")
    return {
        "collection": collection,
        "queries": queries(collection, folder / "queries.jsonl"),
        "index": index(collection, folder / "index.db"),
    }


def segment_ids(built: Path) -> set[int]:
    """Segments by another way than the structure record: the ids in FTS5's page directory."""
    with sqlite3.connect(built) as connection:
        return {row[0] for row in connection.execute("SELECT segid FROM documents_idx")}


# --- the run ------------------------------------------------------------------------------------


def test_search_reports_latency_rate_recall_and_the_segments_in_use(small):
    found = search(small["index"], small["queries"])
    assert 0 < found["p50_ms"] <= found["p95_ms"]
    assert found["qps"] > 0
    assert found["recall@10"] == 1.0
    assert found["effective"]["forcemerge.max_num_segments"] == 4
    assert len(segment_ids(small["index"])) == 4


@pytest.mark.parametrize(
    ("flushes", "segments"), [(1, 1), (16, 1), (16, 16), (16, 2), (17, 3), (30, 6), (20, 5)]
)
def test_an_index_has_exactly_the_segments_that_were_asked_for(small, tmp_path, flushes, segments):
    built = index(small["collection"], tmp_path / "i", flushes=flushes, segments=segments)
    assert len(segment_ids(built)) == segments
    found = search(built, small["queries"])
    assert found["effective"]["forcemerge.max_num_segments"] == segments
    assert found["recall@10"] == 1.0


def test_every_arm_answers_alike_so_that_only_the_segments_differ(small, tmp_path):
    def answers(built: Path) -> list[Any]:
        with sqlite3.connect(built) as connection:
            sql = "SELECT rowid, round(rank, 9) FROM documents WHERE documents MATCH ? ORDER BY 2"
            return [sorted(connection.execute(sql, (text,))) for text in ("w30", "w40 OR w55")]

    one = index(small["collection"], tmp_path / "one", segments=1)
    assert answers(one) == answers(small["index"])
    assert all(answers(one))


def test_merging_leaves_no_free_pages_that_would_set_the_arms_apart(small, tmp_path):
    for segments in (1, 4):
        built = index(small["collection"], tmp_path / f"{segments}", segments=segments)
        with sqlite3.connect(built) as connection:
            assert connection.execute("PRAGMA freelist_count").fetchone() == (0,)


def test_segments_that_fts5_cant_merge_to_are_refused_with_what_would_do(small, tmp_path):
    done = script(
        "build_index",
        *("--collection", small["collection"], "--flushes", 20, "--segments", 8),
        *("--out", tmp_path / "i"),
    )
    assert done.returncode != 0
    assert "it takes 8 flushes, or at least 56" in done.stderr
    assert not (tmp_path / "i").exists()


def test_an_index_with_another_number_of_segments_fails_the_build(tmp_path):
    tiny = corpus(tmp_path / "tiny", docs=16)
    done = script(
        "build_index",
        *("--collection", tiny, "--flushes", 16, "--segments", 4, "--out", tmp_path / "i"),
    )
    assert done.returncode == 1
    assert "where 4 were asked for" in done.stderr
    assert "--flushes 4" in done.stderr


def test_a_lossy_index_shows_in_the_recall(small, tmp_path):
    half = corpus(tmp_path / "half", docs=200)
    found = search(index(half, tmp_path / "i", flushes=4), small["queries"])
    assert found["recall@10"] < 0.8
    assert min(found["items"]["recall@10"].values()) < 0.5
    assert found["effective"]["corpus.n_docs"] == 200


def test_the_same_seed_gives_the_same_bytes_and_another_seed_others(small, tmp_path):
    def digests(collection: Path, asked: Path, built: Path) -> list[str]:
        files = [collection / "documents.txt", asked, built]
        return [hashlib.sha256(file.read_bytes()).hexdigest() for file in files]

    again = corpus(tmp_path / "again")
    other = corpus(tmp_path / "other", seed=4)
    first = digests(small["collection"], small["queries"], small["index"])
    second = digests(again, queries(again, tmp_path / "q1"), index(again, tmp_path / "i1"))
    third = digests(other, queries(other, tmp_path / "q2"), index(other, tmp_path / "i2"))
    assert first == second
    assert not set(first) & set(third)


# --- the exact answers --------------------------------------------------------------------------


def test_exact_scores_are_those_of_fts5s_bm25_for_every_document(small, scripts):
    exact = scripts["make_queries"]
    lines = [json.loads(line) for line in small["queries"].read_text().splitlines()]
    terms = {term for line in lines for term in line["terms"]}
    found, lengths = exact.postings(small["collection"] / "documents.txt", terms)
    with sqlite3.connect(small["index"]) as connection:
        sql = "SELECT rowid, -bm25(documents) FROM documents WHERE documents MATCH ?"
        for line in lines[:50]:
            theirs = dict(connection.execute(sql, (" OR ".join(line["terms"]),)))
            ours = exact.scores(line["terms"], found, lengths)
            assert ours == pytest.approx(theirs, rel=1e-9)


def test_documents_that_tie_for_the_last_place_are_all_right(scripts):
    scores = {1: 3.0, 2: 2.0, 3: 2.0, 4: 2.0 * (1 + 1e-12), 5: 1.0}
    wanted, relevant = scripts["make_queries"].relevant(scores, 2)
    assert (wanted, relevant) == (2, [1, 2, 3, 4])
    queries = [{"wanted": wanted, "relevant": relevant}] * 4
    found = scripts["search_bench"].recalls(queries, [[1, 2], [1, 4], [1, 5], [5]])
    assert found == {"q0": 1.0, "q1": 1.0, "q2": 0.5, "q3": 0.0}


def test_a_query_with_fewer_matches_than_asked_wants_only_those(scripts):
    assert scripts["make_queries"].relevant({7: 1.0}, 10) == (1, [7])
    assert scripts["make_queries"].relevant({}, 10) == (0, [])
    assert scripts["search_bench"].recalls([{"wanted": 0, "relevant": []}], [[]]) == {}


def test_a_percentile_is_given_only_where_ten_queries_lie_beyond_it(scripts):
    percentiles = scripts["search_bench"].percentiles
    assert set(percentiles([1.0] * 19)) == set()
    assert set(percentiles([1.0] * 20)) == {"p50_ms"}
    assert set(percentiles([1.0] * 999)) == {"p50_ms", "p95_ms"}
    assert percentiles(list(range(1, 1001))) == {"p50_ms": 500, "p95_ms": 950, "p99_ms": 990}


# --- the structure record -----------------------------------------------------------------------


class Record:
    """Stands in for a connection whose structure record is given."""

    def __init__(self, record: bytes) -> None:
        self.record = record

    def execute(self, *_: object) -> Record:
        return self

    def fetchone(self) -> tuple[bytes]:
        return (self.record,)


COOKIE = bytes(4)
TWO_LEVELS = bytes([2, 3, 9]) + bytes([0, 1, 7, 1, 4]) + bytes([0, 2, 1, 1, 2, 3, 1, 0x81, 0x48])


def test_the_structure_record_of_old_and_new_sqlite_is_read(scripts):
    levels = scripts["fts5_segments"].levels
    assert levels(Record(COOKIE + TWO_LEVELS), "documents") == [1, 2]
    new = COOKIE + b"\xff\x00\x00\x01" + bytes([1, 2, 9, 0, 2]) + bytes(range(1, 17))
    assert levels(Record(new), "documents") == [2]


@pytest.mark.parametrize(
    "record",
    [
        b"",
        COOKIE,
        COOKIE + TWO_LEVELS[:-1],
        COOKIE + TWO_LEVELS + b"\x01",
        COOKIE + bytes([1, 5, 0, 0, 1, 1, 1, 1]),
    ],
)
def test_a_structure_record_of_another_form_is_refused_not_guessed(scripts, record):
    with pytest.raises(ValueError, match="structure record"):
        scripts["fts5_segments"].segments(Record(record), "documents")


def test_a_nine_byte_integer_keeps_all_of_its_bits(scripts):
    varints = scripts["fts5_segments"].varints
    assert list(varints(b"\xff" * 9 + b"\x05")) == [2**64 - 1, 5]


# --- the files ----------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def config() -> BenchmarkConfig:
    document = read_yaml(RECIPE / "recipe.yaml")
    data = conform(document, BenchmarkConfig, also=("summary",))
    return build(BenchmarkConfig, {k: v for k, v in data.items() if k != "summary"}, document.where)


def test_every_parameter_is_in_the_manifest_with_the_default_that_the_recipe_has(config):
    manifest = read_manifest(RECIPE / "manifest.yaml")
    assert {entry.name: entry.default for entry in manifest.entries} == config.flat_params
    assert all(entry.impact for entry in manifest.entries)


def test_the_manifest_lost_nothing_that_it_ever_asked_for():
    now = read_manifest(RECIPE / "manifest.yaml")
    first = [ManifestEntry(name=name, reason="r", verify="v") for name in DECLARED_SINCE_1]
    assert manifest_only_grows(Manifest(entries=tuple(first)), now) == []


def test_each_parameter_is_verified_by_a_value_that_the_search_really_reports(small):
    effective = search(small["index"], small["queries"])["effective"]
    entries = read_manifest(RECIPE / "manifest.yaml").entries
    assert {f"effective: {name}" for name in effective} == {entry.verify for entry in entries}
    asked = {
        "corpus.n_docs": 400,
        "corpus.vocabulary": 300,
        "corpus.doc_length": 20,
        "corpus.zipf": 1.0,
        "corpus.seed": 3,
        "ingest.flushes": 16,
        "forcemerge.max_num_segments": 4,
        "n_queries": 200,
        "search.terms": 2,
        "search.top_k": 10,
        "search.cache_kib": 4096,
        "search.warmup_queries": 5,
    }
    assert effective == asked


def test_the_scripts_need_nothing_but_python(small):
    for name in SCRIPTS:
        # -S: without site-packages; -I: without this environment.
        command = [sys.executable, "-I", "-S", "-c", IMPORT, str(RECIPE), name]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr


def test_the_tail_percentiles_of_the_recipe_stand_on_enough_queries(config, scripts):
    times = [1.0] * int(config.params["n_queries"])
    assert set(scripts["search_bench"].percentiles(times)) == {"p50_ms", "p95_ms", "p99_ms"}

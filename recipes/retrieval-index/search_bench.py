"""Asks an index a query set, and prints latency, rate, recall and the parameters in use.

Each query is timed from its text to its last row. The last line of the output is one JSON object.
"""

from __future__ import annotations

import argparse
import gc
import json
import math
import sqlite3
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from fts5_segments import segments

TABLE = "documents"
SEARCH = f"SELECT rowid FROM {TABLE} WHERE {TABLE} MATCH ? ORDER BY rank LIMIT ?"

TAIL_QUERIES = 10
"""A percentile is given only where at least this many queries lie beyond it; with fewer it says
more about single queries than about the index."""

PERCENTILES = {"p50_ms": 50, "p95_ms": 95, "p99_ms": 99}


def percentiles(times_ms: Sequence[float]) -> dict[str, float]:
    """The percentiles that this many times carry, by nearest rank (a time that was measured)."""
    ordered = sorted(times_ms)
    return {
        name: ordered[math.ceil(len(ordered) * percent / 100) - 1]
        for name, percent in PERCENTILES.items()
        if len(ordered) * (100 - percent) >= TAIL_QUERIES * 100
    }


def recalls(
    queries: Sequence[Mapping[str, Any]], answers: Sequence[Sequence[int]]
) -> dict[str, float]:
    """Share of the wanted documents that were found, by query, for the queries that want any."""
    return {
        f"q{number}": len(set(answers[number]) & set(query["relevant"])) / query["wanted"]
        for number, query in enumerate(queries)
        if query["wanted"]
    }


def effective(index: sqlite3.Connection) -> dict[str, Any]:
    """What this index and this connection say of themselves."""
    made_from = {
        name: json.loads(value) for name, value in index.execute("SELECT * FROM made_from")
    }
    (n_docs,) = index.execute(f"SELECT count(*) FROM {TABLE}_docsize").fetchone()
    (cache,) = index.execute("PRAGMA cache_size").fetchone()
    return {
        **made_from,
        "corpus.n_docs": n_docs,
        "forcemerge.max_num_segments": segments(index, TABLE),
        "search.cache_kib": -cache,  # SQLite's sign for KiB instead of pages
    }


def main() -> None:
    """Run the query set once and print the result."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--index", type=Path, required=True)
    parser.add_argument("--queries", type=Path, required=True)
    parser.add_argument("--top-k", type=int, required=True, help="rows asked for")
    parser.add_argument("--cache-kib", type=int, required=True, help="SQLite's page cache")
    parser.add_argument("--warmup", type=int, required=True, help="queries asked before timing")
    asked = parser.parse_args()
    with asked.queries.open(encoding="ascii") as lines:
        queries = [json.loads(line) for line in lines]
    texts = [" OR ".join(query["terms"]) for query in queries]
    warmup = texts[: asked.warmup]

    # Immutable: no lock is taken, so nothing but the search is timed.
    index = sqlite3.connect(f"{asked.index.resolve().as_uri()}?immutable=1", uri=True)
    index.execute(f"PRAGMA cache_size = {-asked.cache_kib}")
    for text in warmup:
        index.execute(SEARCH, (text, asked.top_k)).fetchall()

    answers: list[list[tuple[int]]] = []
    times_ms: list[float] = []
    gc.disable()  # a collection would land in whichever query it falls on
    begin = time.perf_counter_ns()
    for text in texts:
        start = time.perf_counter_ns()
        rows = index.execute(SEARCH, (text, asked.top_k)).fetchall()
        times_ms.append((time.perf_counter_ns() - start) / 1e6)
        answers.append(rows)
    total_s = (time.perf_counter_ns() - begin) / 1e9

    found = recalls(queries, [[row[0] for row in rows] for rows in answers])
    if not found:
        parser.exit(1, "no query matches any document: recall can't be measured\n")
    result = {
        **percentiles(times_ms),
        "qps": len(texts) / total_s,
        f"recall@{asked.top_k}": math.fsum(found.values()) / len(found),
        # The same queries in every process: the query is the unit that recall is compared by.
        "items": {f"recall@{asked.top_k}": found},
        "effective": {
            **effective(index),
            "n_queries": len(times_ms),
            "search.terms": len(queries[0]["terms"]),
            "search.top_k": asked.top_k,
            "search.warmup_queries": len(warmup),
        },
        "sqlite": sqlite3.sqlite_version,
    }
    print(json.dumps(result))


if __name__ == "__main__":
    main()

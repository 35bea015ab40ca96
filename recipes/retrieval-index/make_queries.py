"""Draws a seeded query set and answers it exactly: BM25 over every document, without an index.

The exact answers are computed from the raw text, by the formula alone, so that they know nothing
of SQLite, of segments or of merges. `queries.jsonl` has one query a line:

    {"terms": ["w17", "w204"], "wanted": 10, "relevant": [3, 17, ...]}

`relevant` are the documents whose score is at least that of the exact answer's last place. It can
have more than `wanted` documents: those that tie for the last place are all right, and recall
counts whichever of them an index returns.
"""

from __future__ import annotations

import argparse
import json
import math
import random
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path

K1, B = 1.2, 0.75
"""BM25's constants, as FTS5 has them fixed (sqlite.org/fts5.html, section 5.1.1)."""

MIN_IDF = 1e-6
"""FTS5's weight of a word that more than half of the documents have."""

TIE = 1e-9
"""Relative difference below which two scores tie: sums of three floats, added in any order."""

COMMONEST = 20
"""Words that no query asks for, as stop words are dropped elsewhere."""

RAREST = 4000
"""Rank of the rarest word that a query asks for, so that most queries have ten answers."""


def postings(documents: Path, terms: set[str]) -> tuple[dict[str, dict[int, int]], list[int]]:
    """For each of the terms how often each document has it; and the documents' lengths.

    Documents are numbered from 1, as SQLite numbers rows.
    """
    found: dict[str, dict[int, int]] = {term: {} for term in terms}
    lengths = []
    with documents.open(encoding="ascii") as lines:
        for number, line in enumerate(lines, 1):
            words = line.split()
            lengths.append(len(words))
            for term, count in Counter(word for word in words if word in terms).items():
                found[term][number] = count
    return found, lengths


def scores(
    query: Sequence[str], found: Mapping[str, Mapping[int, int]], lengths: Sequence[int]
) -> dict[int, float]:
    """BM25 of every document that has one of the query's terms.

    Source of the formula: Robertson and Zaragoza, "The Probabilistic Relevance Framework: BM25 and
    Beyond" (2009), with the constants that FTS5 uses.
    """
    mean = sum(lengths) / len(lengths)
    total: dict[int, float] = {}
    for term in query:
        having = found[term]
        idf = math.log((len(lengths) - len(having) + 0.5) / (len(having) + 0.5))
        weight = idf if idf > 0 else MIN_IDF
        for number, count in having.items():
            norm = K1 * (1 - B + B * lengths[number - 1] / mean)
            total[number] = total.get(number, 0.0) + weight * count * (K1 + 1) / (count + norm)
    return total


def relevant(total: Mapping[int, float], top_k: int) -> tuple[int, list[int]]:
    """How many documents are wanted, and those that may stand among them, ties included."""
    wanted = min(top_k, len(total))
    if not wanted:
        return 0, []
    last = sorted(total.values(), reverse=True)[wanted - 1]
    return wanted, sorted(n for n, score in total.items() if score >= last * (1 - TIE))


def main() -> None:
    """Write the queries with their exact answers."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--collection", type=Path, required=True)
    parser.add_argument("--queries", type=int, required=True, help="number of queries")
    parser.add_argument("--terms", type=int, required=True, help="words in a query")
    parser.add_argument("--top-k", type=int, required=True, help="length of an answer")
    parser.add_argument("--out", type=Path, required=True, help="file to write")
    asked = parser.parse_args()
    if min(asked.queries, asked.terms, asked.top_k) < 1:
        parser.error("--queries, --terms and --top-k must be at least 1")

    about = json.loads((asked.collection / "collection.json").read_text(encoding="ascii"))
    vocabulary = about["corpus.vocabulary"]
    rarest = min(RAREST, vocabulary)
    commonest = min(COMMONEST, rarest // 10)
    if rarest - commonest < asked.terms:
        parser.error(f"a vocabulary of {vocabulary} words has no query of {asked.terms}")
    draw = random.Random(about["corpus.seed"] + 1)  # not the stream that made the documents
    ranks = range(commonest + 1, rarest + 1)
    drawn = [[f"w{rank}" for rank in draw.sample(ranks, asked.terms)] for _ in range(asked.queries)]
    found, lengths = postings(
        asked.collection / "documents.txt", {term for query in drawn for term in query}
    )
    with asked.out.open("w", encoding="ascii") as out:
        for query in drawn:
            wanted, answers = relevant(scores(query, found, lengths), asked.top_k)
            line = {"terms": query, "wanted": wanted, "relevant": answers}
            print(json.dumps(line), file=out)
    print(f"{asked.queries} queries of {asked.terms} words, answered over {len(lengths)} documents")


if __name__ == "__main__":
    main()

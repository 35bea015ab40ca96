"""Writes a seeded collection of documents whose words follow Zipf's law.

The collection is a folder: `documents.txt` has a document a line, `collection.json` says how it
was made. The same arguments give the same bytes on every machine and Python version.
"""

from __future__ import annotations

import argparse
import json
import random
from itertools import accumulate
from pathlib import Path


def zipf_weights(vocabulary: int, exponent: float) -> list[float]:
    """Cumulative weights of the words by rank: word r is drawn in proportion to 1 / r^exponent."""
    return list(accumulate(1 / rank**exponent for rank in range(1, vocabulary + 1)))


def main() -> None:
    """Write the collection."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--docs", type=int, required=True, help="number of documents")
    parser.add_argument("--vocabulary", type=int, required=True, help="number of distinct words")
    parser.add_argument("--length", type=int, required=True, help="words in a document, on average")
    parser.add_argument("--zipf", type=float, required=True, help="exponent of Zipf's law")
    parser.add_argument("--seed", type=int, required=True)
    parser.add_argument("--out", type=Path, required=True, help="folder to make")
    asked = parser.parse_args()
    if min(asked.docs, asked.vocabulary) < 1 or asked.length < 2:
        parser.error("--docs and --vocabulary must be at least 1, --length at least 2")

    draw = random.Random(asked.seed)
    words = [f"w{rank}" for rank in range(1, asked.vocabulary + 1)]
    weights = zipf_weights(asked.vocabulary, asked.zipf)
    asked.out.mkdir()
    with (asked.out / "documents.txt").open("w", encoding="ascii") as documents:
        for _ in range(asked.docs):
            # Lengths vary by half around their mean, so that BM25's length norm has work to do.
            length = draw.randint(asked.length // 2, asked.length + asked.length // 2)
            print(*draw.choices(words, cum_weights=weights, k=length), file=documents)
    about = {
        "corpus.n_docs": asked.docs,
        "corpus.vocabulary": asked.vocabulary,
        "corpus.doc_length": asked.length,
        "corpus.zipf": asked.zipf,
        "corpus.seed": asked.seed,
    }
    (asked.out / "collection.json").write_text(json.dumps(about, indent=1) + "\n", encoding="ascii")
    print(f"{asked.docs} documents of {asked.length} words on average")


if __name__ == "__main__":
    main()

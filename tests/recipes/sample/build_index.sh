#!/usr/bin/env bash
# An inverted index out of files: one folder a segment, one file a term.
#
#   OUT/segments/07/t42   one line a document that has the term, best first; a line is
#                         (99 - occurrences) * 10^7 + document, so the smaller number ranks higher
#   OUT/exact/t42         the ten best documents of the whole collection: the answer to compare with
#
# Usage: build_index.sh --docs N --segments S --out FOLDER
set -euo pipefail
export LC_ALL=C

docs='' segments='' out=''
while (($#)); do
  case $1 in
    --docs) docs=$2 ;;
    --segments) segments=$2 ;;
    --out) out=$2 ;;
    *) echo "build_index.sh: unknown option $1" >&2; exit 2 ;;
  esac
  shift 2
done
[[ $docs && $segments && $out ]] || { echo "build_index.sh: needs --docs, --segments, --out" >&2; exit 2; }

terms=64 words=24
mkdir -p "$out/segments" "$out/exact"
for ((s = 0; s < segments; s++)); do mkdir "$out/segments/$s"; done
echo "$terms" >"$out/terms"

# A seeded collection: a linear congruential generator (Numerical Recipes' constants, which stay
# exact in awk's doubles). Squaring the draw makes low terms frequent and high terms rare.
awk -v docs="$docs" -v words="$words" -v terms="$terms" '
  BEGIN {
    state = 20250101
    for (d = 1; d <= docs; d++) {
      split("", count)
      for (w = 0; w < words; w++) {
        state = (state * 1664525 + 1013904223) % 4294967296
        u = state / 4294967296
        count[int(u * u * terms)]++
      }
      for (t in count) printf "t%d %.0f %d\n", t, (99 - count[t]) * 10000000 + d, d
    }
  }' | sort -k1,1 -k2,2n >"$out/postings"

awk -v out="$out" -v segments="$segments" '
  $1 != term {
    for (s = 0; s < segments; s++) close(out "/segments/" s "/" term)
    close(out "/exact/" term)
    term = $1; best = 0
  }
  {
    print $2 >(out "/segments/" ($3 % segments) "/" term)
    if (best++ < 10) print $2 >(out "/exact/" term)
  }' "$out/postings"
rm "$out/postings"

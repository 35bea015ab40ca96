#!/usr/bin/env bash
# Asks the index of build_index.sh seeded one-term queries, and prints latency and recall.
#
# A query reads the ten best of each segment and merges them, with bash's builtins only: a forked
# process would cost more than the search.
#
# Usage: search_bench.sh --index FOLDER --queries N
set -euo pipefail
export LC_ALL=C # EPOCHREALTIME has a decimal comma in some locales

index='' queries=''
while (($#)); do
  case $1 in
    --index) index=$2 ;;
    --queries) queries=$2 ;;
    *) echo "search_bench.sh: unknown option $1" >&2; exit 2 ;;
  esac
  shift 2
done
[[ $index && $queries ]] || { echo "search_bench.sh: needs --index, --queries" >&2; exit 2; }

terms=$(<"$index/terms")
segments=("$index"/segments/*)
RANDOM=20250101
found=0 wanted=0
times=()
for ((q = 0; q < queries; q++)); do
  term=t$((RANDOM % terms))
  begin=${EPOCHREALTIME/./}
  merged=() # a sparse array lists its indices in rising order: a merge for free
  for segment in "${segments[@]}"; do
    hits=()
    [[ -f $segment/$term ]] && mapfile -t -n 10 hits <"$segment/$term"
    for hit in "${hits[@]}"; do merged[hit]=1; done
  done
  top=("${!merged[@]}")
  top=("${top[@]:0:10}")
  times+=($((${EPOCHREALTIME/./} - begin)))

  exact=()
  [[ -f $index/exact/$term ]] && mapfile -t exact <"$index/exact/$term"
  wanted=$((wanted + ${#exact[@]}))
  for hit in "${exact[@]}"; do [[ " ${top[*]} " == *" $hit "* ]] && found=$((found + 1)); done
done

p50_us=$(printf '%s\n' "${times[@]}" | sort -n | sed -n "$(((queries + 1) / 2))p")
echo "asked $queries queries of ${#segments[@]} segments"
awk -v us="$p50_us" -v found="$found" -v wanted="$wanted" 'BEGIN {
  printf "p50_ms: %.3f\nrecall@10: %.4f\n", us / 1000, wanted ? found / wanted : 1
}'

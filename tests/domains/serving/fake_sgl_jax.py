"""Stands in for `python -m sgl_jax.bench_serving`, which needs a TPU's environment.

Its options, its requests to `/generate` and the line that it appends to its output file are those
of sglang-jax's own program: the keys, a failed request with no output tokens and an error text that
may be empty, and no line at all where every request failed.
"""

import argparse
import concurrent.futures
import json
import os
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path

DATASETS = ["sharegpt", "random", "random-ids", "generated-shared-prefix", "mmmu"]


def options():
    parser = argparse.ArgumentParser()
    parser.add_argument("--backend", choices=["sglang", "sgl-jax", "vllm"], default="sglang")
    parser.add_argument("--base-url")
    parser.add_argument("--model")
    parser.add_argument("--tokenizer")
    parser.add_argument("--dataset-name", choices=DATASETS, default="sharegpt")
    parser.add_argument("--dataset-path", default="")
    for name, default in (
        ("num-prompts", 1000),
        ("random-input-len", 1024),
        ("random-output-len", 1024),
        ("max-concurrency", None),
        ("warmup-requests", 1),
        ("seed", 1),
    ):
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--random-range-ratio", type=float, default=0.0)
    parser.add_argument("--request-rate", type=float, default=float("inf"))
    parser.add_argument("--output-file")
    for name in ("output-details", "disable-ignore-eos", "flush-cache"):
        parser.add_argument(f"--{name}", action="store_true")
    return parser.parse_args()


def ask(args):
    """(succeeded, output tokens, first token after, times between tokens, error text)."""
    body = {
        "text": "word " * args.random_input_len,
        "sampling_params": {
            "temperature": 0.0,
            "max_new_tokens": args.random_output_len,
            "ignore_eos": not args.disable_ignore_eos,
        },
        "stream": True,
    }
    headers = {"Authorization": f"Bearer {os.environ.get('OPENAI_API_KEY', '')}"}
    request = urllib.request.Request(
        f"{args.base_url}/generate", json.dumps(body).encode(), headers
    )
    begun = last = time.perf_counter()
    first, gaps, tokens = 0.0, [], 0
    try:
        with urllib.request.urlopen(request, timeout=60) as answer:
            for line in answer:
                if not line.startswith(b"data: {"):
                    continue
                now, before = time.perf_counter(), tokens
                tokens = json.loads(line[6:])["meta_info"]["completion_tokens"]
                if first == 0.0:
                    first = now - begun
                elif tokens > before:
                    gaps += [(now - last) / (tokens - before)] * (tokens - before)
                last = now
    except (urllib.error.HTTPError, OSError):
        return False, 0, 0.0, [], ""
    return True, tokens, first, gaps, ""


def main():
    args = options()
    print(f"benchmark_args={args}")
    begun = time.perf_counter()
    workers = args.max_concurrency or args.num_prompts
    with concurrent.futures.ThreadPoolExecutor(workers) as pool:
        waiting = []
        for index in range(args.num_prompts):
            if args.request_rate != float("inf") and index:
                time.sleep(1 / args.request_rate)
            waiting.append(pool.submit(ask, args))
        seen = [future.result() for future in waiting]
    duration = time.perf_counter() - begun
    completed = sum(ok for ok, *_ in seen)
    if not completed:
        sys.exit("IndexError: index -1 is out of bounds for axis 0 with size 0")
    tokens_out = sum(tokens for _, tokens, *_ in seen)
    result = {
        "backend": args.backend,
        "dataset_name": args.dataset_name,
        "request_rate": args.request_rate,
        "max_concurrency": args.max_concurrency,
        "random_input_len": args.random_input_len,
        "random_output_len": args.random_output_len,
        "random_range_ratio": args.random_range_ratio,
        "duration": duration,
        "completed": completed,
        "total_input_tokens": completed * args.random_input_len,
        "total_output_tokens": tokens_out,
        "request_throughput": completed / duration,
        "output_throughput": tokens_out / duration,
        "accept_length": None,
    }
    details = {
        "input_lens": [args.random_input_len] * len(seen),
        "output_lens": [tokens for _, tokens, *_ in seen],
        "ttfts": [first for _, _, first, *_ in seen],
        "itls": [gaps for *_, gaps, _ in seen],
        "generated_texts": ["word " * tokens for _, tokens, *_ in seen],
        "errors": [error for *_, error in seen],
    }
    with Path(args.output_file).open("a", encoding="utf-8") as file:
        file.write(json.dumps(result | details if args.output_details else result) + "\n")


if __name__ == "__main__":
    main()

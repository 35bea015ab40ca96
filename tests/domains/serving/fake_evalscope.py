"""Stands in for `evalscope eval` and `evalscope perf` where a test is about faults.

It asks a real server the questions of a GSM8K folder and leaves the files that evalscope 1.14.1
leaves, in its shapes. `old` as the first argument of the wrapper makes it a version that takes the
generation configuration as key=value only, `stale` one that leaves a report of long ago.
"""

import argparse
import concurrent.futures
import http.client
import itertools
import json
import os
import re
import sqlite3
import sys
import time
import urllib.request
from pathlib import Path

VERSION = "1.14.1"


def ask(args, generation, prompt):
    body = {
        "model": args.model,
        "messages": [{"role": "user", "content": prompt}],
        "max_tokens": int(generation.get("max_tokens", 64)),
    }
    request = urllib.request.Request(
        args.api_url,
        json.dumps(body).encode(),
        {"Content-Type": "application/json", "Authorization": f"Bearer {args.api_key}"},
    )
    with urllib.request.urlopen(request, timeout=60) as answer:
        return json.loads(answer.read())


def generation_of(text, old):
    if not old:
        return json.loads(text)
    if text.startswith("{"):
        print("ValueError: generation-config must be key=value", file=sys.stderr)
        sys.exit(1)
    return dict(pair.partition("=")[::2] for pair in text.split(","))


def rows_of(folder):
    for line in (Path(folder) / "test.jsonl").read_text(encoding="utf-8").splitlines():
        row = json.loads(line)
        yield row["question"], row["answer"].split("####")[-1].strip()


def perf(kind, words):
    parser = argparse.ArgumentParser()
    for name in (
        "url",
        "model",
        "api",
        "api-key",
        "seed",
        "outputs-dir",
        "extra-args",
        "dataset",
        "dataset-path",
        "temperature",
    ):
        parser.add_argument(f"--{name}")
    for name in ("number", "parallel", "max-tokens"):
        parser.add_argument(f"--{name}", type=int, default=1)
    parser.add_argument("--rate", type=float)
    for name in ("no-timestamp", "stream", "open-loop"):
        parser.add_argument(f"--{name}", action="store_true")
    args = parser.parse_args(words)
    if kind == "fails-at-4" and args.parallel == 4:
        print("out of memory", flush=True)
        sys.exit(1)
    prompts = [
        json.loads(line)["question"] for line in Path(args.dataset_path).read_text().splitlines()
    ]
    assert len(prompts) == args.number

    def one(job):
        index, prompt = job
        if args.open_loop:
            time.sleep(index / args.rate)
        start, marks = time.perf_counter(), []
        body = {
            "model": args.model,
            "messages": [{"role": "user", "content": prompt}],
            "stream": True,
        }
        request = urllib.request.Request(
            args.url, json.dumps(body).encode(), {"Authorization": f"Bearer {args.api_key}"}
        )
        usage = {"prompt_tokens": 0, "completion_tokens": 0}
        try:
            with urllib.request.urlopen(request, timeout=60) as answer:
                for line in answer:
                    if line.startswith(b"data: {"):
                        marks.append(time.perf_counter())
                        usage = json.loads(line[6:]).get("usage") or usage
        except (OSError, ValueError, http.client.HTTPException):
            return (0, start, time.perf_counter(), 0, 0, "[]", 0, 0)
        marks.pop()
        gaps = [later - earlier for earlier, later in itertools.pairwise(marks)]
        return (
            1,
            start,
            marks[-1],
            marks[-1] - start,
            marks[0] - start,
            json.dumps(gaps),
            usage["prompt_tokens"],
            usage["completion_tokens"],
        )

    with concurrent.futures.ThreadPoolExecutor(
        args.number if args.open_loop else args.parallel
    ) as pool:
        rows = list(pool.map(one, enumerate(prompts)))
    out = Path(args.outputs_dir) / "model" / f"parallel_{args.parallel}_number_{args.number}"
    out.mkdir(parents=True)
    with sqlite3.connect(out / "benchmark_data.db") as table:
        table.execute(
            "CREATE TABLE result(success INTEGER, start_time REAL, completed_time REAL,"
            " latency REAL, first_chunk_latency REAL, inter_token_latencies TEXT,"
            " prompt_tokens INTEGER, completion_tokens INTEGER)"
        )
        table.executemany("INSERT INTO result VALUES (?, ?, ?, ?, ?, ?, ?, ?)", rows)
    (out / "benchmark_summary.json").write_text(json.dumps({"KV Cache Hit Rate (%)": 0.0}))


def main():
    if sys.argv[2] == "perf":
        return perf(sys.argv[1], sys.argv[3:])
    old = sys.argv[1] == "old"
    parser = argparse.ArgumentParser()
    parser.add_argument("verb", choices=["eval"])
    for name in (
        "model",
        "model-id",
        "eval-type",
        "api-url",
        "api-key",
        "datasets",
        "generation-config",
        "seed",
        "work-dir",
        "dataset-args",
    ):
        parser.add_argument(f"--{name}")
    parser.add_argument("--eval-batch-size", type=int)
    parser.add_argument("--limit", type=float)
    parser.add_argument("--repeats", type=int, default=1)
    parser.add_argument("--no-timestamp", action="store_true")
    parser.add_argument("--ignore-errors", action="store_true")
    args = parser.parse_args(sys.argv[2:])
    generation = generation_of(args.generation_config, old)
    name, out = args.datasets, Path(args.work_dir)
    folder = json.loads(args.dataset_args)[name]["dataset_id"]
    rows = list(rows_of(folder))
    if args.limit:
        rows = rows[: int(args.limit) if args.limit >= 1 else int(len(rows) * args.limit)]
    for kind in ("predictions", "reviews", "reports"):
        (out / kind / args.model_id).mkdir(parents=True, exist_ok=True)
    (out / "configs").mkdir(exist_ok=True)
    (out / "configs" / "task_config.yaml").write_text(
        json.dumps(
            {
                "evalscope_version": VERSION,
                "generation_config": generation,
                "repeats": args.repeats,
                "eval_batch_size": args.eval_batch_size,
                "limit": args.limit,
                "seed": int(args.seed),
                "evaluation_identity": {"benchmarks": {name: {"evaluation_version": "v1.1"}}},
                "resolved_benchmarks": {
                    name: {
                        "few_shot_num": 0,
                        "prompt_template": "{question}",
                        "dataset_id": folder,
                        "dataset_revision": None,
                    }
                },
            }
        )
    )
    outcomes = []
    predictions = (out / "predictions" / args.model_id / f"{name}_main.jsonl").open("w")
    reviews = (out / "reviews" / args.model_id / f"{name}_main.jsonl").open("w")

    def one(job):
        index, (question, target) = job
        begun = time.time()
        try:
            return index, question, target, ask(args, generation, question), time.time() - begun
        except (OSError, ValueError, http.client.HTTPException) as problem:
            print(f"sample {index} failed: {problem}", flush=True)
            return index, question, target, None, 0.0

    jobs = [
        (number * args.repeats + repeat, row)
        for number, row in enumerate(rows)
        for repeat in range(args.repeats)
    ]
    with concurrent.futures.ThreadPoolExecutor(args.eval_batch_size) as pool:
        for index, question, target, answer, seconds in pool.map(one, jobs):
            if answer is None:
                continue
            choice = answer["choices"][0]
            text = choice["message"]["content"]
            stop = "max_tokens" if choice["finish_reason"] == "length" else "stop"
            usage = {"input_tokens": 10, "output_tokens": answer["usage"]["completion_tokens"]}
            predictions.write(
                json.dumps(
                    {
                        "index": index,
                        "model": args.model,
                        "model_output": {
                            "model": answer["model"],
                            "time": seconds,
                            "usage": usage,
                            "choices": [{"message": {"content": text}, "stop_reason": stop}],
                        },
                    }
                )
                + "\n"
            )
            predictions.flush()
            found = re.findall(r"-?\d[\d,.]*\d|\d", text)
            value = float(bool(found) and found[-1] == target)
            outcomes.append(value)
            reviews.write(
                json.dumps(
                    {
                        "index": index,
                        "target": [target],
                        "messages": [
                            {"role": "user", "content": question},
                            {"role": "assistant", "content": text},
                        ],
                        "sample_score": {
                            "score": {
                                "value": {"accuracy": value},
                                "status": "success",
                                "main_score_name": "accuracy",
                            },
                            "sample_id": index,
                            "group_id": index // args.repeats,
                        },
                    }
                )
                + "\n"
            )
            reviews.flush()
    identity = {"name": "accuracy", "aggregation": "mean", "dimensions": {}}
    metrics = (
        [
            {
                "identity": identity,
                "num": len(outcomes),
                "score": round(sum(outcomes) / len(outcomes), 4),
            }
        ]
        if outcomes
        else []
    )
    errored = len(jobs) - len(outcomes)
    (out / "reports" / args.model_id / f"{name}.json").write_text(
        json.dumps(
            {
                "schema_version": 2,
                "dataset_name": name,
                "model_name": args.model_id,
                "metrics": metrics,
                "primary_metric_identity": identity,
                "execution_summary": {
                    "requested": len(jobs),
                    "succeeded": len(outcomes),
                    "errored": errored,
                    "incomplete": errored > 0,
                },
            }
        )
    )
    if sys.argv[1] == "stale":
        os.utime(out / "reports" / args.model_id / f"{name}.json", (1, 1))
    print("finished", flush=True)
    return None


if __name__ == "__main__":
    main()

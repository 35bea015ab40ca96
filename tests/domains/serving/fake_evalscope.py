"""Stands in for `evalscope eval` where a test is about faults, and not about the evaluator.

It asks a real server the questions of a GSM8K folder and leaves the files that evalscope 1.14.1
leaves, in its shapes. `old` as the first argument of the wrapper makes it a version that takes the
generation configuration as key=value only.
"""

import argparse
import concurrent.futures
import http.client
import json
import re
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
        args.api_url, json.dumps(body).encode(), {"Content-Type": "application/json"}
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


def main():
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
    print("finished", flush=True)


if __name__ == "__main__":
    main()

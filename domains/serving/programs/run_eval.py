"""A small evaluation runner for hosts where evalscope can't be installed.

Standard library only, Python >= 3.7. Takes the flags of sglang's test/srt/run_eval.py, reads a
folder of GSM8K (`test.jsonl`) or of multiple-choice items (`*_val.jsonl`), and writes to `--out`
one JSON object with each item's outcome, and an HTML page with the answers.
"""

# mypy: allow-untyped-defs, allow-untyped-calls

import argparse
import concurrent.futures
import glob
import hashlib
import html
import json
import os
import re
import time
import urllib.request

GSM8K = "{question}\nPlease reason step by step, and put your final answer within \\boxed{{}}."
MCQ = (
    "Answer the following multiple choice question. The last line of your answer must be"
    " 'ANSWER: X', where X is one of {letters}.\n\n{question}\n\n{choices}"
)
REQUEST_TIMEOUT_S = 600
KEY = os.environ.get("OPENAI_API_KEY") or "EMPTY"
"""In the environment, because every user of a machine can read a list of arguments."""


def rows(path):
    with open(path, encoding="utf-8") as lines:
        return [json.loads(line) for line in lines if line.strip()]


def gsm8k(folder):
    """(id, prompt, target) of each item."""
    for number, row in enumerate(rows(os.path.join(folder, "test.jsonl"))):
        target = row["answer"].split("####")[-1].strip().replace(",", "")
        yield "main/%d" % number, GSM8K.format(question=row["question"]), target


def multiple_choice(folder):
    """Likewise for multiple-choice items."""
    for path in sorted(glob.glob(os.path.join(folder, "*_val.jsonl"))):
        subset = os.path.basename(path)[: -len("_val.jsonl")]
        for number, row in enumerate(rows(path)):
            letters = [letter for letter in "ABCDEFGHIJ" if letter in row]
            choices = "\n".join("%s) %s" % (letter, row[letter]) for letter in letters)
            prompt = MCQ.format(
                letters=",".join(letters), question=row["question"], choices=choices
            )
            yield "%s/%d" % (subset, number), prompt, row["answer"].strip()


def number_in(text):
    boxed = re.findall(r"\\boxed\{([^{}]*)\}", text)
    found = re.findall(r"-?\d[\d,]*\.?\d*", boxed[-1] if boxed else text)
    return found[-1].replace(",", "").rstrip(".") if found else ""


def letter_in(text):
    found = re.findall(r"ANSWER\s*[::]\s*\(?([A-J])\b", text, re.IGNORECASE)
    return (
        found[-1].upper() if found else (text.strip()[:1].upper() if len(text.strip()) == 1 else "")
    )


def same_number(left, right):
    try:
        return abs(float(left) - float(right)) < 1e-6
    except ValueError:
        return left == right


def ask(args, prompt):
    body = {
        "model": args.model,
        "messages": [{"role": "user", "content": prompt}],
        "max_tokens": args.max_tokens,
        "temperature": args.temperature,
    }
    request = urllib.request.Request(
        args.base_url.rstrip("/") + "/v1/chat/completions",
        json.dumps(body).encode(),
        {"Content-Type": "application/json", "Authorization": "Bearer " + KEY},
    )
    with urllib.request.urlopen(request, timeout=REQUEST_TIMEOUT_S) as answer:
        return json.loads(answer.read().decode("utf-8"))


def evaluate(args, item):
    ident, prompt, target = item
    begun = time.time()
    digest = hashlib.sha256(json.dumps([prompt, target]).encode()).hexdigest()[:8]
    seen = {"id": "%s#%s" % (ident, digest), "target": target}
    try:
        answer = ask(args, prompt)
        choice = answer["choices"][0]
        text = choice["message"].get("content") or ""
    except Exception as problem:
        return dict(seen, error="%s: %s" % (type(problem).__name__, problem))
    if args.eval_name == "gsm8k":
        correct = same_number(number_in(text), target)
    else:
        correct = letter_in(text) == target
    usage = answer.get("usage") or {}
    return dict(
        seen,
        text=text,
        correct=bool(correct),
        empty=not text.strip(),
        truncated=choice.get("finish_reason") == "length",
        model=answer.get("model") or "",
        latency_s=time.time() - begun,
        input_tokens=usage.get("prompt_tokens"),
        output_tokens=usage.get("completion_tokens"),
    )


def page(args, results):
    parts = ["<!doctype html><meta charset=utf-8><title>%s</title>" % html.escape(args.eval_name)]
    for result in results:
        parts.append(
            "<h2>%s: %s</h2><p>target %s</p><pre>%s</pre>"
            % tuple(
                html.escape(str(part))
                for part in (
                    result["id"],
                    result.get("error") or ("right" if result["correct"] else "wrong"),
                    result["target"],
                    result.get("text", ""),
                )
            )
        )
    return "\n".join(parts)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--base-url", required=True)
    parser.add_argument("--model", required=True)
    parser.add_argument("--eval-name", required=True, choices=["gsm8k", "general_mcq"])
    parser.add_argument("--data", required=True)
    parser.add_argument("--out", required=True)
    parser.add_argument("--num-examples", type=int)
    parser.add_argument("--num-threads", type=int, default=8)
    parser.add_argument("--max-tokens", type=int, default=4096)
    parser.add_argument("--temperature", type=float, default=0.0)
    args = parser.parse_args()
    items = list(gsm8k(args.data) if args.eval_name == "gsm8k" else multiple_choice(args.data))
    items = items[: args.num_examples]
    results = []
    os.makedirs(args.out, exist_ok=True)
    lines = open(os.path.join(args.out, "answers.jsonl"), "w", encoding="utf-8")
    with lines, concurrent.futures.ThreadPoolExecutor(args.num_threads) as pool:
        for result in pool.map(lambda item: evaluate(args, item), items):
            results.append(result)
            lines.write(json.dumps(result) + "\n")
            lines.flush()
    answered = [result for result in results if "error" not in result]
    summary = {
        "eval_name": args.eval_name,
        "model": args.model,
        "requested": len(items),
        "errored": len(results) - len(answered),
        "score": sum(r["correct"] for r in answered) / len(answered) if answered else None,
    }
    with open(os.path.join(args.out, "report.html"), "w", encoding="utf-8") as file:
        file.write(page(args, results))
    with open(os.path.join(args.out, "report.json"), "w", encoding="utf-8") as file:
        json.dump(summary, file)
    print(json.dumps(summary))


if __name__ == "__main__":
    main()

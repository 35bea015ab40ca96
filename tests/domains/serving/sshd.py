"""A real sshd on loopback with keys of its own, and another user to log in as."""

from __future__ import annotations

import getpass
import os
import pwd
import secrets
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from domains.serving.request import SshTarget
from tests.support import require

SSHD = shutil.which("sshd", path=os.environ.get("PATH", "") + ":/usr/sbin:/sbin")


@dataclass
class Sshd:
    """A running daemon.

    Attributes:
        folder: Its keys and configuration; readable by the other user.
        port, user, home: Where and as whom to log in.
        process: The listening daemon.
    """

    folder: Path
    port: int
    user: str
    home: Path
    process: subprocess.Popen[bytes]

    @property
    def key(self) -> Path:
        return self.folder / "client"

    @property
    def known_hosts(self) -> Path:
        return self.folder / "known_hosts"

    def target(self, **changes: object) -> SshTarget:
        values: dict[str, object] = {
            "host": "127.0.0.1",
            "port": self.port,
            "user": self.user,
            "key": str(self.key),
            "known_hosts": str(self.known_hosts),
        }
        return SshTarget.model_validate(values | changes)

    def sessions(self) -> list[int]:
        """The daemon's processes that serve a connection."""
        return _children(self.process.pid)

    def cut(self) -> None:
        """End every connection, as a network does: what runs in a session of its own goes on."""
        for pid in self.sessions():
            for child in (*_children(pid), pid):
                with suppress(ProcessLookupError):
                    os.kill(child, signal.SIGKILL)


@contextmanager
def running_sshd() -> Iterator[Sshd]:
    """Start the daemon; as root, with a user made for the test and removed afterwards."""
    require(SSHD is not None, "no sshd: apt-get install openssh-server")
    require(shutil.which("ssh-keygen") is not None, "no ssh-keygen")
    folder = Path(tempfile.mkdtemp(prefix="benchwright-sshd-"))
    folder.chmod(0o755)
    other = os.geteuid() == 0 and shutil.which("useradd") is not None
    user = f"bwt{secrets.token_hex(3)}" if other else getpass.getuser()
    home = folder / "home" if other else Path.home()
    try:
        if other:
            subprocess.run(
                ["useradd", "-m", "-p", "*", "-d", str(home), "-s", "/bin/bash", user],
                check=True,
                capture_output=True,
            )
        process, port = _start(folder, user)
        try:
            yield Sshd(folder, port, user, home, process)
        finally:
            for pid in (*_children(process.pid), process.pid):
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            process.wait()
    finally:
        if other:
            _remove_user(user)
        shutil.rmtree(folder)


def _start(folder: Path, user: str) -> tuple[subprocess.Popen[bytes], int]:
    for name in ("host", "client", "stranger"):
        subprocess.run(
            ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(folder / name)], check=True
        )
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = int(free.getsockname()[1])
    public = (folder / "host.pub").read_text().split()
    (folder / "known_hosts").write_text(f"[127.0.0.1]:{port} {public[0]} {public[1]}\n")
    (folder / "authorized_keys").write_text((folder / "client.pub").read_text())
    if os.geteuid() == 0:
        Path("/run/sshd").mkdir(exist_ok=True)
    config = folder / "sshd_config"
    config.write_text(
        f"Port {port}\nListenAddress 127.0.0.1\nHostKey {folder}/host\nPidFile none\n"
        f"AuthorizedKeysFile {folder}/authorized_keys\nStrictModes no\nUsePAM no\n"
        f"PasswordAuthentication no\nAllowUsers {user}\nMaxSessions 20\nMaxStartups 50\n"
    )
    assert SSHD is not None
    process = subprocess.Popen([SSHD, "-D", "-e", "-f", str(config)], stderr=subprocess.DEVNULL)
    deadline = time.monotonic() + 10
    while True:
        with suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1):
            return process, port
        assert process.poll() is None, "sshd ended at once"
        assert time.monotonic() < deadline, "sshd doesn't listen"
        time.sleep(0.02)


def _children(pid: int) -> list[int]:
    found = []
    for task in Path(f"/proc/{pid}/task").glob("*/children"):
        with suppress(OSError):
            found += [int(child) for child in task.read_text().split()]
    return found


def _remove_user(user: str) -> None:
    """End everything that runs as the user that we made, and remove it.

    userdel refuses as long as a process of the user is left, if only for its parent to notice.
    """
    uid = pwd.getpwnam(user).pw_uid
    deadline = time.monotonic() + 10
    while True:
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit():
                with suppress(OSError):
                    if entry.stat().st_uid == uid:
                        os.kill(int(entry.name), signal.SIGKILL)
        done = subprocess.run(["userdel", user], check=False, capture_output=True, text=True)
        if done.returncode == 0:
            return
        assert time.monotonic() < deadline, f"the test's user can't be removed: {done.stderr}"
        time.sleep(0.1)

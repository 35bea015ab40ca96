"""A host behind SSH, over fabric. Strict: a host key that isn't known is refused, never added."""

from __future__ import annotations

import shlex
import socket
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING

from benchwright.errors import BadInput, Where
from domains.serving.host import GRACE_S, LAUNCH, HostRefused, HostUnreachable, Ran, ShellHost
from domains.serving.request import SshTarget

if TYPE_CHECKING:
    from fabric import Connection
    from paramiko import Channel

CONNECT_TIMEOUT_S = 20

KEEPALIVE_S = 15
"""A connection that died without a word is noticed: no answer to a keepalive ends it."""


class SshHost(ShellHost):
    """One connection, opened when it is first needed, and opened again after it was lost."""

    def __init__(self, target: SshTarget) -> None:
        self.target = target
        self.name = f"{target.user}@{target.host}" if target.user else target.host
        if target.port:
            self.name += f":{target.port}"
        self._connection: Connection | None = None

    def close(self) -> None:
        """Drop the connection."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _launch(self, arguments: tuple[str, str, str], stdin: bytes, timeout_s: float) -> Ran:
        channel = self._channel()
        # The words are ours and hold no user's text; `sh -c` works from any login shell.
        channel.exec_command("exec " + shlex.join(["sh", "-c", LAUNCH, "sh", *arguments]))
        transfer = _Transfer(channel, stdin)
        try:
            return transfer.finish(timeout_s + 2 * GRACE_S)
        except _Lost as problem:
            self.close()
            raise HostUnreachable(
                f"the connection to {self.name} was lost: {problem}",
                hint="what was started there goes on; it is looked for when the host answers",
            ) from None
        except BaseException:
            self.close()
            raise

    def _channel(self) -> Channel:
        """A session channel on a live connection. Raises HostUnreachable, HostRefused, BadInput."""
        import paramiko

        for fresh in (False, True):
            if self._connection is None:
                self._connection = self._connect()
            try:
                transport = self._connection.transport
                if transport is None or not transport.is_active():
                    raise EOFError
                channel: Channel = transport.open_session(timeout=CONNECT_TIMEOUT_S)
                return channel
            except (EOFError, OSError, paramiko.SSHException) as problem:
                # The connection died since it was last used: once, a new one is tried.
                self.close()
                if fresh:
                    raise HostUnreachable(
                        f"no session can be opened on {self.name}: {problem!r}"
                    ) from None
        raise AssertionError("unreachable")

    def _connect(self) -> Connection:
        import paramiko
        from fabric import Connection

        target = self.target
        options: dict[str, object] = {"banner_timeout": CONNECT_TIMEOUT_S}
        if target.key:
            key = Path(target.key).expanduser()
            if not key.is_file():
                raise BadInput(
                    "the private key isn't there",
                    where=Where(file=key, key="target.ssh.key"),
                    hint="give the path of the private key on this machine",
                )
            options |= {"key_filename": str(key), "look_for_keys": False, "allow_agent": False}
        connection = Connection(
            target.host,
            user=target.user,
            port=target.port,
            connect_timeout=CONNECT_TIMEOUT_S,
            connect_kwargs=options,
        )
        client = connection.client
        # fabric's default adds any host key: who answers at that address would be believed.
        client.set_missing_host_key_policy(paramiko.RejectPolicy())
        try:
            if target.known_hosts:
                client.load_host_keys(str(Path(target.known_hosts).expanduser()))
            else:
                client.load_system_host_keys()
            connection.open()
        except paramiko.BadHostKeyException as problem:
            raise HostRefused(
                f"{self.name} shows another host key than the one that is known for it",
                expected=f"{problem.expected_key.get_name()} {problem.expected_key.fingerprint}",
                hint="someone may stand in between. If the host was set up anew, remove the old key"
                f" (ssh-keygen -R {_known_name(target)}) and accept the new one by hand",
            ) from None
        except paramiko.PasswordRequiredException:
            raise HostRefused(
                f"the private key for {self.name} has a passphrase",
                hint="add it to an agent (ssh-add) and leave the key out, or use one without",
            ) from None
        except paramiko.AuthenticationException as problem:
            raise HostRefused(
                f"{self.name} didn't accept our key: {problem}",
                expected="a private key whose public half is in the user's authorized_keys there",
                hint="try by hand: ssh -v " + self.name,
            ) from None
        except paramiko.ssh_exception.NoValidConnectionsError:
            raise HostUnreachable(
                f"nothing accepts connections at {target.host} port {connection.port}",
                expected="a running sshd",
                hint="check host and port; is the machine up?",
            ) from None
        except paramiko.SSHException as problem:
            if "known_hosts" in str(problem):
                raise HostRefused(
                    f"the host key of {self.name} is not known",
                    expected=f"an entry in {target.known_hosts or 'your known_hosts'}",
                    hint=f"connect once by hand and compare the key: ssh {self.name}",
                ) from None
            raise HostUnreachable(f"{self.name} speaks no SSH as it should: {problem}") from None
        except socket.gaierror as problem:
            raise HostUnreachable(
                f"the name {target.host} can't be resolved: {problem.strerror}"
            ) from None
        except OSError as problem:
            raise HostUnreachable(f"{self.name} can't be reached: {problem}") from None
        transport = connection.transport
        assert transport is not None, "an open connection has a transport"
        transport.set_keepalive(KEEPALIVE_S)
        return connection


def _known_name(target: SshTarget) -> str:
    port = target.port or 22
    return target.host if port == 22 else f"[{target.host}]:{port}"


class _Lost(Exception):
    """The channel ended without an exit status, or nothing came in time."""


class _Transfer:
    """Feeds a channel's standard input while both of its outputs are read.

    One after the other would hang as soon as a buffer is full on either side.
    """

    def __init__(self, channel: Channel, stdin: bytes) -> None:
        self._channel = channel
        self._parts: dict[str, list[bytes]] = {"out": [], "err": []}
        self._threads = [
            threading.Thread(target=self._read, args=("out",), daemon=True),
            threading.Thread(target=self._read, args=("err",), daemon=True),
            threading.Thread(target=self._write, args=(stdin,), daemon=True),
        ]
        for thread in self._threads:
            thread.start()

    def _read(self, name: str) -> None:
        receive = self._channel.recv if name == "out" else self._channel.recv_stderr
        try:
            while part := receive(65536):
                self._parts[name].append(part)
        except (OSError, EOFError):
            pass  # told apart below: no exit status

    def _write(self, stdin: bytes) -> None:
        try:
            self._channel.sendall(stdin)
            self._channel.shutdown_write()
        except (OSError, EOFError):
            pass  # the script ended without reading, or the connection is gone: see `finish`

    def finish(self, timeout_s: float) -> Ran:
        """Wait for the end. Raises _Lost."""
        deadline = time.monotonic() + timeout_s
        for thread in self._threads[:2]:
            thread.join(max(deadline - time.monotonic(), 0))
            if thread.is_alive():
                self._channel.close()
                raise _Lost(f"no end within {timeout_s:.0f} s")
        if not self._channel.status_event.wait(max(deadline - time.monotonic(), 0)):
            self._channel.close()
            raise _Lost(f"no exit status within {timeout_s:.0f} s")
        code = self._channel.exit_status
        self._channel.close()
        if code < 0:
            raise _Lost("it ended without an exit status")
        return Ran(code, b"".join(self._parts["out"]), b"".join(self._parts["err"]))

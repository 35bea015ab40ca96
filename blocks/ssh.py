"""A host behind SSH as a configured connection."""

from __future__ import annotations

from typing import TYPE_CHECKING

from prefect.blocks.core import Block
from pydantic import Field

if TYPE_CHECKING:
    from domains.serving.request import SshTarget
    from domains.serving.ssh_host import SshHost


class SshHostBlock(Block):
    """A machine that is reached by SSH. Its host key must be known already; none is ever added."""

    _block_type_name = "SSH host"
    _block_type_slug = "ssh-host"
    _description = "A machine that is reached by SSH, with a host key that is known already."

    host: str = Field(
        default=...,
        title="Host",
        description="Name or address; an alias of the SSH configuration of the machine that runs"
        " the flow works.",
    )
    user: str | None = Field(
        default=None,
        title="User",
        description="Left out: as the SSH configuration says, else the flow's own user.",
    )
    port: int | None = Field(
        default=None, title="Port", description="Left out: 22, or as configured.", ge=1, le=65535
    )
    key: str | None = Field(
        default=None,
        title="Private key",
        description="Path of the private key on the machine that runs the flow. Left out: an agent,"
        " or the user's own keys.",
    )
    known_hosts: str | None = Field(
        default=None,
        title="Known hosts",
        description="File of accepted host keys on the machine that runs the flow. Left out: the"
        " user's own.",
    )

    def target(self) -> SshTarget:
        """The same as the serving domains' requests spell it."""
        from domains.serving.request import SshTarget

        fields = SshTarget.model_fields
        return SshTarget(**{name: getattr(self, name) for name in fields})

    def connect(self) -> SshHost:
        """A connection, opened when it is first used."""
        from domains.serving.ssh_host import SshHost

        return SshHost(self.target())

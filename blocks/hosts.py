"""A served model as a configured target: the host, the endpoint, and what stands behind it."""

from __future__ import annotations

from typing import Any

from prefect.blocks.core import Block
from pydantic import Field, SecretStr

from blocks.ssh import SshHostBlock
from domains.serving.request import KEY_VARIABLE


class ModelServer(Block):
    """A model server on a host: what `accuracy` and `speed` measure."""

    _block_type_name = "Model server"
    _block_type_slug = "model-server"
    _description = "A model server on a host: what accuracy and speed runs measure."

    ssh: SshHostBlock | None = Field(
        default=None,
        title="Host",
        description="The machine that it runs on. Left out: the machine that runs the flow.",
    )
    endpoint_host: str = Field(
        default="127.0.0.1",
        title="Endpoint host",
        description="Where it listens, as seen from that machine.",
    )
    endpoint_port: int = Field(
        default=30000, title="Endpoint port", description="Likewise.", ge=1, le=65535
    )
    api_key: SecretStr | None = Field(
        default=None,
        title="API key",
        description="The endpoint's, where it asks for one. It is kept encrypted, and leaves the"
        " block only into the environment of what asks the endpoint.",
    )
    model: str | None = Field(
        default=None,
        title="Model",
        description="The id that must be served. Left out: the first one that is.",
    )
    model_path: str | None = Field(
        default=None,
        title="Model path",
        description="For the report, where the server's arguments don't say it.",
    )
    repository: str | None = Field(
        default=None,
        title="Repository",
        description="Path of the engine's working copy on that machine. Left out: the one that it"
        " was installed from.",
    )
    branch: str | None = Field(
        default=None, title="Branch", description="The branch that must be checked out there."
    )
    commit: str | None = Field(
        default=None, title="Commit", description="The commit that must be checked out there."
    )
    python: str | None = Field(
        default=None,
        title="Python",
        description="The server's Python. Left out: the one that its process runs in.",
    )
    tpu_type: str | None = Field(
        default=None, title="TPU type", description="Such as v6e-4, where the host can't tell."
    )
    topology: str | None = Field(
        default=None, title="Topology", description="Such as 2x2, where the host can't tell."
    )
    chips: int | None = Field(default=None, title="Chips", description="Likewise.", ge=1)
    gpu: str | None = Field(default=None, title="GPU", description="Likewise.")

    def params(self) -> dict[str, Any]:
        """The `target` parameters of the two domains."""
        plain = ("model", "model_path", "repository", "branch", "commit", "python")
        hardware = ("tpu_type", "topology", "chips", "gpu")
        return {
            "ssh": self.ssh.target().model_dump() if self.ssh else None,
            "endpoint": self._endpoint(),
            **{name: getattr(self, name) for name in (*plain, *hardware)},
        }

    def target(self) -> dict[str, Any]:
        """The `target` parameters that are said."""
        return {name: value for name, value in self.params().items() if value is not None}

    def _endpoint(self) -> dict[str, Any]:
        endpoint: dict[str, Any] = {"host": self.endpoint_host, "port": self.endpoint_port}
        return endpoint | ({"key_env": KEY_VARIABLE} if self.api_key is not None else {})

    def environment(self) -> dict[str, str]:
        """The variable that the parameters name for the API key; empty where there is no key."""
        return {} if self.api_key is None else {KEY_VARIABLE: self.api_key.get_secret_value()}

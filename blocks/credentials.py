"""Credentials and GPU providers. A secret leaves its block only into a child's environment."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from prefect.blocks.core import Block
from pydantic import Field, SecretStr

Provider = Literal["hf-inference", "hf-jobs", "hf-endpoints", "modal", "beam", "colab", "ssh"]


class HuggingFaceCredentials(Block):
    """Access to the Hugging Face hub, its jobs and its endpoints."""

    _block_type_name = "Hugging Face credentials"
    _block_type_slug = "huggingface-credentials"
    _description = "Access to the Hugging Face hub, its jobs and its endpoints."

    token: SecretStr = Field(
        default=...,
        title="Token",
        description="An access token; a read token is enough for the hub, jobs and endpoints need"
        " one that may write.",
    )
    endpoint: str | None = Field(
        default=None,
        title="Hub",
        description="Address of the hub, where it isn't the public one.",
    )

    def environment(self) -> dict[str, str]:
        """The variables that its programs look for."""
        found = {"HF_TOKEN": self.token.get_secret_value()}
        return found | ({"HF_ENDPOINT": self.endpoint} if self.endpoint else {})


class ModalCredentials(Block):
    """Access to Modal."""

    _block_type_name = "Modal credentials"
    _block_type_slug = "modal-credentials"
    _description = "Access to Modal."

    token_id: str = Field(default=..., title="Token id", description="It begins with `ak-`.")
    token_secret: SecretStr = Field(
        default=..., title="Token secret", description="It begins with `as-`."
    )

    def environment(self) -> dict[str, str]:
        """The variables that its programs look for."""
        return {
            "MODAL_TOKEN_ID": self.token_id,
            "MODAL_TOKEN_SECRET": self.token_secret.get_secret_value(),
        }


class BeamCredentials(Block):
    """Access to beam.cloud."""

    _block_type_name = "beam credentials"
    _block_type_slug = "beam-credentials"
    _description = "Access to beam.cloud."

    token: SecretStr = Field(default=..., title="Token", description="The workspace's token.")

    def environment(self) -> dict[str, str]:
        """The variables that its programs look for."""
        return {"BEAM_TOKEN": self.token.get_secret_value()}


@dataclass(frozen=True, slots=True)
class PlainProvider:
    """A GPU provider as the engine knows it.

    Attributes:
        provider: Its name.
        gpu: The GPU to ask for; empty: what fits is chosen.
        gpus: How many.
        usd_per_hour: Its price where it isn't the list's; None: the list's.
        free: Whether it is paid for already.
    """

    provider: str
    gpu: str = ""
    gpus: int = 1
    usd_per_hour: float | None = None
    free: bool = False


class GpuProvider(Block):
    """Where a run gets a GPU from, and what it costs there."""

    _block_type_name = "GPU provider"
    _block_type_slug = "gpu-provider"
    _description = "Where a run gets a GPU from, and what it costs there."

    provider: Provider = Field(default=..., title="Provider", description="Who runs the GPU.")
    gpu: str = Field(
        default="",
        title="GPU",
        description="The GPU to ask for, such as `L4`. Empty: the cheapest one that fits.",
    )
    gpus: int = Field(default=1, ge=1, title="GPUs", description="How many of them.")
    usd_per_hour: float | None = Field(
        default=None,
        ge=0,
        title="Price (USD an hour)",
        description="What an hour of all of it costs you, where that isn't the list price;"
        " 0 for hardware that is paid for already. Empty: the list price.",
    )
    huggingface: HuggingFaceCredentials | None = Field(
        default=None, title="Hugging Face", description="Credentials, for its providers."
    )
    modal: ModalCredentials | None = Field(
        default=None, title="Modal", description="Credentials, for Modal."
    )
    beam: BeamCredentials | None = Field(
        default=None, title="beam", description="Credentials, for beam."
    )

    def environment(self) -> Mapping[str, str]:
        """The variables that the provider's programs look for; empty where none are needed."""
        parts = (self.huggingface, self.modal, self.beam)
        found: dict[str, str] = {}
        for part in parts:
            found |= part.environment() if part is not None else {}
        return found

    def plain(self) -> PlainProvider:
        """The provider as the engine knows it, without its credentials."""
        return PlainProvider(
            provider=self.provider,
            gpu=self.gpu,
            gpus=self.gpus,
            usd_per_hour=self.usd_per_hour,
            free=self.usd_per_hour == 0,
        )

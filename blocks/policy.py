"""Policies as blocks: what a person sets once in Prefect's pages, for all runs of a server."""

from __future__ import annotations

from prefect.blocks.core import Block
from pydantic import Field

from benchwright.planning.policy import (
    ANSWER_WITHIN_S,
    HOLD_S,
    WARN_USD,
    CostPolicy,
    ResourcesPolicy,
)
from blocks.named import DEFAULT_NAME, load


class CostPolicyBlock(Block):
    """What runs may cost before a person is asked, or the run is refused."""

    _block_type_name = "Cost policy"
    _block_type_slug = "cost-policy"
    _description = "What runs may cost before a person is asked, or the run is refused."

    free_usd: float = Field(
        default=0.0,
        ge=0,
        title="Free up to (USD)",
        description="A run whose estimate is not above this starts unasked. Above it, the run"
        " waits for an approval.",
    )
    warn_usd: float = Field(
        default=WARN_USD,
        ge=0,
        title="Warn above (USD)",
        description="Above this estimate the approval has a warning that must be ticked.",
    )
    never_usd: float | None = Field(
        default=None,
        ge=0,
        title="Never above (USD)",
        description="A run whose estimate is above this is refused. Empty: no such limit.",
    )
    month_usd: float | None = Field(
        default=None,
        ge=0,
        title="Budget of a month (USD)",
        description="What all runs together may spend in a calendar month. Empty: no such limit.",
    )
    answer_within_s: float = Field(
        default=ANSWER_WITHIN_S,
        gt=0,
        title="Answer within (seconds)",
        description="How long a run waits for its approval; then it ends, with nothing spent.",
    )
    hold_s: float = Field(
        default=HOLD_S,
        ge=0,
        title="Hold the process (seconds)",
        description="A wait up to this long keeps the run's process; a longer one ends the process"
        " and gives its slot back, and the run goes on where it was when it is approved.",
    )

    def plain(self) -> CostPolicy:
        """The policy as the engine knows it."""
        return CostPolicy(
            free_usd=self.free_usd,
            warn_usd=self.warn_usd,
            never_usd=self.never_usd,
            month_usd=self.month_usd,
            answer_within_s=self.answer_within_s,
            hold_s=self.hold_s,
        )


class ResourcesPolicyBlock(Block):
    """What a run that is started through a deployment may ask for."""

    _block_type_name = "Resources policy"
    _block_type_slug = "resources-policy"
    _description = "What a run that is started through a deployment may ask for."

    memory_mb: float | None = Field(
        default=None,
        gt=0,
        title="Memory of a stage (MB)",
        description="The highest memory budget of a stage, in MB (10^6 bytes). Empty: any.",
    )
    gpus: int | None = Field(
        default=None, ge=0, title="GPUs of a stage", description="At most so many. Empty: any."
    )
    wall_s: float | None = Field(
        default=None,
        gt=0,
        title="Wall-clock time of a run (seconds)",
        description="The highest `budget.wall_s`; a configuration must name one. Empty: any.",
    )
    replicates: int | None = Field(
        default=None,
        ge=1,
        title="Replicates of an arm",
        description="The highest `replication.replicates`. Empty: any.",
    )

    def plain(self) -> ResourcesPolicy:
        """The policy as the engine knows it."""
        return ResourcesPolicy(
            memory_mb=self.memory_mb,
            gpus=self.gpus,
            wall_s=self.wall_s,
            replicates=self.replicates,
        )


def cost_policy(name: str = DEFAULT_NAME) -> CostPolicy:
    """The server's cost policy, or the default one where it has none."""
    block = load(CostPolicyBlock, name)
    return block.plain() if block is not None else CostPolicy()


def resources_policy(name: str = DEFAULT_NAME) -> ResourcesPolicy:
    """The server's resources policy, or one without limits where it has none."""
    block = load(ResourcesPolicyBlock, name)
    return block.plain() if block is not None else ResourcesPolicy()

"""What a person sees of a block in Prefect's pages, and what stays hidden."""

from __future__ import annotations

import urllib.error

import pytest
from pydantic import SecretStr

from benchwright.errors import GateRefused
from benchwright.planning.policy import CostPolicy, ResourcesPolicy, Ruling
from benchwright.spec.model import BenchmarkConfig
from blocks.credentials import (
    BeamCredentials,
    GpuProvider,
    HuggingFaceCredentials,
    ModalCredentials,
)
from blocks.hosts import ModelServer
from blocks.notification import notify
from blocks.policy import CostPolicyBlock, cost_policy, resources_policy
from blocks.store import ResultsStore
from deployments.register import BLOCKS
from tests.approvals import Server

SECRET = "planted-7f3a"


@pytest.mark.parametrize("kind", BLOCKS, ids=lambda kind: kind.get_block_type_slug())
def test_every_field_is_titled_and_described(kind: type) -> None:
    schema = kind.model_json_schema()  # type: ignore[attr-defined]
    assert schema["properties"]
    for name, field in schema["properties"].items():
        assert field.get("description"), f"{kind.__name__}.{name}"
        assert field.get("title"), f"{kind.__name__}.{name}"


@pytest.mark.parametrize(
    ("block", "variables"),
    [
        (HuggingFaceCredentials(token=SecretStr(SECRET)), {"HF_TOKEN"}),
        (
            ModalCredentials(token_id="ak-1", token_secret=SecretStr(SECRET)),
            {"MODAL_TOKEN_ID", "MODAL_TOKEN_SECRET"},
        ),
        (BeamCredentials(token=SecretStr(SECRET)), {"BEAM_TOKEN"}),
        (
            GpuProvider(provider="beam", beam=BeamCredentials(token=SecretStr(SECRET))),
            {"BEAM_TOKEN"},
        ),
        (ModelServer(api_key=SecretStr(SECRET)), {"BENCHWRIGHT_ENDPOINT_KEY"}),
    ],
    ids=lambda value: type(value).__name__,
)
def test_a_secret_leaves_its_block_only_into_an_environment(
    block: GpuProvider, variables: set[str]
) -> None:
    assert SECRET in block.environment().values()
    assert set(block.environment()) == variables
    assert SECRET not in repr(block)
    assert SECRET not in str(block)
    assert SECRET not in block.model_dump_json()
    assert SECRET not in repr(getattr(block, "plain", lambda: "")())


def test_a_server_masks_what_is_secret(prefect_api: str) -> None:
    server = Server(prefect_api)
    block = ResultsStore(place="s3://x", options={"key": SECRET})  # type: ignore[arg-type]
    document = block.save("planted", overwrite=True, _sync=True)  # type: ignore[call-arg]
    try:
        assert SECRET not in str(server.call(f"/block_documents/{document}"))
        assert SECRET not in repr(block)
        assert SECRET not in repr(ResultsStore.load("planted", _sync=True))  # type: ignore[call-arg]
    finally:
        ResultsStore.delete("planted", _sync=True)  # type: ignore[call-arg]
    with pytest.raises(urllib.error.HTTPError):
        server.call(f"/block_documents/{document}")


def test_policies_come_from_the_server_or_are_the_default_ones(prefect_api: str) -> None:
    assert cost_policy("nobody-made-it") == CostPolicy()
    assert resources_policy("nobody-made-it") == ResourcesPolicy()
    block = CostPolicyBlock(free_usd=1.5, never_usd=9)
    block.save("policy-test", overwrite=True, _sync=True)  # type: ignore[call-arg]
    try:
        assert cost_policy("policy-test") == CostPolicy(free_usd=1.5, never_usd=9)
    finally:
        CostPolicyBlock.delete("policy-test", _sync=True)  # type: ignore[call-arg]


def test_nobody_is_told_where_no_notification_block_is(prefect_api: str) -> None:
    assert notify("subject", "body", name="nobody-made-it") is False


@pytest.mark.parametrize(
    ("usd", "left", "ruling"),
    [
        (0.0, None, Ruling.FREE),
        (1.0, None, Ruling.FREE),
        (1.01, None, Ruling.ASK),
        (5.0, None, Ruling.ASK),
        (5.01, None, Ruling.WARN),
        (20.0, None, Ruling.WARN),
        (20.01, None, Ruling.NEVER),
        (3.0, 2.99, Ruling.NEVER),
        (0.5, 0.0, Ruling.NEVER),
        (0.0, 0.0, Ruling.FREE),
    ],
)
def test_a_policy_rules_by_the_estimates_upper_end(
    usd: float, left: float | None, ruling: Ruling
) -> None:
    assert CostPolicy(free_usd=1.0, warn_usd=5.0, never_usd=20.0).ruling(usd, left) is ruling


def test_a_configuration_that_asks_for_too_much_is_refused_row_by_row() -> None:
    config = BenchmarkConfig.model_validate(
        {
            "domain": "command",
            "stages": [
                {
                    "name": "a",
                    "kind": "measure",
                    "cmd": "x",
                    "resources": {"memory_mb": 9000, "gpus": 2},
                }
            ],
            "replication": {"replicates": 100},
        }
    )
    ResourcesPolicy().check(config)
    with pytest.raises(GateRefused) as refused:
        ResourcesPolicy(memory_mb=4000, gpus=1, wall_s=60, replicates=50).check(config)
    assert [(row.field, row.left, row.right) for row in refused.value.differences] == [
        ("budget.wall_s", "not set", "60"),
        ("replication.replicates", "100", "50"),
        ("stages.a.resources.memory_mb", "9000", "4000"),
        ("stages.a.resources.gpus", "2", "1"),
    ]

"""Targets as blocks: what they say is what the domains are asked."""

from __future__ import annotations

import pytest
from pydantic import SecretStr, ValidationError

from blocks.hosts import ModelServer
from blocks.ssh import SshHostBlock
from domains.serving.request import SshTarget, accuracy_request, speed_request


def test_a_host_block_is_the_target_that_a_request_names() -> None:
    block = SshHostBlock(host="tpu-1", user="me", port=2222, key="~/.ssh/id", known_hosts="/k")
    assert block.target() == SshTarget(
        host="tpu-1", user="me", port=2222, key="~/.ssh/id", known_hosts="/k"
    )
    assert block.connect().name == "me@tpu-1:2222"


def test_a_model_server_block_fills_the_target_of_both_domains() -> None:
    block = ModelServer(
        ssh=SshHostBlock(host="tpu-1"), endpoint_port=31000, model="org/m", chips=4, tpu_type="v6e"
    )
    for target in (
        accuracy_request({"target": block.params()}).target,
        speed_request({"target": block.params()}).target,
    ):
        assert target.ssh == SshTarget(host="tpu-1")
        assert target.endpoint.port == 31000
        assert (target.model, target.tpu_type, target.chips) == ("org/m", "v6e", 4)


def test_a_key_is_named_in_the_parameters_and_never_said() -> None:
    block = ModelServer(api_key=SecretStr("planted-3b1c"))
    request = accuracy_request({"target": block.params()})
    assert request.target.endpoint.key_env in block.environment()
    assert "planted" not in repr(block.params())
    assert ModelServer().params()["endpoint"].get("key_env") is None
    assert ModelServer().environment() == {}


def test_a_model_server_without_a_host_is_on_this_machine() -> None:
    assert accuracy_request({"target": ModelServer().params()}).target.ssh is None


@pytest.mark.parametrize("block", [SshHostBlock, ModelServer])
def test_every_field_has_a_title_and_a_description_for_the_form(block: type) -> None:
    for name, field in block.model_fields.items():
        if not name.startswith("_"):
            assert field.title, name
            assert field.description, name


def test_a_port_that_is_none_is_refused() -> None:
    with pytest.raises(ValidationError):
        SshHostBlock(host="h", port=70000)

"""Blocks by their name, and whether a server has one."""

from __future__ import annotations

from typing import TypeVar

from prefect.blocks.core import Block
from prefect.client.orchestration import get_client
from prefect.exceptions import ObjectNotFound

DEFAULT_NAME = "benchwright"
"""The document that is used where no other is named: `cost-policy/benchwright`."""

SomeBlock = TypeVar("SomeBlock", bound=Block)


def load(kind: type[SomeBlock], name: str = DEFAULT_NAME) -> SomeBlock | None:
    """The block of that name, or None where the server has none.

    Args:
        kind: The block's class.
        name: The document's name.
    """
    with get_client(sync_client=True) as client:
        try:
            document = client.read_block_document_by_name(
                name=name, block_type_slug=kind.get_block_type_slug()
            )
        except ObjectNotFound:
            return None
    block = kind._from_block_document(document)
    assert isinstance(block, kind)
    return block

"""Names of members: every node id and every directory that the catalogue takes can be read back from one."""

from typing import Final

import pytest
from hypothesis import given
from hypothesis import strategies as st

from envelope.errors import InvalidName
from envelope.types import NodeId
from metadata.members import disk_of, member_name, node_of
from tests.support.catalogs import apply, catalog_of, refusal, register

NODE_IDS: Final = st.from_regex(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,127}", fullmatch=True).map(NodeId)


@given(NODE_IDS, st.text(min_size=1, max_size=255))
def test_a_name_says_its_node_and_its_disk(node_id: NodeId, directory: str) -> None:
    member = member_name(node_id, directory)
    assert (node_of(member), disk_of(member)) == (node_id, directory)


@given(NODE_IDS)
def test_a_founder_is_named_as_its_node_and_its_disk_is_not_known(node_id: NodeId) -> None:
    assert (node_of(node_id), disk_of(node_id)) == (node_id, None)


def test_no_node_registers_under_an_id_that_could_be_a_member() -> None:
    assert isinstance(refusal(apply(catalog_of(), register("a@d"))), InvalidName)
    with pytest.raises(AssertionError):
        member_name(NodeId("a@d"), "d")

"""The rows of the whole cluster: how many voters are wanted, its id, and the voters that were removed."""

import pytest

from envelope.errors import InvalidConfig
from envelope.types import LogIndex, NodeId
from metadata.catalog.commands import ForgetNode, NameCluster, SetVoters, decode_command, encode_command
from metadata.catalog.events import ClusterChanged
from metadata.catalog.tables import REMOVED_VOTERS_MAX, ClusterRow
from tests.support.catalogs import apply, catalog_of, refusal, register

FIRST, SECOND = "0123456789abcdef" * 2, "f" * 32
B = NodeId("b")


def test_one_three_or_five_voters_can_be_wanted_and_nobody_need_say() -> None:
    catalog = catalog_of()
    assert catalog.cluster.voters_wanted is None
    for number in (1, 3, 5, None):
        assert apply(catalog, SetVoters(number)) == (ClusterChanged(ClusterRow(voters_wanted=number)),)
    apply(catalog, SetVoters(5))
    for number in (-1, 0, 2, 4, 7):
        assert isinstance(refusal(apply(catalog, SetVoters(number))), InvalidConfig)
    assert catalog.cluster.voters_wanted == 5


def test_a_cluster_keeps_its_first_id() -> None:
    catalog = catalog_of()
    assert catalog.cluster.cluster_id is None
    for cluster_id in (FIRST, SECOND, FIRST):
        assert apply(catalog, NameCluster(cluster_id)) == (ClusterChanged(ClusterRow(cluster_id=FIRST)),)
    assert catalog.cluster.cluster_id == FIRST


@pytest.mark.parametrize("cluster_id", ["", FIRST[:-1], FIRST.upper(), FIRST + "\n", "g" * 32])
def test_an_id_is_32_hexadecimal_digits(cluster_id: str) -> None:
    catalog = catalog_of()
    assert isinstance(refusal(apply(catalog, NameCluster(cluster_id))), InvalidConfig)
    assert catalog.cluster.cluster_id is None


def test_a_voter_that_is_forgotten_is_remembered_until_it_registers() -> None:
    catalog = catalog_of(register("a"), register("b"), register("c"))
    apply(catalog, ForgetNode(NodeId("a")))
    assert not catalog.cluster.removed_voters
    apply(catalog, ForgetNode(B, is_voter=True))
    assert catalog.cluster.removed_voters == (B,)
    catalog.audit()
    apply(catalog, register("b"))
    assert catalog.cluster == ClusterRow()


def test_a_voter_that_is_not_forgotten_is_not_taken_for_removed() -> None:
    catalog = catalog_of(register("a"))
    assert refusal(apply(catalog, ForgetNode(B, is_voter=True))) is not None
    assert catalog.cluster == ClusterRow()


def test_the_last_removed_voters_are_remembered() -> None:
    catalog = catalog_of()
    names = [f"n{number}" for number in range(REMOVED_VOTERS_MAX + 2)]
    for name in names:
        apply(catalog, register(name))
        apply(catalog, ForgetNode(NodeId(name), is_voter=True))
    catalog.audit()
    assert catalog.cluster.removed_voters == tuple(names[2:])


def test_nodes_of_before_read_that_a_node_without_a_vote_is_forgotten() -> None:
    stored = b'{"kind":"forget_node","node_id":"b"}'
    assert encode_command(ForgetNode(B)) == stored
    assert decode_command(stored, LogIndex(1)) == ForgetNode(B)
    assert decode_command(encode_command(ForgetNode(B, is_voter=True)), LogIndex(1)) == ForgetNode(
        B, is_voter=True
    )

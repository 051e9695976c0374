from dataclasses import replace

import pytest

from envelope.errors import Fenced, ForeignReplica, InvalidConfig, InvalidName, LimitReached, UnknownStream
from envelope.types import Incarnation, LeaderEpoch, NodeEpoch, NodeId, StreamName
from metadata.catalog import nodes as node_rules
from metadata.catalog import snapshot
from metadata.catalog.catalog import Catalog
from metadata.catalog.commands import ChangeIsr, ChangeLeader, ForgetNode, NodeAtEpoch, RegisterNode
from metadata.catalog.events import IsrChanged, LeaderChanged, NodeRegistered, UncleanlyElected
from metadata.catalog.tables import Stream
from tests.support.catalogs import apply, catalog_of, create, refusal, register

ORDERS = StreamName("orders")


def orders(catalog: Catalog) -> Stream:
    stream = catalog.stream(ORDERS)
    assert stream is not None
    return stream


def elect(catalog: Catalog, leader: str, node_epoch: int = 1, expected: int = 1) -> ChangeLeader:
    return ChangeLeader(
        ORDERS, orders(catalog).incarnation, NodeId(leader), NodeEpoch(node_epoch), LeaderEpoch(expected)
    )


def propose_isr(catalog: Catalog, *members: tuple[str, int], version: int = 1, epoch: int = 1) -> ChangeIsr:
    return ChangeIsr(
        stream=ORDERS,
        incarnation=orders(catalog).incarnation,
        leader=NodeId("n1"),
        leader_epoch=LeaderEpoch(epoch),
        expected_isr_version=version,
        isr=tuple(NodeAtEpoch(NodeId(node), NodeEpoch(node_epoch)) for node, node_epoch in members),
    )


def three_replicas() -> Catalog:
    return catalog_of(
        register("n1"), register("n2"), register("n3"), create("orders", nodes=("n1", "n2", "n3"))
    )


def test_a_node_tells_where_peers_reach_it_and_what_it_fails_with() -> None:
    catalog = catalog_of(replace(register("n1"), peer_host="n1.internal", peer_port=9294, rack="a"))
    node = catalog.nodes()[0]
    assert (node.peer_host, node.peer_port, node.rack) == ("n1.internal", 9294, "a")
    apply(catalog, register("n1"))
    node = catalog.nodes()[0]
    assert (node.peer_host, node.peer_port, node.rack) == (None, None, None), "as it last registered"


def test_every_start_of_a_node_gets_the_next_node_epoch() -> None:
    catalog = Catalog()
    for epoch in (1, 2, 3):
        (event,) = apply(catalog, register("n1"))
        assert isinstance(event, NodeRegistered)
        assert event.node.node_epoch == epoch
    assert catalog.node(NodeId("n1")) == catalog.nodes()[0]


def test_a_node_that_comes_back_after_it_was_forgotten_is_not_taken_for_an_earlier_start() -> None:
    catalog = catalog_of(register("n1"), register("n1"), register("n2"), register("n1"))
    assert refusal(apply(catalog, ForgetNode(NodeId("n1")))) is None
    assert refusal(apply(catalog, ForgetNode(NodeId("n2")))) is None
    restored = snapshot.decode(snapshot.encode(catalog))
    for node in ("n1", "n2", "n3"):
        apply(catalog, register(node))
        apply(restored, register(node))
        epoch = catalog.node(NodeId(node))
        assert epoch is not None
        assert epoch.node_epoch == 4, "behind the last one of n1, whoever it is"
    assert restored.nodes() == catalog.nodes()


def test_a_new_start_ends_the_reigns_of_the_old_one() -> None:
    catalog = catalog_of(register("n1"), create("orders"))
    _, changed = apply(catalog, register("n1"))
    assert changed == LeaderChanged(orders(catalog))
    assert orders(catalog).leader is None
    assert orders(catalog).leader_epoch == 1
    (election,) = catalog.due_elections()
    assert election == elect(catalog, "n1", node_epoch=2, expected=1)
    assert refusal(apply(catalog, election)) is None
    assert (orders(catalog).leader, orders(catalog).leader_epoch) == ("n1", 2)
    assert catalog.due_elections() == ()


def test_a_wiped_directory_leaves_every_isr_before_its_node_serves() -> None:
    catalog = three_replicas()
    events = apply(catalog, register("n1", directory="new-disk"))
    assert [type(event) for event in events] == [NodeRegistered, LeaderChanged, IsrChanged]
    assert orders(catalog).isr_nodes == ("n2", "n3")
    assert orders(catalog).isr_version == 2
    assert [election.leader for election in catalog.due_elections()] == ["n2"]


def test_the_last_replica_waits_for_its_own_directory_instead_of_starting_empty() -> None:
    catalog = catalog_of(register("n1"), create("orders"), register("n1", directory="empty-disk"))
    assert orders(catalog).leader is None
    assert orders(catalog).isr_nodes == ("n1",)
    assert catalog.due_elections() == ()
    assert isinstance(refusal(apply(catalog, elect(catalog, "n1", node_epoch=2))), InvalidConfig)
    life = orders(catalog).incarnation
    apply(catalog, register("n1", restored=[life]))
    assert [election.node_epoch for election in catalog.due_elections()] == [3]


def test_a_directory_belongs_to_one_node() -> None:
    catalog = catalog_of(register("n1", directory="d"))
    error = refusal(apply(catalog, register("n2", directory="d")))
    assert isinstance(error, ForeignReplica)
    assert error.detail == {"node_id": "n1"}
    assert catalog.node(NodeId("n2")) is None


@pytest.mark.parametrize(
    ("command", "error"),
    [
        (RegisterNode(NodeId(""), "d", "h", 1), InvalidName),
        (RegisterNode(NodeId("a/b"), "d", "h", 1), InvalidName),
        (RegisterNode(NodeId("n" * 129), "d", "h", 1), InvalidName),
        (RegisterNode(NodeId("n"), "", "h", 1), InvalidConfig),
        (RegisterNode(NodeId("n"), "d", "", 1), InvalidConfig),
        (RegisterNode(NodeId("n"), "d", "h", 0), InvalidConfig),
        (RegisterNode(NodeId("n"), "d", "h", 65536), InvalidConfig),
        (RegisterNode(NodeId("n"), "d", "h", 1, rack=""), InvalidConfig),
        (RegisterNode(NodeId("n"), "d", "h", 1, rack="r" * 256), InvalidConfig),
        (RegisterNode(NodeId("n"), "d", "h", 1, peer_host="", peer_port=2), InvalidConfig),
        (RegisterNode(NodeId("n"), "d", "h", 1, peer_host="h", peer_port=0), InvalidConfig),
        (RegisterNode(NodeId("n"), "d", "h", 1, peer_host="h", peer_port=65536), InvalidConfig),
        (RegisterNode(NodeId("n"), "d", "h", 1, peer_host="h"), InvalidConfig),
        (RegisterNode(NodeId("n"), "d", "h", 1, peer_port=2), InvalidConfig),
    ],
)
def test_a_malformed_node_is_refused(command: RegisterNode, error: type[Exception]) -> None:
    catalog = Catalog()
    assert isinstance(refusal(apply(catalog, command)), error)
    assert catalog.nodes() == ()


def test_the_number_of_nodes_is_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(node_rules, "NODES_MAX", 1)
    catalog = catalog_of(register("n1"))
    assert isinstance(refusal(apply(catalog, register("n2"))), LimitReached)
    assert refusal(apply(catalog, register("n1"))) is None


@pytest.mark.parametrize(
    ("leader", "node_epoch", "expected", "error"),
    [
        ("n2", 1, 0, Fenced),
        ("n2", 1, 2, Fenced),
        ("n2", 0, 1, Fenced),
        ("n2", 2, 1, Fenced),
        ("n9", 1, 1, Fenced),
        ("n9", 0, 1, InvalidConfig),
    ],
)
def test_an_election_from_an_old_view_is_refused(
    leader: str, node_epoch: int, expected: int, error: type[Exception]
) -> None:
    catalog = three_replicas()
    before = orders(catalog)
    assert isinstance(refusal(apply(catalog, elect(catalog, leader, node_epoch, expected))), error)
    assert orders(catalog) is before


def test_only_a_member_of_the_isr_is_elected() -> None:
    catalog = three_replicas()
    apply(catalog, propose_isr(catalog, ("n1", 1), ("n3", 1)))
    assert isinstance(refusal(apply(catalog, elect(catalog, "n2"))), InvalidConfig)
    assert refusal(apply(catalog, elect(catalog, "n3"))) is None


def test_a_second_election_on_the_same_view_loses() -> None:
    catalog = three_replicas()
    first, second = elect(catalog, "n2"), elect(catalog, "n3")
    assert refusal(apply(catalog, first)) is None
    error = refusal(apply(catalog, second))
    assert isinstance(error, Fenced)
    assert error.detail == {"leader_epoch": 2}


def test_an_isr_shrinks_and_grows_by_its_leader_in_the_order_of_the_replicas() -> None:
    catalog = three_replicas()
    apply(catalog, propose_isr(catalog, ("n1", 1)))
    assert orders(catalog).isr_nodes == ("n1",)
    (event,) = apply(catalog, propose_isr(catalog, ("n3", 1), ("n1", 1), version=2))
    assert event == IsrChanged(orders(catalog))
    assert orders(catalog).isr_nodes == ("n1", "n3")
    assert orders(catalog).isr_version == 3


@pytest.mark.parametrize(
    ("members", "version", "epoch", "error"),
    [
        ((("n1", 1),), 2, 1, Fenced),
        ((("n1", 1),), 1, 2, Fenced),
        ((("n1", 1), ("n2", 2)), 1, 1, Fenced),
        ((("n2", 1),), 1, 1, InvalidConfig),
        ((), 1, 1, InvalidConfig),
        ((("n1", 1), ("n1", 1)), 1, 1, InvalidConfig),
        ((("n1", 1), ("n9", 1)), 1, 1, InvalidConfig),
    ],
)
def test_an_isr_that_must_not_be_is_refused(
    members: tuple[tuple[str, int], ...], version: int, epoch: int, error: type[Exception]
) -> None:
    catalog = three_replicas()
    before = orders(catalog)
    command = propose_isr(catalog, *members, version=version, epoch=epoch)
    assert isinstance(refusal(apply(catalog, command)), error)
    assert orders(catalog) is before


def test_a_proposal_that_names_an_earlier_start_of_a_member_is_refused() -> None:
    """KIP-903: the member was in sync, restarted with nothing, and the proposal arrives late."""
    catalog = three_replicas()
    apply(catalog, propose_isr(catalog, ("n1", 1)))
    late = propose_isr(catalog, ("n1", 1), ("n2", 1), version=2)
    apply(catalog, register("n2", directory="empty"))
    assert isinstance(refusal(apply(catalog, late)), Fenced)
    assert orders(catalog).isr_nodes == ("n1",)


def test_leadership_of_another_life_of_the_stream_is_refused() -> None:
    catalog = three_replicas()
    wrong = ChangeLeader(ORDERS, Incarnation("other"), NodeId("n2"), NodeEpoch(1), LeaderEpoch(1))
    assert isinstance(refusal(apply(catalog, wrong)), UnknownStream)
    gone = ChangeIsr(
        stream=ORDERS,
        incarnation=Incarnation("other"),
        leader=NodeId("n1"),
        leader_epoch=LeaderEpoch(1),
        expected_isr_version=1,
        isr=(),
    )
    assert isinstance(refusal(apply(catalog, gone)), UnknownStream)


@pytest.mark.parametrize("sync", ["interval", "os"])
def test_who_may_have_lost_what_it_never_synced_leaves_the_isr(sync: str) -> None:
    catalog = catalog_of(
        register("n1"), register("n2"), create("orders", nodes=("n1", "n2"), sync=sync, min_insync_replicas=1)
    )
    apply(catalog, register("n1", unsynced_kept=True))
    assert orders(catalog).isr_nodes == ("n1", "n2")
    events = apply(catalog, register("n1"))
    assert [type(event) for event in events] == [NodeRegistered, IsrChanged]
    assert orders(catalog).isr_nodes == ("n2",)
    apply(catalog, register("n2"))
    assert orders(catalog).isr_nodes == ("n2",), "nobody has more than the last one"


def test_who_syncs_before_it_counts_has_lost_nothing() -> None:
    catalog = three_replicas()
    apply(catalog, register("n2"))
    assert orders(catalog).isr_nodes == ("n1", "n2", "n3")


def test_an_unclean_election_gives_the_former_isr_up_and_says_so() -> None:
    catalog = three_replicas()
    apply(catalog, propose_isr(catalog, ("n1", 1)))
    given_up = orders(catalog).isr
    unclean = replace(elect(catalog, "n3"), unclean=True)
    changed, uncleanly = apply(catalog, unclean)
    assert changed == LeaderChanged(orders(catalog))
    assert uncleanly == UncleanlyElected(orders(catalog), given_up)
    assert (orders(catalog).leader, orders(catalog).leader_epoch) == ("n3", 2)
    assert (orders(catalog).isr_nodes, orders(catalog).isr_version) == (("n3",), 3)


def test_an_election_that_may_be_unclean_is_clean_if_it_can_be() -> None:
    catalog = three_replicas()
    assert apply(catalog, replace(elect(catalog, "n2"), unclean=True)) == (LeaderChanged(orders(catalog)),)
    assert orders(catalog).isr_nodes == ("n1", "n2", "n3")


def test_who_is_no_replica_is_not_elected_uncleanly_either() -> None:
    catalog = three_replicas()
    apply(catalog, register("n4"))
    assert isinstance(refusal(apply(catalog, replace(elect(catalog, "n4"), unclean=True))), InvalidConfig)

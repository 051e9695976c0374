"""Copies that only serve reads, in the catalogue: they come and go, and never count."""

from collections.abc import Sequence

import pytest

from envelope.errors import InvalidConfig, JetstreamError, NodeInUse, RemovalPending, UnknownNode
from envelope.types import Incarnation, NodeEpoch, NodeId, StreamName
from metadata.catalog.catalog import Catalog
from metadata.catalog.commands import (
    CancelReassignment,
    ChangeIsr,
    ConfirmRemoval,
    DeleteStream,
    ForgetNode,
    NodeAtEpoch,
    ReassignReplicas,
    UpdateStream,
)
from metadata.catalog.events import ReplicasReassigned, StreamDeleted, StreamUpdated
from metadata.catalog.tables import Removal, Stream
from metadata.stream_patch import StreamPatch
from tests.support.catalogs import apply, catalog_of, create, refusal, register, update

ORDERS = StreamName("orders")


def cluster(nodes: str = "ab", read: str = "") -> Catalog:
    """Six nodes, and a stream on some of them."""
    return catalog_of(
        *(register(node) for node in "abcdef"), create("orders", nodes=nodes, read_replicas=read)
    )


def orders(catalog: Catalog) -> Stream:
    row = catalog.stream(ORDERS)
    assert row is not None
    return row


def ids(nodes: Sequence[str]) -> tuple[NodeId, ...]:
    return tuple(NodeId(node) for node in nodes)


def resize(nodes: str, count: int | None = None) -> UpdateStream:
    patch = StreamPatch(read_replicas=len(nodes) if count is None else count)
    return UpdateStream(stream=ORDERS, patch=patch, read_replicas=ids(nodes))


def reassign(catalog: Catalog, target: str, read: str | None = None) -> ReassignReplicas:
    return ReassignReplicas(
        ORDERS, orders(catalog).incarnation, ids(target), None if read is None else ids(read)
    )


def removed(catalog: Catalog) -> dict[str, tuple[NodeId, ...]]:
    return {removal.incarnation: removal.pending for removal in catalog.removals()}


def test_a_stream_is_created_with_read_replicas_that_are_not_in_sync() -> None:
    row = orders(cluster("ab", "cd"))
    assert (row.replicas, row.read_replicas) == (("a", "b"), ("c", "d"))
    assert row.isr_nodes == ("a", "b")
    assert row.config.read_replicas == 2


@pytest.mark.parametrize(
    ("read", "count", "error"),
    [
        ("c", 2, InvalidConfig),
        ("cd", 1, InvalidConfig),
        ("cc", 2, InvalidConfig),
        ("b", 1, InvalidConfig),
        ("x", 1, UnknownNode),
    ],
)
def test_read_replicas_that_cannot_be_are_refused(read: str, count: int, error: type[JetstreamError]) -> None:
    catalog = cluster()
    wrong = create("other", nodes="ab", read_replicas=read)
    wrong = type(wrong)(
        config=wrong.config.model_copy(update={"read_replicas": count}),
        incarnation=wrong.incarnation,
        created=wrong.created,
        replicas=wrong.replicas,
        leader=wrong.leader,
        read_replicas=wrong.read_replicas,
    )
    assert isinstance(refusal(apply(catalog, wrong)), error)
    before = orders(catalog)
    assert isinstance(refusal(apply(catalog, resize(read, count))), error)
    assert orders(catalog) is before


def test_their_number_changes_while_the_stream_is_in_use() -> None:
    catalog = cluster()
    before = orders(catalog)
    (event,) = apply(catalog, resize("cd"))
    assert event == StreamUpdated(orders(catalog), before, None)
    row = orders(catalog)
    assert (row.read_replicas, row.config.read_replicas) == (("c", "d"), 2)
    assert (row.leader, row.leader_epoch, row.isr) == (before.leader, before.leader_epoch, before.isr)
    (event,) = apply(catalog, resize("d"))
    assert isinstance(event, StreamUpdated)
    assert event.removal == Removal(ORDERS, row.incarnation, ids("c"))
    assert orders(catalog).read_replicas == ("d",)
    catalog.audit()


def test_a_number_without_the_nodes_for_it_is_refused_and_nothing_else_is_changed_with_it() -> None:
    catalog = cluster("ab", "c")
    before = orders(catalog)
    error = refusal(apply(catalog, update("orders", read_replicas=2, sync="os")))
    assert isinstance(error, InvalidConfig)
    assert error.detail == {"field": "read_replicas"}
    assert orders(catalog) is before
    assert refusal(apply(catalog, update("orders", read_replicas=1, sync="os"))) is None


def test_a_read_replica_is_never_in_sync_and_is_not_elected() -> None:
    catalog = cluster("ab", "c")
    row = orders(catalog)
    members = tuple(NodeAtEpoch(node, NodeEpoch(1)) for node in ids("abc"))
    proposal = ChangeIsr(
        stream=ORDERS,
        incarnation=row.incarnation,
        leader=NodeId("a"),
        leader_epoch=row.leader_epoch,
        expected_isr_version=row.isr_version,
        isr=members,
    )
    assert isinstance(refusal(apply(catalog, proposal)), InvalidConfig)
    for node in "ab":
        apply(catalog, register(node, directory=f"gone-{node}"))
    assert catalog.due_elections() == ()


def test_a_read_replica_with_another_disk_changes_nothing_for_the_stream() -> None:
    catalog = cluster("ab", "c")
    before = orders(catalog)
    apply(catalog, register("c", directory="new"))
    assert orders(catalog) == before


def test_read_replicas_move_at_once_and_alone() -> None:
    catalog = cluster("ab", "cd")
    (event,) = apply(catalog, reassign(catalog, "ab", "de"))
    assert isinstance(event, ReplicasReassigned)
    row = event.stream
    assert (row.replicas, row.target, row.read_replicas) == (("a", "b"), None, ("d", "e"))
    assert event.removal == Removal(ORDERS, row.incarnation, ids("c"))
    (event,) = apply(catalog, reassign(catalog, "ab", ""))
    assert isinstance(event, ReplicasReassigned)
    assert (event.stream.read_replicas, event.stream.config.read_replicas) == ((), 0)


def test_a_move_of_the_replicas_leaves_the_read_replicas_where_they_are() -> None:
    catalog = cluster("ab", "cd")
    apply(catalog, reassign(catalog, "ae"))
    row = orders(catalog)
    assert (row.replicas, row.read_replicas, row.blank) == (("a", "b", "e"), ("c", "d"), ("e",))
    apply(catalog, CancelReassignment(ORDERS, row.incarnation))
    assert orders(catalog).read_replicas == ("c", "d")
    catalog.audit()


def test_a_read_replica_becomes_a_replica_if_both_is_said_and_keeps_its_files() -> None:
    catalog = cluster("ab", "cd")
    assert isinstance(refusal(apply(catalog, reassign(catalog, "ac"))), InvalidConfig)
    assert refusal(apply(catalog, reassign(catalog, "ac", "d"))) is None
    row = orders(catalog)
    assert (row.replicas, row.target, row.read_replicas) == (("a", "b", "c"), ("a", "c"), ("d",))
    assert not catalog.removals()
    catalog.audit()


def test_who_is_or_becomes_a_replica_cannot_be_a_read_replica() -> None:
    catalog = cluster("ab", "c")
    for target, read in (("ab", "b"), ("ae", "e"), ("ae", "b")):
        assert isinstance(refusal(apply(catalog, reassign(catalog, target, read))), InvalidConfig)
    apply(catalog, reassign(catalog, "ae"))
    assert isinstance(refusal(apply(catalog, resize("e"))), InvalidConfig)


def test_who_has_left_comes_back_after_its_files_are_gone_and_in_another_reign() -> None:
    """What it acknowledged of the log that it had must not count for the one it begins now."""
    catalog = cluster("ab", "c")
    before = orders(catalog)
    apply(catalog, resize(""))
    assert isinstance(refusal(apply(catalog, resize("c"))), RemovalPending)
    assert isinstance(refusal(apply(catalog, reassign(catalog, "abc"))), RemovalPending)
    apply(catalog, ConfirmRemoval(NodeId("c"), before.incarnation))
    assert refusal(apply(catalog, reassign(catalog, "abc"))) is None
    row = orders(catalog)
    assert (row.leader, row.leader_epoch, row.departed) == ("a", before.leader_epoch + 1, ())


def test_a_node_with_a_read_replica_is_in_use_and_removes_it_with_the_stream() -> None:
    catalog = cluster("ab", "c")
    assert isinstance(refusal(apply(catalog, ForgetNode(NodeId("c")))), NodeInUse)
    (event,) = apply(catalog, DeleteStream(ORDERS))
    assert isinstance(event, StreamDeleted)
    assert event.removal.pending == ids("abc")
    assert refusal(apply(catalog, ForgetNode(NodeId("c")))) is None
    assert removed(catalog) == {Incarnation(event.removal.incarnation): ids("ab")}


# --- what was written before sync: always ---------------------------------------------------------------


def test_who_wrote_before_sync_became_always_may_still_lose_it() -> None:
    catalog = catalog_of(
        *(register(node) for node in "abc"), create("orders", nodes="abc", read_replicas="", sync="os")
    )
    apply(catalog, update("orders", sync="always"))
    assert orders(catalog).unsynced == ("a", "b", "c")
    apply(catalog, register("b"))
    assert orders(catalog).isr_nodes == ("a", "c"), "it was not started since"
    assert orders(catalog).unsynced == ("a", "c")
    apply(catalog, register("c", unsynced_kept=True))
    assert orders(catalog).isr_nodes == ("a", "c")
    apply(catalog, register("c"))
    assert orders(catalog).isr_nodes == ("a", "c"), "what it counts since its start is synced"

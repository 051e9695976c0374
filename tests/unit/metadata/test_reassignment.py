"""How replicas move from node to node in the catalogue."""

from collections.abc import Sequence
from dataclasses import replace

import pytest

from envelope.errors import (
    Fenced,
    InvalidConfig,
    JetstreamError,
    LimitReached,
    NodeInUse,
    RemovalPending,
    UnknownNode,
    UnknownStream,
)
from envelope.types import Incarnation, NodeEpoch, NodeId, StreamName
from metadata.catalog import tables
from metadata.catalog.catalog import Catalog
from metadata.catalog.commands import (
    CancelReassignment,
    ChangeIsr,
    ChangeLeader,
    ConfirmRemoval,
    DeleteStream,
    FinishReassignment,
    ForgetNode,
    NodeAtEpoch,
    ReassignReplicas,
)
from metadata.catalog.events import NodeForgotten, ReplicasReassigned, StreamDeleted
from metadata.catalog.tables import Stream
from tests.support.catalogs import apply, catalog_of, create, refusal, register, update

ORDERS = StreamName("orders")


def cluster(nodes: str = "ab", min_insync_replicas: int | None = None) -> Catalog:
    """Five nodes, and a stream on some of them."""
    stream = create("orders", nodes=nodes, min_insync_replicas=min_insync_replicas)
    return catalog_of(*(register(node) for node in "abcde"), stream)


def orders(catalog: Catalog) -> Stream:
    row = catalog.stream(ORDERS)
    assert row is not None
    return row


def reassign(catalog: Catalog, target: Sequence[str], **changes: str) -> ReassignReplicas:
    life = Incarnation(changes.get("incarnation", orders(catalog).incarnation))
    return ReassignReplicas(ORDERS, life, tuple(NodeId(node) for node in target))


def cancel(catalog: Catalog) -> CancelReassignment:
    return CancelReassignment(ORDERS, orders(catalog).incarnation)


def finish(catalog: Catalog) -> FinishReassignment:
    row = orders(catalog)
    return FinishReassignment(ORDERS, row.incarnation, row.isr_version, row.leader_epoch)


def done(catalog: Catalog, command: ReassignReplicas | FinishReassignment | CancelReassignment) -> Stream:
    """Apply a command that is accepted; return the row after it."""
    event = apply(catalog, command)[0]
    assert isinstance(event, ReplicasReassigned), event
    assert event.stream == orders(catalog)
    catalog.audit()
    return event.stream


def join(catalog: Catalog, *members: str) -> None:
    """Put an ISR in force, as the leader proposes it."""
    row = orders(catalog)
    assert row.leader is not None
    isr = tuple(NodeAtEpoch(NodeId(node), _epoch(catalog, node)) for node in members)
    command = ChangeIsr(
        stream=ORDERS,
        incarnation=row.incarnation,
        leader=row.leader,
        leader_epoch=row.leader_epoch,
        expected_isr_version=row.isr_version,
        isr=isr,
    )
    assert refusal(apply(catalog, command)) is None


def elect(catalog: Catalog, leader: str) -> None:
    row = orders(catalog)
    command = ChangeLeader(ORDERS, row.incarnation, NodeId(leader), _epoch(catalog, leader), row.leader_epoch)
    assert refusal(apply(catalog, command)) is None


def _epoch(catalog: Catalog, node: str) -> NodeEpoch:
    row = catalog.node(NodeId(node))
    assert row is not None
    return row.node_epoch


def owed(catalog: Catalog) -> dict[str, tuple[str, ...]]:
    return {removal.incarnation: removal.pending for removal in catalog.removals()}


def test_a_reassignment_adds_replicas_and_takes_none_away() -> None:
    catalog = cluster()
    before = orders(catalog)
    row = done(catalog, reassign(catalog, "cb"))
    assert (row.replicas, row.target) == (("a", "b", "c"), ("c", "b"))
    assert (row.isr, row.leader, row.leader_epoch) == (before.isr, "a", before.leader_epoch)
    assert row.isr_version == before.isr_version + 1, "what was proposed about other replicas is void"
    assert row.config.replicas == 2
    assert not owed(catalog)


def test_it_ends_when_all_of_the_target_is_in_sync_and_one_of_it_leads() -> None:
    catalog = cluster()
    done(catalog, reassign(catalog, "cd"))
    assert isinstance(refusal(apply(catalog, finish(catalog))), InvalidConfig)
    join(catalog, "a", "b", "c")
    assert isinstance(refusal(apply(catalog, finish(catalog))), InvalidConfig), "d is not in sync"
    join(catalog, "a", "c", "d")
    assert isinstance(refusal(apply(catalog, finish(catalog))), InvalidConfig), "a leads"
    elect(catalog, "d")
    version = orders(catalog).isr_version
    row = done(catalog, finish(catalog))
    assert (row.replicas, row.isr_nodes, row.target) == (("c", "d"), ("c", "d"), None)
    assert (row.leader, row.isr_version) == ("d", version + 1)
    assert owed(catalog) == {row.incarnation: ("a", "b")}
    assert [removal.pending for removal in catalog.removals(NodeId("b"))] == [("a", "b")]


def test_the_number_of_replicas_changes_with_the_target_and_its_majority_too() -> None:
    catalog = cluster("a")
    assert done(catalog, reassign(catalog, "abc")).config.insync_minimum == 1
    join(catalog, "a", "b", "c")
    row = done(catalog, finish(catalog))
    assert (row.config.replicas, row.config.insync_minimum) == (3, 2)
    done(catalog, reassign(catalog, "a"))
    row = done(catalog, finish(catalog))
    assert (row.config.replicas, row.config.insync_minimum, row.isr_nodes) == (1, 1, ("a",))


def test_the_same_nodes_in_another_order_only_prefer_another_leader() -> None:
    catalog = cluster()
    done(catalog, reassign(catalog, "ba"))
    row = done(catalog, finish(catalog))
    assert (row.replicas, row.isr_nodes, row.leader) == (("b", "a"), ("b", "a"), "a")
    assert not owed(catalog)


def test_where_it_is_already_nothing_changes() -> None:
    catalog = cluster()
    before = orders(catalog)
    assert done(catalog, reassign(catalog, "ab")) == before


def test_a_cancelled_one_goes_back_and_those_that_were_added_leave() -> None:
    catalog = cluster()
    before = orders(catalog)
    done(catalog, reassign(catalog, "cd"))
    join(catalog, "a", "b", "c")
    row = done(catalog, cancel(catalog))
    assert (row.replicas, row.isr, row.target) == (before.replicas, before.isr, None)
    assert (row.leader, row.leader_epoch) == (before.leader, before.leader_epoch)
    assert owed(catalog) == {row.incarnation: ("c", "d")}
    assert isinstance(refusal(apply(catalog, cancel(catalog))), InvalidConfig)


def test_cancelled_under_a_leader_that_was_added_another_is_to_be_elected() -> None:
    catalog = cluster()
    done(catalog, reassign(catalog, "cd"))
    join(catalog, "a", "c")
    elect(catalog, "c")
    row = done(catalog, cancel(catalog))
    assert (row.leader, row.isr_nodes) == (None, ("a",))
    assert [command.leader for command in catalog.due_elections()] == ["a"]


def test_the_last_replica_in_sync_does_not_leave() -> None:
    catalog = cluster("a")
    done(catalog, reassign(catalog, "b"))
    join(catalog, "a", "b")
    elect(catalog, "b")
    join(catalog, "b")
    before = orders(catalog)
    assert isinstance(refusal(apply(catalog, cancel(catalog))), InvalidConfig)
    assert isinstance(refusal(apply(catalog, reassign(catalog, "c"))), InvalidConfig)
    assert orders(catalog) == before


def test_a_member_that_has_lost_its_disk_is_no_reason_to_let_the_others_go() -> None:
    catalog = cluster("a")
    done(catalog, reassign(catalog, "b"))
    join(catalog, "a", "b")
    elect(catalog, "b")
    join(catalog, "b")
    apply(catalog, register("b", "another disk"))
    assert isinstance(refusal(apply(catalog, cancel(catalog))), InvalidConfig)


def test_another_target_replaces_the_first_one() -> None:
    catalog = cluster()
    done(catalog, reassign(catalog, "cd"))
    row = done(catalog, reassign(catalog, "de"))
    assert (row.replicas, row.target) == (("a", "b", "d", "e"), ("d", "e"))
    assert owed(catalog) == {row.incarnation: ("c",)}
    row = done(catalog, reassign(catalog, "ab"))
    assert (row.replicas, row.target) == (("a", "b"), None)
    assert owed(catalog) == {row.incarnation: ("c", "d", "e")}


def test_a_node_takes_no_replica_before_its_former_one_is_removed() -> None:
    catalog = cluster()
    done(catalog, reassign(catalog, "ac"))
    row = done(catalog, cancel(catalog))
    assert isinstance(refusal(apply(catalog, reassign(catalog, "ac"))), RemovalPending)
    apply(catalog, ConfirmRemoval(NodeId("c"), row.incarnation))
    assert done(catalog, reassign(catalog, "ac")).replicas == ("a", "b", "c")


def test_a_node_that_comes_back_in_the_reign_in_which_it_left_begins_another_reign() -> None:
    """What it acknowledged of the log that it has removed may still be under way to the leader."""
    catalog = cluster()
    epoch = orders(catalog).leader_epoch
    done(catalog, reassign(catalog, "ac"))
    row = done(catalog, cancel(catalog))
    assert row.departed == ("c",)
    apply(catalog, ConfirmRemoval(NodeId("c"), row.incarnation))
    assert done(catalog, reassign(catalog, "ad")).leader_epoch == epoch, "d never was here"
    row = done(catalog, reassign(catalog, "ac"))
    assert (row.leader, row.leader_epoch, row.departed) == ("a", epoch + 1, ("d",))
    elect(catalog, "b")
    assert orders(catalog).departed == (), "a new reign fences everything that was said before"


@pytest.mark.parametrize(
    ("target", "error"),
    [
        ("", InvalidConfig),
        ("cc", InvalidConfig),
        ("cx", UnknownNode),
        ("c", InvalidConfig),
        ([str(number) for number in range(16)], InvalidConfig),
    ],
)
def test_a_target_that_cannot_be_is_refused(target: Sequence[str], error: type[JetstreamError]) -> None:
    catalog = cluster(min_insync_replicas=2)
    before = orders(catalog)
    assert type(refusal(apply(catalog, reassign(catalog, target)))) is error
    assert orders(catalog) == before


def test_a_command_about_another_life_or_an_old_version_is_refused() -> None:
    catalog = cluster()
    gone = reassign(catalog, "ac", incarnation="other")
    assert isinstance(refusal(apply(catalog, gone)), UnknownStream)
    done(catalog, reassign(catalog, "ac"))
    stale = finish(catalog)
    join(catalog, "a", "b", "c")
    assert isinstance(refusal(apply(catalog, stale)), Fenced)
    stale = finish(catalog)
    elect(catalog, "c")
    assert isinstance(refusal(apply(catalog, stale)), Fenced)


def test_a_move_that_was_decided_on_an_older_row_is_refused() -> None:
    catalog = cluster()
    decided = replace(reassign(catalog, "abc"), expected_isr_version=orders(catalog).isr_version)
    done(catalog, reassign(catalog, "ad"))
    before = orders(catalog)
    assert isinstance(refusal(apply(catalog, decided)), Fenced)
    assert orders(catalog) == before
    assert done(catalog, replace(decided, expected_isr_version=before.isr_version)).target == ("a", "b", "c")


def test_min_insync_replicas_must_fit_what_it_is_moved_to() -> None:
    catalog = cluster("abc")
    done(catalog, reassign(catalog, "ab"))
    assert isinstance(refusal(apply(catalog, update("orders", min_insync_replicas=3))), InvalidConfig)
    assert refusal(apply(catalog, update("orders", min_insync_replicas=2))) is None
    row = done(catalog, finish(catalog))
    assert (row.config.replicas, row.config.insync_minimum) == (2, 2)


def test_a_stream_that_is_deleted_owes_the_removal_of_all_that_ever_held_it() -> None:
    catalog = cluster()
    done(catalog, reassign(catalog, "cd"))
    done(catalog, reassign(catalog, "ae"))
    event = apply(catalog, DeleteStream(ORDERS))[0]
    catalog.audit()
    assert isinstance(event, StreamDeleted)
    assert sorted(event.removal.pending) == ["a", "b", "c", "d", "e"]


def test_removals_that_are_owed_are_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tables, "REMOVALS_MAX", 0)
    catalog = cluster()
    done(catalog, reassign(catalog, "ac"))
    assert isinstance(refusal(apply(catalog, cancel(catalog))), LimitReached)
    assert orders(catalog).target == ("a", "c")


def test_a_node_is_forgotten_once_it_holds_nothing_and_nothing_of_it_is_waited_for() -> None:
    catalog = cluster()
    assert isinstance(refusal(apply(catalog, ForgetNode(NodeId("x")))), UnknownNode)
    done(catalog, reassign(catalog, "ac"))
    in_use = refusal(apply(catalog, ForgetNode(NodeId("c"))))
    assert isinstance(in_use, NodeInUse)
    assert in_use.detail == {"node_id": "c", "replicas": 1}
    done(catalog, cancel(catalog))
    assert isinstance(apply(catalog, ForgetNode(NodeId("c")))[0], NodeForgotten)
    catalog.audit()
    assert catalog.node(NodeId("c")) is None
    assert not owed(catalog)

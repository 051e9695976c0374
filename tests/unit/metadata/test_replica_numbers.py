"""How an update makes more or fewer replicas, and how many a new stream has where nobody says it."""

from dataclasses import replace
from typing import Final

import pytest

from envelope.errors import InvalidConfig, JetstreamError, ReassignmentUnderWay, RemovalPending, UnknownNode
from envelope.namespace_errors import NamespaceLimitReached
from envelope.types import NodeEpoch, NodeId, StreamName
from metadata.catalog.catalog import Catalog
from metadata.catalog.commands import (
    CancelReassignment,
    ChangeIsr,
    Command,
    FinishReassignment,
    NodeAtEpoch,
    ReassignReplicas,
    SetDefaultReplicas,
    UpdateStream,
)
from metadata.catalog.events import ClusterChanged, StreamUpdated
from metadata.catalog.holders import wanted_replicas
from metadata.catalog.tables import ClusterRow, Stream
from metadata.features import LATEST_LEVEL
from metadata.partitioning import refuse_changes_beyond_limits
from metadata.stream_patch import StreamPatch, with_default_replicas
from tests.support.catalogs import (
    apply,
    catalog_of,
    create,
    limit_namespace,
    partition,
    refusal,
    register,
    update,
)

ORDERS: Final = StreamName("orders")


def cluster(nodes: str, read_replicas: str = "", minimum: int | None = None) -> Catalog:
    """Five nodes, and a stream on some of them."""
    stream = create("orders", nodes=nodes, read_replicas=read_replicas, min_insync_replicas=minimum)
    return catalog_of(*(register(node) for node in "abcde"), stream)


def placed(nodes: str | None, name: str = "orders", /, **changes: object) -> UpdateStream:
    """An update whose replicas are placed on these nodes."""
    return replace(
        update(name, **changes), replicas=None if nodes is None else tuple(NodeId(node) for node in nodes)
    )


def orders(catalog: Catalog) -> Stream:
    row = catalog.stream(ORDERS)
    assert row is not None
    return row


def done(catalog: Catalog, command: Command) -> Stream:
    """Apply a command that is accepted; return the row after it."""
    events = apply(catalog, command)
    assert refusal(events) is None, events
    catalog.audit()
    return orders(catalog)


def join(catalog: Catalog, members: str) -> Stream:
    """Put an ISR in force, as the leader proposes it."""
    row = orders(catalog)
    assert row.leader is not None
    isr = tuple(NodeAtEpoch(NodeId(node), NodeEpoch(1)) for node in members)
    return done(
        catalog,
        ChangeIsr(
            stream=ORDERS,
            incarnation=row.incarnation,
            leader=row.leader,
            leader_epoch=row.leader_epoch,
            expected_isr_version=row.isr_version,
            isr=isr,
        ),
    )


def finish(catalog: Catalog) -> Stream:
    row = orders(catalog)
    return done(catalog, FinishReassignment(ORDERS, row.incarnation, row.isr_version, row.leader_epoch))


def test_more_replicas_are_a_reassignment_that_adds_them() -> None:
    catalog = cluster("a")
    before = orders(catalog)
    events = apply(catalog, placed("abc", replicas=3, labels={"x": "y"}))
    row = orders(catalog)
    assert events == (StreamUpdated(row, before),)
    assert (row.replicas, row.target, row.isr) == (("a", "b", "c"), ("a", "b", "c"), before.isr)
    assert (row.config.replicas, row.config.labels) == (1, {"x": "y"})
    assert (row.leader, row.leader_epoch) == (before.leader, before.leader_epoch)
    assert row.isr_version == before.isr_version + 1, "what was proposed about other replicas is void"
    join(catalog, "abc")
    row = finish(catalog)
    assert (row.replicas, row.target, row.config.replicas) == (("a", "b", "c"), None, 3)


def test_fewer_replicas_leave_at_the_end() -> None:
    catalog = cluster("abc")
    row = done(catalog, placed("b", replicas=1))
    assert (row.replicas, row.target, row.config.replicas) == (("a", "b", "c"), ("b",), 3)
    assert not catalog.removals()


def test_it_is_cancelled_like_any_reassignment() -> None:
    catalog = cluster("a")
    done(catalog, placed("ab", replicas=2))
    row = done(catalog, CancelReassignment(ORDERS, orders(catalog).incarnation))
    assert (row.replicas, row.target, row.config.replicas) == (("a",), None, 1)
    assert isinstance(refusal(apply(catalog, placed("ab", replicas=2))), RemovalPending)


def test_the_present_number_changes_nothing_whatever_else_is_said() -> None:
    catalog = cluster("ab")
    before = orders(catalog)
    assert done(catalog, update(replicas=2)) == before
    assert done(catalog, placed("cd", replicas=2)) == before, "a move to as many ended meanwhile"
    whole = before.config.model_dump(mode="json")
    assert done(catalog, update("orders", **whole)) == before


def test_during_a_move_both_numbers_change_nothing_and_a_third_is_refused() -> None:
    catalog = cluster("a")
    moving = done(catalog, placed("abc", replicas=3))
    for number in (1, 3):
        row = done(catalog, update(replicas=number, labels={"n": str(number)}))
        config = moving.config.model_copy(update={"labels": {"n": str(number)}})
        assert row == replace(moving, config=config)
    refused = refusal(apply(catalog, placed("ab", replicas=2, labels={"n": "2"})))
    assert isinstance(refused, ReassignmentUnderWay)
    assert "wait for the end, or cancel" in refused.description
    assert orders(catalog).config.labels == {"n": "3"}
    exchanged = done(cluster("ab"), ReassignReplicas(ORDERS, moving.incarnation, (NodeId("c"), NodeId("d"))))
    assert wanted_replicas(exchanged, StreamPatch.model_validate({"replicas": 2})) is None


@pytest.mark.parametrize(
    ("changes", "to", "error", "words"),
    [
        ({"replicas": 3}, None, ReassignmentUnderWay, "was moved while nodes were looked for: ask again"),
        ({"replicas": 3}, "ab", InvalidConfig, "replicas: 3 wanted, 2 nodes to hold them"),
        ({"replicas": 3}, "abb", InvalidConfig, "replicas: 3 wanted, 2 nodes to hold them"),
        ({"replicas": 3}, "abbc", InvalidConfig, "different nodes are wanted"),
        ({"replicas": 3}, "abx", UnknownNode, "node 'x' is not registered"),
        ({"replicas": 3}, "abe", InvalidConfig, "'e' is a replica, or is to be one, and cannot be both"),
        ({"replicas": 1}, "a", InvalidConfig, "replicas: 1 are fewer than min_insync_replicas: 2"),
        ({"replicas": 3, "min_insync_replicas": 3}, "abc", InvalidConfig, "set it then"),
        (
            {"replicas": 3, "min_insync_replicas": 4},
            "abc",
            InvalidConfig,
            "min_insync_replicas: 4 is more than",
        ),
        ({"replicas": None}, None, InvalidConfig, "replicas: a number is wanted"),
    ],
)
def test_a_number_that_cannot_be_is_refused_and_nothing_changes(
    changes: dict[str, object], to: str | None, error: type[JetstreamError], words: str
) -> None:
    catalog = cluster("ab", "e", 2)
    before = orders(catalog)
    refused = refusal(apply(catalog, placed(to, **changes, labels={"x": "y"})))
    assert type(refused) is error
    assert words in refused.description
    assert orders(catalog) == before


def test_fewer_replicas_and_a_lower_minimum_come_together() -> None:
    catalog = cluster("abc", minimum=2)
    row = done(catalog, placed("a", replicas=1, min_insync_replicas=1))
    assert (row.target, row.config.min_insync_replicas) == (("a",), 1)
    row = finish(catalog)
    assert (row.config.replicas, row.config.insync_minimum) == (1, 1)


def test_a_read_replica_becomes_a_replica_and_keeps_its_log() -> None:
    catalog = cluster("a", "b")
    command = replace(placed("ab", replicas=2, read_replicas=0), read_replicas=())
    row = done(catalog, command)
    assert (row.replicas, row.read_replicas, row.blank) == (("a", "b"), (), ("b",))
    assert not catalog.removals(), "it stays a holder"


def test_more_replicas_reserve_more_of_a_namespace() -> None:
    catalog = catalog_of(
        *(register(node) for node in "abc"),
        create("shop/orders", nodes="a", retention={"bytes": 1 << 20}, segment_bytes=1 << 20),
        limit_namespace("shop", bytes=4 << 20),
    )
    refused = refusal(apply(catalog, placed("abc", "shop/orders", replicas=3)))
    assert isinstance(refused, NamespaceLimitReached)
    assert refused.detail["more"] == 4 << 20
    assert refusal(apply(catalog, placed("ab", "shop/orders", replicas=2))) is None
    assert catalog.namespaces.uses.of("shop").bytes == 4 << 20


def test_partitions_that_grow_together_are_counted_together() -> None:
    catalog = catalog_of(
        *(register(node) for node in "abc"),
        *(
            partition(
                "shop/orders", number, 2, nodes="a", retention={"bytes": 1 << 20}, segment_bytes=1 << 20
            )
            for number in range(2)
        ),
        limit_namespace("shop", bytes=7 << 20),
        SetDefaultReplicas(2),
    )
    rows = catalog.partition_rows("shop/orders")
    for number in (2, None):
        with pytest.raises(NamespaceLimitReached):
            refuse_changes_beyond_limits(rows, StreamPatch.model_validate({"replicas": number}), catalog)
    refuse_changes_beyond_limits(rows, StreamPatch.model_validate({"replicas": 1}), catalog)


def test_null_is_the_default_and_nothing_else_of_a_patch_changes() -> None:
    patch = StreamPatch.model_validate({"replicas": None, "labels": {"x": None}})
    resolved = with_default_replicas(patch, 3)
    assert (resolved.replicas, resolved.labels) == (3, {"x": None})
    assert resolved.model_fields_set == {"replicas", "labels"}
    for other in ({}, {"replicas": 2}):
        said = StreamPatch.model_validate(other)
        assert with_default_replicas(said, 3) is said


def test_the_default_is_one_until_it_is_set() -> None:
    catalog = catalog_of(register("a"))
    assert catalog.cluster.default_replicas == 1
    row = ClusterRow(feature_level=LATEST_LEVEL, default_replicas=3)
    assert apply(catalog, SetDefaultReplicas(3)) == (ClusterChanged(row),)
    assert catalog.cluster.default_replicas == 3
    for number in (0, 16):
        assert isinstance(refusal(apply(catalog, SetDefaultReplicas(number))), InvalidConfig)
    assert catalog.cluster.default_replicas == 3
    assert refusal(apply(catalog, create("x", nodes="a"))) is None, "a command says how many"

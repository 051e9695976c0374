"""Limits of namespaces in the catalogue: what they count, what they refuse, and what they let be."""

import json
from collections.abc import Sequence
from dataclasses import replace

import pytest

from envelope.errors import JetstreamError, LimitReached
from envelope.namespace_errors import (
    CreationsTooFast,
    NamespaceLimitReached,
    RetentionBytesRequired,
    SubjectNotAllowed,
)
from envelope.types import Incarnation, LeaderEpoch, NodeId, Offset, StreamName, TimestampUs
from metadata.catalog import snapshot
from metadata.catalog.catalog import Catalog
from metadata.catalog.commands import (
    CancelReassignment,
    Command,
    CreateStream,
    DeleteStream,
    ReassignReplicas,
)
from metadata.catalog.events import NamespaceLimited
from metadata.catalog.tables import TierMark
from metadata.limits import NAMESPACES_MAX
from metadata.namespaces import EVERYWHERE, NamespaceLimits, NamespaceUse
from tests.support.catalogs import (
    CREATED,
    apply,
    catalog_of,
    create,
    limit_namespace,
    partition,
    refusal,
    register,
    update,
)

MIB = 1 << 20
SECOND = 1_000_000


def refused_by(catalog: Catalog, command: Command) -> JetstreamError | None:
    """The refusal of ``command``, after which the catalogue is whole."""
    error = refusal(apply(catalog, command))
    catalog.audit()
    return error


def kept(
    name: str, incarnation: str | None = None, *, nodes: Sequence[str] = ("n1",), read: Sequence[str] = ()
) -> CreateStream:
    """A creation of a stream that reserves 10 MiB for each copy."""
    return create(
        name, incarnation, nodes, read, begun=True, retention={"bytes": 8 * MIB}, segment_bytes=2 * MIB
    )


def at(seconds: float, creation: CreateStream) -> CreateStream:
    """A creation so many seconds after `CREATED`."""
    return replace(creation, created=TimestampUs(CREATED + round(seconds * SECOND)))


def test_a_stream_counts_in_all_its_namespaces_and_in_the_cluster() -> None:
    catalog = catalog_of(register(), kept("shop/eu/a"), create("shop/b"), create("c"))
    uses = catalog.namespaces.uses
    assert uses.of("shop/eu") == NamespaceUse(1, 10 * MIB)
    assert uses.of("shop") == NamespaceUse(2, 10 * MIB)
    assert uses.of(EVERYWHERE) == NamespaceUse(3, 10 * MIB)
    assert uses.of("c") == uses.of("sho") == NamespaceUse()
    apply(catalog, DeleteStream(StreamName("shop/eu/a")))
    assert sorted(uses.names()) == [EVERYWHERE, "shop"]
    catalog.audit()


def test_the_systems_own_streams_are_in_no_namespace() -> None:
    catalog = catalog_of(
        register(), limit_namespace(EVERYWHERE, streams=0), limit_namespace("__cursors", streams=0)
    )
    assert refused_by(catalog, create("__cursors")) is None
    assert refused_by(catalog, create("__cursors/3")) is None
    assert catalog.namespaces.uses.names() == []


def test_a_limit_of_streams_refuses_one_more_and_says_the_numbers() -> None:
    catalog = catalog_of(
        register(), limit_namespace("shop", streams=2), create("shop/a"), create("shop/eu/b")
    )
    error = refused_by(catalog, create("shop/c"))
    assert isinstance(error, NamespaceLimitReached)
    assert not error.retriable
    assert error.detail == {"namespace": "shop", "field": "streams", "more": 1, "used": 2, "limit": 2}
    assert refused_by(catalog, create("shopping")) is None
    assert refused_by(catalog, create("shop/a")) is None, "it is found"
    apply(catalog, DeleteStream(StreamName("shop/a")))
    assert refused_by(catalog, create("shop/c")) is None


def test_each_partition_is_a_stream_that_counts() -> None:
    catalog = catalog_of(register(), limit_namespace("shop", streams=3))
    for number in range(3):
        assert refused_by(catalog, partition("shop/orders", number)) is None
    assert isinstance(refused_by(catalog, partition("shop/orders", 3)), NamespaceLimitReached)


def test_the_narrowest_limit_of_nested_namespaces_decides() -> None:
    catalog = catalog_of(
        register(), limit_namespace("shop", streams=1), limit_namespace("shop/eu", streams=9)
    )
    assert refused_by(catalog, create("shop/eu/a")) is None
    error = refused_by(catalog, create("shop/eu/b"))
    assert error is not None
    assert error.detail["namespace"] == "shop"


def test_streams_above_a_new_limit_stay_and_can_be_changed() -> None:
    catalog = catalog_of(register(), kept("shop/a"), kept("shop/b"))
    apply(catalog, limit_namespace("shop", streams=1, bytes=5 * MIB, subjects=["other.>"]))
    assert len(catalog.streams()) == 2
    assert refused_by(catalog, update("shop/a", labels={"x": "1"}, retention={"bytes": 4 * MIB})) is None
    assert isinstance(
        refused_by(catalog, update("shop/a", retention={"bytes": 5 * MIB})), NamespaceLimitReached
    )


def test_bytes_are_reserved_for_every_copy_with_a_segment_more() -> None:
    nodes = [register(node) for node in ("n1", "n2", "n3")]
    catalog = catalog_of(*nodes, limit_namespace("shop", bytes=45 * MIB))
    assert refused_by(catalog, kept("shop/a", nodes=("n1", "n2"), read=("n3",))) is None
    error = refused_by(catalog, kept("shop/b", nodes=("n1", "n2")))
    assert isinstance(error, NamespaceLimitReached)
    assert (error.detail["used"], error.detail["more"]) == (30 * MIB, 20 * MIB)
    assert refused_by(catalog, kept("shop/b")) is None
    assert isinstance(refused_by(catalog, update("shop/b", segment_bytes=9 * MIB)), NamespaceLimitReached)
    for change in (update("shop/b", read_replicas=1), update("shop/b", read_replicas=1, labels={"x": "1"})):
        more = replace(change, read_replicas=(NodeId("n2"),))
        assert isinstance(refused_by(catalog, more), NamespaceLimitReached)
    assert refused_by(catalog, replace(update("shop/a", read_replicas=0), read_replicas=())) is None
    assert (
        refused_by(catalog, replace(update("shop/b", read_replicas=1), read_replicas=(NodeId("n2"),))) is None
    )


def test_where_bytes_are_limited_every_stream_must_say_how_many_it_keeps() -> None:
    catalog = catalog_of(register(), limit_namespace("shop", bytes=100 * MIB), kept("shop/a"))
    for command in (create("shop/b"), update("shop/a", retention={"bytes": None})):
        assert isinstance(refused_by(catalog, command), RetentionBytesRequired)


def test_bytes_are_not_limited_while_a_stream_may_keep_any_number_of_them() -> None:
    catalog = catalog_of(register(), create("shop/z"), create("shop/b"), kept("shop/a"), create("c"))
    error = refused_by(catalog, limit_namespace("shop", bytes=100 * MIB))
    assert isinstance(error, RetentionBytesRequired)
    assert error.detail == {"stream": "shop/b", "streams": 2}
    for name in ("shop/b", "shop/z"):
        apply(catalog, update(name, retention={"bytes": MIB}))
    assert refused_by(catalog, limit_namespace("shop", bytes=100 * MIB)) is None
    assert isinstance(
        refused_by(catalog, limit_namespace(EVERYWHERE, bytes=100 * MIB)), RetentionBytesRequired
    )


def test_a_move_to_more_copies_reserves_for_them_from_its_beginning() -> None:
    """Otherwise it could not be finished once others have taken the room."""
    nodes = [register(node) for node in ("n1", "n2", "n3")]
    catalog = catalog_of(*nodes, limit_namespace("shop", bytes=35 * MIB))
    life = Incarnation("life")
    apply(catalog, kept("shop/a", "life"))

    def move(*targets: str) -> JetstreamError | None:
        target = tuple(map(NodeId, targets))
        return refused_by(catalog, ReassignReplicas(StreamName("shop/a"), life, target))

    assert move("n2") is None, "as many copies as before"
    assert move("n2", "n3") is None
    assert catalog.namespaces.uses.of("shop").bytes == 20 * MIB
    assert refused_by(catalog, kept("shop/b")) is None
    assert isinstance(move("n1", "n2", "n3"), NamespaceLimitReached)
    assert refused_by(catalog, CancelReassignment(StreamName("shop/a"), life)) is None
    assert catalog.namespaces.uses.of("shop").bytes == 20 * MIB
    assert catalog.namespaces.uses.of("shop").streams == 2


def test_a_stream_binds_only_what_lies_within_an_allowed_pattern() -> None:
    catalog = catalog_of(register(), limit_namespace("shop", subjects=["shop.>", "orders.*"]))
    assert refused_by(catalog, create("shop/a", subject="shop.eu.>")) is None
    assert refused_by(catalog, create("shop/b", subject="orders.*")) is None
    for subject in (">", "*.eu", "shop", "orders.>", "orders.a.b"):
        error = refused_by(catalog, create("shop/c", subject=subject, ack="none"))
        assert isinstance(error, SubjectNotAllowed), subject
        assert error.status == 403
    assert isinstance(refused_by(catalog, update("shop/a", subject="pay.>")), SubjectNotAllowed)
    assert refused_by(catalog, update("shop/a", subject="orders.7")) is None
    assert refused_by(catalog, create("c", subject="pay.>")) is None


def test_as_many_streams_as_a_minute_allows_come_at_once_and_then_one_each_share_of_it() -> None:
    catalog = catalog_of(register(), limit_namespace("shop", creations_per_minute=3))
    for number in range(3):
        assert refused_by(catalog, at(0, create(f"shop/{number}"))) is None
    error = refused_by(catalog, at(5, create("shop/a")))
    assert isinstance(error, CreationsTooFast)
    assert error.retriable
    assert error.detail == {"namespace": "shop", "retry_after_ms": 15_000}
    assert isinstance(refused_by(catalog, at(19.9, create("shop/a"))), CreationsTooFast)
    assert refused_by(catalog, at(20, create("shop/a"))) is None
    assert isinstance(refused_by(catalog, at(39.9, create("shop/b"))), CreationsTooFast)
    assert refused_by(catalog, at(0, create("shop/0"))) is None, "it is found, and not created"
    for number in range(3, 6):
        assert refused_by(catalog, at(600, create(f"shop/{number}"))) is None


def test_a_stream_that_is_restored_is_held_to_the_limits_as_a_new_one() -> None:
    catalog = catalog_of(register(), limit_namespace("shop", streams=1, subjects=["shop.>"]))
    mark = TierMark(1, Offset(0), Offset(9))
    back = replace(create("shop/a"), tier=mark, leader_epoch=LeaderEpoch(7))
    other = create("shop/b", subject="pay.>")
    assert isinstance(refused_by(catalog, replace(other, tier=mark)), SubjectNotAllowed)
    assert refused_by(catalog, back) is None
    assert isinstance(refused_by(catalog, replace(create("shop/b"), tier=mark)), NamespaceLimitReached)


def test_deleting_gives_no_creation_back() -> None:
    catalog = catalog_of(register(), limit_namespace("shop", creations_per_minute=1), create("shop/a"))
    apply(catalog, DeleteStream(StreamName("shop/a")))
    assert isinstance(refused_by(catalog, at(1, create("shop/b"))), CreationsTooFast)


def test_what_was_refused_for_another_reason_counts_as_no_creation() -> None:
    catalog = catalog_of(register(), limit_namespace("shop", creations_per_minute=1, subjects=["shop.>"]))
    assert isinstance(refused_by(catalog, create("shop/a", subject="b")), SubjectNotAllowed)
    assert refused_by(catalog, create("shop/a")) is None


@pytest.mark.parametrize("hours", [1, 24 * 365])
def test_a_clock_that_goes_back_locks_nobody_out(hours: int) -> None:
    catalog = catalog_of(register(), limit_namespace("shop", creations_per_minute=2))
    assert refused_by(catalog, at(hours * 3600, create("shop/a"))) is None
    assert refused_by(catalog, at(hours * 3600, create("shop/b"))) is None
    for number in range(2):
        assert refused_by(catalog, at(0, create(f"shop/{number}"))) is None
    assert isinstance(refused_by(catalog, at(1, create("shop/c"))), CreationsTooFast)


def test_a_clock_that_goes_back_a_little_gives_no_creation_more_and_the_wait_is_bounded() -> None:
    catalog = catalog_of(register(), limit_namespace("shop", creations_per_minute=2))
    assert refused_by(catalog, at(30, create("shop/a"))) is None
    assert refused_by(catalog, at(30, create("shop/b"))) is None
    error = refused_by(catalog, at(0, create("shop/c")))
    assert isinstance(error, CreationsTooFast)
    assert error.detail["retry_after_ms"] == 60_000


def test_the_limits_of_a_namespace_are_merged_and_end_with_the_last() -> None:
    catalog = catalog_of(register())
    (event,) = apply(catalog, limit_namespace("shop", streams=3, subjects=["a", "b.>"]))
    assert event == NamespaceLimited("shop", NamespaceLimits(streams=3, subjects=("a", "b.>")))
    apply(catalog, limit_namespace("shop", bytes=5, streams=None))
    assert catalog.namespaces.limits_of("shop") == NamespaceLimits(bytes=5, subjects=("a", "b.>"))
    (event,) = apply(catalog, limit_namespace("shop", bytes=None, subjects=None))
    assert event == NamespaceLimited("shop", NamespaceLimits())
    assert catalog.namespaces.rows == {}
    assert refused_by(catalog, limit_namespace("none", streams=None)) is None


def test_there_is_a_limit_of_limited_namespaces() -> None:
    catalog = Catalog()
    for number in range(NAMESPACES_MAX):
        apply(catalog, limit_namespace(f"n{number}", streams=1))
    assert isinstance(refused_by(catalog, limit_namespace("more", streams=1)), LimitReached)
    assert refused_by(catalog, limit_namespace("n7", streams=2)) is None
    assert refused_by(catalog, limit_namespace("more", streams=None)) is None


def test_a_snapshot_keeps_limits_and_the_creations_that_were_counted() -> None:
    catalog = catalog_of(
        register(),
        limit_namespace("shop", streams=5, bytes=99 * MIB, creations_per_minute=1, subjects=["shop.>"]),
        limit_namespace(EVERYWHERE, streams=7),
        kept("shop/a"),
    )
    restored = snapshot.decode(snapshot.encode(catalog))
    assert restored.namespaces == catalog.namespaces
    assert snapshot.encode(restored) == snapshot.encode(catalog)
    assert isinstance(refused_by(restored, at(1, kept("shop/b"))), CreationsTooFast)
    body = json.loads(snapshot.encode(catalog)[snapshot.HEADER_BYTES :])
    assert [row["name"] for row in body["namespaces"]] == ["", "shop"]

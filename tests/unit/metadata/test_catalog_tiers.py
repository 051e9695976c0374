"""The catalogue's marks of what is in the object store."""

from dataclasses import replace

import pytest

from envelope.errors import Fenced, InvalidConfig, JetstreamError, UnknownStream
from envelope.types import Incarnation, LeaderEpoch, NodeEpoch, NodeId, Offset, StreamName
from metadata.catalog import snapshot
from metadata.catalog.catalog import Catalog
from metadata.catalog.commands import (
    AdvanceTier,
    ChangeLeader,
    ConfirmRemoval,
    DeleteStream,
    decode_command,
    encode_command,
)
from metadata.catalog.events import StreamDeleted
from metadata.catalog.tables import TierMark
from tests.support.catalogs import apply, catalog_of, create, refusal, register

NAME = StreamName("orders")


def mark(version: int, start: int = 0, end: int = 0) -> TierMark:
    return TierMark(
        version=version,
        start=Offset(start),
        end=Offset(end),
        last_epoch=LeaderEpoch(1),
        last_txid=None,
        manifest=f"m{version}",
    )


def advance(catalog: Catalog, wanted: TierMark, **changes: object) -> JetstreamError | None:
    row = catalog.stream(NAME)
    incarnation = row.incarnation if row is not None else Incarnation("x")
    command = AdvanceTier(NAME, incarnation, NodeId("n1"), LeaderEpoch(1), wanted)
    command = replace(command, **changes)  # type: ignore[arg-type]  # one of its fields
    assert decode_command(encode_command(command), catalog.applied) == command
    refused = refusal(apply(catalog, command))
    catalog.audit()
    return refused


@pytest.fixture
def catalog() -> Catalog:
    return catalog_of(register(), create())


def current(catalog: Catalog) -> TierMark | None:
    row = catalog.stream(NAME)
    assert row is not None
    return row.tier


def test_marks_follow_each_other_by_version(catalog: Catalog) -> None:
    assert isinstance(advance(catalog, mark(2)), Fenced)
    assert advance(catalog, mark(1)) is None
    assert isinstance(advance(catalog, mark(1)), Fenced)
    assert advance(catalog, mark(2, 3, 9)) is None
    assert current(catalog) == mark(2, 3, 9)
    restored = snapshot.decode(snapshot.encode(catalog))
    assert current(restored) == mark(2, 3, 9)


def test_who_does_not_lead_in_that_reign_marks_nothing(catalog: Catalog) -> None:
    assert isinstance(advance(catalog, mark(1), leader=NodeId("n2")), Fenced)
    row = catalog.stream(NAME)
    assert row is not None
    apply(catalog, ChangeLeader(NAME, row.incarnation, NodeId("n1"), NodeEpoch(1), LeaderEpoch(1)))
    assert isinstance(advance(catalog, mark(1)), Fenced)
    assert advance(catalog, mark(1), leader_epoch=LeaderEpoch(2)) is None
    assert isinstance(advance(catalog, mark(2), incarnation=Incarnation("earlier")), UnknownStream)


@pytest.mark.parametrize(("start", "end"), [(2, 9), (3, 8)])
def test_a_mark_does_not_go_back(catalog: Catalog, start: int, end: int) -> None:
    assert advance(catalog, mark(1, 3, 9)) is None
    assert isinstance(advance(catalog, mark(2, start, end)), InvalidConfig)
    assert current(catalog) == mark(1, 3, 9)


def test_a_mark_that_is_no_range_is_refused(catalog: Catalog) -> None:
    assert isinstance(advance(catalog, mark(1, 3, 2)), InvalidConfig)
    assert isinstance(advance(catalog, mark(1, -1, 2)), InvalidConfig)
    assert current(catalog) is None


def test_a_stream_that_goes_on_from_a_mark_begins_above_its_epochs() -> None:
    catalog = catalog_of(register(), replace(create(), tier=mark(7, 2, 50), leader_epoch=LeaderEpoch(9)))
    row = catalog.stream(NAME)
    assert row is not None
    assert (row.tier, row.leader_epoch) == (mark(7, 2, 50), 9)
    other = catalog_of(register())
    assert isinstance(refusal(apply(other, replace(create(), tier=mark(0)))), InvalidConfig)
    assert isinstance(refusal(apply(other, replace(create(), leader_epoch=LeaderEpoch(0)))), InvalidConfig)


@pytest.mark.parametrize("is_tiered", [False, True])
def test_only_a_removal_of_a_deleted_stream_takes_its_objects(catalog: Catalog, *, is_tiered: bool) -> None:
    if is_tiered:
        assert advance(catalog, mark(1)) is None
    deleted = apply(catalog, DeleteStream(NAME))[0]
    assert isinstance(deleted, StreamDeleted)
    assert deleted.removal.is_tiered is is_tiered
    restored = snapshot.decode(snapshot.encode(catalog))
    assert restored.removals() == catalog.removals()
    apply(catalog, ConfirmRemoval(NodeId("n1"), deleted.removal.incarnation))
    assert catalog.removals() == ()

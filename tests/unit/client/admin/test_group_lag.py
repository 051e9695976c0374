"""How far a group is behind, and where a reset puts its cursors."""

from datetime import UTC, datetime, timedelta, timezone

import pytest
from hypothesis import given
from hypothesis import strategies as st

from envelope.errors import OffsetOutOfRange, RequestError, UnknownStream
from envelope.types import Offset
from jetstream.client.admin.group_lag import (
    CommittedRange,
    CursorReset,
    CursorStatus,
    PartitionName,
    Target,
    lag_of,
    streams_of,
)
from metadata.api.group_responses import GroupCursor, GroupInfo, GroupMember, OwnedPartitions
from metadata.api.responses import DedupeInfo, ReplicaInfo, StreamInfo
from metadata.stream_config import StreamConfig

MOMENT = datetime(2026, 3, 1, 12, tzinfo=UTC)
ORDERS, CLICKS = PartitionName("orders", 0), PartitionName("clicks", 0)


def cursor(offset: int, name: PartitionName = ORDERS, incarnation: str | None = "life") -> GroupCursor:
    stream, partition = name
    return GroupCursor(
        stream=stream, partition=partition, offset=offset, incarnation=incarnation, committed_at=MOMENT
    )


def member(name: str, *owned: OwnedPartitions, gives_up: tuple[OwnedPartitions, ...] = ()) -> GroupMember:
    return GroupMember(
        member=name,
        client=f"client-of-{name}",
        streams=["orders"],
        session_timeout_ms=1,
        rebalance_timeout_ms=1,
        owned=list(owned),
        gives_up=list(gives_up),
    )


def group(*cursors: GroupCursor, members: tuple[GroupMember, ...] = ()) -> GroupInfo:
    return GroupInfo(
        group="billing",
        shard="__cursors/2",
        coordinator="n1",
        generation=1,
        assignor="sticky",
        members=list(members),
        cursors=list(cursors),
        total=len(cursors) + len(members),
        offset=0,
    )


def stream(start: int, end: int, *, is_led: bool = True) -> StreamInfo:
    return StreamInfo(
        config=StreamConfig(name="orders", subject="orders.>"),
        incarnation="life",
        created_at=MOMENT,
        state="online" if is_led else "offline",
        replica_states=[ReplicaInfo(node="n1", in_sync=True)] if is_led else [],
        leader="n1",
        leader_epoch=1,
        replicas=["n1"],
        isr=["n1"],
        log_start_offset=start,
        log_end_offset=end + 5,
        high_watermark=end,
        bytes=0,
        segments=1,
        dedupe=DedupeInfo(ids=0, effective_window=timedelta(0)),
    )


# --- lag --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("stored", "log", "standing", "lag"),
    [
        (cursor(42), stream(10, 100), CursorStatus.CURRENT, 58),
        (cursor(42, incarnation=None), stream(10, 100), CursorStatus.CURRENT, 58),
        (cursor(10), stream(10, 100), CursorStatus.CURRENT, 90),
        (cursor(100), stream(10, 100), CursorStatus.CURRENT, 0),
        (cursor(0), stream(0, 0), CursorStatus.CURRENT, 0),
        (None, stream(10, 100), CursorStatus.NONE, 90),
        (cursor(9), stream(10, 100), CursorStatus.EXPIRED, 90),
        (cursor(101), stream(10, 100), CursorStatus.AHEAD, 0),
        (cursor(42, incarnation="before"), stream(10, 100), CursorStatus.RECREATED, 90),
        (cursor(42), stream(10, 100, is_led=False), CursorStatus.OFFLINE, None),
        (cursor(42), None, CursorStatus.NO_STREAM, None),
    ],
    ids=lambda value: value.value if isinstance(value, CursorStatus) else "",
)
def test_the_lag_is_what_is_committed_and_not_read(
    stored: GroupCursor | None, log: StreamInfo | None, standing: CursorStatus, lag: int | None
) -> None:
    found = lag_of(group(*([stored] if stored else [])), {ORDERS: log} if log else {})
    [partition] = found.partitions
    assert (partition.standing, partition.lag) == (standing, lag)
    assert partition.cursor == (None if stored is None else stored.offset)
    assert partition.committed_at == (None if stored is None else MOMENT)
    assert (found.total, found.unknown) == (lag or 0, int(lag is None))
    nobody_can_tell = standing in (CursorStatus.OFFLINE, CursorStatus.NO_STREAM)
    assert (partition.high_watermark is None) == (partition.log_start_offset is None) == nobody_can_tell


def test_every_partition_is_told_once_with_its_owner_and_the_sum() -> None:
    """What exists, what is owned, and what has a cursor: in the order of streams and partitions."""
    parts = [PartitionName("orders", number) for number in range(3)]
    owned = OwnedPartitions(stream="orders", partitions=[(0, 1), (3, 2)])
    leaving = OwnedPartitions(stream="orders", partitions=[(1, 1)])
    known = group(
        cursor(5, PartitionName("gone", 0)),
        cursor(40, parts[0]),
        cursor(7, parts[2]),
        members=(member("a", owned), member("b", gives_up=(leaving,))),
    )
    found = lag_of(known, dict.fromkeys(parts, stream(0, 100)))
    told = [(each.stream, each.partition, each.lag, each.member, each.client) for each in found.partitions]
    assert told == [
        ("gone", 0, None, None, None),
        ("orders", 0, 60, "a", "client-of-a"),
        ("orders", 1, 100, "b", "client-of-b"),
        ("orders", 2, 93, None, None),
        ("orders", 3, None, "a", "client-of-a"),
    ]
    assert (found.total, found.unknown) == (253, 2)
    assert streams_of(known) == ["gone", "orders"]


# --- reset ------------------------------------------------------------------------------------------------

RANGE = CommittedRange(Offset(10), Offset(100), "life")


@pytest.mark.parametrize(
    ("wanted", "after"),
    [
        (CursorReset("earliest"), 10),
        (CursorReset("latest"), 100),
        (CursorReset(10), 10),
        (CursorReset(100), 100),
        (CursorReset(MOMENT), 10),
        (CursorReset(timedelta(hours=-1)), 10),
        (CursorReset(by=0), 42),
        (CursorReset(by=8), 50),
        (CursorReset(by=-2), 40),
        (CursorReset(by=1_000), 100),
        (CursorReset(by=-1_000), 10),
    ],
)
def test_a_cursor_is_put_where_it_is_wanted(wanted: CursorReset, after: int) -> None:
    move = wanted.validated().put(ORDERS, cursor(42), RANGE)
    assert (move.stream, move.partition, move.before, move.after) == ("orders", 0, 42, after)
    assert move.incarnation == "life"


@given(st.integers(0, 1 << 62), st.integers(-(1 << 62), 1 << 62), st.integers(0, 99), st.integers(0, 99))
def test_a_shifted_cursor_is_within_the_log(offset: int, by: int, start: int, length: int) -> None:
    log = CommittedRange(Offset(start), Offset(start + length), "life")
    after = CursorReset(by=by).put(ORDERS, cursor(offset), log).after
    assert start <= after <= start + length
    assert after in (offset + by, start, start + length)


@pytest.mark.parametrize("offset", [9, 101])
def test_an_offset_that_a_partition_has_not_got_is_refused(offset: int) -> None:
    with pytest.raises(OffsetOutOfRange) as refusal:
        CursorReset(offset).put(ORDERS, cursor(42), RANGE)
    assert refusal.value.detail == {"log_start_offset": 10, "high_watermark": 100}


@pytest.mark.parametrize("stored", [None, cursor(42, incarnation="before")])
def test_nothing_is_shifted_from_nowhere(stored: GroupCursor | None) -> None:
    with pytest.raises(RequestError, match="no cursor that could be moved by -1"):
        CursorReset(by=-1).put(ORDERS, stored, RANGE)
    assert CursorReset("latest").put(ORDERS, stored, RANGE).before is None


def test_the_range_begins_at_the_moment_that_is_meant() -> None:
    assert CursorReset(MOMENT).range_start(MOMENT) == MOMENT
    assert CursorReset(timedelta(hours=-1)).range_start(MOMENT) == MOMENT - timedelta(hours=1)
    assert CursorReset(42).range_start(MOMENT) == CursorReset(by=1).range_start(MOMENT) == "earliest"


@pytest.mark.parametrize(
    "wanted",
    [
        CursorReset(),
        CursorReset("latest", by=1),
        CursorReset(0, by=0),
        CursorReset(-1),
        CursorReset(True),
        CursorReset(datetime(2026, 1, 1)),  # noqa: DTZ001 - the point
        CursorReset(timedelta(seconds=1)),
        CursorReset("earliest", partitions=[0]),
        CursorReset("earliest", streams=["a", "b"], partitions=[0]),
    ],
)
def test_what_cannot_be_meant_is_refused(wanted: CursorReset) -> None:
    with pytest.raises(RequestError):
        wanted.validated()


@pytest.mark.parametrize("to", ["first", 1.5, b"latest"])
def test_a_target_that_is_none_is_refused(to: Target) -> None:
    with pytest.raises(RequestError, match="is neither an offset"):
        CursorReset(to).validated()


def test_a_moment_in_any_time_zone_is_one() -> None:
    moment = datetime(2026, 1, 1, tzinfo=timezone(timedelta(hours=2)))
    assert CursorReset(moment).validated().range_start(MOMENT) == moment


def test_without_a_name_all_streams_of_the_group_are_meant() -> None:
    known = group(cursor(1, CLICKS), members=(member("a"),))
    assert CursorReset("latest").streams_of(known) == ["clicks", "orders"]
    assert CursorReset("latest", streams=["x", "x"]).streams_of(known) == ["x"]
    assert CursorReset("latest", streams=["x"]).streams_of(None) == ["x"]


def test_partitions_that_exist_are_moved_and_by_some_offsets_only_cursors_that_are_there() -> None:
    found = [ORDERS, CLICKS, PartitionName("orders", 1)]
    assert CursorReset("latest").selected(found, {}) == sorted(found)
    assert CursorReset(by=1).selected(found, {CLICKS, PartitionName("gone", 0)}) == [CLICKS]
    named = CursorReset(by=1, streams=["orders"], partitions=[1, 1])
    assert named.selected(found, {CLICKS}) == [PartitionName("orders", 1)]


def test_what_is_named_and_not_there_is_refused_and_so_is_nothing_at_all() -> None:
    with pytest.raises(UnknownStream, match="no stream 'y'"):
        CursorReset("latest", streams=["orders", "y"]).selected([ORDERS], {})
    with pytest.raises(UnknownStream, match="no partition 1 of 'orders'"):
        CursorReset("latest", streams=["orders"], partitions=[0, 1]).selected([ORDERS], {})
    with pytest.raises(RequestError, match="name the streams"):
        CursorReset("latest").selected([], {ORDERS})
    with pytest.raises(RequestError, match="name the streams"):
        CursorReset(by=1).selected([ORDERS], {})

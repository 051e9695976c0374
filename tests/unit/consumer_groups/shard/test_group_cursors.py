"""The keys and values of a shard's records: what is written is what the format says; what else is told."""

import pytest

from consumer_groups.assignment.partitions import Generation, GroupName, Partition
from consumer_groups.coordinator.events import NewCursor
from consumer_groups.coordinator.group_state import GroupState
from consumer_groups.cursors import CURSOR_OFFSET_MAX, CursorPosition
from consumer_groups.shard.group_table import GroupTable
from consumer_groups.shard.records import (
    GroupCursorRecord,
    GroupKey,
    StoredGroup,
    StoredGroupCursor,
    cursor_key,
    cursor_record,
    group_key,
    read_group_key,
    read_group_record,
    state_record,
)
from envelope.errors import CorruptDataError, InvalidCursor, InvalidName
from envelope.limits import CURSOR_METADATA_BYTES_MAX
from envelope.types import Offset, StreamName, TimestampUs
from tests.support.group_coordination import Group

NOW = TimestampUs(1_700_000_000_000_000)
READERS = GroupName("readers")


def partition(stream: str, number: int = 0) -> Partition:
    return Partition(StreamName(stream), number)


ORDERS = partition("orders", 2)


def cursor(place: CursorPosition, where: Partition = ORDERS) -> NewCursor:
    return NewCursor(where, place)


def two_members() -> GroupState:
    group = Group()
    group.join("a")
    group.join("b")
    return group.state


def filled(*values: tuple[bytes, bytes | None]) -> GroupTable:
    """Return the table after these records."""
    table = GroupTable()
    for at, (key, value) in enumerate(values):
        record = read_group_record(key, value, Offset(at), NOW)
        assert record is not None
        table.replay([record], Offset(at + 1))
    return table


# --- keys -------------------------------------------------------------------------------------------------


def test_keys_of_names_with_namespaces_are_told_apart() -> None:
    assert group_key(GroupName("shop/billing")) == b"group/shop.billing"
    assert cursor_key(GroupName("a/b"), partition("c")) == b"group/a.b/c/0"
    assert cursor_key(GroupName("a"), partition("b/c", 17)) == b"group/a/b.c/17"


@pytest.mark.parametrize("name", ["", "a.b", "a//b", "/a", "a b", "\ud800", "g" * 256, "*", "\u0663"])
def test_names_outside_the_grammar_have_no_key(name: str) -> None:
    with pytest.raises(InvalidName, match="group's name"):
        group_key(GroupName(name))
    with pytest.raises(InvalidName):
        cursor_key(READERS, partition(name))


@pytest.mark.parametrize("number", [-1, 100_000, 10**30])
def test_numbers_that_no_partition_can_have_have_no_key(number: int) -> None:
    with pytest.raises(InvalidCursor, match="partition"):
        cursor_key(READERS, partition("orders", number))


@pytest.mark.parametrize(
    "key",
    [
        b"",
        b"group",
        b"group/",
        b"group//orders/0",
        b"group/a/orders",
        b"group/a/orders/",
        b"group/a/orders/-1",
        b"group/a/orders/01",
        b"group/a/orders/1_0",
        b"group/a/orders/100000",
        b"group/a/orders/" + b"9" * 5000,
        "group/a/orders/\u0663".encode(),
        b"group/a/orders/0/1",
        b"group/a..b",
        b"group/\xff",
        b"groups/a",
        b"plain/a/b",
        b"plain/a/orders/0",
    ],
)
def test_other_keys_are_of_no_group(key: bytes) -> None:
    assert read_group_key(key) is None
    assert read_group_record(key, b'{"v":1,"offset":42,"generation":1}', Offset(0), NOW) is None


# --- values -----------------------------------------------------------------------------------------------


def test_a_cursor_is_stored_as_its_format_says() -> None:
    record = cursor_record(READERS, cursor(CursorPosition(42, "1f0c-9", "\u00e9")), Generation(7))
    assert record.key == b"group/readers/orders/2"
    expected = '{"v":1,"offset":42,"incarnation":"1f0c-9","metadata":"\u00e9","generation":7}'
    assert record.value == expected.encode()
    assert (
        cursor_record(READERS, cursor(CursorPosition(0)), Generation(1)).value
        == b'{"v":1,"offset":0,"generation":1}'
    )


@pytest.mark.parametrize(
    "place",
    [
        CursorPosition(-1),
        CursorPosition(CURSOR_OFFSET_MAX + 1),
        CursorPosition(1, "a b"),
        CursorPosition(1, metadata="x" * (CURSOR_METADATA_BYTES_MAX + 1)),
        CursorPosition(1, metadata="\ud800"),
    ],
)
def test_a_cursor_out_of_its_ranges_is_not_stored(place: CursorPosition) -> None:
    with pytest.raises(InvalidCursor):
        cursor_record(READERS, cursor(place), Generation(1))


def test_a_stored_cursor_says_when_it_was_taken_and_what_a_newer_version_added_is_passed_over() -> None:
    value = b'{"v":1,"offset":42,"generation":7,"colour":"red"}'
    found = read_group_record(b"group/readers/orders/2", value, Offset(5), NOW)
    expected = GroupCursorRecord(
        partition=ORDERS,
        offset=42,
        incarnation=None,
        metadata=None,
        generation=Generation(7),
        committed_at=NOW,
    )
    assert found == StoredGroupCursor(GroupKey(READERS, ORDERS), Offset(5), expected)


@pytest.mark.parametrize(
    "value",
    [
        b"",
        b"42",
        b'{"v":2,"offset":42,"generation":7}',
        b'{"v":1,"offset":42}',
        b'{"v":1,"offset":42,"generation":-1}',
        b'{"v":1,"offset":42,"generation":true}',
        b'{"v":1,"offset":42,"generation":"7"}',
        b'{"v":1,"offset":-1,"generation":7}',
    ],
)
def test_a_cursor_that_cannot_be_read_hides_the_one_before_it_and_is_told(value: bytes) -> None:
    key = cursor_key(READERS, ORDERS)
    table = filled((key, b'{"v":1,"offset":7,"generation":1}'), (key, value))
    with pytest.raises(CorruptDataError, match=r"orders\[2\], at offset 1, cannot be read"):
        table.cursor(READERS, ORDERS)
    assert (table.cursors, table.unreadable, len(table)) == (0, 1, 1)
    assert table.partitions_of(READERS) == [ORDERS]
    table = filled((key, value), (key, b'{"v":1,"offset":9,"generation":1}'))
    found = table.cursor(READERS, ORDERS)
    assert found is not None
    assert (found.place, table.cursors, table.unreadable) == (CursorPosition(9), 1, 0)


def test_a_group_is_read_under_its_own_key_only() -> None:
    state = two_members()
    key, value = state_record(state)
    assert read_group_record(key, value, Offset(3), NOW) == StoredGroup(
        GroupKey(READERS, None), Offset(3), state
    )
    for wrong in ((b"group/other", value), (key, b"{}"), (key, b"[" * 100_000)):
        table = filled((key, value), wrong)
        with pytest.raises(CorruptDataError, match="cannot be read"):
            table.state(GroupName("other" if wrong[0] == b"group/other" else "readers"))


# --- the table --------------------------------------------------------------------------------------------


def test_what_has_neither_state_nor_cursor_is_not_there_any_more() -> None:
    state, place = (
        state_record(two_members()),
        cursor_record(READERS, cursor(CursorPosition(1)), Generation(1)),
    )
    table = filled(state, place)
    assert (len(table), table.members, table.cursors) == (1, 2, 1)
    table = filled(state, place, (state.key, None))
    assert (list(table), table.members, table.cursors) == ([READERS], 0, 1)
    assert table.state(READERS) is None
    table = filled(state, place, (state.key, None), (place.key, None))
    assert (list(table), table.members, table.cursors) == ([], 0, 0)


def test_the_group_that_is_empty_for_longest_is_known() -> None:
    table = GroupTable()
    for name in ("a", "b"):
        table.put_state(GroupName(name), GroupState(GroupName(name)))
    assert list(table.empty()) == ["a", "b"]
    kept = GroupCursorRecord(
        partition=ORDERS,
        offset=1,
        incarnation=None,
        metadata=None,
        generation=Generation(1),
        committed_at=NOW,
    )
    table.put_cursor(GroupName("a"), ORDERS, kept)
    assert list(table.empty()) == ["b"]
    table.put_cursor(GroupName("a"), ORDERS, None)
    assert list(table.empty()) == ["b", "a"]
    table.put_state(GroupName("b"), two_members())
    assert list(table.empty()) == ["a"]
    table.put_state(GroupName("a"), None)
    assert list(table.empty()) == []


def test_positions_are_told_with_what_is_owned_without_a_cursor_while_the_table_changes() -> None:
    table = filled(
        (b"group/a/orders/2", b'{"v":1,"offset":7,"generation":1}'),
        (b"group/a/orders/3", b'{"v":2}'),
        (b"group/b/orders/0", b'{"v":1,"offset":1,"generation":1}'),
    )
    group = Group(partitions=5)
    group.join("m")
    table.put_state(GroupName("a"), group.state)
    told = []
    for name, where, found in table.positions():
        told.append((name, where.number, None if found is None else found.offset))
        table.put_cursor(GroupName(f"new{len(told)}"), ORDERS, found)
        table.put_cursor(name, where, found)
    assert sorted(told, key=str) == [("a", 0, None), ("a", 1, None), ("a", 2, 7), ("a", 4, None), ("b", 0, 1)]


def test_no_record_of_a_shard_is_absorbed_twice() -> None:
    table = GroupTable()
    record = read_group_record(b"group/a/b/0", b'{"v":1,"offset":7,"generation":1}', Offset(4), NOW)
    assert record is not None
    table.replay([record], Offset(5))
    with pytest.raises(AssertionError, match="U1"):
        table.replay([record], Offset(6))
    with pytest.raises(AssertionError, match="U1"):
        table.replay([], Offset(4))

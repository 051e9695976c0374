"""A shard's records: what is written is read, whatever else lies in the log; the table against a model."""

from hypothesis import given
from hypothesis import strategies as st

from consumer_groups.assignment.partitions import Generation, GroupName, Partition
from consumer_groups.coordinator.events import NewCursor
from consumer_groups.coordinator.group_state import GroupState
from consumer_groups.cursors import CURSOR_OFFSET_MAX, CursorPosition
from consumer_groups.shard.group_table import GroupTable
from consumer_groups.shard.records import (
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
from envelope.errors import CorruptDataError
from envelope.types import Offset, StreamName, TimestampUs

NAMES = st.from_regex(
    r"[A-Za-z0-9_][A-Za-z0-9_\-]{0,3}(/[A-Za-z0-9_][A-Za-z0-9_\-]{0,3}){0,2}", fullmatch=True
)
GROUPS = st.sampled_from([GroupName(name) for name in ("a", "b", "a/b", "b/a")])
PARTITIONS = st.builds(Partition, st.sampled_from([StreamName("a"), StreamName("a/b")]), st.integers(0, 2))
PLACES = st.builds(
    CursorPosition,
    st.integers(0, CURSOR_OFFSET_MAX),
    st.none() | st.from_regex(r"[0-9a-f]{16}", fullmatch=True),
    st.none() | st.text(max_size=80),
)
CURSORS = st.builds(
    lambda group, where, place, generation: cursor_record(
        group, NewCursor(where, place), Generation(generation)
    ),
    *(GROUPS, PARTITIONS, PLACES, st.integers(0, 1 << 40)),
)
STATES = st.builds(
    lambda group, generation: state_record(GroupState(group, generation=Generation(generation))),
    GROUPS,
    st.integers(0, 9),
)
KEYS = st.one_of(
    st.builds(group_key, GROUPS),
    st.builds(cursor_key, GROUPS, PARTITIONS),
    st.none()
    | st.binary(max_size=8)
    | st.sampled_from((b"group/a/b", b"plain/a/b", b"group//", b"group/a/b/x")),
)
HOSTILE = st.one_of(
    st.none(),
    st.binary(max_size=12),
    st.sampled_from(
        (b'{"v":1,"offset":1}', b'{"v":2,"offset":1,"generation":1}', b"[" * 2000, b'{"version":1}')
    ),
)
RECORDS = st.tuples(CURSORS | STATES | st.tuples(KEYS, HOSTILE), st.integers(1, 3))


@given(NAMES, NAMES, st.integers(0, 99_999), NAMES, NAMES, st.integers(0, 99_999))
def test_a_key_is_that_of_one_group_and_one_partition(
    group: str, stream: str, number: int, other: str, other_stream: str, other_number: int
) -> None:
    one = GroupKey(GroupName(group), Partition(StreamName(stream), number))
    two = GroupKey(GroupName(other), Partition(StreamName(other_stream), other_number))
    keys = [cursor_key(key.group, key.partition) for key in (one, two) if key.partition is not None]
    assert [read_group_key(key) for key in keys] == [one, two]
    assert (keys[0] == keys[1]) == (one == two)
    assert read_group_key(group_key(one.group)) == GroupKey(one.group, None)
    assert group_key(one.group) not in keys


@given(
    st.binary(max_size=40) | st.text(max_size=40).map(lambda text: f"group/{text}".encode("utf-8", "ignore"))
)
def test_any_other_key_is_passed_over_or_is_what_it_says(key: bytes) -> None:
    found = read_group_key(key)
    if found is not None:
        assert key == (
            group_key(found.group) if found.partition is None else cursor_key(found.group, found.partition)
        )


@given(st.lists(RECORDS, max_size=40), st.integers(1, 10))
def test_the_table_is_the_last_record_of_each_key(
    records: list[tuple[tuple[bytes | None, bytes | None], int]], batch: int
) -> None:
    table = GroupTable()
    last: dict[GroupKey, StoredGroup | StoredGroupCursor] = {}
    waiting: list[StoredGroup | StoredGroupCursor] = []
    at = 0
    for (key, value), gap in records:
        at += gap  # compaction leaves gaps
        found = read_group_record(key, value, Offset(at), TimestampUs(1000 + at))
        assert (found is None) == (key is None or read_group_key(key) is None)
        if found is None:
            continue
        last[found.key] = found
        waiting.append(found)
        if len(waiting) >= batch:
            table.replay(waiting, Offset(at + 1))
            waiting = []
    table.replay(waiting, Offset(at + 1))
    check(table, last)


def check(table: GroupTable, last: dict[GroupKey, StoredGroup | StoredGroupCursor]) -> None:
    there = {
        key: record for key, record in last.items() if tells(record) is not None or not record.is_readable
    }
    assert set(table) == {key.group for key in there}
    assert len(table) == len(set(table))
    assert table.unreadable == sum(not record.is_readable for record in last.values())
    assert table.cursors == sum(key.partition is not None and there[key].is_readable for key in there)
    for group in table:
        named = sorted(key.partition for key in there if key.group == group and key.partition is not None)
        assert table.partitions_of(group) == named
        assert table.is_readable(group) == all(last[key].is_readable for key in last if key.group == group)
    for key, record in last.items():
        try:
            told = table.state(key.group) if key.partition is None else table.cursor(key.group, key.partition)
            assert record.is_readable
            assert told == tells(record)
        except CorruptDataError:
            assert not record.is_readable


def tells(record: StoredGroup | StoredGroupCursor) -> object:
    return record.state if isinstance(record, StoredGroup) else record.cursor

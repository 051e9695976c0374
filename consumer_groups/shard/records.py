"""The records of a shard: the groups that live there, and their cursors.

A shard is one of the internal streams ``__cursors/<n>``. The last record of a key counts:

- ``group/<group>``: the group's state (`group_json`); a tombstone: there is no such group.
- ``group/<group>/<stream>/<partition>``: the group's cursor, a place as in `cursors` with the generation
  that its committer had heard of. A tombstone: there is none. The record's timestamp is when it was taken.

Names are written as in the keys of plain cursors, with ``.`` for ``/``; the partition is a decimal number.
"""

from sys import intern
from typing import Final, NamedTuple

from consumer_groups.assignment.partitions import Generation, GroupName, Partition
from consumer_groups.coordinator.events import NewCursor
from consumer_groups.coordinator.group_state import GroupState
from consumer_groups.cursors import CursorPosition, as_part, decode_fields, encode_place, of_part
from consumer_groups.shard.group_json import from_json, to_json
from envelope.errors import CorruptDataError, InvalidCursor, InvalidName
from envelope.limits import STREAMS_MAX
from envelope.subjects import validated_stream_name
from envelope.types import Offset, StreamName, TimestampUs

_GROUP: Final = "group"


class GroupKey(NamedTuple):
    """Of what a record speaks."""

    group: GroupName
    partition: Partition | None
    """Whose cursor it is; None: it is the group itself."""


class GroupCursorRecord(NamedTuple):
    """Where a group reads on in one partition, as it is stored."""

    partition: Partition
    offset: int
    incarnation: str | None
    metadata: str | None
    generation: Generation
    """Which its committer had heard of."""
    committed_at: TimestampUs

    @property
    def place(self) -> CursorPosition:
        """Without whose it is, and since when."""
        return CursorPosition(self.offset, self.incarnation, self.metadata)


class GroupRecord(NamedTuple):
    """A record of a shard; without a value it is a tombstone."""

    key: bytes
    value: bytes | None


class StoredGroup(NamedTuple):
    """A group in a record of a shard."""

    key: GroupKey
    at: Offset
    state: GroupState | None
    """None: there is none any more, or none that this version can read."""
    is_readable: bool = True


class StoredGroupCursor(NamedTuple):
    """A cursor in a record of a shard."""

    key: GroupKey
    at: Offset
    cursor: GroupCursorRecord | None
    """None as with `StoredGroup`."""
    is_readable: bool = True


# --- keys ---------------------------------------------------------------------------------------------


def validated_group_name(name: str) -> GroupName:
    """Return ``name`` as a group's name: one in the grammar of stream names.

    Raises:
        InvalidName: it is none.
    """
    try:
        return GroupName(validated_stream_name(name))
    except InvalidName as error:
        raise InvalidName(f"the group's name: {error.description}") from None


def group_key(group: GroupName) -> bytes:
    """Return the key of a group's state; raises as `validated_group_name`."""
    return f"{_GROUP}/{as_part(validated_group_name(group))}".encode()


def cursor_key(group: GroupName, partition: Partition) -> bytes:
    """Return the key of a group's cursor in a partition.

    Raises:
        InvalidName: the group or the stream has a name outside the grammar of stream names.
        InvalidCursor: there can be no partition of that number.
    """
    stream = validated_stream_name(partition.stream)
    if not 0 <= partition.number < STREAMS_MAX:
        raise InvalidCursor(f"partition {partition.number}: a number from 0, below {STREAMS_MAX}")
    return group_key(group) + f"/{as_part(stream)}/{partition.number}".encode()


def read_group_key(key: bytes) -> GroupKey | None:
    """Return what `group_key` or `cursor_key` made ``key`` of; None if neither has made it."""
    try:
        kind, group, *rest = key.decode().split("/")
        found = GroupKey(GroupName(of_part(group)), _partition(rest) if rest else None)
        made = group_key(found.group) if found.partition is None else cursor_key(found.group, found.partition)
    except (ValueError, InvalidName, InvalidCursor):
        return None
    return found if kind == _GROUP and made == key else None


def _partition(parts: list[str]) -> Partition:
    stream, number = parts
    return Partition(StreamName(intern(of_part(stream))), int(number))


# --- values -------------------------------------------------------------------------------------------


def state_record(state: GroupState) -> GroupRecord:
    """Return the record that makes a group durable."""
    return GroupRecord(group_key(state.name), to_json(state))


def cursor_record(group: GroupName, cursor: NewCursor, generation: Generation) -> GroupRecord:
    """Return the record that makes a cursor durable; raises as `cursor_key` and `encode_place`."""
    return GroupRecord(cursor_key(group, cursor.partition), encode_place(cursor.place, generation=generation))


def stored(cursor: NewCursor, generation: Generation, committed_at: TimestampUs) -> GroupCursorRecord:
    """Return the cursor as it is stored by then; names that many cursors have are one object."""
    (stream, number), (offset, incarnation, metadata) = cursor
    partition = Partition(StreamName(intern(stream)), number)
    incarnation = None if incarnation is None else intern(incarnation)
    return GroupCursorRecord(
        partition=partition,
        offset=offset,
        incarnation=incarnation,
        metadata=metadata,
        generation=generation,
        committed_at=committed_at,
    )


def read_group_record(
    key: bytes | None, value: bytes | None, at: Offset, committed_at: TimestampUs
) -> StoredGroup | StoredGroupCursor | None:
    """Return what a record of a shard says; None if it is neither of a group nor of a group's cursor.

    It takes as long as a group is large; it may run on a thread of its own.
    """
    found = None if key is None else read_group_key(key)
    if found is None:
        return None
    if found.partition is None:
        return _read_state(found, value, at)
    return _read_cursor(found, found.partition, value, at, committed_at)


def _read_state(key: GroupKey, value: bytes | None, at: Offset) -> StoredGroup:
    if value is None:
        return StoredGroup(key, at, None)
    try:
        state = from_json(value)
    except CorruptDataError:
        return StoredGroup(key, at, None, is_readable=False)
    if state.name != key.group:
        return StoredGroup(key, at, None, is_readable=False)
    return StoredGroup(key, at, state)


def _read_cursor(
    key: GroupKey, partition: Partition, value: bytes | None, at: Offset, committed_at: TimestampUs
) -> StoredGroupCursor:
    if value is None:
        return StoredGroupCursor(key, at, None)
    try:
        place, fields = decode_fields(value)
    except InvalidCursor:
        return StoredGroupCursor(key, at, None, is_readable=False)
    generation = fields.get("generation")
    if not isinstance(generation, int) or isinstance(generation, bool) or generation < 0:
        return StoredGroupCursor(key, at, None, is_readable=False)
    cursor = stored(NewCursor(partition, place), Generation(generation), committed_at)
    return StoredGroupCursor(key, at, cursor)

"""The durable states and cursors of the groups of one shard.

`Changed` and `Deleted` are one write's effect on a group: its records, and the table's
new rows once it is committed.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

from consumer_groups.assignment.partitions import Generation, GroupName, Partition
from consumer_groups.coordinator.events import NewCursor
from consumer_groups.coordinator.group_state import GroupState
from consumer_groups.shard.records import (
    GroupCursorRecord,
    GroupKey,
    GroupRecord,
    StoredGroup,
    StoredGroupCursor,
    cursor_key,
    cursor_record,
    group_key,
    state_record,
    stored,
)
from envelope.errors import CorruptDataError
from envelope.types import NO_OFFSET, Offset, TimestampUs

_NONE: Final[Mapping[Partition, GroupCursorRecord]] = MappingProxyType({})


class GroupTable:
    """The groups as the records below `end` say; those are replayed in the order of their offsets.

    A value that this version cannot read hides the one before it, as compaction would remove that one.
    A request for it reports that. Once a `Shard` has the table, that one keeps it up to date. `CursorTable`'s
    invariant U1 holds here as well.
    """

    def __init__(self) -> None:
        """Know nothing yet."""
        self.end = NO_OFFSET
        """The offset after what was replayed."""
        self.members = 0
        """Of all groups."""
        self.cursors = 0
        """Of all groups, those that can be told."""
        self._states: dict[GroupName, GroupState] = {}
        self._cursors: dict[GroupName, dict[Partition, GroupCursorRecord]] = {}
        self._unreadable: dict[GroupName, dict[Partition | None, Offset]] = {}
        self._names: dict[GroupName, None] = {}
        self._empty: dict[GroupName, None] = {}

    def __len__(self) -> int:
        """Number of groups that have a state or a cursor, even if it cannot be read."""
        return len(self._names)

    def __contains__(self, group: GroupName) -> bool:
        return group in self._names

    def __iter__(self) -> Iterator[GroupName]:
        """Yield the names of these groups, in no order."""
        return iter(self._names)

    @property
    def unreadable(self) -> int:
        """Keys whose last value this version cannot read."""
        return sum(map(len, self._unreadable.values()))

    def empty(self) -> Iterator[GroupName]:
        """Yield the groups that have neither members nor cursors; first the one that is so for longest."""
        return iter(self._empty)

    def with_members(self) -> Iterator[GroupName]:
        """Yield the groups that have members."""
        return (group for group, state in self._states.items() if state.members)

    # --- asking ----------------------------------------------------------------------------------------

    def state(self, group: GroupName) -> GroupState | None:
        """Return a group's state; None if it has none.

        Raises:
            CorruptDataError: it was stored, but cannot be read.
        """
        self._refuse_unreadable(group, None)
        return self._states.get(group)

    def cursor(self, group: GroupName, partition: Partition) -> GroupCursorRecord | None:
        """Return a group's cursor in a partition, None if it has none; raises as `state`."""
        self._refuse_unreadable(group, partition)
        return self._cursors.get(group, _NONE).get(partition)

    def cursors_of(self, group: GroupName) -> Mapping[Partition, GroupCursorRecord]:
        """Return all cursors of a group that can be read; not to be kept."""
        return self._cursors.get(group, _NONE)

    def positions(self) -> Iterator[tuple[GroupName, Partition, GroupCursorRecord | None]]:
        """Yield every cursor that can be read, and None for every partition owned without one; in no order.

        The table may change between two of them.
        """
        for group in tuple(self._names):
            cursors, unreadable = self.cursors_of(group), self._unreadable.get(group, {})
            yield from [(group, partition, cursor) for partition, cursor in cursors.items()]
            state = self._states.get(group)
            for partition in () if state is None else state.grants:
                if partition not in cursors and partition not in unreadable:
                    yield group, partition, None

    def partitions_of(self, group: GroupName) -> list[Partition]:
        """Return where a group has a cursor, readable or not, in order."""
        hidden = (partition for partition in self._unreadable.get(group, {}) if partition is not None)
        return sorted({*self._cursors.get(group, _NONE), *hidden})

    def is_readable(self, group: GroupName) -> bool:
        """Return whether all that is stored of a group can be read."""
        return group not in self._unreadable

    def _refuse_unreadable(self, group: GroupName, partition: Partition | None) -> None:
        at = self._unreadable.get(group, {}).get(partition)
        if at is not None:
            what = (
                f"the state of group {group!r}" if partition is None else f"{group!r}'s cursor in {partition}"
            )
            raise CorruptDataError(f"{what}, at offset {at}, cannot be read", offset=at)

    # --- what becomes durable --------------------------------------------------------------------------

    def replay(self, records: Iterable[StoredGroup | StoredGroupCursor], end: Offset) -> None:
        """Take in the records of offsets from the present end to ``end``; the last one of each key is enough.

        They come in the order of their offsets.
        """
        assert end >= self.end, f"U1: {end} after {self.end}"
        previous = self.end - 1
        for record in records:
            assert previous < record.at < end, f"U1: {record.at} after {previous}, before {end}"
            previous = record.at
            if isinstance(record, StoredGroup):
                self.put_state(record.key.group, record.state)
            else:
                assert record.key.partition is not None, "a cursor is one of a partition"
                self.put_cursor(record.key.group, record.key.partition, record.cursor)
            if not record.is_readable:
                self._hide(record.key, record.at)
        self.end = end

    def put_state(self, group: GroupName, state: GroupState | None) -> None:
        """Take in that a group is so, or, with None, that it has no state."""
        before = self._states.pop(group, None)
        self.members += _members(state) - _members(before)
        if state is not None:
            self._states[group] = state
        self._show(group, None)
        self._look_at(group)

    def put_cursor(self, group: GroupName, partition: Partition, cursor: GroupCursorRecord | None) -> None:
        """Take in a group's cursor in a partition, or, with None, that it has none."""
        cursors = self._cursors.setdefault(group, {})
        self.cursors += (cursor is not None) - (cursors.pop(partition, None) is not None)
        if cursor is not None:
            cursors[cursor.partition] = cursor
        if not cursors:
            del self._cursors[group]
        self._show(group, partition)
        self._look_at(group)

    def _hide(self, key: GroupKey, at: Offset) -> None:
        self._unreadable.setdefault(key.group, {})[key.partition] = at
        self._look_at(key.group)

    def _show(self, group: GroupName, partition: Partition | None) -> None:
        if group in self._unreadable:
            self._unreadable[group].pop(partition, None)
            if not self._unreadable[group]:
                del self._unreadable[group]

    def _look_at(self, group: GroupName) -> None:
        state = self._states.get(group)
        has_more = group in self._cursors or group in self._unreadable
        if state is None and not has_more:
            self._names.pop(group, None)
        else:
            self._names[group] = None
        if state is None or state.members or has_more:
            self._empty.pop(group, None)
        else:
            self._empty.setdefault(group)


def _members(state: GroupState | None) -> int:
    return 0 if state is None else len(state.members)


@dataclass(frozen=True, slots=True)
class Changed:
    """The group has another state, other cursors, or both."""

    group: GroupName
    generation: Generation
    """Which those who commit had heard of."""
    state: GroupState | None = None
    """None: as before."""
    cursors: tuple[NewCursor, ...] = ()

    def records(self) -> tuple[GroupRecord, ...]:
        """Return what is to be written.

        Raises:
            InvalidName, InvalidCursor: a cursor is none.
        """
        states = () if self.state is None else (state_record(self.state),)
        return (*states, *(cursor_record(self.group, each, self.generation) for each in self.cursors))

    def apply(self, table: GroupTable, at: TimestampUs) -> None:
        """Take in that the records are committed."""
        if self.state is not None:
            table.put_state(self.group, self.state)
        for each in self.cursors:
            table.put_cursor(self.group, each.partition, stored(each, self.generation, at))


@dataclass(frozen=True, slots=True)
class Deleted:
    """Nothing is left of the group."""

    group: GroupName
    partitions: tuple[Partition, ...]
    """All those in which it has a cursor."""

    def records(self) -> tuple[GroupRecord, ...]:
        """Return what is to be written."""
        keys = (group_key(self.group), *(cursor_key(self.group, each) for each in self.partitions))
        return tuple(GroupRecord(key, None) for key in keys)

    def apply(self, table: GroupTable, at: TimestampUs) -> None:
        """Take in that the records are committed."""
        table.put_state(self.group, None)
        for each in self.partitions:
            table.put_cursor(self.group, each, None)


GroupChange = Changed | Deleted

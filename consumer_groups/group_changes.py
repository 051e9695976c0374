"""What one write changes in what is durable of a group: as records, and in the table once committed."""

from dataclasses import dataclass

from consumer_groups.group_cursors import (
    GroupRecord,
    NewCursor,
    cursor_key,
    cursor_record,
    group_key,
    state_record,
    stored,
)
from consumer_groups.group_state import GroupState
from consumer_groups.group_table import GroupTable
from consumer_groups.partitions import Generation, GroupName, Partition
from envelope.types import TimestampUs


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

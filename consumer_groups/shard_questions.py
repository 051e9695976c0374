"""What can be read of a shard: answers made of what is durable."""

from collections.abc import Iterable

from consumer_groups.group_state import GroupState
from consumer_groups.group_table import GroupTable
from consumer_groups.partitions import GroupName, Partition
from consumer_groups.shard_events import Cursors, GroupDescription, Groups, GroupSummary
from envelope.errors import CorruptDataError
from envelope.group_errors import UnknownGroup


def fetched(table: GroupTable, group: GroupName, partitions: Iterable[Partition]) -> Cursors:
    """Return the group's cursors in these partitions.

    Raises:
        CorruptDataError: one of them cannot be read.
    """
    found = (table.cursor(group, partition) for partition in partitions)
    return Cursors(tuple(cursor for cursor in found if cursor is not None))


def described(table: GroupTable, group: GroupName) -> GroupDescription:
    """Return all of one group.

    Raises:
        UnknownGroup: there is none of that name.
        CorruptDataError: its state, or one of its cursors, cannot be read.
    """
    if group not in table:
        raise UnknownGroup(f"there is no group {group!r}")
    state = table.state(group) or GroupState(group)
    return GroupDescription(state, fetched(table, group, table.partitions_of(group)).cursors)


def listed(table: GroupTable, prefix: str) -> Groups:
    """Return the groups whose names begin like that; one that cannot be read counts as empty."""
    return Groups(tuple(_summary(table, group) for group in sorted(table) if group.startswith(prefix)))


def _summary(table: GroupTable, group: GroupName) -> GroupSummary:
    try:
        state = table.state(group)
    except CorruptDataError:
        state = None
    state = state or GroupState(group)
    return GroupSummary(group, len(state.members), state.generation)

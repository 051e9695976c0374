"""Partitions of a consumer group, claims on them, and the subscribed members."""

from dataclasses import dataclass
from typing import NamedTuple, NewType

from envelope.types import NodeId, StreamName

GroupName = NewType("GroupName", str)
MemberId = NewType("MemberId", str)
"""One membership: a member that joins anew has another one."""

InstanceId = NewType("InstanceId", str)
"""Of a static member, chosen by its operator: the same before and after a restart."""

Generation = NewType("Generation", int)
"""Version of who is in a group and who owns what; 0 before the first member has joined."""


class Partition(NamedTuple):
    """A log of a partitioned stream; ``number`` counts from 0."""

    stream: StreamName
    number: int

    def __str__(self) -> str:
        """Return one word for logs."""
        return f"{self.stream}[{self.number}]"


class Claim(NamedTuple):
    """A partition that somebody has, with the generation in which it got it."""

    partition: Partition
    generation: Generation


class Holder(NamedTuple):
    """A node with a replica of a partition."""

    node: NodeId
    rack: str | None = None


@dataclass(frozen=True, slots=True)
class StreamPartitions:
    """The partitions of one stream."""

    stream: StreamName
    count: int
    holders: tuple[tuple[Holder, ...], ...] = ()
    """Of each partition, by its number; may be shorter than ``count`` where that is not known."""

    def holders_of(self, number: int) -> tuple[Holder, ...]:
        """Return the holders of one partition, as far as they are known."""
        return self.holders[number] if number < len(self.holders) else ()


@dataclass(frozen=True, slots=True)
class SubscribedMember:
    """A member as assignors see it."""

    member_id: MemberId
    streams: frozenset[StreamName]
    """What it wants to read; need not exist."""
    instance_id: InstanceId | None = None
    node: NodeId | None = None
    """The node that it would like to read from."""
    rack: str | None = None
    owned: tuple[Claim, ...] = ()
    """What it has now, or says that it has."""

    @property
    def order(self) -> tuple[bool, str, str]:
        """Where it stands among others: static members first, whose place does not change by a restart."""
        return (self.instance_id is None, self.instance_id or self.member_id, self.member_id)

    def nearness(self, holders: tuple[Holder, ...]) -> int:
        """Return 2 if a holder is on its node, 1 if one is in its rack, 0 otherwise."""
        if self.node is not None and any(holder.node == self.node for holder in holders):
            return 2
        return int(self.rack is not None and any(holder.rack == self.rack for holder in holders))

"""The state of one group, as it is made durable: values that do not change, and what holds for them."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import chain
from typing import Final, NamedTuple, NewType

from consumer_groups.assignment.assignors import Assignor
from consumer_groups.assignment.partitions import (
    Claim,
    Generation,
    GroupName,
    InstanceId,
    MemberId,
    Partition,
)
from envelope.types import NodeId, StreamName

ClientId = NewType("ClientId", str)
"""Which consumer asks: a name that it gave itself at its start, and that nobody else ever has."""

NO_GENERATION: Final = Generation(0)


@dataclass(frozen=True, slots=True)
class MemberState:
    """A member of a group; times in ns."""

    member_id: MemberId
    client: ClientId
    request: int
    """The newest of its client's joins that was taken in."""
    streams: frozenset[StreamName]
    """What it subscribes to."""
    session_timeout_ns: int
    rebalance_timeout_ns: int
    instance_id: InstanceId | None = None
    """Of a static member."""
    node: NodeId | None = None
    rack: str | None = None
    assigned: Generation = NO_GENERATION
    """When what it is to know of its partitions changed last."""

    @property
    def names_bytes(self) -> int:
        """The bytes of all its names."""
        words = (self.member_id, self.client, self.instance_id, self.node, self.rack)
        return sum(len(word.encode()) for word in chain(words, self.streams) if word is not None)


class Grant(NamedTuple):
    """The owner of a partition, and the generation since which it is."""

    member_id: MemberId
    generation: Generation


@dataclass(frozen=True, slots=True)
class Share:
    """The partitions of a member."""

    keeps: tuple[Claim, ...] = ()
    gives_up: tuple[Claim, ...] = ()
    """It owns these until it says that it has given them up: others are to have them."""


@dataclass(frozen=True, slots=True)
class GroupState:
    """A group in one generation.

    Invariants:
        G1: a partition has at most one owner in a generation; a new owner is so since the generation that
            begins then.
        G5: whatever somebody is to own is owned by somebody: it lies idle for no one.
        G6: an instance id has one member at most, and so has a client; a client that is gone has none.
    """

    name: GroupName
    assignor: Assignor = Assignor.STICKY
    generation: Generation = NO_GENERATION
    members: Mapping[MemberId, MemberState] = field(default_factory=dict)
    streams: Mapping[StreamName, int] = field(default_factory=dict)
    """How many partitions those streams have that exist and that members subscribe to or own something of."""
    grants: Mapping[Partition, Grant] = field(default_factory=dict)
    """G1: one owner each; ordered by partition."""
    target: Mapping[Partition, MemberId] = field(default_factory=dict)
    """Who is to own what; ordered by partition."""
    gone: Mapping[ClientId, int] = field(default_factory=dict)
    """The newest request of clients whose members are gone; the oldest first."""

    def shares(self) -> dict[MemberId, Share]:
        """Return what every member owns, ordered by partition."""
        keeps: dict[MemberId, list[Claim]] = {member: [] for member in self.members}
        gives_up: dict[MemberId, list[Claim]] = {member: [] for member in self.members}
        for partition, (owner, generation) in self.grants.items():
            side = keeps if self.target.get(partition) == owner else gives_up
            side[owner].append(Claim(partition, generation))
        return {member: Share(tuple(keeps[member]), tuple(gives_up[member])) for member in self.members}

    def of_instance(self, instance_id: InstanceId | None) -> MemberState | None:
        """Return the static member of that instance."""
        if instance_id is None:
            return None
        return next((one for one in self.members.values() if one.instance_id == instance_id), None)

    def of_client(self, client: ClientId) -> MemberState | None:
        """Return the member that this client has."""
        return next((one for one in self.members.values() if one.client == client), None)

    def subscribed(self) -> frozenset[StreamName]:
        """Return the streams that somebody subscribes to; they need not exist."""
        return frozenset(chain.from_iterable(member.streams for member in self.members.values()))

    def problems(self) -> list[str]:
        """Return what must not be, in words; nothing if all is well."""
        return [*self._problems_of_members(), *self._problems_of_partitions()]

    def _problems_of_members(self) -> Iterator[str]:
        instances = [one.instance_id for one in self.members.values() if one.instance_id is not None]
        clients = [one.client for one in self.members.values()]
        if len(instances) != len(set(instances)) or len(clients) != len(set(clients)):
            yield "G6: two members of one instance or client"
        if not self.gone.keys().isdisjoint(clients):
            yield "G6: a client is gone and has a member"
        for key, member in self.members.items():
            if key != member.member_id or member.assigned > self.generation:
                yield f"G2: {member} in generation {self.generation}"

    def _problems_of_partitions(self) -> Iterator[str]:
        for partition in chain(self.grants, self.target):
            if not 0 <= partition.number < self.streams.get(partition.stream, 0):
                yield f"G1: {partition} does not exist"
        for partition, (owner, generation) in self.grants.items():
            if owner not in self.members or not 0 < generation <= self.generation:
                yield f"G1: {partition} is owned by {owner} since {generation}"
        for partition, member_id in self.target.items():
            member = self.members.get(member_id)
            if member is None or partition.stream not in member.streams:
                yield f"G1: {partition} is to be {member_id}'s"
        idle = [str(one) for one in self._wanted() if one not in self.grants or one not in self.target]
        if idle:
            yield f"G5: nobody has {', '.join(idle[:3])}"

    def _wanted(self) -> Iterator[Partition]:
        for stream in sorted(self.subscribed()):
            for number in range(self.streams.get(stream, 0)):
                yield Partition(stream, number)

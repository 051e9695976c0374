"""Members and streams for tests of assignors, and what holds for every assignment."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from hypothesis import strategies as st

from consumer_groups.assignment.assignors import Owners
from consumer_groups.assignment.partitions import (
    Claim,
    Generation,
    Holder,
    InstanceId,
    MemberId,
    Partition,
    StreamPartitions,
    SubscribedMember,
)
from envelope.types import NodeId, StreamName

STREAMS = tuple(StreamName(f"s{number}") for number in range(4))
NODES = tuple(NodeId(f"n{number}") for number in range(4))
RACKS = {node: f"r{number % 2}" for number, node in enumerate(NODES)}


def subscriber(name: str, *streams: str, owned: Iterable[Claim] = ()) -> SubscribedMember:
    return SubscribedMember(MemberId(name), frozenset(map(StreamName, streams)), owned=tuple(owned))


def stream(name: str, count: int) -> StreamPartitions:
    return StreamPartitions(StreamName(name), count)


def partitions(streams: Iterable[StreamPartitions]) -> set[Partition]:
    return {Partition(each.stream, number) for each in streams for number in range(each.count)}


def loads(members: Iterable[SubscribedMember], owners: Owners) -> dict[MemberId, int]:
    counted = Counter(owners.values())
    return {member.member_id: counted[member.member_id] for member in members}


def owning(
    members: Iterable[SubscribedMember], owners: Owners, generation: int = 1
) -> tuple[SubscribedMember, ...]:
    """Return the members, claiming what they own."""
    return tuple(
        replace(member, owned=tuple(Claim(one, Generation(generation)) for one in held))
        for member in members
        for held in [[one for one, owner in owners.items() if owner == member.member_id]]
    )


def moves(before: Owners, after: Owners) -> int:
    """Count the partitions that had an owner and have another one."""
    return sum(owner != before[one] for one, owner in after.items() if one in before)


def fewest_moves(members: Sequence[SubscribedMember], count: int) -> int:
    """Return how many of ``count`` partitions must leave their owners where all subscribe alike."""
    each, extra = divmod(count, len(members))
    held = sorted((len(member.owned) for member in members), reverse=True)
    return sum(max(0, has - each - (turn < extra)) for turn, has in enumerate(held))


def uneven(members: Sequence[SubscribedMember], owners: Owners) -> list[str]:
    """Return the single partitions that could still go to somebody who has two less, or more."""
    load = loads(members, owners)
    return [
        f"{one} from {owner} to {other.member_id}"
        for one, owner in owners.items()
        for other in members
        if one.stream in other.streams and load[owner] - load[other.member_id] > 1
    ]


@st.composite
def streams(draw: st.DrawFn, count_max: int = 12) -> tuple[StreamPartitions, ...]:
    """Up to four streams, some with holders of their partitions."""
    found = []
    for name in draw(st.lists(st.sampled_from(STREAMS), min_size=1, unique=True)):
        count = draw(st.integers(0, count_max))
        sets = st.lists(st.sampled_from(NODES), max_size=3, unique=True)
        nodes = draw(st.lists(sets, max_size=min(4, count)))
        holders = tuple(tuple(Holder(node, RACKS[node]) for node in each) for each in nodes)
        found.append(StreamPartitions(name, count, holders))
    return tuple(found)


@st.composite
def members(draw: st.DrawFn, *, alike: bool = False, hostile: bool = False) -> tuple[SubscribedMember, ...]:
    """Up to seven members; ``hostile``: with claims of anything, several of one partition too."""
    names = draw(st.lists(st.integers(0, 99), min_size=1, max_size=7, unique=True))
    common = draw(st.frozensets(st.sampled_from(STREAMS), min_size=1))
    drawn = []
    for number in names:
        node = draw(st.sampled_from((None, *NODES)))
        member = SubscribedMember(
            MemberId(f"m{number:02}"),
            common if alike else draw(st.frozensets(st.sampled_from((*STREAMS, StreamName("none"))))),
            InstanceId(f"i{number}") if draw(st.booleans()) else None,
            node,
            None if node is None else RACKS[node],
        )
        drawn.append(replace(member, owned=draw(claims())) if hostile else member)
    return tuple(drawn)


def claims() -> st.SearchStrategy[tuple[Claim, ...]]:
    partition = st.builds(Partition, st.sampled_from((*STREAMS, StreamName("none"))), st.integers(-3, 15))
    claim = st.builds(Claim, partition, st.integers(-1, 3).map(Generation))
    return st.lists(claim, max_size=5).map(tuple)


def wanted(members: Iterable[SubscribedMember], streams: Iterable[StreamPartitions]) -> set[Partition]:
    """Return the partitions that somebody subscribes to."""
    subscribed: Mapping[StreamName, int] = Counter(name for member in members for name in member.streams)
    return {one for one in partitions(streams) if subscribed.get(one.stream)}

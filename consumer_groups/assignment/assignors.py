"""Which member is to own which partition: three ways, all of them deterministic.

Every partition of a stream goes to exactly one of the members that subscribe to that stream, if any does. The
claims of members count for `Assignor.STICKY` alone.

Sources: Kafka's documentation of ``partition.assignment.strategy`` (range, round robin); KIP-54 (sticky).
"""

from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import assert_never

from consumer_groups.assignment.partitions import MemberId, Partition, StreamPartitions, SubscribedMember
from consumer_groups.assignment.sticky import sticky
from envelope.types import StreamName

Owners = dict[Partition, MemberId]
"""A partition that nobody subscribes to is not in it."""


class Assignor(StrEnum):
    """How partitions are shared out."""

    RANGE = "range"
    """Of each stream, neighbouring partitions go to one member: partitions of one number of several streams
    with as many partitions meet at one member. Loads are even for each stream, not for all together."""
    ROUND_ROBIN = "round_robin"
    """All partitions of all streams are dealt out in turn."""
    STICKY = "sticky"
    """Loads are even, then as little moves as can be, then partitions go to members near their replicas."""


@dataclass(frozen=True, slots=True)
class _Subscriptions:
    """The subscribers of each existing stream; members are named by their place in ``members``."""

    members: tuple[SubscribedMember, ...]
    streams: Mapping[StreamName, StreamPartitions]
    """Those that somebody subscribes to, by name."""
    subscribers: Mapping[StreamName, tuple[int, ...]]


def assign(
    assignor: Assignor, subscribers: Iterable[SubscribedMember], streams: Iterable[StreamPartitions]
) -> Owners:
    """Return who is to own what; neither order matters.

    Args:
        assignor: the way.
        subscribers: the members, each once; streams and partitions that they name need not exist.
        streams: what exists, each stream once.
    """
    found = _subscriptions(subscribers, streams)
    match assignor:
        case Assignor.RANGE:
            return _range(found)
        case Assignor.ROUND_ROBIN:
            return _round_robin(found)
        case Assignor.STICKY:
            return sticky(found.members, found.streams, found.subscribers)
        case _:
            assert_never(assignor)


def _subscriptions(
    subscribers: Iterable[SubscribedMember], streams: Iterable[StreamPartitions]
) -> _Subscriptions:
    members = tuple(sorted(subscribers, key=lambda member: member.order))
    existing = {stream.stream: stream for stream in streams}
    wanted: dict[StreamName, list[int]] = {}
    for place, member in enumerate(members):
        for name in member.streams:
            if name in existing:
                wanted.setdefault(name, []).append(place)
    names = sorted(wanted)
    return _Subscriptions(
        members, {name: existing[name] for name in names}, {name: tuple(wanted[name]) for name in names}
    )


def _range(subscriptions: _Subscriptions) -> Owners:
    owners: Owners = {}
    for name, stream in subscriptions.streams.items():
        places = subscriptions.subscribers[name]
        each, extra = divmod(stream.count, len(places))
        start = 0
        for turn, place in enumerate(places):
            end = start + each + (turn < extra)
            for number in range(start, end):
                owners[Partition(name, number)] = subscriptions.members[place].member_id
            start = end
    return owners


def _round_robin(subscriptions: _Subscriptions) -> Owners:
    owners: Owners = {}
    last = -1
    for name, stream in subscriptions.streams.items():
        places = subscriptions.subscribers[name]
        for number in range(stream.count):
            last = _next(places, last)
            owners[Partition(name, number)] = subscriptions.members[last].member_id
    return owners


def _next(places: Sequence[int], last: int) -> int:
    """Return the first of these places behind ``last``, in a circle."""
    turn = bisect_right(places, last)
    return places[turn if turn < len(places) else 0]

"""The sticky assignor: even loads first, then the fewest moves, then the nearest replica.

Theory of operation. Streams with the same subscribers make a *pool*: to these its partitions are alike.
First it is counted, then chosen. Counting: everybody begins with what it owns of each pool; what nobody owns
is dealt to those who have least; then pools are levelled: whoever has most gives to whoever has least, while
they are two apart. Choosing: whoever is to have fewer of a pool than it owns gives up those that are far from
it, and whoever is to have more gets those that are near.

The result is even in the sense of KIP-54: of two members whose loads are two or more apart, the one with more
owns nothing that the other subscribes to. What is even already is left as it is. Where all subscribe alike
nothing could move less; with unequal subscriptions a load is not passed on over a third member, though that
may even out more.

It takes n log n steps where all subscribe alike. With unequal subscriptions a pool is levelled again when
another one has changed the load of one of its members; the sum of the squared loads becomes less each time.

Sources: KIP-54 (sticky assignor), KIP-341 (claims are checked), KIP-429 (the higher generation owns).
"""

import heapq
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from consumer_groups.partitions import Generation, MemberId, Partition, StreamPartitions, Subscriber
from envelope.types import StreamName

_Places = tuple[int, ...]


@dataclass(slots=True, eq=False)
class _Pool:
    """The partitions of all streams that the same members subscribe to; a member is its place in order."""

    places: _Places
    free: list[Partition] = field(default_factory=list)
    owned: dict[int, list[Partition]] = field(default_factory=dict)
    shares: dict[int, int] = field(default_factory=dict)
    """How many each is to have."""

    def deal(self, loads: list[int]) -> None:
        """Count what nobody owns to those who have least."""
        least = [(loads[place], place) for place in self.places]
        heapq.heapify(least)
        for _ in self.free:
            load, place = least[0]
            heapq.heapreplace(least, (load + 1, place))
            self._move(place, 1, loads)

    def level(self, loads: list[int]) -> set[int]:
        """Count from those who have most to those who have least; return whose load has changed."""
        least = [(loads[place], place) for place in self.places]
        most = [(-loads[place], place) for place in self.places if self.shares.get(place)]
        heapq.heapify(least)
        heapq.heapify(most)
        changed: set[int] = set()
        # Whoever gave or took once never has to do the other: it is within one of the rest then.
        while most and -most[0][0] - least[0][0] > 1:
            (load, taker), (minus_load, giver) = least[0], most[0]
            heapq.heapreplace(least, (load + 1, taker))
            self._move(taker, 1, loads)
            self._move(giver, -1, loads)
            if self.shares[giver]:
                heapq.heapreplace(most, (minus_load + 1, giver))
            else:
                heapq.heappop(most)
            changed |= {giver, taker}
        return changed

    def _move(self, place: int, by: int, loads: list[int]) -> None:
        self.shares[place] = self.shares.get(place, 0) + by
        loads[place] += by


def sticky(
    members: Sequence[Subscriber],
    streams: Mapping[StreamName, StreamPartitions],
    subscribers: Mapping[StreamName, _Places],
) -> dict[Partition, MemberId]:
    """Return who is to own what.

    Args:
        members: in their order.
        streams: those that somebody subscribes to, in the order of their names.
        subscribers: of each of these, the places in ``members``, ascending.
    """
    pools = _pools(streams, subscribers, _owners(members, streams))
    loads = [0] * len(members)
    for pool in pools:
        for place, partitions in pool.owned.items():
            pool.shares[place] = len(partitions)
            loads[place] += len(partitions)
    for pool in pools:
        pool.deal(loads)
    _level(pools, loads)
    chosen = (_choose(pool, members, streams) for pool in pools)
    return dict(sorted(pair for pairs in chosen for pair in pairs))


def _owners(
    members: Sequence[Subscriber], streams: Mapping[StreamName, StreamPartitions]
) -> dict[Partition, int]:
    """Return the place of who owns each partition by its claim: the newest, of equal ones the first."""
    best: dict[Partition, tuple[Generation, int]] = {}
    for place, member in enumerate(members):
        for partition, generation in member.owned:
            stream = streams.get(partition.stream)
            if stream is None or partition.stream not in member.streams:
                continue
            known = best.get(partition)
            if 0 <= partition.number < stream.count and (known is None or generation > known[0]):
                best[partition] = (generation, place)
    return {partition: place for partition, (_, place) in best.items()}


def _pools(
    streams: Mapping[StreamName, StreamPartitions],
    subscribers: Mapping[StreamName, _Places],
    owners: Mapping[Partition, int],
) -> list[_Pool]:
    """Return the pools, those with the fewest subscribers first: they have the least choice."""
    pools: dict[_Places, _Pool] = {}
    for name, stream in streams.items():
        places = subscribers[name]
        pool = pools.setdefault(places, _Pool(places))
        for number in range(stream.count):
            partition = Partition(name, number)
            place = owners.get(partition)
            (pool.free if place is None else pool.owned.setdefault(place, [])).append(partition)
    return sorted(pools.values(), key=lambda pool: len(pool.places))


def _level(pools: Sequence[_Pool], loads: list[int]) -> None:
    """Level all pools until no one has anything left to level."""
    pools_of: list[list[_Pool]] = [[] for _ in loads]
    for pool in pools:
        for place in pool.places:
            pools_of[place].append(pool)
    due, waiting = deque(pools), set(pools)
    while due:
        pool = due.popleft()
        waiting.discard(pool)
        for place in pool.level(loads):
            for other in pools_of[place]:
                if other is not pool and other not in waiting:
                    waiting.add(other)
                    due.append(other)


def _choose(
    pool: _Pool, members: Sequence[Subscriber], streams: Mapping[StreamName, StreamPartitions]
) -> Iterator[tuple[Partition, MemberId]]:
    """Yield which partitions everybody has of its share."""
    free, wanted = list(pool.free), dict(pool.shares)
    for place, owned in pool.owned.items():
        member = members[place]
        ordered = owned if len(owned) <= wanted[place] else _nearest_first(member, owned, streams)
        kept, given = ordered[: wanted[place]], ordered[wanted[place] :]
        free += given
        wanted[place] -= len(kept)
        yield from ((partition, member.member_id) for partition in kept)
    for partition, place in _place_nearest(sorted(free), wanted, members, streams):
        yield partition, members[place].member_id


def _nearest_first(
    member: Subscriber, partitions: list[Partition], streams: Mapping[StreamName, StreamPartitions]
) -> list[Partition]:
    def distance(partition: Partition) -> int:
        return -member.nearness(streams[partition.stream].holders_of(partition.number))

    return sorted(partitions, key=distance)


def _place_nearest(
    free: Iterable[Partition],
    wanted: dict[int, int],
    members: Sequence[Subscriber],
    streams: Mapping[StreamName, StreamPartitions],
) -> Iterator[tuple[Partition, int]]:
    """Yield a place for each free partition: on a holder's node if one wants more, else in a rack of one."""
    lacking = sorted(place for place, more in wanted.items() if more)
    on_node: dict[str, list[int]] = {}
    in_rack: dict[str, list[int]] = {}
    for place in reversed(lacking):  # the first in order is taken from the end
        member = members[place]
        if member.node is not None:
            on_node.setdefault(member.node, []).append(place)
        if member.rack is not None:
            in_rack.setdefault(member.rack, []).append(place)
    rest = list(free)
    for near, of_rack in ((on_node, False), (in_rack, True)):
        far = []
        for partition in rest:
            holders = streams[partition.stream].holders_of(partition.number)
            names = (holder.rack if of_rack else holder.node for holder in holders)
            taker = _take(near, names, wanted)
            if taker is None:
                far.append(partition)
            else:
                yield partition, taker
        rest = far
    places = (place for place in lacking for _ in range(wanted[place]))
    yield from zip(rest, list(places), strict=True)


def _take(near: Mapping[str, list[int]], names: Iterable[str | None], wanted: dict[int, int]) -> int | None:
    """Return somebody near one of these who wants more, and count that it gets one."""
    for name in names:
        places = near.get(name, []) if name is not None else []
        while places and not wanted[places[-1]]:
            places.pop()
        if places:
            wanted[places[-1]] -= 1
            return places[-1]
    return None

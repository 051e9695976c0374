"""The sticky assignor: even loads first, then the fewest moves, then the nearest replica.

Theory of operation. Streams with the same subscribers make a *pool*: to these its partitions are alike.
First it is counted, then chosen. Counting: everybody begins with what it owns of each pool; what nobody owns
is dealt to those who have least; then pools are levelled: whoever has most gives to whoever has least, while
they are two or more apart. Then it is chosen: which partitions an owner keeps, and who gets what it gives.

The result is even in the sense of KIP-54: of two members whose loads are two or more apart, the one with more
owns nothing that the other subscribes to. An assignment that is even already stays. Where all subscribe alike
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
from itertools import chain

from consumer_groups.assignment.partitions import (
    Holder,
    MemberId,
    Partition,
    StreamPartitions,
    SubscribedMember,
)
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


@dataclass(frozen=True, slots=True)
class _Claims:
    """The claimed owners of partitions; members by their place."""

    owner: Mapping[Partition, int]
    """Whose claim counts: the newest, of equal ones the first."""
    former: Mapping[Partition, Sequence[int]]
    """Whose does not, the newest first: they had it, and get it back before others if it moves at all."""


@dataclass(frozen=True, slots=True)
class _Choice:
    """The input of the choice of a taker."""

    members: Sequence[SubscribedMember]
    streams: Mapping[StreamName, StreamPartitions]
    former: Mapping[Partition, Sequence[int]]

    def holders(self, partition: Partition) -> tuple[Holder, ...]:
        return self.streams[partition.stream].holders_of(partition.number)


def sticky(
    members: Sequence[SubscribedMember],
    streams: Mapping[StreamName, StreamPartitions],
    subscribers: Mapping[StreamName, _Places],
) -> dict[Partition, MemberId]:
    """Return who is to own what.

    Args:
        members: in their order.
        streams: those that somebody subscribes to, in the order of their names.
        subscribers: of each of these, the places in ``members``, ascending.
    """
    claims = _claims(members, streams)
    pools = _pools(streams, subscribers, claims.owner)
    loads = [0] * len(members)
    for pool in pools:
        for place, partitions in pool.owned.items():
            pool.shares[place] = len(partitions)
            loads[place] += len(partitions)
    for pool in pools:
        pool.deal(loads)
    _level(pools, loads)
    choice = _Choice(members, streams, claims.former)
    chosen = (_choose(pool, choice) for pool in pools)
    return {partition: members[place].member_id for partition, place in sorted(chain.from_iterable(chosen))}


def _claims(members: Sequence[SubscribedMember], streams: Mapping[StreamName, StreamPartitions]) -> _Claims:
    claims: dict[Partition, list[tuple[int, int]]] = {}
    for place, member in enumerate(members):
        for partition, generation in member.owned:
            stream = streams.get(partition.stream)
            if stream is None or partition.stream not in member.streams:
                continue
            if 0 <= partition.number < stream.count:
                claims.setdefault(partition, []).append((-generation, place))
    owner, former = {}, {}
    for partition, rivals in claims.items():
        (_, owner[partition]), *rest = sorted(rivals)
        if rest:
            former[partition] = [place for _, place in rest]
    return _Claims(owner, former)


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


def _choose(pool: _Pool, choice: _Choice) -> Iterator[tuple[Partition, int]]:
    """Yield which partitions everybody has of its share."""
    free, wanted = list(pool.free), dict(pool.shares)
    lacking = {place for place, share in wanted.items() if share > len(pool.owned.get(place, ()))}
    for place, owned in pool.owned.items():
        ordered = owned if len(owned) <= wanted[place] else _best_first(place, owned, lacking, choice)
        kept, given = ordered[: wanted[place]], ordered[wanted[place] :]
        free += given
        wanted[place] -= len(kept)
        yield from ((partition, place) for partition in kept)
    yield from _place_best(sorted(free), wanted, choice)


def _best_first(place: int, owned: list[Partition], lacking: set[int], choice: _Choice) -> list[Partition]:
    """Return first what is to be kept: what no former owner would get back, then what is near."""
    member = choice.members[place]

    def last(partition: Partition) -> tuple[bool, int]:
        is_wished = not lacking.isdisjoint(choice.former.get(partition, ()))
        return (is_wished, -member.nearness(choice.holders(partition)))

    return sorted(owned, key=last)


def _place_best(
    free: Iterable[Partition], quotas: dict[int, int], choice: _Choice
) -> Iterator[tuple[Partition, int]]:
    """Yield a place for each: that of a former owner, on a holder's node, in a holder's rack, any."""
    lacking = sorted((place for place, more in quotas.items() if more), reverse=True)
    by_place: dict[object, list[int]] = {place: [place] for place in lacking}
    on_node: dict[object, list[int]] = {}
    in_rack: dict[object, list[int]] = {}
    for place in lacking:  # the first in order comes last, and is taken first
        on_node.setdefault(choice.members[place].node, []).append(place)
        in_rack.setdefault(choice.members[place].rack, []).append(place)
    rest = list(free)
    for near, names in (
        (by_place, lambda one: choice.former.get(one, ())),
        (on_node, lambda one: [holder.node for holder in choice.holders(one)]),
        (in_rack, lambda one: [holder.rack for holder in choice.holders(one) if holder.rack is not None]),
    ):
        far = []
        for partition in rest:
            taker = _take(near, names(partition), quotas)
            if taker is None:
                far.append(partition)
            else:
                yield partition, taker
        rest = far
    places = [place for place in reversed(lacking) for _ in range(quotas[place])]
    yield from zip(rest, places, strict=True)


def _take(near: Mapping[object, list[int]], names: Iterable[object], quotas: dict[int, int]) -> int | None:
    """Return somebody under one of these names who wants more, and count that it gets one."""
    for name in names:
        places = near.get(name, [])
        while places and not quotas[places[-1]]:
            places.pop()
        if places:
            quotas[places[-1]] -= 1
            return places[-1]
    return None

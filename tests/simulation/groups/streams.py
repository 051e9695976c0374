"""The streams that groups read: their partitions come and go, and records are added."""

from collections import Counter
from collections.abc import Iterable
from random import Random

from consumer_groups.assignment.partitions import Partition, StreamPartitions
from consumer_groups.shard.events import StreamsChanged
from envelope.types import StreamName
from tests.simulation.groups.swarm import Swarm


class Streams:
    """What exists, and how many records each partition has."""

    def __init__(self, rng: Random, swarm: Swarm) -> None:
        self._rng = rng
        self._lives: Counter[StreamName] = Counter()
        self.names = swarm.streams
        self._named_lives = swarm.named_lives
        self.counts = {name: rng.randint(0, swarm.partitions_max) for name in swarm.streams}
        self.ends: Counter[Partition] = Counter()
        """How many records there are, of the present life."""
        self.deleted: set[Partition] = set()
        """Whatever was of a stream that has been deleted once."""

    def life(self, name: StreamName) -> str | None:
        """Return which life of its name a stream is, its incarnation; None if nobody names it."""
        return f"life-{self._lives[name]}" if self._named_lives else None

    def existing(self) -> tuple[StreamPartitions, ...]:
        """Return the streams that exist."""
        return tuple(StreamPartitions(name, count) for name, count in self.counts.items())

    def wanted(self, names: frozenset[StreamName]) -> set[Partition]:
        """Return all partitions that exist of these streams."""
        return {Partition(name, number) for name in names for number in range(self.counts.get(name, 0))}

    def add_partitions(self) -> None:
        """Let a stream have more partitions, or be there again."""
        name = self._rng.choice(self.names)
        self.counts[name] = self.counts.get(name, 0) + self._rng.randint(1, 3)

    def delete(self) -> None:
        """Delete a stream, with its records; not where its lives cannot be told apart."""
        name = self._rng.choice(self.names)
        if not self._named_lives:
            return
        self._lives[name] += 1
        for number in range(self.counts.pop(name, 0)):
            self.deleted.add(Partition(name, number))
            self.ends.pop(Partition(name, number), None)

    def produce(self) -> None:
        """Add records to some partition."""
        partitions = sorted(self.wanted(frozenset(self.counts)))
        if partitions:
            self.ends[self._rng.choice(partitions)] += self._rng.randint(1, 4)


class ToldStreams:
    """What one leader was told of streams: as the product's node, that what was made again was deleted."""

    def __init__(self, streams: Streams) -> None:
        self._streams = streams
        self._lives: dict[StreamName, str | None] = {}

    def tell(self, names: Iterable[StreamName]) -> StreamsChanged:
        """Return what these are now."""
        existing = {stream.stream: stream for stream in self._streams.existing()}
        changed = tuple(existing[name] for name in sorted(names) if name in existing)
        lives = {name: self._streams.life(name) for name in sorted(names)}
        gone = (name for name, life in lives.items() if self._lives.get(name, life) != life)
        missing = (name for name in lives if name not in existing)
        self._lives |= lives
        return StreamsChanged(changed, tuple(sorted({*gone, *missing})))

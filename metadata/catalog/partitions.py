"""The partitions of each partitioned stream, and how many of them share its messages.

A partitioned stream is no row of its own: it follows from the streams that are its partitions, each of which
has the number that there were to be when it was created. Of these numbers the largest counts for which all
partitions are there. So a stream whose creation is under way counts none, and takes no messages; one to which
partitions are being added counts as many as before until the last of them is there.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from envelope.types import StreamName
from metadata.stream_config import StreamConfig


def effective_count(partitions: Mapping[int, int]) -> int:
    """Return how many partitions share the messages; 0 while none of the counts is complete.

    Args:
        partitions: of those that exist, by number, how many there were to be when each was created.
    """
    present = 0
    while present in partitions:
        present += 1
    return max((count for count in partitions.values() if count <= present), default=0)


@dataclass(slots=True)
class PartitionSets:
    """The partitions of every partitioned stream, kept up to date."""

    _sets: dict[StreamName, dict[int, int]] = field(default_factory=dict)
    _counts: dict[StreamName, int] = field(default_factory=dict)

    def __contains__(self, name: str) -> bool:
        return name in self._sets

    def count(self, partitioned: str) -> int:
        """Return how many partitions share a partitioned stream's messages; 0: none, or there is no such."""
        return self._counts.get(StreamName(partitioned), 0)

    def numbers(self, partitioned: str) -> tuple[int, ...]:
        """Return the numbers of the partitions that there are, ascending."""
        return tuple(sorted(self._sets.get(StreamName(partitioned), ())))

    def add(self, config: StreamConfig) -> None:
        """Record a stream, new or changed, if it is a partition."""
        if config.partition_of is None:
            return
        assert config.partition is not None, "K11: a partition has a number"
        assert config.partitions is not None, "K11: a partition is one of some"
        name = StreamName(config.partition_of)
        partitions = self._sets.setdefault(name, {})
        if config.partition not in partitions:
            partitions[config.partition] = config.partitions
            self._counts[name] = effective_count(partitions)

    def remove(self, config: StreamConfig) -> None:
        """Forget a stream, if it is a partition."""
        if config.partition_of is None:
            return
        assert config.partition is not None, "K11: a partition has a number"
        name = StreamName(config.partition_of)
        partitions = self._sets[name]
        del partitions[config.partition]
        if partitions:
            self._counts[name] = effective_count(partitions)
        else:
            del self._sets[name], self._counts[name]

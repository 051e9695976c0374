"""A stream that is filled before it is read: by the load generator, as publishers would have."""

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from benchmarks.batches import SEGMENT_PATTERN
from benchmarks.loadgen import Load, publish
from benchmarks.measurement import tell
from benchmarks.systems import SUBJECT, Count, Holdings, Ours, System, node_socket

IN_FLIGHT: Final = 1000
FILL_SECONDS: Final = 0.5
"""Of one run of the load generator; it is run until there is enough, so there may be so much too many."""


class FillError(Exception):
    """A stream does not hold what was published to it."""


@dataclass(frozen=True, slots=True)
class Stored:
    """What lies there to be read."""

    holdings: Holdings
    size_bytes: int
    """Of one value."""
    count: Count
    """Asks the system again."""

    @property
    def records(self) -> int:
        """How many, in the one stream."""
        return self.holdings.records[0]


@dataclass(frozen=True, slots=True)
class StoredSegments:
    """The same as files, where the log is ours."""

    socket: str
    files: tuple[Path, ...]
    bytes: int

    @classmethod
    def of(cls, system: Ours) -> "StoredSegments":
        """Find the segments of a system's only stream, in the order of their offsets."""
        files = tuple(sorted(path.resolve() for path in system.data.rglob(SEGMENT_PATTERN)))
        return cls(node_socket(system.address), files, sum(path.stat().st_size for path in files))


@contextmanager
def filled(system: System, size_bytes: int, values_bytes: int) -> Iterator[Stored]:
    """Create one stream and publish until it holds ``values_bytes`` of values of ``size_bytes`` each.

    Raises:
        FillError: a message was refused, or is not there.
    """
    wanted = values_bytes // size_bytes
    load = Load(1, IN_FLIGHT, size_bytes, seconds=FILL_SECONDS, warmup_seconds=0.0)
    with system.streams(1) as count:
        acked = 0
        while acked < wanted:
            result = publish(system.address, SUBJECT, load, lambda _event: None)
            if not result.acked or result.acked != result.published:
                raise FillError(f"{system.name}: {result.published} published, {result.acked} acked")
            acked += result.acked
        holdings = count()
        if holdings is None or holdings.records != (acked,):
            raise FillError(f"{system.name}: {acked} acked, {holdings} stored")
        os.sync()  # no reader pays for the writing
        tell(f"{system.name}: {acked:,} values of {size_bytes} B")
        yield Stored(holdings, size_bytes, count)


def batch_records(stored: Sequence[Stored]) -> float:
    """Return the mean records in a batch of the first that shows its batches; 0 if none does."""
    shown = [each.holdings for each in stored if each.holdings.batches]
    return sum(shown[0].records) / (shown[0].batches or 1) if shown else 0.0

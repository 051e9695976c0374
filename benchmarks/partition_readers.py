"""Reads all partitions of a stream, again and again: as members of a group, and without one.

All verify that what comes of a partition continues where it ended last, and that its end is where the
partition's is.
"""

import asyncio
from collections.abc import Iterable, Mapping
from typing import Final

import pyarrow as pa

import jetstream
from benchmarks.meter import Meter, Unverified
from jetstream.client.connection import JetstreamClient

RECORDS_PER_LOOK: Final = 1024
"""Single records are counted one by one, but the clock is asked only so often."""


class Partitions:
    """How far each is read.

    Attributes:
        ends: their records, by name; they begin at 0.
    """

    def __init__(self, ends: Mapping[str, int]) -> None:
        """Nothing is read yet."""
        self.ends = ends
        self._next: dict[str, int] = {}

    def begin(self, names: Iterable[str]) -> None:
        """Expect the next batch of these at any offset: somebody else may have read them."""
        for name in names:
            self._next.pop(name, None)

    def take(self, name: str, batch: pa.RecordBatch) -> bool:
        """Take in what was read; tell whether that was all of the partition, which begins anew then.

        Raises:
            Unverified: the batch is not what comes next.
        """
        offsets = batch.column(0)
        first, last = offsets[0].as_py(), offsets[batch.num_rows - 1].as_py()
        if last != first + batch.num_rows - 1:
            raise Unverified(f"{name}: a batch [{first}, {last}] of {batch.num_rows}")
        return self.take_offsets(name, first, last + 1)

    def take_offsets(self, name: str, first: int, end: int) -> bool:
        """Take in ``[first, end)``; as `take`."""
        expected = self._next.get(name, first)
        if first != expected:
            raise Unverified(f"{name}: offset {first} where {expected} comes next")
        is_read = end == self.ends[name]
        self._next[name] = 0 if is_read else end
        return is_read


async def read_in_group(socket: str, ends: Mapping[str, int], group: str, owned: int, meter: Meter) -> None:
    """Read by Arrow batch as a member of ``group``; counted once ``owned`` partitions are its own."""
    partitions = Partitions(ends)
    stream = next(iter(ends)).rpartition("/")[0]
    async with (
        jetstream.connect(socket=socket, short_circuit_reads=False) as client,
        client.consume(stream, group=group, on_assigned=partitions.begin) as consumer,
    ):
        is_counted = False
        async for name, batch in consumer.batches():
            if partitions.take(name, batch):
                consumer.seek(name, "earliest")
            is_counted = is_counted or len(consumer.assignment) == owned
            if is_counted and not meter.add(batch.num_rows):
                return


async def read_records_in_group(
    socket: str, ends: Mapping[str, int], group: str, owned: int, meter: Meter
) -> None:
    """Read record by record, a Python object for each; otherwise as `read_in_group`."""
    partitions = Partitions(ends)
    stream = next(iter(ends)).rpartition("/")[0]
    async with (
        jetstream.connect(socket=socket, short_circuit_reads=False) as client,
        client.consume(stream, group=group, on_assigned=partitions.begin) as consumer,
    ):
        is_counted = False
        count = 0
        async for record in consumer:
            if partitions.take_offsets(record.stream, record.offset, record.offset + 1):
                consumer.seek(record.stream, "earliest")
            count += 1
            if count < RECORDS_PER_LOOK:
                continue
            is_counted = is_counted or len(consumer.assignment) == owned
            if is_counted and not meter.add(count):
                return
            count = 0


async def read_alone(socket: str, ends: Mapping[str, int], meter: Meter) -> None:
    """Read all partitions at once, each with a reader of its own."""
    partitions = Partitions(ends)
    async with jetstream.connect(socket=socket, short_circuit_reads=False) as client:
        await asyncio.gather(*(_read(client, partition, partitions, meter) for partition in ends))


async def _read(client: JetstreamClient, partition: str, partitions: Partitions, meter: Meter) -> None:
    while True:
        end = partitions.ends[partition]
        async with client.read_batches(partition, start=0, end=end) as reader:
            async for batch in reader:
                partitions.take(partition, batch)
                if not meter.add(batch.num_rows):
                    return

"""A member of a consumer group without asyncio."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from types import TracebackType
from typing import Final, Literal, Self, TypeVar

import pyarrow as pa

from jetstream.client.blocking.loop_thread import CallRelay, LoopThread
from jetstream.client.consume.consumer import Consumer
from jetstream.client.consume.options import ConsumeOptions
from jetstream.client.read.read_range import Start
from jetstream.client.read.records import Record

T = TypeVar("T")

_CALLBACKS: Final[tuple[Literal["on_assigned", "on_revoked", "on_lost"], ...]] = (
    "on_assigned",
    "on_revoked",
    "on_lost",
)


class BlockingConsumer:
    """Yields records as `Consumer` does; used by one thread at a time.

    What crosses between the threads is a batch, never a record: a partition that is to be given up is stopped
    with the next record, and given up when that has been processed and another one is asked for.
    """

    def __init__(self, thread: LoopThread, consumer: Consumer, relay: CallRelay) -> None:
        self._thread = thread
        self._consumer = consumer
        self._relay = relay

    @property
    def group(self) -> str:
        """Whose member it is."""
        return self._consumer.group

    @property
    def assignment(self) -> tuple[str, ...]:
        """See `Consumer.assignment`."""
        return self._thread.run(_called(lambda: self._consumer.assignment))

    @property
    def paused(self) -> tuple[str, ...]:
        """See `Consumer.paused`."""
        return self._thread.run(_called(lambda: self._consumer.paused))

    @property
    def positions(self) -> dict[str, int]:
        """See `Consumer.positions`."""
        return self._thread.run(_called(lambda: self._consumer.positions))

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Record:
        """Return the next record; raises what `Consumer.__anext__` raises, and `StopIteration`."""
        while True:
            delivery = self._consumer.delivery
            record = None if delivery is None else delivery.next()
            if record is not None:
                return record
            if not self._thread.run(self._consumer.deliver(), self._relay):
                raise StopIteration

    def batches(self) -> Iterator[tuple[str, pa.RecordBatch]]:
        """Yield partitions and Arrow batches; see `Consumer.batches`."""
        while True:
            delivery = self._consumer.delivery
            batch = None if delivery is None else delivery.rest()
            if delivery is not None and batch is not None:
                yield delivery.lane.stream, batch
            elif not self._thread.run(self._consumer.deliver(), self._relay):
                return

    def commit(self, offsets: Mapping[str, int] | None = None) -> None:
        """See `Consumer.commit`; a callback may call it too."""
        self._thread.run(self._consumer.commit(offsets))

    def seek(self, partition: str, start: Start) -> None:
        """See `Consumer.seek`; a callback may call it too."""
        self._thread.run(_called(lambda: self._consumer.seek(partition, start)))

    def pause(self, partitions: Iterable[str]) -> None:
        """See `Consumer.pause`."""
        self._thread.run(_called(lambda: self._consumer.pause(partitions)))

    def resume(self, partitions: Iterable[str] | None = None) -> None:
        """See `Consumer.resume`."""
        self._thread.run(_called(lambda: self._consumer.resume(partitions)))

    def close(self) -> None:
        """See `Consumer.close`."""
        self._thread.run(self._consumer.close(), self._relay)

    def __enter__(self) -> Self:
        """Join the group."""
        self._thread.run(self._consumer.__aenter__())
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def relayed_options(relay: CallRelay, options: ConsumeOptions) -> ConsumeOptions:
    """Return options whose callbacks are called in the caller's thread."""
    relayed = options.copy()
    for name in _CALLBACKS:
        told = options.get(name)
        if told is not None:
            relayed[name] = relay.relayed(told)
    return relayed


async def _called(function: Callable[[], T]) -> T:
    return function()

"""A member of a consumer group without asyncio."""

from collections.abc import Iterator
from types import TracebackType
from typing import Final, Literal, Self

import pyarrow as pa

from jetstream.client.blocking.facade import Facade, awaited, on_loop
from jetstream.client.blocking.loop_thread import CallRelay, LoopThread
from jetstream.client.consume.consumer import Consumer
from jetstream.client.consume.options import ConsumeOptions
from jetstream.client.read.records import Record

_CALLBACKS: Final[tuple[Literal["on_assigned", "on_revoked", "on_lost"], ...]] = (
    "on_assigned",
    "on_revoked",
    "on_lost",
)


class BlockingConsumer(Facade[Consumer]):
    """Yields records as `Consumer` does; used by one thread at a time.

    Batches cross between the threads, never records: a partition that is to be given up is stopped with the
    next record, and given up when that has been processed and another one is asked for.
    """

    def __init__(self, thread: LoopThread, consumer: Consumer, relay: CallRelay) -> None:
        super().__init__(thread, consumer)
        self._relay = relay

    @property
    def group(self) -> str:
        """The name of its group."""
        return self._target.group

    @property
    def assignment(self) -> tuple[str, ...]:
        """The partitions that are this member's now, in the order of their names."""
        return self._on_loop(lambda: self._target.assignment)

    @property
    def paused(self) -> tuple[str, ...]:
        """Those partitions that are paused."""
        return self._on_loop(lambda: self._target.paused)

    @property
    def positions(self) -> dict[str, int]:
        """The offset after the last record handed out, for each partition where it is known."""
        return self._on_loop(lambda: self._target.positions)

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Record:
        """Return the next record; raises what `Consumer.__anext__` raises, and `StopIteration`."""
        while True:
            delivery = self._target.delivery
            record = None if delivery is None else delivery.next()
            if record is not None:
                return record
            if not self._thread.run(self._target.deliver(), self._relay):
                raise StopIteration

    def batches(self) -> Iterator[tuple[str, pa.RecordBatch]]:
        """Yield partitions and Arrow batches; see `Consumer.batches`."""
        while True:
            delivery = self._target.delivery
            batch = None if delivery is None else delivery.rest()
            if delivery is not None and batch is not None:
                yield delivery.buffer.stream, batch
            elif not self._thread.run(self._target.deliver(), self._relay):
                return

    # A callback may call these too.
    commit = awaited(Consumer.commit)
    seek = on_loop(Consumer.seek)
    pause = on_loop(Consumer.pause)
    resume = on_loop(Consumer.resume)

    def close(self) -> None:
        """See `Consumer.close`."""
        self._thread.run(self._target.close(), self._relay)

    def __enter__(self) -> Self:
        """Join the group."""
        self._thread.run(self._target.__aenter__())
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

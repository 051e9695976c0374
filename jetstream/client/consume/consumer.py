"""A member of a consumer group, as an application sees it: records, commits, places."""

import asyncio
import hashlib
import logging
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from types import TracebackType
from typing import Self

import pyarrow as pa

from envelope.errors import RequestError
from jetstream.client.consume.consumer_tasks import ConsumerTasks
from jetstream.client.consume.options import ConsumeSettings
from jetstream.client.consume.partition_buffers import Delivery, PartitionBuffer
from jetstream.client.nodes.background import Background
from jetstream.client.read.places import Start
from jetstream.client.read.read_range import ReadRange
from jetstream.client.read.records import Record

_log = logging.getLogger(__name__)


class Consumer:
    """Yields the records of those partitions that are this member's; made by `JetstreamClient.consume`.

    A record counts as processed when the next one is asked for. Partitions are named by the streams that they
    are: ``orders/2`` of a partitioned stream. It is used by one task at a time; `commit`, `seek`, `pause`,
    `resume` and `close` may be called by others.

    Invariant:
        C26: what is handed out is this member's, and after it is given up nothing of it is handed out.
            Held by test_a_partition_is_handed_over_only_when_its_record_in_hand_is_processed.
    """

    def __init__(
        self, open_consumption: Callable[[], ConsumerTasks], settings: ConsumeSettings, background: Background
    ) -> None:
        """Send nothing before the first record is asked for, or the block begins."""
        self._open = open_consumption
        self._settings = settings
        self._background = background
        self._consumption: ConsumerTasks | None = None
        self._task: asyncio.Task[None] | None = None
        self.delivery: Delivery | None = None
        """The records in the application's hands."""
        self._is_closed = False

    @property
    def group(self) -> str:
        """The name of its group."""
        return self._settings.group

    @property
    def assignment(self) -> tuple[str, ...]:
        """The partitions that are this member's now, in the order of their names."""
        return tuple(sorted(buffer.stream for buffer in self._buffers if buffer.is_open))

    @property
    def positions(self) -> dict[str, int]:
        """The offset after the last record handed out, for each partition where it is known."""
        return {
            buffer.stream: buffer.position
            for buffer in self._buffers
            if buffer.is_open and buffer.position is not None
        }

    @property
    def paused(self) -> tuple[str, ...]:
        """Those partitions that are paused."""
        return tuple(sorted(buffer.stream for buffer in self._buffers if buffer.is_paused))

    def session_name(self, partition: str) -> str:
        """Return the session name for messages derived from a partition's records, the same for all members.

        It is another one in another life of the stream, whose offsets begin anew; the same after a restart.

        Raises:
            RequestError: the partition is not this member's.
        """
        if self._consumption is None:
            raise _not_assigned(partition)
        incarnation = self._consumption.buffers.assigned(partition).incarnation
        said = "\0".join((self.group, partition, incarnation or ""))
        return hashlib.sha256(said.encode()).hexdigest()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Record:
        """Return the next record, of any partition; the one before it is processed.

        A ``retriable`` error is logged, and tried again without an end.

        Raises:
            StopAsyncIteration: the consumer is closed.
            InstanceFenced: another process has joined with the same ``instance``.
            OffsetOutOfRange, StreamRecreated: the cursor is not in the stream any more, and ``reset`` is not
                set. ``detail["stream"]`` is the partition; raised again until it is sought or given up.
            CorruptDataError, DivergedHistory: likewise; see `BatchReader.__anext__`.
            RequestError: the group refuses this member, or an option is invalid.
            Exception: raised by a callback.
        """
        while True:
            record = None if self.delivery is None else self.delivery.next()
            if record is not None:
                return record
            if not await self.deliver():
                raise StopAsyncIteration

    async def batches(self) -> AsyncIterator[tuple[str, pa.RecordBatch]]:
        """Yield partitions and Arrow batches; all records of one count as processed when the next is wanted.

        The first one is what is left of a batch whose first records were handed out singly. Raises what
        `__anext__` raises.
        """
        while True:
            batch = None if self.delivery is None else self.delivery.rest()
            if self.delivery is not None and batch is not None:
                yield self.delivery.buffer.stream, batch
            elif not await self.deliver():
                return

    async def deliver(self) -> bool:
        """Put the next batch into `delivery`, for callers that hand out its records; raises as `__anext__`.

        Returns:
            False if the consumer is closed and there is nothing more.
        """
        self.delivery = None if self._is_closed else await self._begin().next(self.delivery)
        return self.delivery is not None

    async def commit(self, offsets: Mapping[str, int] | None = None) -> None:
        """Store where this member is, durable on return: behind all records that were handed out.

        The one that the application works on is among them: call it when that is done. In a callback that
        `close` brings about it is not: who closes has not processed it.

        Args:
            offsets: the next offset to read for each partition instead; they may be below the cursors.

        Raises:
            RequestError: a partition that is not this member's.
            MemberFenced, PartitionNotOwned, IllegalGeneration: partitions were taken away; what is theirs is
                not stored, and its records come again, elsewhere perhaps.
            ConnectionLost: the consumer was closed: before, and nothing is stored, or meanwhile, and it may
                be stored or not.
        """
        if self._consumption is not None:
            await self._consumption.commit(offsets, is_closed=self._is_closed)

    def seek(self, partition: str, start: Start) -> None:
        """Go on with a partition elsewhere: at what `js.read` takes as its start.

        Raises:
            RequestError: the partition is not this member's, or there is no such place.
        """
        if self._consumption is None:
            raise _not_assigned(partition)
        ReadRange(partition, start, follow=True).validated()
        self._consumption.seek(partition, start)

    def pause(self, partitions: Iterable[str]) -> None:
        """Hand out no more records of these for the time being; they stay this member's.

        Raises:
            RequestError: one is not this member's.
        """
        self._pause(partitions, is_paused=True)

    def resume(self, partitions: Iterable[str] | None = None) -> None:
        """Go on with these, or with all that are paused; raises as `pause`."""
        self._pause(self.paused if partitions is None else partitions, is_paused=False)

    async def close(self) -> None:
        """Commit what is processed, give everything up and leave: others have the partitions at once.

        The record that is in hand is not processed, unless it was committed. If the coordinator cannot be
        reached for a session timeout, this is the end too: the partitions are others' by then.
        """
        self._is_closed = True
        consumption, task = self._consumption, self._task
        if consumption is None or task is None:
            return
        consumption.finish(self.delivery)
        consumption.close()
        try:
            async with asyncio.timeout(self._settings.session_timeout_s):
                await consumption.was_over.wait()
        except TimeoutError:
            _log.warning("group %s was left without a word: it could not be reached", self.group)
            task.cancel()
            await asyncio.wait([task])

    async def __aenter__(self) -> Self:
        """Join the group."""
        self._begin()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    @property
    def _buffers(self) -> Iterable[PartitionBuffer]:
        return () if self._consumption is None else self._consumption.buffers

    def _pause(self, partitions: Iterable[str], *, is_paused: bool) -> None:
        for partition in partitions:
            if self._consumption is None:
                raise _not_assigned(partition)
            buffers = self._consumption.buffers
            buffers.pause(buffers.assigned(partition), is_paused=is_paused)

    def _begin(self) -> ConsumerTasks:
        if self._consumption is None:
            self._consumption = self._open()
            self._task = self._background.start(_run(self, self._consumption))
        return self._consumption


async def _run(consumer: Consumer, consumption: ConsumerTasks) -> None:
    """Consume; keeps a ``consumer`` alive to which the application has no reference left."""
    await consumption.run()
    del consumer


def _not_assigned(partition: str) -> RequestError:
    return RequestError(f"{partition[:256]!r} is not assigned to this consumer")

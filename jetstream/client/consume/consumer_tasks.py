"""The tasks behind a consumer, from its first record to its end.

Theory of operation. The membership decides which partitions are read and which are given up. A feed reads
each partition into its buffer, from the group's cursor on, a batch ahead of the application, which gets
batches from the buffers in turn. A partition that is to be given up is stopped at once; the record that the
application works on stays its own until it asks for the next one. Then the processed records are committed,
and only then the partition is given up. Partitions that stay are not affected.
"""

import asyncio
import logging
from collections.abc import Mapping
from typing import Final, NoReturn

from consumer_groups.member.events import Closed, Resumed, Stalled, Subscribed
from envelope.errors import ConnectionLost, JetstreamError
from jetstream.client.consume.consumer_partitions import ConsumerPartitions, ConsumerServices
from jetstream.client.consume.coordinator_link import GroupLinks
from jetstream.client.consume.options import ConsumeSettings
from jetstream.client.consume.partition_buffers import Delivery, PartitionBuffers
from jetstream.client.nodes.node_links import NodeLinks
from jetstream.client.read.places import Start

_log = logging.getLogger(__name__)

_LOOKS: Final = 10
"""At an application that may be stuck, while it may be."""


class _Ended(Exception):
    """Ends the tasks of a consumption."""


class ConsumerTasks:
    """Runs until it is closed or has failed; made by `Consumer`.

    Attributes:
        buffers: records that were read.
        failure: why there are no more records; None if the application closed the consumer.
        is_over: nothing runs any more.
        was_over: set then.
    """

    def __init__(self, links: NodeLinks, groups: GroupLinks, settings: ConsumeSettings) -> None:
        self.buffers: Final = PartitionBuffers(counts_at_once=settings.commit == "before")
        self.failure: Exception | None = None
        self.is_over = False
        self.was_over: Final = asyncio.Event()
        self._links = links
        self._groups = groups
        self._settings = settings
        self._partitions: ConsumerPartitions | None = None
        self._ended = asyncio.Event()
        self._is_stalled = False

    async def run(self) -> None:
        """Consume until it is over."""
        try:
            async with asyncio.TaskGroup() as tasks:
                services = ConsumerServices(
                    links=self._links,
                    groups=self._groups,
                    settings=self._settings,
                    buffers=self.buffers,
                    tasks=tasks,
                    failed=self._fail,
                    ended=self._end,
                )
                partitions = self._partitions = ConsumerPartitions(services)
                tasks.create_task(partitions.committer.run())
                tasks.create_task(self._commit(partitions))
                if self._settings.processing_timeout_s is not None:
                    tasks.create_task(self._watch(partitions, self._settings.processing_timeout_s))
                partitions.member.give(Subscribed(self._settings.streams))
                await self._until_ended(partitions)
        except* _Ended:
            pass
        except* Exception as group:  # noqa: BLE001 - whoever waits for records would wait for ever
            self.failure = self.failure or group.exceptions[0]
        finally:
            self._is_done()

    async def _until_ended(self, partitions: ConsumerPartitions) -> NoReturn:
        """Wait until it is over, and the callbacks for the partitions lost by that have returned."""
        await self._ended.wait()
        await partitions.notified()
        raise _Ended

    def _is_done(self) -> None:
        if not self._ended.is_set():
            self.failure = self.failure or ConnectionLost("the client was closed")
        if self._partitions is not None:
            self._partitions.member.close()
        self.is_over = True
        self.was_over.set()
        self.buffers.has_ready.set()

    # --- for the application ------------------------------------------------------------------------------

    async def next(self, done: Delivery | None) -> Delivery | None:
        """Return what comes next, now that ``done`` is; None if it is over.

        Raises:
            JetstreamError: a partition cannot be read on, or there is no membership any more.
            Exception: a callback's.
        """
        self.finish(done)
        while True:
            if self.failure is not None:
                raise self.failure
            if self.is_over:
                return None
            delivery = self.buffers.take(self._settings.commit_records)
            if delivery is None:
                await self.buffers.has_ready.wait()
            elif self._partitions is not None and await self._partitions.commits.ahead(delivery):
                return delivery

    def finish(self, done: Delivery | None) -> None:
        """Return the delivery in the application's hands to its buffer."""
        if done is None or self._partitions is None:
            return
        self._partitions.commits.has_processed(self.buffers.finish(done))
        if self._is_stalled:
            self._is_stalled = False
            self._partitions.member.give(Resumed())

    async def commit(self, offsets: Mapping[str, int] | None, *, is_closed: bool) -> None:
        """Store where the application is, or the offsets that it names; see `Consumer.commit`.

        Once it ``is_closed`` the record in hand counts for nothing, which a callback expects and nobody else.
        """
        if is_closed and (self._partitions is None or not self._partitions.callbacks_running):
            raise ConnectionLost("the consumer was closed before: this is not committed")
        if offsets is None and self._partitions is not None:
            await self._partitions.commits.here()
        elif offsets and self._partitions is not None:
            await self._partitions.commits.at(offsets)

    def seek(self, stream: str, start: Start) -> None:
        """Go on elsewhere; see `Consumer.seek`."""
        self.buffers.assigned(stream)
        if self._partitions is not None:
            self._partitions.seek(stream, start)

    def close(self) -> None:
        """Give up everything and leave, as soon as that is committed."""
        if self._partitions is None:
            self._ended.set()
        else:
            self._partitions.member.give(Closed())

    # --- what happens -------------------------------------------------------------------------------------

    def _end(self, error: JetstreamError | None) -> None:
        self.failure = self.failure or error
        self._ended.set()

    def _fail(self, error: Exception) -> None:
        """End the membership, and raise ``error`` where the application asks for records."""
        assert self._partitions is not None, "what fails has begun"
        self.failure = self.failure or error
        self.buffers.has_ready.set()
        self._partitions.member.give(Stalled())
        self._partitions.member.give(Closed())

    async def _commit(self, partitions: ConsumerPartitions) -> None:
        try:
            await partitions.commits.run()
        except JetstreamError as error:
            self._fail(error)

    async def _watch(self, partitions: ConsumerPartitions, timeout_s: float) -> None:
        """Leave the group while the application is stuck in a record."""
        loop = asyncio.get_running_loop()
        seen, since = self.buffers.worked_on(), loop.time()
        while True:
            await asyncio.sleep(timeout_s / _LOOKS)
            now = self.buffers.worked_on()
            if now != seen or now is None:
                seen, since = now, loop.time()
            elif loop.time() - since >= timeout_s:
                text = "no record asked for in %g s: leaves the group until one is %s"
                _log.warning(text, timeout_s, partitions.member)
                self._is_stalled = True
                partitions.member.give(Stalled())

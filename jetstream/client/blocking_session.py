"""A publisher's session without asyncio, for tables: what crosses to the loop's thread is whole envelopes."""

from jetstream.client.batch_envelopes import Filled
from jetstream.client.loop_thread import LoopThread
from jetstream.client.message_table import ArrowTable
from jetstream.client.publishing import PublishOptions
from jetstream.client.session_publisher import SessionPublisher


class BlockingSession:
    """Publishes tables in one session; made by `BlockingClient.session`. One thread at a time may use it."""

    def __init__(self, thread: LoopThread, publisher: SessionPublisher) -> None:
        self._thread = thread
        self._publisher = publisher

    @property
    def name(self) -> str:
        """The session's name."""
        return self._publisher.name

    @property
    def last_sequence(self) -> int:
        """The number of the last envelope that was taken, 0 before the first."""
        return self._publisher.last_sequence

    def publish_batch(
        self,
        subject: str,
        table: ArrowTable,
        *,
        first_sequence: int | None = None,
        key: bytes | str | None = None,
        compress: bool = False,
    ) -> int:
        """Take the rows of a table in, in order; return their number as soon as all are taken.

        It waits while the window is full. The table is read in the caller's thread, and cut while what was
        cut before is on its way. That all is stored is what `flush` says, or the end of the block. Everything
        else: see `SessionPublisher.publish_batch`.

        Raises:
            TypeError: ``table`` is no table.
            RequestError: a column is missing, has the wrong type or is one too many: nothing is published.
            JetstreamError: why the session was given up, be it for an earlier table.
        """
        records, sequence = 0, first_sequence
        for each in self._publisher.envelopes(subject, table, key=key, compress=compress):
            self._thread.run(self._take(subject, each, sequence, key))
            records, sequence = records + each.records, None
        return records

    def flush(self) -> None:
        """Return when all that was taken is stored; raises the first failure."""
        self._thread.run(self._publisher.flush())

    async def _take(
        self, subject: str, envelope: Filled, sequence: int | None, key: bytes | str | None
    ) -> None:
        """Take one envelope in; nobody looks at its ack but `flush`."""
        options = PublishOptions(key=key, sequence=sequence)
        _ = await self._publisher.publish(subject, envelope, **options)

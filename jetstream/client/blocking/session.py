"""A publisher's session without asyncio, for tables: what crosses to the loop's thread is whole envelopes."""

from typing import Final, NamedTuple

from envelope.limits import KIB
from jetstream.client.blocking.loop_thread import LoopThread
from jetstream.client.publish.batch_envelopes import Filled
from jetstream.client.publish.message_table import ArrowTable
from jetstream.client.publish.messages import PublishOptions
from jetstream.client.publish.session_publisher import SessionPublisher

_TOGETHER_BYTES: Final = 256 * KIB
_TOGETHER_MAX: Final = 64
"""Envelopes that cross together: to change threads costs as much as to make a small one."""


class _Taken(NamedTuple):
    subject: str
    envelope: Filled
    options: PublishOptions


class BlockingSession:
    """Publishes tables in a session; made by `BlockingClient.session`. Used by one thread at a time."""

    def __init__(self, thread: LoopThread, publisher: SessionPublisher) -> None:
        self._thread = thread
        self._publisher = publisher
        self._taken: list[_Taken] = []
        self._taken_bytes = 0
        self._last = publisher.last_sequence

    @property
    def name(self) -> str:
        """The session's name."""
        return self._publisher.name

    @property
    def last_sequence(self) -> int:
        """The number of the last envelope that was taken, 0 before the first."""
        return self._last

    def publish_batch(
        self,
        subject: str,
        table: ArrowTable,
        *,
        first_sequence: int | None = None,
        key: bytes | str | None = None,
        compress: bool = False,
    ) -> int:
        """Queue the rows of a table, in order; return their number as soon as all are queued.

        It waits while the window is full. The table is read in the caller's thread, and cut while earlier
        envelopes are on their way; small envelopes are sent together. Not durable on return: `flush`, or the
        end of the block, waits until all is stored. Everything else: see `SessionPublisher.publish_batch`.

        Raises:
            TypeError: ``table`` is no table.
            RequestError: a column is missing, has the wrong type or is one too many: nothing is published.
            JetstreamError: why the session was given up, be it for an earlier table.
        """
        records, sequence = 0, first_sequence
        for each in self._publisher.envelopes(subject, table, key=key, compress=compress):
            self._last = self._last + 1 if sequence is None else sequence
            options = PublishOptions(key=key, sequence=self._last)
            self._taken.append(_Taken(subject, each, options))
            self._taken_bytes += len(each.payload)
            if self._taken_bytes >= _TOGETHER_BYTES or len(self._taken) >= _TOGETHER_MAX:
                self._hand_over()
            records, sequence = records + each.records, None
        return records

    def flush(self) -> None:
        """Return when all that was taken is stored; raises the first failure."""
        self._hand_over()
        self._thread.run(self._publisher.flush())

    def _hand_over(self) -> None:
        taken, self._taken, self._taken_bytes = self._taken, [], 0
        if taken:
            self._thread.run(self._publish(taken))

    async def _publish(self, taken: list[_Taken]) -> None:
        """Publish envelopes; only `flush` looks at their acks."""
        for subject, envelope, options in taken:
            _ = await self._publisher.publish(subject, envelope, **options)

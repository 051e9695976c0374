"""Cursors: where a consumer reads on, stored in the cluster."""

from collections.abc import Awaitable, Callable

from consumer_groups.cursors import CursorPosition, plain_key, publish_place
from envelope.errors import NoResponders
from envelope.internal_streams import cursor_subject
from jetstream.client.nodes.request_api import NatsRequests
from jetstream.client.publish.messages import PublishAck
from jetstream.client.read.places import Start
from metadata.api.responses import CursorInfo, ListCursorsResponse

Publish = Callable[[str, bytes | None], Awaitable[PublishAck]]
"""Publishes a message and waits until it is stored."""


class Cursors:
    """The cursors of all consumers. Reading them raises what `NatsRequests.ask` raises.

    Names of consumers have the grammar of stream names; another name raises `InvalidCursor`.
    """

    def __init__(self, requests: NatsRequests, publish: Publish) -> None:
        self._requests = requests
        self._publish = publish

    async def get(self, consumer: str, stream: str) -> CursorInfo:
        """Return a consumer's cursor in a stream, with every commit acked before; offset None: it has none.

        ``js.read(stream, start=cursor)`` goes on there.
        """
        fields: dict[str, object] = {"consumer": consumer, "stream": stream}
        return await self._requests.ask("cursor.get", fields, CursorInfo)

    async def commit(
        self,
        consumer: str,
        stream: str,
        offset: int,
        *,
        metadata: str | None = None,
        incarnation: str | None = None,
    ) -> PublishAck:
        """Store where a consumer reads on; durable on return, on every replica in sync.

        Args:
            consumer: whose.
            stream: it need not exist.
            offset: the next to read, from 0; it may be below the one before.
            metadata: the consumer's own, up to 1024 bytes of UTF-8.
            incarnation: of the stream that the offset belongs to (`BatchReader.incarnation`); with it a
                resumed reader notices that the stream was created again.

        Raises:
            InvalidCursor: a name, the offset or the metadata is invalid; nothing is stored.
            DeadlinePassed: no ack in time, outcome unknown: commit again.
            JetstreamError: refused; nothing is stored.
        """
        value = publish_place(CursorPosition(offset, incarnation, metadata))
        return await self._store(consumer, stream, value)

    async def delete(self, consumer: str, stream: str) -> PublishAck:
        """Delete a consumer's cursor in a stream, if there is one; raises as `commit`."""
        return await self._store(consumer, stream, None)

    async def list(self, consumer: str | None = None, stream: str | None = None) -> "list[CursorInfo]":
        """Return the cursors of a consumer, of a stream, or all, by consumer and stream.

        They come in pages by number: of more than 256 one may be missing or come twice if others come or go
        at this moment.
        """
        named = {"consumer": consumer, "stream": stream}
        fields: dict[str, object] = {name: text for name, text in named.items() if text is not None}
        return await self._requests.paged(
            "cursor.list", fields, ListCursorsResponse, lambda page: page.cursors
        )

    async def _store(self, consumer: str, stream: str, value: bytes | None) -> PublishAck:
        plain_key(consumer, stream)  # a name that is none could be part of another subject
        subject = cursor_subject(self._requests.prefix, consumer, stream)
        try:
            return await self._publish(subject, value)
        except NoResponders:
            await self.get(consumer, stream)  # makes the stream of cursors, if it is not there yet
            return await self._publish(subject, value)


def place_of(start: Start | CursorInfo, incarnation: str | None) -> tuple[Start, str | None]:
    """Return where a reader begins, and in which life of the stream, None for any."""
    if not isinstance(start, CursorInfo):
        return start, incarnation
    if start.offset is None:
        return "earliest", incarnation
    return start.offset, incarnation or start.incarnation

"""Publishers whose messages carry the context of a span, which ends with their acks.

An envelope is published as it is: it may be the copy of a record, or as large as NATS carries.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Unpack

from nats.aio.client import Client as NatsClient

from envelope.envelopes import COOKIE
from jetstream.client.publish.ack_inbox import AckFuture, AckInbox
from jetstream.client.publish.batch_envelopes import Filled
from jetstream.client.publish.messages import PublishAck, PublishOptions
from jetstream.client.publish.publisher import Message, Publisher
from jetstream.client.publish.session_messages import PublisherSessionSettings, SessionFuture
from jetstream.client.publish.session_publisher import SessionPublisher

if TYPE_CHECKING:
    from jetstream.client.spans import ClientTracer, PublishSpan


def carrying(span: "PublishSpan", value: bytes | Filled | None, options: PublishOptions) -> PublishOptions:
    """Return the options of a message with the context of a span, unless it is an envelope."""
    if isinstance(value, Filled) or (value is not None and bytes(value[: len(COOKIE)]) == COOKIE):
        return options
    carried = options.copy()
    carried["headers"] = span.headers(options.get("headers"))
    return carried


class TracedPublisher(Publisher):
    """A publisher with a span for each message of `publish`, and for each call of `publish_all`."""

    def __init__(
        self, tracer: "ClientTracer", nats_client: NatsClient, inbox: AckInbox, window: int, timeout: float
    ) -> None:
        self._tracer = tracer
        super().__init__(nats_client, inbox, window, timeout)

    async def publish(
        self, subject: str, value: bytes | None, **options: Unpack[PublishOptions]
    ) -> AckFuture:
        """See `Publisher.publish`."""
        with self._tracer.publishing(subject) as span:
            future = await super().publish(subject, value, **carrying(span, value, options))
            span.ends_with(future)
            return future

    async def publish_all(
        self,
        messages: Iterable[Message],
        progress: Callable[[int], None] | None = None,
        streams: Sequence[str] | None = None,
    ) -> list[PublishAck]:
        """See `Publisher.publish_all`."""
        with self._tracer.publishing(None) as span:
            acks = await super().publish_all(_all_carrying(span, messages), progress, streams)
            span.acked(acks)
            return acks


class TracedSessionPublisher(SessionPublisher):
    """A session with a span for each message."""

    def __init__(
        self,
        tracer: "ClientTracer",
        nats_client: NatsClient,
        inbox: AckInbox,
        settings: PublisherSessionSettings,
    ) -> None:
        self._tracer = tracer
        super().__init__(nats_client, inbox, settings)

    async def publish(
        self, subject: str, value: bytes | Filled | None, **options: Unpack[PublishOptions]
    ) -> SessionFuture:
        """See `SessionPublisher.publish`."""
        with self._tracer.publishing(subject) as span:
            future = await super().publish(subject, value, **carrying(span, value, options))
            span.ends_with(future)
            return future


def _all_carrying(span: "PublishSpan", messages: Iterable[Message]) -> Iterator[Message]:
    for subject, value, *options in messages:
        yield subject, value, carrying(span, value, options[0] if options else PublishOptions())

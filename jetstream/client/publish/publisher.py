"""Publishing with many acks outstanding, up to a window.

`UnobservedFailures` keeps a limited number of failures that were perhaps not looked at, so that a flush can
raise the first.
"""

import asyncio
from collections.abc import Callable, Iterable, Sequence
from types import TracebackType
from typing import Any, Final, Self, Unpack

import nats.errors
from nats.aio.client import Client as NatsClient

from envelope.errors import (
    ConnectionLost,
    InvalidHeader,
    InvalidSubject,
    Overloaded,
    RecordTooLarge,
    RequestError,
)
from envelope.limits import CONTROL_LINE_BYTES_MAX
from envelope.subjects import validated_subject
from jetstream.client.publish.ack_inbox import (
    AckFuture,
    AckInbox,
    AckOfEach,
    AcksFuture,
    ClaimedFuture,
    OneAck,
)
from jetstream.client.publish.messages import PublishAck, PublishOptions, encode_options, header_block_bytes

_KEPT_MAX: Final = 100

TIMEOUT_S_DEFAULT: Final = 5.0
WINDOW_DEFAULT: Final = 1000


class UnobservedFailures:
    """Futures of messages that failed and were not looked at; beyond a hundred they are only counted."""

    def __init__(self) -> None:
        self._futures: list[ClaimedFuture[Any]] = []
        self._uncounted = 0

    def __len__(self) -> int:
        return len(self._futures)

    def keep(self, failed: ClaimedFuture[Any]) -> None:
        """Keep a future that has failed."""
        if len(self._futures) >= _KEPT_MAX:
            self._futures = [future for future in self._futures if not future.claimed]
        if len(self._futures) < _KEPT_MAX:
            self._futures.append(failed)
        else:
            self._uncounted += 1

    def raise_first(self) -> None:
        """Raise the first failure that was not looked at, if there is one, and forget all of them.

        A note has their number.
        """
        failed = [future for future in self._futures if not future.claimed]
        count = len(failed) + self._uncounted
        self._futures, self._uncounted = [], 0
        if not failed:
            return
        error = asyncio.Future.exception(failed[0])
        assert error is not None, "only failures are kept"
        if count > 1:
            error.add_note(f"{count} messages failed; this is the first")
        raise error


Message = tuple[str, bytes | None] | tuple[str, bytes | None, PublishOptions]
"""Subject, value, and perhaps options."""
_SIZES_BYTES_MAX: Final = 3 + 2 * len("67108864")
"""In a control line, besides subjects: blanks, and the sizes of headers and of everything, 64 MiB at most."""


def checked_window(window: int) -> int:
    """Return ``window``; `RequestError` if it holds no message."""
    if window < 1:
        raise RequestError("a window holds at least one message")
    return window


async def send(
    nats_client: NatsClient, subject: str, value: bytes | None, reply: str, options: PublishOptions
) -> None:
    """Give one message to NATS; its failures as typed errors, all of which mean: not sent.

    Raises:
        InvalidSubject, InvalidHeader, RecordTooLarge: NATS would not carry it, or no stream could store it.
        Overloaded: NATS is away and its buffer is full.
        ConnectionLost: the NATS connection is closed.
    """
    validated_subject(subject)
    payload, headers = encode_options(value, options)
    # nats-py counts the payload alone. The server counts the headers too, and closes the connection for good.
    size, size_max = len(payload) + header_block_bytes(headers), nats_client.max_payload
    if size > size_max:
        raise RecordTooLarge(f"{size} bytes with its headers, NATS carries {size_max}")
    line = len(subject.encode()) + len(reply) + _SIZES_BYTES_MAX
    if line > CONTROL_LINE_BYTES_MAX:
        raise InvalidSubject(f"subject of {len(subject)} characters: NATS carries no line so long")
    try:
        await nats_client.publish(subject, payload, reply=reply, headers=headers)
    except nats.errors.BadSubjectError:
        raise InvalidSubject(f"subject {subject!r}") from None
    except nats.errors.BadHeaderError as error:
        raise InvalidHeader(f"header {error}") from None
    except nats.errors.OutboundBufferLimitError:
        raise Overloaded("NATS is away and the buffer for it is full") from None
    except nats.errors.Error as error:
        raise ConnectionLost(f"NATS: {error}") from error


class Publisher:
    """Publishes without waiting for each ack; at most ``window`` are outstanding.

    ``await publisher.publish(…)`` returns a future of the ack as soon as the message is given to NATS, and
    waits only while the window is full. A failure that was not seen through its future is raised by the
    next `flush`, or when the ``async with`` block ends.

    Invariants:
        C10: at most ``window`` messages are sent and neither acked nor failed.
            Held by test_a_publisher_keeps_its_window_and_its_order.
        C11: every failure is seen through its future or raised by `flush`.
            Held by test_a_publishers_failures_are_never_lost.
    """

    def __init__(self, nats_client: NatsClient, inbox: AckInbox, window: int, timeout: float) -> None:
        """Use an inbox that other publishers may share; ``timeout`` in seconds for each ack."""
        self._nats = nats_client
        self._inbox = inbox
        self._entered = False
        self._window = checked_window(window)
        self._timeout = timeout
        self._loop = asyncio.get_running_loop()
        self._outstanding: set[OneAck | AckOfEach] = set()
        self._changed = asyncio.Event()
        self._failures = UnobservedFailures()

    @property
    def outstanding(self) -> int:
        """How many messages await their ack."""
        return len(self._outstanding)

    @property
    def payload_max(self) -> int:
        """Bytes of payload that NATS carries in one message."""
        return self._nats.max_payload

    async def publish(
        self, subject: str, value: bytes | None, **options: Unpack[PublishOptions]
    ) -> AckFuture:
        """Send one message and return the future of its ack; waits while the window is full.

        Raises:
            JetstreamError: the message was not sent.
        """
        ack = OneAck(self._loop)
        await self._send(ack, subject, value, options)
        return ack.future

    async def publish_all(
        self,
        messages: Iterable[Message],
        progress: Callable[[int], None] | None = None,
        streams: Sequence[str] | None = None,
    ) -> list[PublishAck]:
        """Send all messages and return their acks, in the order of the messages.

        Args:
            messages: (subject, value) or (subject, value, options); taken one by one as the window allows.
            progress: called with the number of messages acked so far whenever a window full has come.
            streams: wait for the acks of all these, and return them in this order for each message in turn;
                otherwise the first stream that acks is enough.

        Raises:
            JetstreamError: the first failure; what was sent before and after it may be stored.
        """
        futures: list[AckFuture | AcksFuture] = []
        acks: list[PublishAck] = []
        acked = 0
        for message in messages:
            options = message[2] if len(message) == 3 else PublishOptions()
            ack = OneAck(self._loop) if streams is None else AckOfEach(streams, self._loop)
            await self._send(ack, message[0], message[1], options)
            futures.append(ack.future)
            if len(futures) >= 2 * self._window:
                acks += await _gathered(futures[: self._window])
                acked += self._window
                del futures[: self._window]
                if progress is not None:
                    progress(acked)
        acks += await _gathered(futures)
        if progress is not None:
            progress(acked + len(futures))
        return acks

    async def flush(self) -> None:
        """Return when every message is acked.

        Raises:
            JetstreamError: the first failure that was not seen through its future; a note has their number.
        """
        while self._outstanding:
            self._changed.clear()
            await self._changed.wait()
        self._failures.raise_first()  # C11

    async def __aenter__(self) -> Self:
        self._entered = True
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Flush; if the block failed, give up what is outstanding instead."""
        self._entered = False
        if error is None:
            await self.flush()
        for ack in tuple(self._outstanding):
            self._inbox.withdraw(ack)
            ack.on_failure(ConnectionLost("the publisher was left before the ack came"))

    async def _send(
        self, ack: OneAck | AckOfEach, subject: str, value: bytes | None, options: PublishOptions
    ) -> None:
        """Send one message, whose answers are for ``ack``; waits while the window is full."""
        while len(self._outstanding) >= self._window:
            self._changed.clear()
            await self._changed.wait()
        if not self._entered:
            raise RequestError("a publisher publishes inside its async with block")
        reply = self._inbox.expect(ack, options.get("timeout", self._timeout))
        self._outstanding.add(ack)
        assert len(self._outstanding) <= self._window, "C10"
        sent = False
        try:
            await send(self._nats, subject, value, reply, options)
            sent = True
        finally:
            if not sent:
                self._inbox.withdraw(ack)
                self._outstanding.discard(ack)
                self._changed.set()
        ack.future.add_done_callback(lambda _: self._on_done(ack))

    def _on_done(self, ack: OneAck | AckOfEach) -> None:
        self._outstanding.discard(ack)
        self._changed.set()
        done: asyncio.Future[Any] = ack.future
        if done.cancelled():  # whoever waited for it does not any more
            self._inbox.withdraw(ack)
            return
        # The base class's method: to look here is not to claim.
        if asyncio.Future.exception(done) is not None and not ack.future.claimed:
            self._failures.keep(ack.future)


async def _gathered(futures: Sequence[AckFuture | AcksFuture]) -> list[PublishAck]:
    """Return all acks in order; raises the first failure."""
    acks: list[PublishAck] = []
    for future in futures:
        done = await future
        if isinstance(done, list):
            acks += done
        else:
            acks.append(done)
    return acks

"""Publishing with many acks outstanding, up to a window.

`UnobservedFailures` keeps a limited number of failures that were perhaps not looked at, so that a flush can
raise the first.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import lru_cache, partial
from itertools import islice
from types import TracebackType
from typing import Any, Final, Self, Unpack

from nats.aio.client import Client as NatsClient

from envelope.errors import ConnectionLost, InvalidSubject, RecordTooLarge, RequestError
from envelope.limits import CONTROL_LINE_BYTES_MAX, KIB
from envelope.subjects import validated_subject
from jetstream.client.nodes.nats_seam import write
from jetstream.client.publish.ack_inbox import (
    AckBlock,
    AckFuture,
    AckInbox,
    AckOfEach,
    AcksFuture,
    ClaimedFuture,
    Expected,
    OneAck,
)
from jetstream.client.publish.messages import PublishAck, PublishOptions, encode_options, header_block

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

_TOGETHER_BYTES: Final = 256 * KIB
"""Payload after which messages are written: to join more of it gains nothing."""

_SIZES_BYTES_MAX: Final = 3 + 2 * len("67108864")
"""In a control line, besides subjects: blanks, and the sizes of headers and of everything, 64 MiB at most."""


def checked_window(window: int) -> int:
    """Return ``window``; `RequestError` if it holds no message."""
    if window < 1:
        raise RequestError("a window holds at least one message")
    return window


async def send(
    nats_client: NatsClient, subject: str, value: bytes | None, reply: bytes, options: PublishOptions
) -> None:
    """Give one message to NATS; its failures as typed errors, all of which mean: not sent.

    Raises:
        InvalidSubject, InvalidHeader, RecordTooLarge: NATS would not carry it, or no stream could store it.
        Overloaded: NATS is away and its buffer is full.
        ConnectionLost: the NATS connection is closed.
    """
    command = _command(subject, value, reply, options, nats_client.max_payload)
    await write(nats_client, command, 1, len(command[1]))


def _command(
    subject: str, value: bytes | None, reply: bytes, options: PublishOptions | None, size_max: int
) -> tuple[bytes, bytes, bytes]:
    """Return the command that publishes a message, in pieces; the payload is the second.

    Raises:
        InvalidSubject, InvalidHeader, RecordTooLarge: NATS would not carry it, or no stream could store it.
        RequestError: a tombstone with a value.
        TypeError: the value is no bytes, or an option does not exist.
    """
    name = _encoded_subject(subject)
    if options or value is None:
        value, headers = encode_options(value, options or PublishOptions())
        header = header_block(headers)
    else:
        header = b""
    if type(value) is not bytes:
        value = bytes(memoryview(value))  # it may be changed before it leaves
    # The server counts the headers too, and closes the connection for good.
    size = len(header) + len(value)
    if size > size_max:
        raise RecordTooLarge(f"{size} bytes with its headers, NATS carries {size_max}")
    if len(name) + len(reply) + _SIZES_BYTES_MAX > CONTROL_LINE_BYTES_MAX:
        raise InvalidSubject(f"subject of {len(subject)} characters: NATS carries no line so long")
    if header:
        return b"HPUB %b %b %d %d\r\n%b" % (name, reply, len(header), size, header), value, b"\r\n"
    return b"PUB %b %b %d\r\n" % (name, reply, size), value, b"\r\n"


@lru_cache(maxsize=4096)
def _encoded_subject(subject: str) -> bytes:
    return validated_subject(subject).encode()


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
        self._expected: set[Expected] = set()
        self._unanswered = 0
        """Messages, of all that is expected."""
        self._changed = asyncio.Event()
        self._failures = UnobservedFailures()

    @property
    def outstanding(self) -> int:
        """How many messages await their ack."""
        return self._unanswered

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
        await self._room()
        ack = OneAck(self._loop, options.get("timeout", self._timeout), self._on_answers)
        ack.subjects.append(subject)
        reply = self._inbox.address(ack) + b"0"
        command = _command(subject, value, reply, options, self._nats.max_payload)
        await self._write((ack,), command, 1, len(command[1]))
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
        sent: deque[tuple[AcksFuture, int]] = deque()
        acks: list[PublishAck] = []
        acked = told = 0
        source = iter(messages)
        is_last = False
        while not is_last:
            some = await self._send_some(source, streams)
            is_last = not some
            sent += some
            while sent and (is_last or sent[0][0].done()):
                future, count = sent.popleft()
                acks += await future
                acked += count
                if progress is not None and acked - told >= self._window:
                    progress(acked)
                    told = acked
        if progress is not None and (acked > told or not acked):
            progress(acked)
        return acks

    async def flush(self) -> None:
        """Return when every message is acked.

        Raises:
            JetstreamError: the first failure that was not seen through its future; a note has their number.
        """
        while self._unanswered:
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
        for each in tuple(self._expected):
            self._inbox.withdraw(each)
            each.on_failure(ConnectionLost("the publisher was left before the ack came"))

    async def _room(self) -> int:
        """Return how many messages the window has room for; waits while it is full."""
        while self._unanswered >= self._window:
            self._changed.clear()
            await self._changed.wait()
        if not self._entered:
            raise RequestError("a publisher publishes inside its async with block")
        return self._window - self._unanswered

    async def _send_some(
        self, source: Iterator[Message], streams: Sequence[str] | None
    ) -> list[tuple[AcksFuture, int]]:
        """Send the next messages together, as many as there is room for; return the futures of their acks.

        Each future comes with its number of messages; there is none where no message was left. A message
        that cannot be sent is an error; those before it are sent.
        """
        room = await self._room()
        size_max = self._nats.max_payload
        expected: list[AckBlock | AckOfEach] = []
        block: AckBlock | AckOfEach | None = None
        pieces: list[bytes] = []
        reply = b""
        number = size = 0
        try:
            for message in islice(source, room):
                options = message[2] if len(message) == 3 else None
                timeout = self._timeout if options is None else options.get("timeout", self._timeout)
                if block is None or streams is not None or block.timeout != timeout:
                    block = self._block(timeout, streams)
                    reply, number = self._inbox.address(block), 0
                command = _command(message[0], message[1], b"%b%d" % (reply, number), options, size_max)
                pieces += command
                if number == 0:
                    expected.append(block)
                block.subjects.append(message[0])
                number += 1
                size += len(command[1])
                if size >= _TOGETHER_BYTES:
                    break
        finally:
            if pieces:
                for each in expected:
                    each.expect_all()
                await self._write(expected, pieces, sum(len(each.subjects) for each in expected), size)
        return [(each.future, len(each.subjects)) for each in expected]

    def _block(self, timeout: float, streams: Sequence[str] | None) -> AckBlock | AckOfEach:
        if streams is None:
            return AckBlock(self._loop, timeout, self._on_answers)
        return AckOfEach(streams, self._loop, timeout, self._on_answers)

    async def _write(
        self, expected: Sequence[Expected], pieces: Sequence[bytes], messages: int, payload_bytes: int
    ) -> None:
        """Give messages to NATS; if it does not take them, no answers to them are expected."""
        for each in expected:
            self._inbox.expect(each)
        self._expected.update(expected)
        self._unanswered += messages
        assert self._unanswered <= self._window, "C10"
        sent = False
        try:
            await write(self._nats, pieces, messages, payload_bytes)
            sent = True
        finally:
            for each in expected:
                if sent:
                    each.future.add_done_callback(partial(self._on_done, each))
                else:
                    self._give_up(each)

    def _on_answers(self, expectation: Expected, count: int, failed: Sequence[ClaimedFuture[Any]]) -> None:
        self._unanswered -= count
        if not expectation.unanswered:
            self._expected.discard(expectation)
        self._changed.set()
        for future in failed:
            asyncio.Future.exception(future)  # the base class's method: to look here is not to claim
            self._failures.keep(future)

    def _on_done(self, expectation: Expected, _: object) -> None:
        if expectation.future.cancelled():  # the caller that waited for it does not any more
            self._give_up(expectation)

    def _give_up(self, expectation: Expected) -> None:
        self._inbox.withdraw(expectation)
        count, expectation.unanswered = expectation.unanswered, 0
        self._on_answers(expectation, count, ())

"""A publisher that numbers its messages, so that each is stored once, in order, whatever happens on the way.

Every message names its session, its number and that of the message before it. So many may be on their way: if
one is lost, those behind it are refused and not stored before it. When anything goes wrong the publisher
sends again all that is not acked, in order; a message that was stored the first time is answered with its
offset. A message that is refused for good is left out, and the next one names the one before that.

Publishing the same messages again under the same numbers, in a session of the same name, stores none of
them twice. Other messages need another name.
"""

import asyncio
from collections.abc import Iterator
from functools import partial
from itertools import islice
from typing import Final, Unpack

from nats.aio.client import Client as NatsClient

from envelope.errors import (
    ConnectionLost,
    DeadlinePassed,
    JetstreamError,
    OffsetForgotten,
    RecordTooLarge,
    RequestError,
    SequenceGap,
)
from jetstream.client.publish.ack_inbox import AckInbox, ClaimedFuture, OneAck
from jetstream.client.publish.batch_envelopes import Filled, batch_rows, envelopes
from jetstream.client.publish.message_table import ArrowTable
from jetstream.client.publish.messages import PublishOptions, encode_options, header_block
from jetstream.client.publish.publisher import UnobservedFailures, send
from jetstream.client.publish.session_messages import (
    PublisherSessionSettings,
    SessionAck,
    SessionFuture,
    SessionMessage,
    UnackedMessages,
)
from jetstream.client.publish.session_rules import AckTimeout, RefusalEffect, named_last

_BACKOFF_S_MIN: Final = 0.02
_BACKOFF_S_MAX: Final = 1.0
_ATTEMPTS_MAX: Final = 8
"""Of one message, whose acks are waited for."""
_SEQUENCE_MAX: Final = (1 << 63) - 1


class SessionPublisher:
    """Publishes one session; made by `JetstreamClient.session`.

    Invariants:
        C19: what is not acked is sent in the order of the numbers, each naming the one before it.
            Held by test_a_publisher_goes_on_while_its_leader_is_killed.
        C20: a failure is definite for its message, or ends the session: then nothing behind it is stored.
            Held by test_a_refused_message_is_left_out_and_the_others_go_on.
    """

    def __init__(self, nats_client: NatsClient, inbox: AckInbox, settings: PublisherSessionSettings) -> None:
        """Nothing is sent before `run` runs."""
        self._nats = nats_client
        self._inbox = inbox
        self._settings = settings
        self._loop = asyncio.get_running_loop()
        self._unacked = UnackedMessages(settings.window, settings.window_bytes)
        self._sent = 0  # of these, from the first on
        self._last = 0
        self._last_acked = settings.after or 0  # and left the queue
        self._is_begun = self._last_acked > 0  # the stream has acked a message, be it not the first
        self._changed = asyncio.Event()
        self._trouble: JetstreamError | None = None
        self._failed: Exception | None = None
        self._failures = UnobservedFailures()
        self._progress_at = self._loop.time()
        self._backoff_s = _BACKOFF_S_MIN
        self._timeout = AckTimeout(settings.timeout_s, settings.retry_s, settings.window)
        self._timer: asyncio.TimerHandle | None = None

    @property
    def name(self) -> str:
        """The session's name."""
        return self._settings.name

    @property
    def last_sequence(self) -> int:
        """The number of the last message that was given to `publish`, 0 before the first."""
        return self._last

    async def publish(
        self,
        subject: str,
        value: bytes | Filled | None,
        **options: Unpack[PublishOptions],
    ) -> SessionFuture:
        """Queue one message; return the future of its ack, and wait only while the window is full.

        Args:
            subject: where.
            value: the payload; None is a tombstone. Or one of the `envelopes` of a table.
            options: see `PublishOptions`. A ``sequence`` must be above the last one's; by default it is the
                next number. The options that identify the message or name the stream belong to the session.

        Raises:
            TypeError: ``value`` is no bytes, or an option does not exist.
            RequestError: an option that is the session's own, or a number that is not above the last.
            JetstreamError: the message cannot be sent, or the session is given up.
        """
        value, records = (value.payload, value.records) if isinstance(value, Filled) else (value, None)
        if value is not None and type(value) is not bytes:
            value = bytes(memoryview(value))  # what can be changed until it is sent again is copied
        ours = {"message_id", "stream", "session", "sequence_after", "timeout"} & options.keys()
        if ours:
            raise RequestError(f"options of a session, not of one message: {', '.join(sorted(ours))}")
        payload, _ = encode_options(value, options)
        if len(payload) > self._nats.max_payload:
            raise RecordTooLarge(f"{len(payload)} bytes, NATS carries {self._nats.max_payload}")
        while not self._unacked.has_room(len(payload)) and self._failed is None:
            await self._wait()
        if self._failed is not None:
            raise self._failed
        asked = options.pop("sequence", None)
        number = self._last + 1 if asked is None else asked
        if number <= self._last and self._settings.is_derived:
            return self._again(number, records)
        if number <= self._last:
            raise RequestError(f"sequence {number} is not above the last one, {self._last}")
        message = SessionMessage(
            sequence=number,
            subject=subject,
            value=value,
            options=options,
            future=ClaimedFuture(loop=self._loop),
            records=records,
        )
        if not self._unacked:
            self._progress_at = self._loop.time()
        self._last = number
        self._unacked.append(message)
        self._changed.set()
        return message.future

    async def publish_batch(
        self,
        subject: str,
        table: ArrowTable,
        *,
        first_sequence: int | None = None,
        key: bytes | str | None = None,
        compress: bool = False,
    ) -> list[SessionFuture]:
        """Publish the rows of a table in order, in batch envelopes, each of them one message of the session.

        Equal rows are cut alike, however they come in batches, as long as subject, options and the length of
        the session's name are the same and NATS carries as much (``max_payload``): so whoever publishes an
        equal table again under the same numbers stores nothing twice.

        Args:
            subject: of all records.
            table: as `JetstreamClient.publish_batch` takes it; read in another thread.
            first_sequence: of the first envelope, above the last one's; by default the next number. Those
                behind it are numbered on.
            key: of all records, where the stream is partitioned by key.
            compress: put each envelope into a zstd frame.

        Returns:
            The futures of the envelopes' acks, in order, as soon as all are taken; it waits while the window
            is full. An ack's ``count`` is that of the envelope's records.

        Raises:
            TypeError: ``table`` is no table.
            RequestError: a column is missing, has the wrong type or is one too many: nothing is published.
            Unsupported: the stream's node does not know envelopes; the session is given up.
            JetstreamError: as `publish`. Where the stream has something else under an envelope's number, and
                knows it, the session is given up with `RequestError`.
        """
        filled = self.envelopes(subject, table, key=key, compress=compress)
        asked = PublishOptions() if key is None else PublishOptions(key=key)
        first = asked if first_sequence is None else PublishOptions(**asked, sequence=first_sequence)
        futures: list[SessionFuture] = []
        # In another thread: what the rows come from may have to wait for them.
        while (each := await asyncio.to_thread(next, filled, None)) is not None:
            futures.append(await self.publish(subject, each, **(asked if futures else first)))
        return futures

    def envelopes(
        self, subject: str, table: ArrowTable, *, key: bytes | str | None = None, compress: bool = False
    ) -> Iterator[Filled]:
        """Yield the envelopes of a table, to be published in their order, on this subject and with this key.

        Any thread may; for everything else see `publish_batch`.
        """
        widest = self._settings.placed(PublishOptions(key=key), _SEQUENCE_MAX, _SEQUENCE_MAX)
        payload_max = self._nats.max_payload - len(header_block(encode_options(b"", widest)[1]))
        return envelopes(batch_rows(table), subject, payload_max, compress=compress, message_id=None)

    def _again(self, number: int, records: int | None) -> SessionFuture:
        """Return the future of a message that was given before, or whose number was passed: it is stored."""
        for message in self._unacked:
            if message.sequence == number:
                return message.future
        future: SessionFuture = ClaimedFuture(loop=self._loop)
        future.set_result(self._settings.forgotten(number, records))
        return future

    async def flush(self) -> None:
        """Return when every message is acked.

        Raises:
            JetstreamError: the first failure that was not seen through its future; a note has their number.
        """
        while self._unacked:
            await self._wait()
        self._failures.raise_first()

    async def run(self) -> None:
        """Send and send again, until cancelled or given up; a failure then fails all messages."""
        try:
            while self._failed is None:
                if self._trouble is not None:
                    await self._begin_again()
                elif self._sent < len(self._unacked):
                    await self._send_next()
                else:
                    await self._wait()
        except Exception as error:  # noqa: BLE001 - whoever waits for an ack would wait for ever
            self._give_up(error)

    def abandon(self) -> None:
        """Give up: the outcome of messages that are not acked is unknown."""
        if self._failed is None:
            self._give_up(ConnectionLost("the session was left before the ack came"))

    async def _wait(self) -> None:
        self._changed.clear()
        await self._changed.wait()

    async def _send_next(self) -> None:
        place = self._sent
        message = self._unacked[place]
        self._sent += 1
        if message.is_stored:
            return
        message.after = self._unacked[place - 1].sequence if place else self._last_acked
        options = self._settings.placed(message.options, message.sequence, message.after)
        ack = message.ack = OneAck(self._loop, max(self._settings.retry_s, self._settings.timeout_s))
        ack.subjects.append(message.subject)
        reply = self._inbox.address(ack) + b"0"
        self._inbox.expect(ack)
        ack.future.add_done_callback(partial(self._answered, message, ack))
        message.attempts.append(ack)
        if len(message.attempts) > _ATTEMPTS_MAX:
            self._inbox.withdraw(message.attempts.pop(0))
        message.sent_at = self._loop.time()
        message.first_sent_at = message.first_sent_at or message.sent_at
        if self._timer is None:
            self._watch()
        try:
            await send(self._nats, message.subject, message.value, reply, options)
        except JetstreamError as error:
            self._inbox.withdraw(ack)
            ack.on_failure(error)

    def _watch(self) -> None:
        """Come again when the first of the messages that are sent is overdue."""
        self._timer = self._loop.call_at(self._unacked[0].sent_at + self._timeout.seconds, self._look)

    def _look(self) -> None:
        """Find trouble if the first message is overdue; those behind it were sent later."""
        self._timer = None
        if self._sent == 0 or self._trouble is not None:
            return  # the next one that is sent has it watched again
        timeout_s = self._timeout.seconds
        if self._loop.time() < self._unacked[0].sent_at + timeout_s:
            self._watch()
            return
        self._timeout.passed()
        self._trouble = DeadlinePassed(
            f"no ack within {timeout_s:g} s: whether the message is stored is unknown"
        )
        self._changed.set()

    def _answered(self, message: SessionMessage, ack: OneAck, _: object) -> None:
        error = ack.future.exception()  # looked at, whether or not it counts
        if ack not in message.attempts:
            return
        if error is None:
            try:
                told = message.stored_as(ack.future.result())
            except RequestError as other:  # C20: who goes on would take what is there for what it is not
                self._give_up(other)
            else:
                self._stored(message, told)
        elif isinstance(error, OffsetForgotten):
            self._stored(message, self._settings.forgotten(message.sequence, message.records))
        elif ack is message.ack:
            assert isinstance(error, JetstreamError), f"nobody tells us otherwise: {error!r}"
            self._refused(message, error)

    def _stored(self, message: SessionMessage, ack: SessionAck) -> None:
        message.is_stored = self._is_begun = True
        message.withdraw(self._inbox)
        self._timeout.acked(self._loop.time() - message.first_sent_at)
        if not message.future.done():  # whoever waited may have left
            message.future.set_result(ack)
        self._progress_at = self._loop.time()
        self._backoff_s = _BACKOFF_S_MIN
        while (left := self._unacked.pop_stored()) is not None:
            self._last_acked = left.sequence
            self._sent = max(0, self._sent - 1)  # 0: an earlier attempt is acked, before the next one
        self._changed.set()

    def _refused(self, message: SessionMessage, error: JetstreamError) -> None:
        """C20: leave out a message that is refused for good; otherwise send again all that is not acked."""
        effect = self._settings.effect(error, message, self._last_acked, is_begun=self._is_begun)
        if effect is RefusalEffect.GIVE_UP:
            self._give_up(error)
        elif effect is RefusalEffect.IS_STORED:
            self._stored(message, self._settings.forgotten(message.sequence, message.records))
        elif effect is RefusalEffect.FOLLOW:
            assert isinstance(error, SequenceGap), "it names what the stream has"
            self._last_acked = named_last(error)
            self._trouble = self._trouble or error
        elif effect is RefusalEffect.SEND_AGAIN:
            self._trouble = self._trouble or error
        else:
            place = self._unacked.remove(message)
            message.withdraw(self._inbox)
            self._sent -= place < self._sent
            self._fail(message, error)
            if self._sent > place:
                self._trouble = self._trouble or error  # those behind it have named it
        self._changed.set()

    async def _begin_again(self) -> None:
        """Send all that is not acked again, a little later."""
        error, self._trouble = self._trouble, None
        assert error is not None, "there is trouble"
        for message in islice(self._unacked, self._sent):
            message.ack = None
        self._sent = 0
        if self._loop.time() - self._progress_at > self._settings.retry_s:
            self._give_up(error)
            return
        await asyncio.sleep(self._backoff_s)
        self._backoff_s = min(2 * self._backoff_s, _BACKOFF_S_MAX)
        self._trouble = None

    def _give_up(self, error: Exception) -> None:
        self._failed = error
        if self._timer is not None:
            self._timer.cancel()
        for message in self._unacked:
            message.withdraw(self._inbox)
            self._fail(message, error)
        self._unacked.clear()
        self._sent = 0
        self._changed.set()

    def _fail(self, message: SessionMessage, error: Exception) -> None:
        if not message.future.done():
            message.future.set_exception(error)
            asyncio.Future.exception(message.future)  # looked at by `flush`, if by nobody else
            self._failures.keep(message.future)

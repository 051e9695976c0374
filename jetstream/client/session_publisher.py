"""A publisher that numbers its messages, so that each is stored once, in order, whatever happens on the way.

Every message names its session, its number and that of the message before it. So many may be on their way: if
one is lost, those behind it are refused and not stored before it. When anything goes wrong the publisher
sends again all that is not acked, in order; what was stored the first time is answered with its offset. A
message that is refused for good is left out, and the next one names the one before that.

Who runs again with the same messages under the same numbers, in a session of the same name, stores none of
them twice. Who has other messages takes another name.
"""

import asyncio
import uuid
from collections import deque
from dataclasses import dataclass, field
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
from jetstream.client.ack_inbox import AckInbox, ClaimedFuture, OneAck
from jetstream.client.kept_failures import KeptFailures
from jetstream.client.publisher import checked_window, send
from jetstream.client.publishing import PublishOptions, encode_options
from jetstream.client.session_rules import (
    AckTimeout,
    Consequence,
    consequence_of,
    derived_consequence,
    named_last,
)

SESSION_TIMEOUT_S_DEFAULT: Final = 2.0
RETRY_S_DEFAULT: Final = 60.0
_BACKOFF_S_MIN: Final = 0.02
_BACKOFF_S_MAX: Final = 1.0
_ATTEMPTS_MAX: Final = 8
"""Of one message, whose acks are waited for."""


@dataclass(frozen=True, slots=True)
class SessionAck:
    """A message of a session is stored as its stream promises."""

    stream: str
    sequence: int
    offset: int | None
    """None: it was stored so long ago that the stream has forgotten where."""
    duplicate: bool
    """An earlier attempt had stored it."""


SessionFuture = ClaimedFuture[SessionAck]


@dataclass(frozen=True, slots=True)
class SessionSettings:
    """How a session is published.

    Attributes:
        name: of the session; unique, unless it repeats what an earlier one sent.
        stream: that answers, if several bind the subjects.
        window: messages that are not acked.
        timeout_s: seconds for an ack, before all is sent again; doubles, up to 16 times, while acks take
            longer.
        retry_s: seconds without any progress, before the session is given up.
        is_derived: numbers and messages follow from something that is read, so that whoever publishes the
            session publishes the same; see `derived_consequence`.
    """

    name: str = field(default_factory=lambda: uuid.uuid4().hex)
    stream: str | None = None
    window: int = 1000
    timeout_s: float = SESSION_TIMEOUT_S_DEFAULT
    retry_s: float = RETRY_S_DEFAULT
    is_derived: bool = False


@dataclass(slots=True, eq=False)
class _Message:
    sequence: int
    subject: str
    value: bytes | None
    options: PublishOptions
    future: SessionFuture
    attempts: list[OneAck] = field(default_factory=list)
    """All that may still be answered: that one of them is stored counts, however late it is told."""
    ack: OneAck | None = None
    """Of the last attempt, the only one whose refusal counts; None: it is to be sent again."""
    first_sent_at: float = 0.0
    sent_at: float = 0.0
    """Both by the loop's clock, seconds."""
    after: int = 0
    """The message that the last attempt named as the one before it."""
    is_stored: bool = False


class SessionPublisher:
    """Publishes one session; made by `JetstreamClient.session`.

    Invariants:
        C19: what is not acked is sent in the order of the numbers, each naming the one before it.
        C20: a failure is definite for its message, or ends the session: then nothing behind it is stored.
    """

    def __init__(self, nats_client: NatsClient, inbox: AckInbox, settings: SessionSettings) -> None:
        """Nothing is sent before `run` runs."""
        checked_window(settings.window)
        self._nats = nats_client
        self._inbox = inbox
        self._settings = settings
        self._loop = asyncio.get_running_loop()
        self._unacked: deque[_Message] = deque()
        self._sent = 0  # of these, from the first on
        self._last = 0
        self._last_acked = 0  # and left the queue
        self._is_begun = False  # the stream has acked a message, be it not the first
        self._changed = asyncio.Event()
        self._trouble: JetstreamError | None = None
        self._failed: Exception | None = None
        self._failures = KeptFailures()
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
        value: bytes | None,
        **options: Unpack[PublishOptions],
    ) -> SessionFuture:
        """Take one message; return the future of its ack, and wait only while the window is full.

        Args:
            subject: where.
            value: the payload; None is a tombstone.
            options: see `PublishOptions`. A ``sequence`` must be above the last one's; by default it is the
                next number. What else identifies the message, or names the stream, is the session's.

        Raises:
            TypeError: ``value`` is no bytes, or an option does not exist.
            RequestError: an option that is the session's own, or a number that is not above the last.
            JetstreamError: the message cannot be sent, or the session is given up.
        """
        if value is not None and type(value) is not bytes:
            value = bytes(memoryview(value))  # what can be changed until it is sent again is copied
        ours = {"message_id", "stream", "session", "sequence_after", "timeout"} & options.keys()
        if ours:
            raise RequestError(f"options of a session, not of one message: {', '.join(sorted(ours))}")
        payload, _ = encode_options(value, options)
        if len(payload) > self._nats.max_payload:
            raise RecordTooLarge(f"{len(payload)} bytes, NATS carries {self._nats.max_payload}")
        while len(self._unacked) >= self._settings.window and self._failed is None:
            await self._wait()
        if self._failed is not None:
            raise self._failed
        asked = options.pop("sequence", None)
        number = self._last + 1 if asked is None else asked
        if number <= self._last and self._settings.is_derived:
            return self._again(number)
        if number <= self._last:
            raise RequestError(f"sequence {number} is not above the last one, {self._last}")
        message = _Message(number, subject, value, options, ClaimedFuture(loop=self._loop))
        if not self._unacked:
            self._progress_at = self._loop.time()
        self._last = number
        self._unacked.append(message)
        self._changed.set()
        return message.future

    def _again(self, number: int) -> SessionFuture:
        """Return the future of a message that was given before, or whose number was passed: it is stored."""
        for message in self._unacked:
            if message.sequence == number:
                return message.future
        future: SessionFuture = ClaimedFuture(loop=self._loop)
        future.set_result(SessionAck(self._settings.stream or "", number, None, duplicate=True))
        return future

    async def flush(self) -> None:
        """Return when every message is acked.

        Raises:
            JetstreamError: the first failure that nobody has looked at; a note says how many there are.
        """
        while self._unacked:
            await self._wait()
        self._failures.raise_first()

    async def run(self) -> None:
        """Send and send again, until cancelled or the session is given up; whatever fails is told to all."""
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
        """Give up: what is not acked is of unknown outcome."""
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
        options: PublishOptions = {
            **message.options,
            "session": self._settings.name,
            "sequence": message.sequence,
            "sequence_after": message.after,
            "stream": self._settings.stream,
        }
        ack = message.ack = OneAck(self._loop)
        reply = self._inbox.expect(ack, max(self._settings.retry_s, self._settings.timeout_s))
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

    def _answered(self, message: _Message, ack: OneAck, _: object) -> None:
        error = ack.future.exception()  # looked at, whether or not it counts
        if ack not in message.attempts:
            return
        if error is None:
            told = ack.future.result()
            self._stored(message, SessionAck(told.stream, message.sequence, told.offset, told.duplicate))
        elif isinstance(error, OffsetForgotten):
            stream = self._settings.stream or ""
            self._stored(message, SessionAck(stream, message.sequence, None, duplicate=True))
        elif ack is message.ack:
            assert isinstance(error, JetstreamError), f"nobody tells us otherwise: {error!r}"
            self._refused(message, error)

    def _stored(self, message: _Message, ack: SessionAck) -> None:
        message.is_stored = self._is_begun = True
        self._withdraw(message)
        self._timeout.acked(self._loop.time() - message.first_sent_at)
        if not message.future.done():  # whoever waited may have left
            message.future.set_result(ack)
        self._progress_at = self._loop.time()
        self._backoff_s = _BACKOFF_S_MIN
        while self._unacked and self._unacked[0].is_stored:
            self._last_acked = self._unacked.popleft().sequence
            self._sent = max(0, self._sent - 1)  # 0: an earlier attempt is acked, before the next one
        self._changed.set()

    def _refused(self, message: _Message, error: JetstreamError) -> None:
        """C20: leave out what is refused for good; whatever else, what is not acked is sent again."""
        consequence = self._consequence(message, error)
        if consequence is Consequence.GIVE_UP:
            self._give_up(error)
        elif consequence is Consequence.IS_STORED:
            stream = self._settings.stream or ""
            self._stored(message, SessionAck(stream, message.sequence, None, duplicate=True))
        elif consequence is Consequence.FOLLOW:
            assert isinstance(error, SequenceGap), "it names what the stream has"
            self._last_acked = named_last(error)
            self._trouble = self._trouble or error
        elif consequence is Consequence.SEND_AGAIN:
            self._trouble = self._trouble or error
        else:
            place = self._unacked.index(message)
            del self._unacked[place]
            self._withdraw(message)
            self._sent -= place < self._sent
            self._fail(message, error)
            if self._sent > place:
                self._trouble = self._trouble or error  # those behind it have named it
        self._changed.set()

    def _consequence(self, message: _Message, error: JetstreamError) -> Consequence:
        names_last_acked = message.after == self._last_acked
        if not self._settings.is_derived:
            return consequence_of(error, names_last_acked=names_last_acked, is_begun=self._is_begun)
        return derived_consequence(
            error,
            message.sequence,
            self._last_acked,
            names_last_acked=names_last_acked,
            is_begun=self._is_begun,
        )

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
            self._withdraw(message)
            self._fail(message, error)
        self._unacked.clear()
        self._sent = 0
        self._changed.set()

    def _withdraw(self, message: _Message) -> None:
        """Wait for no more answers to a message."""
        for ack in message.attempts:
            self._inbox.withdraw(ack)
        message.attempts.clear()
        message.ack = None

    def _fail(self, message: _Message, error: Exception) -> None:
        if not message.future.done():
            message.future.set_exception(error)
            asyncio.Future.exception(message.future)  # looked at by `flush`, if by nobody else
            self._failures.keep(message.future)

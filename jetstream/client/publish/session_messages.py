"""The messages of a session: their options, those on their way, and their acks."""

import uuid
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final, TypedDict

from envelope.errors import JetstreamError, RequestError
from jetstream.client.publish.ack_inbox import AckInbox, ClaimedFuture, OneAck
from jetstream.client.publish.batch_envelopes import checked_ack
from jetstream.client.publish.messages import PublishAck, PublishOptions, refuse_unknown
from jetstream.client.publish.publisher import WINDOW_DEFAULT, checked_window
from jetstream.client.publish.session_rules import RefusalEffect, derived_effect, refusal_effect

SESSION_TIMEOUT_S_DEFAULT: Final = 2.0
RETRY_S_DEFAULT: Final = 60.0


class SessionOptions(TypedDict, total=False):
    """How a session is published."""

    stream: str | None
    """The stream whose acks count, if several bind the subjects."""
    window: int
    """Messages that are not acked; 1,000 if it is not given."""
    window_bytes: int | None
    """Payload of these together, unless it is a single message; not limited if it is not given."""
    timeout_s: float
    """For an ack, before all unacked is sent again; up to 16 times that while acks are slow. 2 if it is not
    given."""
    retry_s: float
    """Seconds without any progress, before the session is given up; 60 if it is not given."""
    derived: bool
    """Messages and their ``sequence`` follow from what is read, a record's offset + 1 say, so that another
    run, or another process at the same time, publishes the same. Then the stream has each once, however often
    the same is read, and whoever reads it. A message that is refused for good ends the session. See
    `Consumer.session_name`."""
    after: int
    """The session's last number in the stream; 0: the stream does not know the session. If that is wrong, the
    session is given up with `SequenceGap` or `SessionExpired`, and nothing is stored. If it is not given, a
    derived session goes on behind whatever the stream has."""


@dataclass(frozen=True, slots=True)
class SessionAck:
    """A message of a session is stored as its stream promises."""

    stream: str
    sequence: int
    offset: int | None
    """None: it was stored so long ago that the stream has forgotten where."""
    duplicate: bool
    """An earlier attempt had stored it."""
    count: int = 1
    """Records that were published together, in one batch envelope; ``offset`` is the last one's."""


SessionFuture = ClaimedFuture[SessionAck]


@dataclass(frozen=True, slots=True)
class PublisherSessionSettings:
    """How a session is published: see `SessionOptions`, and `derived_effect` for ``is_derived``.

    The ``name`` is unique, unless the session repeats what an earlier one sent.
    """

    name: str
    stream: str | None = None
    window: int = WINDOW_DEFAULT
    window_bytes: int | None = None
    timeout_s: float = SESSION_TIMEOUT_S_DEFAULT
    retry_s: float = RETRY_S_DEFAULT
    is_derived: bool = False
    after: int | None = None

    @classmethod
    def of(cls, name: str | None, options: SessionOptions) -> "PublisherSessionSettings":
        """Return the checked options; the default name is unique.

        Raises:
            TypeError: an option does not exist.
            RequestError: a window holds nothing.
        """
        refuse_unknown(options, SessionOptions.__optional_keys__)
        window_bytes = options.get("window_bytes")
        if window_bytes is not None and window_bytes < 1:
            raise RequestError("a window holds at least one byte")
        return cls(
            name=uuid.uuid4().hex if name is None else name,
            stream=options.get("stream"),
            window=checked_window(options.get("window", WINDOW_DEFAULT)),
            window_bytes=window_bytes,
            timeout_s=options.get("timeout_s", SESSION_TIMEOUT_S_DEFAULT),
            retry_s=options.get("retry_s", RETRY_S_DEFAULT),
            is_derived=options.get("derived", False),
            after=options.get("after"),
        )

    def placed(self, options: PublishOptions, sequence: int, after: int) -> PublishOptions:
        """Return a message's options with its place in the session."""
        return {
            **options,
            "session": self.name,
            "sequence": sequence,
            "sequence_after": after,
            "stream": self.stream,
        }

    def forgotten(self, sequence: int, records: int | None) -> SessionAck:
        """Return the ack of a message that is stored at an unknown offset."""
        return SessionAck(self.stream or "", sequence, None, duplicate=True, count=records or 1)

    def effect(
        self, error: JetstreamError, message: "SessionMessage", last_acked: int, *, is_begun: bool
    ) -> RefusalEffect:
        """Return what follows from the refusal of a message; see `refusal_effect`."""
        names_last_acked = message.after == last_acked
        if not self.is_derived:
            return refusal_effect(error, names_last_acked=names_last_acked, is_begun=is_begun)
        effect = derived_effect(
            error, message.sequence, last_acked, names_last_acked=names_last_acked, is_begun=is_begun
        )
        is_elsewhere = effect is RefusalEffect.FOLLOW and self.after is not None
        return RefusalEffect.GIVE_UP if is_elsewhere else effect


@dataclass(slots=True, eq=False)
class SessionMessage:
    """A message of a session, until it is acked or given up."""

    sequence: int
    subject: str
    value: bytes | None
    options: PublishOptions
    future: SessionFuture
    records: int | None = None
    """Of a batch envelope; None: it is none."""
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

    @property
    def size(self) -> int:
        """Bytes of payload."""
        return len(self.value or b"")

    def stored_as(self, ack: PublishAck) -> SessionAck:
        """Return the ack of this message.

        Raises:
            Unsupported, RequestError: something else is stored; see `checked_ack`.
        """
        if self.records is not None:
            checked_ack(ack, self.records)
        return SessionAck(ack.stream, self.sequence, ack.offset, ack.duplicate, ack.count)

    def withdraw(self, inbox: AckInbox) -> None:
        """Wait for no more answers."""
        for ack in self.attempts:
            inbox.withdraw(ack)
        self.attempts.clear()
        self.ack = None


class UnackedMessages:
    """The messages of a session that are not acked, in the order of their numbers, within a window."""

    def __init__(self, window: int, window_bytes: int | None) -> None:
        """Hold up to ``window`` messages and ``window_bytes`` of payload, but always one message."""
        self._window = window
        self._window_bytes = window_bytes
        self._messages: deque[SessionMessage] = deque()
        self._bytes = 0

    def __len__(self) -> int:
        return len(self._messages)

    def __iter__(self) -> Iterator[SessionMessage]:
        return iter(self._messages)

    def __getitem__(self, place: int) -> SessionMessage:
        return self._messages[place]

    def has_room(self, size: int) -> bool:
        """Return whether one more message, of ``size`` bytes, may come."""
        if not self._messages:
            return True
        is_within = self._window_bytes is None or self._bytes + size <= self._window_bytes
        return len(self._messages) < self._window and is_within

    def append(self, message: SessionMessage) -> None:
        """Add the next message; there must be room for it."""
        self._messages.append(message)
        self._bytes += message.size

    def pop_stored(self) -> SessionMessage | None:
        """Return the first message if it is stored, which leaves; None if it is not."""
        if not self._messages or not self._messages[0].is_stored:
            return None
        message = self._messages.popleft()
        self._bytes -= message.size
        return message

    def remove(self, message: SessionMessage) -> int:
        """Let a message leave; return its place."""
        place = self._messages.index(message)
        del self._messages[place]
        self._bytes -= message.size
        return place

    def clear(self) -> None:
        """Let all leave."""
        self._messages.clear()
        self._bytes = 0

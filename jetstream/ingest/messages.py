"""Messages between the NATS byte stream and the sequencer: columns of plain lists.

Parallel lists instead of one object per message: the parser appends to four lists, the sequencer hands
two of them to Arrow whole, and nothing is allocated per message beyond the bytes themselves.
"""

from collections.abc import Sequence
from itertools import accumulate, compress
from operator import itemgetter
from typing import Final, Self

from envelope.envelopes import AFTER_COOKIE, COOKIE, claimed, may_be_batch
from envelope.limits import KIB

MESSAGE_OVERHEAD_BYTES: Final = 64
"""Counted for each message beside its bytes: fixed-width columns, offsets and validity in a batch."""

BATCH_FIXED_BYTES: Final = 2048
"""What an encoded batch takes besides its messages: Arrow's metadata, padding, our header entry."""

HEADER_EXPANSION: Final = 3
"""A header block of one-letter names grows up to so many times when it becomes Arrow columns."""


BATCH_ENVELOPE_BYTES_MIN: Final = 64 * KIB
"""Counted for each batch envelope at least: it takes as long as so many bytes of plain messages."""


class Unread(bytes):
    """Stands for the headers of a message that was too large to be read; empty, as its payload is.

    Attributes:
        message_bytes: the size of the message as announced.
    """

    message_bytes: int

    def __new__(cls, message_bytes: int) -> Self:
        """Stand for headers and payload of so many bytes."""
        self = super().__new__(cls)
        self.message_bytes = message_bytes
        return self


def unpacked_bytes(subject: bytes, payload: bytes) -> int:
    """Return an upper bound of what an envelope adds to a log when it is opened, as far as it tells."""
    records, size = claimed(payload)
    opened = size + records * (len(subject) + MESSAGE_OVERHEAD_BYTES)
    return max(opened, BATCH_ENVELOPE_BYTES_MIN) if may_be_batch(payload) else opened


def message_bytes(subject: bytes, payload: bytes, header: bytes | None) -> int:
    """Return an upper bound of what one message adds to an encoded batch."""
    return len(subject) + len(payload) + HEADER_EXPANSION * len(header or b"") + MESSAGE_OVERHEAD_BYTES


class MessageBlock:
    """Messages of one subscription in arrival order.

    Attributes:
        subjects: as received; not yet known to be UTF-8.
        replies: reply subjects that a PUB can name, any bytes but space, tab, CR and LF; ``b""`` means none.
        payloads: message bodies.
        headers: raw header blocks (``NATS/1.0`` ... blank line), None for a message without one, `Unread` for
            one that is too large.
        count: how many messages; the length of each list.
        size_bytes: upper bound of what the messages add to an encoded batch; limits are counted in it.
        cookies: places of payloads that may be envelopes, ascending.
        has_headers: whether a message has headers.
        received_at: when the first message came, by a clock of the shell's in seconds; kept by parts of it.

    Invariants:
        I1: the four lists have one length.
        I2: a split loses nothing.
        I3: a selection has one decision for each message.
        I4: ``size_bytes`` is the sum of the messages' sizes.
    """

    __slots__ = (
        "cookies",
        "count",
        "has_headers",
        "headers",
        "payloads",
        "received_at",
        "replies",
        "size_bytes",
        "subjects",
    )

    def __init__(
        self,
        subjects: list[bytes] | None = None,
        replies: list[bytes] | None = None,
        payloads: list[bytes] | None = None,
        headers: list[bytes | None] | None = None,
    ) -> None:
        """Own the given lists, all four or none."""
        self.subjects = subjects if subjects is not None else []
        self.replies = replies if replies is not None else []
        self.payloads = payloads if payloads is not None else []
        self.headers = headers if headers is not None else []
        count = self.count = len(self.subjects)
        assert len(self.replies) == len(self.payloads) == len(self.headers) == count, "I1: one length"
        size = sum(map(len, self.payloads)) + sum(map(len, self.subjects)) + MESSAGE_OVERHEAD_BYTES * count
        self.has_headers = self.headers.count(None) != count
        if self.has_headers:
            size += HEADER_EXPANSION * sum(len(header) for header in self.headers if header is not None)
        self.size_bytes = size
        self.received_at = 0.0
        self.cookies: list[int] = []
        for payload in self.payloads:
            # Nearly always there is none, and one comparison for each payload tells: so places come second.
            if COOKIE <= payload < AFTER_COOKIE:
                self.cookies += (at for at, each in enumerate(self.payloads) if each.startswith(COOKIE))
                break

    def __len__(self) -> int:
        return self.count

    def append(self, subject: bytes, reply: bytes, payload: bytes, header: bytes | None) -> None:
        """Append one message."""
        self.extend(MessageBlock([subject], [reply], [payload], [header]))

    def extend(self, other: "MessageBlock") -> None:
        """Append the messages of ``other``, which stays as it is."""
        if other.cookies:
            self.cookies += [self.count + place for place in other.cookies]
        self.subjects += other.subjects
        self.replies += other.replies
        self.payloads += other.payloads
        self.headers += other.headers
        self.count += other.count
        self.size_bytes += other.size_bytes
        self.has_headers = self.has_headers or other.has_headers

    def split(self, count: int) -> tuple["MessageBlock", "MessageBlock"]:
        """Return the first ``count`` messages and the rest, as two new blocks."""
        head, tail = self.part(0, count), self.part(count, self.count)
        assert head.size_bytes + tail.size_bytes == self.size_bytes, "I2: a split loses nothing"
        return head, tail

    def part(self, start: int, end: int) -> "MessageBlock":
        """Return the messages at ``[start, end)`` as a new block."""
        part = MessageBlock(
            self.subjects[start:end],
            self.replies[start:end],
            self.payloads[start:end],
            self.headers[start:end],
        )
        part.received_at = self.received_at
        return part

    def at(self, places: Sequence[int]) -> "MessageBlock":
        """Return the messages at ``places``, ascending and at least one; of all places the block itself."""
        if len(places) == self.count:
            return self
        if len(places) == 1:
            return self.part(places[0], places[0] + 1)
        chosen = itemgetter(*places)
        return MessageBlock(
            list(chosen(self.subjects)),
            list(chosen(self.replies)),
            list(chosen(self.payloads)),
            list(chosen(self.headers)),
        )

    def select(self, keep: Sequence[bool]) -> "MessageBlock":
        """Return the messages whose place in ``keep`` is true, in order, as a new block."""
        assert len(keep) == self.count, "I3: one decision for each message"
        return MessageBlock(
            list(compress(self.subjects, keep)),
            list(compress(self.replies, keep)),
            list(compress(self.payloads, keep)),
            list(compress(self.headers, keep)),
        )

    def count_within(self, bytes_max: int) -> int:
        """Return how many messages from the front take at most ``bytes_max`` together."""
        if self.size_bytes <= max(0, bytes_max):
            return self.count
        ends = accumulate(map(message_bytes, self.subjects, self.payloads, self.headers))
        for count, end in enumerate(ends):
            if end > bytes_max:
                return count
        raise AssertionError("I4: size_bytes is the sum of the messages' sizes")

    def count_unpacked_within(self, bytes_max: int) -> int:
        """Return how many messages from the front may be opened at once, one at least.

        Their envelopes hold at most ``bytes_max`` together, or there is one.
        """
        unpacked = 0
        for place in self.cookies:
            unpacked += unpacked_bytes(self.subjects[place], self.payloads[place])
            if unpacked > bytes_max and place:
                return place
        return self.count

r"""The fast way through a chunk of NATS messages: one regular expression takes a whole run of them, in C.

A run is what a chunk begins with: complete ``MSG`` messages with single spaces between the arguments. It is
matched in one of two ways:

* *one size*: a pattern with the size of the first message in it takes all messages of that size. The bytes of
  a payload do not matter, and are not looked at.
* *any size*: a payload goes up to the next CR, and the declared sizes are compared with the found ones
  afterwards. A payload with a CR in it makes the run fail.

In both the last alternative takes whatever is not such a message, up to the end of the chunk. So no byte is
passed over: the matches follow each other without gaps, and what was taken, the grammar of
`jetstream.ingest.parser` would take with the same result: subjects with a blank of ASCII other than space and
tab, and reply subjects that cannot be answered, are left to it. Nothing depends on this module but speed.
"""

import re
from collections.abc import Sequence
from typing import Final

from envelope.limits import KIB
from envelope.values import value

MIXED_CHUNKS: Final = 32
"""Chunks taken by any size after one whose messages were not of one size."""

REST_CHUNKS_MAX: Final = 15
"""Chunks left to the grammar after repeated failures, so that attempts cost little."""

RUN_MESSAGE_BYTES_MAX: Final = 64 * KIB
"""Few larger messages are in a chunk; the grammar copies each once and looks at nothing but its line."""

PATTERNS_MAX: Final = 64
"""Patterns kept, one for each size met; beyond it all are forgotten."""

REPLY_BYTES_MAX: Final = 512
"""Longer reply subjects are left to the grammar, which knows how long they may be."""

_LINE: Final = rb"MSG (\S+) (\d{1,18}) (?:(\S{1,%d}) )?" % REPLY_BYTES_MAX  # subject, subscription, reply
_FIRST: Final = re.compile(_LINE + rb"(\d{1,18})\r\n")
_ANY_SIZE: Final = re.compile(_LINE + rb"(\d{1,18})\r\n([^\r]*)\r\n|(.+)", re.DOTALL)


@value(frozen=True, slots=True)
class MessageColumns:
    """Messages without headers as parallel columns; ``end`` is the first byte of the chunk after them."""

    sids: Sequence[bytes]
    subjects: Sequence[bytes]
    replies: Sequence[bytes]
    payloads: Sequence[bytes]
    end: int


class RunMatcher:
    """Remembers between chunks of one connection which way suited them."""

    def __init__(self, message_bytes_max: int) -> None:
        """Leave messages of more than ``message_bytes_max`` bytes to the grammar, which refuses them."""
        self._size_max = min(message_bytes_max, RUN_MESSAGE_BYTES_MAX)
        self._patterns: dict[bytes, re.Pattern[bytes]] = {}
        self._mixed_chunks = 0
        self._rest_chunks = 0
        self._penalty_chunks = 0

    def take(self, data: bytes) -> MessageColumns | None:
        """Return the run at the front of ``data``, at least one message, or None: ask the grammar."""
        if self._rest_chunks:
            self._rest_chunks -= 1
            return None
        first = _FIRST.match(data)
        if first is None or int(first[4]) > self._size_max:
            return None
        size, is_mixed = first[4], self._mixed_chunks > 0
        pattern = _ANY_SIZE if is_mixed else self._patterns.get(size) or self._compiled(size)
        rows = pattern.findall(data)
        rest: bytes = rows[-1][-1]
        if rest:
            rows.pop()
        end = len(data) - len(rest)
        if is_mixed:
            self._mixed_chunks -= 1
            if not rows or not self._are_as_declared(rows):
                self._rest_chunks = self._penalty_chunks
                self._penalty_chunks = min(2 * self._penalty_chunks + 1, REST_CHUNKS_MAX)
                return None
        elif not rows:
            return None  # the only message is not complete, and says nothing of the next chunk
        elif (following := _FIRST.match(data, end)) is not None and following[4] != size:
            self._mixed_chunks = MIXED_CHUNKS
        self._penalty_chunks = 0
        subjects, sids, replies, *_, payloads, _ = zip(*rows, strict=True)
        return MessageColumns(sids, subjects, replies, payloads, end)

    def _are_as_declared(self, rows: Sequence[tuple[bytes, ...]]) -> bool:
        """Return whether the messages that were found have the sizes that their lines say.

        By induction from the first: a message of its declared size is whole, and the next begins after it.
        """
        declared = [int(row[3]) for row in rows]
        return declared == [len(row[4]) for row in rows] and max(declared) <= self._size_max

    def _compiled(self, size: bytes) -> re.Pattern[bytes]:
        if len(self._patterns) >= PATTERNS_MAX:
            self._patterns.clear()
        pattern = re.compile(_LINE + rb"%b\r\n(.{%d})\r\n|(.+)" % (size, int(size)), re.DOTALL)
        self._patterns[size] = pattern
        return pattern

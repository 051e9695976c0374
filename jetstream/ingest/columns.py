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


Columns = tuple[list[bytes], list[bytes], list[bytes], list[bytes | None]]
"""Messages of one subscription: subjects, replies, payloads, headers."""


class RunMatcher:
    """Remembers between chunks of one connection which way suited them."""

    def __init__(self, message_bytes_max: int) -> None:
        """Leave messages of more than ``message_bytes_max`` bytes to the grammar, which refuses them."""
        self._size_max = min(message_bytes_max, RUN_MESSAGE_BYTES_MAX)
        self._patterns: dict[bytes, re.Pattern[bytes]] = {}
        self._mixed_chunks = 0
        self._rest_chunks = 0
        self._penalty_chunks = 0

    def take(self, data: bytes) -> tuple[dict[int, Columns], int]:
        """Take the run at the front of ``data``; without one, ask the grammar.

        Returns:
            The columns of each subscription, and where the rest of ``data`` begins.
        """
        if self._rest_chunks:
            self._rest_chunks -= 1
            return {}, 0
        first = _FIRST.match(data)
        if first is None or int(first[4]) > self._size_max:
            return {}, 0
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
                return {}, 0
        elif not rows:
            return {}, 0  # the only message is not complete, and says nothing of the next chunk
        elif (following := _FIRST.match(data, end)) is not None and following[4] != size:
            self._mixed_chunks = MIXED_CHUNKS
        self._penalty_chunks = 0
        subjects, sids, replies, *_, payloads, _ = zip(*rows, strict=True)
        if sids.count(sids[0]) < len(sids):
            return _by_subscription(sids, subjects, replies, payloads), end
        no_headers: list[bytes | None] = [None] * len(sids)
        return {int(sids[0]): (list(subjects), list(replies), list(payloads), no_headers)}, end

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


def _by_subscription(
    sids: Sequence[bytes], subjects: Sequence[bytes], replies: Sequence[bytes], payloads: Sequence[bytes]
) -> dict[int, Columns]:
    columns: dict[int, Columns] = {}
    by_digits: dict[bytes, Columns] = {}
    for sid, subject, reply, payload in zip(sids, subjects, replies, payloads, strict=True):
        of_sid = by_digits.get(sid)
        if of_sid is None:
            of_sid = by_digits[sid] = columns.setdefault(int(sid), ([], [], [], []))
        of_sid[0].append(subject)
        of_sid[1].append(reply)
        of_sid[2].append(payload)
        of_sid[3].append(None)
    return columns

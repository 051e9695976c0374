r"""The fast way through a chunk of NATS messages: split it at its line ends, then check all lines at once.

It takes all complete messages of a chunk if they are small ``MSG`` messages of one shape: all with a reply
subject or all without, single spaces between the arguments. Every check is one pass in C over a column. What
it takes, the grammar of `jetstream.ingest.parser` would take with the same result; what has another shape is
left to the grammar. So nothing depends on this module but speed.

A lone LF is searched for much faster than CR LF, but text and binary payloads often hold one. So CR LF is the
second choice for a while, and after that has failed too the grammar has some chunks to itself.
"""

import re
from dataclasses import dataclass
from typing import Final

from envelope.limits import KIB

CRLF_CHUNKS: Final = 32
"""Chunks split at CR LF after one that could not be split at LF."""

REST_CHUNKS_MAX: Final = 15
"""Chunks left to the grammar after repeated failures, so that attempts cost little."""

SMALL_MESSAGE_BYTES: Final = {b"\n": 2 * KIB, b"\r\n": KIB // 2}
"""By line end; above this average the grammar is faster: it copies a payload once and does not search it."""

SIZES_MAX: Final = 4096
"""Size tokens remembered; beyond it all are forgotten and learnt again."""

_NUMBER: Final = re.compile(rb"\d{1,18}")
_SEAM: Final = re.compile(rb"(\d{1,18})\r\nMSG")


@dataclass(frozen=True, slots=True)
class MessageColumns:
    """Messages without headers as parallel lists; ``end`` is the first byte of the chunk after them."""

    sids: list[bytes]
    subjects: list[bytes]
    replies: list[bytes]
    payloads: list[bytes]
    end: int


class ColumnSplitter:
    """Remembers between chunks of one connection which way suited them."""

    def __init__(self, message_bytes_max: int) -> None:
        """Leave chunks with messages of more than ``message_bytes_max`` bytes to the grammar."""
        self._message_bytes_max = message_bytes_max
        self._sizes: dict[bytes, int] = {}
        self._crlf_chunks = 0
        self._rest_chunks = 0
        self._penalty_chunks = 0

    def take(self, data: bytes) -> MessageColumns | None:
        """Return all complete messages at the front of ``data``, at least one, or None: ask the grammar."""
        if self._rest_chunks:
            self._rest_chunks -= 1
            return None
        line_end = b"\r\n" if self._crlf_chunks else b"\n"
        self._crlf_chunks = max(0, self._crlf_chunks - 1)
        columns = self._split(data, line_end)
        if columns is not None:
            large = columns.end > SMALL_MESSAGE_BYTES[line_end] * len(columns.subjects)
            self._penalty_chunks = 0
            self._rest_chunks = REST_CHUNKS_MAX if large else 0
        elif line_end == b"\n":
            self._crlf_chunks = CRLF_CHUNKS
        else:
            self._rest_chunks = self._penalty_chunks
            self._penalty_chunks = min(2 * self._penalty_chunks + 1, REST_CHUNKS_MAX)
        return columns

    def _split(self, data: bytes, line_end: bytes) -> MessageColumns | None:
        """Return the messages if every second part of ``data`` is a control line with the next part's size.

        Then each of these parts is one whole payload, by induction from the first line.
        """
        parts = data.split(line_end)
        count = (len(parts) - 1) // 2
        lines, payloads, rest = parts[0 : 2 * count : 2], parts[1 : 2 * count : 2], parts[2 * count :]
        if line_end == b"\n":
            payloads = [payload[:-1] for payload in payloads if payload[-1:] == b"\r"]
        if not count or len(payloads) != count:
            return None
        tokens = _tokens(lines, line_end)
        width = (len(tokens) - 1) // count
        if width not in (3, 4) or self._declared(tokens[width::width]) != list(map(len, payloads)):
            return None
        subjects, sids = tokens[1::width], tokens[2::width]
        if b"" in subjects or not _are_numbers(sids):
            return None
        replies = tokens[3::4] if width == 4 else [b""] * count
        end = len(data) - sum(map(len, rest)) - (len(rest) - 1) * len(line_end)
        return MessageColumns(sids, subjects, replies, payloads, end)

    def _declared(self, seams: list[bytes]) -> list[int] | None:
        """Return the size in each ``<size> CR LF MSG``; None if one is something else or too large."""
        try:
            return list(map(self._sizes.__getitem__, seams))
        except KeyError:
            pass
        if len(self._sizes) > SIZES_MAX:
            self._sizes.clear()
        for seam in set(seams):
            match = _SEAM.fullmatch(seam)
            if match is None or int(match[1]) > self._message_bytes_max:
                return None
            self._sizes[seam] = int(match[1])
        return [self._sizes[seam] for seam in seams]


def _tokens(lines: list[bytes], line_end: bytes) -> list[bytes]:
    """Return the arguments of all lines, in one list without gaps; none if the lines are not plain.

    Plain lines begin with ``MSG``, have one number of arguments and no white space but single spaces between
    and CR LF after them. The last argument of each comes with what lies between it and the next argument:
    ``<size> CR LF MSG``. The caller checks that these stand at equal distances, with nothing else in them;
    then the arguments between two of them are those of one line.
    """
    joined = line_end.join([*lines, b"MSG"])
    if b"\t" in joined or b"\v" in joined or b"\f" in joined:
        return []
    if joined.count(b"\r") != len(lines) or joined.count(b"\n") != len(lines):
        return []
    tokens = joined.split(b" ")
    return tokens if tokens[0] == b"MSG" and (len(tokens) - 1) % len(lines) == 0 else []


def _are_numbers(tokens: list[bytes]) -> bool:
    if tokens.count(tokens[0]) == len(tokens):
        return _NUMBER.fullmatch(tokens[0]) is not None
    return all(map(_NUMBER.fullmatch, set(tokens)))

"""The quick way to read small batches: many neighbours at once, by columns.

A batch of few records costs as much to decode as one of thousands, nearly all of it before the first record.
But the metadata of batches without headers differs only in numbers at fixed places (`plain_batch`). So those
of a run of neighbours are compared, and their numbers read, as the rows of one matrix; then each column of
the run is gathered from where its parts stand. Only each batch's CRC takes a step of its own.

What is read here is what `decode` returns, put together. Whatever does not fit (headers, a compressed body,
a gap, another epoch, damage) ends the run before it: the reader of single batches is the one that judges it.

Source: Apache Arrow columnar format, "Physical memory layout" and "RecordBatch message".
"""

import struct
from collections.abc import Iterator
from contextlib import suppress
from itertools import chain
from typing import Any, Final, NamedTuple, cast

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from numpy.lib.stride_tricks import sliding_window_view

from envelope.limits import KIB, MIB
from envelope.types import LeaderEpoch, Offset, TimestampUs
from jetstream.log.batch import (
    CRC_AT,
    FORMAT_VERSION,
    SIGNED_MAX,
    ZEROS,
    BatchFlags,
    BatchHeader,
    Buffer,
    FoundBatch,
    next_batch,
)
from jetstream.log.checksum import crc32c
from jetstream.log.message import ENTRY_DIGITS, PREFIX_BYTES
from jetstream.log.plain_batch import TEMPLATE, blank, no_headers
from jetstream.log.schema import SCHEMA

_Numbers = npt.NDArray[np.int64]
_Ends = npt.NDArray[np.int32]
_Flags = npt.NDArray[np.bool_]

_FRAMES_MIN: Final = 32
"""Fewer are quicker one by one."""
_BODY_BYTES_MAX: Final = 16 * KIB
"""Of a batch in a run: a larger one is worth a decoding of its own."""

_FRAMES_AT_ONCE: Final = 128
"""So many are copied for their CRCs: into memory that is in the cache since the last ones."""

_RUN_BYTES_MAX: Final = 4 * MIB
_ROW_BYTES: Final = KIB
"""What a batch of one small record takes: for so much a record wanted is a run looked for, not beyond."""
_rooms: Final[list[bytearray]] = []
"""Memory for a run each, as many as threads read runs at once: to get it anew takes as long as all else."""

_WORD: Final = 8
_END: Final = np.dtype(np.int32)

_ENTRY: Final = np.dtype(
    [
        ("version", ">u2"),
        ("flags", ">u2"),
        ("base", ">u8"),
        ("next", ">u8"),
        ("epoch", ">u8"),
        ("timestamp", ">u8"),
        ("crc", ">u4"),
    ]
)
"""The header entry (`jetstream.log.batch`), in bytes."""

_NODES: Final = 10
_BUFFERS: Final = 24


class _Column(NamedTuple):
    """Where a column stands among the nodes and buffers of a batch; its validity is its first buffer."""

    node: int
    first: int


_NUMBERS: Final = {"offset": _Column(0, 0), "timestamp": _Column(1, 2), "txid": _Column(8, 19)}
_TEXTS: Final = {"subject": _Column(2, 4), "key": _Column(3, 7), "value": _Column(9, 21)}
_COLUMNS: Final = {**_NUMBERS, **_TEXTS, "headers": _Column(4, 10)}
_HEADERS: Final = _COLUMNS["headers"]
_IN_HEADERS: Final = slice(5, 8)
"""The nodes of what a list of headers has."""
_NULLABLE: Final = tuple(_COLUMNS[name] for name in ("key", "txid", "value"))
_PRESENT: Final = tuple(_COLUMNS[name] for name in ("offset", "timestamp", "subject"))

_MASK: Final = bytearray(b"\xff" * len(TEMPLATE.metadata))
blank(_MASK)
"""Which bits of the metadata are the same in every batch."""

_NO_VALUE: Final = 256
_VALUES: Final = np.full(1 << 16, _NO_VALUE, np.uint16)
_VALUES[np.frombuffer(bytes(range(256)).hex().encode(), np.uint16)] = np.arange(256)
"""What two digits are worth."""

_PREFIX: Final = TEMPLATE.metadata[:PREFIX_BYTES]
_HEADERS_AT: Final = TEMPLATE.fields.nodes + _HEADERS.node * 2 * _WORD
_WALKED: Final = struct.Struct(
    f"<{PREFIX_BYTES}s{TEMPLATE.fields.body_length - PREFIX_BYTES}xq"
    f"{_HEADERS_AT - TEMPLATE.fields.body_length - _WORD}xqq"
)
"""Of a batch its prefix, the length of its body, how many records it has, and how many without headers."""

assert len(TEMPLATE.metadata) % _WORD == TEMPLATE.fields.nodes % _WORD == TEMPLATE.fields.buffers % _WORD == 0


def _words_of(content: bytes | bytearray) -> _Numbers:
    return np.frombuffer(content, np.int64)


def _places(start: int, end: int) -> slice:
    """Return which words of the metadata these bytes are in."""
    return slice(start // _WORD, (end + _WORD - 1) // _WORD)


_METADATA_WORDS: Final = len(TEMPLATE.metadata) // _WORD
_SAME_AT: Final = np.flatnonzero(_words_of(_MASK))
_SAME_MASK: Final = _words_of(_MASK)[_SAME_AT]
_SAME: Final = _words_of(TEMPLATE.metadata)[_SAME_AT] & _SAME_MASK
_ENTRY_AT: Final = _places(TEMPLATE.digits, TEMPLATE.digits + ENTRY_DIGITS)
_NODES_AT: Final = _places(TEMPLATE.fields.nodes, TEMPLATE.fields.nodes + _NODES * 2 * _WORD)
_BUFFERS_AT: Final = _places(TEMPLATE.fields.buffers, TEMPLATE.fields.buffers + _BUFFERS * 2 * _WORD)


def merged_batches(
    data: Buffer, rows: int, max_bytes: int = _RUN_BYTES_MAX
) -> Iterator[tuple[BatchHeader, pa.RecordBatch]]:
    """Yield what `decode` returns of each message in ``data``, with small neighbours put together.

    The header of several says the range of all, and the flags and CRC of the last one. They end with the
    batch that brings them to ``rows`` records, or before the one that would take them beyond ``max_bytes``,
    4 MiB, or 1 KiB for each of ``rows``. An incomplete last message is left out.

    Raises:
        CorruptDataError, Unsupported: as `decode`, when all batches before have been yielded.
    """
    view, start = memoryview(data), 0
    while start < len(view):
        found = _read_run(view, start, rows, max_bytes) or next_batch(view, start)
        if found is None:
            return
        header, records, start = found
        yield header, records


def _read_run(data: memoryview, start: int, rows: int, max_bytes: int) -> FoundBatch | None:
    """Return the run of batches at ``start`` as one; None if there are too few that fit together."""
    data = data[start : start + min(max_bytes, _RUN_BYTES_MAX, rows * _ROW_BYTES)]
    if not _are_many(data):
        return None
    places = _extents(data, rows)
    if len(places) <= _FRAMES_MIN:
        return None
    room = _room()
    try:
        room[: places[-1]] = data[: places[-1]]
        found = _read_stored(room, places)
    finally:
        _rooms.append(room)
    return None if found is None else (found[0], found[1], start + found[2])


def _room() -> bytearray:
    with suppress(IndexError):
        return _rooms.pop()
    return bytearray(_RUN_BYTES_MAX)


def _read_stored(stored: bytearray, places: _Numbers) -> FoundBatch | None:
    """Return the run in ``stored``, which may be used again after it; see `_read_run`."""
    metadata = sliding_window_view(_words_of(stored), _METADATA_WORDS)[places[:-1] // _WORD]
    entries, fit = _entries(metadata)
    run = _Run(stored, places, metadata)
    fit &= _fit_together(entries) & run.are_flat() & (entries["next"] - entries["base"] >= run.rows)
    count = _leading(fit & _are_whole(stored, places, entries["crc"]))
    count = run.leading(count).in_order() if count else 0
    if count < _FRAMES_MIN:
        return None
    return _header(entries[:count]), run.leading(count).records(), int(places[count])


def _are_many(data: memoryview) -> bool:
    """Tell whether enough batches at the start of ``data`` are small and seem to have no headers."""
    start, end = 0, len(data) - len(TEMPLATE.metadata)
    for _ in range(_FRAMES_MIN):
        if start > end:
            return False
        prefix, body_length, count, without_headers = _WALKED.unpack_from(data, start)
        if prefix != _PREFIX or not 0 <= body_length <= _BODY_BYTES_MAX or count != without_headers:
            return False
        start += len(TEMPLATE.metadata) + body_length
    return True


def _extents(data: memoryview, rows: int) -> _Numbers:
    """Return where each batch begins that may belong to the run, and where the last of them ends.

    They are found by what all begin with. Where that stands inside of a batch too, the run ends before it.
    """
    words = np.frombuffer(data[: len(data) // _WORD * _WORD], np.int64)
    starts = np.flatnonzero(words[: len(words) - _METADATA_WORDS + 1] == _words_of(_PREFIX)[0])
    body_lengths = words[starts + TEMPLATE.fields.body_length // _WORD]
    counts = words[starts + _HEADERS_AT // _WORD]
    fit = (body_lengths >= 0) & (body_lengths <= _BODY_BYTES_MAX) & (body_lengths % _WORD == 0)
    fit &= (counts >= 0) & (counts <= _BODY_BYTES_MAX) & (words[starts + _HEADERS_AT // _WORD + 1] == counts)
    ends = starts + _METADATA_WORDS + body_lengths // _WORD
    fit &= ends <= len(words)
    fit[1:] &= ends[:-1] == starts[1:]
    count = _leading(fit)
    count = min(count, int(counts[:count].cumsum().searchsorted(rows)) + 1)
    return np.append(starts[:count], ends[count - 1]) * _WORD


def _entries(metadata: _Numbers) -> tuple[npt.NDArray[np.void], _Flags]:
    """Return the header entry of each batch, and whether its metadata is that of a batch of ours."""
    fit = (metadata[:, _SAME_AT] & _SAME_MASK == _SAME).all(axis=1)
    first = TEMPLATE.digits % _WORD
    digits = metadata[:, _ENTRY_AT].copy().view(np.uint8)[:, first : first + ENTRY_DIGITS]
    values = _VALUES.take(digits.view(np.uint16))
    return values.astype(np.uint8).view(_ENTRY)[:, 0], fit & (values < _NO_VALUE).all(axis=1)


def _fit_together(entries: npt.NDArray[np.void]) -> _Flags:
    """Tell of each batch whether it is one of this version, and goes on where the one before it ended."""
    base, end, epoch = entries["base"], entries["next"], entries["epoch"]
    fit: _Flags = (base < end) & (end <= SIGNED_MAX) & (entries["version"] == FORMAT_VERSION)
    fit &= (epoch == epoch[0]) & (epoch <= SIGNED_MAX) & (entries["timestamp"] <= SIGNED_MAX)
    fit[1:] &= base[1:] == end[:-1]
    return fit


def _are_whole(stored: bytearray, places: _Numbers, crcs: _Numbers) -> _Flags:
    """Tell of each batch whether its CRC is right; the digits of it are "0" from now on."""
    digits = places[:-1, None] + np.arange(TEMPLATE.digits + CRC_AT, TEMPLATE.digits + CRC_AT + len(ZEROS))
    np.frombuffer(stored, np.uint8)[digits] = ZEROS[0]
    count = len(places) - 1
    ends = pa.py_buffer(places.astype(_END).data)
    frames = pa.Array.from_buffers(pa.binary(), count, [None, ends, pa.py_buffer(stored)])
    few = (frames.slice(first, _FRAMES_AT_ONCE).to_pylist() for first in range(0, count, _FRAMES_AT_ONCE))
    found = map(crc32c, cast("Iterator[bytes]", chain.from_iterable(few)))
    are_whole: _Flags = np.fromiter(found, np.uint32, count) == crcs
    return are_whole


def _header(entries: npt.NDArray[np.void]) -> BatchHeader:
    last = entries[-1]
    return BatchHeader(
        FORMAT_VERSION,
        BatchFlags(int(last["flags"])),
        Offset(int(entries["base"][0])),
        Offset(int(last["next"])),
        LeaderEpoch(int(last["epoch"])),
        TimestampUs(int(entries["timestamp"].max())),
        int(last["crc"]),
    )


def _leading(flags: _Flags) -> int:
    """Return how many are true before the first that is not."""
    return int(np.append(flags, np.False_).argmin())


class _Run:
    """Neighbouring batches with metadata of one layout.

    Attributes:
        rows: how many records each batch has.
    """

    def __init__(self, stored: bytearray, places: _Numbers, metadata: _Numbers) -> None:
        """Look at ``stored``.

        Args:
            stored: the bytes.
            places: where each begins; the last one is where all end.
            metadata: of each, in words.
        """
        self._stored = stored
        self._places = places
        self._metadata = metadata
        self._bodies = places[:-1] + len(TEMPLATE.metadata)
        self._body_lengths = places[1:] - self._bodies
        # A row for each number, a column for each batch: what is compared and gathered lies side by side.
        self._nodes = metadata[:, _NODES_AT].T.copy().reshape(_NODES, 2, -1)
        self._buffers = metadata[:, _BUFFERS_AT].T.copy().reshape(_BUFFERS, 2, -1)
        self.rows = self._nodes[0, 0]

    def leading(self, count: int) -> "_Run":
        """Return the first of them."""
        if count == len(self.rows):
            return self
        return _Run(self._stored, self._places[: count + 1], self._metadata[:count])

    def are_flat(self) -> _Flags:
        """Tell of each batch that seems to have no headers whether its columns are complete, in its body."""
        rows, nulls = self.rows, self._nodes[:, 1]
        starts, lengths = self._buffers[:, 0], self._buffers[:, 1]
        left = self._body_lengths - starts
        # Negative if one of them is: the first of two differences, too, as the second may be beyond its type.
        signs = np.bitwise_or.reduce(starts | lengths | left | (left - lengths), axis=0)
        fit: _Flags = (signs >= 0) & (np.bitwise_or.reduce(starts, axis=0) % _WORD == 0)
        fit &= (rows >= 0) & (rows <= _BODY_BYTES_MAX)
        for column in _COLUMNS.values():
            fit &= self._nodes[column.node, 0] == rows
        for column in _PRESENT:
            fit &= nulls[column.node] == 0
        for column in _NULLABLE:
            count = nulls[column.node]
            fit &= (count >= 0) & (count <= rows)
            fit &= (count == 0) | (lengths[column.first] >= (rows + 7) // 8)
        for column in _NUMBERS.values():
            fit &= lengths[column.first + 1] >= rows * _WORD
        for column in _TEXTS.values():
            fit &= (rows == 0) | (lengths[column.first + 1] >= (rows + 1) * _END.itemsize)
        fit &= (self._nodes[_IN_HEADERS] == 0).all(axis=(0, 1))
        return fit

    def in_order(self) -> int:
        """Return of how many leading batches, which are flat, the texts end where they can."""
        rows = self._rows()
        found = len(self.rows)
        for column in _TEXTS.values():
            starts, stops = self._ends(column, rows)
            length = self._buffers[column.first + 2, 1][rows.batches]
            contradictory = rows.batches[(starts < 0) | (starts > stops) | (stops > length)]
            found = int(contradictory.min(initial=found))
        return found

    def records(self) -> pa.RecordBatch:
        """Return all records of batches that are flat and in order."""
        rows = self._rows()
        columns: dict[str, pa.Array[Any]] = {"headers": no_headers(len(rows.batches))}
        for name, column in _NUMBERS.items():
            columns[name] = self._numbers(column, rows, SCHEMA.field(name).type)
        for name, column in _TEXTS.items():
            columns[name] = self._texts(column, rows, SCHEMA.field(name).type)
        return pa.RecordBatch.from_arrays([columns[name] for name in SCHEMA.names], schema=SCHEMA)

    def _rows(self) -> "_Rows":
        batches = np.repeat(np.arange(len(self.rows)), self.rows)
        return _Rows(batches, np.arange(len(batches)) - (np.cumsum(self.rows) - self.rows)[batches])

    def _numbers(self, column: _Column, rows: "_Rows", of_type: pa.DataType) -> "pa.Array[Any]":
        words = _words_of(self._stored)
        values = words[self._starts(column.first + 1, rows) // _WORD + rows.within]
        return pa.Array.from_buffers(
            of_type, len(values), [self._validity(column, rows), pa.py_buffer(values.data)]
        )

    def _texts(self, column: _Column, rows: "_Rows", of_type: pa.DataType) -> "pa.Array[Any]":
        """Return a copy of what is there: it is read as one array, in turns with what is between."""
        begin, (starts, stops) = self._starts(column.first + 2, rows), self._ends(column, rows)
        count = len(begin)
        turns = np.column_stack((begin + starts, begin + stops)).astype(_END).ravel()
        buffers = [None, pa.py_buffer(turns.data), pa.py_buffer(self._stored)]
        mixed = pa.Array.from_buffers(pa.binary(), max(2 * count - 1, 0), buffers)
        _, ends, values = mixed.take(np.arange(0, 2 * count, 2)).buffers()
        return pa.Array.from_buffers(of_type, count, [self._validity(column, rows), ends, values])

    def _ends(self, column: _Column, rows: "_Rows") -> tuple[_Ends, _Ends]:
        """Return where each text begins and ends among those of its batch."""
        ends = np.frombuffer(self._stored, _END)
        at = self._starts(column.first + 1, rows) // _END.itemsize + rows.within
        return ends[at], ends[at + 1]

    def _starts(self, buffer: int, rows: "_Rows") -> _Numbers:
        """Return where that buffer of each record's batch begins."""
        starts: _Numbers = self._bodies + self._buffers[buffer, 0]
        return starts[rows.batches]

    def _validity(self, column: _Column, rows: "_Rows") -> pa.Buffer | None:
        nulls = self._nodes[column.node, 1]
        if not nulls.any():
            return None
        stored = np.frombuffer(self._stored, np.uint8)
        at = np.minimum(self._starts(column.first, rows) + rows.within // 8, len(stored) - 1)
        are_valid = (stored[at] >> (rows.within % 8) & 1 == 1) | (nulls == 0)[rows.batches]
        return pa.py_buffer(np.packbits(are_valid, bitorder="little").data)


class _Rows(NamedTuple):
    """The records of a run: which batch each is in, and which of its records it is."""

    batches: _Numbers
    within: _Numbers

"""The quick way to read small batches: many neighbours at once, by columns.

A batch of few records costs as much to decode as one of thousands, nearly all of it before the first record.
But the metadata of batches without headers differs only in numbers at fixed places (`plain_batch`). So those
of a run of neighbours are compared, and their numbers read, as the rows of one matrix; then each column of
the run is gathered from where its parts stand. Only a batch's length and its CRC take a step of their own.

What is read here is what `decode` returns, put together. Whatever does not fit (headers, a compressed body,
a gap, another epoch, damage) ends the run before it: the reader of single batches is the one that judges it.

Source: Apache Arrow columnar format, "Physical memory layout" and "RecordBatch message".
"""

import struct
from collections.abc import Iterator
from itertools import pairwise
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from envelope.limits import KIB
from envelope.types import LeaderEpoch, Offset, TimestampUs
from jetstream.log.batch import (
    CRC_AT,
    FORMAT_VERSION,
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

_FRAMES_MIN: Final = 4
"""Fewer are quicker one by one."""
_BODY_BYTES_MAX: Final = 16 * KIB
"""Of a batch in a run: a larger one is worth a decoding of its own."""

_WORD: Final = 8
_END: Final = np.dtype(np.int32)
_SIGNED_MAX: Final = (1 << 63) - 1

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

_SAME: Final = bytearray(b"\xff" * len(TEMPLATE.metadata))
blank(_SAME)
"""Which bits of the metadata are the same in every batch."""

_NIBBLES: Final = np.full(256, 16, np.uint8)
_NIBBLES[np.frombuffer(b"0123456789abcdef", np.uint8)] = np.arange(16)
"""What a digit is worth; 16 if it is none."""

_PREFIX: Final = TEMPLATE.metadata[:PREFIX_BYTES]
_HEADERS_AT: Final = TEMPLATE.fields.nodes + _HEADERS.node * 2 * _WORD
_WALKED: Final = struct.Struct(
    f"<{PREFIX_BYTES}s{TEMPLATE.fields.body_length - PREFIX_BYTES}xq"
    f"{_HEADERS_AT - TEMPLATE.fields.body_length - _WORD}xqq"
)
"""Of a batch its prefix, the length of its body, how many records it has, and how many without headers."""

assert len(TEMPLATE.metadata) % _WORD == TEMPLATE.fields.nodes % _WORD == TEMPLATE.fields.buffers % _WORD == 0


def merged_batches(data: Buffer, rows: int) -> Iterator[tuple[BatchHeader, pa.RecordBatch]]:
    """Yield what `iter_batches` does, with small neighbours put together up to about ``rows`` records.

    The header of several says the range of all, and the flags and CRC of the last one.

    Raises:
        CorruptDataError, Unsupported: as `decode`, when all batches before have been yielded.
    """
    view, start = memoryview(data), 0
    while start < len(view):
        found = _read_run(view, start, rows) or next_batch(view, start)
        if found is None:
            return
        header, records, start = found
        yield header, records


def _read_run(data: memoryview, start: int, rows: int) -> FoundBatch | None:
    """Return the run of batches at ``start`` as one; None if there are too few that fit together."""
    bounds = _bounds(data, start, rows)
    if len(bounds) <= _FRAMES_MIN:
        return None
    stored = bytearray(data[start : bounds[-1]])
    places = np.array(bounds) - start
    run = _Run(stored, places, _metadata(stored, places[:-1]))
    entries, fit = _entries(run.metadata)
    fit &= _fit_together(entries) & run.are_flat() & (entries["next"] - entries["base"] >= run.rows)
    count = _leading(fit & _are_whole(stored, places, entries["crc"]))
    count = run.leading(count).in_order() if count else 0
    if count < _FRAMES_MIN:
        return None
    return _header(entries[:count]), run.leading(count).records(), bounds[count]


def _bounds(data: memoryview, start: int, rows: int) -> list[int]:
    """Return where each of the batches from ``start`` on begins that are small and seem to have no headers.

    And where the last of them ends. They are as many as have ``rows`` records, or all there are.
    """
    size, bounds, end, counted = len(TEMPLATE.metadata), [start], len(data), 0
    # A step for each batch: all that could be put off is.
    while start + size <= end and counted < rows:
        prefix, body_length, count, without_headers = _WALKED.unpack_from(data, start)
        start += size + body_length
        is_small = 0 <= body_length <= _BODY_BYTES_MAX and body_length % _WORD == 0
        if prefix != _PREFIX or not is_small or start > end or count != without_headers:
            break
        bounds.append(start)
        counted += count
    return bounds


def _metadata(stored: bytearray, starts: _Numbers) -> _Numbers:
    """Return the metadata of each batch as a row of words."""
    words = np.frombuffer(stored, np.int64)
    found: _Numbers = words[starts[:, None] // _WORD + np.arange(len(TEMPLATE.metadata) // _WORD)]
    return found


def _entries(metadata: _Numbers) -> tuple[npt.NDArray[np.void], _Flags]:
    """Return the header entry of each batch, and whether its metadata is that of a batch of ours."""
    words = np.frombuffer(_SAME, np.int64)
    fit = ((metadata & words) == np.frombuffer(TEMPLATE.metadata, np.int64) & words).all(axis=1)
    digits = metadata.view(np.uint8)[:, TEMPLATE.digits : TEMPLATE.digits + ENTRY_DIGITS]
    nibbles = _NIBBLES[digits]
    packed = np.ascontiguousarray(nibbles[:, ::2] << 4 | nibbles[:, 1::2])
    return packed.view(_ENTRY)[:, 0], fit & (nibbles < 16).all(axis=1)


def _fit_together(entries: npt.NDArray[np.void]) -> _Flags:
    """Tell of each batch whether it is one of this version, and goes on where the one before it ended."""
    base, end, epoch = entries["base"], entries["next"], entries["epoch"]
    fit: _Flags = (base < end) & (end <= _SIGNED_MAX) & (entries["version"] == FORMAT_VERSION)
    fit &= (epoch == epoch[0]) & (epoch <= _SIGNED_MAX) & (entries["timestamp"] <= _SIGNED_MAX)
    fit[1:] &= base[1:] == end[:-1]
    return fit


def _are_whole(stored: bytearray, places: _Numbers, crcs: _Numbers) -> _Flags:
    """Tell of each batch whether its CRC is right; the digits of it are "0" from now on."""
    digits = places[:-1, None] + np.arange(TEMPLATE.digits + CRC_AT, TEMPLATE.digits + CRC_AT + len(ZEROS))
    np.frombuffer(stored, np.uint8)[digits] = ZEROS[0]
    view = memoryview(stored)
    found = np.array([crc32c(view[start:end]) for start, end in pairwise(places.tolist())])
    are_whole: _Flags = found == crcs
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
        metadata: of each batch, in words.
        rows: how many records each batch has.
    """

    def __init__(self, stored: bytearray, places: _Numbers, metadata: _Numbers) -> None:
        """Look at ``stored``, where each begins that stands in ``places``, whose last is where all end."""
        nodes, buffers = TEMPLATE.fields.nodes // _WORD, TEMPLATE.fields.buffers // _WORD
        self.metadata = metadata
        self._stored = stored
        self._places = places
        self._bodies = places[:-1] + len(TEMPLATE.metadata)
        self._body_lengths = places[1:] - self._bodies
        self._nodes = metadata[:, nodes : nodes + 2 * _NODES].reshape(-1, _NODES, 2)
        self._buffers = metadata[:, buffers : buffers + 2 * _BUFFERS].reshape(-1, _BUFFERS, 2)
        self.rows = self._nodes[:, 0, 0]

    def leading(self, count: int) -> "_Run":
        """Return the first of them."""
        return _Run(self._stored, self._places[: count + 1], self.metadata[:count])

    def are_flat(self) -> _Flags:
        """Tell of each batch whether its columns are in its body, as long as they are to be, no headers."""
        rows, nulls = self.rows, self._nodes[:, :, 1]
        starts, lengths = self._buffers[:, :, 0], self._buffers[:, :, 1]
        room = self._body_lengths[:, None]
        are_inside = (starts >= 0) & (starts <= room) & (lengths >= 0) & (lengths <= room - starts)
        fit: _Flags = (
            (are_inside & (starts % _WORD == 0)).all(axis=1) & (rows >= 0) & (rows <= _BODY_BYTES_MAX)
        )
        for column in _COLUMNS.values():
            fit &= self._nodes[:, column.node, 0] == rows
        for column in _PRESENT:
            fit &= nulls[:, column.node] == 0
        for column in _NULLABLE:
            count = nulls[:, column.node]
            fit &= (count >= 0) & (count <= rows)
            fit &= (count == 0) | (lengths[:, column.first] >= (rows + 7) // 8)
        for column in _NUMBERS.values():
            fit &= lengths[:, column.first + 1] >= rows * _WORD
        for column in _TEXTS.values():
            fit &= (rows == 0) | (lengths[:, column.first + 1] >= (rows + 1) * _END.itemsize)
        fit &= nulls[:, _HEADERS.node] == rows
        fit &= (self._nodes[:, _IN_HEADERS] == 0).all(axis=(1, 2))
        return fit

    def in_order(self) -> int:
        """Return of how many leading batches, which are flat, the texts end where they can."""
        rows = self._rows()
        found = len(self.rows)
        for column in _TEXTS.values():
            starts, stops = self._ends(column, rows)
            length = self._buffers[rows.batches, column.first + 2, 1]
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
        words = np.frombuffer(self._stored, np.int64)
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
        return (self._bodies + self._buffers[:, buffer, 0])[rows.batches]

    def _validity(self, column: _Column, rows: "_Rows") -> pa.Buffer | None:
        nulls = self._nodes[:, column.node, 1]
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

"""The quick way to read small batches: many neighbours at once, by columns.

A batch of few records costs as much to decode as one of thousands, nearly all of it before the first record.
But the metadata of batches without headers differs only in numbers at fixed places (`plain_batch`). So those
of a run of neighbours are compared, and their numbers read, as the rows of one matrix; then each column of
the run is gathered from where its parts stand, and one pass checks all their CRCs. Where all are laid out
alike, as with values of one length, what is said of one layout is said of all.

What is read here is what `decode` returns, put together. Whatever does not fit (headers, a compressed body,
a gap, another epoch, damage) ends the run before it: the reader of single batches is the one that judges it.

Source: Apache Arrow columnar format, "Physical memory layout" and "RecordBatch message".
"""

import struct
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cached_property
from typing import Any, Final, NamedTuple

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

_RUN_BYTES_MAX: Final = 4 * MIB
_ROW_BYTES: Final = KIB
"""What a batch of one small record takes: for so much a record wanted is a run looked for, not beyond."""
_rooms: Final[list[bytearray]] = []
"""Memory for a run each, as many as threads read runs at once: to get it anew takes as long as all else."""

_WORD: Final = 8
_END: Final = np.dtype(np.int32)
_CRC: Final = np.dtype("<u4")

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


def _words_of(content: Buffer) -> _Numbers:
    return np.frombuffer(content, np.int64)


def _places(start: int, end: int) -> slice:
    """Return which words of the metadata these bytes are in."""
    return slice(start // _WORD, (end + _WORD - 1) // _WORD)


_METADATA_WORDS: Final = len(TEMPLATE.metadata) // _WORD
_SAME_AT: Final = np.flatnonzero(_words_of(_MASK))
_SAME_MASK: Final = _words_of(_MASK)[_SAME_AT]
_SAME: Final = _words_of(TEMPLATE.metadata)[_SAME_AT] & _SAME_MASK
_ENTRY_AT: Final = _places(TEMPLATE.digits, TEMPLATE.digits + ENTRY_DIGITS)
_OWN_AT: Final = slice(-(-TEMPLATE.digits // _WORD), (TEMPLATE.digits + ENTRY_DIGITS) // _WORD)
"""Which words of the metadata are digits of the header entry and nothing else."""
_NODES_AT: Final = _places(TEMPLATE.fields.nodes, TEMPLATE.fields.nodes + _NODES * 2 * _WORD)
_BUFFERS_AT: Final = _places(TEMPLATE.fields.buffers, TEMPLATE.fields.buffers + _BUFFERS * 2 * _WORD)


def merged_batches(
    data: Buffer, rows: int, max_bytes: int = _RUN_BYTES_MAX
) -> Iterator[tuple[BatchHeader, pa.RecordBatch]]:
    """Yield what `decode` returns of each message in ``data``, with small neighbours put together.

    The header of several says the range of all, and the flags and CRC of the last one. They end with the
    batch that brings them to ``rows`` records, or before the one that would take them beyond ``max_bytes``,
    4 MiB, or 1 KiB for each of ``rows``. An incomplete last message is left out.

    Args:
        data: if it can be written, batches that have been yielded together are not whole in it afterwards.
        rows: 1 or more.
        max_bytes: of a run.

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
    """Return the run of batches at ``start`` as one; None if there are too few, or the first does not fit."""
    data = data[start : start + min(max_bytes, _RUN_BYTES_MAX, rows * _ROW_BYTES)]
    if not _are_many(data):
        return None
    places = _extents(data, rows)
    if len(places) <= _FRAMES_MIN:
        return None
    with _writable(data[: places[-1]]) as stored:
        found = _read_stored(stored, places)
    return None if found is None else (found[0], found[1], start + found[2])


@contextmanager
def _writable(data: memoryview) -> Iterator[memoryview]:
    """Lend ``data``, or a copy if it cannot be written."""
    if not data.readonly:
        yield data
        return
    try:
        room = _rooms.pop()
    except IndexError:
        room = bytearray(_RUN_BYTES_MAX)
    try:
        room[: len(data)] = data
        yield memoryview(room)[: len(data)]
    finally:
        _rooms.append(room)


def _read_stored(stored: memoryview, places: _Numbers) -> FoundBatch | None:
    """Return the run in ``stored``, if any; only what is no part of it is whole there afterwards."""
    lengths = places[1:] - places[:-1]
    metadata = _metadata(stored, places[:-1], lengths)
    entries, fit = _entries(metadata)
    if _are_alike(metadata, lengths):
        metadata = metadata[:1]
    layouts = _layouts(metadata)
    fit &= _are_ours(metadata) & layouts.are_flat(lengths - len(TEMPLATE.metadata))
    fit &= _fit_together(entries) & (entries["next"] - entries["base"] >= layouts.rows)
    checked = _leading(fit)
    crcs = entries["crc"][:checked].astype(_CRC)
    whole = _whole(stored, places[: checked + 1], crcs) if checked else 0
    run = _Run(stored, places[:whole], layouts.of_first(whole))
    count = run.in_order()
    if count < checked:
        _put_back(stored, places[:checked], crcs, count)
    if not count:
        return None
    return _header(entries[:count]), run.leading(count).records(), int(places[count])


def _metadata(stored: memoryview, places: _Numbers, lengths: _Numbers) -> _Numbers:
    """Return the metadata of each batch, in words; a view if all are of one length."""
    words = _words_of(stored)
    if (lengths == lengths[0]).all():
        return words[: lengths.sum() // _WORD].reshape(len(lengths), -1)[:, :_METADATA_WORDS]
    return sliding_window_view(words, _METADATA_WORDS)[places // _WORD]


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
    starts = _found_starts(words)
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


def _found_starts(words: _Numbers) -> _Numbers:
    """Return where batches seem to begin, in words: as far apart as the first two, if most of them are."""
    length = _METADATA_WORDS + int(words[TEMPLATE.fields.body_length // _WORD]) // _WORD
    count = (len(words) - _METADATA_WORDS) // length + 1
    apart = _leading(words[: (count - 1) * length + 1 : length] == _words_of(_PREFIX)[0])
    if 2 * apart >= count:
        return np.arange(apart) * length
    return np.flatnonzero(words[: len(words) - _METADATA_WORDS + 1] == _words_of(_PREFIX)[0])


def _are_alike(metadata: _Numbers, lengths: _Numbers) -> bool:
    """Tell whether all batches are laid out like the first: they differ in their header entries only."""
    return bool(
        (lengths == lengths[0]).all()
        and (metadata[:, : _OWN_AT.start] == metadata[0, : _OWN_AT.start]).all()
        and (metadata[:, _OWN_AT.stop :] == metadata[0, _OWN_AT.stop :]).all()
    )


def _are_ours(metadata: _Numbers) -> _Flags:
    """Tell of each batch whether its metadata is that of a batch of ours, but for its header entry."""
    fit: _Flags = (metadata[:, _SAME_AT] & _SAME_MASK == _SAME).all(axis=1)
    return fit


def _entries(metadata: _Numbers) -> tuple[npt.NDArray[np.void], _Flags]:
    """Return the header entry of each batch, and whether it is one."""
    first = TEMPLATE.digits % _WORD
    digits = metadata[:, _ENTRY_AT].copy().view(np.uint8)[:, first : first + ENTRY_DIGITS]
    values = _VALUES.take(digits.view(np.uint16))
    fit = np.asarray((values < _NO_VALUE).all(axis=1))
    return values.astype(np.uint8).view(_ENTRY)[:, 0], fit


def _fit_together(entries: npt.NDArray[np.void]) -> _Flags:
    """Tell of each batch whether it is one of this version, and goes on where the one before it ended."""
    base, end, epoch = entries["base"], entries["next"], entries["epoch"]
    fit: _Flags = (base < end) & (end <= SIGNED_MAX) & (entries["version"] == FORMAT_VERSION)
    fit &= (epoch == epoch[0]) & (epoch <= SIGNED_MAX) & (entries["timestamp"] <= SIGNED_MAX)
    fit[1:] &= base[1:] == end[:-1]
    return fit


def _whole(stored: memoryview, places: _Numbers, crcs: "npt.NDArray[np.uint32]") -> int:
    """Return how many leading batches have the CRC that they say; `_put_back` undoes what it changes.

    A CRC that comes to its own value, added to the bytes there, goes on behind them as if it began there. So
    one pass that meets each batch's CRC at the start of the next one ends with that of the last, and with
    another if one of them is damaged: the difference stays to the end. Which one that is, halves tell. That
    the differences of several batches cancel out is as likely as that damage of one keeps its CRC: 2^-32.
    """
    digits = places[:-1, None] + np.arange(TEMPLATE.digits + CRC_AT, TEMPLATE.digits + CRC_AT + len(ZEROS))
    np.frombuffer(stored, np.uint8)[digits] = ZEROS[0]
    np.frombuffer(stored, _CRC)[places[1:-1] // _CRC.itemsize] ^= crcs[:-1]

    def are_whole(first: int, end: int) -> bool:
        before = int(crcs[first - 1]) if first else 0
        return crc32c(stored[places[first] : places[end]], before) == int(crcs[end - 1])

    whole, suspects_end = 0, len(crcs)
    if are_whole(whole, suspects_end):
        return suspects_end
    while suspects_end - whole > 1:
        middle = (whole + suspects_end) // 2
        if are_whole(whole, middle):
            whole = middle
        else:
            suspects_end = middle
    return whole


def _put_back(stored: memoryview, places: _Numbers, crcs: "npt.NDArray[np.uint32]", first: int) -> None:
    """Make batches that `_whole` has looked at what they were, from the one with the number ``first`` on."""
    for place, crc in zip((places[first:] + TEMPLATE.digits + CRC_AT).tolist(), crcs[first:], strict=True):
        stored[place : place + len(ZEROS)] = b"%08x" % crc
    begun = max(first, 1)
    np.frombuffer(stored, _CRC)[places[begun:] // _CRC.itemsize] ^= crcs[begun - 1 : -1]


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


def _layouts(metadata: _Numbers) -> "_Layouts":
    return _Layouts(
        metadata[:, _NODES_AT].T.copy().reshape(_NODES, 2, -1),
        metadata[:, _BUFFERS_AT].T.copy().reshape(_BUFFERS, 2, -1),
    )


def _leading(flags: _Flags) -> int:
    """Return how many are true before the first that is not."""
    return int(np.append(flags, np.False_).argmin())


class _Layouts(NamedTuple):
    """What the metadata of batches says of their bodies: of each, or of one that all the others are like.

    A row for each number, a column for each batch: what is compared and gathered lies side by side.
    """

    nodes: _Numbers
    """Of each column how many entries it has, and how many of them are null: 10 x 2 x batches."""
    buffers: _Numbers
    """Where each begins in the body, and its length: 24 x 2 x batches."""

    @property
    def rows(self) -> _Numbers:
        """How many records each batch has."""
        rows: _Numbers = self.nodes[0, 0]
        return rows

    def are_flat(self, body_lengths: _Numbers) -> _Flags:
        """Tell of each that seems to have no headers whether its columns are complete, in its body."""
        rows, nulls = self.rows, self.nodes[:, 1]
        starts, lengths = self.buffers[:, 0], self.buffers[:, 1]
        left = body_lengths[: len(rows)] - starts
        # Negative if one of them is: the first of two differences, too, as the second may be beyond its type.
        signs = np.bitwise_or.reduce(starts | lengths | left | (left - lengths), axis=0)
        fit: _Flags = (signs >= 0) & (np.bitwise_or.reduce(starts, axis=0) % _WORD == 0)
        fit &= (rows >= 0) & (rows <= _BODY_BYTES_MAX)
        for column in _COLUMNS.values():
            fit &= self.nodes[column.node, 0] == rows
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
        fit &= (self.nodes[_IN_HEADERS] == 0).all(axis=(0, 1))
        return fit

    def of_first(self, count: int) -> "_Layouts":
        """Return those of the first ``count`` batches."""
        if len(self.rows) == 1:
            return _Layouts(*(np.broadcast_to(each, (*each.shape[:2], count)) for each in self))
        return _Layouts(*(each[..., :count] for each in self))


class _Run:
    """Neighbouring batches that are flat."""

    def __init__(self, stored: memoryview, places: _Numbers, layouts: _Layouts) -> None:
        """Look at ``stored``, in which each begins at one of ``places``."""
        self._stored = stored
        self._places = places
        self._layouts = layouts

    def leading(self, count: int) -> "_Run":
        """Return the first of them."""
        if count == len(self._places):
            return self
        return _Run(self._stored, self._places[:count], self._layouts.of_first(count))

    def in_order(self) -> int:
        """Return of how many leading batches the texts end where they can."""
        batches, found = self._rows.batches, len(self._places)
        for column, text in self._texts.items():
            length = self._layouts.buffers[_TEXTS[column].first + 2, 1][batches]
            contradictory = batches[(text.starts < 0) | (text.starts > text.stops) | (text.stops > length)]
            found = int(contradictory.min(initial=found))
        return found

    def records(self) -> pa.RecordBatch:
        """Return all records of batches whose texts are in order."""
        columns: dict[str, pa.Array[Any]] = {"headers": no_headers(len(self._rows.batches))}
        for name, column in _NUMBERS.items():
            columns[name] = self._numbers(column, SCHEMA.field(name).type)
        every_second = pa.array(np.arange(0, 2 * len(self._rows.batches), 2))
        for name in _TEXTS:
            columns[name] = self._copied(name, every_second)
        return pa.RecordBatch.from_arrays([columns[name] for name in SCHEMA.names], schema=SCHEMA)

    @cached_property
    def _rows(self) -> "_Rows":
        count = self._layouts.rows
        batches = np.repeat(np.arange(len(count)), count)
        return _Rows(batches, np.arange(len(batches)) - (np.cumsum(count) - count)[batches])

    @cached_property
    def _texts(self) -> "dict[str, _Texts]":
        ends = np.frombuffer(self._stored, _END)
        texts: dict[str, _Texts] = {}
        for name, column in _TEXTS.items():
            at = self._starts(column.first + 1) // _END.itemsize + self._rows.within
            texts[name] = _Texts(self._starts(column.first + 2), ends[at], ends[at + 1])
        return texts

    def _numbers(self, column: _Column, of_type: pa.DataType) -> "pa.Array[Any]":
        words = _words_of(self._stored)
        values = words[self._starts(column.first + 1) // _WORD + self._rows.within]
        return pa.Array.from_buffers(
            of_type, len(values), [self._validity(column), pa.py_buffer(values.data)]
        )

    def _copied(self, name: str, every_second: "pa.Array[Any]") -> "pa.Array[Any]":
        """Return a copy of what is there: it is read as one array, in turns with what is between."""
        begin, starts, stops = self._texts[name]
        turns = np.empty((len(begin), 2), _END)
        np.add(begin, starts, out=turns[:, 0], casting="same_kind")
        np.add(begin, stops, out=turns[:, 1], casting="same_kind")
        buffers = [None, pa.py_buffer(turns.data), pa.py_buffer(self._stored)]
        mixed = pa.Array.from_buffers(pa.binary(), max(2 * len(begin) - 1, 0), buffers)
        _, ends, values = mixed.take(every_second).buffers()
        buffers = [self._validity(_TEXTS[name]), ends, values]
        return pa.Array.from_buffers(SCHEMA.field(name).type, len(begin), buffers)

    def _starts(self, buffer: int) -> _Numbers:
        """Return where that buffer of each record's batch begins."""
        starts: _Numbers = self._places + len(TEMPLATE.metadata) + self._layouts.buffers[buffer, 0]
        return starts[self._rows.batches]

    def _validity(self, column: _Column) -> pa.Buffer | None:
        nulls = self._layouts.nodes[column.node, 1]
        if not nulls.any():
            return None
        batches, within = self._rows
        stored = np.frombuffer(self._stored, np.uint8)
        at = np.minimum(self._starts(column.first) + within // 8, len(stored) - 1)
        are_valid = (stored[at] >> (within % 8) & 1 == 1) | (nulls == 0)[batches]
        return pa.py_buffer(np.packbits(are_valid, bitorder="little").data)


class _Rows(NamedTuple):
    """The records of a run: which batch each is in, and which of its records it is."""

    batches: _Numbers
    within: _Numbers


class _Texts(NamedTuple):
    """Where the texts of each record's batch begin, and where among them the record's own begins and ends."""

    begin: _Numbers
    starts: _Ends
    stops: _Ends

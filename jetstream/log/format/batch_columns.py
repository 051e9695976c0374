"""The columns of small batches that stand side by side, read together from where their parts lie.

The metadata of a batch holds, at fixed places, the position of each column in its body. So the metadata of
many neighbours is one matrix, checked and used by columns: no step for each batch. If all are equal, as with
values of one length, one layout stands for all.

Source: Apache Arrow columnar format, "Physical memory layout" and "RecordBatch message".
"""

from functools import cached_property
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from envelope.limits import KIB
from envelope.types import Buffer
from jetstream.log.format.plain_batch_encoder import TEMPLATE, no_headers
from jetstream.log.format.schema import SCHEMA

Numbers = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]
_Ends = npt.NDArray[np.int32]

BODY_BYTES_MAX: Final = 16 * KIB
"""Bytes of the largest body that is read with others: a larger one is worth a decoding of its own."""

WORD: Final = 8
_END: Final = np.dtype(np.int32)

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
"""The nodes inside a list of headers."""
_NULLABLE: Final = tuple(_COLUMNS[name] for name in ("key", "txid", "value"))
_PRESENT: Final = tuple(_COLUMNS[name] for name in ("offset", "timestamp", "subject"))

HEADERS_AT: Final = TEMPLATE.fields.nodes + _HEADERS.node * 2 * WORD
"""Position in the metadata of the number of records; the number of those without headers follows."""

assert len(TEMPLATE.metadata) % WORD == TEMPLATE.fields.nodes % WORD == TEMPLATE.fields.buffers % WORD == 0


def words_of(content: Buffer) -> Numbers:
    """Return ``content``, whole words, as numbers; a view."""
    return np.frombuffer(content, np.int64)


def words_at(start: int, end: int) -> slice:
    """Return the words of the metadata that hold the bytes ``[start, end)``."""
    return slice(start // WORD, (end + WORD - 1) // WORD)


_NODES_AT: Final = words_at(TEMPLATE.fields.nodes, TEMPLATE.fields.nodes + _NODES * 2 * WORD)
_BUFFERS_AT: Final = words_at(TEMPLATE.fields.buffers, TEMPLATE.fields.buffers + _BUFFERS * 2 * WORD)


class Layouts(NamedTuple):
    """The layout of batches' bodies, from their metadata: of each batch, or of one that all others equal.

    A row for each number, a column for each batch: numbers that are compared lie side by side.
    """

    nodes: Numbers
    """Entries and nulls of each column: 10 x 2 x batches."""
    buffers: Numbers
    """Position in the body and length of each buffer: 24 x 2 x batches."""

    @property
    def rows(self) -> Numbers:
        """Number of records of each batch."""
        rows: Numbers = self.nodes[0, 0]
        return rows

    def are_flat(self, body_lengths: Numbers) -> Flags:
        """Return for each batch that seems to have no headers whether its body holds complete columns."""
        rows, nulls = self.rows, self.nodes[:, 1]
        starts, lengths = self.buffers[:, 0], self.buffers[:, 1]
        left = body_lengths[: len(rows)] - starts
        # Negative if one of them is: the first of two differences, too, as the second may be beyond its type.
        signs = np.bitwise_or.reduce(starts | lengths | left | (left - lengths), axis=0)
        fit: Flags = (signs >= 0) & (np.bitwise_or.reduce(starts, axis=0) % WORD == 0)
        fit &= (rows >= 0) & (rows <= BODY_BYTES_MAX)
        for column in _COLUMNS.values():
            fit &= self.nodes[column.node, 0] == rows
        for column in _PRESENT:
            fit &= nulls[column.node] == 0
        for column in _NULLABLE:
            count = nulls[column.node]
            fit &= (count >= 0) & (count <= rows)
            fit &= (count == 0) | (lengths[column.first] >= (rows + 7) // 8)
        for column in _NUMBERS.values():
            fit &= lengths[column.first + 1] >= rows * WORD
        for column in _TEXTS.values():
            fit &= (rows == 0) | (lengths[column.first + 1] >= (rows + 1) * _END.itemsize)
        fit &= (self.nodes[_IN_HEADERS] == 0).all(axis=(0, 1))
        return fit

    def of_first(self, count: int) -> "Layouts":
        """Return the layouts of the first ``count`` batches."""
        if len(self.rows) == 1:
            return Layouts(*(np.broadcast_to(each, (*each.shape[:2], count)) for each in self))
        return Layouts(*(each[..., :count] for each in self))


def layouts_of(metadata: Numbers) -> Layouts:
    """Return the layouts in the metadata of batches: a row of words for each batch."""
    return Layouts(
        metadata[:, _NODES_AT].T.copy().reshape(_NODES, 2, -1),
        metadata[:, _BUFFERS_AT].T.copy().reshape(_BUFFERS, 2, -1),
    )


class FlatBatches:
    """Neighbouring batches that are flat."""

    def __init__(self, stored: memoryview, places: Numbers, layouts: Layouts) -> None:
        """Read ``stored``, in which each batch begins at one of ``places``."""
        self._stored = stored
        self._places = places
        self._layouts = layouts

    def leading(self, count: int) -> "FlatBatches":
        """Return the first ``count`` batches."""
        if count == len(self._places):
            return self
        return FlatBatches(self._stored, self._places[:count], self._layouts.of_first(count))

    def in_order(self) -> int:
        """Return the number of leading batches whose texts end inside their buffers."""
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
        words = words_of(self._stored)
        values = words[self._starts(column.first + 1) // WORD + self._rows.within]
        return pa.Array.from_buffers(
            of_type, len(values), [self._validity(column), pa.py_buffer(values.data)]
        )

    def _copied(self, name: str, every_second: "pa.Array[Any]") -> "pa.Array[Any]":
        """Return a copy of a column, which is read as one array together with the bytes between its parts."""
        begin, starts, stops = self._texts[name]
        turns = np.empty((len(begin), 2), _END)
        np.add(begin, starts, out=turns[:, 0], casting="same_kind")
        np.add(begin, stops, out=turns[:, 1], casting="same_kind")
        buffers = [None, pa.py_buffer(turns.data), pa.py_buffer(self._stored)]
        mixed = pa.Array.from_buffers(pa.binary(), max(2 * len(begin) - 1, 0), buffers)
        _, ends, values = mixed.take(every_second).buffers()
        buffers = [self._validity(_TEXTS[name]), ends, values]
        return pa.Array.from_buffers(SCHEMA.field(name).type, len(begin), buffers)

    def _starts(self, buffer: int) -> Numbers:
        starts: Numbers = self._places + len(TEMPLATE.metadata) + self._layouts.buffers[buffer, 0]
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
    """The records of a run: the batch of each, and its number within it."""

    batches: Numbers
    within: Numbers


class _Texts(NamedTuple):
    """Start of the texts of each record's batch; start and end of the record's own among them."""

    begin: Numbers
    starts: _Ends
    stops: _Ends

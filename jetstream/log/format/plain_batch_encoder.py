"""The quick way to encode records that carry nothing but subject and value, byte for byte as pyarrow does it.

Most messages have no key, headers or transaction id. Their batch differs from any other such batch only in a
few numbers of the metadata, at fixed places, and in a body whose layout follows from the row count. So the
metadata is a template made by pyarrow at import, and the body is joined from its buffers: a third of the
cost of building arrays and serialising them, most of which does not depend on the number of rows.

`encode_plain` must equal ``encode(plain.to_records(), ...)`` to the last byte: held by a property test, so
that pyarrow stays the one authority on the format.

Body of n rows; every buffer begins at a multiple of 8, the rest of it is zeros:

    buffer                      bytes
    offset, timestamp           8n each
    subject                     4(n+1) offsets, then the text
    key, headers, txid          validity, offsets and values of nulls: zeros throughout
    value                       4(n+1) offsets, then the payloads

Source: Apache Arrow columnar format, "Physical memory layout" and "RecordBatch message".
"""

import struct
from collections.abc import Sequence
from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa

from envelope.limits import BATCH_BYTES_MAX
from envelope.types import Buffer, Compression, LeaderEpoch, Offset, TimestampUs
from envelope.values import value
from jetstream.log.format.batch import (
    BatchFlags,
    BatchHeader,
    UnsealedBatch,
    encode,
    encode_group,
)
from jetstream.log.format.message import ENTRY_DIGITS, RecordBatchFields, find_frame, record_batch_fields
from jetstream.log.format.schema import SCHEMA

_EMPTY_HEADERS: Final = pa.StructArray.from_arrays(
    [pa.array([], pa.utf8()), pa.array([], pa.binary())],
    fields=list(SCHEMA.field("headers").type.value_type),
)
_HEADERS: Final = SCHEMA.field("headers").type
_TIMESTAMP: Final = SCHEMA.field("timestamp").type


@value(frozen=True, slots=True)
class PlainRecords:
    """Records without key, headers, transaction id or tombstone, as columns; offsets dense from ``base``.

    Attributes:
        base: offset of the first.
        timestamp: of all of them.
        subjects: known to be UTF-8; not empty.
        payloads: as many.
    """

    base: Offset
    timestamp: TimestampUs
    subjects: Sequence[bytes]
    payloads: Sequence[bytes]

    def to_records(self) -> pa.RecordBatch:
        """Return the same records as Arrow arrays."""
        count = len(self.subjects)
        return pa.RecordBatch.from_arrays(
            [
                pa.array(np.arange(self.base, self.base + count, dtype=np.int64)),
                pa.repeat(pa.scalar(self.timestamp, _TIMESTAMP), count),
                # Same layout and validated before: a view is free, a conversion reads every subject.
                pa.array(self.subjects, pa.binary()).view(pa.utf8()),
                pa.nulls(count, pa.binary()),
                no_headers(count),
                pa.nulls(count, pa.int64()),
                pa.array(self.payloads, pa.binary()),
            ],
            schema=SCHEMA,
        )


def no_headers(count: int) -> "pa.Array[Any]":
    """Return ``count`` null lists of headers, without offsets of headers."""
    are_null, starts = bytes((count + 7) // 8), bytes(4 * (count + 1))
    buffers: list[pa.Buffer | None] = [pa.py_buffer(are_null), pa.py_buffer(starts)]
    return pa.Array.from_buffers(_HEADERS, count, buffers, children=[_EMPTY_HEADERS])


Run = pa.RecordBatch | PlainRecords
"""Records that share their batches with no others."""


@value(frozen=True, slots=True)
class Runs:
    """Runs that are appended together, one behind the other."""

    runs: tuple[Run, ...]


Records = Run | Runs
"""Content of batches."""


def arrow_records(records: Records) -> pa.RecordBatch:
    """Return ``records`` as Arrow arrays."""
    if isinstance(records, Runs):
        runs = pa.Table.from_batches([arrow_records(run) for run in records.runs], SCHEMA)
        return runs.combine_chunks().to_batches()[0]
    return records.to_records() if isinstance(records, PlainRecords) else records


def encode_records(
    records: Records, base: Offset, leader_epoch: LeaderEpoch, compression: Compression = Compression.NONE
) -> tuple[UnsealedBatch, ...]:
    """Encode as `encode_group`, plain records the quick way, and each run by itself."""
    if isinstance(records, Runs):
        batches: list[UnsealedBatch] = []
        for run in records.runs:
            batches += encode_records(run, base, leader_epoch, compression)
            base = batches[-1].next
        return tuple(batches)
    if isinstance(records, PlainRecords) and compression is Compression.NONE:
        batch = encode_plain(records, leader_epoch)
        if batch.size <= BATCH_BYTES_MAX or batch.next - batch.base == 1:
            return (batch,)
    return encode_group(arrow_records(records), base, leader_epoch, compression)


def encode_plain(records: PlainRecords, leader_epoch: LeaderEpoch) -> UnsealedBatch:
    """Encode ``records``, at least one row, uncompressed, as `encode` would."""
    count = len(records.subjects)
    assert count == len(records.payloads) > 0, "a batch has records, with as many values as subjects"
    subject_sizes, value_sizes = list(map(len, records.subjects)), list(map(len, records.payloads))
    key = count, subject_sizes[0], value_sizes[0]
    is_even = subject_sizes.count(key[1]) == value_sizes.count(key[2]) == count
    shape = _SHAPES.get(key) if is_even else None
    if shape is None:
        shape = _shape_of(subject_sizes, value_sizes)
        if is_even:
            _keep(key, shape)
    header = BatchHeader(records.base, Offset(records.base + count), leader_epoch, records.timestamp)
    frame = bytearray().join(
        (
            shape.metadata,
            np.arange(records.base, records.base + count, dtype=np.int64).data,
            _I64.pack(records.timestamp) * count,
            shape.subject_ends,
            *records.subjects,
            shape.between,
            *records.payloads,
            shape.padding,
        )
    )
    assert len(frame) == shape.size, "what was joined is what was laid out"
    return UnsealedBatch(memoryview(frame), TEMPLATE.digits, header)


class _Shape(NamedTuple):
    """The bytes that batches share which have the same number of records, of the same sizes."""

    metadata: bytes
    """With the numbers of the body; the header entry is still the template's."""
    subject_ends: bytes
    between: bytes
    """What is between the text of the subjects and that of the values."""
    padding: bytes
    size: int
    """Of the whole frame."""


_SHAPES: Final[dict[tuple[int, int, int], _Shape]] = {}
"""By count, size of each subject, size of each value: publishers send much that is alike, to many streams."""
_SHAPES_MAX: Final = 256
_SHAPE_COUNT_MAX: Final = 64
"""Laying out is a small part of the price of a batch of more records."""


def _keep(key: tuple[int, int, int], shape: _Shape) -> None:
    if key[0] <= _SHAPE_COUNT_MAX:
        if len(_SHAPES) >= _SHAPES_MAX:
            _SHAPES.clear()
        _SHAPES[key] = shape


def _shape_of(subject_sizes: Sequence[int], value_sizes: Sequence[int]) -> _Shape:
    count = len(subject_sizes)
    subject_ends, value_ends = _ends(subject_sizes), _ends(value_sizes)
    subject_bytes, value_bytes = int(subject_ends[-1]), int(value_ends[-1])
    nodes, buffers, null_bytes, body_length = _lay_out(count, subject_bytes, value_bytes)
    metadata, fields = bytearray(TEMPLATE.metadata), TEMPLATE.fields
    _I64.pack_into(metadata, fields.body_length, body_length)
    _I64.pack_into(metadata, fields.row_count, count)
    _NODES.pack_into(metadata, fields.nodes, *nodes)
    _BUFFERS.pack_into(metadata, fields.buffers, *buffers)
    after_ends = bytes(-4 * (count + 1) % 8)
    return _Shape(
        metadata=bytes(metadata),
        subject_ends=subject_ends.tobytes() + after_ends,
        between=bytes(-subject_bytes % 8 + null_bytes) + value_ends.tobytes() + after_ends,
        padding=bytes(-value_bytes % 8),
        size=len(metadata) + body_length,
    )


def is_plain(frame: Buffer) -> bool:
    """Return, from its metadata alone, whether `encode_plain` could have made a batch.

    The records of such a batch have no key, headers or transaction id, and need not be decoded for that.
    """
    metadata = bytes(frame[: len(TEMPLATE.metadata)])
    if len(metadata) < len(TEMPLATE.metadata):
        return False
    count, *others = _NODES.unpack_from(metadata, TEMPLATE.fields.nodes)
    is_alike = int.from_bytes(metadata) & _ALIKE == _ALIKE_METADATA
    return is_alike and others == list(map(count.__mul__, _NODES_OF_ONE[1:]))


def blank(metadata: bytearray) -> None:
    """Zero the numbers in a plain batch's metadata by which plain batches differ."""
    fields = TEMPLATE.fields
    for place, length in (
        (fields.body_length, _I64.size),
        (fields.row_count, _I64.size),
        (fields.nodes, _NODES.size),
        (fields.buffers, _BUFFERS.size),
        (TEMPLATE.digits, ENTRY_DIGITS),
    ):
        metadata[place : place + length] = bytes(length)


def _ends(sizes: Sequence[int]) -> "np.ndarray[Any, np.dtype[np.int32]]":
    """Return 0 and where each part ends when parts of these sizes are joined, as int32."""
    if sizes.count(sizes[0]) == len(sizes):
        return np.arange(len(sizes) + 1, dtype=np.int32) * sizes[0]
    ends = np.zeros(len(sizes) + 1, dtype=np.int32)
    np.cumsum(sizes, out=ends[1:])
    return ends


def _lay_out(count: int, subject_bytes: int, value_bytes: int) -> tuple[tuple[int, ...], list[int], int, int]:
    """Return the numbers of one body: nodes, buffers, the zeros of key, headers and txid, and its length."""
    validity, ends, wide = (count + 7) // 8, 4 * (count + 1), 8 * count
    before_nulls, values = (0, wide, 0, wide, 0, ends, subject_bytes), (0, ends, value_bytes)
    nulls = (validity, ends, 0, validity, ends, 0, 0, _NO_ENDS, 0, 0, _NO_ENDS, 0, validity, wide)
    buffers: list[int] = []
    position = 0
    for length in (*before_nulls, *nulls, *values):
        buffers += (position, length)
        position += length + -length % 8
    null_bytes = buffers[-2 * len(values)] - buffers[2 * len(before_nulls)]
    return tuple(map(count.__mul__, _NODES_OF_ONE)), buffers, null_bytes, position


_I64: Final = struct.Struct("<q")
_NODES: Final = struct.Struct("<20q")
_BUFFERS: Final = struct.Struct("<48q")
_NO_ENDS: Final = 4
"""Bytes of the offsets of an array without entries: the one at its start."""
_PRESENT, _NULL, _NO_ENTRIES = (1, 0), (1, 1), (0, 0)
_NODES_OF_ONE: Final = (*_PRESENT * 3, *_NULL * 2, *_NO_ENTRIES * 3, *_NULL, *_PRESENT)
"""Nodes of a batch of one record, with the headers' struct and its two fields; of n records n times that."""


class Template(NamedTuple):
    """The metadata of a plain batch as pyarrow writes it, with the numbers of a batch of one record."""

    metadata: bytes
    fields: RecordBatchFields
    digits: int


def _template() -> Template:
    plain = PlainRecords(Offset(0), TimestampUs(0), (b"",), (b"",))
    message = bytes(encode(plain.to_records(), Offset(0), LeaderEpoch(0)).seal(BatchFlags(0)))
    frame = find_frame(message)
    assert frame is not None, "a whole message"
    *_, body_length = _lay_out(1, 0, 0)
    return Template(message[: len(message) - body_length], record_batch_fields(message), frame.digits)


TEMPLATE: Final = _template()
_MASK: Final = bytearray(b"\xff" * len(TEMPLATE.metadata))
blank(_MASK)
_ALIKE: Final = int.from_bytes(_MASK)
"""The bits of the metadata that are the same in every plain batch."""
_ALIKE_METADATA: Final = int.from_bytes(TEMPLATE.metadata) & _ALIKE

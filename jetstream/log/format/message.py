"""Framing: the end of one encapsulated RecordBatch message, and the place of its header entry's digits.

Only the fields that framing needs are walked, and a few that are read of batches without decoding them; the
rest of the flatbuffer is Arrow's and is covered by the batch's CRC. Layout of an
encapsulated message:

    offset  size  field
    0       4     continuation marker, ff ff ff ff
    4       4     metadata length M, little-endian, a multiple of 8; 0 marks the end of the stream
    8       M     flatbuffer ``Message``, padded with zeros
    8+M     B     body, B = ``Message.bodyLength``, a multiple of 8

Source: Apache Arrow columnar format, "Encapsulated message format"; ``Message.fbs``; FlatBuffers internals.
"""

import struct
from typing import Final, Literal, NamedTuple

import pyarrow as pa

from envelope.errors import CorruptDataError
from envelope.limits import RECORD_BYTES_MAX

CONTINUATION: Final = b"\xff\xff\xff\xff"
ENTRY_KEY: Final = b"jetstream"
ENTRY_DIGITS: Final = 80
"""Fixed width of the entry's value, in hexadecimal digits."""

PREFIX_BYTES: Final = 8
METADATA_BYTES_MAX: Final = 4096
"""The pinned schema makes about 800; more is not ours."""

BODY_BYTES_MAX: Final = 2 * RECORD_BYTES_MAX
"""One largest record with its headers, subject and padding; more is not ours."""

_PREFIX: Final = struct.Struct("<4sI")
_U32: Final = struct.Struct("<I")
_I32: Final = struct.Struct("<i")
_U16: Final = struct.Struct("<H")
_I64: Final = struct.Struct("<q")
_EXTENT: Final = struct.Struct("<qq")
_MESSAGE_VTABLE: Final = struct.Struct("<H2x5H")
"""Its length, and the places in a ``Message`` of version, header type, header, body length and metadata."""
_ENTRY_VTABLE: Final = struct.Struct("<H2x2H")
"""Its length, and the places in a ``KeyValue`` of key and value."""
_METADATA_V5: Final = 4
_RECORD_BATCH_BYTE: Final = b"\x03"
_HEADER, _BODY_LENGTH = 2, 3
_ROW_COUNT, _NODES, _BUFFERS, _COMPRESSION = 0, 1, 2, 3
_HEADER_SLOT: Final = 4 + 2 * _HEADER
_NODES_SLOT: Final = 4 + 2 * _NODES
_TXID_NODE_AT: Final = 4 + 16 * 8
"""Behind the vector's length and the nodes of the columns before it, with those in the list of headers."""
_TXID_BUFFER: Final = 19
"""Two for each number, three for each text or bytes, two for the list of headers, seven for its content."""
_OUTSIDE: Final = "a message's metadata points outside itself"
_CODEC: Final = 0
_CODECS: Final[tuple[Literal["lz4", "zstd"], ...]] = ("lz4", "zstd")

assert _PREFIX.size == PREFIX_BYTES


class Frame(NamedTuple):
    """Extent of one message inside a buffer.

    Attributes:
        start: first byte of the message.
        end: one past its last byte; may lie beyond the buffer if the body is incomplete.
        digits: first of the `ENTRY_DIGITS` digits of the header entry.
    """

    start: int
    end: int
    digits: int


class RecordBatchFields(NamedTuple):
    """Positions, from the message's start, of the numbers that depend on a batch's records.

    Attributes:
        body_length: int64.
        row_count: int64.
        nodes: first of two int64 (length, nulls) for each array.
        buffers: first of two int64 (offset, length) for each buffer.
    """

    body_length: int
    row_count: int
    nodes: int
    buffers: int


def find_frame(data: bytes | bytearray | memoryview, start: int = 0) -> Frame | None:
    """Return the extent of the message that begins at ``start``; None if ``data`` ends inside its metadata.

    Raises:
        CorruptDataError: these bytes do not begin a RecordBatch message of ours.
    """
    if len(data) - start < PREFIX_BYTES:
        if bytes(data[start : start + 4]) != CONTINUATION[: len(data) - start]:
            raise CorruptDataError("a message does not begin with the continuation marker")
        return None
    marker, length = _PREFIX.unpack_from(data, start)
    if marker != CONTINUATION:
        raise CorruptDataError("a message does not begin with the continuation marker")
    if length % 8 or not 0 < length <= METADATA_BYTES_MAX:
        raise CorruptDataError(f"a message claims {length} bytes of metadata")
    metadata = bytes(data[start + PREFIX_BYTES : start + PREFIX_BYTES + length])
    if len(metadata) < length:
        return None
    try:
        body_length, digits = _walk(metadata)
    except struct.error as error:
        raise CorruptDataError(_OUTSIDE) from error
    body_start = start + PREFIX_BYTES + length
    return Frame(start, body_start + body_length, start + PREFIX_BYTES + digits)


def _walk(metadata: bytes) -> tuple[int, int]:
    """Return the body's length, and the position of the header entry's digits."""
    message = _U32.unpack_from(metadata, 0)[0]
    # All five fields at once, and without `_field`: this runs for every batch that is read.
    vtable = message - _I32.unpack_from(metadata, message)[0]
    if vtable < 0:
        raise CorruptDataError(_OUTSIDE)
    length, version_at, type_at, _, body_at, custom_at = _MESSAGE_VTABLE.unpack_from(metadata, vtable)
    if length < _MESSAGE_VTABLE.size or not custom_at:
        raise CorruptDataError("a record batch has no header entry")
    if not version_at or _U16.unpack_from(metadata, message + version_at)[0] != _METADATA_V5:
        raise CorruptDataError("a message is not Arrow metadata version 5")
    if not type_at or metadata[message + type_at : message + type_at + 1] != _RECORD_BATCH_BYTE:
        raise CorruptDataError("a message is not a record batch")
    body_length = _I64.unpack_from(metadata, message + body_at)[0] if body_at else 0
    if body_length % 8 or not 0 <= body_length <= BODY_BYTES_MAX:
        raise CorruptDataError(f"a message claims {body_length} bytes of body")
    vector = message + custom_at + _U32.unpack_from(metadata, message + custom_at)[0]
    return body_length, _find_entry(metadata, vector)


def record_batch_fields(message: bytes) -> RecordBatchFields:
    """Return the places in a whole RecordBatch message of ours of the numbers that depend on its records."""
    metadata = message[PREFIX_BYTES:]
    root = _U32.unpack_from(metadata, 0)[0]
    batch = _follow(metadata, _field(metadata, root, _HEADER))
    vectors = (_follow(metadata, _field(metadata, batch, index)) + 4 for index in (_NODES, _BUFFERS))
    return RecordBatchFields(
        PREFIX_BYTES + _field(metadata, root, _BODY_LENGTH),
        PREFIX_BYTES + _field(metadata, batch, _ROW_COUNT),
        *(PREFIX_BYTES + vector for vector in vectors),
    )


def txid_nulls(message: bytes | bytearray | memoryview) -> tuple[int, int]:
    """Return how many records a whole RecordBatch message of ours has, and how many without transaction id.

    Raises:
        struct.error: it points outside itself.
    """
    # Written out, as this runs for every batch that is read.
    root = PREFIX_BYTES + _U32.unpack_from(message, PREFIX_BYTES)[0]
    vtable = root - _I32.unpack_from(message, root)[0]
    at = root + _U16.unpack_from(message, vtable + _HEADER_SLOT)[0]
    batch = at + _U32.unpack_from(message, at)[0]
    vtable = batch - _I32.unpack_from(message, batch)[0]
    at = batch + _U16.unpack_from(message, vtable + _NODES_SLOT)[0]
    node = at + _U32.unpack_from(message, at)[0] + _TXID_NODE_AT
    records, nulls = _EXTENT.unpack_from(message, node)
    return records, nulls


def txid_buffers(message: bytes | bytearray | memoryview) -> tuple[memoryview, memoryview]:
    """Return validity and values of the transaction ids of a whole RecordBatch message of ours, decompressed.

    The validity is empty if every record has one.

    Raises:
        struct.error, ValueError, OSError: it points outside itself, or does not decompress.
    """
    body = PREFIX_BYTES + _U32.unpack_from(message, 4)[0]
    metadata = bytes(message[PREFIX_BYTES:body])
    root = _U32.unpack_from(metadata, 0)[0]
    batch = _follow(metadata, _field(metadata, root, _HEADER))
    buffers = _follow(metadata, _field(metadata, batch, _BUFFERS)) + 4
    found = []
    for number in (_TXID_BUFFER, _TXID_BUFFER + 1):
        start, length = _EXTENT.unpack_from(metadata, buffers + _EXTENT.size * number)
        found.append(memoryview(message)[body + start : body + start + length])
    compression_at = _field(metadata, batch, _COMPRESSION)
    if compression_at:
        compression = _follow(metadata, compression_at)
        codec_at = _field(metadata, compression, _CODEC)
        codec = _CODECS[metadata[codec_at] if codec_at else 0]
        found = [_decompressed(buffer, codec) for buffer in found]
    return found[0], found[1]


def _decompressed(stored: memoryview, codec: Literal["lz4", "zstd"]) -> memoryview:
    """Return one buffer of a compressed body, decompressed; it begins with its length, -1: stored plain."""
    if not stored:
        return stored
    length = _I64.unpack_from(stored)[0]
    return stored[8:] if length < 0 else memoryview(pa.decompress(bytes(stored[8:]), length, codec))


def is_compressed(metadata: bytes) -> bool:
    """Return whether a RecordBatch message of any writer has a compressed body.

    ``metadata`` is the flatbuffer alone.

    Raises:
        CorruptDataError, struct.error: it points outside itself.
    """
    root = _U32.unpack_from(metadata, 0)[0]
    batch = _follow(metadata, _field(metadata, root, _HEADER))
    return _field(metadata, batch, _COMPRESSION) != 0


def decoded_bytes(message: bytes | bytearray | memoryview) -> int:
    """Return how many bytes the buffers of a whole RecordBatch message with a compressed body decode to.

    Each buffer that is not empty begins with its decoded length, -1 if it is stored plain.

    Raises:
        struct.error: it points outside itself.
    """
    length = _U32.unpack_from(message, 4)[0]
    buffers = record_batch_fields(bytes(message[: PREFIX_BYTES + length])).buffers
    body, total = PREFIX_BYTES + length, 0
    for number in range(_U32.unpack_from(message, buffers - 4)[0]):
        start, stored = _EXTENT.unpack_from(message, buffers + _EXTENT.size * number)
        decoded = _I64.unpack_from(message, body + start)[0] if stored else 0
        total += stored if decoded < 0 else decoded
    return total


def _find_entry(metadata: bytes, vector: int) -> int:
    if _U32.unpack_from(metadata, vector)[0] != 1:
        raise CorruptDataError("a record batch has more than one metadata entry")
    entry = vector + 4 + _U32.unpack_from(metadata, vector + 4)[0]
    vtable = entry - _I32.unpack_from(metadata, entry)[0]
    if vtable < 0:
        raise CorruptDataError(_OUTSIDE)
    length, key_at, value_at = _ENTRY_VTABLE.unpack_from(metadata, vtable)
    if length < _ENTRY_VTABLE.size or not key_at or not value_at:
        raise CorruptDataError("a header entry has no key or no value")
    key: int = entry + key_at + _U32.unpack_from(metadata, entry + key_at)[0]
    value: int = entry + value_at + _U32.unpack_from(metadata, entry + value_at)[0]
    key_length, value_length = _U32.unpack_from(metadata, key)[0], _U32.unpack_from(metadata, value)[0]
    if key_length != len(ENTRY_KEY) or metadata[key + 4 : key + 4 + key_length] != ENTRY_KEY:
        raise CorruptDataError("the header entry is not named 'jetstream'")
    if value_length != ENTRY_DIGITS or value + 4 + ENTRY_DIGITS > len(metadata):
        raise CorruptDataError(f"the header entry has {value_length} digits, not {ENTRY_DIGITS}")
    return value + 4


def _field(metadata: bytes, table: int, index: int) -> int:
    """Return the position of a table's field, 0 if it is absent."""
    vtable: int = table - _I32.unpack_from(metadata, table)[0]
    if vtable < 0:
        raise CorruptDataError(_OUTSIDE)
    slot = 4 + 2 * index
    if slot >= _U16.unpack_from(metadata, vtable)[0]:
        return 0
    offset: int = _U16.unpack_from(metadata, vtable + slot)[0]
    return table + offset if offset else 0


def _follow(metadata: bytes, position: int) -> int:
    reference: int = _U32.unpack_from(metadata, position)[0]
    return position + reference

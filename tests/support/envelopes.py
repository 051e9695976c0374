"""Envelopes, good ones and others: Arrow as publishers write it, and bytes with a checksum that fits."""

import struct
from typing import Any

import pyarrow as pa
from crc32c import crc32c

from envelope.envelopes import COOKIE, VERSION

Columns = dict[str, "pa.Array[Any]"]


def binary(*values: bytes | None) -> "pa.Array[Any]":
    return pa.array(list(values), pa.binary())


def arrow(columns: Columns, options: pa.ipc.IpcWriteOptions | None = None) -> bytes:
    """An Arrow stream of one record batch."""
    batch = pa.RecordBatch.from_arrays(list(columns.values()), names=list(columns))
    return arrow_stream(batch, options=options)


def arrow_stream(*batches: pa.RecordBatch, options: pa.ipc.IpcWriteOptions | None = None) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batches[0].schema, options=options) as writer:
        for batch in batches:
            writer.write_batch(batch)
    return sink.getvalue().to_pybytes()


def schema_end(stream: bytes) -> int:
    """Where the first message of an Arrow stream ends: its marker, its length, and that many bytes."""
    return 8 + int.from_bytes(stream[4:8], "little")


def without_schema(stream: bytes) -> bytes:
    """The messages of an Arrow stream but for the first."""
    return stream[schema_end(stream) :]


def forged(stream: bytes, old: bytes, new: bytes) -> bytes:
    """Arrow with other bytes in place of the last ones that are ``old``, which lie in the body."""
    place = stream.rindex(old)
    return stream[:place] + new + stream[place + len(old) :]


def with_number(stream: bytes, place: int, number: int) -> bytes:
    """Arrow with another 64-bit number at a place."""
    return stream[:place] + struct.pack("<q", number) + stream[place + 8 :]


def ends(*offsets: int) -> bytes:
    """Offsets of a column, as they lie in a body."""
    return struct.pack(f"<{len(offsets)}i", *offsets)


def raw(
    header: bytes = b"",
    payload: bytes = b"",
    *,
    kind: int = 1,
    flags: int = 0,
    version: int = VERSION,
    claim: int | None = None,
) -> bytes:
    """Bytes with a checksum that fits, whatever they say; ``claim`` is a wrong length of the header."""
    start = struct.pack("<4sBBHI", COOKIE, version, kind, flags, len(header) if claim is None else claim)
    crc = crc32c(header + payload, crc32c(start))
    return start + struct.pack("<I", crc) + header + payload


def field(number: int, value: bytes) -> bytes:
    return struct.pack("<BH", number, len(value)) + value


def extent(records: int, size: int) -> bytes:
    return field(1, struct.pack("<II", records, size))


def batch_of(payload: bytes, records: int) -> bytes:
    """A batch envelope around anything."""
    return raw(extent(records, len(payload)), payload, kind=2)

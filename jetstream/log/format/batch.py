"""The batch: one Arrow IPC RecordBatch message with our header in its custom metadata.

The bytes made here are the bytes in the segment, on the socket and in the reader's memory. The message
carries exactly one custom-metadata entry, key ``jetstream``, whose value is 80 lower-case hexadecimal digits:

    offset  size  field
    0       4     format version (1)
    4       4     flags (`BatchFlags`)
    8       16    base: offset of the batch's first record
    24      16    next: offset after its range; the next batch's base
    40      16    leader epoch
    56      16    largest timestamp, microseconds since the Unix epoch
    72      8     CRC32C of the whole encapsulated message with these 8 digits as "0"

A batch is made in two steps: `encode` beside the sequencer, with flags and CRC still "0", and
`UnsealedBatch.seal` beside the file, because only the writer knows the flags. Both leave the length alone.

Source: Apache Arrow columnar format; Kafka's record batch v2 (a CRC over everything that is immutable).
"""

import re
import struct
from binascii import unhexlify
from collections.abc import Iterator
from dataclasses import replace
from enum import IntFlag
from operator import attrgetter
from typing import Final, Literal

import pyarrow as pa

from envelope.errors import CorruptDataError, Unsupported
from envelope.limits import BATCH_BYTES_MAX, KIB
from envelope.types import Buffer, Compression, LeaderEpoch, Offset, TimestampUs
from envelope.values import value
from jetstream.log.format.checksum import crc32c
from jetstream.log.format.message import ENTRY_DIGITS, ENTRY_KEY, Frame, find_frame
from jetstream.log.format.schema import SCHEMA

FORMAT_VERSION: Final = 1
COMPRESSION_BYTES_MIN: Final = 4 * KIB
"""Smaller batches are stored plain: each column's prefix and the codec's start cost more than they save."""

_FIELDS: Final = struct.Struct(">HHQQQQI")
_FIELDS_OF: Final = attrgetter("version", "flags", "base", "next", "leader_epoch", "max_timestamp", "crc")
_DIGITS: Final = re.compile(rb"[0-9a-f]{%d}" % ENTRY_DIGITS)
_FLAGS_AT: Final = 4
CRC_AT: Final = 72
_WRITERS_SCHEMA_BYTES: Final = SCHEMA.serialize().size
"""Bytes that the installed pyarrow's stream writer puts before the first batch."""
ZEROS: Final = b"00000000"
SIGNED_MAX: Final = (1 << 63) - 1

assert _FIELDS.size * 2 == ENTRY_DIGITS == CRC_AT + len(ZEROS)


def _options(codec: Literal["lz4", "zstd"] | None) -> pa.ipc.IpcWriteOptions:
    # use_threads off: a batch is too small to pay for handing its columns to other threads.
    return pa.ipc.IpcWriteOptions(
        metadata_version=pa.ipc.MetadataVersion.V5, compression=codec, use_threads=False
    )


_OPTIONS: Final = {
    Compression.NONE: _options(None),
    Compression.LZ4: _options("lz4"),
    Compression.ZSTD: _options("zstd"),
}


class BatchFlags(IntFlag):
    """The place of a batch in its segment and its write group."""

    ROLL = 1
    """First batch of a segment."""
    GROUP_START = 2
    """All bytes of the log before this batch had been synced when it was written."""


_NO_FLAGS: Final = BatchFlags(0)


@value(frozen=True, slots=True)
class BatchHeader:
    """The header entry of a batch; its range is ``[base, next)``. Unsealed, flags and CRC are 0."""

    base: Offset
    next: Offset
    leader_epoch: LeaderEpoch
    max_timestamp: TimestampUs
    version: int = FORMAT_VERSION
    flags: BatchFlags = _NO_FLAGS
    crc: int = 0


_FLAGS: Final = tuple(map(BatchFlags, range(4)))
"""All values that this version writes: a look-up is quicker than a construction."""

SealedBatch = tuple[BatchHeader, memoryview]
"""A finished batch and its header."""

FoundBatch = tuple[BatchHeader, pa.RecordBatch, int]
"""Header and records of a batch among others, and where the next one begins."""


class UnsealedBatch:
    """An encoded batch whose flags and CRC are still "0".

    Attributes:
        frame: the encapsulated message, finished once it is sealed; not to be changed.
        size: its bytes, sealed or not; a multiple of 8.
        last_txid: the largest transaction id of its records, None if none has one.

    Invariants:
        U1: a batch has records: base < next.
        U2: the length of the frame never changes, whatever is patched in.
            Held by test_sealing_again_with_other_flags_gives_a_valid_frame_of_the_same_size.
    """

    __slots__ = ("_digits", "base", "frame", "last_txid", "leader_epoch", "max_timestamp", "next", "size")

    def __init__(
        self, frame: memoryview, digits: int, header: BatchHeader, last_txid: int | None = None
    ) -> None:
        """Write ``header`` into ``frame``, at ``digits``."""
        assert header.base < header.next, f"U1: [{header.base}, {header.next})"
        frame[digits : digits + ENTRY_DIGITS] = _FIELDS.pack(*_FIELDS_OF(header)).hex().encode()
        self.frame = frame
        self.size = len(frame)
        self._digits = digits
        self.base = header.base
        self.next = header.next
        self.leader_epoch = header.leader_epoch
        self.max_timestamp = header.max_timestamp
        self.last_txid = last_txid

    def seal(self, flags: BatchFlags) -> memoryview:
        """Patch ``flags`` and the CRC in place and return the finished message; sealing again is allowed."""
        frame, digits = self.frame, self._digits
        frame[digits + _FLAGS_AT : digits + _FLAGS_AT + 4] = b"%04x" % flags
        frame[digits + CRC_AT : digits + ENTRY_DIGITS] = ZEROS
        frame[digits + CRC_AT : digits + ENTRY_DIGITS] = b"%08x" % crc32c(frame)
        return frame


def encode(
    records: pa.RecordBatch,
    base: Offset,
    leader_epoch: LeaderEpoch,
    compression: Compression = Compression.NONE,
) -> UnsealedBatch:
    """Encode ``records`` (schema `SCHEMA`, dense offsets from ``base``, at least one row) as one batch.

    Timestamps must not decrease, so the last row has the largest. The caller keeps a batch of several
    records within `BATCH_BYTES_MAX` (`encode_group` splits).
    """
    assert records.num_rows > 0, "U1: a written batch has records"
    assert records.schema.equals(SCHEMA), f"not the log's schema: {records.schema}"
    last = records.num_rows - 1
    end, timestamp = Offset(base + records.num_rows), TimestampUs(records.column(1)[last].value)
    header = BatchHeader(base, end, leader_epoch, timestamp)
    assert records.column(0)[last].as_py() == header.next - 1, "offsets are dense from base"
    return _encoded(records, header, compression)


def encode_selected(
    records: pa.RecordBatch, base: Offset, end: Offset, leader_epoch: LeaderEpoch
) -> memoryview:
    """Encode some of the records of ``[base, end)``, at least one, as a finished batch of that range."""
    last = records.num_rows - 1
    assert last >= 0, "U1: a batch has records"
    assert base <= records.column(0)[0].as_py() <= records.column(0)[last].as_py() < end, (
        "they are of the range"
    )
    timestamp = TimestampUs(records.column(1)[last].value)
    header = BatchHeader(base, end, leader_epoch, timestamp)
    return _encoded(records, header, Compression.NONE).seal(BatchFlags(0))


def encode_kept(records: pa.RecordBatch, header: BatchHeader, compression: Compression) -> memoryview:
    """Encode the kept records of a batch, perhaps none, as a finished batch under ``header``, CRC anew."""
    assert records.num_rows <= header.next - header.base, "only fewer records than offsets are kept"
    return _encoded(records, header, compression).seal(header.flags)


def with_header(frame: Buffer, header: BatchHeader) -> memoryview:
    """Return a copy of a good batch under another header, CRC anew."""
    copy = memoryview(bytearray(frame))
    return UnsealedBatch(copy, _found(copy).digits, header).seal(header.flags)


def tail_of(frame: Buffer, offset: Offset, later: TimestampUs) -> tuple[BatchHeader, memoryview]:
    """Return the part of one good batch from ``offset`` on, which is in its range, as a batch of its own.

    Args:
        frame: the batch.
        offset: where the part begins.
        later: the first timestamp behind the batch. A part without records gets it: the records that
            compaction has removed here may still be in the log that the part goes to, and are later than
            all that stay here.

    Raises:
        CorruptDataError, Unsupported: as `decode`.
    """
    header, records = decode(frame)
    assert header.base <= offset < header.next, f"{offset} is not inside [{header.base}, {header.next})"
    kept = records.slice(int(records.column(0).to_numpy().searchsorted(offset)))
    timestamp = header.max_timestamp if kept.num_rows else later
    header = replace(header, base=offset, flags=BatchFlags(0), max_timestamp=timestamp)
    return header, encode_kept(kept, header, Compression.NONE)


def first_timestamp(frame: Buffer) -> TimestampUs:
    """Return the timestamp of the first record that one good batch still has; its own if it has none.

    Compaction may remove records from it; the first timestamp of the rest is never earlier.

    Raises:
        CorruptDataError, Unsupported: as `decode`.
    """
    header, records = decode(frame)
    return TimestampUs(records.column(1)[0].value) if records.num_rows else header.max_timestamp


def _encoded(records: pa.RecordBatch, header: BatchHeader, compression: Compression) -> UnsealedBatch:
    if compression is not Compression.NONE and records.get_total_buffer_size() < COMPRESSION_BYTES_MIN:
        compression = Compression.NONE
    sink = pa.BufferOutputStream()
    writer = pa.ipc.new_stream(sink, SCHEMA, options=_OPTIONS[compression])
    writer.write_batch(records, custom_metadata={ENTRY_KEY: b"0" * ENTRY_DIGITS})
    # The writer stays unclosed: closing would only add an end-of-stream marker behind the message.
    view = memoryview(sink.getvalue()).cast("B")
    message = view[_WRITERS_SCHEMA_BYTES:]
    frame = find_frame(message)
    assert frame is not None, "the writer wrote one message"
    assert frame.end == len(message), "the writer wrote one message"
    return UnsealedBatch(message, frame.digits, header, last_txid(records))


def last_txid(records: pa.RecordBatch) -> int | None:
    """Return the largest transaction id among ``records``, None if there is none.

    It is the last one (S2), but a search by it must not depend on that.
    """
    txids = records["txid"]
    if txids.null_count == len(txids):
        return None
    return int(txids.drop_null().to_numpy().max())


def encode_group(
    records: pa.RecordBatch,
    base: Offset,
    leader_epoch: LeaderEpoch,
    compression: Compression = Compression.NONE,
) -> tuple[UnsealedBatch, ...]:
    """Encode as `encode`, splitting until every batch of several records is within `BATCH_BYTES_MAX`."""
    batch = encode(records, base, leader_epoch, compression)
    if batch.size <= BATCH_BYTES_MAX or records.num_rows == 1:
        return (batch,)
    rows = records.num_rows * BATCH_BYTES_MAX // (batch.size + batch.size // 8)
    rows = min(max(rows, 1), records.num_rows - 1)
    return tuple(
        part
        for start in range(0, records.num_rows, rows)
        for part in encode_group(records.slice(start, rows), Offset(base + start), leader_epoch, compression)
    )


def read_header(frame: Buffer) -> BatchHeader:
    """Return the header of the message that ``frame`` begins with, without checking its CRC.

    Raises:
        CorruptDataError: not a message of ours, or its metadata is incomplete.
    """
    return header_at(frame, _found(frame))


def verify(frame: Buffer) -> BatchHeader:
    """Return the header of exactly one whole message after checking its CRC.

    Raises:
        CorruptDataError: frame or CRC is wrong.
        Unsupported: an intact batch of a format this version does not know.
    """
    found = _found(frame)
    if found.end != len(frame):
        raise CorruptDataError(f"a message of {found.end} bytes in a frame of {len(frame)}")
    return verified_at(frame, found)


def decode(frame: Buffer) -> tuple[BatchHeader, pa.RecordBatch]:
    """Return header and records of one whole message after checking its CRC; the records view ``frame``.

    Raises:
        CorruptDataError: frame, CRC or Arrow content is wrong.
        Unsupported: an intact batch of a format this version does not know.
    """
    header = verify(frame)
    return header, records_of(header, frame)


def records_of(header: BatchHeader, frame: Buffer) -> pa.RecordBatch:
    """Return the records of one whole message whose CRC was checked; they view ``frame``.

    Raises:
        CorruptDataError: it is not Arrow of our schema.
    """
    try:
        records = pa.ipc.read_record_batch(pa.ipc.read_message(frame), SCHEMA)
        records.validate()
    except (pa.ArrowException, OSError) as error:
        raise CorruptDataError(f"batch {header.base} is intact but not Arrow of our schema") from error
    if records.num_rows > header.next - header.base:
        raise CorruptDataError(f"batch {header.base} has more records than offsets")
    return records


def iter_frames(data: Buffer, start: int = 0) -> Iterator[memoryview]:
    """Yield each complete message in ``data`` from ``start``; an incomplete last one is left out.

    Raises:
        CorruptDataError: the bytes behind the last good message do not begin one of ours.
    """
    view = memoryview(data)
    while start < len(view):
        frame = find_frame(view, start)
        if frame is None or frame.end > len(view):
            return
        yield view[start : frame.end]
        start = frame.end


def next_batch(data: memoryview, start: int) -> FoundBatch | None:
    """Return the batch that begins at ``start``, as `decode` does; None if it is not whole.

    Raises:
        CorruptDataError, Unsupported: as `decode`.
    """
    frame = find_frame(data, start)
    if frame is None or frame.end > len(data):
        return None
    header = verified_at(data, frame)
    return header, records_of(header, data[start : frame.end]), frame.end


def verified_batches(data: Buffer) -> list[SealedBatch]:
    """Return header and bytes of each message in ``data`` after checking its CRC.

    Raises:
        CorruptDataError: a frame or CRC is wrong, or the last message is not whole.
        Unsupported: an intact batch of a format this version does not know.
    """
    view, start = memoryview(data), 0
    found: list[SealedBatch] = []
    while start < len(view):
        frame = find_frame(view, start)
        if frame is None or frame.end > len(view):
            raise CorruptDataError(f"the last {len(view) - start} bytes are not a whole message")
        found.append((verified_at(view, frame), view[start : frame.end]))
        start = frame.end
    return found


def header_at(data: Buffer, frame: Frame) -> BatchHeader:
    """Return the header of a framed message in ``data``; its CRC is not checked.

    Raises:
        CorruptDataError: the digits are not ours.
    """
    digits = bytes(data[frame.digits : frame.digits + ENTRY_DIGITS])
    # Lower case only: a flip between "a" and "A" inside the CRC's own digits must not go unseen.
    if not _DIGITS.fullmatch(digits):
        raise CorruptDataError("a header entry is not lower-case hexadecimal")
    version, flags, base, end, epoch, timestamp, crc = _FIELDS.unpack(unhexlify(digits))
    if not base < end <= SIGNED_MAX or timestamp > SIGNED_MAX or epoch > SIGNED_MAX:
        raise CorruptDataError(f"a header entry claims the range [{base}, {end})")
    known = _FLAGS[flags] if flags < len(_FLAGS) else BatchFlags(flags)
    return BatchHeader(
        version=version,
        flags=known,
        base=Offset(base),
        next=Offset(end),
        leader_epoch=LeaderEpoch(epoch),
        max_timestamp=TimestampUs(timestamp),
        crc=crc,
    )


def verified_at(data: Buffer, frame: Frame) -> BatchHeader:
    """Return the header of a framed, complete message in ``data`` after checking its CRC.

    Raises:
        CorruptDataError: the CRC is wrong.
        Unsupported: an intact batch of a format this version does not know.
    """
    header = header_at(data, frame)
    crc_at = frame.digits + CRC_AT
    view = memoryview(data)
    crc = crc32c(view[frame.start : crc_at])
    crc = crc32c(view[crc_at + len(ZEROS) : frame.end], crc32c(ZEROS, crc))
    if crc != header.crc:
        raise CorruptDataError(
            f"batch {header.base} has CRC32C {crc:08x}, its header says {header.crc:08x}", base=header.base
        )
    if header.version != FORMAT_VERSION:
        raise Unsupported(f"batch {header.base} has format {header.version}, this version knows 1")
    return header


def _found(frame: Buffer) -> Frame:
    found = find_frame(frame)
    if found is None:
        raise CorruptDataError(f"{len(frame)} bytes end inside a message's metadata")
    return found

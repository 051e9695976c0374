"""Any records survive the codec, every batch is legal for Arrow's own reader, and any damage is found."""

from itertools import pairwise

import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st

from envelope.errors import CorruptDataError, Unsupported
from envelope.types import Compression, LeaderEpoch, Offset, TimestampUs
from jetstream.log.format.batch import (
    BatchFlags,
    decode,
    encode,
    encode_group,
    iter_frames,
    read_header,
    verify,
)
from jetstream.log.format.message import ENTRY_KEY, find_frame
from jetstream.log.format.schema import END_OF_STREAM, SCHEMA, SCHEMA_MESSAGE
from jetstream.log.segments.scan import scan_segment
from tests.support.example_counts import examples
from tests.support.logs import Record, flipped, records_batch
from tests.support.memory_disk import MemoryDisk

TEXT = st.text(st.characters(codec="utf-8"), max_size=20)
BYTES = st.binary(max_size=60) | st.binary(min_size=500, max_size=600)
HEADERS = st.lists(st.tuples(st.none() | TEXT, st.none() | BYTES), max_size=4)
RECORDS = st.builds(
    Record,
    value=st.none() | BYTES,
    subject=TEXT,
    key=st.none() | BYTES,
    headers=st.none() | HEADERS,
    txid=st.none() | st.integers(-(1 << 63), (1 << 63) - 1),
    timestamp=st.integers(0, 1 << 61),
)
BASES = st.integers(0, (1 << 62))
EPOCHS = st.integers(1, 1 << 62)
FLAGS = st.sampled_from([BatchFlags(0), BatchFlags.ROLL, BatchFlags.GROUP_START, BatchFlags(3)])


def ordered(records: list[Record]) -> list[Record]:
    return sorted(records, key=lambda record: record.timestamp)


@settings(max_examples=examples(300))
@given(
    st.lists(RECORDS, min_size=1, max_size=40).map(ordered),
    BASES,
    EPOCHS,
    FLAGS,
    st.sampled_from(Compression),
)
def test_every_batch_is_what_pyarrow_reads_and_what_was_put_in(
    records: list[Record], base: int, epoch: int, flags: BatchFlags, compression: Compression
) -> None:
    given_records = records_batch(records, base)
    batch = encode(given_records, Offset(base), LeaderEpoch(epoch), compression)
    frame = bytes(batch.seal(flags))
    header, decoded = decode(frame)
    assert decoded.equals(given_records)
    assert decoded.schema.equals(SCHEMA, check_metadata=True)
    assert (header.flags, header.base, header.next) == (flags, base, base + len(records))
    assert (header.leader_epoch, header.max_timestamp) == (epoch, records[-1].timestamp)
    assert len(frame) % 8 == 0

    reader = pa.ipc.open_stream(SCHEMA_MESSAGE + frame + END_OF_STREAM)
    by_arrow, metadata = reader.read_next_batch_with_custom_metadata()
    by_arrow.validate(full=True)
    assert by_arrow.equals(given_records)
    assert reader.schema.equals(SCHEMA, check_metadata=True)
    assert list(metadata) == [ENTRY_KEY]
    found = find_frame(frame)
    assert found is not None
    assert frame[found.digits : found.digits + 80] == metadata[ENTRY_KEY]


@settings(max_examples=examples(50))
@given(st.lists(RECORDS, min_size=2, max_size=30).map(ordered), st.integers(0, 29), st.integers(1, 30))
def test_a_slice_is_encoded_as_if_it_had_been_built_alone(
    records: list[Record], start: int, length: int
) -> None:
    start = min(start, len(records) - 1)
    part = records_batch(records, 100).slice(start, length)
    alone = records_batch(records[start : start + length], 100 + start)
    frames = [
        bytes(encode(found, Offset(100 + start), LeaderEpoch(1)).seal(BatchFlags(0)))
        for found in (part, alone)
    ]
    assert decode(frames[0])[1].equals(decode(frames[1])[1])


@settings(max_examples=examples(150))
@given(st.lists(RECORDS, min_size=1, max_size=3).map(ordered), st.data())
def test_any_flipped_bit_in_a_batch_is_found(records: list[Record], data: st.DataObject) -> None:
    frame = bytes(encode(records_batch(records), Offset(0), LeaderEpoch(1)).seal(BatchFlags(3)))
    for _ in range(20):
        position = data.draw(st.integers(0, len(frame) - 1))
        damaged = flipped(frame, position, data.draw(st.integers(0, 7)))
        try:
            verify(damaged)
        except CorruptDataError:
            continue
        raise AssertionError(f"a flip in byte {position} of {len(frame)} was not found")


def test_every_single_bit_flip_of_one_batch_is_found() -> None:
    headers = [("a", b"b")]
    records = records_batch([Record(key=b"key", headers=headers, txid=5), Record(value=None)], 7)
    frame = bytes(encode(records, Offset(7), LeaderEpoch(1)).seal(BatchFlags(3)))
    for position in range(len(frame)):
        for bit in range(8):
            try:
                verify(flipped(frame, position, bit))
            except CorruptDataError:
                continue
            raise AssertionError(f"bit {bit} of byte {position} was flipped unnoticed")


@settings(max_examples=examples(500))
@given(st.binary(max_size=3000))
def test_garbage_is_refused_or_incomplete_and_never_crashes(garbage: bytes) -> None:
    for read in (read_header, verify, decode, lambda data: list(iter_frames(data)), find_frame):
        try:
            read(garbage)
        except (CorruptDataError, Unsupported):
            continue


FRAME = bytes(encode(records_batch([Record(), Record()]), Offset(0), LeaderEpoch(1)).seal(BatchFlags(3)))


@settings(max_examples=examples(500))
@given(
    st.lists(st.tuples(st.integers(0, 800), st.binary(min_size=1, max_size=8)), min_size=1, max_size=5),
    st.integers(0, len(FRAME)),
)
def test_a_mangled_frame_is_refused_or_incomplete_and_never_crashes(
    changes: list[tuple[int, bytes]], length: int
) -> None:
    mangled = bytearray(FRAME)
    for position, content in changes:
        mangled[position : position + len(content)] = content
    for data in (bytes(mangled), bytes(mangled[:length])):
        if data == FRAME:
            continue
        for read in (verify, decode):
            try:
                read(data)
            except (CorruptDataError, Unsupported):
                continue
            raise AssertionError("a mangled frame was taken for a good one")


@settings(max_examples=examples(100))
@given(st.binary(max_size=4000), st.booleans())
def test_a_segment_of_garbage_is_all_damage(garbage: bytes, with_schema: bool) -> None:
    disk = MemoryDisk()
    file = disk.create("segment")
    file.write([SCHEMA_MESSAGE * with_schema + garbage], 0)
    scan = scan_segment(file, Offset(0))
    assert len(scan.index) == 0
    if garbage and not (with_schema and garbage == END_OF_STREAM):
        assert scan.damages
    for before, after in pairwise(scan.damages):
        assert before.end <= after.position


@settings(max_examples=examples(10))
@given(st.lists(st.integers(1, 1 << 21), min_size=2, max_size=12), BASES)
def test_a_split_group_tiles_and_keeps_every_record(sizes: list[int], base: int) -> None:
    records = records_batch([Record(value=bytes(size)) for size in sizes], base)
    batches = encode_group(records, Offset(base), LeaderEpoch(1))
    assert batches[0].base == base
    assert batches[-1].next == base + len(sizes)
    assert all(before.next == after.base for before, after in pairwise(batches))
    decoded = [decode(batch.seal(BatchFlags(0)))[1] for batch in batches]
    assert pa.Table.from_batches(decoded).equals(pa.Table.from_batches([records]))
    assert TimestampUs(records.column(1)[0].value) == batches[0].max_timestamp

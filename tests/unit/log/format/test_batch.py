import re
from itertools import pairwise

import pyarrow as pa
import pytest

from envelope.errors import CorruptDataError, Unsupported
from envelope.limits import BATCH_BYTES_MAX
from envelope.types import Compression, LeaderEpoch, Offset
from jetstream.log.format.batch import (
    COMPRESSION_BYTES_MIN,
    BatchFlags,
    UnsealedBatch,
    decode,
    encode,
    encode_group,
    iter_frames,
    read_header,
    verify,
)
from jetstream.log.format.checksum import crc32c
from jetstream.log.format.message import ENTRY_DIGITS, ENTRY_KEY
from jetstream.log.format.schema import END_OF_STREAM, SCHEMA, SCHEMA_MESSAGE
from tests.support.logs import NOW, Record, flipped, records_batch, values_batch

EPOCH = LeaderEpoch(7)


def sealed(records: pa.RecordBatch, base: int = 0, compression: Compression = Compression.NONE) -> bytes:
    return bytes(encode(records, Offset(base), EPOCH, compression).seal(BatchFlags.GROUP_START))


def repaired(frame: bytes, digits: int) -> bytes:
    """Give a changed frame the CRC that fits it."""
    crc_at = digits + ENTRY_DIGITS - 8
    zeroed = frame[:crc_at] + b"0" * 8 + frame[crc_at + 8 :]
    return zeroed[:crc_at] + b"%08x" % crc32c(zeroed) + zeroed[crc_at + 8 :]


def test_crc32c_is_the_castagnoli_one_of_the_rfc() -> None:
    assert crc32c(bytes(32)) == 0x8A9136AA
    assert crc32c(b"\xff" * 32) == 0x62A8AB43
    assert crc32c(memoryview(b"123456789")) == 0xE3069283
    large = bytes(range(256)) * 10_000
    assert crc32c(large) == crc32c(large[1000:], crc32c(large[:1000]))


def test_the_pinned_schema_message_says_what_the_schema_says() -> None:
    assert pa.ipc.read_schema(pa.py_buffer(SCHEMA_MESSAGE)).equals(SCHEMA, check_metadata=True)
    assert [field.nullable for field in SCHEMA] == [False, False, False, True, True, True, True]


def test_header_fields_survive_the_round_trip() -> None:
    frame = sealed(values_batch([b"a", b"b"], 40, NOW), 40)
    header = verify(frame)
    assert (header.version, header.flags) == (1, BatchFlags.GROUP_START)
    assert (header.base, header.next) == (40, 42)
    assert (header.leader_epoch, header.max_timestamp) == (7, NOW)
    assert read_header(frame) == header == decode(frame)[0]


def test_the_entry_is_the_only_custom_metadata_and_80_lower_case_digits() -> None:
    stream = SCHEMA_MESSAGE + sealed(values_batch([b"a"]))
    _, metadata = pa.ipc.open_stream(stream).read_next_batch_with_custom_metadata()
    assert list(metadata) == [ENTRY_KEY]
    assert re.fullmatch(rb"[0-9a-f]{80}", metadata[ENTRY_KEY])
    assert metadata[ENTRY_KEY][:8] == b"00010002"


def test_the_crc_covers_the_whole_message_with_its_own_digits_as_zeros() -> None:
    frame = sealed(values_batch([b"a"]))
    digits = read_header(frame).crc
    zeroed = frame.replace(b"%08x" % digits, b"00000000", 1)
    assert crc32c(zeroed) == digits


def test_a_frame_is_legal_arrow_of_the_pinned_version_and_alignment() -> None:
    frame = sealed(values_batch([b"abc", b"d"]))
    message = pa.ipc.read_message(frame)
    assert message.type == "record batch"
    assert message.metadata_version == pa.ipc.MetadataVersion.V5
    assert len(frame) % 8 == 0


@pytest.mark.parametrize(
    ("txids", "last"), [((None,), None), ((3, None), 3), ((None, -2, None, 5), 5), ((0,), 0)]
)
def test_a_batch_knows_its_last_txid(txids: tuple[int | None, ...], last: int | None) -> None:
    records = records_batch([Record(txid=txid) for txid in txids])
    assert encode(records, Offset(0), EPOCH).last_txid == last


def test_sealing_again_with_other_flags_gives_a_valid_frame_of_the_same_size() -> None:
    batch = encode(values_batch([b"a"]), Offset(0), EPOCH)
    size = batch.size
    for flags in (BatchFlags.ROLL, BatchFlags(0), BatchFlags.ROLL | BatchFlags.GROUP_START):
        assert verify(batch.seal(flags)).flags == flags
        assert batch.size == size


def test_null_empty_and_tombstone_values_stay_apart() -> None:
    records = records_batch([Record(value=None), Record(value=b""), Record(value=b"\0")])
    _, decoded = decode(sealed(records))
    assert decoded.column(6).to_pylist() == [None, b"", b"\0"]


def test_headers_keep_order_repeats_and_nulls() -> None:
    headers = [("b", b"1"), ("a", b""), ("b", b"2"), ("c", None)]
    records = records_batch([Record(headers=headers), Record(), Record(headers=[])])
    _, decoded = decode(sealed(records))
    assert decoded.column(4).to_pylist() == [
        [{"key": key, "value": value} for key, value in headers],
        None,
        [],
    ]


@pytest.mark.parametrize("compression", list(Compression))
def test_a_batch_is_compressed_only_above_the_size_where_it_pays(compression: Compression) -> None:
    small = values_batch([b"x" * 100])
    large = values_batch([b"x" * 100] * 100)
    assert len(sealed(small, 0, compression)) == len(sealed(small))
    assert large.nbytes > COMPRESSION_BYTES_MIN
    assert (len(sealed(large, 0, compression)) < len(sealed(large)) / 2) is (
        compression is not Compression.NONE
    )
    assert decode(sealed(large, 0, compression))[1].equals(large)


def test_sliced_records_are_encoded_as_what_they_show() -> None:
    records = values_batch([b"%d" % number for number in range(10)])
    part = records.slice(3, 4)
    header, decoded = decode(sealed(part, 3))
    assert (header.base, header.next) == (3, 7)
    assert decoded.equals(part)


def test_a_group_is_split_into_batches_below_the_limit() -> None:
    values = [bytes([number]) * (1 << 20) for number in range(20)]
    records = values_batch(values, 100)
    batches = encode_group(records, Offset(100), EPOCH)
    assert len(batches) > 1
    assert all(batch.size <= BATCH_BYTES_MAX for batch in batches)
    assert batches[0].base == 100
    assert batches[-1].next == 120
    assert all(before.next == after.base for before, after in pairwise(batches))
    decoded = [decode(batch.seal(BatchFlags(0)))[1] for batch in batches]
    assert pa.Table.from_batches(decoded).column(6).to_pylist() == values


def test_a_single_record_above_the_limit_goes_alone() -> None:
    records = values_batch([b"small", b"x" * (BATCH_BYTES_MAX + 1), b"small"])
    batches = encode_group(records, Offset(0), EPOCH)
    assert [batch.next - batch.base for batch in batches] == [1, 1, 1]
    assert batches[1].size > BATCH_BYTES_MAX


@pytest.mark.parametrize("length", [0, 1, 3, 4, 7, 8, 100, 500, 783, 784, 880])
def test_an_incomplete_frame_is_not_a_batch(length: int) -> None:
    frame = sealed(values_batch([b"a"]))
    with pytest.raises(CorruptDataError):
        verify(frame[:length])


def test_bytes_behind_a_frame_are_not_a_part_of_it() -> None:
    frame = sealed(values_batch([b"a"]))
    assert read_header(frame + b"more").base == 0
    with pytest.raises(CorruptDataError):
        verify(frame + bytes(8))


@pytest.mark.parametrize("other", [b"", SCHEMA_MESSAGE, END_OF_STREAM, bytes(800), b"\xff" * 800])
def test_what_is_not_a_record_batch_message_is_refused(other: bytes) -> None:
    with pytest.raises(CorruptDataError):
        read_header(other)


def test_a_record_batch_without_our_entry_is_refused() -> None:
    with pytest.raises(CorruptDataError, match="no header entry"):
        read_header(values_batch([b"a"]).serialize().to_pybytes())


@pytest.mark.parametrize(
    "metadata",
    [
        {b"jetstreak": b"0" * 80},
        {b"jetstream": b"0" * 79},
        {b"jetstream": b"0" * 80, b"more": b"1"},
        {b"": b""},
    ],
)
def test_another_entry_is_refused(metadata: dict[bytes, bytes]) -> None:
    sink = pa.BufferOutputStream()
    writer = pa.ipc.new_stream(sink, SCHEMA)
    writer.write_batch(values_batch([b"a"]), custom_metadata=metadata)
    frame = sink.getvalue().to_pybytes()[SCHEMA.serialize().size :]
    with pytest.raises(CorruptDataError):
        read_header(frame)


def test_upper_case_digits_are_refused() -> None:
    frame = sealed(values_batch([b"a"]))
    digits = frame.index(b"0001")
    letters = [at for at in range(digits, digits + ENTRY_DIGITS) if chr(frame[at]) in "abcdef"]
    assert letters, "the entry has a letter to change"
    for position in letters:
        with pytest.raises(CorruptDataError):
            verify(flipped(frame, position, 5))


def test_an_intact_batch_of_a_later_format_is_unsupported_not_corrupt() -> None:
    frame = sealed(values_batch([b"a"]))
    digits = frame.index(b"00010002")
    later = repaired(frame[: digits + 3] + b"2" + frame[digits + 4 :], digits)
    with pytest.raises(Unsupported):
        verify(later)


def test_a_range_that_is_empty_or_backwards_is_refused() -> None:
    frame = sealed(values_batch([b"a"], 5), 5)
    digits = frame.index(b"00010002")
    for end in (5, 4):
        changed = frame[: digits + 24] + b"%016x" % end + frame[digits + 40 :]
        with pytest.raises(CorruptDataError):
            verify(repaired(changed, digits))


def test_more_records_than_offsets_are_refused() -> None:
    frame = sealed(values_batch([b"a", b"b"]))
    digits = frame.index(b"00010002")
    changed = repaired(frame[: digits + 24] + b"%016x" % 1 + frame[digits + 40 :], digits)
    assert verify(changed).next == 1
    with pytest.raises(CorruptDataError, match="more records"):
        decode(changed)


def test_frames_are_iterated_until_the_first_incomplete_one() -> None:
    frames = [sealed(values_batch([b"a"] * count, count), count) for count in (1, 2, 3)]
    body = b"".join(frames)
    assert [bytes(frame) for frame in iter_frames(body)] == frames
    assert [bytes(frame) for frame in iter_frames(body[:-1])] == frames[:-1]
    assert [bytes(frame) for frame in iter_frames(b"skip" + body, 4)] == frames
    assert list(iter_frames(b"")) == []


def test_iterating_raises_at_what_is_not_a_frame() -> None:
    frame = sealed(values_batch([b"a"]))
    frames = iter_frames(frame + b"garbage-garbage-")
    assert bytes(next(frames)) == frame
    with pytest.raises(CorruptDataError):
        next(frames)


@pytest.mark.parametrize("kind", [bytes, bytearray, memoryview])
def test_any_buffer_can_be_read(kind: type) -> None:
    frame = kind(sealed(values_batch([b"a"])))
    assert decode(frame)[1].column(6).to_pylist() == [b"a"]


def test_an_unsealed_batch_tells_its_range_before_it_is_sealed() -> None:
    batch: UnsealedBatch = encode(values_batch([b"a", b"b"], 9), Offset(9), EPOCH)
    assert (batch.base, batch.next, batch.leader_epoch, batch.max_timestamp) == (9, 11, EPOCH, NOW)
    with pytest.raises(CorruptDataError):
        verify(bytes(batch.frame))

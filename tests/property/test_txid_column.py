"""What a batch's bytes say of its transaction ids is what pyarrow reads, and wrong bytes raise nothing."""

import struct

from hypothesis import example, given, settings
from hypothesis import strategies as st

from envelope.types import Compression, LeaderEpoch, Offset
from jetstream.log.format.batch import BatchFlags, decode, encode, last_txid, read_header, records_of
from jetstream.log.format.message import PREFIX_BYTES, is_compressed, record_batch_fields
from jetstream.log.format.txid_column import last_txid_in
from jetstream.log.segments.index import NO_TXID
from tests.support.example_counts import examples
from tests.support.logs import Record, records_batch

TXIDS = st.lists(st.none() | st.integers(NO_TXID, (1 << 63) - 1), min_size=1, max_size=40)


def frame_of(txids: list[int | None], codec: Compression, filler: int) -> bytes:
    records = records_batch(
        [
            Record(value=bytes(filler), key=b"k", headers=[("a", b"b")] * (row % 3), txid=txid)
            for row, txid in enumerate(txids)
        ]
    )
    return bytes(encode(records, Offset(0), LeaderEpoch(1), codec).seal(BatchFlags(0)))


@settings(max_examples=examples(150))
@given(TXIDS, st.sampled_from(Compression), st.sampled_from((0, 5000)))
@example([None] * 20 + [3] + [None] * 20, Compression.ZSTD, 5000)
@example(list(range(40)), Compression.LZ4, 5000)
def test_the_largest_is_what_pyarrow_finds(txids: list[int | None], codec: Compression, filler: int) -> None:
    frame = frame_of(txids, codec, filler)
    assert is_compressed(frame[PREFIX_BYTES:]) is (codec is not Compression.NONE and filler > 0)
    assert last_txid_in(frame) == max((txid for txid in txids if txid is not None), default=None)
    assert last_txid_in(memoryview(frame)) == last_txid(decode(frame)[1])


@settings(max_examples=examples(200))
@given(
    st.sampled_from(Compression), st.lists(st.tuples(st.integers(8, 1500), st.integers(0, 255)), max_size=9)
)
def test_whatever_the_bytes_are_there_is_an_answer(
    codec: Compression, changes: list[tuple[int, int]]
) -> None:
    frame = bytearray(frame_of([None, 3, 4], codec, 5000))
    for position, byte in changes:
        frame[position % len(frame)] = byte
    assert last_txid_in(frame) is None or changes or last_txid_in(frame) == 4


def test_a_column_that_is_stored_as_it_is_in_a_compressed_batch_is_read() -> None:
    frame = bytearray(frame_of([7, 9, 8], Compression.ZSTD, 5000))
    fields = record_batch_fields(bytes(frame))
    body = PREFIX_BYTES + struct.unpack_from("<I", frame, 4)[0]
    stored = struct.pack("<q3q", -1, 7, 9, 8)
    struct.pack_into("<2q", frame, fields.buffers + 16 * 20, len(frame) - body, len(stored))
    frame += stored
    struct.pack_into("<q", frame, fields.body_length, len(frame) - body)
    assert records_of(read_header(frame), frame)["txid"].to_pylist() == [7, 9, 8]
    assert last_txid_in(frame) == 9

"""The quick encoder equals pyarrow to the last byte, for every shape of plain records."""

import pyarrow as pa
from hypothesis import example, given
from hypothesis import strategies as st

from envelope.limits import BATCH_BYTES_MAX
from envelope.types import Compression, LeaderEpoch, Offset, TimestampUs
from jetstream.log.format.batch import BatchFlags, decode, encode
from jetstream.log.format.plain_batch_encoder import (
    PlainRecords,
    arrow_records,
    encode_plain,
    encode_records,
    is_plain,
)

SUBJECTS = st.text(st.characters(codec="utf-8"), min_size=1, max_size=12).map(str.encode)
ROWS = st.lists(st.tuples(SUBJECTS, st.binary(max_size=40)), min_size=1, max_size=70)


def plain(rows: list[tuple[bytes, bytes]], base: int = 0, timestamp: int = 0) -> PlainRecords:
    return PlainRecords(
        Offset(base), TimestampUs(timestamp), [row[0] for row in rows], [row[1] for row in rows]
    )


@given(
    ROWS,
    st.integers(0, (1 << 62)),
    st.integers(0, 1 << 60),
    st.integers(0, 1 << 62),
    st.sampled_from(range(4)),
)
@example([(b"s", b"v")] * 8, 0, 0, 0, 0)
@example([(b"s", b"")] * 9, 1, 1, 1, 3)
def test_every_byte_is_pyarrows(
    rows: list[tuple[bytes, bytes]], base: int, timestamp: int, epoch: int, flags: int
) -> None:
    records = plain(rows, base, timestamp)
    quick = bytes(encode_plain(records, LeaderEpoch(epoch)).seal(BatchFlags(flags)))
    slow = bytes(encode(records.to_records(), Offset(base), LeaderEpoch(epoch)).seal(BatchFlags(flags)))
    assert quick == slow
    header, read = decode(quick)
    read.validate(full=True)
    assert (header.base, header.next, header.leader_epoch) == (base, base + len(rows), epoch)
    assert read.equals(records.to_records())


def test_rows_of_one_size_and_of_many_are_laid_out_alike() -> None:
    for sizes in ([5] * 1000, [0] * 1000, list(range(1000))):
        records = plain([(b"subject", bytes(size)) for size in sizes], 7, 9)
        quick = bytes(encode_plain(records, LeaderEpoch(1)).seal(BatchFlags(0)))
        assert quick == bytes(encode(records.to_records(), Offset(7), LeaderEpoch(1)).seal(BatchFlags(0)))


def test_batches_of_one_shape_have_only_that_in_common() -> None:
    for step in range(3):
        for size in range(300):  # more than are remembered
            records = plain([(b"s%03d" % size, bytes((step,)) * size)] * 3, 1000 * step + size, step)
            quick = bytes(encode_plain(records, LeaderEpoch(step)).seal(BatchFlags(step)))
            slow = encode(records.to_records(), records.base, LeaderEpoch(step)).seal(BatchFlags(step))
            assert quick == bytes(slow)


def test_a_group_beyond_the_batch_limit_is_split() -> None:
    records = plain([(b"s", bytes(1 << 20))] * 9)
    batches = encode_records(records, Offset(0), LeaderEpoch(1))
    assert len(batches) > 1
    assert all(batch.size <= BATCH_BYTES_MAX for batch in batches)
    tables = [decode(bytes(batch.seal(BatchFlags(0))))[1] for batch in batches]
    assert pa.Table.from_batches(tables).equals(pa.Table.from_batches([records.to_records()]))


def test_a_single_large_record_goes_alone() -> None:
    records = plain([(b"s", bytes(BATCH_BYTES_MAX + 1))])
    assert len(encode_records(records, Offset(0), LeaderEpoch(1))) == 1


def test_compression_takes_the_way_through_arrow() -> None:
    records = plain([(b"s", b"v" * 1000)] * 100)
    (batch,) = encode_records(records, Offset(0), LeaderEpoch(1), Compression.ZSTD)
    assert batch.size < 20_000
    _, read = decode(bytes(batch.seal(BatchFlags(0))))
    assert read.equals(arrow_records(records))


@given(ROWS, st.integers(0, 1 << 62), st.integers(0, 1 << 62), st.sampled_from(range(4)))
def test_a_plain_batch_is_told_by_its_metadata(
    rows: list[tuple[bytes, bytes]], base: int, epoch: int, flags: int
) -> None:
    records = plain(rows, base)
    frame = bytes(encode_plain(records, LeaderEpoch(epoch)).seal(BatchFlags(flags)))
    assert is_plain(frame)
    assert is_plain(memoryview(frame))
    assert not is_plain(frame[:100])


@given(ROWS, st.sampled_from(("key", "headers", "txid", "value")), st.data())
def test_a_batch_with_anything_else_is_not_plain(
    rows: list[tuple[bytes, bytes]], column: str, data: st.DataObject
) -> None:
    records = plain(rows).to_records()
    row = data.draw(st.integers(0, len(rows) - 1))
    values = records[column].to_pylist()
    values[row] = {"key": b"k", "headers": [("name", b"value")], "txid": 7, "value": None}[column]
    place = records.schema.get_field_index(column)
    changed = records.set_column(
        place, records.schema.field(place), pa.array(values, records.schema.field(place).type)
    )
    for compression in (Compression.NONE, Compression.ZSTD):
        frame = bytes(encode(changed, Offset(0), LeaderEpoch(1), compression).seal(BatchFlags(0)))
        assert not is_plain(frame)


def test_a_compressed_batch_is_not_plain() -> None:
    records = plain([(b"s", bytes(1000))] * 100).to_records()
    frame = bytes(encode(records, Offset(0), LeaderEpoch(1), Compression.ZSTD).seal(BatchFlags(0)))
    assert not is_plain(frame)

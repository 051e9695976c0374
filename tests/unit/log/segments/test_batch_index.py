import struct
from typing import NamedTuple

import pytest

from envelope.errors import CorruptDataError
from envelope.types import FilePosition, LeaderEpoch, Offset, TimestampUs
from jetstream.log.format.checksum import crc32c
from jetstream.log.segments.index import (
    ENTRY_BYTES,
    HEADER_BYTES,
    NO_TXID,
    BatchIndex,
    IndexEntry,
    decode_index,
    decode_summary,
)
from tests.support.logs import flipped


def entry(
    base: int, end: int, position: int, length: int = 100, epoch: int = 1, txid: int | None = None
) -> IndexEntry:
    return IndexEntry(
        base=Offset(base),
        next=Offset(end),
        position=FilePosition(position),
        length=length,
        leader_epoch=LeaderEpoch(epoch),
        max_timestamp=TimestampUs(end * 10),
        last_txid=txid,
    )


def index_of(*entries: IndexEntry) -> BatchIndex:
    index = BatchIndex()
    for found in entries:
        index.append(found, verified=False)
    return index


THREE = index_of(entry(10, 15, 600, txid=7), entry(15, 16, 700), entry(16, 20, 800, epoch=2, txid=-9))


def test_the_file_is_as_long_as_its_table_says() -> None:
    assert len(THREE.encode(3)) == HEADER_BYTES + 3 * ENTRY_BYTES
    assert len(THREE.encode(1)) == HEADER_BYTES + ENTRY_BYTES


def test_an_index_survives_the_round_trip() -> None:
    summary, index = decode_index(THREE.encode(3))
    assert [index[row] for row in range(3)] == [THREE[row] for row in range(3)]
    assert summary == decode_summary(THREE.encode(3)[:HEADER_BYTES])
    assert (summary.entries, summary.base, summary.next, summary.data_end) == (3, 10, 20, 900)
    assert (summary.last_epoch, summary.max_timestamp, summary.last_txid) == (2, 200, 7)
    assert [index[row].last_txid for row in range(3)] == [7, None, -9]
    assert bytes(index.verified) == bytes(3)


def test_a_flip_in_any_bit_of_the_file_is_found() -> None:
    content = THREE.encode(3)
    for position in range(len(content)):
        for bit in range(8):
            with pytest.raises(CorruptDataError):
                decode_index(flipped(content, position, bit))


@pytest.mark.parametrize("length", [0, 10, HEADER_BYTES - 1, HEADER_BYTES, HEADER_BYTES + 1, -1])
def test_a_part_of_the_file_is_refused(length: int) -> None:
    with pytest.raises(CorruptDataError):
        decode_index(THREE.encode(3)[:length])


@pytest.mark.parametrize(
    "entries",
    [
        (entry(10, 15, 600), entry(16, 20, 700)),
        (entry(10, 15, 600), entry(15, 20, 708)),
        (entry(10, 15, 600, 0), entry(15, 20, 600)),
    ],
)
def test_entries_that_do_not_tile_are_refused(entries: tuple[IndexEntry, ...]) -> None:
    with pytest.raises(CorruptDataError, match="tile"):
        decode_index(index_of(*entries).encode(len(entries)))


@pytest.mark.parametrize(("offset", "row"), [(9, 0), (10, 0), (14, 0), (15, 1), (16, 2), (19, 2), (20, 3)])
def test_an_offset_is_found_in_the_batch_that_holds_it(offset: int, row: int) -> None:
    assert THREE.find(Offset(offset)) == row


@pytest.mark.parametrize(("timestamp", "row"), [(0, 0), (150, 0), (151, 1), (160, 1), (161, 2), (201, 3)])
def test_a_time_is_found_in_the_first_batch_that_reaches_it(timestamp: int, row: int) -> None:
    assert THREE.find_timestamp(TimestampUs(timestamp)) == row


@pytest.mark.parametrize(
    ("first", "position", "end", "row"),
    [
        (0, 10_000, 20, 1),  # the epoch ends
        (0, 799, 20, 0),
        (0, 800, 20, 1),
        (0, 0, 20, 0),  # at least one
        (0, 10_000, 15, 0),
        (1, 10_000, 20, 1),
        (2, 10_000, 20, 2),
    ],
)
def test_a_read_ends_with_the_last_batch_that_fits(first: int, position: int, end: int, row: int) -> None:
    assert THREE.last_row_until(first, position, Offset(end)) == row


@pytest.mark.parametrize("first", [0, 1, 2])
def test_a_read_gets_nothing_if_its_first_batch_reaches_beyond_the_end(first: int) -> None:
    end = THREE[first].next - 1
    assert THREE.last_row_until(first, 10_000, Offset(end)) < first


def test_a_header_that_contradicts_its_entries_on_transaction_ids_is_refused() -> None:
    content = bytearray(THREE.encode(3))
    struct.pack_into("<q", content, 56, 8)
    struct.pack_into("<I", content, 68, crc32c(bytes(content[:68])))
    assert decode_summary(bytes(content)).last_txid == 8
    with pytest.raises(CorruptDataError, match="transaction id"):
        decode_index(bytes(content))


@pytest.mark.parametrize(
    ("txid", "first", "row"),
    [(-10, 0, 0), (7, 0, 0), (8, 0, 3), (-9, 1, 2), (-8, 1, 3), (NO_TXID, 1, 2), (-9, 3, 3), (-9, 4, 3)],
)
def test_a_txid_is_found_in_the_first_batch_that_reaches_it(txid: int, first: int, row: int) -> None:
    assert THREE.find_txid(txid, first) == row


def test_a_batch_with_the_smallest_txid_is_not_taken_for_one_without() -> None:
    class Header(NamedTuple):
        base: Offset = Offset(10)
        next: Offset = Offset(12)
        leader_epoch: LeaderEpoch = LeaderEpoch(1)
        max_timestamp: TimestampUs = TimestampUs(1)

    index = index_of(IndexEntry.of(Header(), 600, 100, NO_TXID))
    assert index.find_txid(NO_TXID, 0) == 0
    assert decode_index(index.encode(1))[1].find_txid(NO_TXID, 0) == 0
    with pytest.raises(AssertionError, match="X3"):
        index.append(entry(12, 13, 700, txid=NO_TXID), verified=True)


def test_entries_must_follow_each_other() -> None:
    index = index_of(entry(0, 5, 600))
    for wrong in (entry(4, 6, 700), entry(5, 6, 699)):
        with pytest.raises(AssertionError, match="X1"):
            index.append(wrong, verified=True)


def test_the_head_of_an_index_is_another_index() -> None:
    index = index_of(entry(0, 5, 600), entry(5, 6, 700))
    index.verified[0] = True
    head = index.head(1)
    assert [head[row] for row in range(len(head))] == [entry(0, 5, 600)]
    assert bytes(head.verified) == b"\1"
    head.append(entry(5, 9, 700), verified=False)
    assert head.find(Offset(8)) == 1
    assert [index[row] for row in range(len(index))] == [entry(0, 5, 600), entry(5, 6, 700)]

"""Small batches read many at once are what they are when read one by one, whatever is among them."""

import struct
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

import pyarrow as pa
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from envelope.errors import JetstreamError
from envelope.limits import MIB
from envelope.types import Compression, LeaderEpoch, Offset, TimestampUs
from jetstream.log.format import small_batch_reader
from jetstream.log.format.batch import (
    CRC_AT,
    ZEROS,
    BatchFlags,
    BatchHeader,
    decode,
    encode,
    encode_kept,
    iter_frames,
    next_batch,
    read_header,
    with_header,
)
from jetstream.log.format.batch_columns import Numbers
from jetstream.log.format.checksum import crc32c
from jetstream.log.format.plain_batch_encoder import TEMPLATE, PlainRecords, blank, encode_plain
from jetstream.log.format.schema import SCHEMA
from jetstream.log.format.small_batch_reader import merged_batches
from tests.support.example_counts import examples
from tests.support.logs import NOW, Record, flipped, records_batch

FoundBatches = Iterable[tuple[BatchHeader, pa.RecordBatch]]

TEXT = st.text(st.characters(codec="utf-8"), max_size=9)
BYTES = st.binary(max_size=20)
RECORDS = st.builds(
    Record,
    value=st.none() | BYTES,
    subject=TEXT,
    key=st.none() | BYTES,
    headers=st.sampled_from([None] * 9 + [[], [("a", b"b")]]),
    txid=st.none() | st.integers(-(1 << 63), (1 << 63) - 1),
    timestamp=st.just(NOW),
)


@dataclass(frozen=True, slots=True)
class Written:
    """A batch as a writer may leave it."""

    records: Sequence[Record]
    kept: frozenset[int]
    """Which of the first eight records compaction has left, if it was there."""
    compacted: bool = False
    compression: Compression = Compression.NONE
    epochs: int = 0
    """How many have passed since the batch before."""
    gap: int = 0
    flags: BatchFlags = BatchFlags.ROLL
    seconds: int = 0


WRITTEN = st.builds(
    Written,
    records=st.lists(RECORDS, min_size=1, max_size=3) | st.lists(RECORDS, min_size=9, max_size=12),
    kept=st.frozensets(st.integers(0, 7)),
    compacted=st.sampled_from([False, False, True]),
    compression=st.sampled_from([Compression.NONE] * 9 + [Compression.ZSTD]),
    epochs=st.sampled_from([0] * 15 + [1]),
    gap=st.sampled_from([0] * 30 + [1]),
    flags=st.sampled_from(BatchFlags),
    seconds=st.integers(0, 2),
)
PLAIN = Written([Record()], frozenset())
CLAIMS = [
    *(TEMPLATE.fields.nodes + 8 * word for word in range(20)),
    *(TEMPLATE.fields.buffers + 16 * buffer + at for buffer in (*range(10), *range(19, 24)) for at in (0, 8)),
]
"""Lengths, nulls and extents of all columns; what is in headers nobody reads where there are none."""
BIG = Written([Record(value=bytes(5000))] * 20, frozenset(), compression=Compression.ZSTD)


@pytest.fixture(scope="module", autouse=True)
def short_runs() -> Iterator[None]:
    """Let four batches be a run: examples are small."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(small_batch_reader, "_FRAMES_MIN", 4)
        yield


def stored(batches: Sequence[Written], base: int = 0) -> bytes:
    """Return the batches as they are on disk, from ``base`` on."""
    data = bytearray()
    epoch, now = 1, NOW
    for batch in batches:
        base += batch.gap
        epoch += batch.epochs
        now = TimestampUs(now + batch.seconds * 1_000_000)
        records = records_batch([replace(each, timestamp=now) for each in batch.records], base)
        frame = encode(records, Offset(base), LeaderEpoch(epoch), batch.compression).seal(batch.flags)
        if batch.compacted:
            header, _ = decode(frame)
            mask = pa.array([row in batch.kept for row in range(len(records))])
            frame = encode_kept(records.filter(mask), header, batch.compression)
        data += bytes(frame)
        base += len(batch.records)
    return bytes(data)


def read(found: FoundBatches, full: bool = True) -> tuple[list[BatchHeader], pa.Table, str]:
    """Return the headers, all records, and what ended it."""
    headers: list[BatchHeader] = []
    batches: list[pa.RecordBatch] = []
    ended = ""
    try:
        for header, records in found:
            records.validate(full=full)
            headers.append(header)
            batches.append(records)
    except JetstreamError as error:
        ended = f"{type(error).__name__}: {error}"
    return headers, pa.Table.from_batches(batches, SCHEMA).combine_chunks(), ended


def one_by_one(data: bytes) -> FoundBatches:
    start = 0
    while start < len(data) and (found := next_batch(memoryview(data), start)) is not None:
        header, records, start = found
        yield header, records


def merged(headers: Sequence[BatchHeader], ends: frozenset[int]) -> Iterator[BatchHeader]:
    """Yield the headers of what has been put together so that it ends at ``ends``."""
    several: list[BatchHeader] = []
    for header in headers:
        several.append(header)
        if header.next in ends:
            latest = TimestampUs(max(each.max_timestamp for each in several))
            yield replace(header, base=several[0].base, max_timestamp=latest)
            several = []


def check(data: bytes, rows: int) -> list[BatchHeader]:
    singles, expected, reason = read(one_by_one(data))
    runs, records, ended = read(merged_batches(data, rows))
    in_place = read(merged_batches(bytearray(data), rows))
    assert (in_place[0], in_place[2]) == (runs, ended)
    assert in_place[1].equals(records)
    assert records.equals(expected)
    assert ended == reason
    assert runs == list(merged(singles, frozenset(run.next for run in runs)))
    return runs


@settings(max_examples=examples(300))
@given(st.lists(WRITTEN, max_size=40), st.integers(0, 1 << 61), st.integers(1, 40))
@example([PLAIN] * 30, 0, 7)
@example([BIG] * 6, 0, 40)
def test_what_is_read_at_once_is_what_is_read_one_by_one(
    batches: list[Written], base: int, rows: int
) -> None:
    check(stored(batches, base), rows)


@settings(max_examples=examples(200))
@given(st.lists(WRITTEN, min_size=5, max_size=12), st.data())
def test_damage_ends_both_at_the_same_batch_with_the_same_words(
    batches: list[Written], data: st.DataObject
) -> None:
    whole = stored(batches)
    place = data.draw(st.integers(0, len(whole) - 1))
    check(flipped(whole, place, data.draw(st.integers(0, 7))), rows=100)
    check(whole[:place], rows=100)


LAYOUTS = {
    "alike": [PLAIN] * 40,
    "of one length": [Written([Record(value=bytes(length))], frozenset()) for length in (1, 2) * 20],
    "of several lengths": [Written([Record(value=bytes(length))], frozenset()) for length in range(40)],
    "alike but for one": [*[PLAIN] * 25, Written([Record(key=b"k")], frozenset()), *[PLAIN] * 14],
    "alike at first": [*[PLAIN] * 30, *[Written([Record(value=bytes(50))], frozenset())] * 10],
}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_what_is_laid_out_alike_and_what_is_not_is_read_at_once(layout: str) -> None:
    headers = check(stored(LAYOUTS[layout]), rows=1000)
    assert headers[0].next >= 30


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_run_ends_before_the_first_of_its_damaged_batches(layout: str) -> None:
    frames = [bytes(frame) for frame in iter_frames(stored(LAYOUTS[layout]))]
    for number in range(5, len(frames)):
        for others in ([], [number + 1], [number + 1, number + 2], range(number + 1, len(frames))):
            damaged = list(frames)
            for each in (number, *others):
                if each < len(frames):
                    damaged[each] = flipped(frames[each], len(frames[each]) - 20, 3)
            headers, _, ended = read(merged_batches(bytearray().join(damaged), 1000))
            assert headers[-1].next == number
            assert headers[0].next >= min(number, 30)
            assert ended.startswith("CorruptDataError")


@pytest.mark.parametrize("number", [0, 2, 3, 4, 20, 39])
def test_what_is_not_read_at_once_is_what_it_was(number: int) -> None:
    frames = [bytes(frame) for frame in iter_frames(stored(LAYOUTS["alike"]))]
    frames[number] = flipped(frames[number], len(frames[number]) - 1, 0)
    data = bytearray().join(frames)
    headers, _, _ = read(merged_batches(data, 1000))
    assert headers[-1:] == [] if number == 0 else headers[-1].next == number
    assert data[number * len(frames[0]) :] == b"".join(frames[number:])


def test_a_checksum_of_another_batch_is_damage() -> None:
    """Whatever is right of all of them together: two whose bytes or checksums are exchanged are not whole."""
    frames = [bytes(frame) for frame in iter_frames(stored(LAYOUTS["alike"]))]
    crc = slice(TEMPLATE.digits + CRC_AT, TEMPLATE.digits + CRC_AT + len(ZEROS))
    for number in (6, 20, 38):
        one, other = bytearray(frames[number]), bytearray(frames[number + 1])
        one[crc], other[crc] = other[crc], one[crc]
        assert check(b"".join([*frames[:number], one, other, *frames[number + 2 :]]), 1000)[-1].next == number


@pytest.mark.parametrize("count", [1, 2, 5])
def test_neighbours_become_one(count: int) -> None:
    batches = [
        Written([Record(value=b"%d" % row, key=key, txid=row)] * count, frozenset())
        for row, key in enumerate([None, b"", b"key"] * 20)
    ]
    [header] = check(stored(batches, 7), rows=1000)
    assert (header.base, header.next) == (7, 7 + 60 * count)


def test_runs_end_with_so_many_rows() -> None:
    headers = check(stored([PLAIN] * 100), rows=30)
    assert [header.next for header in headers] == [30, 60, 90, 100]


def test_what_is_not_worth_it_is_read_one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(small_batch_reader, "_FRAMES_MIN", 32)
    headed = Written([Record(headers=[("a", b"b")])], frozenset())
    headers = check(stored([*[PLAIN] * 31, headed, *[PLAIN] * 32]), rows=1000)
    assert [header.next for header in headers] == [*range(1, 33), 64]


def test_no_run_is_looked_for_where_few_batches_have_all_the_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    data = stored([Written([Record()] * 10, frozenset())] * 8)
    searched = small_batch_reader._extents
    runs: list[int] = []

    def search(view: memoryview, rows: int) -> Numbers:
        runs.append(rows)
        return searched(view, rows)

    monkeypatch.setattr(small_batch_reader, "_extents", search)
    assert [header.next for header, _ in merged_batches(data, 30)] == [*range(10, 90, 10)]
    assert not runs
    assert [header.next for header, _ in merged_batches(data, 80)] == [80]
    assert runs


def test_batches_within_values_are_values() -> None:
    nested = Written([Record(value=stored([PLAIN]))], frozenset())
    headers = check(stored([*[PLAIN] * 6, nested, nested, *[PLAIN] * 6]), rows=1000)
    assert [header.next for header in headers] == [7, 8, 14]


def test_runs_end_before_so_many_bytes() -> None:
    data = stored([PLAIN] * 100)
    runs = [header for header, _ in merged_batches(data, 1000, len(data) // 4)]
    assert [header.next for header in runs] == [25, 50, 75, 100]


def test_a_run_has_four_mebibytes_at_most() -> None:
    size = len(stored([PLAIN]))
    count = 4 * MIB // size
    data = stored([PLAIN] * (count + 40))
    runs = [header for header, _ in merged_batches(data, 1_000_000, len(data))]
    assert [header.next for header in runs] == [count, count + 40]


def test_large_batches_headers_and_other_epochs_stand_between_runs() -> None:
    large = Written([Record(value=bytes(70_000))], frozenset())
    headed = Written([Record(headers=[("a", b"b")])], frozenset())
    later = Written([Record()], frozenset(), epochs=1)
    some = [PLAIN] * 5
    headers = check(stored([*some, large, *some, headed, *some, later, *some[1:]]), rows=1000)
    assert [header.next for header in headers] == [5, 6, 11, 12, 17, 22]


def test_what_the_quick_encoder_writes_is_read_at_once() -> None:
    data = b"".join(
        bytes(
            encode_plain(PlainRecords(Offset(row), NOW, [b"s"], [bytes(row)]), LeaderEpoch(1)).seal(
                BatchFlags(0)
            )
        )
        for row in range(50)
    )
    [header] = check(data, rows=50)
    assert header.next == 50


def test_a_gap_ends_a_run() -> None:
    headers = check(stored([*[PLAIN] * 6, replace(PLAIN, gap=1), *[PLAIN] * 5]), rows=1000)
    assert [(header.base, header.next) for header in headers] == [(0, 6), (7, 13)]


@pytest.mark.parametrize(("digits", "bit"), [(b"00", 6), (b"a", 5)])
def test_a_digit_of_a_checksum_that_is_none_is_damage(digits: bytes, bit: int) -> None:
    """Whatever it would be worth: "p0" is not "00", and "A" is not "a"."""
    frames = [bytes(frame) for frame in iter_frames(stored([PLAIN] * 1500))]
    crc = TEMPLATE.digits + CRC_AT
    number, at = next(
        (number, crc + place)
        for number, frame in enumerate(frames[5:], 5)
        for place in range(0, 8, 2)
        if frame[crc + place : crc + 8].startswith(digits)
    )
    frames[number] = flipped(frames[number], at, bit)
    assert check(b"".join(frames), rows=10_000)[-1].next == number


def test_an_intact_batch_with_more_records_than_offsets_is_refused_where_it_begins() -> None:
    frames = [bytes(frame) for frame in iter_frames(stored([replace(PLAIN, records=[Record()] * 2)] * 9))]
    header = read_header(frames[6])
    frames[6:] = [bytes(with_header(frames[6], replace(header, next=Offset(header.base + 1))))]
    assert check(b"".join(frames), rows=1000)[-1].next == 12


def test_intact_batches_with_other_metadata_are_judged_by_the_reader_of_one() -> None:
    """Any bit of it that is the same in all batches: whoever changed it has made the CRC anew."""
    frames = [bytearray(frame) for frame in iter_frames(stored([PLAIN] * 9))]
    mask = bytearray(b"\xff" * len(TEMPLATE.metadata))
    blank(mask)
    crc = TEMPLATE.digits + CRC_AT
    refused = 0
    for place in (place for place, same in enumerate(mask) if same):
        changed = bytearray(frames[6])
        changed[place] ^= 1
        changed[crc : crc + 8] = b"00000000"
        changed[crc : crc + 8] = b"%08x" % crc32c(changed)
        data = b"".join([*frames[:6], changed, *frames[7:]])
        headers, _, ended = read(merged_batches(data, 1000))
        singles, _, reason = read(one_by_one(data))
        assert (headers[-1].next, ended) == (singles[-1].next, reason)
        assert headers[0].next == 6
        refused += bool(ended)
    assert refused > 50


def test_intact_batches_of_a_later_format_are_refused_where_they_begin() -> None:
    frames = [bytes(frame) for frame in iter_frames(stored([PLAIN] * 9))]
    header, _ = decode(frames[6])
    frames[6] = bytes(with_header(frames[6], replace(header, version=2)))
    headers = check(b"".join(frames), rows=100)
    assert headers[-1].next == 6


@pytest.mark.parametrize("value", [-8, -1, 3, 8, 1 << 40, (1 << 63) - 8])
@pytest.mark.parametrize("place", CLAIMS)
def test_what_an_intact_batch_claims_of_its_columns_is_not_believed(place: int, value: int) -> None:
    """Who sends it knows how to make a CRC: what does not add up is left to Arrow."""
    frames = [bytes(frame) for frame in iter_frames(stored([PLAIN] * 9))]
    changed = bytearray(frames[6])
    struct.pack_into("<q", changed, place, value)
    frames[6] = bytes(with_header(changed, read_header(changed)))
    data = b"".join(frames)
    headers, _, ended = read(merged_batches(data, 100), full=False)
    singles, _, reason = read(one_by_one(data), full=False)
    assert (headers[-1].next, ended) == (singles[-1].next, reason)


@pytest.mark.parametrize("ends", [(-1, 5), (5, 4), (0, 6)])
def test_ends_of_values_that_are_not_in_order_are_left_to_arrow(ends: tuple[int, int]) -> None:
    frames = [bytes(frame) for frame in iter_frames(stored([PLAIN] * 9))]
    changed = bytearray(frames[6])
    values_ends = struct.unpack_from("<q", changed, TEMPLATE.fields.buffers + 16 * 22)[0]
    struct.pack_into("<ii", changed, len(TEMPLATE.metadata) + values_ends, *ends)
    frames[6] = bytes(with_header(changed, read_header(changed)))
    headers, _, _ = read(merged_batches(b"".join(frames), 100), full=False)
    assert [header.next for header in headers][:1] == [6]

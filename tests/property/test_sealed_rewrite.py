"""The sealed rewrite changes nothing that a reader sees, whatever the records and batches are."""

from typing import Any

import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st

from envelope.types import Compression, LeaderEpoch, Offset, TimestampUs
from jetstream.log.format.batch import BatchFlags, BatchHeader, decode, encode, iter_frames
from jetstream.log.inspection import inspect_stream
from jetstream.log.log import Log, LogConfig
from jetstream.log.rewriting.sealed_rewrite import rewritten
from tests.support.compaction import no_pace
from tests.support.example_counts import examples
from tests.support.logs import DIRECTORY, NOW, Record, begun, opened, records_batch
from tests.support.memory_disk import MemoryDisk

PARTS = st.none() | st.binary(max_size=20)
HEADERS = st.none() | st.lists(
    st.tuples(st.none() | st.text(max_size=5), PARTS | st.just(bytes(300))), max_size=3
)
RECORDS = st.builds(
    Record,
    value=PARTS | st.just(bytes(5000)),
    subject=st.sampled_from(("orders.new", "a.ü")),
    key=PARTS,
    headers=HEADERS,
    txid=st.none() | st.integers(0, 1 << 60),
)
BATCHES = st.tuples(
    st.lists(RECORDS, min_size=1, max_size=4),
    st.sampled_from((*[Compression.NONE] * 3, Compression.LZ4, Compression.ZSTD)),
    st.sampled_from(("", "", "", "", "epoch", "roll")),
)


def written(disk: MemoryDisk, batches: list[tuple[list[Record], Compression, str]]) -> Log:
    """A log of these batches, which begin epochs and segments here and there."""
    log = begun(disk, LogConfig())
    for records, codec, before in batches:
        if before == "epoch":
            log.writer.begin_epoch(LeaderEpoch(log.reader.last_epoch + 1), NOW)
        elif before == "roll" and log.log_end_offset:
            log.writer.roll()
        base = log.log_end_offset
        columns = records_batch(records, base).columns
        columns[1] = pa.array([NOW + base] * len(records), columns[1].type)
        arrow = pa.RecordBatch.from_arrays(columns, schema=records_batch(records).schema)
        log.writer.append_group((encode(arrow, base, log.reader.last_epoch, codec),), NOW)
        log.writer.sync()
    log.writer.roll()
    return log


def read(log: Log) -> tuple[list[dict[str, Any]], list[BatchHeader]]:
    """All records with all their columns, and all headers."""
    rows: list[dict[str, Any]] = []
    headers: list[BatchHeader] = []
    while not headers or headers[-1].next < log.log_end_offset:
        start = headers[-1].next if headers else log.log_start_offset
        for frame in iter_frames(log.reader.read(start, 1 << 20, log.log_end_offset)):
            header, records = decode(frame)
            assert not headers or header.base == headers[-1].next, "ranges tile"
            headers.append(header)
            rows.extend({**row, "epoch": header.leader_epoch} for row in records.to_pylist())
    return rows, headers


@given(
    batches=st.lists(BATCHES, min_size=1, max_size=25),
    merged_bytes=st.sampled_from((1, 200, 1000, 1 << 20)),
)
@settings(max_examples=examples(60))
def test_readers_find_the_same_records_in_fewer_batches(
    batches: list[tuple[list[Record], Compression, str]], merged_bytes: int
) -> None:
    disk = MemoryDisk()
    log = written(disk, batches)
    before, headers_before = read(log)
    starts = {header.base: header for header in headers_before}
    segments = [(segment.base, segment.next) for segment in log.reader.segments]
    for segment in log.reader.segments[:-1]:
        found = rewritten(log.reader, disk, segment, no_pace, merged_bytes)
        if found is not None:
            assert found.bytes == segment.size - found.new.size > 0
            assert log.replace_segment(found)
    after, headers = read(log)
    assert after == before
    assert [(segment.base, segment.next) for segment in log.reader.segments] == segments
    for header in headers:
        first = starts[header.base]
        assert (header.leader_epoch, header.flags) == (first.leader_epoch, first.flags)
        assert (header.base in dict(segments)) is (BatchFlags.ROLL in header.flags)
    for at in range(log.log_end_offset):
        assert log.reader.offset_for_timestamp(TimestampUs(NOW + at)) == next(
            (base for base in sorted(starts) if base >= at), log.log_end_offset
        )
    log.close()
    assert inspect_stream(disk, DIRECTORY).healthy
    again = opened(disk, full=True)
    assert read(again)[0] == before
    assert again.reader.epochs.starts == log.reader.epochs.starts
    assert again.reader.locate(Offset(0)).entry.base == 0

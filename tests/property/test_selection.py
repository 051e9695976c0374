"""What is selected of a range is what a loop over its records would keep."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from envelope.subjects import matches
from envelope.types import Compression, LeaderEpoch, Offset, TimestampUs
from jetstream.fetch.selection import SEEN_BYTES_MAX, Selection
from jetstream.log.format import small_batch_reader
from jetstream.log.format.batch import BatchFlags, decode, encode, iter_frames
from jetstream.log.format.schema import SCHEMA
from jetstream.protocol.requests import Column

EPOCH = LeaderEpoch(3)

ROWS = st.tuples(
    st.sampled_from(["a", "a.b", "a.c", "b.c", "ü.c"]),
    st.sampled_from([None, b"k", b"", "ü".encode()]),
    st.sampled_from([None, b"", b"value"]),
)
Batches = list[list[tuple[str, bytes | None, bytes | None]]]
BATCHES = st.lists(st.lists(ROWS, min_size=1, max_size=5), min_size=1, max_size=7)
SELECTIONS = st.builds(
    Selection,
    subject=st.sampled_from([None, "a", "a.*", "*.c", ">", "a.>", "nobody"]),
    key=st.sampled_from([None, b"k", b"", b"nobody"]),
    columns=st.one_of(st.none(), st.frozensets(st.sampled_from(["key", "headers", "txid", "value"]))),
    records_max=st.one_of(st.none(), st.integers(1, 12)),
)


@pytest.fixture(scope="module", autouse=True)
def short_runs() -> Iterator[None]:
    """Let three small batches be decoded at once."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(small_batch_reader, "_FRAMES_MIN", 3)
        yield


def records(
    base: int, rows: list[tuple[str, bytes | None, bytes | None]], *, headers: bool = True
) -> pa.RecordBatch:
    return pa.RecordBatch.from_pylist(
        [
            {
                "offset": base + place,
                "timestamp": TimestampUs(1000 + base),
                "subject": subject,
                "key": key,
                "headers": [{"key": "h", "value": b"v"}] if headers else None,
                "txid": base + place,
                "value": value,
            }
            for place, (subject, key, value) in enumerate(rows)
        ],
        schema=SCHEMA,
    )


def encoded(
    batches: Batches, start: int, compression: Compression = Compression.NONE, *, headers: bool = True
) -> tuple[bytes, list[dict[str, Any]], int]:
    """Return batches as they are stored from ``start`` on, their records, and where they end."""
    body, everything, end = b"", [], start
    for rows in batches:
        batch = records(end, rows, headers=headers)
        body += bytes(encode(batch, Offset(end), EPOCH, compression).seal(BatchFlags(0)))
        everything += batch.to_pylist()
        end += len(rows)
    return body, everything, end


@given(BATCHES, SELECTIONS, st.integers(0, 1 << 40), st.data())
def test_a_selection_keeps_what_a_loop_would_keep(
    batches: Batches,
    selection: Selection,
    start: int,
    data: st.DataObject,
) -> None:
    body, everything, end = encoded(batches, start, headers=data.draw(st.booleans()))
    offset = data.draw(st.integers(start, start + len(batches[0]) - 1))

    kept = [
        record
        for record in everything
        if record["offset"] >= offset
        and (selection.subject is None or matches(selection.subject, record["subject"]))
        and (selection.key is None or record["key"] == selection.key)
    ]
    expected_end = end
    if selection.records_max is not None and len(kept) >= selection.records_max:
        kept = kept[: selection.records_max]
        expected_end = kept[-1]["offset"] + 1
    if selection.columns is not None:
        missing = {"key", "headers", "txid", "value"} - selection.columns
        kept = [{**record, **dict.fromkeys(missing)} for record in kept]

    found = selection.select(body, Offset(start), Offset(offset), Offset(end), EPOCH)
    assert (found.next, found.records) == (expected_end, len(kept))
    assert found.next > offset, "a reader gets on"
    frames = list(iter_frames(found.body))
    assert len(frames) == (1 if kept else 0)
    for frame in frames:
        header, left = decode(frame)
        assert (header.base, header.next, header.leader_epoch) == (start, expected_end, EPOCH)
        assert header.max_timestamp == left.column(1)[left.num_rows - 1].value
        assert left.to_pylist() == kept


@given(
    BATCHES,
    st.frozensets(st.sampled_from(["key", "headers", "txid", "value"])),
    st.sampled_from(Compression),
    st.booleans(),
)
def test_a_projected_body_is_arrow_to_others_and_equals_the_records_encoded_anew(
    batches: Batches, columns: frozenset[Column], compression: Compression, headers: bool
) -> None:
    body, everything, end = encoded(batches, 0, compression, headers=headers)
    found = Selection(columns=columns).select(body, Offset(0), Offset(0), Offset(end), EPOCH)
    stream = pa.ipc.open_stream(SCHEMA.serialize().to_pybytes() + bytes(found.body))
    [read] = stream.read_all().combine_chunks().to_batches()
    read.validate(full=True)

    nothing = dict.fromkeys({"key", "headers", "txid", "value"} - columns)
    anew = pa.RecordBatch.from_pylist([{**record, **nothing} for record in everything], schema=SCHEMA)
    assert read.equals(anew)
    assert len(found.body) <= encode(anew, Offset(0), EPOCH).size


@given(BATCHES, SELECTIONS, st.sampled_from(Compression), st.integers(1, 600) | st.just(4500), st.booleans())
def test_what_is_cut_by_bytes_comes_with_the_next_fetch(
    batches: Batches, selection: Selection, compression: Compression, bytes_max: int, headers: bool
) -> None:
    body, _, end = encoded(batches, 0, compression, headers=headers)
    whole = replace(selection, records_max=None).select(body, Offset(0), Offset(0), Offset(end), EPOCH)
    cut = replace(selection, bytes_max=bytes_max)
    parts, offset = [], Offset(0)
    while offset < end:
        found = cut.select(body, Offset(0), offset, Offset(end), EPOCH)
        assert found.next > offset, "a reader gets on"
        base = max(index for index in range(len(batches)) if sum(map(len, batches[:index])) < found.next)
        assert found.max_timestamp == 1000 + sum(map(len, batches[:base]))
        parts += [decode(frame)[1] for frame in iter_frames(found.body)]
        offset = found.next
    left = [record for part in parts for record in part.to_pylist()]
    assert left == [record for frame in iter_frames(whole.body) for record in decode(frame)[1].to_pylist()]
    tops = [len(part) for part in parts]
    assert selection.records_max is None or all(top <= selection.records_max for top in tops)


def test_what_is_looked_at_together_is_bounded_in_bytes_too() -> None:
    body, _, end = encoded([[("a", None, bytes(100))]] * 200, 0, headers=False)
    found = Selection(subject="a", bytes_max=5_000).select(body, Offset(0), Offset(0), Offset(end), EPOCH)
    assert 1 < found.records < 50


def test_one_fetch_decodes_a_bounded_number_of_bytes() -> None:
    zeros = bytes(1 << 20)
    batches: Batches = [[("a", b"k", zeros)] for _ in range(80)]
    body, _, end = encoded(batches, 0, Compression.ZSTD)
    assert len(body) < 1 << 20
    nobody = Selection(key=b"nobody").select(body, Offset(0), Offset(0), Offset(end), EPOCH)
    assert (nobody.next, nobody.records) == (SEEN_BYTES_MAX >> 20, 0)
    keys = Selection(columns=frozenset({"key"})).select(body, Offset(0), Offset(0), Offset(end), EPOCH)
    assert (keys.next, keys.records) == (nobody.next, nobody.next)
    whole = Selection(subject="a", bytes_max=5 << 20).select(body, Offset(0), Offset(0), Offset(end), EPOCH)
    assert (whole.next, whole.records) == (4, 4)
    assert len(whole.body) <= 5 << 20

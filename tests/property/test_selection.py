"""What is selected of a range is what a loop over its records would keep."""

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from envelope.subjects import matches
from envelope.types import LeaderEpoch, Offset, TimestampUs
from jetstream.fetch.selection import Selection
from jetstream.log.batch import BatchFlags, decode, encode, iter_frames
from jetstream.log.schema import SCHEMA

EPOCH = LeaderEpoch(3)

ROWS = st.tuples(
    st.sampled_from(["a", "a.b", "a.c", "b.c", "ü.c"]),
    st.sampled_from([None, b"k", b"", "ü".encode()]),
    st.sampled_from([None, b"", b"value"]),
)
BATCHES = st.lists(st.lists(ROWS, min_size=1, max_size=5), min_size=1, max_size=5)
SELECTIONS = st.builds(
    Selection,
    subject=st.sampled_from([None, "a", "a.*", "*.c", ">", "a.>", "nobody"]),
    key=st.sampled_from([None, b"k", b"", b"nobody"]),
    columns=st.one_of(st.none(), st.frozensets(st.sampled_from(["key", "headers", "txid", "value"]))),
    records_max=st.one_of(st.none(), st.integers(1, 12)),
)


def records(base: int, rows: list[tuple[str, bytes | None, bytes | None]]) -> pa.RecordBatch:
    return pa.RecordBatch.from_pylist(
        [
            {
                "offset": base + place,
                "timestamp": TimestampUs(1000 + base),
                "subject": subject,
                "key": key,
                "headers": [{"key": "h", "value": b"v"}],
                "txid": base + place,
                "value": value,
            }
            for place, (subject, key, value) in enumerate(rows)
        ],
        schema=SCHEMA,
    )


@given(BATCHES, SELECTIONS, st.integers(0, 1 << 40), st.data())
def test_a_selection_keeps_what_a_loop_would_keep(
    batches: list[list[tuple[str, bytes | None, bytes | None]]],
    selection: Selection,
    start: int,
    data: st.DataObject,
) -> None:
    body, everything, end = b"", [], start
    for rows in batches:
        batch = records(end, rows)
        body += bytes(encode(batch, Offset(end), EPOCH).seal(BatchFlags(0)))
        everything += batch.to_pylist()
        end += len(rows)
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

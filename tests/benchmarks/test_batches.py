"""Counting stored batches reads nothing but frames."""

from pathlib import Path

import pyarrow as pa

from benchmarks.batches import count_batches
from envelope.types import LeaderEpoch, Offset
from jetstream.log.format.batch import BatchFlags, encode
from jetstream.log.format.schema import END_OF_STREAM, SCHEMA, SCHEMA_MESSAGE


def sealed_batch(base: int) -> bytes:
    row = {
        "offset": base,
        "timestamp": 0,
        "subject": "s",
        "key": None,
        "headers": None,
        "txid": None,
        "value": b"v",
    }
    records = pa.RecordBatch.from_pylist([row], schema=SCHEMA)
    return bytes(encode(records, Offset(base), LeaderEpoch(1)).seal(BatchFlags(0)))


def test_batches_of_sealed_and_open_segments_are_counted_together(tmp_path: Path) -> None:
    first, second, third = (sealed_batch(base) for base in range(3))
    (tmp_path / "streams").mkdir()
    (tmp_path / "streams" / "0.arrows").write_bytes(SCHEMA_MESSAGE + first + second + END_OF_STREAM)
    (tmp_path / "streams" / "2.arrows").write_bytes(SCHEMA_MESSAGE + third + first[: len(first) // 2])
    (tmp_path / "streams" / "3.arrows").write_bytes(SCHEMA_MESSAGE)
    (tmp_path / "streams" / "4.arrows").write_bytes(b"")

    assert count_batches(tmp_path) == 3

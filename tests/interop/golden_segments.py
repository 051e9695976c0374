"""Segments written once and kept: what any later version, and any Arrow reader, must still read.

``python -m tests.interop.golden_segments`` writes them anew; that is right only with a new format.
"""

import base64
import json
from pathlib import Path
from typing import Final

from envelope.types import Compression, LeaderEpoch, Offset, TimestampUs
from jetstream.log.format.batch import encode
from jetstream.log.log import Log, LogConfig
from jetstream.log.segments.segment import segment_path
from tests.support.logs import DIRECTORY as LOG_DIRECTORY
from tests.support.logs import NOW, Record, file_content, opened, records_batch
from tests.support.memory_disk import MemoryDisk

DIRECTORY: Final = Path(__file__).parent / "golden"
EXPECTED: Final = DIRECTORY / "records.json"
SEALED: Final = ("none.arrows", "lz4.arrows", "zstd.arrows")
UNSEALED: Final = "unsealed.arrows"
INDEXED: Final = "zstd.arrows"
INDEX: Final = "index-v2.index"
"""Of `INDEXED`."""

_INDEX_PATH: Final = segment_path(LOG_DIRECTORY, Offset(0)).replace(".arrows", ".index")

BATCHES: Final[tuple[tuple[Record, ...], ...]] = (
    (Record(value=b"one"),),
    (
        Record(value=b"", subject="flights.JFK.LAX", key=b"N14228", txid=-1),
        Record(value=None, subject="flights.JFK.LAX", key=b"N14228", txid=0),
        Record(value=b"\x00\xff" * 5, key=b"", headers=[("Nats-Msg-Id", b"a-1"), ("x", b""), ("x", b"2")]),
        Record(value="žluťoučký kůň".encode(), subject="grüße.welt", headers=[]),
        Record(value=b"null header value", headers=[("k", None), (None, b"v")], txid=(1 << 63) - 1),
    ),
    tuple(
        Record(
            value=b'{"carrier":"UA","flight":%d,"origin":"EWR","dest":"IAH"}' % number,
            subject=f"flights.EWR.{number % 7}",
            timestamp=NOW + number,
            key=b"%d" % (number % 3) if number % 2 else None,
            txid=number * 10 if number % 5 == 0 else None,
        )
        for number in range(60)
    ),
    (Record(value=b"x" * 5000, timestamp=NOW + 100, headers=[("only", b"one")]),),
)


def expected_rows() -> list[dict[str, object]]:
    """Return the records as JSON can hold them, in offset order."""
    rows: list[dict[str, object]] = []
    for record in (record for batch in BATCHES for record in batch):
        rows.append(
            {
                "offset": len(rows),
                "timestamp": record.timestamp,
                "subject": record.subject,
                "key": text_of(record.key),
                "headers": None
                if record.headers is None
                else [[key, text_of(value)] for key, value in record.headers],
                "txid": record.txid,
                "value": text_of(record.value),
            }
        )
    return rows


def text_of(content: bytes | None) -> str | None:
    """Return bytes as base64."""
    return None if content is None else base64.b64encode(content).decode()


def segment(compression: Compression, *, sealed: bool) -> bytes:
    """Return a segment of all batches, the last two of them under a second epoch."""
    disk = MemoryDisk()
    log = Log.open(disk, "golden", LogConfig(), NOW)
    for number, records in enumerate(BATCHES):
        if number in (0, 2):
            log.writer.begin_epoch(LeaderEpoch(number + 1), NOW)
        base = log.log_end_offset
        log.writer.append_group(
            (encode(records_batch(records, base), base, log.reader.last_epoch, compression),), NOW
        )
        log.writer.sync()
    if sealed:
        log.writer.config = LogConfig(retention_age_us=1)
        segment_file = log.reader.segments[0].acquire()
        log.apply_retention(TimestampUs(NOW + 1_000_000), log.log_end_offset)
        return segment_file.read(0, segment_file.size())
    return file_content(disk, segment_path("golden", Offset(0)))


def golden(name: str) -> bytes:
    """Return the content of a golden file."""
    return (DIRECTORY / name).read_bytes()


def indexed_log(index: str | None) -> MemoryDisk:
    """Return a log's directory with `INDEXED` as a sealed segment, and that golden file as its index."""
    disk = MemoryDisk()
    disk.mkdir(LOG_DIRECTORY)
    end = Offset(sum(map(len, BATCHES)))
    contents = {
        segment_path(LOG_DIRECTORY, Offset(0)): golden(INDEXED),
        segment_path(LOG_DIRECTORY, end): b"",
    }
    if index is not None:
        contents[_INDEX_PATH] = golden(index)
    for path, content in contents.items():
        file = disk.create(path)
        file.write([content], 0)
        file.close()
    return disk


def write() -> None:
    """Write all golden files."""
    DIRECTORY.mkdir(exist_ok=True)
    for name in SEALED:
        compression = Compression(name.removesuffix(".arrows"))
        (DIRECTORY / name).write_bytes(segment(compression, sealed=True))
    (DIRECTORY / UNSEALED).write_bytes(segment(Compression.NONE, sealed=False))
    disk = indexed_log(None)
    opened(disk)
    (DIRECTORY / INDEX).write_bytes(file_content(disk, _INDEX_PATH))
    EXPECTED.write_text(json.dumps(expected_rows(), indent=0) + "\n")


if __name__ == "__main__":
    write()

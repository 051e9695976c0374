"""What a record takes on disk is what docs/formats.md says."""

import random

from envelope.types import Compression, LeaderEpoch, Offset, TimestampUs
from jetstream.log.format.batch import BatchFlags, decode
from jetstream.log.format.plain_batch_encoder import TEMPLATE, PlainRecords, encode_plain, encode_records

COUNT, EPOCH = 1000, LeaderEpoch(1)
SUBJECT, SUBJECT_BYTES, VALUE_BYTES = b"orders.new", 10, 100


def plain_records() -> PlainRecords:
    chance = random.Random(0)
    values = tuple(chance.randbytes(VALUE_BYTES) for _ in range(COUNT))
    return PlainRecords(Offset(10**6), TimestampUs(1_700_000_000_000_000), (SUBJECT,) * COUNT, values)


def test_a_record_without_key_headers_and_txid_takes_40_bytes_beside_subject_and_value() -> None:
    frame = encode_plain(plain_records(), EPOCH).seal(BatchFlags(0))
    _, records = decode(frame)
    bits, ends = COUNT // 8, 4 * (COUNT + 1)
    column_bytes = {
        "offset": 8 * COUNT,
        "timestamp": 8 * COUNT,
        "subject": ends + SUBJECT_BYTES * COUNT,
        "key": bits + ends,
        "headers": bits + ends + 4 + 4,
        "txid": bits + 8 * COUNT,
        "value": ends + VALUE_BYTES * COUNT,
    }
    found = {
        name: sum(buffer.size for buffer in records.column(place).buffers() if buffer is not None)
        for place, name in enumerate(column_bytes)
    }
    assert found == column_bytes
    assert len(TEMPLATE.metadata) == 776
    padding = len(frame) - len(TEMPLATE.metadata) - sum(column_bytes.values())
    assert 0 <= padding <= 7 * 11


def test_zstd_leaves_less_than_eight_bytes_of_a_record_beside_a_random_value() -> None:
    [batch] = encode_records(plain_records(), Offset(10**6), EPOCH, Compression.ZSTD)
    assert batch.size < (VALUE_BYTES + 8) * COUNT

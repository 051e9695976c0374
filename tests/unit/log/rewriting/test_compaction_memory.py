"""What compaction takes of memory, in bytes, however many keys there are."""

import tracemalloc
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from envelope.limits import KIB, MIB
from jetstream.log.disk.os_disk import OsDisk
from jetstream.log.format.batch import encode
from jetstream.log.format.schema import SCHEMA
from jetstream.log.log import Log, LogConfig
from jetstream.log.rewriting.latest_offsets import ENTRY_BYTES, LatestOffsets
from tests.support.compaction import EAGER, compact
from tests.support.logs import NOW, begun, opened

KEYS = 2_000
"""As many as the budget holds; a chunk of these batches has about as many."""
BUDGET = KEYS * ENTRY_BYTES
WORK_BYTES = 3 * MIB
"""For a chunk that is read, decoded, hashed and encoded, and for the indexes of the segments."""
SORTING = 4
"""Times the budget: what is sorted, what is new, both together, and that in order."""
CONFIG = LogConfig(segment_bytes=512 * KIB, compaction=EAGER)
ROWS = 10
POOL = pa.proxy_memory_pool(pa.default_memory_pool())
"""Of the module, as it must live longer than whatever was allocated from it."""


_SLOW = pytest.mark.slow("tests/unit/log/rewriting/test_compaction_memory.py")


@contextmanager
def counted_by_arrow() -> Iterator[None]:
    """Have `POOL` count what Arrow allocates."""
    before = pa.default_memory_pool()
    pa.set_memory_pool(POOL)
    try:
        yield
    finally:
        pa.set_memory_pool(before)


@contextmanager
def counted_by_python() -> Iterator[None]:
    """Have tracemalloc count what Python allocates, numpy's arrays included."""
    tracemalloc.start()
    try:
        yield
    finally:
        tracemalloc.stop()


def append_keys(log: Log, count: int) -> None:
    """One small record for each key; in each batch one that the next batch replaces."""
    for base in range(0, count, ROWS):
        columns = {
            "offset": range(base, base + ROWS),
            "timestamp": [NOW] * ROWS,
            "subject": ["prices.x"] * ROWS,
            "key": [b"hot", *(b"%08d" % number for number in range(base + 1, base + ROWS))],
            "value": [b"%d" % base] * ROWS,
        }
        arrays = [pa.array(columns.get(field.name, [None] * ROWS), field.type) for field in SCHEMA]
        records = pa.RecordBatch.from_arrays(arrays, schema=SCHEMA)
        log.writer.append_group((encode(records, log.log_end_offset, log.reader.last_epoch),), NOW)
    log.close()


@pytest.mark.parametrize("keys", [2 * KEYS, pytest.param(10 * KEYS, marks=_SLOW)])
def test_compaction_keeps_to_its_budget_whatever_the_number_of_keys(tmp_path: Path, keys: int) -> None:
    disk = OsDisk(tmp_path)
    append_keys(begun(disk, CONFIG), keys)
    log = opened(disk, CONFIG)
    size, passes = log.reader.size, 0
    with counted_by_arrow(), counted_by_python():
        while compact(disk, log, NOW, key_bytes=BUDGET):
            passes += 1
        peak = tracemalloc.get_traced_memory()[1] + (POOL.max_memory() or 0)
    assert peak < WORK_BYTES + SORTING * BUDGET, f"{peak} bytes"
    assert passes >= keys // KEYS // 2, "each of them goes as far as the budget, and a chunk"
    assert log.reader.size != size, "segments were written anew"
    log.close()
    disk.close()


@pytest.mark.parametrize("times", [1, 10])
def test_the_offsets_of_keys_take_their_budget_and_for_moments_four_times_as_much(times: int) -> None:
    count, at_once = 50_000, 1_000
    random = np.random.default_rng()
    latest = LatestOffsets(count * ENTRY_BYTES)
    with counted_by_python():
        for start in range(0, times * count, at_once):
            if latest.is_full:
                break
            hashes = random.integers(0, 1 << 64, (at_once, 2), np.uint64)
            latest.add(hashes, np.arange(start, start + at_once))
        assert latest.is_full
        held, peak = tracemalloc.get_traced_memory()
    assert held < 1.5 * count * ENTRY_BYTES, f"{held} bytes"
    assert peak < SORTING * count * ENTRY_BYTES, f"{peak} bytes"

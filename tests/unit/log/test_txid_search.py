"""Where a transaction id begins: always what a look at every record finds."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from envelope.errors import CorruptDataError
from envelope.types import Offset
from jetstream.log.batch import encode
from jetstream.log.log import Log, LogConfig
from jetstream.log.memory_disk import MemoryDisk
from jetstream.log.txid_search import offset_for_txid
from tests.support.logs import (
    DIRECTORY,
    NOW,
    SMALL,
    Record,
    begun,
    file_content,
    flipped,
    opened,
    overwrite,
    records_batch,
)

Txids = list[list[int | None]]


def log_of(batches: Txids, config: LogConfig = SMALL, disk: MemoryDisk | None = None) -> Log:
    log = begun(disk or MemoryDisk(), config)
    for txids in batches:
        records = records_batch([Record(txid=txid) for txid in txids], log.log_end_offset)
        log.append(encode(records, log.log_end_offset, log.last_epoch), NOW)
    log.sync()
    return log


def growing(steps: list[list[int | None]]) -> Txids:
    """Let what is not None be how much larger a txid is than the one before it."""
    last, batches = -5, []
    for batch in steps:
        txids: list[int | None] = []
        for step in batch:
            last += step or 0
            txids.append(None if step is None else last)
        batches.append(txids)
    return batches


STEPS = st.lists(st.lists(st.none() | st.integers(0, 3), min_size=1, max_size=4), max_size=12)


@given(STEPS, st.integers(-8, 40), st.integers(0, 6))
def test_the_first_record_that_reaches_it_is_found(
    steps: list[list[int | None]], wanted: int, removed: int
) -> None:
    batches = growing(steps)
    log = log_of(batches)
    start = min(removed, log.log_end_offset)
    log.truncate_before(Offset(start), log.log_end_offset)
    txids = [txid for batch in batches for txid in batch]
    reached = [
        place for place, txid in enumerate(txids) if place >= start and txid is not None and txid >= wanted
    ]
    assert offset_for_txid(log, wanted) == (reached[0] if reached else log.log_end_offset)


def test_where_every_record_has_one_few_batches_are_read(monkeypatch: pytest.MonkeyPatch) -> None:
    disk = MemoryDisk()
    log = log_of([[number] for number in range(500)], LogConfig(), disk)
    before = len(disk.trace)
    assert offset_for_txid(log, 321) == 321
    assert len([call for call in disk.trace[before:] if call.startswith("read")]) <= 10


def test_damage_on_the_way_is_an_error_and_not_passed_over() -> None:
    disk = MemoryDisk()
    log = log_of([[1], [2], [3]], LogConfig(), disk)
    log.close()
    (segment,) = (name for name in disk.listdir(DIRECTORY) if name.endswith(".arrows"))
    content = file_content(disk, f"{DIRECTORY}/{segment}")
    overwrite(disk, f"{DIRECTORY}/{segment}", flipped(content, len(content) // 2, 3))
    with pytest.raises(CorruptDataError):
        offset_for_txid(opened(disk, full=True), 2)

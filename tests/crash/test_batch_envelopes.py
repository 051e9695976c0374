"""Groups with batch envelopes under every fault of the disk: each is stored whole or not at all, and once."""

import contextlib

import pytest

from envelope.envelopes import encode_batch
from envelope.errors import DiskFull, JetstreamError
from envelope.types import LeaderEpoch, StreamName
from jetstream.ingest.machine import (
    AppendRecords,
    StreamIngest,
)
from jetstream.log.format.plain_batch_encoder import encode_records
from jetstream.node.disk.open_log import OpenedLog
from metadata.stream_config import StreamConfig
from tests.support.envelopes import arrow, binary
from tests.support.logs import DIRECTORY, NOW, stored_values
from tests.support.lone_streams import open_led
from tests.support.memory_disk import (
    Fault,
    FaultKind,
    MemoryDisk,
    PowerLostError,
    everything_survives,
    nothing_survives,
    random_survival,
)
from tests.support.messages import PublishedMessage, appends, block_of, message, published
from tests.support.passed_checks import once_for_each_state
from tests.support.struck_calls import struck_calls

CONFIG = StreamConfig(name="orders", subject="orders.>", segment_bytes=64 * 1024)
GROUPS = 3
ROWS = 3
"""Of each envelope, large enough that segments roll."""


def values(number: int) -> list[bytes]:
    return [b"%d-%d " % (number, row) + b"x" * 8000 for row in range(ROWS)]


def messages(group: int) -> list[PublishedMessage]:
    """An envelope, a plain message, and another envelope; each with an id."""
    numbers = range(3 * group, 3 * group + 3)
    payloads = [
        values(number)[0]
        if number % 3 == 1
        else encode_batch(arrow({"value": binary(*values(number))}), ROWS)
        for number in numbers
    ]
    return [
        message(payload, f"r{number}", Nats_Msg_Id=f"id-{number}")
        for number, payload in zip(numbers, payloads, strict=True)
    ]


def records_of_message(number: int) -> list[bytes]:
    return values(number)[:1] if number % 3 == 1 else values(number)


class Life:
    """One start of a node; `publish` puts groups through the publish path and remembers what was acked."""

    def __init__(self, disk: MemoryDisk, epoch: int, acked: dict[int, int]) -> None:
        self.opened: OpenedLog = open_led(disk, DIRECTORY, CONFIG, LeaderEpoch(epoch), NOW)
        self.acked = acked
        log = self.opened.log
        self.opened.history.high_watermark = log.writer.synced_end
        self.epoch = LeaderEpoch(epoch)
        self.ingest = StreamIngest(
            stream=StreamName("orders"),
            config=CONFIG,
            leader_epoch=self.epoch,
            log_end_offset=log.log_end_offset,
            history=self.opened.history,
            binds=lambda *_: False,
        )

    def publish(self, group: int) -> None:
        actions = self.ingest.received(block_of(messages(group)), NOW)
        self._hear(actions)
        for append in appends(actions):
            self._append(append)

    def _append(self, append: AppendRecords) -> None:
        log = self.opened.log
        try:
            log.writer.append_group(encode_records(append.records, append.base, self.epoch), NOW)
        except DiskFull as error:
            self._hear(self.ingest.append_refused(error))
            return
        log.writer.sync()
        self._hear(self.ingest.appended(log.log_end_offset))
        self._hear(self.ingest.committed(log.writer.synced_end, NOW))

    def _hear(self, actions: object) -> None:
        for answer in published(actions):  # type: ignore[arg-type]  # what the machine returns
            if answer.error_code is None:
                offset = answer.body["offset"]
                assert isinstance(offset, int)
                assert self.acked.setdefault(int(answer.reply[1:]), offset) == offset, "acked elsewhere"


def strike(fault: tuple[int, Fault] | None) -> tuple[MemoryDisk, dict[int, int]]:
    """Publish all groups, with one fault; the life ends where the log gives up."""
    disk, acked = MemoryDisk({} if fault is None else dict([fault])), dict[int, int]()
    with contextlib.suppress(JetstreamError, PowerLostError):
        life = Life(disk, 1, acked)
        for group in range(GROUPS):
            life.publish(group)
    disk.faults.clear()
    return disk, acked


CALLS = strike(None)[0].trace


@once_for_each_state
def check_and_publish_again(disk: MemoryDisk, acked: dict[int, int]) -> None:
    """What was acked is there, no envelope is there in part; after all was sent again each is there once."""
    before = dict(acked)
    life = Life(disk, 2, acked)
    check(life.opened, before, complete=False)
    for group in range(GROUPS):
        life.publish(group)
    assert acked.keys() == set(range(3 * GROUPS))
    check(life.opened, acked, complete=True)


def check(opened: OpenedLog, acked: dict[int, int], *, complete: bool) -> None:
    stored = list(stored_values(opened.log).values())
    for number, last in acked.items():
        wanted = records_of_message(number)
        assert stored[last + 1 - len(wanted) : last + 1] == wanted, f"message {number}, acked at {last}"
    for number in range(3 * GROUPS):
        wanted = records_of_message(number)
        found = [value for value in stored if value in wanted]
        assert found in ([wanted] if complete else [wanted, []]), f"message {number}: {len(found)} records"


@pytest.mark.parametrize(
    "step", [3, pytest.param(1, marks=pytest.mark.slow("tests/crash/test_batch_envelopes.py"))]
)
@pytest.mark.parametrize(
    "kind", [FaultKind.IO_ERROR, FaultKind.POWER_LOSS, FaultKind.SHORT_WRITE, FaultKind.EXHAUSTED]
)
def test_a_fault_at_every_call_leaves_no_envelope_in_part_and_none_twice(kind: FaultKind, step: int) -> None:
    for number in struck_calls(CALLS, kind, step):
        disk, acked = strike((number, Fault(kind, (0, 10_000, 30_000, 45_000)[number % 4])))
        for survival in (everything_survives, nothing_survives, random_survival(number)):
            check_and_publish_again(disk.power_loss(survival), dict(acked))


def test_the_groups_have_several_batches_and_segments() -> None:
    disk, acked = strike(None)
    assert len(acked) == 3 * GROUPS
    assert len([name for name in disk.listdir(DIRECTORY) if name.endswith(".arrows")]) > 1

"""Ids of records whose fate is unknown, on two replicas that restart and take over, against a list."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import timedelta

from hypothesis import event, example, given, settings
from hypothesis import strategies as st

from envelope.types import LeaderEpoch, MonotonicNs, Offset, StreamName, TimestampUs
from jetstream.ingest.machine import Action, StreamIngest
from jetstream.log.format.batch import verified_batches
from jetstream.log.format.plain_batch_encoder import arrow_records, encode_records
from jetstream.node.disk.appends import FollowerAppend, GroupAppend
from jetstream.node.disk.log_upkeep import Upkeep
from jetstream.node.disk.open_log import begin_reign, open_log
from metadata.stream_config import StreamConfig
from tests.support.example_counts import examples
from tests.support.logs import DIRECTORY, NOW
from tests.support.memory_disk import MemoryDisk, nothing_survives
from tests.support.messages import appends, block_of, message, published

WINDOW_US = 640
CONFIG = StreamConfig(name="orders", subject="orders.>", dedupe_window=timedelta(microseconds=WINDOW_US))
SOON_US = WINDOW_US // 64
"""A commit that comes sooner is not late: its window begins with the timestamp."""
MORE_US = WINDOW_US // 16
"""An id may be known for so much longer than it must be."""

PUBLISH = st.tuples(
    st.lists(st.sampled_from("abcde"), max_size=3, unique=True),
    st.sampled_from([0, 1, WINDOW_US // 3, WINDOW_US - 1, WINDOW_US, 3 * WINDOW_US]),
)
STEP = st.one_of(
    PUBLISH,
    PUBLISH,
    st.sampled_from(["follow", "commit", "commit", "hear", "note"]),
    st.sampled_from(["fail over", "restart leader", "restart follower"]),
)


@dataclass
class Clock:
    """Shows what it is set to."""

    now: int = int(NOW)

    def wall(self) -> TimestampUs:
        return TimestampUs(self.now)

    def monotonic(self) -> MonotonicNs:
        return MonotonicNs(self.now * 1000)


@dataclass
class Stored:
    """A record, and since when it is committed: in truth, and as the leader knows."""

    name: str
    at: int
    committed_at: int | None = None
    known_at: int | None = None


class Replica:
    """A log, and what its node knows of it."""

    def __init__(self, clock: Clock) -> None:
        self.clock, self.disk, self.high_watermark = clock, MemoryDisk(), Offset(0)
        self.opened = open_log(self.disk, DIRECTORY, CONFIG, clock.wall(), "tail")

    @property
    def end(self) -> Offset:
        return self.opened.log.log_end_offset

    def restart(self) -> None:
        self.disk, self.high_watermark = self.disk.power_loss(nothing_survives), Offset(0)
        self.opened = open_log(self.disk, DIRECTORY, CONFIG, self.clock.wall(), "tail")

    def keep_note(self) -> None:
        upkeep = Upkeep(self.opened.log, self.clock, lambda: self.high_watermark, lambda: self.opened.note)
        if upkeep.note_due():
            upkeep.write_note()

    def hear(self, high_watermark: Offset) -> None:
        """The leader has answered with no records."""
        self.high_watermark = max(self.high_watermark, min(high_watermark, self.end))
        self.opened.fates.observe(self.high_watermark, self.clock.wall())

    def follow(self, frames: list[bytes], high_watermark: Offset) -> None:
        for frame in frames:
            if verified_batches(frame)[0][0].base < self.end:
                continue
            append = FollowerAppend(
                self.opened,
                frame,
                self.clock.wall(),
                high_watermark=self.high_watermark,
                committed=high_watermark,
            )
            append.write()
            self.opened.log.writer.sync()
            append.replay()
            self.high_watermark = max(self.high_watermark, min(high_watermark, self.end))


@dataclass
class Run:
    """Two replicas, both in sync, and the model beside them."""

    clock: Clock = field(default_factory=Clock)
    records: list[Stored] = field(default_factory=list)
    frames: list[bytes] = field(default_factory=list)
    epoch: int = 0

    def __post_init__(self) -> None:
        self.leader, self.follower = Replica(self.clock), Replica(self.clock)
        self.lead()

    def lead(self) -> None:
        self.epoch += 1
        leader, now = self.leader, self.clock.wall()
        begin_reign(leader.opened, LeaderEpoch(self.epoch), now)
        history = leader.opened.history
        history.lead_from(leader.high_watermark, now)
        epoch = LeaderEpoch(self.epoch)
        self.machine = StreamIngest(
            stream=StreamName("orders"),
            config=CONFIG,
            leader_epoch=epoch,
            log_end_offset=leader.end,
            history=history,
            binds=lambda *_: False,
        )
        for record in self.records:
            record.known_at = None
        self.learn_committed(leader.high_watermark)

    def learn_committed(self, high_watermark: int) -> None:
        for record in self.records[:high_watermark]:
            record.committed_at = record.committed_at or self.clock.now
            record.known_at = record.known_at or self.clock.now

    def do(self, step: str) -> None:
        event(step)
        leader, follower = self.leader, self.follower
        if step == "follow":
            follower.follow(self.frames, leader.high_watermark)
        elif step == "commit":
            follower.follow(self.frames, leader.high_watermark)
            leader.high_watermark = follower.end
            self.machine.committed(follower.end, self.clock.wall())
            self.learn_committed(follower.end)
        elif step == "hear":
            follower.hear(leader.high_watermark)
        elif step == "note":
            leader.keep_note()
            follower.keep_note()
        elif step == "restart follower":
            follower.restart()
        elif step == "restart leader":
            leader.restart()
            self.lead()
        else:
            self.fail_over()

    def fail_over(self) -> None:
        self.leader, self.follower = self.follower, self.leader
        end = self.leader.end
        if self.follower.end > end:
            self.follower.opened.log.truncate_to(end)
        self.follower.opened.settle()
        self.follower.high_watermark = min(self.follower.high_watermark, end)
        self.frames = [frame for frame in self.frames if verified_batches(frame)[0][0].base < end]
        del self.records[end:]
        self.lead()

    def publish(self, names: list[str], later: int) -> None:
        self.clock.now += later
        now, log = self.clock.wall(), self.leader.opened.log
        known = {record.name: (offset, record) for offset, record in enumerate(self.records)}
        messages = [message(name.encode(), name, Nats_Msg_Id=name) for name in names]
        actions = self.machine.received(block_of(messages), now)
        answers = dict(outcomes_of(actions))
        stored: set[str] = set()
        for append in appends(actions):
            values = arrow_records(append.records)["value"].to_pylist()
            stored = {value.decode() for value in values if value is not None}
            batches = encode_records(append.records, append.base, append.leader_epoch)
            note = self.leader.opened.note
            group = GroupAppend(log, batches, now, note=note)
            group.write()
            log.writer.sync()
            note.appended(group.end, group.txid, group.size, append.places, len(batches))
            self.frames.append(b"".join(bytes(batch.frame) for batch in batches))
            self.machine.appended(log.log_end_offset)
        for name in names:
            offset, record = known.get(name, (-1, None))
            if record is None or self.is_forgotten(record):
                assert name in stored, f"{name} is new"
            elif self.is_known(record):
                assert name not in stored, f"{name} is at {offset} already"
            if name not in stored:
                is_committed = offset < self.machine.high_watermark
                assert answers.get(name) == (f"dup {offset}" if is_committed else None)
        self.records += [Stored(name, now) for name in names if name in stored]
        assert self.leader.end == len(self.records)

    def is_known(self, record: Stored) -> bool:
        if record.committed_at is None:
            event("fate unknown")
            return True
        is_late = record.committed_at - record.at > SOON_US
        return self.clock.now < (record.committed_at if is_late else record.at) + WINDOW_US

    def is_forgotten(self, record: Stored) -> bool:
        if record.known_at is None:
            return False
        return self.clock.now > max(record.at, record.known_at) + WINDOW_US + MORE_US


def outcomes_of(actions: Sequence[Action]) -> list[tuple[str, object]]:
    return [
        (answer.reply, f"dup {answer.body['offset']}" if answer.body.get("duplicate") else answer.body)
        for answer in published(actions)
    ]


FIRST, LATER = (["a"], 0), (["b"], 3 * WINDOW_US)


@settings(max_examples=examples(300))
@example([FIRST, LATER, "restart leader", FIRST])
@example([FIRST, LATER, "follow", "restart follower", "fail over", FIRST])
@example([FIRST, "follow", LATER, "commit", "hear", "note", "restart follower", "fail over", FIRST])
@given(st.lists(STEP, max_size=25))
def test_no_id_is_stored_twice_while_the_fate_of_its_record_is_unknown_or_within_a_window_of_its_commit(
    steps: list[str | tuple[list[str], int]],
) -> None:
    run = Run()
    for step in steps:
        if isinstance(step, str):
            run.do(step)
        else:
            run.publish(*step)

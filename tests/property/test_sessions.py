"""Sessions on a log that restarts, fails over and loses its beginning, against a list of what was stored."""

from dataclasses import dataclass, field
from datetime import timedelta

from hypothesis import event, given, settings
from hypothesis import strategies as st

from envelope.errors import DiskFull, SequenceGap, SequencePassed, SessionExpired
from envelope.types import LeaderEpoch, Offset, StreamName, TimestampUs
from jetstream.ingest.machine import (
    AppendRecords,
    StreamIngest,
)
from jetstream.log.format.batch import verified_batches
from jetstream.log.format.plain_batch_encoder import encode_records
from jetstream.node.disk.appends import GroupAppend
from jetstream.node.disk.log_upkeep import Upkeep
from jetstream.node.disk.open_log import OpenedLog, begin_reign, open_log
from jetstream.node.runtime.clock import SystemClock
from metadata.stream_config import StreamConfig
from tests.support.example_counts import examples
from tests.support.logs import DIRECTORY, NOW
from tests.support.memory_disk import MemoryDisk, nothing_survives
from tests.support.messages import Answer, PublishedMessage, appends, block_of, published

DEDUPE_US, SESSION_US = 30, 80
CONFIG = StreamConfig(
    name="orders",
    subject="orders.>",
    dedupe_window=timedelta(microseconds=DEDUPE_US),
    session_window=timedelta(microseconds=SESSION_US),
)


@dataclass(frozen=True)
class Sent:
    """A message; ``step`` is relative to its session's last, and so is ``back`` to it."""

    session: str
    step: int
    back: int | None


Block = tuple[list[Sent], int]
"""What is sent together, and how much later than what came before."""


@dataclass(frozen=True)
class Lost:
    """What is sent and is no part of the stream."""

    block: Block
    how: str


@dataclass(frozen=True)
class Stored:
    session: str
    sequence: int
    after: int | None
    offset: int
    at: int


SENT = st.builds(
    Sent,
    session=st.sampled_from(["p", "q"]),
    step=st.sampled_from([1, 1, 1, 1, 2, 0, -1, -2]),
    back=st.sampled_from([1, 1, 1, 2, None]),
)
BLOCK = st.tuples(st.lists(SENT, min_size=1, max_size=5), st.sampled_from([0, 1, 7, 40, 90]))
LOST = st.builds(Lost, BLOCK, st.sampled_from(["cut", "never appended"]))
STEP = st.one_of(
    BLOCK, BLOCK, LOST, st.sampled_from(["refuse", "restart", "fail over", "truncate", "lose power"])
)


@dataclass
class Model:
    """Everything that was ever stored."""

    records: list[Stored] = field(default_factory=list)
    readable_from: int = 0
    """What lies below was gone when the log was opened."""

    def life(self, session: str, now: int) -> list[Stored]:
        """The records of a session since it was last unknown; none if it is unknown now."""
        life: list[Stored] = []
        for record in (each for each in self.records if each.session == session):
            if life and record.at - life[-1].at >= SESSION_US:
                life = []
            if not life or record.sequence > life[-1].sequence:
                life.append(record)
        return life if life and now - life[-1].at < SESSION_US else []

    def verdict(self, session: str, sequence: int, after: int | None, now: int) -> str | Stored | None:
        """Return an error's number, the record that has the message, "stored", or None: store."""
        life = self.life(session, now)
        last = life[-1].sequence if life else 0
        if life and sequence <= last:
            same = [each for each in self.records if (each.session, each.sequence) == (session, sequence)]
            if same and now - same[-1].at < DEDUPE_US:
                return same[-1]
            places = [(each.sequence, each.after) for each in life]
            is_gapless = places == [(number, number - 1) for number in range(1, last + 1)]
            assert not is_gapless or same, "nobody is told that something is stored that never was"
            return "stored" if is_gapless else f"error {SequencePassed.ack_code}"
        if after is not None and after != last:
            return f"error {(SequenceGap if life else SessionExpired).ack_code}"
        return None


def _binds(stream: str, subject: str) -> bool:
    del stream, subject
    return True


class Run:
    """One log through its lives, with a machine upon it, and the model beside it."""

    def __init__(self) -> None:
        self.disk = MemoryDisk()
        self.model = Model()
        self.now, self.epoch = int(NOW), 0
        self.frames: list[bytes] = []
        self.refuses = self.is_hung = False
        self.opened = open_log(self.disk, DIRECTORY, CONFIG, NOW, "tail")
        self.lead()

    def lead(self) -> None:
        self.epoch += 1
        begin_reign(self.opened, LeaderEpoch(self.epoch), TimestampUs(self.now))
        end = self.opened.log.log_end_offset
        self.opened.history.high_watermark = end
        self.opened.history.dedupe.fates.hold_from(end)  # all was committed as soon as it was stored
        self.opened.history.expire(self.opened.history.last_timestamp)
        self.machine = StreamIngest(
            stream=StreamName("orders"),
            config=CONFIG,
            leader_epoch=LeaderEpoch(self.epoch),
            log_end_offset=end,
            history=self.opened.history,
            binds=_binds,
        )

    def reopen(self, disk: MemoryDisk) -> None:
        self.disk = disk
        self.opened = open_log(disk, DIRECTORY, CONFIG, TimestampUs(self.now), "tail")
        self.model.readable_from = self.opened.log.log_start_offset
        self.lead()

    def do(self, step: str) -> None:
        event(step)
        log = self.opened.log
        if step == "refuse":
            self.refuses = True
        elif step == "restart":
            log.close()
            self.reopen(self.disk)
        elif step == "lose power":
            self.reopen(self.disk.power_loss(nothing_survives))
        elif step == "truncate":
            end = log.log_end_offset
            Upkeep(log, SystemClock(), lambda: end, lambda: self.opened.note).truncate_before(end)
        else:
            self.fail_over(log.log_end_offset)

    def lose(self, lost: Lost) -> None:
        """Let another one lead that had something of it, or this one in a new reign."""
        event(f"lost: {lost.how}")
        records, frames = list(self.model.records), len(self.frames)
        end, self.is_hung = self.opened.log.log_end_offset, lost.how == "never appended"
        self.block(*lost.block)
        self.model.records = records
        if self.is_hung:
            self.refuses = self.is_hung = False
            self.opened.settle()
            self.lead()
        else:
            self.fail_over(end)
            del self.frames[frames:]

    def fail_over(self, end: Offset) -> None:
        """Let a follower lead that has appended the same batches, and was there from the beginning.

        What lies at ``end`` and after was never committed.
        """
        self.disk = MemoryDisk()
        follower: OpenedLog = open_log(self.disk, DIRECTORY, CONFIG, NOW, "tail")
        for frame in self.frames:
            batches = verified_batches(frame)
            follower.log.writer.append_sealed(batches, NOW)
            follower.replay_batches(batches)
        follower.log.writer.sync()
        last_timestamp = follower.log.reader.last_timestamp
        follower.log.truncate_to(end)
        reads = [call for call in self.disk.trace if call.startswith("read")]
        follower.settle()
        self.opened = follower
        self.model.readable_from = 0
        self.lead()
        if follower.log.reader.last_timestamp == last_timestamp:  # otherwise the window was too much shorter
            assert [call for call in self.disk.trace if call.startswith("read")] == reads, (
                "nothing is rebuilt"
            )

    def block(self, sent: list[Sent], later: int) -> None:
        self.now += later
        stored_before = list(self.model.records)
        messages: list[PublishedMessage] = []
        expected: list[tuple[Stored | str, bool]] = []
        for number, each in enumerate(sent):
            life = self.model.life(each.session, self.now)
            sequence = max(1, (life[-1].sequence if life else 0) + each.step)
            after = None if each.back is None else max(0, sequence - each.back)
            headers = [("Jetstream-Session", each.session), ("Jetstream-Sequence", str(sequence))]
            if after is not None:
                headers.append(("Jetstream-Sequence-After", str(after)))
            messages.append(PublishedMessage(b"v", reply=b"r%d" % number, headers=tuple(headers)))
            verdict = self.model.verdict(each.session, sequence, after, self.now)
            if verdict is None:
                end = len(self.model.records)
                self.model.records.append(Stored(each.session, sequence, after, end, self.now))
                verdict = self.model.records[-1]
                expected.append((verdict, False))
            else:
                expected.append((verdict, True))
        actions = self.machine.received(block_of(messages), TimestampUs(self.now))
        answers = published(actions)
        if self.is_hung:
            return
        for append in appends(actions):
            answers += self.append(append)
        told = {answer.reply: answer for answer in answers}
        if self.refuses and len(self.model.records) > len(stored_before):
            refused_from: int | None = len(stored_before)
            self.model.records = stored_before
            self.refuses = False
        else:
            refused_from = None
        for number, (verdict, is_repeat) in enumerate(expected):
            self.check(told.get(f"r{number}"), verdict, is_repeat, refused_from)

    def check(
        self, answer: Answer | None, verdict: Stored | str, is_repeat: bool, refused_from: int | None
    ) -> None:
        """Hold one answer against the verdict; records from ``refused_from`` on were refused by the disk."""
        if answer is None:
            # A repeat without an offset that waited for a later record of its session, which was refused.
            assert refused_from is not None
            assert is_repeat
        elif isinstance(verdict, Stored) and refused_from is not None and verdict.offset >= refused_from:
            assert answer.error_code == DiskFull.ack_code
        elif isinstance(verdict, Stored) and answer.error_code == SequencePassed.ack_code:
            # Its record is gone, and only of sessions without gaps it is known that it was there.
            assert verdict.offset < self.model.readable_from
            assert any(
                each.session == verdict.session and each.after != each.sequence - 1
                for each in self.model.records
            )
        elif isinstance(verdict, Stored):
            assert (answer.error_code, answer.body.get("duplicate", False)) == (None, is_repeat)
            offsets: list[int | None] = [verdict.offset]
            if is_repeat and verdict.offset < self.model.readable_from:
                offsets.append(None)
            assert answer.body.get("offset") in offsets
        elif verdict == "stored":
            assert (answer.body["seq"], answer.body["duplicate"]) == (0, True)
        else:
            assert f"error {answer.error_code}" == verdict

    def append(self, append: AppendRecords) -> list[Answer]:
        machine, log, now = self.machine, self.opened.log, TimestampUs(self.now)
        if self.refuses:
            return published(machine.append_refused(DiskFull("full")))
        batches = encode_records(append.records, append.base, append.leader_epoch)
        group = GroupAppend(log, batches, now)
        group.write()
        log.writer.sync()
        self.frames.append(b"".join(bytes(batch.frame) for batch in batches))
        self.opened.note.appended(group.end, group.txid, group.size, append.places, len(batches))
        answers = published(machine.appended(log.log_end_offset))
        return answers + published(machine.committed(Offset(log.log_end_offset), now))


@settings(max_examples=examples(300))
@given(st.lists(STEP, max_size=25))
def test_a_session_is_what_the_list_says(steps: list[str | Lost | Block]) -> None:
    run = Run()
    for step in steps:
        match step:
            case str():
                run.do(step)
            case Lost():
                run.lose(step)
            case (sent, later):
                run.block(sent, later)
    assert run.opened.log.log_end_offset == len(run.model.records)

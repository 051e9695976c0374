"""Mirrors that are killed, started twice and overtaken, against the publish machine that a node has."""

from dataclasses import dataclass

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from envelope.envelopes import encode_batch
from envelope.errors import OffsetsApart
from envelope.types import Offset, TimestampUs
from jetstream.client.admin.group_lag import CommittedRange
from jetstream.client.mirror.mirrored_rows import check_witness, last_record, mirrored
from jetstream.client.mirror.positions import (
    MirrorStart,
    Origin,
    Resumption,
    TargetState,
    check_dense,
    resumed,
)
from jetstream.client.publish.batch_envelopes import arrow_pieces
from jetstream.ingest.publishers.sessions import WINDOW_US_DEFAULT
from tests.support.example_counts import examples
from tests.support.ingest_machine import IngestHarness
from tests.support.logs import Record, records_batch
from tests.support.messages import PublishedMessage, message

ORIGIN = Origin("orders", "life-1", "life-2")
RECORDS = 40
SOURCE = records_batch(
    [Record(b"%d" % number, f"orders.{number // 3 % 2}", timestamp=number) for number in range(RECORDS)]
)


@dataclass
class Process:
    """One mirror: what it believes, and what it has sent."""

    resumption: Resumption
    position: int
    after: int


class World:
    """A target, the mirrors that were ever started, and what they sent, which may come late, or again."""

    def __init__(self, foreign: int) -> None:
        self.target = IngestHarness()
        self.is_known = False
        for number in range(foreign):
            self.target.store(message(b"foreign %d" % number))
        self.foreign = foreign
        self.source_end = 0
        self.begun: MirrorStart | None = None
        self.processes: list[Process] = []
        self.sent: list[PublishedMessage] = []
        self.delivered = 0
        self.strangers = 0

    def forget_session(self) -> None:
        """Nobody publishes for so long that the target forgets the session."""
        self.target.now = TimestampUs(self.target.now + WINDOW_US_DEFAULT)
        self.is_known = False

    def deliver(self, sent: PublishedMessage) -> None:
        """What a mirror has sent comes to the target."""
        before = self.target.log_end
        self.target.store(sent)
        self.is_known = self.is_known or self.target.log_end > before

    @property
    def stored(self) -> pa.Table:
        return pa.Table.from_batches(self.target.stored, SOURCE.schema)

    def start(self) -> None:
        """A mirror begins; those before it go on, as if they had never been told to end."""
        stored = self.stored
        last = stored.slice(stored.num_rows - 1).combine_chunks().to_batches() if stored.num_rows else []
        state = TargetState(stored.num_rows, last_record(last[0]) if last else None, self.begun)
        found = resumed(ORIGIN, CommittedRange(Offset(0), Offset(self.source_end), "life-1"), state)
        if found.witness < found.position:
            check_witness(SOURCE.slice(found.witness, 1), last[0])
        self.begun = found.start
        self.processes.append(Process(found, found.position, found.after))

    @property
    def last_sequence(self) -> int:
        """The last number of the session in the target."""
        stored = self.stored
        rows = [
            last_record(stored.slice(row, 1).combine_chunks().to_batches()[0]) for row in range(len(stored))
        ]
        return max((row.sequence or 0 for row in rows), default=0)

    def send(self, process: Process, count: int, named: str = "believed") -> None:
        """A mirror sends its next envelope.

        The first one names nothing as the one before it, or what the target has told; the others name the one
        that was sent before.
        """
        rows = SOURCE.slice(process.position, min(count, self.source_end - process.position))
        if not rows.num_rows:
            return
        check_dense(rows, process.position)
        subject, piece = next(iter(mirrored(rows)))
        end = process.position + piece.num_rows
        is_first = process.position == process.resumption.position
        after = {"believed": process.after, "none": 0, "told": self.last_sequence}[named]
        after = after if is_first else process.after
        self.sent.append(
            message(
                encode_batch(
                    arrow_pieces(pa.RecordBatch.from_struct_array(piece.to_struct_array())), piece.num_rows
                ),
                reply="r",
                subject=subject,
                Jetstream_Session=ORIGIN.session,
                Jetstream_Sequence=str(end),
                Jetstream_Sequence_After=str(after),
                Nats_Expected_Stream="orders",
                Nats_Expected_Last_Sequence=str(process.position + process.resumption.start.difference),
            )
        )
        process.position = process.after = end

    def do(self, step: str, number: int) -> None:
        """One step of the world's; ``number`` chooses of whom, and how much."""
        if step == "grow":
            self.source_end = min(RECORDS, self.source_end + number)
        elif step == "start":
            self.start()
        elif step == "forget":
            self.forget_session()
        elif step == "send":
            process = self.processes[number % len(self.processes)]
            self.send(process, 1 + number % 5, NAMED[number // 7 % 3])
        elif step == "deliver" and self.sent:
            self.deliver(self.sent[number % len(self.sent)])
        elif step == "deliver next" and self.delivered < len(self.sent):
            self.deliver(self.sent[self.delivered])
            self.delivered += 1

    def check(self) -> None:
        """What is stored is a beginning of the source, behind what was there before."""
        stored = self.stored.slice(self.foreign)
        for name in ("subject", "value"):
            copies = stored.column(name).to_pylist()
            copies = copies[: len(copies) - self.strangers]
            assert copies == SOURCE.column(name).to_pylist()[: len(copies)]


NAMED = ("believed", "none", "told")

STEP = st.one_of(
    st.tuples(st.just("grow"), st.integers(1, 9)),
    st.tuples(st.just("start"), st.just(0)),
    st.tuples(st.just("forget"), st.just(0)),
    st.tuples(st.just("send"), st.integers(0, 1 << 10)),
    st.tuples(st.just("send"), st.integers(0, 1 << 10)),
    st.tuples(st.just("deliver"), st.integers(0, 1 << 10)),
    st.tuples(st.just("deliver next"), st.just(0)),
    st.tuples(st.just("deliver next"), st.just(0)),
)


@given(st.integers(0, 2), st.lists(STEP, max_size=60))
@settings(max_examples=examples(300))
def test_random_kills_neither_lose_nor_double_a_record(foreign: int, steps: list[tuple[str, int]]) -> None:
    world = World(foreign)
    for step, number in [("grow", 5), ("start", 0), *steps]:
        world.do(step, number)
        world.check()
    world.source_end = RECORDS
    world.start()
    last = world.processes[-1]
    while last.position < RECORDS:
        world.send(last, 4, "told" if world.is_known else "none")
        world.deliver(world.sent[-1])
    world.check()
    assert world.stored.num_rows == foreign + RECORDS


@given(st.lists(STEP.filter(lambda step: step[0] != "start"), max_size=30))
@settings(max_examples=examples(100))
def test_no_mirror_goes_on_behind_records_of_others(steps: list[tuple[str, int]]) -> None:
    world = World(0)
    world.source_end = 20
    world.start()
    world.send(world.processes[0], 2)
    world.deliver(world.sent[0])
    world.target.store(message(b"of somebody else"))
    world.strangers = 1
    for step, number in steps:
        world.do(step, number)
        world.check()
        assert world.stored.num_rows == 3
    with pytest.raises(OffsetsApart):
        world.start()

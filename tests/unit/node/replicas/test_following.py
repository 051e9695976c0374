"""What a follower does to its log when its leader says that it is no beginning of its own."""

import asyncio

import pytest

from envelope.headers import MESSAGE_ID, SEQUENCE, SEQUENCE_AFTER, SESSION
from envelope.types import LeaderEpoch, Offset, TimestampUs
from jetstream.log.format.batch import BatchFlags, encode, verified_batches
from jetstream.node.disk.history_file import read_note
from jetstream.node.disk.log_upkeep import Upkeep
from jetstream.node.disk.open_log import begin_reign
from jetstream.node.replicas.followed_stream import FollowingStream
from jetstream.replica.wire import Answer, BatchesMessage, DivergingMessage, StartOverMessage
from tests.support.copy_acks import EPOCH, Replica, replica
from tests.support.ingest_machine import IngestHarness
from tests.support.logs import Record, append, records_batch
from tests.support.messages import message
from tests.support.replica_cluster import A, B
from tests.support.sockets import until


def lead_alone(own: Replica, session: bytes) -> None:
    """Let it lead epoch 1, and have a record that no other replica gets, and of which a note is written."""
    opened, now = own.parts.opened, own.services.clock.wall()
    begin_reign(opened, LeaderEpoch(1), now)
    headers = [(SESSION, session), (SEQUENCE, b"1"), (SEQUENCE_AFTER, b"0")]
    record = Record(headers=headers, timestamp=now)
    batch = encode(records_batch([record]), Offset(0), LeaderEpoch(1))
    opened.log.writer.append_group((batch,), now)
    opened.log.writer.sync()
    opened.replay_batches(verified_batches(bytes(batch.frame)))
    opened.note.write_before_removal(opened.log)


async def copy_one(own: Replica, following: FollowingStream, offset: Offset, now: TimestampUs) -> None:
    """Give it one record at ``offset``, which is committed."""
    await until(lambda: own.said.fetches[-1].log_end == offset)
    batch = encode(records_batch([Record(timestamp=now)], offset), offset, EPOCH)
    data, end = bytes(batch.seal(BatchFlags(0))), Offset(offset + 1)
    answer = BatchesMessage(
        leader_epoch=EPOCH,
        last_epoch=LeaderEpoch(0),
        base=offset,
        next=end,
        high_watermark=end,
        log_start_offset=offset,
        purged_end=Offset(0),
        epochs=((EPOCH, offset),),
        body_bytes=len(data),
        body=data,
    )
    following.answered(A, answer)
    await until(lambda: own.parts.log.writer.durable_end == end)


def test_what_was_never_committed_is_not_answered_for_once_the_log_began_anew() -> None:
    async def test() -> None:
        async with replica(B) as own:
            opened, now = own.parts.opened, own.services.clock.wall()
            lead_alone(own, b"p")
            assert [session for session, _ in read_note(own.disk, opened.log.directory).sessions] == [b"p"]
            # The leader never had that record, knows of no session and no txid, and begins at 50 by now.
            following, fifty = own.follow(), Offset(50)
            following.answered(A, StartOverMessage(EPOCH, LeaderEpoch(1), Offset(1), fifty, b""))
            await until(lambda: opened.log.log_start_offset == 50)
            await copy_one(own, following, fifty, TimestampUs(now + 1))
            following.follow(None, EPOCH)
            await following.settled()
            begin_reign(opened, LeaderEpoch(4), now)
            opened.history.high_watermark = Offset(51)
            stream = IngestHarness(log_end_offset=51, history=opened.history)
            stream.now = now
            place = {"Jetstream_Session": "p", "Jetstream_Sequence": "1", "Jetstream_Sequence_After": "0"}
            assert stream.receive(message(b"v", "r", **place)) == []
            assert stream.in_flight == [b"v"], "it is stored"

    asyncio.run(test())


@pytest.mark.parametrize(
    ("answer", "end"),
    [
        (DivergingMessage(EPOCH, LeaderEpoch(2), Offset(2), LeaderEpoch(1), Offset(1)), 1),
        (StartOverMessage(EPOCH, LeaderEpoch(2), Offset(2), Offset(9), b""), 9),
    ],
)
def test_a_log_for_whose_cut_there_is_no_space_is_cut_once_there_is(answer: Answer, end: int) -> None:
    async def test() -> None:
        async with replica(B) as own:
            log, now = own.parts.log, own.services.clock.wall()
            for epoch in (1, 2):
                log.writer.begin_epoch(LeaderEpoch(epoch), now)
                append(log, [b"%d" % epoch], now)
            log.writer.sync()
            following = own.follow()
            own.disk.capacity_bytes = 0
            following.answered(A, answer)
            await following.settled()
            assert (following.failed, log.failed, log.log_end_offset) == (None, None, 2), "nothing was cut"
            own.disk.capacity_bytes = None
            following.connected()
            assert own.said.fetches[-1].log_end == 2, "so the same is said again"
            following.answered(A, answer)
            await until(lambda: own.said.fetches[-1].log_end == end)
            assert log.log_end_offset == end

    asyncio.run(test())


def test_the_id_of_a_record_that_was_cut_is_not_remembered() -> None:
    """Whoever publishes it again would be acked, and it would be stored nowhere."""

    async def test() -> None:
        async with replica(B) as own:
            opened, now = own.parts.opened, own.services.clock.wall()
            for offset, headers in enumerate((None, [(MESSAGE_ID, b"a")])):
                epoch, base = LeaderEpoch(offset + 1), Offset(offset)
                begin_reign(opened, epoch, now)
                batch = encode(records_batch([Record(headers=headers, timestamp=now)], base), base, epoch)
                opened.log.writer.append_group((batch,), now)
                opened.log.writer.sync()
                opened.replay_batches(verified_batches(bytes(batch.frame)))
            assert opened.history.dedupe.lookup(b"a") == 1
            following = own.follow()
            following.answered(
                A, DivergingMessage(EPOCH, LeaderEpoch(2), Offset(2), LeaderEpoch(1), Offset(1))
            )
            await until(lambda: own.said.fetches[-1].log_end == 1)
            assert (opened.history.dedupe.lookup(b"a"), opened.history.end) == (None, 1)

    asyncio.run(test())


def test_a_truncation_for_which_there_is_no_space_waits_for_the_next_answer() -> None:
    async def test() -> None:
        async with replica(B) as own:
            log, now = own.parts.log, own.services.clock.wall()
            log.writer.begin_epoch(EPOCH, now)
            append(log, [b"0", b"1"], now)
            log.writer.sync()
            following = own.follow()
            own.parts.upkeep = Upkeep(log, own.services.clock, lambda: following.high_watermark)
            one, two = Offset(1), Offset(2)
            answer = BatchesMessage(EPOCH, EPOCH, two, two, two, log_start_offset=one)
            for capacity_bytes, log_start_offset in ((0, 0), (None, 1)):
                own.disk.capacity_bytes = capacity_bytes
                following.answered(A, answer)
                await own.services.disk.call(lambda: None)  # behind the truncation
                assert (following.failed, log.failed, log.log_start_offset) == (
                    None,
                    None,
                    log_start_offset,
                )

    asyncio.run(test())

"""A record counts as a copy when it is synced: on the leader, on a follower, and not a moment before.

The leader's and the follower's own shells run on a disk that holds its syncs; what they say to their peers
and to publishers is kept.
"""

import asyncio
from dataclasses import replace

import pytest

from envelope.errors import NotEnoughReplicas
from envelope.types import LeaderEpoch, MonotonicNs, NodeId, Offset
from jetstream.ingest.internal_writes import InternalWriteCommitted, Outcome
from jetstream.ingest.publishers.history import TxidMark
from jetstream.node.disk.history_file import LastTxid, PublisherState, encode_note, read_note
from jetstream.node.replicas.internal_write_path import InternalAppendPath
from jetstream.node.replicas.led_stream import LeadingStream
from jetstream.replica.leader_events import ReplicasChanged
from jetstream.replica.wire import BatchesMessage, FetchMessage
from metadata.stream_config import StreamConfig
from tests.support.copy_acks import EPOCH, START, Replica, replica
from tests.support.messages import block_of, message
from tests.support.replica_cluster import A, B, C
from tests.support.sockets import until

LAST = TxidMark(EPOCH, Offset(0), 7)
REFUSED = f"error {NotEnoughReplicas.ack_code}"


def fetch(
    leading: LeadingStream, follower: NodeId, log_end: int, synced_end: int, last_epoch: LeaderEpoch = EPOCH
) -> None:
    """Let a fetch of a follower arrive."""
    message = FetchMessage(
        node_epoch=START,
        leader_epoch=EPOCH,
        last_epoch=last_epoch,
        log_end=Offset(log_end),
        synced_end=Offset(synced_end),
        high_watermark=Offset(0),
        asks=True,
    )
    leading.driver.fetched(follower, message)


def wait_for_more(own: Replica, leading: LeadingStream, follower: NodeId) -> None:
    """Let a follower have all there is, which is nothing, and ask for the next."""
    fetch(leading, follower, 0, 0, LeaderEpoch(0))
    own.said.answers.clear()  # where the log begins
    fetch(leading, follower, 0, 0, LeaderEpoch(0))
    assert own.said.answers == []


def test_what_the_leader_writes_itself_is_told_when_followers_have_it_and_its_end_waits_for_none() -> None:
    async def test() -> None:
        shard = StreamConfig(name="__cursors/1", subject="cursors.groups.1", replicas=3)
        async with replica(A, shard) as own:
            leading = own.lead()
            for follower in (B, C):
                wait_for_more(own, leading, follower)
            path = leading.path
            assert isinstance(path, InternalAppendPath)
            told: list[Outcome] = []
            path.settled = told.append
            path.write(1, [(b"key", b"value")])
            await until(lambda: own.parts.log.writer.synced_end == 1)
            path.write(2, [(b"key", b"other")])
            assert (told, path.waiting, path.pending_acks) == ([], 1, 1)
            await leading.drained()
            assert own.parts.log.log_end_offset == 2
            assert told == []
            for follower in (B, C):
                fetch(leading, follower, 2, 2)
            assert [(type(outcome), outcome.number) for outcome in told] == [
                (InternalWriteCommitted, 1),
                (InternalWriteCommitted, 2),
            ]

    asyncio.run(test())


def test_a_record_is_acked_when_the_leader_too_has_synced_it() -> None:
    async def test() -> None:
        async with replica(A) as own:
            leading = own.lead()
            for follower in (B, C):
                wait_for_more(own, leading, follower)
            own.disk.let_go.clear()
            leading.deliver(block_of([message(b"value", "reply")]))
            await until(lambda: len(own.said.answers) == 2)  # on their way while the leader syncs
            for follower in (B, C):
                fetch(leading, follower, 1, 1)
            await until(lambda: own.disk.is_held)
            assert (own.heard, leading.high_watermark) == ({}, 0), "only two of three have it on disk"
            own.disk.let_go.set()
            await until(lambda: own.heard == {"reply": 0})
            assert leading.high_watermark == 1

    asyncio.run(test())


@pytest.mark.parametrize("late", [B, C])
def test_a_record_is_acked_when_every_follower_in_sync_has_synced_it(late: NodeId) -> None:
    async def test() -> None:
        async with replica(A) as own:
            leading = own.lead()
            for follower in (B, C):
                wait_for_more(own, leading, follower)
            leading.deliver(block_of([message(b"value", "reply")]))
            await until(lambda: len(own.said.answers) == 2)
            await leading.drained()
            for follower in (B, C):
                fetch(leading, follower, 1, 0 if follower == late else 1)
            assert (own.heard, leading.high_watermark) == ({}, 0), "one of three has it in memory only"
            fetch(leading, late, 1, 1)
            assert own.heard == {"reply": 0}

    asyncio.run(test())


def test_a_message_is_refused_while_too_few_replicas_are_in_sync() -> None:
    async def test() -> None:
        async with replica(A) as own:
            leading = own.lead()
            leading.driver.handle(ReplicasChanged((A, B, C), (A,), 2))
            leading.deliver(block_of([message(b"value", "early")]))
            await until(lambda: own.heard == {"early": REFUSED})
            leading.driver.handle(ReplicasChanged((A, B, C), (A, B), 3))
            wait_for_more(own, leading, B)
            leading.deliver(block_of([message(b"value", "late")]))
            await until(lambda: bool(own.said.answers))
            fetch(leading, B, 1, 1)
            await until(lambda: own.heard == {"early": REFUSED, "late": 0})

    asyncio.run(test())


def test_a_follower_acknowledges_what_it_has_synced() -> None:
    async def test() -> None:
        async with replica(A) as leader, replica(B) as own:
            leading = leader.lead()
            wait_for_more(leader, leading, B)
            leading.deliver(block_of([message(b"value", "reply")]))
            await until(lambda: bool(leader.said.answers))
            [(_, answer, body)] = leader.said.answers
            assert isinstance(answer, BatchesMessage)
            assert isinstance(body, memoryview)
            following = own.follow()
            assert [(ask.log_end, ask.synced_end) for ask in own.said.fetches] == [(0, 0)]
            own.disk.let_go.clear()
            following.answered(A, replace(answer, body=bytes(body)))
            await until(lambda: own.disk.is_held)
            await asyncio.sleep(0)  # what was told before the sync is done
            assert own.parts.log.log_end_offset == 1, "it is written"
            assert {ask.synced_end for ask in own.said.fetches} == {0}
            own.disk.let_go.set()
            await until(lambda: own.said.fetches[-1].synced_end == 1)
            assert own.parts.log.reader.read(Offset(0), 1, Offset(1)) == bytes(body)

    asyncio.run(test())


def test_a_follower_asks_again_when_it_has_a_note_without_batches_on_disk() -> None:
    async def test() -> None:
        async with replica(B) as own:
            following, opened = own.follow(), own.parts.opened
            nothing, note = Offset(0), encode_note(PublisherState(LastTxid(Offset(0), LAST), ()))
            answer = BatchesMessage(
                leader_epoch=EPOCH,
                last_epoch=LeaderEpoch(0),
                base=nothing,
                next=nothing,
                high_watermark=nothing,
                log_start_offset=nothing,
                purged_end=nothing,
                note=note,
            )
            following.answered(A, answer)
            assert len(own.said.fetches) == 1
            await until(lambda: len(own.said.fetches) == 2)
            assert read_note(own.disk, opened.log.directory).last.txid == opened.history.txid == LAST

    asyncio.run(test())


def test_who_has_no_lease_neither_acks_nor_refuses() -> None:
    async def test() -> None:
        async with replica(A) as own:
            leading = own.lead()
            for follower in (B, C):
                wait_for_more(own, leading, follower)
            refused = message(b"value", "refused", Nats_Expected_Stream="another")
            leading.deliver(block_of([refused]))
            await leading.drained()
            assert list(own.heard) == ["refused"]
            own.heard.clear()
            own.services.cluster.lease.until = MonotonicNs(0)
            leading.deliver(block_of([refused, message(b"value", "acked")]))
            await leading.drained()
            for follower in (B, C):
                fetch(leading, follower, 1, 1)
            assert own.heard == {}
            assert own.parts.counts["acks_dropped"] == 1

    asyncio.run(test())

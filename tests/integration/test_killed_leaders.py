"""Leaders that are killed in the middle of something: what was acked, or answered, holds on the next one."""

import asyncio
import struct
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager

import pyarrow as pa
import pytest

import jetstream
from envelope.errors import OffsetOutOfRange, StreamReadOnly, UnavailableError
from jetstream.client.publish.batch_envelopes import batch_rows, envelopes
from tests.support.cluster_scene import ClusterScene, three_nodes
from tests.support.compacting_nodes import CONFIG, is_compacting, latest, published, until_compacted
from tests.support.keyed_streams import KeyedPublisher, check_session, publish_in_session
from tests.support.node_cluster import asked
from tests.support.nodes import WAIT_SECONDS, run
from tests.support.pauses import pause
from tests.support.publishers import Witness

ENVELOPES = 60
RECORDS = 15
"""In each envelope."""
_NUMBER = struct.Struct("<II")
PURGED = "jetstream_stream_purged_offset"


@pytest.fixture(scope="module")
def scene(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ClusterScene]:
    with three_nodes(tmp_path_factory.mktemp("killed"), maintenance_interval='"PT0.05S"') as scene:
        yield scene


def envelope(number: int) -> bytes:
    """A batch envelope of records that tell of which it is, and which of its records."""
    table = pa.table({"value": [_NUMBER.pack(number, row) for row in range(RECORDS)]})
    [filled] = envelopes(batch_rows(table), "x", 1 << 20, compress=False, message_id=None)
    return filled.payload


@asynccontextmanager
async def led(
    scene: ClusterScene, js: jetstream.JetstreamClient, stream: str, **config: object
) -> AsyncIterator[str]:
    """A stream on all nodes; yields who leads it. Afterwards that is another, and all are in sync again."""
    await js.streams.create(stream, f"{stream}.>", replicas=3, **config)
    leader = str((await scene.cluster.until_whole(js.nats, stream))["leader"])
    yield leader
    await scene.cluster.until_taken_over(js.nats, stream, leader)
    scene.cluster[leader].start()
    await scene.cluster.until_whole(js.nats, stream)


async def stored(js: jetstream.JetstreamClient, stream: str) -> list[tuple[int, int]]:
    """Which record of which envelope is at each offset."""
    return [_NUMBER.unpack(record.value or b"") async for record in js.read(stream)]


def test_batch_envelopes_are_stored_whole_and_once_and_those_of_a_session_in_order(
    scene: ClusterScene,
) -> None:
    async def test() -> None:
        async with scene.client() as js, led(scene, js, "whole") as leader:
            witness = Witness("whole.x", scene.url, payload=envelope)
            await witness.open()
            async with js.session(stream="whole", window=20, timeout_s=0.5) as session:
                futures = []
                for number in range(ENVELOPES, 2 * ENVELOPES):
                    futures.append(await session.publish("whole.x", envelope(number)))
                    await witness.publish(1)
                    if number == ENVELOPES + ENVELOPES // 2:
                        scene.cluster[leader].kill()
                acks = [await future for future in futures]
            await witness.retry_until_acked()
            found = await stored(js, "whole")
            assert sorted(found) == [
                (number, row) for number in range(2 * ENVELOPES) for row in range(RECORDS)
            ]
            ends = witness.acked | {number: ack.offset or 0 for number, ack in enumerate(acks, ENVELOPES)}
            for number, last in ends.items():
                assert found[last + 1 - RECORDS : last + 1] == [(number, row) for row in range(RECORDS)]
            of_session = [number for number, _ in found if number >= ENVELOPES]
            assert of_session == sorted(of_session)
            assert witness.contradictions == []
            await witness.close()

    run(test())


async def until_start(scene: ClusterScene, stream: str, offset: int) -> None:
    """Wait until the logs of all replicas begin there."""
    async with asyncio.timeout(WAIT_SECONDS):
        for node in "abc":
            metric = "jetstream_stream_log_start_offset"
            while await asyncio.to_thread(scene.metric, node, metric, stream) != offset:
                await pause()


@pytest.mark.slow(
    "tests/simulation/test_replica_seeds.py",
    "tests/crash/test_follower.py",
    "tests/integration/test_killed_leaders.py::test_a_session_goes_on_at_the_next_leader_though_its_records_are_gone",
)
def test_a_truncation_goes_on_at_the_next_leader(scene: ClusterScene) -> None:
    async def test() -> None:
        async with scene.client() as js, led(scene, js, "cut", segment_bytes=64 * 1024) as leader:
            for start in range(0, 300, 30):
                await published(js, "cut", range(start, start + 30))
            await js.streams.truncate("cut", before=50)
            await until_start(scene, "cut", 50)
            answered = 50
            for before in range(51, 250):
                answer = await asked(js.nats, "stream.truncate", name="cut", before=before)
                if "log_start_offset" not in answer:
                    break  # its leader is dead
                answered = answer["log_start_offset"]
                if before == 100:
                    scene.cluster[leader].kill()
            assert answered >= 100
            await scene.cluster.until_taken_over(js.nats, "cut", leader)
            assert (await js.streams.info("cut")).log_start_offset >= 50, "what all had removed stays so"
            async with asyncio.timeout(WAIT_SECONDS):
                while True:
                    try:
                        done = await js.streams.truncate("cut", before=answered)
                        break
                    except UnavailableError:
                        continue
            assert done.log_start_offset == answered, "it is idempotent, and nothing more has gone"
            with pytest.raises(OffsetOutOfRange) as raised:
                await anext(js.read("cut", start=answered - 1))
            assert raised.value.detail["log_start_offset"] == answered
            left = [record.offset async for record in js.read("cut")]
            assert left == list(range(answered, 300))

    run(test())


@pytest.mark.slow(
    "tests/simulation/test_replica_seeds.py",
    "tests/crash/test_follower.py",
    "tests/integration/test_killed_leaders.py::test_a_session_goes_on_at_the_next_leader_though_its_records_are_gone",
)
def test_compaction_goes_on_at_the_next_leader(scene: ClusterScene) -> None:
    async def test() -> None:
        async with scene.client() as js, led(scene, js, "compacted", **CONFIG) as leader:
            incarnation = (await scene.cluster.info(js.nats, "compacted"))["incarnation"]
            [directory] = scene.files(leader, incarnation)
            expected: dict[bytes, bytes] = {}
            for turn in range(40):
                numbers = range(turn * 400, turn * 400 + 400)
                await published(js, "compacted", numbers, keys=50)
                expected |= {b"k%d" % (number % 50): b"%d " % number + b"x" * 1000 for number in numbers}
                if turn >= 3 and is_compacting(directory):
                    break
            else:
                raise AssertionError("it was never seen to compact")
            scene.cluster[leader].kill()
            await scene.cluster.until_taken_over(js.nats, "compacted", leader)
            assert latest([record async for record in js.read("compacted")]) == expected
            scene.cluster[leader].start()
            await scene.cluster.until_whole(js.nats, "compacted")
            await until_compacted(scene, "compacted", "abc", cleaned=1000)
            assert latest([record async for record in js.read("compacted")]) == expected
            scene.cluster[leader].kill()

    run(test())


@pytest.mark.slow(
    "tests/simulation/test_replica_seeds.py",
    "tests/crash/test_follower.py",
    "tests/integration/test_killed_leaders.py::test_a_session_goes_on_at_the_next_leader_though_its_records_are_gone",
)
def test_tables_of_a_compacted_stream_are_what_was_acked_when_its_leader_has_died(
    scene: ClusterScene,
) -> None:
    async def test() -> None:
        async with scene.client() as js, led(scene, js, "tables", **CONFIG) as leader:
            [directory] = scene.files(leader, (await scene.cluster.info(js.nats, "tables"))["incarnation"])
            publisher = KeyedPublisher(js, "tables", keys=50)
            async with js.table("tables", retry_s=0.1) as table:
                for turn in range(100):
                    for _ in range(8):
                        await publisher.turn()
                    if turn >= 2 and is_compacting(directory):
                        break
                else:
                    raise AssertionError("it was never seen to compact")
                scene.cluster[leader].kill()
                for _ in range(8):
                    await publisher.turn()
                await publisher.check(table)
                next_leader = (await scene.cluster.info(js.nats, "tables"))["leader"]
                before = await asyncio.to_thread(scene.metric, next_leader, PURGED, "tables")
                scene.cluster[leader].start()
                await scene.cluster.until_whole(js.nats, "tables")
                while await asyncio.to_thread(scene.metric, next_leader, PURGED, "tables") <= before:
                    await publisher.turn()
                await publisher.check(table)
                await publisher.check_command(scene.url)
            scene.cluster[leader].kill()

    run(test())


def test_a_session_goes_on_at_the_next_leader_though_its_records_are_gone(scene: ClusterScene) -> None:
    async def test() -> None:
        async with scene.client() as js, led(scene, js, "sessions", **CONFIG) as leader:
            await publish_in_session(js, "sessions", 30)
            for start in range(0, 400, 100):
                await published(js, "sessions", range(start, start + 100))
            await until_compacted(scene, "sessions", "abc", cleaned=100)
            scene.cluster[leader].kill()
            await scene.cluster.until_taken_over(js.nats, "sessions", leader)
            await check_session(js, "sessions", 30)

    run(test())


@pytest.mark.slow("tests/integration/test_read_only.py")
def test_a_read_only_stream_is_so_at_the_next_leader(scene: ClusterScene) -> None:
    async def test() -> None:
        async with scene.client() as js, led(scene, js, "closed") as leader:
            witness = Witness("closed.x", scene.url)
            await witness.open()
            await witness.publish(100)
            assert (await js.streams.update("closed", read_only=True)).config.read_only
            with pytest.raises(StreamReadOnly):
                await js.publish("closed.x", b"x")
            end = (await js.streams.info("closed")).log_end_offset
            scene.cluster[leader].kill()
            await scene.cluster.until_taken_over(js.nats, "closed", leader)
            with pytest.raises(StreamReadOnly):
                await js.publish("closed.x", b"x", timeout=WAIT_SECONDS)
            assert [record.offset async for record in js.read("closed")] == list(range(end))
            await js.streams.update("closed", read_only=False)
            await witness.retry_until_acked()
            values = [int(record.value or b"") async for record in js.read("closed")]
            assert sorted(values) == list(range(100))
            await witness.close()

    run(test())

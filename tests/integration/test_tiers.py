"""Streams in an object store, on real nodes: a local folder is the store."""

import asyncio
import shutil
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from envelope.errors import (
    CorruptDataError,
    InvalidConfig,
    OffsetOutOfRange,
    RemovalPending,
    StreamExists,
    TierUnavailable,
    UnknownStream,
)
from jetstream.cli.output.exit_codes import ExitCode
from jetstream.client.read.places import Txid
from jetstream.node.readers import dispatcher as socket_requests
from jetstream.node.readers.ports import ReadableStream
from jetstream.node.readers.reader_connection import Pending
from jetstream.tier.object_store import ObjectStore
from jetstream.tier.restore import all_remains
from jetstream.tier.tiered_log import SegmentAway
from tests.support.commands import jetstream as jetstream_command
from tests.support.commands import json_lines, succeeded
from tests.support.nodes import nats_and_node, run
from tests.support.object_stores import HeldStore
from tests.support.sockets import until
from tests.support.tiered_nodes import CONFIG, RECORDS, next_of, published, read, replica, tiered, tiered_node


def objects(path: Path) -> set[str]:
    return {str(file.relative_to(path / "store")) for file in (path / "store").rglob("*") if file.is_file()}


def test_what_was_uploaded_is_dropped_here_and_read_all_the_same(tmp_path: Path) -> None:
    async def scenario() -> None:
        everything = list(range(RECORDS))
        async with tiered_node(tmp_path) as (js, node):
            stream = await tiered(js, node)
            assert await read(js, "orders") == everything
            assert await read(js, "orders", start=117, end=250) == list(range(117, 250))
            before = stream.log.log_start_offset  # what is dropped here may not have ended
            info = await js.streams.info("orders")
            assert info.log_start_offset == 0
            assert info.tier is not None
            assert before <= info.tier.local_start_offset <= stream.log.log_start_offset
        async with tiered_node(tmp_path) as (js, node):
            assert await read(js, "orders") == everything
            assert replica(node, "orders").log.log_start_offset > RECORDS // 2
            assert await read(js, "orders", start=3, end=9) == list(range(3, 9))

    run(scenario())


def test_places_are_found_across_the_border(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with tiered_node(tmp_path) as (js, node):
            stream = await tiered(js, node)
            async with js.read("orders", start=0, end=RECORDS) as reader:
                times: dict[int, int] = {record.offset: record.timestamp async for record in reader}
            local = stream.log.log_start_offset
            assert local > 50
            wanted = {0, 1, 50, local - 1, local, local + 1, RECORDS - 1}
            for offset in wanted.intersection(times):
                first = min(at for at, time in times.items() if time >= times[offset])
                moment = datetime.fromtimestamp(0, UTC) + timedelta(microseconds=times[offset])
                assert await read(js, "orders", start=moment, end=first + 1) == [first]
                assert await read(js, "orders", start=Txid(10 * offset - 5), end=offset + 1) == [offset]

    run(scenario())


def test_selected_reads_reach_into_the_store(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with tiered_node(tmp_path) as (js, node):
            await tiered(js, node)
            async with js.read("orders", subject="orders.nothing") as reader:
                assert [record async for record in reader] == []
            async with js.read("orders", subject="orders.*", columns=["txid"]) as reader:
                assert [record.txid async for record in reader] == [10 * at for at in range(RECORDS)]

    run(scenario())


def test_retention_and_truncation_reach_into_the_store_and_leave_no_object(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with tiered_node(tmp_path) as (js, node):
            stream = await tiered(js, node)
            done = await js.streams.truncate("orders", 100)
            assert done.log_start_offset == 100
            with pytest.raises(OffsetOutOfRange):
                await read(js, "orders", start=99)
            assert await read(js, "orders") == list(range(100, RECORDS))
            await until(lambda: not any(next_of(path) <= 100 for path in objects(tmp_path)))
            await js.streams.update("orders", retention={"messages": 50})
            await until(lambda: stream.readable.log_start_offset > 180)  # a segment has 60 records
            start = stream.readable.log_start_offset
            assert await read(js, "orders") == list(range(start, RECORDS))
            await js.streams.truncate("orders", RECORDS)
            await until(lambda: len(objects(tmp_path)) == 1)
            assert await read(js, "orders") == []
            await js.streams.delete("orders")
            assert objects(tmp_path) == set()

    run(scenario())


def test_a_stream_is_made_again_from_the_store_alone(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with tiered_node(tmp_path) as (js, node):
            lives = [(await tiered(js, node)).incarnation]
            with pytest.raises(StreamExists):
                await js.streams.restore("orders")
        shutil.rmtree(tmp_path / "data")
        async with tiered_node(tmp_path) as (js, node):
            with pytest.raises(UnknownStream):
                await js.streams.restore("nothing")
            restored = await js.streams.restore("orders")
            end = restored.log_end_offset
            assert restored.log_start_offset == 0
            assert RECORDS // 2 < end <= RECORDS
            assert restored.config.subject == "orders.>"
            assert await read(js, "orders") == list(range(end))
            await published(js, "orders", range(end, end + RECORDS))
            stream = replica(node, "orders")
            await until(lambda: stream.log.log_start_offset > end)
            assert await read(js, "orders") == list(range(end + RECORDS))
            lives.append(stream.incarnation)
        found = all_remains(ObjectStore.at(str(tmp_path / "store")))
        assert [remains.manifest.incarnation for remains in found] == lives
        async with tiered_node(tmp_path) as (js, node):
            assert await read(js, "orders") == list(range(end + RECORDS))

    run(scenario())


def test_a_stream_is_not_made_again_with_holes(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with tiered_node(tmp_path) as (js, node):
            await tiered(js, node)
        shutil.rmtree(tmp_path / "data")
        min((tmp_path / "store").rglob("*.arrows")).unlink()  # not one that no manifest names yet
        async with tiered_node(tmp_path) as (js, _):
            with pytest.raises(CorruptDataError, match="missing"):
                await js.streams.restore("orders")

    run(scenario())


def test_wrong_bytes_are_never_served_and_the_reader_is_told_which_offsets(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with tiered_node(tmp_path) as (js, node):
            await tiered(js, node)
        [first] = (tmp_path / "store").rglob("0" * 20 + "-*.arrows")
        content = first.read_bytes()
        async with tiered_node(tmp_path) as (js, node):
            for damaged in (content[:-8], content[:1000] + b"!" + content[1001:], content + b"x", b""):
                first.write_bytes(damaged)
                with pytest.raises(TierUnavailable, match="offsets 0 to ") as caught:
                    async with js.read("orders", retry_s=0.0) as reader:
                        await anext(reader)
                assert caught.value.retriable
                assert caught.value.detail["base"] == 0
            first.write_bytes(content)
            assert await read(js, "orders") == list(range(RECORDS))

    run(scenario())


def test_a_node_without_a_store_says_so(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with tiered_node(tmp_path) as (js, node):
            await tiered(js, node, local_retention=None, local_retention_bytes=64 * 1024)
        async with tiered_node(tmp_path, tier=None) as (js, node):
            with pytest.raises(TierUnavailable, match="this node has no object store"):
                async with js.read("orders", start=0, retry_s=0.0) as reader:
                    await anext(reader)
            assert await read(js, "orders", start=RECORDS - 1) == [RECORDS - 1]
            with pytest.raises(InvalidConfig, match="no object store"):
                await js.streams.create("others", "others.>", tier=True)

    run(scenario())


def test_a_retry_after_a_restart_is_known_although_few_bytes_may_stay(tmp_path: Path) -> None:
    config = {"local_retention": None, "local_retention_bytes": 64 * 1024, "dedupe_window": 600}

    async def scenario() -> None:
        async with tiered_node(tmp_path) as (js, node):
            await js.streams.create("orders", "orders.>", **{**CONFIG, **config})
            for turn in range(0, RECORDS, 20):
                ids = [f"id-{number}" for number in range(turn, turn + 20)]
                await js.publish_all(("orders.x", b"x" * 1000, {"message_id": each}) for each in ids)
            stream = replica(node, "orders")
            await until(lambda: (stream.tiered.border or 0) > RECORDS // 2)
        async with tiered_node(tmp_path) as (js, node):
            assert (await js.publish("orders.x", b"x" * 1000, message_id="id-10")).duplicate
            await js.streams.update("orders", dedupe_window=0)
            stream = replica(node, "orders")
            await until(lambda: stream.log.log_start_offset > RECORDS // 2)

    run(scenario())


def test_a_stream_that_fell_quiet_is_uploaded_to_its_last_record(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with tiered_node(tmp_path) as (js, node):
            await js.streams.create("orders", "orders.>", **{**CONFIG, "local_retention": 0.2})
            await published(js, "orders", range(20))
            stream = replica(node, "orders")
            await until(lambda: stream.log.log_start_offset == 20)
            assert await read(js, "orders") == list(range(20))
            await js.streams.update("orders", retention={"age": 0.2})
            await until(lambda: stream.readable.log_start_offset == 20)
            await until(lambda: len(objects(tmp_path)) == 1)

    run(scenario())


def test_the_command_lists_the_store_and_restores_from_it(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with tiered_node(tmp_path) as (js, node):
            await tiered(js, node)
        shutil.rmtree(tmp_path / "data")
        [life] = json_lines(succeeded("tier", "ls", str(tmp_path / "store"), "--json"))
        assert (life["stream"], life["start"], life["missing"]) == ("orders", 0, [])
        assert "orders" in succeeded("tier", "ls", str(tmp_path / "store"))
        settings = {"maintenance_interval": 0.05, "tier": str(tmp_path / "store")}
        async with nats_and_node(tmp_path, None, **settings) as (url, _):
            words = ("stream", "restore", "orders", "--incarnation", life["incarnation"])
            said = await asyncio.to_thread(succeeded, *words, nats=url)
            assert said == f"restored stream orders: offsets 0 to {life['end']}\n"
            told = await asyncio.to_thread(succeeded, "stream", "info", "orders", nats=url)
            assert f"0 to {life['end']}; on this disk from {life['end']} on" in told

    run(scenario())


def test_the_command_tells_a_folder_that_is_not_there_from_an_empty_one(tmp_path: Path) -> None:
    missing = jetstream_command("tier", "ls", str(tmp_path / "store"))
    assert (missing.exit_code, missing.stdout) == (ExitCode.NOT_FOUND, "")
    assert "there is no folder" in missing.stderr
    (tmp_path / "store").mkdir()
    assert succeeded("tier", "ls", str(tmp_path / "store"), "--json") == ""
    assert "missing" in succeeded("tier", "ls", str(tmp_path / "store"))


def test_a_compacted_stream_keeps_its_last_values_across_the_border(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with tiered_node(tmp_path) as (js, node):
            config = {**CONFIG, "compact": "key", "compact_dirty_ratio": 0.01, "tombstone_retention": 0.01}
            await js.streams.create("prices", "prices.>", **config)
            expected: dict[bytes, bytes] = {}
            for turn in range(0, 600, 20):
                rows = [
                    (b"k%d" % (number % 50), b"%d " % number + b"x" * 1000)
                    for number in range(turn, turn + 20)
                ]
                await js.publish_all(("prices.x", value, {"key": key.decode()}) for key, value in rows)
                expected |= dict(rows)
            stream = replica(node, "prices")
            await until(lambda: stream.log.log_start_offset > 200)
            async with js.read("prices") as reader:
                records = [record async for record in reader]
            assert len(records) < 500, "what was uploaded had been compacted"
            assert {record.key: record.value for record in records} == expected
            assert stream.log.compaction.purged_end == 0

    run(scenario())


@pytest.fixture
def held(monkeypatch: pytest.MonkeyPatch) -> Iterator[HeldStore]:
    store = HeldStore()
    monkeypatch.setattr(ObjectStore, "at", lambda _uri: store.store)
    monkeypatch.setattr("jetstream.node.readers.tier_waits.TIER_SECONDS", 0.05)
    yield store
    store.answers.set()


def test_a_store_that_does_not_answer_is_told_and_holds_up_nobody_else(
    tmp_path: Path, held: HeldStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("jetstream.node.tiers.segment_cache.MOVING_NS", 0)

    async def scenario() -> None:
        async with tiered_node(tmp_path) as (js, node):
            await tiered(js, node)
            held.answers.clear()
            with pytest.raises(TierUnavailable, match="not here yet"):
                async with js.read("orders", start=0, retry_s=0.0) as reader:
                    await anext(reader)
            await published(js, "orders", range(RECORDS, RECORDS + 20))
            assert await read(js, "orders", start=RECORDS) == list(range(RECORDS, RECORDS + 20))
            held.answers.set()
            assert await read(js, "orders") == list(range(RECORDS + 20))

    run(scenario())


def test_a_stream_is_not_made_again_from_objects_that_are_about_to_be_deleted(
    tmp_path: Path, held: HeldStore
) -> None:
    async def scenario() -> None:
        async with tiered_node(tmp_path) as (js, node):
            await tiered(js, node)
            held.keeps_all = True
            await js.streams.delete("orders")
            assert held.objects, "which the node still has to delete"
            with pytest.raises(RemovalPending):
                await js.streams.restore("orders")
            held.keeps_all = False
            await until(lambda: not held.objects)
            with pytest.raises(UnknownStream):
                await js.streams.restore("orders")

    run(scenario())


def test_a_stream_that_is_deleted_during_an_upload_leaves_no_object(tmp_path: Path, held: HeldStore) -> None:
    async def scenario() -> None:
        async with tiered_node(tmp_path) as (js, node), asyncio.TaskGroup() as tasks:
            held.answers.clear()
            await js.streams.create("orders", "orders.>", **{**CONFIG, "local_retention": None})
            await published(js, "orders", range(80))  # one segment is sealed
            streams = tmp_path / "data" / "streams"
            await until(lambda: held.asked > 0)
            tasks.create_task(js.streams.delete("orders"))
            await until(lambda: not list(streams.iterdir()))  # the objects are next
            held.answers.set()
            # One stream comes after the other.
            await tiered(js, node, "others")
            await until(lambda: not any("/orders@" in path for path in held.objects))

    run(scenario())


def test_a_node_stops_although_its_store_never_answers(
    tmp_path: Path, held: HeldStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("jetstream.node.tiers.segment_cache.STOP_SECONDS", 0.05)
    monkeypatch.setattr("jetstream.node.tiers.segment_cache.MOVING_NS", 0)

    async def scenario() -> None:
        async with tiered_node(tmp_path) as (js, node):
            await tiered(js, node)
            held.answers.clear()
            asked = held.asked
            await js.publish("orders.x", b"x" * 100_000)
            await js.publish("orders.x", b"x")
            with pytest.raises(TierUnavailable):
                await read(js, "orders", retry_s=0.0)
            await until(lambda: held.asked > asked)

    run(scenario())
    assert not held.answers.is_set()


def test_a_node_that_waits_for_the_list_of_segments_stops(
    tmp_path: Path, held: HeldStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("jetstream.node.tiers.segment_cache.STOP_SECONDS", 0.05)

    async def scenario() -> None:
        async with tiered_node(tmp_path) as (js, node):
            await tiered(js, node)
        held.answers.clear()
        async with tiered_node(tmp_path) as (js, node):
            with pytest.raises(TierUnavailable):
                await read(js, "orders", retry_s=0.0)
            assert node.stream("orders") is not None

    run(scenario())
    assert not held.answers.is_set()


def test_a_slow_store_is_no_error_while_bytes_come(
    tmp_path: Path, held: HeldStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    answered_empty: list[object] = []
    answer = socket_requests._not_in_time

    def counted(pending: Pending, stream: ReadableStream, away: SegmentAway) -> None:
        answered_empty.append(pending)
        answer(pending, stream, away)

    monkeypatch.setattr(socket_requests, "_not_in_time", counted)

    async def scenario() -> None:
        async with tiered_node(tmp_path) as (js, node), asyncio.TaskGroup() as tasks:
            await tiered(js, node)
            held.answers.clear()
            reading = tasks.create_task(read(js, "orders", retry_s=0.0))
            await until(lambda: len(answered_empty) > 3)
            assert not reading.done()
            held.answers.set()
            assert await reading == list(range(RECORDS))

    run(scenario())

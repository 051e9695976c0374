"""Reading over real sockets from real logs: every place to begin, every way to end, every bad peer."""

import asyncio
import copy
import os
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from envelope.errors import (
    CorruptDataError,
    DivergedHistory,
    OffsetOutOfRange,
    RequestError,
    StreamRecreated,
    UnknownStream,
)
from envelope.limits import MIB
from envelope.types import Offset, StreamName
from jetstream.client.read.read_range import ReadRange
from jetstream.client.read.reader import BatchReader, RecordReader
from jetstream.log.log import LogConfig
from tests.support.page_cache import empty_page_cache
from tests.support.sockets import LiveStream, asked, damage, records_batch, run, serving, until

MILLISECOND = 1_000_000


async def offsets(reader: RecordReader) -> list[int]:
    return [record.offset async for record in reader]


def moment(microseconds: int) -> datetime:
    return datetime.fromtimestamp(microseconds / 1e6, UTC)


# --- beginning and ending ------------------------------------------------------------------------------


def test_every_record_comes_back_as_it_was_stored(tmp_path: Path, loop: str) -> None:
    async def test() -> None:
        async with serving(tmp_path / "data") as world:
            world.stream("s").add([b"a", b"", None], [b"b"])
            got = [record async for record in world.records(ReadRange("s"))]
            assert [record.value for record in got] == [b"a", b"", None, b"b"]
            assert [record.subject for record in got] == ["s.0", "s.1", "s.2", "s.3"]
            assert got[3].headers == (("n", b"3"),)
            assert (got[3].key, got[3].txid, got[3].epoch) == (b"k0", 3, 1)
            assert got[1].timestamp == got[0].timestamp + 1
            assert got[0].time == moment(got[0].timestamp)

    run(test(), loop)


@pytest.mark.parametrize(
    ("wanted", "expected"),
    [
        (ReadRange("s"), range(20)),
        (ReadRange("s", start=7), range(7, 20)),
        (ReadRange("s", start=7, end=12), range(7, 12)),
        (ReadRange("s", start=7, end=99), range(7, 20)),
        (ReadRange("s", start="latest"), range(0)),
        (ReadRange("s", start=20), range(0)),
        (ReadRange("s", start=12, end=7), range(0)),
        (ReadRange("s", end=0), range(0)),
        (ReadRange("s", end="latest", follow=True), range(20)),
        (ReadRange("s", start=3, end=17, follow=True), range(3, 17)),
        (ReadRange("s", start=moment(6_000_000)), range(5, 20)),
        (ReadRange("s", start=moment(6_000_003)), range(8, 20)),
        (ReadRange("s", start=moment(10**15)), range(0)),
        (ReadRange("s", start=moment(0), end=moment(11_000_002)), range(12)),
        (ReadRange("s", end=moment(11_000_002), follow=True), range(12)),
    ],
)
def test_a_range_is_read_exactly(tmp_path: Path, wanted: ReadRange, expected: range) -> None:
    async def test() -> None:
        async with serving(tmp_path / "data") as world:
            world.stream("s").add(*([b"v"] * 5 for _ in range(4)))
            for max_bytes in (1, MIB):
                reader = world.records(wanted, max_bytes=max_bytes)
                assert await offsets(reader) == list(expected)
                if expected:
                    assert reader.next_offset == expected.stop
            batches = [batch async for batch in world.batches(wanted)]
            assert [value for batch in batches for value in batch.column(0).to_pylist()] == list(expected)

    run(test())


def test_reading_stops_at_the_high_watermark_of_the_beginning(tmp_path: Path) -> None:
    async def test() -> None:
        async with serving(tmp_path / "data") as world:
            stream = world.stream("s")
            stream.add([b"a"] * 3)
            stream.append([b"uncommitted"])
            reader = world.records(ReadRange("s"), max_bytes=1)
            first = await anext(reader)
            stream.add([b"later"])
            assert [first.offset, *await offsets(reader)] == [0, 1, 2]
            assert reader.high_watermark is not None

    run(test())


def test_a_following_reader_is_woken_by_a_commit_and_by_nothing_else(tmp_path: Path, loop: str) -> None:
    async def test() -> None:
        async with serving(tmp_path / "data") as world:
            stream = world.stream("s")
            links = world.links()
            reader = world.records(ReadRange("s", start="latest", follow=True), links)
            async with asked(reader) as waiting:
                await until(lambda: world.server.parked == 1)
                assert (await links.link()).in_flight == 1, "C3: who has read everything asks once"
                stream.append([b"x"])
                await asyncio.sleep(0)
                assert world.server.parked == 1
                stream.commit()
                assert (await waiting()).value == b"x"
                for number in range(20):
                    stream.add([b"%d" % number])
                    assert (await anext(reader)).value == b"%d" % number
                await reader.aclose()
        assert not stream.watchers

    run(test(), loop)


def test_a_following_reader_ends_at_a_moment_to_come(tmp_path: Path) -> None:
    async def test() -> None:
        async with serving(tmp_path / "data") as world:
            stream = world.stream("s")
            stream.add([b"a"])
            reader = world.records(ReadRange("s", end=moment(2_000_001), follow=True))
            assert (await anext(reader)).offset == 0
            stream.add([b"b", b"c"])
            assert await offsets(reader) == [1]
            assert reader.next_offset == 2

    run(test())


def test_a_long_poll_ends_empty_when_its_time_is_over(tmp_path: Path) -> None:
    async def test() -> None:
        async with serving(tmp_path / "data") as world:
            world.stream("s").add([b"a"])
            peer = await world.peer()
            await peer.request(op="fetch", id=1, stream="s", offset=1, max_wait_ms=20)
            header, body = await peer.response()
            assert (header["start_offset"], header["next_offset"], header["records"]) == (1, 1, 0)
            assert (header["high_watermark"], header["log_start_offset"], body) == (1, 0, b"")
            assert world.server.parked == 0
            peer.close()

    run(test())


def test_an_offset_between_high_watermark_and_log_end_waits(tmp_path: Path) -> None:
    async def test() -> None:
        async with serving(tmp_path / "data") as world:
            stream = world.stream("s")
            stream.append([b"a"])
            stream.append([b"b"])
            peer = await world.peer()
            await peer.request(op="fetch", id=1, stream="s", offset=1, max_wait_ms=30_000)
            await until(lambda: world.server.parked == 1)
            stream.commit()
            header, body = await peer.response()
            assert (header["start_offset"], header["next_offset"]) == (1, 2)
            assert len(body) > 0
            peer.close()

    run(test())


def test_a_parked_fetch_blocks_nobody(tmp_path: Path, loop: str) -> None:
    async def test() -> None:
        async with serving(tmp_path / "data") as world:
            quiet, busy = world.stream("quiet"), world.stream("busy")
            busy.add([b"x"] * 100, [b"y"] * 100)
            links = world.links()
            async with asked(world.records(ReadRange("quiet", follow=True), links)) as parked:
                await until(lambda: world.server.parked == 1)
                readers = [world.records(ReadRange("busy"), links, max_bytes=1) for _ in range(4)]
                assert (
                    await asyncio.gather(*(offsets(reader) for reader in readers)) == [list(range(200))] * 4
                )
                assert world.server.connections == 1
                quiet.add([b"z"])
                assert (await parked()).value == b"z"

    run(test(), loop)


def test_a_reader_goes_on_from_a_stored_offset(tmp_path: Path) -> None:
    async def test() -> None:
        async with serving(tmp_path / "data") as world:
            world.stream("s").add(*([b"v"] * 7 for _ in range(5)))
            seen: list[int] = []
            stored, incarnation = 0, None
            while len(seen) < 35:
                reader = world.records(ReadRange("s", start=stored, incarnation=incarnation))
                for _ in range(4):
                    record = await anext(reader, None)
                    if record is None:
                        break
                    seen.append(record.offset)
                assert reader.next_offset is not None
                stored, incarnation = reader.next_offset, reader.incarnation
                await reader.aclose()
            assert seen == list(range(35))

    run(test())


def test_segments_are_crossed_without_a_seam(tmp_path: Path) -> None:
    async def test() -> None:
        async with serving(tmp_path / "data") as world:
            stream = world.stream("s", LogConfig(segment_bytes=64 * 1024))
            stream.add(*([b"x" * 10_000] * 3 for _ in range(30)))
            assert len(stream.log.reader.segments) > 5
            assert await offsets(world.records(ReadRange("s"))) == list(range(90))

    run(test())


def test_a_restarted_log_is_verified_on_a_thread_before_it_is_served(tmp_path: Path, loop: str) -> None:
    async def test() -> None:
        async with serving(tmp_path / "data") as world:
            stream = world.stream("s", LogConfig(segment_bytes=256 * 1024))
            stream.add(*([b"x" * 10_000] * 3 for _ in range(30)))
            stream.log.close()
            world.stream("s")
            assert await offsets(world.records(ReadRange("s"))) == list(range(90))
            assert world.server.counters.ranges_verified > 0
            verified = world.server.counters.ranges_verified
            assert await offsets(world.records(ReadRange("s"))) == list(range(90))
            assert world.server.counters.ranges_verified == verified

    run(test(), loop)


def test_what_is_not_in_the_page_cache_is_read_on_a_thread_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, loop: str
) -> None:
    empty_page_cache(monkeypatch)

    async def test() -> None:
        async with serving(tmp_path / "data") as world:
            stream = world.stream("s")
            stream.add(*([os.urandom(1000)] * 1000 for _ in range(4)))
            assert await offsets(world.records(ReadRange("s"))) == list(range(4000))
            assert world.server.counters.ranges_warmed > 0

    run(test(), loop)


# --- refusals -------------------------------------------------------------------------------------------


def test_what_cannot_be_read_is_a_typed_error(tmp_path: Path) -> None:
    async def test() -> None:
        async with serving(tmp_path / "data") as world:
            stream = world.stream("s")
            stream.add(*([b"v"] * 5 for _ in range(4)))
            stream.log.truncate_before(Offset(7), stream.high_watermark)
            links = world.links()
            with pytest.raises(OffsetOutOfRange) as caught:
                await anext(world.records(ReadRange("s", start=3), links))
            assert caught.value.detail["log_start_offset"] == 7
            with pytest.raises(OffsetOutOfRange):
                await anext(world.records(ReadRange("s", start=21), links))
            with pytest.raises(UnknownStream):
                await anext(world.records(ReadRange("t"), links))
            with pytest.raises(StreamRecreated):
                await anext(world.records(ReadRange("s", incarnation="another"), links))
            with pytest.raises(RequestError, match="time zone"):
                world.records(ReadRange("s", start=datetime(2024, 1, 1)), links)  # noqa: DTZ001 - the point
            with pytest.raises(RequestError):
                world.records(ReadRange("s", start=timedelta(1)), links)
            assert await offsets(world.records(ReadRange("s"), links)) == list(range(7, 20))

    run(test())


def test_a_following_reader_is_told_when_its_stream_is_created_again(tmp_path: Path) -> None:
    async def test() -> None:
        async with serving(tmp_path / "data") as world:
            stream = world.stream("s")
            stream.add([b"a"])
            reader = world.records(ReadRange("s", follow=True))
            await anext(reader)
            async with asked(reader) as waiting:
                await until(lambda: world.server.parked == 1)
                world.stream("s").incarnation = "second"
                world.server.stream_gone(stream.name)
                with pytest.raises(StreamRecreated):
                    await waiting()
                stream.log.close(clean=False)

    run(test())


def test_a_following_reader_is_told_when_its_stream_is_deleted(tmp_path: Path) -> None:
    async def test() -> None:
        async with serving(tmp_path / "data") as world:
            stream = world.stream("s")
            async with asked(world.records(ReadRange("s", follow=True))) as waiting:
                await until(lambda: world.server.parked == 1)
                del world.directory.streams["s"]
                world.server.stream_gone(stream.name)
                with pytest.raises(UnknownStream):
                    await waiting()
                assert not stream.watchers
                stream.log.close(clean=False)

    run(test())


def test_a_corrupt_batch_is_an_error_and_never_served(tmp_path: Path, loop: str) -> None:
    async def test() -> None:
        async with serving(tmp_path / "data") as world:
            stream = world.stream("s")
            stream.add(*([b"%d" % number * 1000] * 2 for number in range(5)))
            entry = stream.log.reader.locate(Offset(4)).entry
            stream.log.close()
            damage(
                tmp_path / "data" / stream.log.reader.locate(Offset(4)).segment.path,
                entry.position + entry.length - 500,
            )
            world.stream("s")
            reader = world.records(ReadRange("s"))
            seen: list[int] = []

            async def read_all() -> None:
                async for record in reader:
                    seen.append(record.offset)  # noqa: PERF401 - what was read before the error counts

            with pytest.raises(CorruptDataError):
                await read_all()
            assert seen == [0, 1, 2, 3]
            assert await offsets(world.records(ReadRange("s", start=6))) == [6, 7, 8, 9]
            with pytest.raises(CorruptDataError):
                await anext(world.records(ReadRange("s", start=5)))

    run(test(), loop)


def test_damage_on_the_way_is_found_by_the_client(tmp_path: Path) -> None:
    async def test() -> None:
        async with serving(tmp_path / "data") as world:
            stream = world.stream("s")
            stream.add([b"x" * 1000] * 3)
            # What this process wrote itself counts as verified: the server sends it, the client must look.
            damage(
                tmp_path / "data" / stream.log.reader.locate(Offset(0)).segment.path,
                stream.log.reader.size - 500,
            )
            with pytest.raises(CorruptDataError):
                await anext(world.records(ReadRange("s")))

    run(test())


# --- history ---------------------------------------------------------------------------------------------


def test_a_reader_crosses_leader_epochs(tmp_path: Path) -> None:
    async def test() -> None:
        async with serving(tmp_path / "data") as world:
            stream = world.stream("s")
            for epoch in (1, 2, 3, 5):
                stream.reign(epoch)
                stream.add([b"a"] * 2, [b"b"] * 2)
            records = [record async for record in world.records(ReadRange("s"), max_bytes=1)]
            assert [record.epoch for record in records] == [1] * 4 + [2] * 4 + [3] * 4 + [5] * 4
            following = world.records(ReadRange("s", start="latest", follow=True))
            async with asked(following) as waiting:
                await until(lambda: world.server.parked == 1)
                stream.reign(6)
                stream.add([b"c"])
                assert (await waiting()).epoch == 6

    run(test())


def test_a_reader_of_a_history_that_was_replaced_is_told(tmp_path: Path) -> None:
    async def test() -> None:
        async with serving(tmp_path / "data") as world:
            stream = world.stream("s")
            stream.add(*([b"a"] for _ in range(10)))
            reader = world.records(ReadRange("s", follow=True))
            for _ in range(10):
                await anext(reader)
            async with asked(reader) as waiting:
                await until(lambda: world.server.parked == 1)
                stream.log.truncate_to(Offset(5))
                stream.reign(2)
                stream.add(*([b"other"] for _ in range(10)))
                with pytest.raises(DivergedHistory) as caught:
                    await waiting()
                assert caught.value.detail["leader_epoch"] == 2

    run(test())


def test_a_moment_is_found_in_a_batch_that_was_cut_by_truncation(tmp_path: Path) -> None:
    async def test() -> None:
        async with serving(tmp_path / "data") as world:
            stream = world.stream("s")
            stream.add([b"v"] * 10, [b"v"] * 10)
            stream.log.truncate_before(Offset(4), stream.high_watermark)
            for start, first in ((0, 4), (1_000_002, 4), (1_000_007, 7), (11_000_000, 10)):
                assert (await anext(world.records(ReadRange("s", start=moment(start))))).offset == first

    run(test())


def test_an_offline_stream_is_waited_for(tmp_path: Path) -> None:
    """A node that restarts knows its streams before it has recovered them."""

    async def test() -> None:
        async with serving(tmp_path / "data") as world:
            stream = world.stream("s")
            stream.add([b"v"])
            world.directory.offline["s"] = 6  # metadata is asked for anew before each attempt
            assert await offsets(world.records(ReadRange("s"))) == [0]
            assert world.directory.offline["s"] == 0
            assert world.server.counters.requests_failed == 3

    run(test())


# --- metadata ------------------------------------------------------------------------------------------


def test_metadata_comes_in_pages_that_fit_a_header(tmp_path: Path) -> None:
    async def test() -> None:
        async with serving(tmp_path / "data") as world:
            stream = world.stream("s")
            names = [f"{number:03d}-{'n' * 240}" for number in range(150)]
            for name in names:
                world.directory.streams[name] = renamed(stream, name)
            peer = await world.peer()
            found: list[str] = []
            pages, more, request_id = 0, True, 0
            while more:
                request_id, pages = request_id + 1, pages + 1
                after = {"after": found[-1]} if found else {}
                header = await peer.ask(op="metadata", id=request_id, **after)
                found += [entry["name"] for entry in header["streams"]]
                more = header["more"]
            assert found == sorted([*names, "s"])
            assert pages > 1
            header = await peer.ask(op="metadata", id=99, streams=["s", "unknown"])
            (entry,) = header["streams"]
            assert (entry["name"], entry["leader"], entry["leader_epoch"]) == ("s", "n1", 1)
            assert header["nodes"] == [{"id": "n1", "host": "127.0.0.1", "port": 1}]
            peer.close()
            world.directory.streams = {"s": stream}

    run(test())


def renamed(stream: LiveStream, name: str) -> LiveStream:
    """The same stream under another name."""
    twin = copy.copy(stream)
    twin.name = StreamName(name)
    return twin


def test_a_batch_reader_reports_where_it_stands(tmp_path: Path) -> None:
    async def test() -> None:
        async with serving(tmp_path / "data") as world:
            world.stream("s").add([b"a"] * 3, [b"b"] * 3)
            reader: BatchReader = world.batches(ReadRange("s", start=1), max_bytes=1)
            batch = await anext(reader)
            assert batch.equals(records_batch(0, [b"a"] * 3).slice(1))
            assert reader.next_offset == 3
            assert (reader.last_epoch, str(reader.incarnation)) == (1, "first")
            assert reader.high_watermark == 6
            await reader.aclose()
            with pytest.raises(StopAsyncIteration):
                await anext(reader)

    run(test())

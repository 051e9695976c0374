"""Mirrors between two clusters of one real node each, in this process."""

import asyncio
from pathlib import Path

import pyarrow as pa
import pytest

from envelope.errors import (
    InvalidSubject,
    OffsetsApart,
    OriginDiffers,
    RecordTooLarge,
    SourceTruncated,
    TxidDecreasing,
    UnknownStream,
    Unsupported,
)
from envelope.partition_errors import StreamIsPartitioned
from jetstream.client.mirror.positions import CONSUMER, group_of
from jetstream.log.format.schema import HEADERS_TYPE
from tests.support.compacting_nodes import CONFIG, published
from tests.support.mirroring import (
    copied_once,
    ended_by,
    fill,
    following,
    until_end,
    until_end_if_there,
    until_members,
)
from tests.support.nodes import WAIT_SECONDS, run
from tests.support.pauses import pause
from tests.support.raw_nats import RawNats
from tests.support.two_clusters import (
    TwoClients,
    carried,
    check_mirrored,
    expected,
    records,
    two_nodes_apart,
)

# --- what is copied -------------------------------------------------------------------------------------


def test_every_part_of_a_record_is_carried_at_its_offset(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with two_nodes_apart(tmp_path) as both:
            source = both.source
            await source.streams.create("orders", "orders.>", record_bytes_max=5000)
            await source.publish("orders.a", b"one", key="k", message_id="m-1", headers={"Color": "blue"})
            await source.publish("orders.a", None, key="k", txid=7)
            await source.publish("orders.b", b"", txid=8, headers={"Jetstream-Source-Time": "1"})
            await source.publish("orders.b", b"\x8a\x4a\x53\x45 is no envelope")
            await source.publish("orders.c", b"x" * 4900)
            raw = await RawNats.connect(both.source_port)
            raw.publish(
                b"orders.c", b"", header=b"NATS/1.0\r\nTwice: \xff\r\nTwice: 2\r\nNats-Msg-Id: m\r\n\r\n"
            )
            await raw.flush()
            raw.close()
            await until_end(source, 6)
            async with source.session("s") as session:
                await (await session.publish("orders.a", b"of a session"))
            table = pa.table({"value": [b"%d" % number for number in range(100)], "key": [b"k"] * 100})
            await source.publish_batch("orders.a", table, message_id="batch")
            nameless = pa.array([[{"key": "", "value": b"1"}]], HEADERS_TYPE)
            await source.publish_batch("orders.b", pa.table({"value": [b"one"], "headers": nameless}))
            mirroring = await copied_once(both)
            assert await check_mirrored(source, both.target, "orders") == 108
            assert [(each.position, each.start.difference) for each in mirroring.resumptions] == [(0, 0)]
            assert mirroring.mirror.copied == 108

    run(scenario())


def test_a_record_that_the_targets_nats_cannot_carry_ends_a_mirror_with_its_connection_whole(
    tmp_path: Path,
) -> None:
    async def scenario() -> None:
        async with two_nodes_apart(tmp_path) as both:
            await both.source.streams.create("orders", "orders.>")
            most = both.source.nats.max_payload
            await both.source.publish("orders.a", b"x" * (most - 1200))
            await copied_once(both)
            assert await check_mirrored(both.source, both.target, "orders") == 1
            for size in (most - 1000, most - 600, most):
                await both.source.publish("orders.a", b"x" * size)
                try:
                    await copied_once(both)
                except RecordTooLarge:
                    break
            else:
                pytest.fail("all were taken")
            assert both.target.nats.stats["reconnects"] == 0

    run(scenario())


def test_large_values_with_large_headers_are_carried(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with two_nodes_apart(tmp_path) as both:
            await both.source.streams.create("orders", "orders.>")
            for kibibytes in (1024, 3072, 3990, 6144):
                value = b"x" * (kibibytes << 10)
                await both.source.publish("orders.a", value, headers={"A": "a" * 60 * 1024})
            await copied_once(both)
            assert await check_mirrored(both.source, both.target, "orders") == 4

    run(scenario())


def test_a_mirror_follows_its_source(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with two_nodes_apart(tmp_path) as both:
            await both.source.streams.create("orders", "orders.>")
            async with following(both) as (mirroring, _):
                for end in (10, 11, 500):
                    done = (await both.source.streams.info("orders")).high_watermark
                    await fill(both.source, range(done, end))
                    await until_end_if_there(both.target, end)
                    assert await check_mirrored(both.source, both.target, "orders") == end
            assert mirroring.interruptions == []
            assert len(mirroring.resumptions) == 1

    run(scenario())


def test_a_copy_of_nothing_is_made_and_ends(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with two_nodes_apart(tmp_path) as both:
            await both.source.streams.create("orders", "orders.>", labels={"of": "shop"})
            await copied_once(both)
            config = (await both.target.streams.info("orders")).config
            assert (config.subject, config.labels) == ("orders.>", {"of": "shop"})
            await fill(both.source, range(5))
            assert [each.position for each in (await copied_once(both)).resumptions] == [0]
            assert await check_mirrored(both.source, both.target, "orders") == 5

    run(scenario())


def test_a_stream_that_only_listens_is_mirrored_too(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with two_nodes_apart(tmp_path) as both:
            await both.source.streams.create("orders", "orders.>", ack="none")
            await both.source.publish("orders.a", b"asks", ack="all")
            await copied_once(both)
            assert await check_mirrored(both.source, both.target, "orders") == 1

    run(scenario())


# --- offsets --------------------------------------------------------------------------------------------


def test_behind_other_records_offsets_differ_by_a_constant(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with two_nodes_apart(tmp_path) as both:
            await both.source.streams.create("orders", "orders.>")
            await both.target.streams.create("copy", "orders.>")
            await fill(both.target, range(7))
            before = await records(both.target, "copy")
            for end in (4, 9):
                await fill(both.source, range(end - 4, end))
                mirroring = await copied_once(both, to_stream="copy")
                assert [each.start.difference for each in mirroring.resumptions] == [7]
            originals = await records(both.source, "orders")
            found = await records(both.target, "copy")
            assert found[:7] == before
            assert [carried(record) for record in found[7:]] == [expected(each, 7) for each in originals]

    run(scenario())


def test_of_a_source_without_its_beginning_offsets_differ_by_what_is_missing(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with two_nodes_apart(tmp_path) as both:
            await both.source.streams.create("orders", "orders.>")
            await fill(both.source, range(10))
            await both.source.streams.truncate("orders", 6)
            mirroring = await copied_once(both)
            assert [(each.position, each.start.difference) for each in mirroring.resumptions] == [(6, -6)]
            originals = await records(both.source, "orders")
            copies = await records(both.target, "orders")
            assert [carried(record) for record in copies] == [expected(each, -6) for each in originals]

    run(scenario())


def test_records_of_others_in_the_target_end_a_mirror(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with two_nodes_apart(tmp_path) as both:
            await both.source.streams.create("orders", "orders.>")
            await fill(both.source, range(5))
            await copied_once(both)
            await both.target.publish("orders.a", b"after a failover")
            await fill(both.source, range(5, 9))
            before = await records(both.target, "orders")
            for _ in range(2):
                with pytest.raises(OffsetsApart, match="others have published to it"):
                    await copied_once(both)
            assert await records(both.target, "orders") == before

    run(scenario())


def test_a_mirror_that_runs_ends_when_others_publish_to_its_target(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with two_nodes_apart(tmp_path) as both:
            await both.source.streams.create("orders", "orders.>")
            await fill(both.source, range(5))

            async def disturb() -> None:
                await until_end_if_there(both.target, 5)
                await both.target.publish("orders.a", b"from here")
                await fill(both.source, range(5, 9))

            assert isinstance(await ended_by(both, disturb()), OffsetsApart)
            assert [record.value for record in await records(both.target, "orders")][5:] == [b"from here"]

    run(scenario())


def test_a_start_that_was_stored_before_anything_was_copied_is_used(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with two_nodes_apart(tmp_path) as both:
            await both.source.streams.create("orders", "orders.>")
            await copied_once(both)
            await fill(both.source, range(10))
            await both.source.streams.truncate("orders", 4)
            mirroring = await copied_once(both)
            assert [(each.position, each.start.difference) for each in mirroring.resumptions] == [(4, -4)]
            await both.target.cursors.delete(CONSUMER, "orders")
            await fill(both.source, range(10, 12))
            mirroring = await copied_once(both)
            assert [(each.position, each.start.difference) for each in mirroring.resumptions] == [(10, -4)]

    run(scenario())


# --- sources that are not what they were ----------------------------------------------------------------


def test_a_source_that_was_created_again_ends_a_mirror_and_nothing_is_overwritten(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with two_nodes_apart(tmp_path) as both:
            await both.source.streams.create("orders", "orders.>")
            await fill(both.source, range(5))

            async def disturb() -> None:
                await until_end_if_there(both.target, 5)
                await both.source.streams.delete("orders")
                await both.source.streams.create("orders", "orders.>")
                await fill(both.source, range(100, 110))

            assert isinstance(await ended_by(both, disturb()), OriginDiffers)
            with pytest.raises(OriginDiffers, match="mirror into another stream"):
                await copied_once(both)
            values = [record.value for record in await records(both.target, "orders")]
            assert values == [b"%d" % number for number in range(5)]

    run(scenario())


def test_a_source_that_was_truncated_beyond_the_copy_ends_a_mirror(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with two_nodes_apart(tmp_path) as both:
            await both.source.streams.create("orders", "orders.>")
            await fill(both.source, range(5))
            await copied_once(both)
            await fill(both.source, range(5, 20))
            await both.source.streams.truncate("orders", 5)
            await copied_once(both)  # what is gone is copied
            await fill(both.source, range(20, 30))
            await both.source.streams.truncate("orders", 25)
            with pytest.raises(SourceTruncated, match="offset 20"):
                await copied_once(both)
            assert len(await records(both.target, "orders")) == 20

    run(scenario())


def test_a_source_that_was_compacted_is_copied_to_its_first_hole_at_most(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with two_nodes_apart(tmp_path, maintenance_interval=0.02) as both:
            await both.source.streams.create("orders", "orders.>", **CONFIG)
            await both.source.publish_all(("orders.x", b"without a key") for _ in range(3))
            await published(both.source, "orders", range(400))
            async with asyncio.timeout(WAIT_SECONDS):
                while len(await records(both.source, "orders")) == 403:
                    await pause()
            with pytest.raises(OffsetsApart, match="it is compacted"):
                await copied_once(both)
            copies = await records(both.target, "orders")
            originals = await records(both.source, "orders")
            assert [carried(each) for each in copies] == [expected(each) for each in originals[: len(copies)]]

    run(scenario())


def test_txids_that_were_set_lower_end_a_mirror(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with two_nodes_apart(tmp_path) as both:
            await both.source.streams.create("orders", "orders.>")
            await both.source.publish("orders.a", b"too high", txid=1 << 40)
            await both.source.streams.set_txid("orders", 1)
            await both.source.publish("orders.a", b"right", txid=2)
            with pytest.raises(TxidDecreasing):
                await copied_once(both)
            await both.target.streams.set_txid("orders", 1)
            await copied_once(both)
            assert await check_mirrored(both.source, both.target, "orders") == 2

    run(scenario())


def test_what_cannot_be_mirrored_is_refused_before_anything_is_made(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with two_nodes_apart(tmp_path) as both:
            await both.source.streams.create("parts", "parts.>", partitions=2, partition_by="key")
            await both.source.streams.create("orders", "orders.>")
            await both.target.streams.create("narrow", "orders.eu.>")
            with pytest.raises(UnknownStream):
                await copied_once(both, "nothing", "copy")
            with pytest.raises(StreamIsPartitioned):
                await copied_once(both, "parts", "copy")
            with pytest.raises(Unsupported, match="is a partition"):
                await copied_once(both, "parts/0", "copy")
            with pytest.raises(InvalidSubject, match="narrow"):
                await copied_once(both, "orders", "narrow")
            with pytest.raises(Unsupported, match="in the target's cluster"):
                await copied_once(TwoClients(both.source, both.source), "orders", "copy")
            assert [each.name for each in await both.target.streams.list()] == ["narrow"]
            assert [each.name for each in await both.source.streams.list()] == [
                "orders",
                "parts/0",
                "parts/1",
            ]

    run(scenario())


# --- several mirrors ------------------------------------------------------------------------------------


def test_of_several_mirrors_one_copies_and_the_next_one_goes_on(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with two_nodes_apart(tmp_path) as both:
            await both.source.streams.create("orders", "orders.>")
            await fill(both.source, range(10))
            async with following(both) as (first, first_task):
                await until_end_if_there(both.target, 10)
                async with following(both) as (second, _):
                    incarnation = (await both.target.streams.info("orders")).incarnation
                    await until_members(both.source, group_of("orders", incarnation), 2)
                    await fill(both.source, range(10, 20))
                    await until_end(both.target, 20)
                    assert second.resumptions == []
                    first_task.cancel()
                    await fill(both.source, range(20, 30))
                    await until_end(both.target, 30)
                    assert [each.position for each in second.resumptions] == [20]
            assert await check_mirrored(both.source, both.target, "orders") == 30
            assert first.interruptions == second.interruptions == []

    run(scenario())

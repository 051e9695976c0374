"""Consumers that share a group: what moves between them, and what happens to those that must go."""

import asyncio
from pathlib import Path
from typing import Unpack

import pytest

import jetstream
from envelope.errors import ConnectionLost, InvalidConfig, RequestError
from envelope.group_errors import InstanceFenced
from jetstream.client.connection import JetstreamClient
from jetstream.client.consume.consumer import Consumer
from jetstream.client.consume.options import ConsumeOptions
from tests.support.consumers import asking, fill, streams_with, take, until
from tests.support.nodes import nats_and_node, run
from tests.support.raw_member import members

Told = tuple[str, list[str]]
"""What happens to which partitions."""


def both(js: JetstreamClient, **options: Unpack[ConsumeOptions]) -> Consumer:
    """A consumer of streams ``a`` and ``b`` in group ``g``."""
    return js.consume(["a", "b"], group="g", **options)


def telling(told: list[Told], **options: Unpack[ConsumeOptions]) -> ConsumeOptions:
    """Options, and callbacks that note what they are called with."""
    return ConsumeOptions(
        **options,
        on_assigned=lambda partitions: told.append(("assigned", partitions)),
        on_revoked=lambda partitions: told.append(("revoked", partitions)),
        on_lost=lambda partitions: told.append(("lost", partitions)),
    )


def test_two_consumers_share_and_one_that_closes_hands_over_at_once(tmp_path: Path) -> None:
    async def scenario() -> None:
        told: list[tuple[str, list[str]]] = []
        async with streams_with(tmp_path, a=40, b=40) as scene:
            async with both(scene.js, **telling(told)) as one:
                mine = await take(one, 11)
                async with both(scene.js) as two:
                    theirs = await take(two, 11)
                    assert len(one.assignment) == len(two.assignment) == 1
                    [handed_over] = two.assignment
                    mine += await take(one, 10)
                mine += await take(one, 80 - len(mine) - 10)
                assert list(one.assignment) == ["a", "b"]
            assert sorted({*mine, *theirs}) == [(name, offset) for name in "ab" for offset in range(40)]
            assert not {*mine} & {*theirs[:-1]}
            assert told == [
                ("assigned", ["a", "b"]),
                ("revoked", [handed_over]),
                ("assigned", [handed_over]),
                ("revoked", ["a", "b"]),
            ]

    run(scenario())


def test_a_partition_is_handed_over_only_when_its_record_in_hand_is_processed(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with (
            streams_with(tmp_path, a=9) as scene,
            scene.js.consume("a", group="g", instance="one", assignor="range") as one,
        ):
            await take(one, 2)
            async with members(scene.socket, "g", 1, ("a",)) as [other]:
                other.instance = "before one"
                await other.join(assignor="range")
                await until(lambda: one.assignment == ())
                assert other.keeps == {}
                assert (await other.heartbeat(wait_ms=200)).assignments == []
                async with asking(one) as asked:
                    while not other.keeps:
                        await other.heartbeat(wait_ms=10_000)
                    assert await other.cursors("a") == {0: 2}
                    assert not asked.done()
                    await other.leave()
                assert asked.result() == [("a", 2)]

    run(scenario())


def test_a_consumer_that_is_put_out_loses_everything_and_comes_in_anew(tmp_path: Path) -> None:
    async def scenario() -> None:
        told: list[Told] = []
        async with streams_with(tmp_path, a=6, b=6) as scene, both(scene.js, **telling(told)) as consumer:
            await take(consumer, 12)
            await consumer.commit()
            await scene.js.groups.reset("g", 4, force=True)
            assert sorted(await take(consumer, 4)) == [("a", 4), ("a", 5), ("b", 4), ("b", 5)]
            assert told == [("assigned", ["a", "b"]), ("lost", ["a", "b"]), ("assigned", ["a", "b"])]

    run(scenario())


def test_the_older_of_two_with_one_instance_is_told_so(tmp_path: Path) -> None:
    async def scenario() -> None:
        told: list[Told] = []
        options = telling(told, instance="till-1", commit="manual")
        async with streams_with(tmp_path, a=6, b=6) as scene, both(scene.js, **options) as former:
            await take(former, 3)
            async with both(scene.js, instance="till-1") as later:
                with pytest.raises(InstanceFenced):
                    await take(former, 12)
                assert told == [("assigned", ["a", "b"]), ("lost", ["a", "b"])]
                assert former.assignment == ()
                await take(later, 6)
                assert later.assignment == ("a", "b")

    run(scenario())


def test_a_static_consumer_that_starts_again_finds_its_partitions(tmp_path: Path) -> None:
    async def scenario() -> None:
        told: list[Told] = []
        async with streams_with(tmp_path, a=6, b=6) as scene, both(scene.js, **telling(told)) as other:
            await take(other, 1)
            async with jetstream.connect(scene.url) as js:
                former = both(js, instance="till-1", session_timeout_s=60)
                async with asking(former) as asked:
                    await until(lambda: len(other.assignment) == 1)
                    await take(other, 1)
                [(moved, _)] = asked.result()
                assert former.assignment == (moved,)
                await former.commit()
                js._links.close()  # as if its process had been killed
                told.clear()
                async with both(scene.js, instance="till-1") as later:
                    assert await take(later, 1) == [(moved, 1)]
                    assert told == []

    run(scenario())


def test_what_the_group_will_not_have_is_raised(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with streams_with(tmp_path, a=6, b=6) as scene, both(scene.js) as consumer:
            await take(consumer, 1)
            async with both(scene.js, assignor="range") as other:
                with pytest.raises(InvalidConfig):
                    await take(other, 1)
            assert consumer.assignment == ("a", "b")

    run(scenario())


def test_what_a_callback_raises_comes_out_where_records_are_asked_for(tmp_path: Path) -> None:
    def fail(partitions: list[str]) -> None:
        raise ZeroDivisionError(partitions)

    async def scenario() -> None:
        async with streams_with(tmp_path, a=6, b=6) as scene, both(scene.js, on_assigned=fail) as consumer:
            for _ in range(2):
                with pytest.raises(ZeroDivisionError):
                    await take(consumer, 1)
            async with both(scene.js) as other:
                await take(other, 12)
                assert other.assignment == ("a", "b"), "the other one has left the group"

    run(scenario())


def test_an_application_may_seek_when_it_is_told_what_it_has(tmp_path: Path) -> None:
    async def scenario() -> None:
        flushed: list[int] = []

        async def begin_later(partitions: list[str]) -> None:
            await asyncio.sleep(0)
            for partition in partitions:
                consumer.seek(partition, 4)

        async def flush(partitions: list[str]) -> None:
            await consumer.commit(dict.fromkeys(partitions, 5))
            flushed.append(len(partitions))

        async with streams_with(tmp_path, a=6, b=6) as scene:
            consumer = both(scene.js, commit="manual", on_assigned=begin_later, on_revoked=flush)
            async with consumer:
                assert sorted(await take(consumer, 4)) == [("a", 4), ("a", 5), ("b", 4), ("b", 5)]
            assert sum(flushed) == 2
            assert await scene.cursors("g", "a", "b") == {"a": 5, "b": 5}

    run(scenario())


def test_who_is_stuck_in_a_record_leaves_the_group_until_it_asks_for_the_next(tmp_path: Path) -> None:
    async def scenario() -> None:
        told: list[Told] = []
        async with streams_with(tmp_path, a=6) as scene:
            options = telling(told, processing_timeout_s=0.2)
            async with scene.js.consume("a", group="g", **options) as stuck:
                assert await take(stuck, 2) == [("a", 0), ("a", 1)]
                async with scene.js.consume("a", group="g") as other:
                    assert (await take(other, 1))[0] in [("a", 0), ("a", 1)]
                    assert told == [("assigned", ["a"]), ("lost", ["a"])]
                    assert (await take(other, 4))[-1][1] >= 4
                    await other.commit()
                await fill(scene.js, "a", [6])
                assert (await take(stuck, 1))[0][1] >= 4
                assert stuck.assignment == ("a",)

    run(scenario())


def test_the_end_of_the_connection_hands_over_what_was_not_closed(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with streams_with(tmp_path, a=6) as scene:
            async with jetstream.connect(scene.url) as js:
                consumer = js.consume("a", group="g", session_timeout_s=1800, rebalance_timeout_s=1800)
                await take(consumer, 3)
            assert [record async for record in consumer] == []
            async with scene.js.consume("a", group="g") as other:
                assert await take(other, 1) == [("a", 2)]

    run(scenario())


def test_who_closes_without_a_node_is_gone_after_its_session(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with nats_and_node(tmp_path) as (url, node), jetstream.connect(url) as js:
            await js.streams.create("a", "a.>")
            await fill(js, "a", range(3))
            consumer = js.consume("a", group="g", session_timeout_s=1)
            await take(consumer, 2)
            await node.__aexit__(None, None, None)
            waits = asyncio.timeout(30)
            async with waits:
                await consumer.close()
            with pytest.raises((ConnectionLost, StopAsyncIteration)):
                await anext(consumer)
            with pytest.raises(ConnectionLost):
                await consumer.commit()

    run(scenario())


def test_consumers_of_one_client_share_a_heartbeat(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with streams_with(tmp_path, a=6) as scene:
            several = [scene.js.consume("a", group=f"g{number}") for number in range(5)]
            for consumer in several:
                await take(consumer, 1)
            [link] = scene.js._group_links._by_node.values()
            assert len(link._members) == len(several)
            await until(lambda: link.link.in_flight == 1)

    run(scenario())


def test_a_consumer_that_is_closed_gives_no_more_records(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with streams_with(tmp_path, a=6) as scene:
            consumer = scene.js.consume("a", group="g")
            await consumer.close()
            assert [record async for record in consumer] == []
            consumer = scene.js.consume("a", group="g")
            assert consumer.assignment == ()
            assert consumer.positions == {}
            await consumer.commit()
            async with asyncio.TaskGroup() as tasks:
                rest = tasks.create_task(_offsets(consumer))
                await until(lambda: consumer.positions == {"a": 6})
                await consumer.close()
            assert rest.result() == list(range(6))
            with pytest.raises(RequestError):
                consumer.seek("a", 0)

    run(scenario())


async def _offsets(consumer: Consumer) -> list[int]:
    return [record.offset async for record in consumer]

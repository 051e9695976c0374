"""Consumers of a group on one node: what they read, commit, share and hand over."""

from pathlib import Path
from typing import Unpack

import pytest

from envelope.errors import (
    OffsetOutOfRange,
    RequestError,
    StreamRecreated,
)
from jetstream.client.connection import JetstreamClient
from jetstream.client.consume_options import ConsumeOptions
from jetstream.client.consumer import Consumer
from tests.support.consumers import (
    asking,
    fill,
    streams_with,
    take,
    until,
    until_asked,
)
from tests.support.nodes import run
from tests.support.raw_member import members

Told = tuple[str, list[str]]
"""What happens to which partitions."""

SOON = 0.05
"""Seconds between commits in the background, for tests that wait for one."""


def both(js: JetstreamClient, **options: Unpack[ConsumeOptions]) -> Consumer:
    """A consumer of streams ``a`` and ``b`` in group ``g``."""
    return js.consume(["a", "b"], group="g", **options)


def telling(told: list[Told]) -> ConsumeOptions:
    """Callbacks that note what they are called with."""
    return ConsumeOptions(
        on_assigned=lambda partitions: told.append(("assigned", partitions)),
        on_revoked=lambda partitions: told.append(("revoked", partitions)),
        on_lost=lambda partitions: told.append(("lost", partitions)),
    )


# --- what is processed is committed -------------------------------------------------------------------


def test_a_consumer_reads_everything_and_the_next_one_goes_on(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with streams_with(tmp_path, a=6, b=6) as scene:
            async with both(scene.js) as consumer:
                first = await take(consumer, 7)
                assert consumer.assignment == ("a", "b")
            in_hand = first.pop()
            async with both(scene.js) as consumer:
                rest = await take(consumer, 6)
            assert in_hand in rest, "it was not asked for what comes after it"
            assert sorted([*first, *rest]) == [(name, offset) for name in "ab" for offset in range(6)]
            for name in "ab":
                assert [each for each in first + rest if each[0] == name] == sorted(
                    each for each in first + rest if each[0] == name
                )

    run(scenario())


def test_the_record_in_hand_is_committed_only_once_it_is_processed(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with streams_with(tmp_path, a=5) as scene:
            async with scene.js.consume("a", group="g") as consumer:
                await take(consumer, 3)
            assert await scene.cursors("g", "a") == {"a": 2}
            async with scene.js.consume("a", group="g") as consumer:
                await take(consumer, 1)
                await consumer.commit()
                assert await scene.cursors("g", "a") == {"a": 3}
            assert await scene.cursors("g", "a") == {"a": 3}

    run(scenario())


def test_what_is_processed_is_committed_in_the_background(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with (
            streams_with(tmp_path, a=5) as scene,
            scene.js.consume("a", group="g", commit_interval_s=SOON) as consumer,
        ):
            await take(consumer, 3)

            async def is_committed() -> bool:
                return await scene.cursors("g", "a") == {"a": 2}

            await until_asked(is_committed)
            assert consumer.positions == {"a": 3}

    run(scenario())


def test_so_many_records_are_committed_before_the_interval_is_over(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with (
            streams_with(tmp_path, a=9) as scene,
            scene.js.consume("a", group="g", commit_interval_s=3600, commit_records=4) as consumer,
        ):
            await take(consumer, 5)

            async def is_committed() -> bool:
                return await scene.cursors("g", "a") == {"a": 4}

            await until_asked(is_committed)

    run(scenario())


def test_at_most_once_means_committed_before_it_is_handed_out(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with streams_with(tmp_path, a=9) as scene:
            async with scene.js.consume("a", group="g", commit="before", commit_records=4) as consumer:
                await take(consumer, 1)
                assert await scene.cursors("g", "a") == {"a": 4}
                await take(consumer, 5)
                assert await scene.cursors("g", "a") == {"a": 8}
            assert await scene.cursors("g", "a") == {"a": 6}, "what was not handed out is not lost"
            async with scene.js.consume("a", group="g", commit="before") as consumer:
                assert await take(consumer, 1) == [("a", 6)]

    run(scenario())


def test_nothing_is_committed_that_was_not_asked_for_in_manual_mode(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with streams_with(tmp_path, a=9, b=1) as scene:
            options = ConsumeOptions(commit="manual", commit_interval_s=SOON)
            async with both(scene.js, **options) as consumer:
                await take(consumer, 5)
            assert await scene.cursors("g", "a", "b") == {}
            async with both(scene.js, **options) as consumer:
                await take(consumer, 5)
                await consumer.commit({"a": 7})
                assert await scene.cursors("g", "a", "b") == {"a": 7}
                await consumer.commit({"a": 3})
                assert await scene.cursors("g", "a", "b") == {"a": 3}, "said so, it goes back"
                await take(consumer, 5)
                await consumer.commit()
                assert await scene.cursors("g", "a", "b") == {"a": 9, "b": 1}
                for wrong in ({"c": 1}, {"a": -1}):
                    with pytest.raises(RequestError):
                        await consumer.commit(wrong)

    run(scenario())


def test_what_a_filter_leaves_out_counts_as_processed(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with (
            streams_with(tmp_path, a=9) as scene,
            scene.js.consume("a", group="g", subject="a.1", commit_interval_s=SOON) as consumer,
        ):
            assert await take(consumer, 4) == [("a", 1), ("a", 3), ("a", 5), ("a", 7)]

            async def is_committed() -> bool:
                return await scene.cursors("g", "a") == {"a": 9}

            async with asking(consumer) as asked:
                await until_asked(is_committed)
                await scene.js.publish("a.1", b"9")
            assert asked.result() == [("a", 9)]

    run(scenario())


# --- where to begin -----------------------------------------------------------------------------------


def test_latest_means_from_the_first_start_on_and_leaves_out_nothing_later(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with streams_with(tmp_path, a=5) as scene:

            async def is_committed() -> bool:
                return await scene.cursors("g", "a") == {"a": 5}

            async with (
                scene.js.consume("a", group="g", start="latest", commit_interval_s=3600) as consumer,
                asking(consumer) as asked,
            ):
                await until_asked(is_committed)
                asked.cancel()
            await fill(scene.js, "a", range(5, 8))
            async with scene.js.consume("a", group="g", start="latest") as consumer:
                assert await take(consumer, 3) == [("a", 5), ("a", 6), ("a", 7)]

    run(scenario())


def test_a_cursor_that_is_not_in_the_stream_any_more_is_an_error_or_a_reset(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with streams_with(tmp_path, a=9) as scene:
            async with scene.js.consume("a", group="g") as consumer:
                await take(consumer, 3)
            await scene.js.streams.truncate("a", before=6)
            async with scene.js.consume("a", group="g") as consumer:
                for _ in range(2):
                    with pytest.raises(OffsetOutOfRange) as raised:
                        await take(consumer, 1)
                    assert raised.value.detail["stream"] == "a"
                consumer.seek("a", "earliest")
                assert await take(consumer, 1) == [("a", 6)]
            await scene.js.streams.truncate("a", before=8)
            async with scene.js.consume("a", group="g", reset="latest") as consumer:
                async with asking(consumer) as asked:
                    await until(lambda: consumer.positions == {"a": 9})
                    await fill(scene.js, "a", [9])
                assert asked.result() == [("a", 9)]

    run(scenario())


def test_a_stream_that_was_made_again_is_noticed(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with streams_with(tmp_path, a=9) as scene:
            async with scene.js.consume("a", group="g") as consumer:
                await take(consumer, 3)
            await scene.js.streams.delete("a")
            await scene.js.streams.create("a", "a.>")
            await fill(scene.js, "a", range(4))
            async with scene.js.consume("a", group="g") as consumer:
                with pytest.raises(StreamRecreated):
                    await take(consumer, 1)
            async with scene.js.consume("a", group="g", reset="earliest") as consumer:
                assert await take(consumer, 3) == [("a", 0), ("a", 1), ("a", 2)]
            assert await scene.cursors("g", "a") == {"a": 2}

    run(scenario())


def test_a_stream_that_comes_later_is_read_once_it_is_there(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with streams_with(tmp_path, a=1) as scene, both(scene.js) as consumer:
            assert await take(consumer, 1) == [("a", 0)]
            async with asking(consumer) as asked:
                await scene.js.streams.create("b", "b.>")
                await fill(scene.js, "b", [0])
            assert asked.result() == [("b", 0)]
            await scene.js.streams.delete("b")
            await until(lambda: consumer.assignment == ("a",))

    run(scenario())


# --- sharing ------------------------------------------------------------------------------------------


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

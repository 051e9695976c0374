"""Consumers of a group on one node: what they read, commit, share and hand over."""

import asyncio
from datetime import timedelta
from pathlib import Path
from typing import Unpack

import pytest

from envelope.errors import ConnectionLost, OffsetOutOfRange, RequestError, StreamRecreated
from envelope.group_errors import MemberFenced
from jetstream.client.connection import JetstreamClient
from jetstream.client.consume.consumer import Consumer
from jetstream.client.consume.options import ConsumeOptions
from tests.support.consumers import asking, fill, streams_with, take, until, until_asked
from tests.support.nodes import run

SOON = 0.05
"""Seconds between commits in the background, for tests that wait for one."""


def both(js: JetstreamClient, **options: Unpack[ConsumeOptions]) -> Consumer:
    """A consumer of streams ``a`` and ``b`` in group ``g``."""
    return js.consume(["a", "b"], group="g", **options)


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


def test_a_commit_of_what_was_taken_away_meanwhile_says_so_once(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with streams_with(tmp_path, a=3) as scene:
            lost = asyncio.Event()
            consumer = scene.js.consume("a", group="g", commit="manual", on_lost=lambda _: lost.set())
            async with consumer:
                await take(consumer, 1)
                await scene.js.groups.reset("g", "earliest", force=True)
                await lost.wait()
                with pytest.raises(MemberFenced):
                    await consumer.commit()
                assert await take(consumer, 1) == [("a", 0)]
                await consumer.commit()
                assert await scene.cursors("g", "a") == {"a": 1}

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


async def is_committed(consumer: Consumer) -> bool:
    """Commit; return whether that is not refused."""
    try:
        await consumer.commit()
    except ConnectionLost:
        return False
    return True


@pytest.mark.parametrize("turns", range(6))
def test_a_commit_that_a_close_overtakes_is_stored_or_refused(tmp_path: Path, turns: int) -> None:
    """Two tasks of the application ask for both; the turns of the loop between them vary."""

    async def scenario() -> None:
        async with streams_with(tmp_path, a=5) as scene:
            consumer = scene.js.consume("a", group="g", commit="manual")
            await take(consumer, 3)
            async with asyncio.TaskGroup() as tasks:
                committing = tasks.create_task(is_committed(consumer))
                for _ in range(turns):
                    await asyncio.sleep(0)
                await consumer.close()
            assert await scene.cursors("g", "a") == ({"a": 3} if committing.result() else {})

    run(scenario())


# --- elsewhere ----------------------------------------------------------------------------------------


def test_an_application_that_seeks_goes_on_there_and_its_cursor_follows(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with streams_with(tmp_path, a=9) as scene:
            async with scene.js.consume("a", group="g") as consumer:
                with pytest.raises(RequestError):
                    consumer.seek("a", 0)
                assert await take(consumer, 8) == [("a", offset) for offset in range(8)]
                await consumer.commit()
                consumer.seek("a", 2)
                assert consumer.positions == {"a": 2}
                assert await take(consumer, 2) == [("a", 2), ("a", 3)]
                with pytest.raises(RequestError):
                    consumer.seek("a", timedelta(1))
                with pytest.raises(RequestError):
                    consumer.seek("b", 1)
            assert await scene.cursors("g", "a") == {"a": 3}, "it has gone back, and said so"
            async with scene.js.consume("a", group="g") as consumer:
                await take(consumer, 1)
                consumer.seek("a", -2)
                assert await take(consumer, 2) == [("a", 7), ("a", 8)]
                consumer.seek("a", "latest")
                async with asking(consumer) as asked:
                    await until(lambda: consumer.positions == {"a": 9})
                    await fill(scene.js, "a", [9])
                assert asked.result() == [("a", 9)]

    run(scenario())


def test_nothing_comes_of_a_partition_that_is_paused(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with streams_with(tmp_path, a=6, b=6) as scene, both(scene.js) as consumer:
            [(first, _)] = await take(consumer, 1)
            [other] = {"a", "b"} - {first}
            consumer.pause([first])
            assert consumer.paused == (first,)
            assert await take(consumer, 6) == [(other, offset) for offset in range(6)]
            assert consumer.assignment == ("a", "b")
            async with asking(consumer, 5) as asked:
                await until(lambda: consumer.positions[other] == 6)
                consumer.resume()
            assert asked.result() == [(first, offset) for offset in range(1, 6)]
            with pytest.raises(RequestError):
                consumer.pause(["c"])

    run(scenario())


def test_batches_come_with_their_partition_and_count_when_the_next_is_asked_for(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with streams_with(tmp_path, a=6) as scene:
            async with scene.js.consume("a", group="g", commit_records=4) as consumer:
                assert await take(consumer, 1) == [("a", 0)]
                batches = consumer.batches()
                found = [await anext(batches) for _ in range(2)]
                assert {stream for stream, _ in found} == {"a"}
                rows = [offset for _, batch in found for offset in batch.column(0).to_pylist()]
                assert rows[0] == 1
                assert consumer.positions == {"a": rows[0] + len(rows)}
                processed = rows[-found[-1][1].num_rows]
            assert await scene.cursors("g", "a") == {"a": processed}
            async with scene.js.consume("a", group="g") as consumer:
                batches = consumer.batches()
                _, batch = await anext(batches)
                assert batch.column(0)[0].as_py() == processed

    run(scenario())

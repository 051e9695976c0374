"""A stream whose subject or queue group changes while messages come."""

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

import nats
import nats.errors
import pytest
from nats.aio.client import Client

import jetstream
from jetstream.client.connection import JetstreamClient
from jetstream.node.runtime.clock import SystemClock
from tests.support.nodes import nats_and_node, run

Publish = Callable[[int], Awaitable[None]]


async def changed_under_load(publish: Publish, change: Callable[[], Awaitable[object]]) -> int:
    """Publish numbers, change the stream in between, and go on for a while; return how many there were."""
    count, changed = 0, False

    async def changing() -> None:
        nonlocal changed
        await change()
        changed = True

    async with asyncio.TaskGroup() as tasks:
        after = 300
        while after:
            if count == 300:
                tasks.create_task(changing())
            await publish(count)
            count += 1
            after -= changed
    return count


async def values(js: JetstreamClient) -> list[int]:
    async with js.read("orders") as records:
        return [int(record.value) async for record in records if record.value is not None]


def test_between_subjects_that_share_nothing_no_message_is_missed(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with (
            nats_and_node(tmp_path) as (url, _),
            jetstream.connect(url) as js,
            await nats.connect(url) as plain,
        ):
            await js.streams.create("orders", "old.>")

            async def publish(number: int) -> None:
                for subject in ("old.x", "new.x"):  # the server has both before it has the next pair
                    await plain.publish(subject, b"%d" % number)
                await plain.flush()

            count = await changed_under_load(publish, lambda: js.streams.update("orders", subject="new.>"))
            await plain.request("new.x", b"%d" % count)  # by the same connection, so behind them
            assert set(await values(js)) == set(range(count + 1))
            assert not (await js.streams.info("orders")).possible_gaps

    run(scenario())


@pytest.mark.parametrize("changes", [{"subject": "orders.*"}, {"group": "workers"}], ids=str)
def test_a_change_to_what_overlaps_is_a_gap_that_has_all_that_was_missed(
    tmp_path: Path, changes: dict[str, str]
) -> None:
    async def scenario() -> None:
        async with (
            nats_and_node(tmp_path) as (url, _),
            jetstream.connect(url) as js,
            await nats.connect(url) as plain,
        ):
            clock = SystemClock()
            await js.streams.create("orders", "orders.>")
            times: list[tuple[int, int]] = []

            async def publish(number: int) -> None:
                begun = clock.wall()
                await plain.publish("orders.x", b"%d" % number)
                await plain.flush()
                times.append((begun, clock.wall()))

            count = await changed_under_load(publish, lambda: js.streams.update("orders", **changes))
            await plain.request("orders.x", b"%d" % count)  # by the same connection, so behind them
            stored = await values(js)
            assert stored == sorted(set(stored)), "in order, each once"
            [gap] = (await js.streams.info("orders")).possible_gaps
            assert gap.kind == "subject_changed"
            assert gap.until is not None
            since, until = (moment.timestamp() * 1e6 for moment in (gap.since, gap.until))
            for number in set(range(count)).difference(stored):
                begun, ended = times[number]
                assert begun <= until, (number, gap)
                assert ended >= since, (number, gap)

    run(scenario())


def test_partitions_answer_every_request_on_one_of_both_subjects(tmp_path: Path) -> None:
    async def acked(plain: Client, subject: str, number: int) -> bool:
        try:
            await plain.request(subject, b"%d" % number, timeout=2)
        except (nats.errors.NoRespondersError, nats.errors.TimeoutError):
            return False
        return True

    async def scenario() -> None:
        async with (
            nats_and_node(tmp_path) as (url, _),
            jetstream.connect(url) as js,
            await nats.connect(url) as plain,
        ):
            await js.streams.create("orders", "old.>", partitions=4, partition_by="subject")

            async def publish(number: int) -> None:
                one_of_both = await asyncio.gather(
                    acked(plain, f"old.{number}", number), acked(plain, f"new.{number}", number)
                )
                assert any(one_of_both), number

            await changed_under_load(publish, lambda: js.streams.update("orders", subject="new.>"))

    run(scenario())

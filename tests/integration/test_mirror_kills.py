"""``jetstream mirror`` as a process between two clusters, while it and their nodes are killed."""

import asyncio
import json
import os
import signal
from contextlib import ExitStack
from pathlib import Path

import pyarrow as pa

from envelope.errors import JetstreamError
from jetstream.client.connection import JetstreamClient
from jetstream.client.mirror.positions import group_of
from tests.support.commands import CommandProcess
from tests.support.mirroring import until_members
from tests.support.nodes import WAIT_SECONDS, run
from tests.support.pauses import pause
from tests.support.two_clusters import TwoClients, TwoClusters, check_mirrored, two_clusters

RECORDS = 400_000
PIECE = 10_000


async def fill(source: JetstreamClient, pieces: range) -> None:
    """Publish so many pieces of `PIECE` records, in long runs of a subject and in short ones."""
    for piece in pieces:
        numbers = range(piece * PIECE, (piece + 1) * PIECE)
        table = pa.table({"value": [b"%0100d" % number for number in numbers], "key": [b"k"] * PIECE})
        await source.publish_batch(f"orders.{piece % 3}", table, message_id=f"piece-{piece}")
        await source.publish_all((f"orders.{number % 2}", b"single") for number in range(20))


async def copied(target: JetstreamClient) -> int:
    """How many records the target has; 0 while nobody can tell."""
    try:
        return (await target.ranges(["orders"], patience_s=0.1))["orders"].end
    except (KeyError, JetstreamError):
        return 0


async def until_copied(both: TwoClients, count: int) -> int:
    async with asyncio.timeout(WAIT_SECONDS):
        while (found := await copied(both.target)) < count:
            await pause()
        return found


def mirror(clusters: TwoClusters, *arguments: str) -> CommandProcess:
    return CommandProcess(*clusters.command("--json", *arguments))


def test_a_mirror_that_is_killed_again_and_again_copies_each_record_once(tmp_path: Path) -> None:
    async def scenario(clusters: TwoClusters) -> None:
        async with clusters.clients() as both:
            await both.source.streams.create("orders", "orders.>")
            await fill(both.source, range(RECORDS // PIECE))
            total = (await both.source.ranges(["orders"]))["orders"].end
            reached = 0
            for _ in range(3):
                with mirror(clusters) as process:
                    reached = await until_copied(both, reached + 1)
                    process.signalled(signal.SIGKILL)
            assert reached < total, "it was killed in the middle"
            with mirror(clusters, "--once") as process:
                code, output, error = await asyncio.to_thread(process.finished)
            assert code == 0, error
            events = [json.loads(line) for line in output.splitlines()]
            assert [each["event"] for each in events] == ["resumed", "ended"]
            assert events[0]["offset"] >= reached
            assert events[0]["difference"] == 0
            assert await check_mirrored(both.source, both.target, "orders") == total == events[1]["offset"]

    with two_clusters(tmp_path) as clusters:
        run(scenario(clusters))


def test_a_mirror_outlives_the_nodes_of_both_clusters(tmp_path: Path) -> None:
    async def scenario(clusters: TwoClusters) -> None:
        async with clusters.clients() as both:
            await both.source.streams.create("orders", "orders.>")
            total = 0
            with mirror(clusters):
                for turn, node in enumerate((clusters.source, clusters.target) * 2):
                    await fill(both.source, range(5 * turn, 5 * turn + 5))
                    total = (await both.source.ranges(["orders"]))["orders"].end
                    await until_copied(both, total - 4 * PIECE)
                    node.kill()
                    await asyncio.to_thread(node.start)
                await until_copied(both, total)
            assert await check_mirrored(both.source, both.target, "orders") == total

    with two_clusters(tmp_path) as clusters:
        run(scenario(clusters))


def test_a_mirror_that_stood_still_is_fenced_by_the_one_that_took_over(tmp_path: Path) -> None:
    async def scenario(clusters: TwoClusters, stack: ExitStack) -> None:
        async with clusters.clients() as both:
            await both.source.streams.create("orders", "orders.>")
            await fill(both.source, range(3))
            old = stack.enter_context(mirror(clusters))
            await until_copied(both, PIECE)
            os.kill(old.pid, signal.SIGSTOP)
            await fill(both.source, range(3, 6))
            total = (await both.source.ranges(["orders"]))["orders"].end
            new = stack.enter_context(mirror(clusters))
            await until_copied(both, total)
            os.kill(old.pid, signal.SIGCONT)
            while json.loads(await asyncio.to_thread(old.line))["event"] != "interrupted":
                pass  # it told of its progress
            await fill(both.source, range(6, 9))
            total = (await both.source.ranges(["orders"]))["orders"].end
            await until_copied(both, total)
            code, output, error = await asyncio.to_thread(new.signalled, signal.SIGTERM)
            assert code == 0, error
            assert json.loads(output.splitlines()[-1])["event"] == "ended"
            await fill(both.source, range(9, 10))
            total = (await both.source.ranges(["orders"]))["orders"].end
            await until_copied(both, total)
            assert old.running
            assert await check_mirrored(both.source, both.target, "orders") == total

    with two_clusters(tmp_path) as clusters, ExitStack() as stack:
        run(scenario(clusters, stack))


def test_a_mirror_that_is_stopped_before_it_is_through_says_so(tmp_path: Path) -> None:
    async def scenario(clusters: TwoClusters) -> None:
        async with clusters.clients() as both:
            await both.source.streams.create("orders", "orders.>")
            await both.source.publish("orders.a", b"one")
            with mirror(clusters):
                await until_copied(both, 1)
                incarnation = (await both.target.streams.info("orders")).incarnation
                with mirror(clusters, "--once") as waits:
                    await until_members(both.source, group_of("orders", incarnation), 2)
                    ended = await asyncio.to_thread(waits.signalled, signal.SIGTERM)
                    assert ended == (130, "", "")

    with two_clusters(tmp_path) as clusters:
        run(scenario(clusters))


def test_a_mirror_says_what_it_refuses_in_one_line(tmp_path: Path) -> None:
    async def scenario(clusters: TwoClusters) -> None:
        async with clusters.clients() as both:
            with mirror(clusters) as process:
                code, _, error = await asyncio.to_thread(process.finished)
            assert (code, json.loads(error)["error"]["err_code"]) == (3, "stream_not_found")
            await both.source.streams.create("orders", "orders.>")
            await both.source.publish("orders.a", b"one")
            with CommandProcess(*clusters.command("--once")) as process:
                code, output, error = await asyncio.to_thread(process.finished)
            assert (code, output) == (0, "")
            assert error.splitlines() == [
                "copies from offset 0 on; offsets equal",
                "copied up to offset 1",
            ]
            await both.target.publish("orders.a", b"another's")
            with mirror(clusters, "--once") as process:
                code, _, error = await asyncio.to_thread(process.finished)
            assert (code, json.loads(error)["error"]["err_code"]) == (4, "offsets_apart")

    with two_clusters(tmp_path) as clusters:
        run(scenario(clusters))

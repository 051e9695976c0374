"""Cursors of plain NATS clients: committed by publishing, told by the request API, kept by compaction."""

import asyncio
import json
import threading
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, cast

import nats
import pytest
from nats.aio.client import Client
from nats.errors import NoRespondersError

from envelope.errors import StreamOffline, UnavailableError
from envelope.types import TimestampUs
from jetstream.node.groups.cursor_store import CursorStore
from jetstream.node.nats.embedded_server import EmbeddedNatsServer
from jetstream.node.node import Node
from jetstream.node.replicas.replica import StreamReplica
from jetstream.node.runtime.clock import Clock
from metadata.api.requests import GetCursorRequest
from metadata.api.responses import CursorInfo
from tests.support.clocks import ForwardClock
from tests.support.nodes import WAIT_SECONDS, NodeProcess, nats_and_node, node_config, request, run
from tests.support.pauses import pause


def subject(consumer: str, stream: str = "orders") -> str:
    return f"jetstream.api.cursors.plain.{consumer}.{stream}"


async def committed(client: Client, consumer: str, value: bytes, **headers: str) -> dict[str, Any]:
    """What a client hears that publishes a cursor."""
    named = {name.replace("_", "-"): text for name, text in headers.items()}
    reply = await client.request(subject(consumer), value, timeout=10, headers=named or None)
    answer: dict[str, Any] = json.loads(reply.data)
    return answer


async def cursor(client: Client, consumer: str, stream: str = "orders") -> dict[str, Any]:
    return await request(client, "cursor.get", consumer=consumer, stream=stream)


@asynccontextmanager
async def node_and_client(
    directory: Path, clock: Clock | None = None, **settings: object
) -> AsyncIterator[tuple[Node, Client]]:
    """A node whose stream of cursors is there, and a client that knows nothing but NATS."""
    async with nats_and_node(directory, clock, **settings) as (url, node), await nats.connect(url) as client:
        assert (await cursor(client, "nobody"))["offset"] is None
        yield node, client


def test_the_first_question_makes_what_a_plain_client_commits_to(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with nats_and_node(tmp_path) as (url, _), await nats.connect(url) as client:
            with pytest.raises(NoRespondersError):
                await committed(client, "billing", b"42")
            nothing = await cursor(client, "billing")
            assert (nothing["consumer"], nothing["stream"], nothing["offset"]) == ("billing", "orders", None)
            ack = await client.jetstream().publish(subject("billing"), b"42")
            assert (ack.stream, ack.seq) == ("__cursors", 1)
            told = await cursor(client, "billing")
            assert (told["offset"], told["metadata"], told["incarnation"]) == (42, None, None)
            await committed(client, "billing", b'{"offset":7,"metadata":"again","incarnation":"1f0c"}')
            told = await cursor(client, "billing")
            assert (told["offset"], told["metadata"], told["incarnation"]) == (7, "again", "1f0c")
            assert told["committed_at"].endswith("Z")
            await committed(client, "billing", b"", Jetstream_Tombstone="true")
            assert (await cursor(client, "billing"))["offset"] is None

    run(scenario())


def test_what_is_refused_changes_nothing(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with node_and_client(tmp_path) as (_, client):
            await committed(client, "billing", b"42")
            for value, headers in (
                (b"-1", {}),
                (b"43", {"Jetstream_Key": "group/billing/orders"}),
                (b"", {}),
            ):
                refused = await committed(client, "billing", value, **headers)
                assert refused["error"]["err_code"] == 60_033
            stale = await committed(client, "billing", b"43", Nats_Expected_Last_Sequence="0")
            assert stale["error"]["err_code"] == 10_071
            assert (await cursor(client, "billing"))["offset"] == 42
            unnamed = await cursor(client, "bill.ing")
            assert unnamed["error"]["err_code"] == "invalid_name"

    run(scenario())


def test_cursors_are_listed_by_consumer_and_by_stream_in_pages(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with node_and_client(tmp_path) as (_, client):
            for number, (consumer, stream) in enumerate(
                (("b", "s"), ("a/x", "t"), ("a", "t"), ("a", "s/1"), ("c", "s"))
            ):
                await client.request(subject(consumer, stream), b"%d" % number, timeout=10)

            async def listed(**selection: object) -> list[tuple[str, str, int]]:
                page = await request(client, "cursor.list", **selection)
                return [(each["consumer"], each["stream"], each["offset"]) for each in page["cursors"]]

            everything = [("a", "s/1", 3), ("a", "t", 2), ("a/x", "t", 1), ("b", "s", 0), ("c", "s", 4)]
            assert await listed() == everything
            assert await listed(consumer="a") == everything[:2]
            assert await listed(stream="s") == everything[3:]
            assert await listed(consumer="a", stream="t") == [("a", "t", 2)]
            assert await listed(offset=1, limit=2) == everything[1:3]
            page = await request(client, "cursor.list", stream="t", limit=1)
            assert (len(page["cursors"]), page["total"], page["offset"]) == (1, 2, 0)

    run(scenario())


def test_internal_streams_are_seen_and_not_touched(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with node_and_client(tmp_path) as (_, client):
            await committed(client, "billing", b"42")
            for name in ("__cursors", "__mine", "__a/b"):
                for operation, body in (
                    ("create", {"subject": "x"}),
                    ("update", {"read_only": True}),
                    ("delete", {}),
                    ("truncate", {"before": 1}),
                    ("restore", {}),
                ):
                    refused = await request(client, f"stream.{operation}", name=name, **body)
                    assert refused["error"]["err_code"] == "unsupported", (operation, refused)
            assert (await request(client, "stream.list"))["streams"] == []
            assert (await request(client, "stream.list", prefix="__"))["total"] == 0
            listed = await request(client, "stream.list", internal=True)
            assert [stream["name"] for stream in listed["streams"]] == ["__cursors"]
            info = await request(client, "stream.info", name="__cursors")
            assert (info["state"], info["config"]["compact"], info["high_watermark"]) == ("online", "key", 1)
            greedy = await request(client, "stream.create", name="greedy", subject="jetstream.api.cursors.>")
            assert greedy["error"]["err_code"] == "invalid_config"
            assert (await cursor(client, "billing"))["offset"] == 42

    run(scenario())


async def commit_thirty(client: Client, start: int) -> None:
    """Let thirty consumers commit five offsets each, every commit acked before the next."""
    for offset in range(start, start + 5):
        acks = [committed(client, f"c{each}", b"%d" % (each + offset)) for each in range(30)]
        assert all("error" not in ack for ack in await asyncio.gather(*acks))


async def check_thirty(client: Client, last: int) -> None:
    found = await request(client, "cursor.list")
    offsets = {each["consumer"]: each["offset"] for each in found["cursors"]}
    assert offsets == {f"c{each}": each + last for each in range(30)}


def test_every_acked_cursor_is_there_after_a_kill_and_after_a_clean_stop(tmp_path: Path) -> None:
    async def scenario() -> None:
        data = tmp_path / "data"
        async with EmbeddedNatsServer(tmp_path / "nats") as server, await nats.connect(server.url) as client:
            process = NodeProcess(data, server.url)
            process.start()
            try:
                await cursor(client, "nobody")
                await commit_thirty(client, 0)
            finally:
                process.kill()
            async with Node(node_config(data, server.url)):
                await check_thirty(client, 4)
                await commit_thirty(client, 5)
            async with Node(node_config(data, server.url)):
                await check_thirty(client, 9)

    run(scenario())


class LaterClock(ForwardClock):
    """One whose wall clock is ahead as well."""

    def wall(self) -> TimestampUs:
        return TimestampUs(super().wall() + self.ahead_ns // 1000)


def test_compaction_keeps_the_last_cursor_of_each_consumer(tmp_path: Path) -> None:
    """More than one segment of the largest cursors that there can be, older than the dedupe window."""

    async def scenario() -> None:
        clock = LaterClock()
        async with node_and_client(tmp_path, clock, maintenance_interval=0.02) as (node, client):
            stream = node.stream("__cursors")
            assert stream is not None
            text, number = "x" * 1024, 0
            while len(stream.log.reader.segments) < 2:
                for _ in range(400):
                    value = json.dumps({"offset": number, "metadata": text}).encode()
                    await client.publish(subject(f"c{number % 7}"), value)
                    number += 1
                await committed(client, "last", b"%d" % number)
            clock.put_forward(150)
            await committed(client, "c3", b"", Jetstream_Tombstone="true")
            await until_cleaned(stream)
            assert stream.log.reader.size < number * 512, "records went"
            expected = {f"c{each}": last for last in range(number - 7, number) if (each := last % 7) != 3}

            async def offsets() -> dict[str, int]:
                page = await request(client, "cursor.list")
                return {each["consumer"]: each["offset"] for each in page["cursors"]}

            assert await offsets() == {**expected, "last": number}
            with ThreadPoolExecutor(1) as threads:
                anew = CursorStore(node.stream, threads)
                async with following(anew, node):
                    for consumer, offset in expected.items():
                        assert (await answered(anew, consumer)).offset == offset
                    assert (await answered(anew, "c3")).offset is None
                assert anew.cursors == 7

    run(scenario())


async def until_cleaned(stream: StreamReplica) -> None:
    async with asyncio.timeout(WAIT_SECONDS):
        while stream.log.compaction.cleaned_end == 0:
            await pause()


@asynccontextmanager
async def following(store: CursorStore, node: Node) -> AsyncIterator[None]:
    """Have a store of our own follow the stream that the node leads."""
    stream = node.stream("__cursors")
    assert stream is not None
    assert stream.leading is not None
    async with asyncio.TaskGroup() as tasks:
        running = tasks.create_task(store.run())
        store.reign_begun(stream.leading)
        try:
            yield
        finally:
            running.cancel()


async def answered(store: CursorStore, consumer: str) -> CursorInfo:
    async with asyncio.timeout(WAIT_SECONDS):
        while True:
            try:
                answer = await store.answer(GetCursorRequest(consumer=consumer, stream="orders"))
            except UnavailableError:
                continue
            assert isinstance(answer, CursorInfo)
            return answer


def test_nothing_is_told_until_all_that_is_committed_was_read(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with node_and_client(tmp_path) as (node, client):
            await committed(client, "billing", b"42")
            may_read = threading.Event()
            with ThreadPoolExecutor(1) as threads:
                threads.submit(may_read.wait, WAIT_SECONDS)
                store = CursorStore(node.stream, threads)
                try:
                    async with following(store, node):
                        asked = GetCursorRequest(consumer="billing", stream="orders")
                        with pytest.raises(UnavailableError, match="are being read") as refusal:
                            await store.answer(asked)
                        assert refusal.value.retriable
                        may_read.set()
                        assert (await answered(store, "billing")).offset == 42
                        await committed(client, "billing", b"43")
                        assert (await answered(store, "billing")).offset == 43
                finally:
                    may_read.set()

    run(scenario())


def test_who_commits_reads_what_was_acked_a_moment_ago(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with node_and_client(tmp_path) as (_, client):
            for offset in range(60):
                await committed(client, "billing", b"%d" % offset)
                assert (await cursor(client, "billing"))["offset"] == offset

    run(scenario())


class Unsure:
    """A replica that leads and may not know what earlier leaders have acked, or whether it still leads."""

    def __init__(self, replica: StreamReplica) -> None:
        self._replica = replica
        self.has_committed_own_epoch = False
        self.still_leads = True

    def __getattr__(self, name: str) -> object:
        return getattr(self._replica, name)

    def confirm_leadership(self) -> asyncio.Future[None]:
        """See `ReadableStream.confirm_leadership`."""
        confirmed = asyncio.get_running_loop().create_future()
        if self.still_leads:
            confirmed.set_result(None)
        else:
            confirmed.set_exception(StreamOffline("another node leads"))
        return confirmed


def test_nothing_is_told_by_who_does_not_know_what_is_committed_or_who_leads(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with node_and_client(tmp_path) as (node, client):
            await committed(client, "billing", b"42")
            stream = node.stream("__cursors")
            assert stream is not None
            unsure = Unsure(stream)
            asked = GetCursorRequest(consumer="billing", stream="orders")
            with ThreadPoolExecutor(1) as threads:
                store = CursorStore(lambda _: cast("StreamReplica", unsure), threads)
                async with following(store, node):
                    with pytest.raises(UnavailableError, match="are being read"):
                        await store.answer(asked)
                    unsure.has_committed_own_epoch = True
                    assert (await answered(store, "billing")).offset == 42
                    unsure.still_leads = False
                    with pytest.raises(StreamOffline):
                        await store.answer(asked)

    run(scenario())


class Behind:
    """Somebody who knows less to be committed than is in the log."""

    def __init__(self, one: object, **known: object) -> None:
        self._one = one
        vars(self).update(known)

    def __getattr__(self, name: str) -> object:
        return getattr(self._one, name)


def test_nothing_is_told_that_is_not_committed(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with node_and_client(tmp_path) as (node, client):
            await committed(client, "billing", b"42")
            await committed(client, "billing", b"43")
            stream = node.stream("__cursors")
            assert stream is not None
            known = stream.high_watermark - 1
            replica = Behind(
                stream, leading=Behind(stream.leading, high_watermark=known), high_watermark=known
            )
            with ThreadPoolExecutor(1) as threads:
                store = CursorStore(lambda _: cast("StreamReplica", replica), threads)
                async with following(store, node):
                    assert (await answered(store, "billing")).offset == 42

    run(scenario())

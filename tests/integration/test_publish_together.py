"""Messages that are sent together: the acks, failures and timeouts of each, whatever else is received."""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path

import pytest
from nats.aio.msg import Msg

import jetstream
from envelope.errors import (
    ConnectionLost,
    DeadlinePassed,
    InvalidSubject,
    NoResponders,
    Overloaded,
    RecordTooLarge,
)
from jetstream import JetstreamClient
from jetstream.client.publish.messages import PublishAck
from jetstream.client.publish.publisher import Message
from jetstream.node.nats.embedded_server import EmbeddedNatsServer
from jetstream.node.node import Node
from tests.support.nodes import nats_and_node, node_config
from tests.support.pauses import pause
from tests.support.sockets import LOOPS, run, until


def with_client(
    directory: Path, body: Callable[[JetstreamClient], Awaitable[None]], loop: str = "uvloop"
) -> None:
    async def test() -> None:
        async with nats_and_node(directory) as (url, _), jetstream.connect(url) as js:
            await body(js)

    run(test(), loop)


def test_messages_that_are_sent_together_fail_one_by_one(tmp_path: Path) -> None:
    async def body(js: JetstreamClient) -> None:
        await js.streams.create("a", "a.>", record_bytes_max=10)
        sizes = [1] * 5 + [11] + [1] * 5 + [12, 1]
        async with js.publisher() as publisher:
            with pytest.raises(RecordTooLarge):
                await publisher.publish_all([("a.b", bytes(size)) for size in sizes])
            with pytest.raises(RecordTooLarge) as caught:
                await publisher.flush()
            assert not hasattr(caught.value, "__notes__"), "the first one was seen"
            assert publisher.outstanding == 0
            assert [ack.offset for ack in await publisher.publish_all([("a.b", b"")] * 3)] == [11, 12, 13]
        with pytest.raises(InvalidSubject):
            await js.publish_all([("a.b", b"1"), ("a.b", b"2"), ("a. b", b"3"), ("a.b", b"4")])
        assert (await js.publish("a.b", b"5")).offset == 16, "those before it are sent"
        with pytest.raises(NoResponders):
            await js.publish_all([("a.b", b"6"), ("nobody", b"7")])
        with pytest.raises(TypeError):
            await js.publish_all([("a.b", "text")])  # type: ignore[list-item]  # the mistake itself
        assert await js.publish_all([]) == []

    with_client(tmp_path, body)


def test_messages_that_are_sent_together_have_timeouts_of_their_own(tmp_path: Path) -> None:
    async def body(js: JetstreamClient) -> None:
        async def silent(_: object) -> None:
            pass

        await js.streams.create("a", "a")
        await js.nats.subscribe("quiet", cb=silent)
        messages: list[Message] = [("a", b"1"), ("quiet", b"2", {"timeout": 0.05}), ("a", b"3")]
        with pytest.raises(DeadlinePassed, match=r"0\.05 s"):
            await js.publish_all(messages)
        assert (await js.publish("a", b"4")).offset == 2

    with_client(tmp_path, body)


def test_the_first_ack_counts_where_several_streams_store_a_message(tmp_path: Path) -> None:
    async def body(js: JetstreamClient) -> None:
        for name in ("a", "b"):
            await js.streams.create(name, "both")
        acks = await js.publish_all([("both", b"%d" % number) for number in range(500)], window=50)
        assert [ack.offset for ack in acks] == list(range(500))
        assert {ack.stream for ack in acks} <= {"a", "b"}

    with_client(tmp_path, body)


@pytest.mark.parametrize("loop", list(LOOPS))
def test_the_applications_own_messages_come_between_the_acks(tmp_path: Path, loop: str) -> None:
    async def body(js: JetstreamClient) -> None:
        await js.streams.create("a", "a")
        values = [b"", b"\r\n", b"MSG a 1 5\r\n", b"PING\r\n", bytes(100_000)] * 100
        came: list[bytes] = []

        async def on_message(message: Msg) -> None:
            came.append(message.data)

        await js.nats.subscribe("a", cb=on_message)
        acks = await js.publish_all([("a", value) for value in values])
        assert [ack.offset for ack in acks] == list(range(len(values)))
        await until(lambda: len(came) == len(values))
        assert came == values
        assert js.nats.stats["reconnects"] == 0

    with_client(tmp_path, body, loop)


def test_messages_with_ids_are_stored_once_while_nats_is_restarted(tmp_path: Path) -> None:
    messages: list[Message] = [
        ("numbers.a", b"%d" % number, {"message_id": str(number), "timeout": 1.0}) for number in range(20_000)
    ]

    unknown = (ConnectionLost, DeadlinePassed, NoResponders, Overloaded)

    async def begun(js: JetstreamClient, acked: list[int]) -> None:
        with suppress(*unknown):
            await js.publish_all(messages, progress=acked.append)

    async def until_acked(js: JetstreamClient) -> list[PublishAck]:
        while True:
            try:
                return await js.publish_all(messages)
            except unknown:
                await pause()

    async def scenario() -> None:
        async with EmbeddedNatsServer(tmp_path / "nats") as first:
            port = int(first.url.rpartition(":")[2])
            async with (
                Node(node_config(tmp_path / "data", first.url)),
                jetstream.connect(first.url, reconnect_time_wait=0.1) as js,
                asyncio.TaskGroup() as tasks,
            ):
                await js.streams.create("numbers", "numbers.>")
                acked: list[int] = []
                publishing = tasks.create_task(begun(js, acked))
                await until(lambda: bool(acked) or publishing.done())
                await first.__aexit__(None, None, None)
                async with EmbeddedNatsServer(tmp_path / "nats2", port=port):
                    await publishing
                    acks = await until_acked(js)
                    values = [record.value async for record in js.read("numbers")]
                    assert len(values) == len(set(values)) == len(messages)
                    assert [values[ack.offset] for ack in acks] == [message[1] for message in messages]

    run(scenario())

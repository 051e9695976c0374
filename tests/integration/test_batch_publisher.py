"""Records published one by one in envelopes: what goes wrong is told to those whom it concerns, and ends."""

import asyncio
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from nats.aio.msg import Msg

import jetstream
from envelope.errors import ConnectionLost, InternalError, JetstreamError, RequestError, Unsupported
from tests.support.nodes import nats_and_node, run


@pytest.mark.parametrize("records", [1, 50])
def test_a_batch_publisher_notices_who_stores_its_envelopes_unopened(tmp_path: Path, records: int) -> None:
    async def scenario() -> None:
        async with nats_and_node(tmp_path) as (url, _), jetstream.connect(url) as js:

            async def store(message: Msg) -> None:
                await message.respond(b'{"stream":"other","seq":1}')

            await js.nats.subscribe("other", cb=store)
            acks: list[jetstream.RecordAck] = []

            async def leave_them_unseen() -> None:
                async with js.batch_publisher("other") as publisher:
                    acks.extend([await publisher.publish(b"") for _ in range(records)])

            with pytest.raises(Unsupported):
                await leave_them_unseen()
            for ack in acks:
                with pytest.raises(Unsupported):
                    await ack
            async with js.batch_publisher("other") as publisher:
                seen = await publisher.publish(b"")
                with pytest.raises(Unsupported):
                    await seen
                await publisher.flush()  # what somebody has looked at is not told again

    run(scenario())


def test_an_ack_does_not_keep_its_record(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with nats_and_node(tmp_path) as (url, _), jetstream.connect(url) as js:
            await js.streams.create("orders", "orders.>")
            value = bytes(1000)
            before = sys.getrefcount(value)
            async with js.batch_publisher("orders.new") as publisher:
                ack = await publisher.publish(value)
            assert sys.getrefcount(value) == before
            assert (await ack).offset == 0

    run(scenario())


def test_headers_that_change_after_they_were_published_are_stored_as_they_were(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with nats_and_node(tmp_path) as (url, _), jetstream.connect(url) as js:
            await js.streams.create("orders", "orders.>")
            headers: dict[str, bytes] = {}
            async with js.batch_publisher("orders.new", transmit="bytes") as publisher:
                for value in (b"1", b"2"):
                    headers["n"] = value
                    _ = await publisher.publish(value, headers=headers)
            records = [record async for record in js.read("orders")]
            assert [record.headers for record in records] == [(("n", b"1"),), (("n", b"2"),)]

    run(scenario())


def test_who_publishes_when_the_block_is_left_is_told(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with nats_and_node(tmp_path) as (url, _), jetstream.connect(url) as js:
            await js.streams.create("orders", "orders.>")
            async with js.batch_publisher("orders.new") as publisher:
                ack = await publisher.publish(b"")
            with pytest.raises(RequestError):
                _ = await publisher.publish(b"too late")
            await publisher.flush()
            assert (await ack).offset == 0

    run(scenario())


async def handled(publisher: jetstream.BatchPublisher) -> type[Exception] | None:
    """Publish one record and wait for its ack, as one of many handlers does."""
    try:
        await (await publisher.publish(bytes(50)))
    except JetstreamError as error:
        return type(error)
    return None


def test_nobody_waits_for_a_publisher_that_was_left_by_an_error(tmp_path: Path) -> None:
    """Some wait for room, some for an ack, and one for all acks."""

    async def scenario() -> None:
        async with nats_and_node(tmp_path) as (url, _), jetstream.connect(url) as js:
            await js.nats.subscribe("silent")

            async def fail(tasks: asyncio.TaskGroup) -> list[asyncio.Task[Any]]:
                others: list[asyncio.Task[Any]] = []
                with suppress(ZeroDivisionError):
                    async with js.batch_publisher("silent", batch_bytes=100, window=1) as publisher:
                        others += [tasks.create_task(handled(publisher)) for _ in range(50)]
                        others.append(tasks.create_task(publisher.flush()))
                        await asyncio.sleep(0)
                        raise ZeroDivisionError
                return others

            async with asyncio.timeout(30), asyncio.TaskGroup() as tasks:
                others = await fail(tasks)
            *ends, flushed = [each.result() for each in others]
            assert set(ends) == {ConnectionLost, RequestError}
            assert flushed is None, "what failed was told to others"

    run(scenario())


BAD_RECORDS: dict[str, dict[str, Any]] = {
    "a txid of 65 bits": {"txid": 1 << 63},
    "a key that is text": {"key": "k"},
    "a header that is text": {"headers": {"a": "b"}},
    "a header without a value": {"headers": {"a": None}},
    "a header that is no UTF-8": {"headers": {"\udc80": b""}},
    "a header that is a message's": {"headers": {"Nats-Msg-Id": b"1"}},
}


@pytest.mark.parametrize("name", BAD_RECORDS)
def test_a_record_that_can_be_none_is_refused_alone(tmp_path: Path, name: str) -> None:
    async def scenario() -> None:
        async with nats_and_node(tmp_path) as (url, _), jetstream.connect(url) as js:
            await js.streams.create("orders", "orders.>")
            async with js.batch_publisher("orders.new") as publisher:
                ack = await publisher.publish(b"good")
                with pytest.raises(RequestError):
                    _ = await publisher.publish(b"bad", **BAD_RECORDS[name])
            assert (await ack).offset == 0

    run(scenario())


class Deceptive(str):
    """Text that is no UTF-8, and says that it is."""

    __slots__ = ()

    def encode(self, encoding: str = "utf-8", errors: str = "strict") -> bytes:
        return b""


def test_an_envelope_that_cannot_be_made_fails_alone(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with nats_and_node(tmp_path) as (url, _), jetstream.connect(url) as js:
            await js.streams.create("orders", "orders.>")
            async with js.batch_publisher("orders.new", transmit="immediate") as publisher:
                bad = await publisher.publish(b"", headers={Deceptive("\udc80"): b""})
                with pytest.raises(InternalError):
                    await bad
                assert (await (await publisher.publish(b"good"))).offset == 0

    run(scenario())

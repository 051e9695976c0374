"""Reading a part of a stream: the node leaves out what a reader does not want."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

import jetstream
from envelope.errors import RequestError
from jetstream import JetstreamClient, RecordReader
from jetstream.node.node import Node
from jetstream.protocol.requests import Fetch
from jetstream.protocol.responses import FetchResponse
from tests.support.commands import jetstream as jetstream_command
from tests.support.commands import json_lines, succeeded, up
from tests.support.nodes import nats_and_node
from tests.support.sockets import run

COUNTRIES = ("de", "fr", "it")


@asynccontextmanager
async def orders(directory: Path) -> AsyncIterator[tuple[JetstreamClient, Node]]:
    """A client, and 900 orders in several segments, each with its number as value."""
    async with nats_and_node(directory) as (url, node), jetstream.connect(url) as js:
        await js.streams.create("orders", "orders.>", segment_bytes=1 << 20)
        padding = b"x" * 5000
        # A segment ends between write groups, and a group may hold all that waits: four at least.
        for first in range(0, 900, 225):
            await js.publish_all(
                (f"orders.{COUNTRIES[n % 3]}", b"%d " % n + padding, {"key": f"customer-{n % 10}", "txid": n})
                for n in range(first, first + 225)
            )
        yield js, node


def test_a_subject_a_key_and_columns_are_chosen(tmp_path: Path) -> None:
    async def test() -> None:
        async with orders(tmp_path) as (js, node):
            stream = node.stream("orders")
            assert stream is not None
            assert len(stream.log.reader.segments) > 2
            everything = [record.offset async for record in js.read("orders")]
            assert everything == list(range(900))
            french = [record async for record in js.read("orders", subject="orders.fr")]
            assert [record.offset for record in french] == list(range(1, 900, 3))
            assert {record.subject for record in french} == {"orders.fr"}
            assert french[0].value is not None
            assert french[0].value.startswith(b"1 x")
            one = [record.offset async for record in js.read("orders", subject="*.it", key="customer-2")]
            assert one == [n for n in range(900) if n % 3 == 2 and n % 10 == 2]
            assert [record async for record in js.read("orders", key="nobody")] == []
            reader = js.read("orders", columns=["txid"], start=100, end=200)
            bare = [record async for record in reader]
            assert [(record.offset, record.txid) for record in bare] == [(n, n) for n in range(100, 200)]
            assert {(record.key, record.value) for record in bare} == {(None, None)}
            assert reader.next_offset == 200

    run(test())


def test_a_reader_gets_on_behind_what_does_not_match(tmp_path: Path) -> None:
    async def test() -> None:
        async with orders(tmp_path) as (js, _):
            link = await js._links.link()
            answer = await link.ask(Fetch(id=link.next_id(), stream="orders", offset=0, key="nobody"))
            assert isinstance(answer.response, FetchResponse)
            assert (answer.response.records, len(answer.body)) == (0, 0)
            assert answer.response.next_offset > 0
            reader = js.read("orders", key="nobody")
            assert [record async for record in reader] == []
            assert reader.next_offset == 900
            following = js.read("orders", start=0, subject="orders.new", follow=True)
            await js.publish("orders.old", b"no")
            await js.publish("orders.new", b"yes")
            assert (await anext(following)).offset == 901
            assert following.next_offset == 902

    run(test())


def test_fetches_are_bounded_by_records(tmp_path: Path) -> None:
    async def test() -> None:
        async with orders(tmp_path) as (js, _):
            link = await js._links.link()

            async def fetch(stream: str = "orders", **fields: object) -> FetchResponse:
                request = Fetch(id=link.next_id(), stream=stream, max_bytes=1 << 22, **fields)  # type: ignore[arg-type]  # keyword by keyword
                response = (await link.ask(request)).response
                assert isinstance(response, FetchResponse)
                return response

            await js.streams.create("singles", "singles")
            for _ in range(5):
                await js.publish("singles", b"a batch of its own")
            for most, records in ((1, 1), (2, 2), (4, 4), (9, 5)):
                assert (await fetch("singles", offset=0, max_records=most)).records == records
            whole_batch = await fetch(offset=0, max_records=1)
            assert (whole_batch.start_offset, whole_batch.next_offset) == (0, whole_batch.records)
            offset, counts = 5, []
            while offset < 900:
                response = await fetch(offset=offset, max_records=7, subject="orders.de")
                assert offset < response.next_offset <= 900
                counts.append(response.records)
                if response.records == 7:
                    assert response.next_offset % 3 == 1, "behind the seventh, not at the end of its batch"
                offset = response.next_offset
            assert max(counts) == 7
            assert sum(counts) == len(range(6, 900, 3))

    run(test())


def test_a_compressed_stream_is_read_in_part_however_well_it_compresses(tmp_path: Path) -> None:
    async def test() -> None:
        async with nats_and_node(tmp_path) as (url, node), jetstream.connect(url) as js:
            await js.streams.create("zeros", "zeros.>", compression="zstd")
            zeros = bytes(900_000)
            for first in range(0, 90, 30):  # so many bytes as a mailbox takes, however busy its node is
                some = range(first, first + 30)
                await js.publish_all((f"zeros.{n % 2}", zeros, {"key": f"{n}"}) for n in some)
            stream = node.stream("zeros")
            assert stream is not None
            assert stream.log.reader.size < 4 << 20
            odd = [record async for record in js.read("zeros", subject="zeros.1")]
            assert [record.offset for record in odd] == list(range(1, 90, 2))
            assert {record.value for record in odd} == {zeros}
            keys = [record.key async for record in js.read("zeros", columns=["key"])]
            assert keys == [b"%d" % n for n in range(90)]

    run(test())


def test_a_following_part_ends_at_its_moment_although_nothing_matches(tmp_path: Path) -> None:
    async def test() -> None:
        async with nats_and_node(tmp_path) as (url, _), jetstream.connect(url) as js:
            await js.streams.create("orders", "orders.>")
            end = datetime.now(UTC) + timedelta(seconds=0.3)
            reader = js.read("orders", subject="orders.wanted", end=end, follow=True)

            async def publish_until_it_ends() -> None:
                while not reading.done():
                    await js.publish("orders.other", b"x")

            async with asyncio.timeout(30), asyncio.TaskGroup() as tasks:
                reading = tasks.create_task(offsets_of(reader))
                tasks.create_task(publish_until_it_ends())
            assert reading.result() == []

    run(test())


async def offsets_of(reader: RecordReader) -> list[int]:
    return [record.offset async for record in reader]


def test_a_pattern_that_is_none_is_refused_on_both_sides(tmp_path: Path) -> None:
    async def test() -> None:
        async with nats_and_node(tmp_path) as (url, _), jetstream.connect(url) as js:
            await js.streams.create("a", "a")
            await js.publish("a", b"v")
            for pattern in ("", "a..b", "a.>.b", " ", "a b", ">.a"):
                with pytest.raises(RequestError):
                    js.read("a", subject=pattern)
                link = await js._links.link()
                with pytest.raises(RequestError, match="subject: "):
                    await link.ask(Fetch(id=link.next_id(), stream="a", offset=0, subject=pattern))
            assert [record.value async for record in js.read("a")] == [b"v"]

    run(test())


@pytest.mark.parametrize("option", [{"subject": "*" * 5000}, {"key": "k" * 2000}, {"columns": ["subject"]}])
def test_a_selection_that_is_none_is_refused_before_it_is_sent(option: dict[str, object]) -> None:
    async def test() -> None:
        async with jetstream.connect(socket="127.0.0.1:1") as js:
            with pytest.raises(RequestError):
                js.read("a", **option)  # type: ignore[arg-type]  # the mistake itself

    run(test())


def test_the_command_reads_a_part(tmp_path: Path) -> None:
    process, endpoints = up(tmp_path)

    def read(*arguments: str) -> list[dict[str, object]]:
        return json_lines(succeeded("read", "orders", *arguments, nats=endpoints["nats"]))

    with process:
        succeeded("stream", "create", "orders", "--subject", "orders.>", nats=endpoints["nats"])
        succeeded("pub", "orders.a", "1", "--key", "k", nats=endpoints["nats"])
        succeeded("pub", "orders.b", "2", "--key", "k", nats=endpoints["nats"])
        assert [record["value"] for record in read("--subject", "*.b", "--key", "k")] == ["2"]
        assert [(record["key"], "value" in record) for record in read("--columns", "key")] == [
            ("k", False)
        ] * 2
        assert read("--key", "nobody") == []
        refused = jetstream_command("read", "orders", "--columns", "subject", nats=endpoints["nats"])
        assert refused.exit_code == 2
        assert "there are key, headers, txid, value" in " ".join(refused.stderr.split())

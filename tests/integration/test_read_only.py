"""Read-only streams on a real node: what is refused, what goes on, what becomes of what is in flight."""

import asyncio
from pathlib import Path

import nats.js.errors
import pyarrow as pa
import pytest
from typer.testing import CliRunner

import jetstream
from envelope.errors import StreamReadOnly, UnknownStream
from jetstream.cli.main import app
from tests.support.nodes import nats_and_node, run
from tests.support.publishers import Witness
from tests.support.sockets import asked, until

ROUNDS = 6
A_ROUND = 300


async def values(js: jetstream.JetstreamClient) -> list[bytes | None]:
    return [record.value async for record in js.read("orders")]


def test_messages_are_refused_and_everything_else_goes_on(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with (
            nats_and_node(tmp_path, maintenance_interval=0.05) as (url, node),
            jetstream.connect(url) as js,
        ):
            await js.streams.create("orders", "orders.>", segment_bytes=64 * 1024)
            for number in range(4):
                await js.publish("orders.new", b"%d" % number * 60_000, message_id=f"id-{number}")
            assert (await js.streams.update("orders", read_only=True)).config.read_only
            with pytest.raises(StreamReadOnly, match="stream orders is read-only"):
                await js.publish("orders.new", b"x")
            with pytest.raises(StreamReadOnly):
                await js.publish_batch("orders.new", pa.table({"value": [b"x", b"y"]}))
            with pytest.raises(nats.js.errors.BadRequestError) as official:
                await js.nats.jetstream().publish("orders.new", b"x")
            assert official.value.err_code == 10109
            assert (await js.publish("orders.new", b"x", message_id="id-3")).duplicate, "it is stored already"
            assert len(await values(js)) == 4
            async with js.read("orders", start=4, follow=True) as reader, asked(reader) as next_record:
                done = await js.streams.truncate("orders", before=1)
                assert done.log_start_offset == 1
                await js.streams.update("orders", retention={"age": 0.001})
                stream = node.stream("orders")
                assert stream is not None
                await until(lambda: stream.log.log_start_offset == 4)
                assert await values(js) == [], "retention by age goes on, too"
                await js.streams.update("orders", retention={"age": None})
                assert (await js.streams.update("orders", read_only=False)).config.read_only is False
                assert (await js.publish("orders.new", b"last")).offset == 4
                assert (await next_record()).value == b"last", "a reader at the end waits as ever"
            await js.streams.update("orders", read_only=True)
            await js.streams.delete("orders")
            with pytest.raises(UnknownStream):
                await js.streams.info("orders")

    run(scenario())


def test_what_is_published_while_it_is_switched_is_acked_or_refused(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with nats_and_node(tmp_path) as (url, _), jetstream.connect(url) as js:
            await js.streams.create("orders", "orders.>")
            witness = Witness("orders.new", url)
            await witness.open()
            for turn in range(ROUNDS):
                is_open = turn % 2 == 1
                async with asyncio.TaskGroup() as tasks:
                    tasks.create_task(witness.publish(A_ROUND))
                    await js.streams.update("orders", read_only=not is_open)
                before = witness.published
                await witness.publish(10)  # sent when the update had been answered
                await until(lambda: witness.is_answered)
                assert {number in witness.acked for number in range(before, before + 10)} == {is_open}
            assert {error["err_code"] for error in witness.refused.values()} == {10109}
            stored = await values(js)
            assert [stored[offset] for offset in witness.acked.values()] == [
                b"%d" % number for number in witness.acked
            ]
            assert len(stored) == len(witness.acked), (
                "what was refused is not stored, what was acked is, once"
            )
            await witness.retry_until_acked()
            assert sorted(int(value or b"") for value in await values(js)) == list(range(witness.published))
            await witness.close()

    run(scenario())


def test_the_command_switches_it_and_shows_it(tmp_path: Path) -> None:
    def command(url: str, *words: str) -> str:
        done = CliRunner().invoke(app, [*words, "--nats", url])
        assert done.exit_code == 0, done.output
        return done.output

    async def scenario() -> None:
        async with nats_and_node(tmp_path) as (url, _), jetstream.connect(url) as js:
            create = ("stream", "create", "orders", "--subject", "orders.>", "--read-only")
            await asyncio.to_thread(command, url, *create)
            with pytest.raises(StreamReadOnly):
                await js.publish("orders.new", b"x")
            shown = await asyncio.to_thread(command, url, "stream", "info", "orders")
            assert "read only" in shown
            await asyncio.to_thread(command, url, "stream", "update", "orders", "--no-read-only")
            assert (await js.publish("orders.new", b"x")).offset == 0

    run(scenario())

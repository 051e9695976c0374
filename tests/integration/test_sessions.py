"""Publisher sessions on real nodes: what is sent again is not stored again, whatever happened to the node."""

import asyncio
import gc
import re
import signal
import subprocess
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any, cast

import pytest
from nats.aio.msg import Msg

import jetstream
from envelope.errors import (
    ConnectionLost,
    InvalidSubject,
    JetstreamError,
    OffsetForgotten,
    RecordTooLarge,
    RequestError,
    SequenceGap,
    SessionExpired,
)
from envelope.types import TimestampUs
from jetstream.client.publish.messages import PublishOptions
from jetstream.ingest.publishers.sessions import WINDOW_US_DEFAULT
from jetstream.node.nats.embedded_server import EmbeddedNatsServer
from jetstream.node.node import Node
from metadata.api.responses import StreamInfo
from tests.support.commands import succeeded
from tests.support.forked_process import ForkedProcess
from tests.support.nodes import nats_and_node, node_config, run
from tests.support.stream_by_hand import LostOnce, stream_by_hand

COUNT = 300


async def values(js: jetstream.JetstreamClient, stream: str = "orders") -> list[bytes | None]:
    return [record.value async for record in js.read(stream)]


async def publish_numbers(js: jetstream.JetstreamClient, count: int) -> list[jetstream.SessionAck]:
    async with js.session("importer", window=50) as session:
        futures = [await session.publish("orders.new", b"%d" % number) for number in range(count)]
        return [await future for future in futures]


def test_a_session_numbers_pipelines_and_repeats(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with nats_and_node(tmp_path) as (url, _), jetstream.connect(url) as js:
            await js.streams.create("orders", "orders.>")
            first = await publish_numbers(js, COUNT)
            assert [(ack.sequence, ack.offset, ack.duplicate) for ack in first] == [
                (number + 1, number, False) for number in range(COUNT)
            ]
            again = await publish_numbers(js, COUNT + 10)
            assert [(ack.offset, ack.duplicate) for ack in again] == [
                (number, number < COUNT) for number in range(COUNT + 10)
            ]
            assert await values(js) == [b"%d" % number for number in range(COUNT + 10)]
            info = await js.streams.info("orders")
            assert (info.dedupe.sessions, info.dedupe.ids) == (1, COUNT + 10)

    run(scenario())


def test_what_a_session_is_told(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with nats_and_node(tmp_path) as (url, _), jetstream.connect(url) as js:
            await js.streams.create("orders", "orders.>")
            await js.publish("orders.new", b"1", session="s", sequence=1, sequence_after=0)
            with pytest.raises(SequenceGap, match="last sequence of the session: 1"):
                await js.publish("orders.new", b"3", session="s", sequence=3, sequence_after=2)
            with pytest.raises(SessionExpired):
                await js.publish("orders.new", b"9", session="t", sequence=9, sequence_after=8)
            assert (await js.publish("orders.new", b"3", session="s", sequence=3)).offset == 1

    run(scenario())


def test_a_repeat_whose_offset_is_forgotten_is_acked_without_one(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with nats_and_node(tmp_path) as (url, _), jetstream.connect(url) as js:
            await js.streams.create("orders", "orders.>", dedupe_ids_max=10)
            await publish_numbers(js, 100)
            with pytest.raises(OffsetForgotten):
                await js.publish("orders.new", b"0", session="importer", sequence=1, sequence_after=0)
            again = await publish_numbers(js, 101)
            assert {ack.offset for ack in again[:80]} == {None}
            assert all(ack.duplicate for ack in again[:100])
            assert (again[100].offset, again[100].duplicate) == (100, False)
            assert len(await values(js)) == 101

    run(scenario())


def test_info_tells_how_far_back_repeats_are_found_when_ids_came_too_fast(tmp_path: Path) -> None:
    hour = timedelta(hours=1)

    async def scenario() -> None:
        async with nats_and_node(tmp_path) as (url, _), jetstream.connect(url) as js:
            await js.streams.create("orders", "orders.>", dedupe_ids_max=10, dedupe_window=hour)

            async def publish(first: int, end: int) -> list[bool]:
                ids = (PublishOptions(message_id=f"m{number}") for number in range(first, end))
                return [
                    ack.duplicate for ack in await js.publish_all(("orders.new", b"", each) for each in ids)
                ]

            async def told(*options: str) -> str:
                return await asyncio.to_thread(succeeded, "stream", "info", "orders", *options, nats=url)

            await publish(0, 10)
            assert (await js.streams.info("orders")).dedupe.effective_window == hour
            assert re.search(r"message ids\W+10 within 1:00:00", await told())
            await publish(10, 15)
            info = await js.streams.info("orders")
            assert timedelta(0) < info.dedupe.effective_window < hour, "since the last one that is forgotten"
            assert re.search(r"message ids\W+\d+ within 0:0", await told())
            shown = StreamInfo.model_validate_json(await told("--json"))
            assert timedelta(0) < shown.dedupe.effective_window < hour
            assert await publish(10, 15) == [True] * 5
            assert await publish(0, 5) == [False] * 5

    run(scenario())


def test_a_session_goes_on_after_a_restart_though_its_records_are_gone(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with EmbeddedNatsServer(tmp_path / "nats") as server:
            config = node_config(tmp_path / "data", server.url)
            async with Node(config), jetstream.connect(server.url) as js:
                await js.streams.create("orders", "orders.>")
                await publish_numbers(js, COUNT)
                await js.publish("orders.new", b"last")
                await js.streams.truncate("orders", before=COUNT)
            async with Node(config), jetstream.connect(server.url) as js:
                again = await publish_numbers(js, COUNT + 1)
                assert all(ack.duplicate for ack in again[:COUNT])
                assert again[COUNT].offset == COUNT + 1
                assert await values(js) == [b"last", b"%d" % COUNT]

    run(scenario())


def test_a_session_outlives_its_node(tmp_path: Path) -> None:
    """Nothing is stored twice, or lost, or out of order, while the node stops and starts under it."""

    async def scenario() -> None:
        async with EmbeddedNatsServer(tmp_path / "nats") as server:
            config = node_config(tmp_path / "data", server.url)
            async with jetstream.connect(server.url) as js:
                async with Node(config):
                    await js.streams.create("orders", "orders.>")
                started = asyncio.Event()

                async def publish() -> list[jetstream.SessionAck]:
                    async with js.session(window=20, timeout_s=0.2) as session:
                        futures = []
                        for number in range(COUNT):
                            futures.append(await session.publish("orders.new", b"%d" % number))
                            if number == COUNT // 3:
                                await futures[0]
                                started.set()
                        return [await future for future in futures]

                async with asyncio.TaskGroup() as tasks:
                    publishing = tasks.create_task(publish())
                    async with Node(config):
                        await started.wait()
                    async with Node(config):
                        acks = await publishing
                        assert [ack.offset for ack in acks] == list(range(COUNT))
                        assert await values(js) == [b"%d" % number for number in range(COUNT)]

    run(scenario())


def test_a_refused_message_is_left_out_and_the_others_go_on(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with nats_and_node(tmp_path) as (url, _), jetstream.connect(url) as js:
            await js.streams.create("orders", "orders.>", record_bytes_max=1000)
            async with js.session() as session:
                futures = [
                    await session.publish("orders.new", b"%d" % number if number != 5 else bytes(2000))
                    for number in range(10)
                ]
                with pytest.raises(RecordTooLarge):
                    await futures[5]
                await session.flush()
            assert await values(js) == [b"%d" % number for number in range(10) if number != 5]

    run(scenario())


def test_of_many_failures_that_nobody_looks_at_the_first_is_raised_with_their_number(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with nats_and_node(tmp_path) as (url, _), jetstream.connect(url) as js:
            await js.streams.create("orders", "orders.>", record_bytes_max=1000)
            with pytest.raises(RecordTooLarge) as caught:
                async with js.session() as session:
                    ignored = [await session.publish("orders.new", bytes(2000)) for _ in range(150)]
            assert caught.value is asyncio.Future.exception(ignored[0])
            assert caught.value.__notes__ == ["150 messages failed; this is the first"]

    run(scenario())


def test_what_was_refused_is_not_taken_for_stored_when_the_session_is_run_again(tmp_path: Path) -> None:
    """The stream is read-only for two of six messages; the second run has the same six."""

    async def scenario() -> None:
        async with nats_and_node(tmp_path) as (url, _), jetstream.connect(url) as js:
            await js.streams.create("orders", "orders.>")

            async def publish(read_only: range) -> list[int | str | None]:
                told: list[int | str | None] = []
                async with js.session("importer") as session:
                    for number in range(6):
                        if number in (read_only.start, read_only.stop):
                            await js.streams.update("orders", read_only=number in read_only)
                        try:
                            ack = await (await session.publish("orders.new", b"%d" % number))
                            told.append(ack.offset)
                        except RequestError as error:
                            told.append(error.err_code)
                return told

            assert await publish(range(2, 4)) == [0, 1, "stream_read_only", "stream_read_only", 2, 3]
            assert (await publish(range(0)))[:3] == [0, 1, "sequence_passed"]
            assert await values(js) == [b"0", b"1", b"4", b"5"]

    run(scenario())


@asynccontextmanager
async def silent_stream(directory: Path) -> AsyncIterator[tuple[str, asyncio.Event]]:
    """Have a stream that never answers, and an event that a message has come."""
    async with EmbeddedNatsServer(directory / "nats") as server, jetstream.connect(server.url) as js:
        arrived = asyncio.Event()

        async def take(_: Msg) -> None:
            arrived.set()

        await js.nats.subscribe("orders.>", cb=take)
        await js.nats.flush()
        yield server.url, arrived


@pytest.mark.parametrize("lost", [{1}, {2}, {5}, {1, 2}, {1, 5}])
def test_a_message_that_is_lost_on_its_way_is_sent_again_before_those_behind_it(
    tmp_path: Path, lost: set[int]
) -> None:
    async def scenario() -> None:
        async with (
            EmbeddedNatsServer(tmp_path / "nats") as server,
            jetstream.connect(server.url) as js,
            stream_by_hand(js.nats) as stream,
        ):
            stream.delivers = LostOnce(*lost)
            async with js.session(timeout_s=0.5) as session:
                futures = [await session.publish("orders.new", b"%d" % number) for number in range(5)]
                assert [(await future).offset for future in futures] == list(range(5))
            assert stream.ingest.values == [b"%d" % number for number in range(5)]

    run(scenario())


@pytest.mark.parametrize("lost", [set(), {1}])
def test_an_ack_that_comes_after_its_message_was_sent_again_counts(tmp_path: Path, lost: set[int]) -> None:
    """A stream that takes longer than the timeout, always: what it says is about the attempt before the last.

    That a message was refused then says nothing about its last attempt.
    """

    async def scenario() -> None:
        untold: list[dict[str, Any]] = []
        asyncio.get_running_loop().set_exception_handler(lambda _, context: untold.append(context))
        async with (
            EmbeddedNatsServer(tmp_path / "nats") as server,
            jetstream.connect(server.url) as js,
            stream_by_hand(js.nats) as stream,
        ):
            stream.delivers, stream.lag = LostOnce(*lost), 5
            async with js.session(timeout_s=0.2, retry_s=5) as session:
                futures = [await session.publish("orders.new", b"%d" % number) for number in range(5)]
                assert [(await future).offset for future in futures] == list(range(5))
            assert stream.ingest.values == [b"%d" % number for number in range(5)]
        gc.collect()
        assert untold == []

    run(scenario())


@pytest.mark.parametrize("lost", [set(), {3}])
def test_a_session_that_expired_while_it_was_published_is_not_begun_anew(
    tmp_path: Path, lost: set[int]
) -> None:
    async def scenario() -> None:
        async with (
            EmbeddedNatsServer(tmp_path / "nats") as server,
            jetstream.connect(server.url) as js,
            stream_by_hand(js.nats) as stream,
        ):
            async with js.session() as session:
                for number in range(2):
                    await (await session.publish("orders.new", b"%d" % number))
                stream.ingest.now = TimestampUs(stream.ingest.now + WINDOW_US_DEFAULT)
                stream.delivers = LostOnce(*lost)
                futures = [await session.publish("orders.new", b"%d" % number) for number in (2, 3, 4)]
                for future in futures:
                    with pytest.raises(SessionExpired):
                        await future
            assert stream.ingest.values == [b"0", b"1"]

    run(scenario())


def test_a_session_is_published_without_asyncio(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with nats_and_node(tmp_path) as (url, _):
            await asyncio.to_thread(publish, url)

    def publish(url: str) -> None:
        with jetstream.connect_blocking(url) as js:
            js.streams.create("orders", "orders.>")
            messages = [("orders.new", b"%d" % number) for number in range(COUNT)]
            assert not any(ack.duplicate for ack in js.publish_session(messages, "importer", window=10))
            acks = js.publish_session(messages, "importer", window=10)
            assert [(ack.offset, ack.duplicate) for ack in acks] == [(n, True) for n in range(COUNT)]

    run(scenario())


def publish_until_closed(url: str, ended: list[BaseException], closing: threading.Event) -> None:
    """Publish in a client that is closed meanwhile."""
    with jetstream.connect_blocking(url) as js:
        publisher = threading.Thread(target=note_how_it_ends, args=(js, ended), daemon=True)
        publisher.start()
        assert closing.wait(30)
    publisher.join(30)


def note_how_it_ends(js: jetstream.BlockingClient, ended: list[BaseException]) -> None:
    try:
        js.publish_session([("orders.new", b"1")])
    except JetstreamError as error:
        ended.append(error)


def test_a_session_under_a_client_that_is_closed_ends_with_an_unknown_outcome(tmp_path: Path) -> None:
    """Not with the error that says that nothing was done."""
    ended: list[BaseException] = []

    async def scenario() -> None:
        async with silent_stream(tmp_path) as (url, arrived), asyncio.TaskGroup() as tasks:
            closing = threading.Event()
            tasks.create_task(asyncio.to_thread(publish_until_closed, url, ended, closing))
            await arrived.wait()
            closing.set()

    run(scenario())
    assert [type(error) for error in ended] == [ConnectionLost]


def test_ctrl_c_ends_a_session_without_asyncio(tmp_path: Path) -> None:
    """Its stream is silent: it does not wait for the acks, as a session does that ends."""
    program = """
import sys, jetstream
with jetstream.connect_blocking(sys.argv[1]) as js:
    js.publish_session([("orders.new", b"1")], timeout_s=0.1, retry_s=1e9)
"""

    async def scenario() -> None:
        async with silent_stream(tmp_path) as (url, arrived):
            with ForkedProcess(
                "tests.support.forked_program", (program, url), stderr=subprocess.PIPE
            ) as process:
                await arrived.wait()
                process.send_signal(signal.SIGINT)
                try:
                    _, errors = await asyncio.to_thread(process.communicate, timeout=30)
                finally:
                    process.kill()
            assert process.returncode == -signal.SIGINT, errors
            assert b"never retrieved" not in errors
            assert b"was destroyed" not in errors

    run(scenario())


@pytest.mark.parametrize(
    ("message", "error"),
    [
        (("orders.new", "text"), TypeError),
        (("orders.new", 5), TypeError),
        (("orders.\udc80", b"sent in vain"), InvalidSubject),
    ],
)
def test_what_can_be_no_message_ends_a_session_instead_of_a_wait_without_an_end(
    tmp_path: Path, message: tuple[str, Any], error: type[Exception]
) -> None:
    def publish(url: str) -> None:
        with (
            jetstream.connect_blocking(url) as js,
            pytest.raises(error),
        ):
            js.publish_session([("orders.new", b"0"), message, ("orders.new", b"2")])

    async def scenario() -> None:
        async with nats_and_node(tmp_path) as (url, _), jetstream.connect(url) as js:
            await js.streams.create("orders", "orders.>")
            await asyncio.to_thread(publish, url)
            with pytest.raises(error):
                async with js.session() as session:
                    await (await session.publish(*message))
            stored = await values(js)
            is_left_out = error is InvalidSubject and stored == [
                b"0",
                b"2",
            ]  # C20: until somebody hears of it
            assert is_left_out or stored in ([], [b"0"])

    run(scenario())


def test_bytes_that_change_after_they_were_published_are_stored_as_they_were(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with nats_and_node(tmp_path) as (url, _), jetstream.connect(url) as js:
            await js.streams.create("orders", "orders.>")
            reused, waiting = bytearray(b"0"), []
            async with js.session() as session:
                for number in range(3):
                    reused[:] = b"%d" % number
                    waiting.append(await session.publish("orders.new", cast("bytes", reused)))
            assert await values(js) == [b"0", b"1", b"2"]

    run(scenario())

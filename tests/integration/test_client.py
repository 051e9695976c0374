"""The client library against a real node on a real nats-server."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from datetime import timedelta
from pathlib import Path

import nats
import pytest
from nats.aio.msg import Msg

import jetstream
from envelope.errors import (
    ConnectionLost,
    DeadlinePassed,
    InvalidConfig,
    InvalidHeader,
    InvalidName,
    InvalidSubject,
    JetstreamError,
    NoResponders,
    OffsetOutOfRange,
    RecordTooLarge,
    RequestError,
    StreamExists,
    TxidDecreasing,
    UnknownStream,
    Unsupported,
    WrongExpectedStream,
    WrongLastMessageId,
    WrongLastSequence,
)
from envelope.limits import MIB
from jetstream import JetstreamClient
from jetstream.client.publish.messages import PublishOptions
from jetstream.node.disk.history_file import NOTE_FILE
from metadata.api.responses import CreateStreamResponse
from tests.support.nodes import nats_and_node
from tests.support.sockets import LOOPS, asked, run, until

Body = Callable[[JetstreamClient], Awaitable[None]]


@asynccontextmanager
async def a_cluster(directory: Path) -> AsyncIterator[tuple[str, JetstreamClient]]:
    """NATS, a node, and a client of both."""
    async with nats_and_node(directory) as (url, _), jetstream.connect(url) as js:
        yield url, js


def with_client(directory: Path, body: Body, loop: str = "uvloop") -> None:
    async def test() -> None:
        async with a_cluster(directory) as (_, js):
            await body(js)

    run(test(), loop)


@pytest.mark.parametrize("loop", list(LOOPS))
def test_what_is_published_is_read_back(tmp_path: Path, loop: str) -> None:
    async def body(js: JetstreamClient) -> None:
        created = await js.streams.create("orders", "orders.>", dedupe_window=timedelta(minutes=1))
        assert created.created
        ack = await js.publish("orders.new", b"one", key="k", headers={"h": "v"}, message_id="m", txid=3)
        assert (ack.stream, ack.offset, ack.epoch, ack.duplicate) == (
            "orders",
            0,
            created.leader_epoch,
            False,
        )
        again = await js.publish("orders.new", b"one", message_id="m")
        assert (again.offset, again.duplicate) == (0, True)
        assert (await js.publish("orders.gone", None, key=b"k")).offset == 1
        first, second = [record async for record in js.read("orders")]
        assert (first.subject, first.key, first.txid, first.value) == ("orders.new", b"k", 3, b"one")
        assert ("h", b"v") in first.headers
        assert (second.subject, second.value) == ("orders.gone", None)

    with_client(tmp_path, body, loop)


def test_streams_are_created_found_changed_and_deleted(tmp_path: Path) -> None:
    async def body(js: JetstreamClient) -> None:
        streams = js.streams
        await streams.create("a", "a.*", retention={"age": timedelta(hours=1)})
        assert not (await streams.create("a", "a.*", retention={"age": "PT1H"})).created
        with pytest.raises(StreamExists):
            await streams.create("a", "b.*")
        await streams.create("b", "a.x")
        assert [found.name for found in await streams.list()] == ["a", "b"]
        assert [found.name for found in await streams.list(prefix="b")] == ["b"]
        assert {found.name for found in await streams.lookup("a.x")} == {"a", "b"}
        assert (await streams.update("a", retention=None)).config.retention.age is None
        for _ in range(3):
            await js.publish("a.y", b"v")
        assert (await streams.truncate("a", before=2)).log_start_offset == 2
        assert (await streams.info("a")).high_watermark == 3
        with pytest.raises(OffsetOutOfRange):
            await streams.truncate("a", before=4)
        with pytest.raises(OffsetOutOfRange):
            await anext(js.read("a", start=0))
        await streams.delete("b")
        with pytest.raises(UnknownStream):
            await streams.info("b")
        with pytest.raises(RequestError):
            await streams.create("c", "c", no_such_setting=1)

    with_client(tmp_path, body)


def test_refusals_are_typed(tmp_path: Path) -> None:
    async def body(js: JetstreamClient) -> None:
        await js.streams.create("a", "a", record_bytes_max=100)
        with pytest.raises(WrongLastSequence):
            await js.publish("a", b"v", expected_last_sequence=5)
        with pytest.raises(WrongExpectedStream):
            await js.publish("a", b"v", stream="another")
        with pytest.raises(RecordTooLarge):
            await js.publish("a", b"v" * 101)
        with pytest.raises(RecordTooLarge):
            await js.publish("a", bytes(js.nats.max_payload + 1))
        with pytest.raises(InvalidSubject):
            await js.publish("a b", b"v")
        with pytest.raises(NoResponders):
            await js.publish("nobody.listens", b"v")
        assert (await js.publish("a", b"v", expected_last_sequence=0)).offset == 0

    with_client(tmp_path, body)


def test_a_refusal_of_the_stream_is_raised_as_its_own_class(tmp_path: Path) -> None:
    refused: tuple[tuple[PublishOptions, type[JetstreamError]], ...] = (
        ({"txid": 6}, TxidDecreasing),
        ({"headers": {"Jetstream-Txid": "seven"}}, InvalidHeader),
        ({"headers": {"Nats-Rollup": "all"}}, Unsupported),
        ({"expected_last_sequence": 5}, WrongLastSequence),
        ({"expected_last_message_id": "m"}, WrongLastMessageId),
        ({"stream": "another"}, WrongExpectedStream),
    )

    async def body(js: JetstreamClient) -> None:
        await js.streams.create("a", "a")
        await js.publish("a", b"v", txid=7)
        for options, kind in refused:
            with pytest.raises(JetstreamError) as caught:
                await js.publish("a", b"v", **options)
            assert type(caught.value) is kind, options
        assert (await js.publish("a", b"v", txid=7)).offset == 1

    with_client(tmp_path, body)


def test_a_txid_from_long_before_a_restart_is_still_the_last_one(tmp_path: Path) -> None:
    async def test() -> None:
        async with a_cluster(tmp_path) as (_, js):
            await js.streams.create("a", "a", dedupe_window=timedelta(0))
            await js.publish("a", b"v", txid=7)
            for _ in range(9):
                await js.publish("a", bytes(8 * MIB))
        async with a_cluster(tmp_path) as (_, js):
            with pytest.raises(TxidDecreasing):
                await js.publish("a", b"v", txid=6)
            assert (await js.publish("a", b"v", txid=7)).offset == 10

    run(test())


def test_the_last_txid_is_noted_while_much_is_stored(tmp_path: Path) -> None:
    async def test() -> None:
        async with (
            nats_and_node(tmp_path, checkpoint_interval=0.01) as (url, _),
            jetstream.connect(url) as js,
        ):
            await js.streams.create("a", "a")
            await js.publish("a", b"v", txid=7)
            for _ in range(8):
                await js.publish("a", bytes(8 * MIB))
            await until(lambda: any((tmp_path / "data").rglob(NOTE_FILE)))

    run(test())


def test_the_last_txid_is_known_after_a_restart_although_its_record_is_gone(tmp_path: Path) -> None:
    async def test() -> None:
        async with a_cluster(tmp_path) as (_, js):
            await js.streams.create("a", "a")
            await js.publish("a", b"v", txid=7)
            await js.streams.truncate("a", before=1)
        async with a_cluster(tmp_path) as (_, js):
            with pytest.raises(TxidDecreasing):
                await js.publish("a", b"v", txid=6)

    run(test())


def test_what_the_request_api_answers_is_raised_as_its_own_class(tmp_path: Path) -> None:
    refused: tuple[tuple[dict[str, object], type[JetstreamError]], ...] = (
        ({"name": "a b", "subject": "x"}, InvalidName),
        ({"name": "a", "subject": "x..y"}, InvalidSubject),
        ({"name": "a", "subject": "x", "segment_bytes": -1}, InvalidConfig),
        ({"name": "a", "subject": "x", "partitions": 2}, InvalidConfig),
        ({"name": "__a", "subject": "x"}, Unsupported),
        ({"name": "a", "subject": "x", "no_such_setting": 1}, RequestError),
    )

    async def body(js: JetstreamClient) -> None:
        for fields, kind in refused:
            with pytest.raises(JetstreamError) as caught:
                await js.requests.ask("stream.create", fields, CreateStreamResponse)
            assert type(caught.value) is kind, fields

    with_client(tmp_path, body)


def test_the_acks_of_several_streams_are_awaited(tmp_path: Path) -> None:
    async def body(js: JetstreamClient) -> None:
        await js.streams.create("all", ">", ack="none")
        await js.streams.create("a", "x.*")
        await js.streams.create("b", "x.y")
        acks = await js.publish("x.y", b"v", streams=["b", "a"])
        assert [ack.stream for ack in acks] == ["b", "a"]
        assert (await js.publish("x.y", b"v", stream="b")).stream == "b"
        with pytest.raises(DeadlinePassed) as caught:
            await js.publish("x.z", b"v", streams=["a", "b"], timeout=0.2)
        assert caught.value.detail["acked_by"] == "a"
        assert (await js.streams.info("all")).high_watermark > 0

    with_client(tmp_path, body)


def test_no_ack_in_time_means_unknown(tmp_path: Path) -> None:
    async def body(js: JetstreamClient) -> None:
        async def silent(_: object) -> None:
            pass

        await js.nats.subscribe("quiet", cb=silent)
        with pytest.raises(DeadlinePassed, match="unknown"):
            await js.publish("quiet", b"v", timeout=0.05)

    with_client(tmp_path, body)


def test_a_message_that_headers_make_too_large_is_refused_and_the_client_goes_on(tmp_path: Path) -> None:
    """The server counts the headers, and would close the connection."""

    async def body(js: JetstreamClient) -> None:
        await js.streams.create("a", "a")
        options: PublishOptions = {"message_id": "1", "headers": {"name": "Käse"}}
        room = js.nats.max_payload - len(b"NATS/1.0\r\nname: K\xc3\xa4se\r\nNats-Msg-Id: 1\r\n\r\n")
        with pytest.raises(RecordTooLarge):
            await js.publish("a", bytes(room + 1), **options)
        async with js.publisher() as publisher:
            with pytest.raises(RecordTooLarge):
                _ = await publisher.publish("a", bytes(room + 1), **options)
        async with js.session() as session:
            refused = await session.publish("a", bytes(room))
            with pytest.raises(RecordTooLarge):
                await refused
            assert (await (await session.publish("a", b"1"))).offset == 0
        assert (await js.publish("a", bytes(room), **options)).offset == 1
        assert (await js.publish("a", bytes(js.nats.max_payload))).offset == 2
        with pytest.raises(RecordTooLarge):
            await js.publish("a", bytes(js.nats.max_payload + 1))

    with_client(tmp_path, body)


def test_a_subject_for_which_nats_has_no_room_is_refused_and_the_client_goes_on(tmp_path: Path) -> None:
    """The server would close the connection."""

    async def body(js: JetstreamClient) -> None:
        await js.streams.create("a", "a.>")
        stored = 0
        for length in (4000, *range(4020, 4100, 4), 5000, 100_000):
            try:
                ack = await js.publish("a." + "ä" * ((length - 2) // 2), b"", message_id=str(length))
            except InvalidSubject:
                assert length > 4000
            else:
                assert (ack.offset, length < 4096) == (stored, True)
                stored += 1
        assert stored > 1, "it is the server's limit"
        async with js.session() as session:  # which sends again what fails, but not this
            refused = await session.publish("a." + "b" * 5000, b"")
            with pytest.raises(InvalidSubject):
                await refused
            assert (await (await session.publish("a.b", b""))).offset == stored
        assert js.nats.stats["reconnects"] == 0

    with_client(tmp_path, body)


@pytest.mark.parametrize("loop", list(LOOPS))
def test_a_publisher_keeps_its_window_and_its_order(tmp_path: Path, loop: str) -> None:
    async def body(js: JetstreamClient) -> None:
        await js.streams.create("a", "a")
        async with js.publisher(window=50) as publisher:
            futures = []
            for number in range(2000):
                futures.append(await publisher.publish("a", b"%d" % number))
                assert publisher.outstanding <= 50
            await publisher.flush()
            assert publisher.outstanding == 0
        assert [future.result().offset for future in futures] == list(range(2000))
        assert [record.value async for record in js.read("a")] == [b"%d" % number for number in range(2000)]

    with_client(tmp_path, body, loop)


def test_a_publishers_failures_are_never_lost(tmp_path: Path) -> None:
    async def body(js: JetstreamClient) -> None:
        await js.streams.create("a", "a", record_bytes_max=10)
        async with js.publisher() as publisher:
            for size in (11, 1, 12):
                _ = await publisher.publish("a", b"x" * size)
            with pytest.raises(RecordTooLarge) as caught:
                await publisher.flush()
            assert caught.value.__notes__ == ["2 messages failed; this is the first"]
            await publisher.flush()
            seen = await publisher.publish("a", b"x" * 13)
            with pytest.raises(RecordTooLarge):
                await seen
            await publisher.flush()

        async def leave_one_unseen() -> None:
            async with js.publisher() as publisher:
                _ = await publisher.publish("a", b"x" * 14)

        with pytest.raises(RecordTooLarge):
            await leave_one_unseen()

    with_client(tmp_path, body)


def test_who_waits_no_longer_for_an_ack_disturbs_nobody(tmp_path: Path) -> None:
    async def body(js: JetstreamClient) -> None:
        async def silent(_: object) -> None:
            pass

        complaints: list[dict[str, object]] = []
        asyncio.get_running_loop().set_exception_handler(lambda _, context: complaints.append(context))
        await js.nats.subscribe("quiet", cb=silent)
        async with js.publisher() as publisher:
            ack = await publisher.publish("quiet", b"v")
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(ack, 0.05)
            await until(lambda: publisher.outstanding == 0)
        assert complaints == []

    with_client(tmp_path, body)


def test_a_failing_block_gives_up_what_is_outstanding(tmp_path: Path) -> None:
    async def body(js: JetstreamClient) -> None:
        async def silent(_: object) -> None:
            pass

        await js.nats.subscribe("quiet", cb=silent)
        futures = []

        async def fail() -> None:
            async with js.publisher() as publisher:
                futures.append(await publisher.publish("quiet", b"v"))
                raise ZeroDivisionError

        with pytest.raises(ZeroDivisionError):
            await fail()
        with pytest.raises(ConnectionLost):
            await futures[0]

    with_client(tmp_path, body)


def test_a_following_reader_gets_what_is_published(tmp_path: Path) -> None:
    async def body(js: JetstreamClient) -> None:
        await js.streams.create("a", "a")
        reader = js.read("a", start="latest", follow=True)
        for number in range(10):
            async with asked(reader) as waiting:
                await until(lambda: reader.next_offset is not None)
                await js.publish("a", b"%d" % number)
                assert (await waiting()).value == b"%d" % number
                assert reader.next_offset == number + 1
        await reader.aclose()

    with_client(tmp_path, body)


def test_a_misspelt_option_is_refused(tmp_path: Path) -> None:
    async def test() -> None:
        async with a_cluster(tmp_path) as (_, js):
            await js.streams.create("a", "a")
            with pytest.raises(
                TypeError, match="unexpected options: end_; there are batch_rows, columns, end"
            ):
                js.read("a", end_=3)  # type: ignore[call-arg]  # the mistake itself
            with pytest.raises(TypeError, match="msg_id"):
                await js.publish("a", b"v", msg_id="1")  # type: ignore[call-overload]  # as above
            assert (await js.streams.info("a")).log_end_offset == 0

    run(test())


def test_reading_needs_no_nats(tmp_path: Path) -> None:
    async def test() -> None:
        async with nats_and_node(tmp_path) as (url, node):
            async with jetstream.connect(url) as js:
                await js.streams.create("a", "a")
                await js.publish("a", b"v")
            address = f"{node.socket_host}:{node.socket_port}"
            async with jetstream.connect(socket=address) as js:
                assert [record.value async for record in js.read("a")] == [b"v"]
                batches = [batch async for batch in js.read_batches("a")]
                assert [batch.num_rows for batch in batches] == [1]
                with pytest.raises(RequestError):
                    await js.publish("a", b"v")
                with pytest.raises(RequestError):
                    await js.streams.list()

    run(test())


def test_nobody_there_is_said_as_it_is(tmp_path: Path) -> None:
    async def test() -> None:
        with pytest.raises(RequestError):
            async with jetstream.connect():
                pass
        with pytest.raises(ConnectionLost):
            async with jetstream.connect("nats://127.0.0.1:1", request_timeout=0.2, error_cb=ignore):
                pass
        async with jetstream.connect(socket="127.0.0.1:1") as js:
            with pytest.raises(ConnectionLost):
                await anext(js.read("a", retry_s=0.1))

    run(test())


async def ignore(_: Exception) -> None:
    """nats-py logs every failed attempt otherwise."""


def test_a_cluster_without_nodes_is_said_as_it_is(tmp_path: Path) -> None:
    async def test() -> None:
        async with nats_and_node(tmp_path) as (url, _), jetstream.connect(url, api_prefix="other") as js:
            with pytest.raises(NoResponders) as caught:
                await js.streams.list()
            assert caught.value.retriable

    run(test())


def test_answers_of_other_services_do_not_disturb(tmp_path: Path) -> None:
    async def body(js: JetstreamClient) -> None:
        await js.streams.create("a", "a")
        service = await nats.connect(js.nats.connected_url.geturl() if js.nats.connected_url else "")

        async def answer(message: Msg) -> None:
            await message.respond(b"I am a service")

        await service.subscribe("a", cb=answer)
        await service.flush()
        for number in range(20):
            assert (await js.publish("a", b"v")).offset == number
        await service.close()

    with_client(tmp_path, body)


def test_errors_know_whether_to_retry() -> None:
    assert not JetstreamError.retriable
    assert all(error.retriable for error in (ConnectionLost, DeadlinePassed, NoResponders))


def test_a_url_that_is_none_is_told() -> None:
    async def test() -> None:
        async with jetstream.connect("nats://127.0.0.1:notaport"):
            pass

    with pytest.raises(ConnectionLost, match="invalid connect url"):
        run(test())


def test_an_nkey_that_is_none_is_told(tmp_path: Path) -> None:
    seed = tmp_path / "seed"
    seed.write_text("not a seed")

    async def test() -> None:
        async with jetstream.connect("nats://127.0.0.1:1", nkeys_seed=str(seed)):
            pass

    with pytest.raises(InvalidConfig, match="the key is none"):
        run(test())

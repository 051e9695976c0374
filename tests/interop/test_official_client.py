"""The official Python client's JetStream publish API, unchanged, against our streams.

The NATS server here runs without its own JetStream: every ack comes from us.
"""

import asyncio
from pathlib import Path

import nats
import pytest
from nats.aio.msg import Msg
from nats.js.errors import APIError, BadRequestError, NoStreamResponseError

from tests.support.nodes import nats_and_node, request, run


def test_js_publish_returns_the_sequence_of_the_stored_record(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with nats_and_node(tmp_path) as (url, _), await nats.connect(url) as client:
            await request(client, "stream.create", name="orders", subject="orders.>")
            js = client.jetstream()
            first = await js.publish("orders.new", b"one")
            second = await js.publish("orders.new", b"two")
            assert (first.stream, first.seq, first.duplicate) == ("orders", 1, None)
            assert second.seq == 2
            info = await request(client, "stream.info", name="orders")
            assert info["high_watermark"] == 2

    run(scenario())


def test_publish_async_acks_every_message_in_order(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with nats_and_node(tmp_path) as (url, _), await nats.connect(url) as client:
            await request(client, "stream.create", name="orders", subject="orders.>")
            js = client.jetstream(publish_async_max_pending=1000)
            futures = [await js.publish_async("orders.new", b"%d" % number) for number in range(1000)]
            acks = await asyncio.gather(*futures)
            assert [ack.seq for ack in acks] == list(range(1, 1001))

    run(scenario())


def test_a_repeated_message_id_is_acked_with_the_original_sequence(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with nats_and_node(tmp_path) as (url, _), await nats.connect(url) as client:
            await request(client, "stream.create", name="orders", subject="orders.>")
            js = client.jetstream()
            headers = {"Nats-Msg-Id": "a-1"}
            first = await js.publish("orders.new", b"one", headers=headers)
            await js.publish("orders.new", b"two")
            again = await js.publish("orders.new", b"one", headers=headers)
            assert (again.seq, again.duplicate) == (first.seq, True)
            info = await request(client, "stream.info", name="orders")
            assert info["log_end_offset"] == 2

    run(scenario())


def test_message_ids_survive_a_restart_of_the_node(tmp_path: Path) -> None:
    async def scenario() -> None:
        headers = {"Nats-Msg-Id": "a-1"}
        async with nats_and_node(tmp_path) as (url, _), await nats.connect(url) as client:
            await request(client, "stream.create", name="orders", subject="orders.>")
            first = await client.jetstream().publish("orders.new", b"one", headers=headers)
        async with nats_and_node(tmp_path) as (url, _), await nats.connect(url) as client:
            again = await client.jetstream().publish("orders.new", b"one", headers=headers)
            assert (again.seq, again.duplicate) == (first.seq, True)

    run(scenario())


def test_a_wrong_expected_last_sequence_is_the_clients_own_exception(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with nats_and_node(tmp_path) as (url, _), await nats.connect(url) as client:
            await request(client, "stream.create", name="orders", subject="orders.>")
            js = client.jetstream()
            await js.publish("orders.new", b"one", headers={"Nats-Expected-Last-Sequence": "0"})
            with pytest.raises(BadRequestError) as caught:
                await js.publish("orders.new", b"two", headers={"Nats-Expected-Last-Sequence": "0"})
            assert caught.value.err_code == 10071
            assert caught.value.description == "wrong last sequence: 1"
            ack = await js.publish("orders.new", b"two", headers={"Nats-Expected-Last-Sequence": "1"})
            assert ack.seq == 2

    run(scenario())


def test_a_refusal_that_nats_has_no_number_for_is_a_bad_request_with_one_of_ours(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with nats_and_node(tmp_path) as (url, _), await nats.connect(url) as client:
            await request(client, "stream.create", name="orders", subject="orders.>")
            js = client.jetstream()
            await js.publish("orders.new", b"one", headers={"Jetstream-Txid": "7"})
            with pytest.raises(BadRequestError) as caught:
                await js.publish("orders.new", b"two", headers={"Jetstream-Txid": "6"})
            assert caught.value.err_code == 60007
            assert caught.value.description == "txid 6 is below the last one, 7"

    run(scenario())


def test_an_async_publish_raises_the_clients_own_exception_where_the_client_raises_it(tmp_path: Path) -> None:
    """nats-py 2.16 raises inside its reply callback, so the error reaches ``error_cb`` and not the future."""

    async def scenario() -> None:
        caught: asyncio.Future[Exception] = asyncio.get_running_loop().create_future()

        async def keep(error: Exception) -> None:
            caught.set_result(error)

        async with nats_and_node(tmp_path) as (url, _), await nats.connect(url, error_cb=keep) as client:
            await request(client, "stream.create", name="orders", subject="orders.>")
            js = client.jetstream()
            future = await js.publish_async(
                "orders.new", b"two", headers={"Nats-Expected-Last-Sequence": "7"}
            )
            error = await caught
            assert not future.done()
            assert isinstance(error, BadRequestError)
            assert error.err_code == 10071

    run(scenario())


def test_a_wrong_expected_stream_is_refused_and_stored_nowhere(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with nats_and_node(tmp_path) as (url, _), await nats.connect(url) as client:
            await request(client, "stream.create", name="orders", subject="orders.>")
            with pytest.raises(APIError) as caught:
                await client.jetstream().publish("orders.new", b"one", stream="invoices")
            assert caught.value.err_code == 10060
            info = await request(client, "stream.info", name="orders")
            assert info["log_end_offset"] == 0

    run(scenario())


def test_no_stream_is_the_clients_own_exception(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with nats_and_node(tmp_path) as (url, _), await nats.connect(url) as client:
            with pytest.raises(NoStreamResponseError):
                await client.jetstream().publish("nobody.listens", b"one", timeout=5)

    run(scenario())


def test_overlapping_streams_each_store_and_the_expected_one_answers(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with nats_and_node(tmp_path) as (url, _), await nats.connect(url) as client:
            await request(client, "stream.create", name="wide", subject="orders.>")
            await request(client, "stream.create", name="narrow", subject="orders.new")
            js = client.jetstream()
            for name in ("wide", "narrow", "wide"):
                ack = await js.publish("orders.new", b"x", stream=name)
                assert ack.stream == name
            for name in ("wide", "narrow"):
                info = await request(client, "stream.info", name=name)
                assert info["log_end_offset"] == 3
            found = await request(client, "stream.lookup", subject="orders.new")
            assert sorted(s["name"] for s in found["streams"]) == ["narrow", "wide"]

    run(scenario())


def test_every_stream_on_a_subject_answers_a_plain_request(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with nats_and_node(tmp_path) as (url, _), await nats.connect(url) as client:
            for name in ("first", "second", "third"):
                await request(client, "stream.create", name=name, subject="orders.>")
            inbox = client.new_inbox()
            subscription = await client.subscribe(inbox)
            await client.publish("orders.new", b"x", reply=inbox)
            answers = [(await subscription.next_msg(timeout=5)).data for _ in range(3)]
            assert (
                sorted(b'"first"' in a or b'"second"' in a or b'"third"' in a for a in answers) == [True] * 3
            )
            assert len(set(answers)) == 3

    run(scenario())


def test_a_silent_stream_stores_beside_a_request_reply_service(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with nats_and_node(tmp_path) as (url, _), await nats.connect(url) as client:
            await request(client, "stream.create", name="audit", subject="rpc.>", ack="none")

            async def serve(message: Msg) -> None:
                await message.respond(b"answer to " + message.data)

            await client.subscribe("rpc.add", cb=serve)
            for number in range(50):
                reply = await client.request("rpc.add", b"%d" % number, timeout=5)
                assert reply.data == b"answer to %d" % number
            asked = await client.jetstream().publish("rpc.log", b"x", headers={"Jetstream-Ack": "all"})
            assert (asked.stream, asked.seq) == ("audit", 51)

    run(scenario())

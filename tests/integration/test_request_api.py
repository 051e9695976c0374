"""The request API over a real NATS server, with plain JSON."""

import asyncio
import json
from pathlib import Path
from typing import Any

import nats
import pytest
from nats.aio.client import Client

from jetstream.node.api import placement
from tests.support.nodes import nats_and_node, request, run
from tests.support.publishers import Witness


async def raw(client: Client, subject: str, payload: bytes) -> dict[str, Any]:
    reply = await client.request(f"jetstream.api.{subject}", payload, timeout=10)
    answer: dict[str, Any] = json.loads(reply.data)
    return answer


def test_creation_is_idempotent_and_a_different_config_is_refused(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with nats_and_node(tmp_path) as (url, _), await nats.connect(url) as client:
            first = await request(client, "stream.create", name="orders", subject="orders.>")
            again = await request(client, "stream.create", name="orders", subject="orders.>")
            assert first["incarnation"] == again["incarnation"]
            other = await request(client, "stream.create", name="orders", subject="invoices.>")
            assert other["error"]["err_code"] == "stream_exists"
            assert other["error"]["retriable"] is False

    run(scenario())


def test_a_deleted_stream_is_gone_and_its_name_is_free(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with nats_and_node(tmp_path) as (url, _), await nats.connect(url) as client:
            first = await request(client, "stream.create", name="orders", subject="orders.>")
            await client.jetstream().publish("orders.new", b"x")
            await request(client, "stream.delete", name="orders")
            gone = await request(client, "stream.info", name="orders")
            assert gone["error"]["err_code"] == "stream_not_found"
            assert gone["error"]["code"] == 404
            assert list((tmp_path / "data" / "streams").iterdir()) == []
            second = await request(client, "stream.create", name="orders", subject="orders.>")
            assert second["incarnation"] != first["incarnation"]
            assert second["high_watermark"] == 0
            ack = await client.jetstream().publish("orders.new", b"x")
            assert ack.seq == 1

    run(scenario())


def test_update_changes_retention_and_keeps_the_records(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with nats_and_node(tmp_path) as (url, _), await nats.connect(url) as client:
            await request(client, "stream.create", name="orders", subject="orders.>")
            await client.jetstream().publish("orders.new", b"x")
            updated = await request(client, "stream.update", name="orders", retention={"age": "P7D"})
            assert updated["config"]["retention"]["age"] in ("P7D", 604800, "PT168H", "P1W")
            assert updated["high_watermark"] == 1

    run(scenario())


def test_the_sync_mode_changes_under_load_and_every_message_is_acked_once(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with nats_and_node(tmp_path) as (url, _):
            witness = Witness("numbers.one", url)
            await witness.open()
            async with await nats.connect(url) as client:
                await request(client, "stream.create", name="numbers", subject="numbers.>", sync="os")
                async with asyncio.TaskGroup() as tasks:
                    load = tasks.create_task(publish_all(witness))
                    turns = 0
                    while not load.done() or turns < 20:
                        mode = ("always", "interval", "always", "os")[turns % 4]
                        updated = await request(client, "stream.update", name="numbers", sync=mode)
                        assert updated["config"]["sync"] == mode
                        turns += 1
                await witness.wait_for_acks(5_000)
                info = await request(client, "stream.info", name="numbers")
                assert info["high_watermark"] == info["log_end_offset"] == 5_000
            assert witness.contradictions == []
            await witness.close()

    run(scenario())


async def publish_all(witness: Witness) -> None:
    for _ in range(100):
        await witness.publish(50)


def test_truncate_moves_the_start_and_never_passes_the_high_watermark(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with nats_and_node(tmp_path) as (url, _), await nats.connect(url) as client:
            await request(client, "stream.create", name="orders", subject="orders.>")
            js = client.jetstream()
            for _ in range(5):
                await js.publish("orders.new", b"x")
            beyond = await request(client, "stream.truncate", name="orders", before=6)
            assert beyond["error"]["err_code"] == "offset_out_of_range"
            for _ in range(2):
                done = await request(client, "stream.truncate", name="orders", before=3)
                assert done["log_start_offset"] == 3
            info = await request(client, "stream.info", name="orders")
            assert (info["log_start_offset"], info["high_watermark"]) == (3, 5)

    run(scenario())


def test_list_and_cluster_info_name_what_is_there(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with nats_and_node(tmp_path) as (url, node), await nats.connect(url) as client:
            for name in ("payments/orders", "payments/refunds", "audit"):
                await request(client, "stream.create", name=name, subject=f"s.{name.replace('/', '.')}")
            everything = await raw(client, "stream.list", b"")
            assert [s["name"] for s in everything["streams"]] == [
                "audit",
                "payments/orders",
                "payments/refunds",
            ]
            some = await request(client, "stream.list", prefix="payments/")
            assert len(some["streams"]) == 2
            cluster = await raw(client, "cluster.info", b"")
            assert cluster["nodes"][0]["port"] == node.socket_port
            assert cluster["nodes"][0]["alive"] is True
            assert [s["isr"] for s in everything["streams"]] == [[node.node_id]] * 3

    run(scenario())


BAD_REQUESTS = [
    ("stream.create", b"{", "bad_request"),
    ("stream.create", b"[]", "bad_request"),
    ("stream.create", b"\xff\xfe", "bad_request"),
    ("stream.create", b'{"name": "a"}', "bad_request"),
    ("stream.create", b'{"name": "a", "subject": "a", "colour": "red"}', "bad_request"),
    ("stream.create", b'{"name": "a", "subject": "a", "segment_bytes": "many"}', "bad_request"),
    ("stream.create", b'{"name": "../a", "subject": "a"}', "invalid_name"),
    ("stream.create", b'{"name": "a.b", "subject": "a"}', "invalid_name"),
    ("stream.create", b'{"name": "a", "subject": "a..b"}', "invalid_subject"),
    ("stream.create", b'{"name": "a", "subject": "a b"}', "invalid_subject"),
    ("stream.create", b'{"name": "a", "subject": ">"}', "invalid_config"),
    ("stream.create", b'{"name": "a", "subject": "_INBOX.x"}', "invalid_config"),
    ("stream.create", b'{"name": "a", "subject": "jetstream.api.>"}', "invalid_config"),
    ("stream.create", b'{"name": "a", "subject": "a", "replicas": 3}', "invalid_config"),
    ("stream.info", b'{"name": "nobody"}', "stream_not_found"),
    ("stream.truncate", b'{"name": "nobody", "before": 0}', "stream_not_found"),
    ("stream.explode", b"{}", "unsupported"),
]


def test_bad_requests_get_typed_errors_and_change_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(placement, "_ALIVE_NS", 0)  # nobody has just started, who could be waited for

    async def scenario() -> None:
        async with nats_and_node(tmp_path) as (url, _), await nats.connect(url) as client:
            for subject, payload, err_code in BAD_REQUESTS:
                answer = await raw(client, subject, payload)
                assert answer["error"]["err_code"] == err_code, (payload, answer)
                assert answer["error"]["description"]
                assert (await raw(client, "stream.list", b""))["streams"] == []

    run(scenario())

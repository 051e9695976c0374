"""The HTTP port of a real node: probes, metrics, and what strangers send."""

import asyncio
import json
from http import HTTPStatus
from pathlib import Path

import nats
import pytest

from envelope.errors import StorageError, UnavailableError
from jetstream.log.disk.os_disk import OsDisk
from jetstream.node.http import pages as exposition
from jetstream.node.http import server as http_server
from jetstream.node.http.metrics import METRICS
from jetstream.node.nats.embedded_server import EmbeddedNatsServer
from jetstream.node.node import Node
from jetstream.node.replicas.led_stream import LeadingStream
from jetstream.protocol.liveness import Patience
from tests.support.node_cluster import free_ports
from tests.support.nodes import nats_and_node, node_config, request, run
from tests.support.pauses import pause
from tests.support.scraping import exchange, get, metrics

HTTP = {"port": 0}
OF_FOLLOWERS = {"jetstream_replica_lag_records", "jetstream_replica_lag_seconds"}
STAGES = ("gathered", "written", "stored", "committed", "acked")
OUTCOMES = {"refused", "dropped_without_reply", "duplicates", "unknown_outcome", "acks_dropped"}


def test_metrics_tell_what_the_node_did(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with nats_and_node(tmp_path, http=HTTP) as (url, node), await nats.connect(url) as client:
            await request(client, "stream.create", name="orders", subject="orders.>")
            await request(client, "namespace.limit", name="x", streams=1, bytes=1, creations_per_minute=1)
            at_first = await metrics(node)
            assert {
                labels[0] for (name, labels) in at_first if name == "jetstream_stream_messages_total"
            } == OUTCOMES
            assert all(
                at_first["jetstream_stream_messages_total", (outcome, "orders")] == 0 for outcome in OUTCOMES
            )
            js = client.jetstream()
            for number in range(3):
                await js.publish("orders.new", b"v", headers={"Nats-Msg-Id": str(number % 2)})
            found = await metrics(node)
            assert found["jetstream_stream_online", ("orders",)] == 1
            assert found["jetstream_stream_log_end_offset", ("orders",)] == 2
            assert found["jetstream_stream_high_watermark", ("orders",)] == 2
            assert found["jetstream_stream_message_ids", ("orders",)] == 2
            assert found["jetstream_stream_messages_total", ("duplicates", "orders")] == 1
            assert found["jetstream_disk_records_total", ()] == 2
            assert 1 <= found["jetstream_disk_groups_total", ()] <= 2
            assert found["jetstream_disk_sync_seconds_total", ()] > 0
            groups = found["jetstream_disk_groups_total", ()]
            for stage in STAGES:
                assert found["jetstream_publish_stage_seconds_count", (stage,)] == groups
                assert found["jetstream_publish_stage_seconds_bucket", ("+Inf", stage)] == groups
            spent = [found["jetstream_publish_stage_seconds_sum", (stage,)] for stage in STAGES]
            assert min(spent) > 0
            assert sum(spent) == pytest.approx(found["jetstream_publish_seconds_sum", ()])
            assert found["jetstream_nats_connected", ("ingest",)] == 1
            assert found["process_resident_memory_bytes", ()] > 0
            parted = {"partitions": 2, "partition_by": "key"}
            await request(client, "stream.create", name="parts", subject="parts.>", **parted)
            places = [
                {"stream": "orders", "offset": 1},
                {"stream": "parts", "partition": 1, "offset": 0},
            ]
            await request(client, "group.reset", group="team", cursors=places)
            found = await metrics(node)
            names = {labels for name, labels in found if name == "jetstream_group_committed_offset"}
            assert names == {("team", "orders"), ("team", "parts/1")}
            assert found["jetstream_group_committed_offset", ("team", "orders")] == 1
            assert found["jetstream_disk_free_bytes", ()] > 0
            sample_names = {name for metric in METRICS for name in metric.sample_names}
            assert sample_names - {name for name, _ in found} == OF_FOLLOWERS

    run(scenario())


def test_a_disk_that_does_not_say_what_is_free_takes_no_other_number_away(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(_: OsDisk) -> int:
        raise StorageError("stat failed: input/output error")

    async def scenario() -> None:
        async with nats_and_node(tmp_path, http=HTTP) as (_, node):
            monkeypatch.setattr(OsDisk, "free_bytes", refuse)
            found = {name for name, _ in await metrics(node)}
            assert "jetstream_disk_free_bytes" not in found
            assert "jetstream_disk_commits_total" in found

    run(scenario())


def test_a_scrape_of_many_streams_lets_others_have_their_turn(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario() -> None:
        async with nats_and_node(tmp_path, http=HTTP) as (url, node), await nats.connect(url) as client:
            for number in range(10):
                await request(client, "stream.create", name=f"s{number}", subject=f"s{number}")
            whole = await metrics(node)
            monkeypatch.setattr(exposition, "SAMPLES_AT_ONCE", 3)
            turns = 0
            async with asyncio.TaskGroup() as tasks:
                scrape = tasks.create_task(metrics(node))
                while not scrape.done():
                    turns += 1
                    await asyncio.sleep(0)
            assert scrape.result().keys() == whole.keys()
            of_streams = [name for name, _ in whole if name.startswith("jetstream_stream")]
            assert turns > len(of_streams) / 3

    run(scenario())


def test_a_node_is_ready_while_every_stream_serves(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with nats_and_node(tmp_path, http=HTTP) as (url, node), await nats.connect(url) as client:
            await request(client, "stream.create", name="orders", subject="orders.>")
            assert await get(node, "/livez") == (HTTPStatus.OK, b"alive\n")
            status, body = await get(node, "/healthz")
            assert (status, json.loads(body)) == (
                HTTPStatus.OK,
                {"ready": True, "problems": [], "problems_total": 0},
            )
            stream = node.stream("orders")
            assert stream is not None
            stream.log.writer.fail(StorageError("input/output error"))
            status, body = await get(node, "/healthz")
            assert status == HTTPStatus.SERVICE_UNAVAILABLE
            assert json.loads(body)["problems"] == ["stream orders: storage_error: input/output error"]
            assert (await metrics(node))["jetstream_stream_online", ("orders",)] == 0

    run(scenario())


def test_a_stream_whose_subject_is_not_subscribed_is_not_ready(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    attach, told = LeadingStream.attach, list[tuple[int, bytes]]()

    async def scenario() -> None:
        async with EmbeddedNatsServer(tmp_path / "nats") as server:
            config = node_config(tmp_path / "data", server.url, http=HTTP)
            async with Node(config), await nats.connect(server.url) as client:
                await request(client, "stream.create", name="orders", subject="orders.>")
            node = Node(config)

            async def ask_and_attach(stream: LeadingStream) -> None:
                told.append(await get(node, "/healthz"))
                await attach(stream)

            monkeypatch.setattr(LeadingStream, "attach", ask_and_attach)
            async with node:
                told.append(await get(node, "/healthz"))
                stream = node.stream("orders")
                assert stream is not None
                assert stream.leading is not None
                await stream.leading.detach()
                told.append(await get(node, "/healthz"))

    run(scenario())
    assert [status for status, _ in told] == [503, 200, 503]
    for (_, body), when in ((told[0], "yet"), (told[2], "any more")):
        assert json.loads(body)["problems"][-1] == (
            f"stream orders: stream_offline: its subject is not subscribed {when}"
        )


def test_a_node_without_nats_is_alive_and_not_ready(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with (
            EmbeddedNatsServer(tmp_path / "nats") as server,
            Node(node_config(tmp_path / "data", server.url, http=HTTP)) as node,
        ):
            await server.__aexit__(None, None, None)
            async with asyncio.timeout(20):
                answer = await get(node, "/healthz")
                while b"the ingest connection" not in answer[1]:
                    await pause()
                    answer = await get(node, "/healthz")
            assert answer[0] == HTTPStatus.SERVICE_UNAVAILABLE
            assert "the ingest connection to NATS is down" in json.loads(answer[1])["problems"]
            assert (await get(node, "/livez"))[0] == HTTPStatus.OK
            assert (await metrics(node))["jetstream_nats_connected", ("ingest",)] == 0

    run(scenario())


def test_a_node_that_has_not_found_its_cluster_is_alive_and_not_ready(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with EmbeddedNatsServer(tmp_path / "nats") as server:
            peers = {"advertise": f"127.0.0.1:{free_ports(1)[0]}"}
            node = Node(node_config(tmp_path / "data", server.url, http=HTTP, peers=peers, node_id="a"))
            async with asyncio.TaskGroup() as tasks:
                starting = tasks.create_task(node.__aenter__())
                while node.http_address is None:
                    assert not starting.done(), starting.result()
                    await pause()
                assert await get(node, "/livez") == (HTTPStatus.OK, b"alive\n")
                status, body = await get(node, "/healthz")
                assert (status, json.loads(body)["problems"]) == (
                    HTTPStatus.SERVICE_UNAVAILABLE,
                    ["the node is starting: it has not found its cluster yet"],
                )
                assert (await get(node, "/metrics"))[0] == HTTPStatus.SERVICE_UNAVAILABLE
                starting.cancel()
            with pytest.raises(ConnectionRefusedError):
                await get(node, "/livez")

    run(scenario())


@pytest.mark.parametrize(
    ("sent", "status"),
    [
        (b"GET /nothing HTTP/1.1\r\nHost: x\r\n\r\n", HTTPStatus.NOT_FOUND),
        (b"GET /%2e%2e/etc/passwd HTTP/1.1\r\nHost: x\r\n\r\n", HTTPStatus.NOT_FOUND),
        (b"GET /livez?verbose HTTP/1.1\r\nHost: x\r\n\r\n", HTTPStatus.OK),
        (b"HEAD /livez HTTP/1.1\r\nHost: x\r\n\r\n", HTTPStatus.OK),
        (b"GET /livez HTTP/1.0\r\n\r\n", HTTPStatus.OK),
        (b"POST /metrics HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\n\r\nhi", HTTPStatus.METHOD_NOT_ALLOWED),
        (b"GET /livez HTTP/1.1\r\n\r\n", HTTPStatus.BAD_REQUEST),
        (b"\x00\x01\x02\r\n\r\n", HTTPStatus.BAD_REQUEST),
        (b"GET / HTTP/1.1\r\nX: " + b"x" * 40_000, HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE),
    ],
)
def test_what_strangers_send_is_answered_in_http(tmp_path: Path, sent: bytes, status: HTTPStatus) -> None:
    async def scenario() -> None:
        async with nats_and_node(tmp_path, http=HTTP) as (_, node):
            answered, _, body = await exchange(node, sent)
            assert answered == status
            assert (body == b"") == sent.startswith(b"HEAD")
            assert (await get(node, "/livez"))[0] == HTTPStatus.OK

    run(scenario())


def test_who_asks_slowly_or_in_crowds_is_cut_off(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario() -> None:
        async with nats_and_node(tmp_path, http=HTTP) as (_, node):
            assert node.http_address is not None
            crowd = [
                await asyncio.open_connection(*node.http_address) for _ in range(http_server.CONNECTIONS_MAX)
            ]
            for reader, writer in crowd:
                assert await reader.read() == b"", "nothing asked in time"
                writer.close()
            assert (await get(node, "/livez"))[0] == HTTPStatus.OK

    monkeypatch.setattr(http_server, "CONNECTIONS_MAX", 16)
    monkeypatch.setattr(http_server, "PATIENCE", Patience(hello_ns=200_000_000))
    run(scenario())


def test_a_taken_port_is_said_at_the_start(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with nats_and_node(tmp_path, http=HTTP) as (url, node):
            assert node.http_address is not None
            config = node_config(tmp_path / "other", url, http={"port": node.http_address[1]})
            with pytest.raises(UnavailableError, match="cannot listen on"):
                async with Node(config):
                    pass

    run(scenario())

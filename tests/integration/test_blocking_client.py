"""The client library without asyncio, against a real node."""

import asyncio
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import polars as pl
import pyarrow as pa
import pytest

import jetstream
from envelope.errors import ConnectionLost, RequestError, UnknownStream
from jetstream.client.publishing import PublishOptions
from jetstream.log.schema import SCHEMA
from tests.support.nodes import nats_and_node, run


def against_a_node(directory: Path, scenario: Callable[[str], None]) -> None:
    """Run a scenario in a thread that has no event loop."""

    async def test() -> None:
        async with nats_and_node(directory) as (url, _):
            await asyncio.to_thread(scenario, url)

    run(test())


def test_streams_are_made_published_to_and_read(tmp_path: Path) -> None:
    def scenario(url: str) -> None:
        with jetstream.connect_blocking(url) as js:
            assert js.streams.create("orders", "orders.>").created
            js.streams.create("audit", "orders.>")
            assert js.publish("orders.eu", b"one", key="k", stream="orders").offset == 0
            acks = js.publish("orders.eu", b"two", streams=["audit", "orders"])
            assert [(ack.stream, ack.offset) for ack in acks] == [("audit", 1), ("orders", 1)]
            found = [(record.subject, record.key, record.value) for record in js.read("orders")]
            assert found == [("orders.eu", b"k", b"one"), ("orders.eu", None, b"two")]
            assert {stream.name for stream in js.streams.list()} == {"audit", "orders"}
            assert {stream.name for stream in js.streams.lookup("orders.eu")} == {"audit", "orders"}
            js.streams.update("orders", retention={"messages": 5})
            assert js.streams.truncate("orders", 1).log_start_offset == 1
            assert js.streams.info("orders").config.retention.messages == 5
            js.streams.delete("audit")
            with pytest.raises(UnknownStream):
                js.streams.info("audit")

    against_a_node(tmp_path, scenario)


def test_many_messages_are_published_in_order_with_progress(tmp_path: Path) -> None:
    def scenario(url: str) -> None:
        with jetstream.connect_blocking(url) as js:
            js.streams.create("numbers", "numbers")
            taken_in: set[threading.Thread] = set()
            seen: list[int] = []

            def messages() -> list[tuple[str, bytes, PublishOptions]]:
                taken_in.add(threading.current_thread())
                return [("numbers", b"%d" % n, PublishOptions(message_id=str(n))) for n in range(500)]

            acks = js.publish_all(messages(), window=10, progress=seen.append)
            assert [ack.offset for ack in acks] == list(range(500))
            assert seen == [160, 320, 480, 500]
            assert taken_in == {threading.current_thread()}
            assert all(ack.duplicate for ack in js.publish_all(messages()))
            assert js.publish_all([]) == []

    against_a_node(tmp_path, scenario)


def test_a_range_becomes_a_table_and_a_stream_of_batches(tmp_path: Path) -> None:
    def scenario(url: str) -> None:
        with jetstream.connect_blocking(url) as js:
            js.streams.create("numbers", "numbers")
            js.publish_all([("numbers", b"%d" % n) for n in range(100)])
            table = js.read("numbers", start=10, end=20).to_table()
            assert table.schema.equals(SCHEMA)
            assert table["value"].to_pylist() == [b"%d" % n for n in range(10, 20)]
            assert js.read("numbers", start=5, end=5).to_table().num_rows == 0
            batches = js.read("numbers", max_bytes=1).to_batch_reader()
            assert isinstance(batches, pa.RecordBatchReader)
            assert batches.read_all()["offset"].to_pylist() == list(range(100))
            frame = pl.from_arrow(js.read("numbers").to_table())
            assert isinstance(frame, pl.DataFrame)
            assert frame["offset"].sum() == 4950
            with pytest.raises(RequestError, match="never comes to a table"):
                js.read("numbers", follow=True).to_table()

    against_a_node(tmp_path, scenario)


def test_a_reader_goes_on_where_the_last_one_stopped(tmp_path: Path) -> None:
    def scenario(url: str) -> None:
        with jetstream.connect_blocking(url) as js:
            js.streams.create("numbers", "numbers")
            js.publish_all([("numbers", b"%d" % n) for n in range(10)])
            assert js.read("numbers").next_offset is None
            reader = js.read("numbers")
            for record in reader:
                if record.offset == 3:
                    break
            assert reader.next_offset == 4
            rest = js.read("numbers", start=reader.next_offset, incarnation=reader.incarnation)
            assert [record.offset for record in rest] == list(range(4, 10))
            assert rest.next_offset == 10

    against_a_node(tmp_path, scenario)


def test_a_following_reader_waits_for_what_another_thread_publishes(tmp_path: Path) -> None:
    def scenario(url: str) -> None:
        with jetstream.connect_blocking(url) as js:
            js.streams.create("numbers", "numbers")
            reader = iter(js.read("numbers", follow=True, end=3))
            publisher = threading.Thread(target=lambda: [js.publish("numbers", b"v") for _ in range(3)])
            publisher.start()
            assert [record.offset for record in reader] == [0, 1, 2]
            publisher.join()

    against_a_node(tmp_path, scenario)


def test_nobody_there_is_said_and_leaves_no_thread() -> None:
    before = threading.active_count()
    with (
        pytest.raises(ConnectionLost),
        jetstream.connect_blocking("nats://127.0.0.1:1", request_timeout=0.3, error_cb=_ignore),
    ):
        pass
    nothing_asked = jetstream.connect_blocking()
    with pytest.raises(RequestError):
        nothing_asked.__enter__()
    assert threading.active_count() == before


async def _ignore(_: Exception) -> None:
    return


def test_ctrl_c_ends_a_wait(tmp_path: Path) -> None:
    program = """
import sys, jetstream
with jetstream.connect_blocking(sys.argv[1]) as js:
    js.streams.create("numbers", "numbers")
    print("waiting", flush=True)
    for record in js.read("numbers", follow=True):
        pass
"""

    def scenario(url: str) -> None:
        with subprocess.Popen(
            [sys.executable, "-c", program, url],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        ) as process:
            assert process.stdout is not None
            assert process.stdout.readline() == "waiting\n"
            process.send_signal(signal.SIGINT)
            _, errors = process.communicate(timeout=30)
            assert process.returncode == -signal.SIGINT, errors
            assert "KeyboardInterrupt" in errors
            assert "never retrieved" not in errors
            assert "was destroyed" not in errors

    against_a_node(tmp_path, scenario)

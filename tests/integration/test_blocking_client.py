"""The client library without asyncio, against a real node."""

import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from types import FrameType

import polars as pl
import pyarrow as pa
import pytest

import jetstream
from envelope.errors import ConnectionLost, JetstreamError, RequestError, UnknownStream
from jetstream.client.blocking import client as blocking
from jetstream.client.publish.messages import PublishOptions
from jetstream.log.format.schema import SCHEMA
from tests.support.blocking_clients import against_a_node


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


def test_what_can_be_read_is_told_of_many_streams_at_once(tmp_path: Path) -> None:
    def scenario(url: str) -> None:
        with jetstream.connect_blocking(url) as js:
            lives = {name: js.streams.create(name, f"{name}.>").incarnation for name in ("orders", "audit")}
            js.publish_all([("orders.x", b"v")] * 3)
            js.streams.truncate("orders", 1)
            found = js.ranges(["orders", "nothing", "audit"])
            assert found == {"orders": (1, 3, lives["orders"]), "audit": (0, 0, lives["audit"])}
            [*_, last] = js.read("orders")
            later = js.ranges(["orders"], last.time + timedelta(microseconds=1))
            assert later == {"orders": (3, 3, lives["orders"])}

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


def test_large_messages_are_taken_a_few_at_a_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(blocking, "_PIECE_BYTES", 10_000)

    def scenario(url: str) -> None:
        with jetstream.connect_blocking(url) as js:
            js.streams.create("numbers", "numbers")
            taken = 0
            held: list[int] = []

            def messages() -> Iterator[tuple[str, bytes | None]]:
                nonlocal taken
                for value in (*[bytes(1_000)] * 25, bytes(20_000), b"", None):
                    taken += 1
                    yield "numbers", value

            def told(acked: int) -> None:
                held.append(taken - sum(held))
                assert acked == taken

            assert [ack.offset for ack in js.publish_all(messages(), progress=told)] == list(range(28))
            assert held == [10, 10, 6, 2]

    against_a_node(tmp_path, scenario)


def test_a_window_that_holds_nothing_is_refused_before_anything_is_taken(tmp_path: Path) -> None:
    def scenario(url: str) -> None:
        with jetstream.connect_blocking(url) as js:
            messages = iter([("numbers", b"v")])
            table = pa.table({"subject": ["numbers"], "value": ["v"]})
            with pytest.raises(RequestError, match="at least one message"):
                js.publish_all(messages, window=0)
            with pytest.raises(RequestError, match="at least one message"):
                js.publish_table(table, window=0)
            assert len(list(messages)) == 1

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


def test_calls_of_other_threads_end_when_the_block_does(tmp_path: Path) -> None:
    ended: list[JetstreamError] = []

    def until_it_fails(call: Callable[[], object], begun: threading.Event) -> None:
        try:
            while True:
                call()
                begun.set()
        except JetstreamError as error:
            ended.append(error)

    def scenario(url: str) -> None:
        for _ in range(5):
            with jetstream.connect_blocking(url) as js:
                js.streams.create("numbers", "numbers")
                reader = js.read("numbers", follow=True)
                calls = [lambda: js.publish("numbers", b"v"), js.streams.list, lambda: next(reader)]  # noqa: B023 - they end with the block
                begun = [threading.Event() for _ in calls]
                threads = [
                    threading.Thread(target=until_it_fails, args=each, daemon=True)
                    for each in zip(calls, begun, strict=True)
                ]
                for thread in threads:
                    thread.start()
                assert all(event.wait(30) for event in begun)
            for thread in threads:
                thread.join(10)
            assert not any(thread.is_alive() for thread in threads)

    against_a_node(tmp_path, scenario)
    assert len(ended) == 15
    assert {type(error) for error in ended} <= {ConnectionLost, RequestError}


def test_an_interrupt_of_the_end_leaves_it_to_itself(tmp_path: Path) -> None:
    ended: list[JetstreamError] = []

    def scenario(url: str) -> None:
        def interrupt_join(frame: FrameType, event: str, _: object) -> None:
            if event == "call" and frame.f_code is threading.Thread.join.__code__:
                raise KeyboardInterrupt

        def follow() -> None:
            try:
                for _ in reader:
                    begun.set()
            except JetstreamError as error:
                ended.append(error)

        begun = threading.Event()
        threads = set(threading.enumerate())
        block = jetstream.connect_blocking(url)
        js = block.__enter__()
        js.streams.create("numbers", "numbers")
        js.publish("numbers", b"v")
        reader = js.read("numbers", follow=True)
        threading.Thread(target=follow, daemon=True).start()
        assert begun.wait(30)
        sys.setprofile(interrupt_join)
        with pytest.raises(KeyboardInterrupt):
            block.__exit__(None, None, None)
        for thread in set(threading.enumerate()) - threads:
            thread.join(10)
            assert not thread.is_alive()
        assert len(ended) == 1

    against_a_node(tmp_path, scenario)


def test_a_closed_client_says_that_it_is_closed(tmp_path: Path) -> None:
    def scenario(url: str) -> None:
        with jetstream.connect_blocking(url) as js:
            js.streams.create("numbers", "numbers")
            js.publish_all([("numbers", b"v")] * 3)
            begun = js.read("numbers")
            assert next(begun).offset == 0
        closed = pytest.raises(RequestError, match="this client is closed")
        with closed:
            js.publish("numbers", b"v")
        with closed:
            js.streams.list()
        with closed:
            js.read("numbers").to_table()
        assert [next(begun).offset, next(begun).offset] == [1, 2], "what was there already"
        with closed:
            next(begun)

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


NEVER_CLOSED = """
import sys
import jetstream

connection = jetstream.connect_blocking(sys.argv[1])
js = connection.__enter__()
js.streams.create("orders", "orders.>")
print(js.publish("orders.eu", b"x").offset)
"""


def test_a_program_that_never_closes_its_client_ends_all_the_same(tmp_path: Path) -> None:
    def scenario(url: str) -> None:
        command = [sys.executable, "-W", "error", "-c", NEVER_CLOSED, url]
        ended = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)
        assert (ended.stdout, ended.stderr) == ("0\n", "")

    against_a_node(tmp_path, scenario)


FORKED = """
import os
import sys
import jetstream
from envelope.errors import RequestError

with jetstream.connect_blocking(sys.argv[1]) as js:
    js.streams.create("orders", "orders.>")
    child = os.fork()
    if child == 0:
        try:
            js.publish("orders.new", b"from the child")
        except RequestError as error:
            print(error.description, flush=True)
    else:
        os.waitpid(child, 0)
        print(js.publish("orders.new", b"from the parent").offset)
"""


def test_a_client_is_of_no_use_after_a_fork_and_says_so(tmp_path: Path) -> None:
    def scenario(url: str) -> None:
        command = [sys.executable, "-c", FORKED, url]
        ended = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)
        refused, acked = ended.stdout.splitlines()
        assert "after a fork, connect anew" in refused
        assert acked == "0"

    against_a_node(tmp_path, scenario)

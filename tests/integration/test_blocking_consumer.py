"""Consumers of a group without asyncio."""

import asyncio
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import jetstream
from envelope.errors import RequestError
from jetstream.client.blocking import consumer as blocking_consumer
from jetstream.client.blocking import loop_thread
from jetstream.client.blocking.client import BlockingClient
from jetstream.client.blocking.consumer import BlockingConsumer
from jetstream.client.consume import partition_buffers
from tests.support.interrupts import InterruptAtCall, Interrupted
from tests.support.nodes import nats_and_node, run
from tests.support.pauses import pause_thread


def against_a_node(directory: Path, scenario: Callable[[str], None]) -> None:
    """Run a scenario in a thread that has no event loop."""

    async def test() -> None:
        async with nats_and_node(directory) as (url, _):
            await asyncio.to_thread(scenario, url)

    run(test())


def fill(js: BlockingClient, **records: int) -> None:
    for stream, count in records.items():
        js.streams.create(stream, f"{stream}.>")
        js.publish_all((f"{stream}.x", b"%d" % number) for number in range(count))


def take(consumer: BlockingConsumer, count: int) -> list[tuple[str, int]]:
    records = [next(consumer) for _ in range(count)]
    return [(record.stream, record.offset) for record in records]


def test_a_consumer_reads_commits_and_the_next_one_goes_on(tmp_path: Path) -> None:
    def scenario(url: str) -> None:
        with jetstream.connect_blocking(url) as js:
            fill(js, a=9)
            with js.consume("a", group="g") as consumer:
                assert take(consumer, 3) == [("a", 0), ("a", 1), ("a", 2)]
                assert (consumer.group, consumer.assignment) == ("g", ("a",))
                assert consumer.positions == {"a": 3}
            with js.consume("a", group="g") as consumer:
                assert take(consumer, 2) == [("a", 2), ("a", 3)]
                consumer.commit()
            with js.consume("a", group="g", commit="manual") as consumer:
                assert take(consumer, 1) == [("a", 4)]
                consumer.commit({"a": 6})
                consumer.seek("a", 7)
                assert take(consumer, 1) == [("a", 7)]
                with pytest.raises(RequestError):
                    consumer.seek("b", 7)
            with js.consume("a", group="g") as consumer:
                for stream, batch in consumer.batches():
                    assert (stream, batch.column(0)[0].as_py()) == ("a", 6)
                    break
            assert list(consumer) == []

    against_a_node(tmp_path, scenario)


def test_two_threads_share_a_group_with_one_client(tmp_path: Path) -> None:
    def scenario(url: str) -> None:
        names = [f"s{number}" for number in range(4)]
        with jetstream.connect_blocking(url) as js:
            fill(js, **dict.fromkeys(names, 40))
            found: list[tuple[str, int]] = []
            both_share = threading.Barrier(2, timeout=60)

            def work() -> None:
                with js.consume(names, group="g") as consumer:
                    while len(consumer.assignment) != 2:
                        pause_thread()
                    both_share.wait()
                    found.extend(take(consumer, 70))
                    consumer.commit()
                    both_share.wait()

            threads = [threading.Thread(target=work) for _ in range(2)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            with js.consume(names, group="g") as consumer:
                found.extend(take(consumer, 160 - len(found)))
            assert sorted(found) == [(name, offset) for name in names for offset in range(40)]

    against_a_node(tmp_path, scenario)


def test_callbacks_run_in_the_thread_that_asks_for_records(tmp_path: Path) -> None:
    def scenario(url: str) -> None:
        told: list[tuple[str, list[str], threading.Thread]] = []

        def assigned(partitions: list[str]) -> None:
            told.append(("assigned", partitions, threading.current_thread()))
            for partition in partitions:
                consumer.seek(partition, 2)

        def revoked(partitions: list[str]) -> None:
            told.append(("revoked", partitions, threading.current_thread()))
            consumer.commit()

        with jetstream.connect_blocking(url) as js:
            fill(js, a=9, b=9)
            consumer = js.consume(
                ["a", "b"], group="g", commit="manual", on_assigned=assigned, on_revoked=revoked
            )
            assert sorted(take(consumer, 14)) == [(name, offset) for name in "ab" for offset in range(2, 9)]
        me = threading.current_thread()
        assert told == [("assigned", ["a", "b"], me), ("revoked", ["a", "b"], me)]
        with jetstream.connect_blocking(url) as js:
            cursors = js.groups.info("g").cursors
            assert sum(cursor.offset for cursor in cursors) == 17, "the last one was in hand"

    against_a_node(tmp_path, scenario)


def test_what_a_callback_raises_comes_out_where_records_are_asked_for(tmp_path: Path) -> None:
    def scenario(url: str) -> None:
        def fail(partitions: list[str]) -> None:
            raise ZeroDivisionError(partitions)

        async def unheard(partitions: list[str]) -> None:
            raise AssertionError(partitions)

        with jetstream.connect_blocking(url) as js:
            fill(js, a=9)
            with pytest.raises(ZeroDivisionError), js.consume("a", group="g", on_assigned=fail) as consumer:
                take(consumer, 1)
            with pytest.raises(TypeError):
                js.consume("a", group="g", on_assigned=unheard)

    against_a_node(tmp_path, scenario)


def test_a_partition_is_given_up_behind_the_record_in_hand(tmp_path: Path) -> None:
    """What is left of the batch that the thread has goes back, and comes to its next owner."""

    def scenario(url: str) -> None:
        with jetstream.connect_blocking(url) as js:
            fill(js, a=900)
            with js.consume("a", group="g", instance="b", assignor="range") as former:
                assert take(former, 2) == [("a", 0), ("a", 1)]
                with js.consume("a", group="g", instance="a", assignor="range") as later:
                    while former.assignment:
                        pause_thread()
                    asking = threading.Thread(target=lambda: list(former))
                    asking.start()
                    assert take(later, 3) == [("a", 2), ("a", 3), ("a", 4)]
                    former.close()
                    asking.join()

    against_a_node(tmp_path, scenario)


Way = Callable[[BlockingConsumer], Iterator[int]]
"""Yields the offsets of what is handed out."""


def by_records(consumer: BlockingConsumer) -> Iterator[int]:
    for record in consumer:
        yield record.offset


def by_batches(consumer: BlockingConsumer) -> Iterator[int]:
    for _, batch in consumer.batches():
        yield from [offset for offset in batch.column(0).to_pylist() if offset is not None]


@pytest.mark.filterwarnings("ignore:coroutine .* was never awaited")  # it is interrupted before it is begun
@pytest.mark.parametrize("way", [by_records, by_batches])
def test_an_interrupt_at_any_call_loses_and_repeats_nothing(tmp_path: Path, way: Way) -> None:
    modules = (blocking_consumer.__name__, loop_thread.__name__, partition_buffers.__name__)

    def scenario(url: str) -> None:
        with jetstream.connect_blocking(url) as js:
            js.streams.create("a", "a.>")
            for _ in range(3):
                js.publish_all([("a.x", b"v")] * 4)
            with js.consume("a", group="g", commit_interval_s=3600) as consumer:
                assert len(take(consumer, 12)) == 12
                calls = 0
                interrupted = True
                while interrupted:
                    calls += 1
                    consumer.seek("a", 0)
                    interrupt = InterruptAtCall(calls, modules)
                    assert handed_out(consumer, way, interrupt) == list(range(12)), f"at call {calls}"
                    interrupted = interrupt.came
                assert calls > 10

    against_a_node(tmp_path, scenario)


def handed_out(consumer: BlockingConsumer, way: Way, interrupt: InterruptAtCall | None) -> list[int]:
    """Read to the end, going on after interrupts; return the offsets."""
    got: list[int] = []
    while len(got) < 12:
        offsets = way(consumer)
        sys.setprofile(interrupt)
        try:
            for offset in offsets:
                got.append(offset)
                if len(got) == 12:
                    break
        except Interrupted:
            interrupt = None
        finally:
            sys.setprofile(None)
    return got

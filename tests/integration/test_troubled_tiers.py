"""Streams in an object store, on real nodes, where the store, the disk or the settings stand in the way."""

import asyncio
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from envelope.types import Offset
from jetstream.tier.object_store import ObjectStore
from tests.support.nodes import run
from tests.support.object_stores import HeldStore
from tests.support.sockets import until
from tests.support.tiered_nodes import CONFIG, RECORDS, published, read, replica, tiered_node


@pytest.fixture
def held(monkeypatch: pytest.MonkeyPatch) -> Iterator[HeldStore]:
    store = HeldStore()
    monkeypatch.setattr(ObjectStore, "at", lambda _uri: store.store)
    yield store
    store.answers.set()


def test_a_tier_that_is_switched_off_takes_nothing_along_that_was_not_uploaded(
    tmp_path: Path, held: HeldStore
) -> None:
    held.is_down = True

    async def scenario() -> None:
        async with tiered_node(tmp_path) as (js, node), asyncio.TaskGroup() as tasks:
            await js.streams.create("orders", "orders.>", **CONFIG)
            await published(js, "orders", range(RECORDS))
            stream, go_on = replica(node, "orders"), threading.Event()
            disk = stream._services.disk
            busy = disk.call(go_on.wait)
            retention = disk.call(stream.context.upkeep.apply_retention)  # before the log's rules change
            update = tasks.create_task(js.streams.update("orders", tier=False))
            await until(lambda: not stream.config.tier)
            go_on.set()
            for done in (busy, retention, update):
                await done
            await disk.call(stream.context.upkeep.apply_retention)
            assert stream.log.log_start_offset == 0
            assert await read(js, "orders") == list(range(RECORDS))

    run(scenario())


def test_damage_that_uploads_wait_for_is_told(tmp_path: Path, held: HeldStore) -> None:
    async def scenario() -> None:
        async with tiered_node(tmp_path) as (js, node):
            await js.streams.create("orders", "orders.>", **CONFIG)
            stream = replica(node, "orders")
            stream.log.reader.corrupt_ranges = ((Offset(0), Offset(1)),)
            await published(js, "orders", range(RECORDS))
            await until(lambda: stream.tiered.problem is not None)
            info = await js.streams.info("orders")
            assert info.tier is not None
            assert info.tier.problem is not None
            assert info.tier.problem.startswith("uploads wait for a repair: offsets 0 to ")
            stream.log.reader.corrupt_ranges = ()
            await until(lambda: stream.log.log_start_offset > RECORDS // 2)
            await until(lambda: stream.tiered.problem is None)

    run(scenario())
    assert held.objects


def test_a_store_that_hangs_is_told_and_does_not_stop_the_retention_of_other_streams(
    tmp_path: Path, held: HeldStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("jetstream.node.tiers.upload_round.SILENT_NS", 0)
    held.answers.clear()

    async def scenario() -> None:
        async with tiered_node(tmp_path) as (js, node):
            await js.streams.create("first", "first.>", **CONFIG)
            await published(js, "first", range(RECORDS))
            await until(lambda: held.asked > 0)
            kept = {**CONFIG, "local_retention": None, "retention": {"messages": 50}}
            await js.streams.create("second", "second.>", **kept)
            await published(js, "second", range(RECORDS))
            second = replica(node, "second")
            await until(lambda: second.log.log_start_offset > RECORDS // 2)
            await second._services.disk.call(second.context.upkeep.apply_retention)
            found = await read(js, "second")
            assert found == list(range(found[0], RECORDS))
            assert replica(node, "first").log.log_start_offset == 0
            for name in ("first", "second"):
                info = await js.streams.info(name)
                assert info.tier is not None
                assert info.tier.problem is not None
                assert info.tier.problem.startswith("the object store has not answered for ")
            monkeypatch.setattr("jetstream.node.tiers.upload_round.SILENT_NS", 10**15)
            first = replica(node, "first")
            held.answers.set()
            await until(lambda: first.log.log_start_offset > RECORDS // 2)
            await until(lambda: first.tiered.problem is None and second.tiered.problem is None)

    run(scenario())


def test_a_stream_with_much_to_upload_keeps_no_other_waiting(
    tmp_path: Path, held: HeldStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("jetstream.node.tiers.upload_round.SEGMENTS_AT_ONCE", 1)

    async def scenario() -> None:
        async with tiered_node(tmp_path) as (js, node):
            for name in ("first", "second"):
                await js.streams.create(
                    name, f"{name}.>", **{**CONFIG, "tier": False, "local_retention": None}
                )
                await published(js, name, range(RECORDS))
            held.answers.clear()
            await js.streams.update("first", tier=True)
            await until(lambda: held.asked > 0)
            await js.streams.update("second", tier=True)
            held.answers.set()
            marks = [replica(node, name).tiered for name in ("first", "second")]
            await until(lambda: all(one.mark is not None and one.mark.end > 200 for one in marks))

    run(scenario())
    names = [
        call.removeprefix("open bucket/").partition("@")[0]
        for call in held.trace
        if ".arrows" in call and call.startswith("open ")
    ]
    assert names.count("first") > 5
    assert names.index("second") < 4

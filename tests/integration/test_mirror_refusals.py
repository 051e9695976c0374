"""Mirrors whose source or target is not what they were told: nothing is copied that is not exact."""

import asyncio
import shutil
from collections.abc import Awaitable
from pathlib import Path
from typing import TypeVar

import pyarrow as pa
import pytest

from envelope.errors import (
    InvalidSubject,
    JetstreamError,
    OffsetForgotten,
    OffsetsApart,
    OriginDiffers,
)
from jetstream.client.mirror.positions import CONSUMER
from metadata.api.responses import CursorInfo
from tests.support.commands import CommandProcess
from tests.support.compacting_nodes import CONFIG, published
from tests.support.mirroring import Mirroring, copied_once, fill, following, until_end, until_end_if_there
from tests.support.nodes import WAIT_SECONDS, run
from tests.support.pauses import pause
from tests.support.two_clusters import (
    TwoClients,
    carried,
    check_mirrored,
    expected,
    records,
    two_clusters,
    two_nodes_apart,
)

Result = TypeVar("Result")

# --- other streams of the target ------------------------------------------------------------------------


def test_a_stream_that_has_stored_what_was_mirrored_into_another_is_refused_or_gets_all(
    tmp_path: Path,
) -> None:
    async def scenario() -> None:
        async with two_nodes_apart(tmp_path) as both:
            await both.source.streams.create("orders", "orders.>")
            await fill(both.source, range(10))
            async with following(both):
                await until_end_if_there(both.target, 10)
                await both.target.streams.create("second", "orders.>")
                await fill(both.source, range(10, 13))
                await until_end(both.target, 13)
                await until_end(both.target, 3, "second")
            await both.target.streams.update("orders", read_only=True)
            with pytest.raises(OriginDiffers, match="mirrored into another stream"):
                await copied_once(both, to_stream="second")
            await both.target.publish("orders.a", b"of another", stream="second")
            await copied_once(both, to_stream="second")
            originals = await records(both.source, "orders")
            copies = await records(both.target, "second")
            assert [carried(each) for each in copies[4:]] == [expected(each, 4) for each in originals]

    run(scenario())


def test_while_another_stream_would_store_what_is_mirrored_nothing_is_made(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with two_nodes_apart(tmp_path) as both:
            east, west = both.source, both.target
            await east.streams.create("orders", "orders.>")
            await fill(east, range(5))
            await copied_once(both)
            before = await records(west, "orders")
            with pytest.raises(InvalidSubject, match=r"'orders' of the target's cluster binds 'orders\.>'"):
                await copied_once(both, to_stream="orders-east")
            assert [each.name for each in await west.streams.list()] == ["orders"]
            await west.streams.create("prices", "prices.>")
            await west.streams.update("orders", read_only=True)
            await copied_once(both, to_stream="orders-east")
            assert await check_mirrored(east, west, "orders", "orders-east") == 5
            assert await records(west, "orders") == before

            back = TwoClients(west, east)
            with pytest.raises(InvalidSubject, match="'orders' of the target's cluster"):
                await copied_once(back, "orders-east", "orders-west")
            await east.streams.update("orders", read_only=True)
            await copied_once(back, "orders-east", "orders-west")
            values = [each.value for each in await records(east, "orders-west")]
            assert values == [each.value for each in await records(east, "orders")]

    run(scenario())


# --- records of others, and what the target has forgotten -----------------------------------------------


def test_records_of_others_that_retention_has_removed_end_a_mirror_too(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with two_nodes_apart(tmp_path) as both:
            await both.source.streams.create("orders", "orders.>")
            await fill(both.source, range(5))
            await copied_once(both)
            await both.target.publish("orders.a", b"of another")
            await both.target.streams.truncate("orders", 6)
            await fill(both.source, range(5, 9))
            with pytest.raises(OffsetsApart, match="has it up to 5"):
                await copied_once(both)
            assert await records(both.target, "orders") == []

    run(scenario())


def test_an_empty_target_that_knows_the_session_is_copied_into(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with two_nodes_apart(tmp_path) as both:
            await both.source.streams.create("orders", "orders.>")
            await fill(both.source, range(5))
            await copied_once(both)
            await both.target.streams.truncate("orders", 5)
            await fill(both.source, range(5, 9))
            await copied_once(both)
            originals = await records(both.source, "orders")
            copies = await records(both.target, "orders")
            assert [carried(each) for each in copies] == [expected(each) for each in originals[5:]]

    run(scenario())


def test_a_forgotten_session_is_begun_anew_behind_a_copy_and_not_where_there_is_none(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with two_nodes_apart(tmp_path) as both:
            await both.source.streams.create("orders", "orders.>")
            await fill(both.source, range(5))
            await copied_once(both)
            await both.target.streams.update("orders", session_window=0.000001)
            await both.source.publish("orders.a", b"alone")
            assert (await copied_once(both)).interruptions == []
            assert await check_mirrored(both.source, both.target, "orders") == 6
            await both.target.streams.truncate("orders", 6)
            await both.source.publish("orders.a", b"more")
            with pytest.raises(OffsetsApart, match="forgotten the mirror's session"):
                await copied_once(both)
            assert await records(both.target, "orders") == []

    run(scenario())


def test_behind_records_of_others_a_target_that_was_created_again_is_begun_anew(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with two_nodes_apart(tmp_path) as both:
            await both.source.streams.create("orders", "orders.>")
            await fill(both.source, range(5))
            await copied_once(both)
            await both.target.streams.delete("orders")
            await both.target.streams.create("orders", "orders.>")
            await both.target.publish("orders.a", b"of another")
            mirroring = await copied_once(both)
            assert [(each.position, each.start.difference) for each in mirroring.resumptions] == [(0, 1)]
            originals = await records(both.source, "orders")
            copies = await records(both.target, "orders")
            assert [carried(each) for each in copies[1:]] == [expected(each, 1) for each in originals]

    run(scenario())


# --- processes that were overtaken ----------------------------------------------------------------------


class Overtaken:
    """A mirror that stands still before it stores where the copy begins."""

    def __init__(self, both: TwoClients, monkeypatch: pytest.MonkeyPatch) -> None:
        self._mirror = Mirroring(both, once=True).mirror
        self._cursors = type(both.target.cursors)
        self._monkeypatch = monkeypatch
        self._stands, self._may_go_on = asyncio.Event(), asyncio.Event()

    async def overtaken(self, meanwhile: Awaitable[Result]) -> tuple[JetstreamError | None, Result]:
        """Let others do something while it stands; return how it ends then, and what they return."""
        async with asyncio.TaskGroup() as tasks:
            process = tasks.create_task(self._run())
            await self._stands.wait()
            result = await meanwhile
            self._may_go_on.set()
        return process.result(), result

    async def _run(self) -> JetstreamError | None:
        """Copy once, without the group: as a process that still believes to be its only member."""
        commit = self._cursors.commit

        async def late(*arguments: object, **options: object) -> object:
            self._monkeypatch.undo()
            self._stands.set()
            await self._may_go_on.wait()
            return await commit(*arguments, **options)  # type: ignore[arg-type]  # as it was called

        self._monkeypatch.setattr(self._cursors, "commit", late)
        await self._mirror._prepared()
        try:
            await self._mirror._copy()
        except JetstreamError as error:
            return error
        return None


def test_a_process_that_was_overtaken_does_not_take_others_acks_for_its_own_and_harms_no_copy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario() -> None:
        async with two_nodes_apart(tmp_path) as both:
            await both.source.streams.create("orders", "orders.>")
            await both.target.streams.create("orders", "orders.>")
            await fill(both.source, range(10))
            old = Overtaken(both, monkeypatch)

            async def overtake() -> CursorInfo:
                await fill(both.target, range(2))
                await copied_once(both)
                return await both.target.cursors.get(CONSUMER, "orders")

            outcome, begun = await old.overtaken(overtake())
            assert isinstance(outcome, OffsetsApart), outcome
            assert "offset 0 is stored at 2" in outcome.description
            assert await both.target.cursors.get(CONSUMER, "orders") != begun, "the old one has written it"

            await fill(both.source, range(10, 12))
            mirroring = await copied_once(both)
            assert [(each.position, each.start.difference) for each in mirroring.resumptions] == [(10, 2)]
            copies = (await records(both.target, "orders"))[2:]
            originals = await records(both.source, "orders")
            assert [carried(each) for each in copies] == [expected(each, 2) for each in originals]
            await both.target.streams.truncate("orders", 14)
            await fill(both.source, range(12, 13))
            mirroring = await copied_once(both)
            assert [each.start.difference for each in mirroring.resumptions] == [2], "by the cursor alone"

    run(scenario())


def test_an_ack_without_a_place_is_not_taken_for_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario() -> None:
        async with two_nodes_apart(tmp_path) as both:
            source = both.source
            await source.streams.create("orders", "orders.>")
            await source.publish_batch("orders.a", pa.table({"value": [b"%d" % n for n in range(10)]}))
            old = Overtaken(both, monkeypatch)

            async def overtake() -> None:
                table = pa.table({"value": [b"%d" % number for number in range(10, 20)]})
                await source.publish_batch("orders.a", table)
                await copied_once(both)

            outcome, _ = await old.overtaken(overtake())
            assert isinstance(outcome, OffsetForgotten), outcome
            assert await check_mirrored(source, both.target, "orders") == 20

    run(scenario())


# --- sources that have lost something -------------------------------------------------------------------


def test_a_source_that_has_lost_its_end_ends_a_mirror_also_if_it_was_written_anew(tmp_path: Path) -> None:
    with two_clusters(tmp_path) as clusters:

        async def put(numbers: range, end: int) -> None:
            async with clusters.clients() as both:
                if not numbers.start:
                    await both.source.streams.create("orders", "orders.>")
                await fill(both.source, numbers)
                await until_end(both.source, end)

        def once() -> str:
            with CommandProcess(*clusters.command("--once", "--json")) as process:
                code, _, error = process.finished()
            return error if code else "done"

        asyncio.run(put(range(5), 5))
        clusters.source.stop()
        shutil.copytree(tmp_path / "source", tmp_path / "backup")
        clusters.source.start()
        asyncio.run(put(range(5, 10), 10))
        assert once() == "done"
        clusters.source.kill()
        shutil.rmtree(tmp_path / "source")
        shutil.copytree(tmp_path / "backup", tmp_path / "source")
        clusters.source.start()
        asyncio.run(put(range(100, 100), 5))
        assert "it ends at 5" in once()
        asyncio.run(put(range(50, 55), 10))
        assert "another record at offset 9" in once()


def test_a_source_whose_last_records_were_compacted_ends_a_mirror_that_is_to_reach_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario() -> None:
        async with two_nodes_apart(tmp_path, maintenance_interval=0.02) as both:
            source = both.source
            await source.streams.create("orders", "orders.>", **CONFIG)
            await source.publish("orders.x", b"stays")
            await published(source, "orders", range(7))
            old = Overtaken(both, monkeypatch)

            async def compact() -> None:
                await published(source, "orders", range(7, 300))
                async with asyncio.timeout(WAIT_SECONDS):
                    while any(0 < each.offset < 8 for each in await records(source, "orders")):
                        await pause()

            outcome, _ = await old.overtaken(compact())
            assert isinstance(outcome, OffsetsApart), outcome
            assert "at every offset from 1 to 7" in outcome.description
            assert len(await records(both.target, "orders")) == 1

    run(scenario())

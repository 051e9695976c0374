"""Backups of a real node that runs, and the node that begins on what is restored from them."""

import asyncio
import threading
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.ipc
import pytest

import jetstream
from envelope.errors import DamagedBackup, DirectoryInUse, StorageError, TxidDecreasing, UnknownBackup
from envelope.types import Buffer
from jetstream.client.backup.backup import Backup
from jetstream.client.connection import JetstreamClient
from jetstream.node.node import Node
from jetstream.tier.backups.backup_store import BackupStore
from jetstream.tier.object_store import ObjectStore
from tests.support.backups import backed_up, node_of_backup, restored, store_at, stored
from tests.support.compacting_nodes import CONFIG, latest, published
from tests.support.nodes import WAIT_SECONDS, nats_and_node, node_config, run
from tests.support.pauses import pause
from tests.support.s3_server import s3_server
from tests.support.sockets import until
from tests.support.tiered_nodes import RECORDS, tiered, tiered_node

SMALL = {"segment_bytes": 64 * 1024}


async def fill(client: JetstreamClient, numbers: range, stream: str = "orders") -> None:
    """Publish records in many batches."""
    for first in range(numbers.start, numbers.stop, 50):
        await client.publish_all(
            (f"{stream}.{n % 3}", b"%d " % n + b"x" * 200, {"key": f"k{n % 7}"})
            for n in range(first, min(first + 50, numbers.stop))
        )


async def fill_prices(client: JetstreamClient, numbers: range) -> None:
    """Publish records of a few keys in many batches."""
    for first in range(numbers.start, numbers.stop, 10):
        await published(client, "prices", range(first, min(first + 10, numbers.stop)))


def segments(data: Path, stream: str) -> dict[str, bytes]:
    """The sealed segments of a stream by name; the last one may have no end marker."""
    [directory] = (data / "streams").glob(f"{stream}@*")
    return {path.name: path.read_bytes() for path in sorted(directory.glob("*.arrows"))[:-1]}


async def until_cursor(client: JetstreamClient) -> None:
    async with asyncio.timeout(WAIT_SECONDS):
        while (await client.cursors.get("me", "orders")).offset is None:
            await pause()


# --- what is restored -----------------------------------------------------------------------------------


def test_every_part_of_a_record_is_restored_in_the_same_files(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with nats_and_node(tmp_path / "source") as (url, _), jetstream.connect(url) as source:
            await source.streams.create("orders", "orders.>", labels={"of": "shop"}, **SMALL)
            await source.publish("orders.a", b"one", key="k", message_id="m-1", headers={"Color": "blue"})
            await source.publish("orders.a", None, key="k", txid=7)
            await source.publish("orders.b", b"", txid=8)
            await fill(source, range(2000))
            table = pa.table({"value": [b"%d" % number for number in range(100)]})
            await source.publish_batch("orders.a", table, message_id="batch")
            made = await backed_up(source, tmp_path / "backups")
            before = await stored(source, "orders")
            config = (await source.streams.info("orders")).config
            files = segments(tmp_path / "source/data", "orders")
        assert made.left_out == made.damaged == ()
        async with node_of_backup(tmp_path / "backups", tmp_path / "target") as (target, _):
            assert await stored(target, "orders") == before
            assert len(before) == 2103
            assert (await target.streams.info("orders")).config == config
            assert segments(tmp_path / "target/data", "orders") == files
            assert len(files) > 3
            # It goes on behind, in an epoch that no reader of the old cluster can have seen.
            ack = await target.publish("orders.a", b"more")
            assert (ack.offset, ack.duplicate) == (2103, False)
            assert ack.epoch > before[-1].epoch + 1_000_000
            assert (await target.publish("orders.a", b"one", message_id="m-1")).duplicate
        async with node_of_backup(tmp_path / "backups", tmp_path / "another") as (target, _):
            assert await stored(target, "orders") == before

    run(scenario())


def test_objects_open_as_they_lie(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with nats_and_node(tmp_path / "source") as (url, _), jetstream.connect(url) as source:
            await source.streams.create("orders", "orders.>", **SMALL)
            await fill(source, range(2000))
            [orders] = (await backed_up(source, tmp_path / "backups")).manifest.streams
            found: list[int | None] = []
            for each in orders.objects:
                with pa.OSFile(str(tmp_path / "backups" / each.path), "r") as file:
                    found += pyarrow.ipc.open_stream(file).read_all().column("offset").to_pylist()
            assert found == list(range(2000))

    run(scenario())


def test_holes_of_compaction_and_a_start_above_zero_are_restored(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with (
            nats_and_node(tmp_path / "source", maintenance_interval=0.1) as (url, node),
            jetstream.connect(url) as source,
        ):
            await source.streams.create("prices", "prices.>", **CONFIG)
            await source.streams.create("orders", "orders.>", rewrite_after=0, **SMALL)
            await source.streams.create("gone", "gone.>", **SMALL)
            await fill_prices(source, range(300))
            await fill(source, range(2000))
            await fill(source, range(10), "gone")
            await source.streams.truncate("orders", 777)
            await source.streams.truncate("gone", 10)
            prices = node.stream("prices")
            assert prices is not None
            await until(lambda: prices.log.compaction.cleaned_end > 200)
            await backed_up(source, tmp_path / "backups")
            before = {name: await stored(source, name) for name in ("prices", "orders", "gone")}
        assert len(before["prices"]) < 200
        assert before["orders"][0].offset == 777
        async with node_of_backup(tmp_path / "backups", tmp_path / "target") as (target, _):
            for name, records in before.items():
                assert await stored(target, name) == records
            assert (await target.streams.info("orders")).log_start_offset == 777
            assert (await target.publish("gone.1", b"next")).offset == 10
            assert (await target.publish("prices.x", b"next", key="k1")).offset == 300

    run(scenario())


def test_partitions_cursors_and_groups_go_on_where_they_were(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with nats_and_node(tmp_path / "source") as (url, _), jetstream.connect(url) as source:
            await source.streams.create("orders", "orders.>", partitions=3, partition_by="key")
            await source.namespaces.limit("shop", streams=5)
            await fill(source, range(700))
            await source.cursors.commit("me", "orders/1", 17, metadata="of me")
            async with source.consume("orders", group="billing", commit="manual") as consumer:
                seen = [(await anext(consumer)) for _ in range(300)]
                await consumer.commit()
            made = await backed_up(source, tmp_path / "backups")
            before = {name: await stored(source, name) for name in await source.stream_names()}
        assert [stream.name for stream in made.manifest.streams] == sorted(before)
        assert "__cursors" in before
        async with node_of_backup(tmp_path / "backups", tmp_path / "target") as (target, _):
            for name, records in before.items():
                # Its coordinator writes to a shard as soon as it leads it.
                assert (await stored(target, name))[: len(records)] == records
            cursor = await target.cursors.get("me", "orders/1")
            assert (cursor.offset, cursor.metadata) == (17, "of me")
            assert (await target.namespaces.info("shop")).limits.streams == 5
            async with target.consume("orders", group="billing") as consumer:
                rest = [(await anext(consumer)) for _ in range(400)]
            keys = sorted((record.stream, record.offset) for record in [*seen, *rest])
            assert keys == sorted(
                (record.stream, record.offset)
                for name, records in before.items()
                if name.startswith("orders/")
                for record in records
            )
            await fill(target, range(700, 710))

    run(scenario())


def test_what_lies_in_an_object_store_is_restored_to_the_disk(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with tiered_node(tmp_path / "source") as (source, node):
            await tiered(source, node)
            await backed_up(source, tmp_path / "backups")
            before = await stored(source, "orders")
        assert len(before) == RECORDS
        async with node_of_backup(tmp_path / "backups", tmp_path / "target") as (target, _):
            assert await stored(target, "orders") == before
            info = await target.streams.info("orders")
            assert (info.config.tier, info.tier) == (False, None)

    run(scenario())


def test_what_publishers_have_done_is_remembered_where_its_records_are_gone(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with nats_and_node(tmp_path / "source") as (url, _), jetstream.connect(url) as source:
            await source.streams.create("orders", "orders.>")
            await source.streams.create("payments", "payments.>")
            async with source.session("importer") as session:
                for sequence in (1, 2):
                    await (await session.publish("orders.a", b"of a session", sequence=sequence))
            await source.publish("orders.a", b"", txid=70)
            await source.publish("payments.a", b"", txid=70)
            await source.streams.set_txid("payments", 5)
            await source.streams.truncate("orders", 3)
            await backed_up(source, tmp_path / "backups")
        async with node_of_backup(tmp_path / "backups", tmp_path / "target") as (target, _):
            publishers = await target.streams.publishers("orders")
            assert [(each.session, each.sequence) for each in publishers.sessions] == [("importer", 2)]
            with pytest.raises(TxidDecreasing):
                await target.publish("orders.a", b"", txid=69)
            assert (await target.publish("payments.a", b"", txid=6)).offset == 1
            async with target.session("importer") as session:
                again = await (await session.publish("orders.a", b"of a session", sequence=2))
                assert again.duplicate

    run(scenario())


def test_backups_lie_in_any_object_store(tmp_path: Path) -> None:
    async def scenario(place: str) -> None:
        async with nats_and_node(tmp_path / "source") as (url, _), jetstream.connect(url) as source:
            await source.streams.create("orders", "orders.>", **SMALL)
            await fill(source, range(1000))
            await backed_up(source, place)
            await fill(source, range(1000, 1100))
            made = await backed_up(source, place)
            assert made.progress.read < 1000 * 200
            before = await stored(source, "orders")
        async with node_of_backup(place, tmp_path / "target") as (target, _):
            assert await stored(target, "orders") == before

    with s3_server() as server:
        run(scenario(server.uri("backups")))


class HeldPlace(BackupStore):
    """A place that takes the first objects of a backup only when a test says so."""

    def __init__(self, directory: Path) -> None:
        super().__init__(ObjectStore.at(str(directory)))
        self.is_reached = threading.Event()
        self.may_go_on = threading.Event()

    def put_object(self, chunks: Sequence[Buffer], known: Collection[str]) -> tuple[str, bool]:
        self.is_reached.set()
        assert self.may_go_on.wait(WAIT_SECONDS)
        return super().put_object(chunks, known)


def test_streams_that_go_or_come_meanwhile_are_no_part_of_a_backup(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with nats_and_node(tmp_path / "source") as (url, _), jetstream.connect(url) as source:
            await source.streams.create("a", "a.>", **SMALL)
            await source.streams.create("deleted", "deleted.>")
            await source.streams.create("parted", "parted.>", partitions=2, partition_by="key")
            await source.streams.create("remade", "remade.>")
            await fill(source, range(5000), "a")
            await source.publish("remade.x", b"old")
            place = HeldPlace(tmp_path / "backups")
            async with asyncio.TaskGroup() as tasks:
                backup = tasks.create_task(Backup(source, place, "test").run())
                assert await asyncio.to_thread(place.is_reached.wait, WAIT_SECONDS)
                for name in ("deleted", "parted", "remade"):
                    await source.streams.delete(name)
                for name in ("remade", "new"):
                    await source.streams.create(name, f"{name}.>")
                await source.publish("remade.x", b"new")
                place.may_go_on.set()
            made = backup.result()
            assert [stream.name for stream in made.manifest.streams] == ["a"]
            assert made.left_out == ("deleted", "parted/0", "parted/1", "remade")
        async with node_of_backup(tmp_path / "backups", tmp_path / "target") as (target, _):
            assert await target.stream_names() == ["a"]

    run(scenario())


# --- several backups at one place -----------------------------------------------------------------------


def test_the_next_backup_has_only_what_is_new_while_publishing_goes_on(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with nats_and_node(tmp_path / "source") as (url, _), jetstream.connect(url) as source:
            await source.streams.create("orders", "orders.>", **SMALL)
            await fill(source, range(5000))
            first = await backed_up(source, tmp_path / "backups")
            assert first.progress.written > 5000 * 200
            same = await backed_up(source, tmp_path / "backups")
            assert (same.progress.read, same.progress.written) == (0, 0)
            assert same.manifest.streams == first.manifest.streams
            ended = asyncio.Event()

            async def publishing() -> None:
                number = 5000
                while not ended.is_set():
                    await fill(source, range(number, number + 50))
                    number += 50
                    await source.cursors.commit("me", "orders", number)

            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(publishing())
                await until_cursor(source)
                made = [await backed_up(source, tmp_path / "backups") for _ in range(5)]
                ended.set()
            assert all(each.progress.read < first.progress.read for each in made)
            before = await stored(source, "orders")
        for number, each in enumerate((first, same, *made)):
            orders = each.manifest.streams[-1]
            directory = tmp_path / f"target-{number}"
            async with node_of_backup(tmp_path / "backups", directory, each.name) as (target, _):
                assert await stored(target, "orders") == before[: orders.end]
                # As far as it was committed, and never ahead of what there is.
                offset = (await target.cursors.get("me", "orders")).offset
                assert (offset or 0) <= orders.end
                assert (offset is None) == (number < 2)

    run(scenario())


def test_what_was_merged_since_the_last_backup_is_copied_once(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with (
            nats_and_node(tmp_path / "source", maintenance_interval=0.1) as (url, node),
            jetstream.connect(url) as source,
        ):
            await source.streams.create("orders", "orders.>", rewrite_after=0, **SMALL)
            for number in range(30):
                await source.publish("orders.a", b"%d" % number)
            await backed_up(source, tmp_path / "backups")
            await fill(source, range(1000))
            await source.streams.update("orders", rewrite_after=0.1)
            orders = node.stream("orders")
            assert orders is not None
            await until(lambda: orders.log.rewritten_end > 100)
            made = await backed_up(source, tmp_path / "backups")
            before = await stored(source, "orders")
        [copied] = made.manifest.streams
        assert copied.problem() is None
        assert copied.objects[0].next > 30, "the batches up to 30 are in one with those behind"
        async with node_of_backup(tmp_path / "backups", tmp_path / "target") as (target, _):
            assert await stored(target, "orders") == before

    run(scenario())


def test_a_compacted_stream_is_read_anew_and_only_what_differs_is_written(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with (
            nats_and_node(tmp_path / "source", maintenance_interval=0.1) as (url, node),
            jetstream.connect(url) as source,
        ):
            await source.streams.create("prices", "prices.>", **CONFIG)
            await source.publish("prices.x", b"", key="deleted")
            await fill_prices(source, range(300))
            prices = node.stream("prices")
            assert prices is not None
            await until(lambda: prices.log.compaction.cleaned_end > 200)
            first = await backed_up(source, tmp_path / "backups")
            assert b"deleted" in {record.key for record in await stored(source, "prices")}
            tombstone = (await source.publish("prices.x", None, key="deleted")).offset
            while prices.log.compaction.purged_end <= tombstone:
                await fill_prices(source, range(100))
            made = await backed_up(source, tmp_path / "backups")
            assert made.progress.read > first.progress.read / 2, "not only what is new"
            async with asyncio.timeout(WAIT_SECONDS):
                while (again := await backed_up(source, tmp_path / "backups")).progress.written:
                    pass  # it was compacted meanwhile
            assert again.progress.read > 0, "all of it was there already"
            before = latest(await stored(source, "prices"))
            assert b"deleted" not in before
        async with node_of_backup(tmp_path / "backups", tmp_path / "target") as (target, _):
            assert latest(await stored(target, "prices")) == before

    run(scenario())


def test_after_a_restore_the_place_has_no_records_of_the_other_history(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with nats_and_node(tmp_path / "source") as (url, _), jetstream.connect(url) as source:
            await source.streams.create("orders", "orders.>", **SMALL)
            await fill(source, range(500))
            first = await backed_up(source, tmp_path / "backups")
            await fill(source, range(500, 600))
            await backed_up(source, tmp_path / "backups")
        async with node_of_backup(tmp_path / "backups", tmp_path / "target", first.name) as (target, _):
            await fill(target, range(9500, 9600))
            assert (await target.ranges(["orders"]))["orders"].end == 600, "as many as the other one has"
            await backed_up(target, tmp_path / "backups")
            before = await stored(target, "orders")
        async with node_of_backup(tmp_path / "backups", tmp_path / "another") as (target, _):
            assert await stored(target, "orders") == before

    run(scenario())


# --- what is refused ------------------------------------------------------------------------------------


def damages(place: Path) -> Iterator[Path]:
    """Damage every file at a place in turn, and put it right: a flipped bit, a lost end, none at all."""
    for path in sorted(place.rglob("*")):
        if not path.is_file():
            continue
        content = path.read_bytes()
        flipped = bytearray(content)
        flipped[len(content) // 2] ^= 1
        for damaged in (bytes(flipped), content[:-1], None):
            path.unlink()
            if damaged is not None:
                path.write_bytes(damaged)
            yield path
            path.write_bytes(content)


def test_a_damaged_backup_is_refused_and_no_node_begins_on_what_there_is_of_it(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with nats_and_node(tmp_path / "source") as (url, _), jetstream.connect(url) as source:
            await source.streams.create("orders", "orders.>", **SMALL)
            await fill(source, range(500))
            await source.cursors.commit("me", "orders", 17)
            await backed_up(source, tmp_path / "backups")
            before = await stored(source, "orders")
            data = tmp_path / "target/data"
            count = 0
            for _ in damages(tmp_path / "backups"):
                count += 1
                with pytest.raises((DamagedBackup, UnknownBackup)):
                    await restored(tmp_path / "backups", data)
                if data.exists():
                    with pytest.raises(StorageError):
                        await Node(node_config(data, url)).__aenter__()
            assert count == 3 * 5, "a manifest, three objects of orders, one of cursors"
        async with node_of_backup(tmp_path / "backups", tmp_path / "target") as (target, _):
            assert await stored(target, "orders") == before

    run(scenario())


@pytest.mark.parametrize("name", ["identity", "something"])
def test_a_directory_that_is_not_empty_is_refused_untouched(tmp_path: Path, name: str) -> None:
    async def scenario() -> None:
        async with nats_and_node(tmp_path / "source") as (url, _), jetstream.connect(url) as source:
            await backed_up(source, tmp_path / "backups")
        (tmp_path / "target").mkdir()
        (tmp_path / "target" / name).write_text("of somebody")
        with pytest.raises(DirectoryInUse):
            await restored(tmp_path / "backups", tmp_path / "target")
        assert [path.name for path in (tmp_path / "target").iterdir()] == [name]
        with pytest.raises(DirectoryInUse):
            await restored(tmp_path / "backups", tmp_path / "source/data")

    run(scenario())


def test_the_next_backup_is_whole_where_objects_of_the_last_one_are_missing(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with nats_and_node(tmp_path / "source") as (url, _), jetstream.connect(url) as source:
            await source.streams.create("orders", "orders.>", **SMALL)
            await fill(source, range(1000))
            first = await backed_up(source, tmp_path / "backups")
            [orders] = first.manifest.streams
            (tmp_path / "backups" / orders.objects[1].path).unlink()
            await fill(source, range(1000, 1100))
            made = await backed_up(source, tmp_path / "backups")
            assert made.progress.written < made.progress.read
            before = await stored(source, "orders")
        async with node_of_backup(tmp_path / "backups", tmp_path / "target", made.name) as (target, _):
            assert await stored(target, "orders") == before

    run(scenario())


def test_an_unfinished_backup_is_passed_over(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with nats_and_node(tmp_path / "source") as (url, _), jetstream.connect(url) as source:
            await source.streams.create("orders", "orders.>", **SMALL)
            await fill(source, range(500))
            first = await backed_up(source, tmp_path / "backups")
            second = await backed_up(source, tmp_path / "backups")
            (tmp_path / "backups" / second.name).write_bytes(b"{")
            third = await backed_up(source, tmp_path / "backups")
            assert third.damaged == (second.name,)
            assert third.progress.written == 0
            assert third.manifest.streams == first.manifest.streams
            with pytest.raises(UnknownBackup):
                store_at(tmp_path / "backups").manifest("manifests/none.json")

    run(scenario())

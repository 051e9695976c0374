"""Consumer groups as operators see them: listed, described, behind by so much, reset and deleted."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

import jetstream
from envelope.errors import (
    InvalidCursor,
    InvalidName,
    JetstreamError,
    OffsetOutOfRange,
    RequestError,
    UnknownStream,
)
from envelope.group_errors import GroupInUse, MemberFenced, UnknownGroup
from envelope.internal_streams import group_shard
from envelope.types import Offset
from jetstream.client.admin.group_lag import CursorMove, CursorStatus, Target
from jetstream.client.admin.groups import ResetOptions
from jetstream.client.connection import JetstreamClient
from jetstream.node.node import Node
from metadata.api.responses import utc
from tests.support.nodes import nats_and_node, request, run
from tests.support.raw_member import joined, members
from tests.support.scraping import metrics


@asynccontextmanager
async def node_with(directory: Path, **records: int) -> AsyncIterator[tuple[JetstreamClient, Node]]:
    """A node with these streams, each of so many records."""
    async with nats_and_node(directory, http={"port": 0}) as (url, node), jetstream.connect(url) as js:
        for stream, count in records.items():
            await js.streams.create(stream, f"{stream}.>")
            await js.publish_all([(f"{stream}.x", b"%d" % number) for number in range(count)])
        yield js, node


async def scraped_lag(node: Node) -> dict[str, float]:
    """The lag of each stream or partition that the node's metrics tell."""
    found = await metrics(node)
    return {labels[1]: lag for (name, labels), lag in found.items() if name == "jetstream_group_lag_records"}


def address(node: Node) -> tuple[str, int]:
    return node.socket_host, node.socket_port


async def cursors(js: JetstreamClient, group: str = "billing") -> dict[tuple[str, int], int]:
    """The group's cursors."""
    return {(each.stream, each.partition): each.offset for each in (await js.groups.info(group)).cursors}


def test_a_group_is_given_its_first_cursors_described_and_deleted(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with node_with(tmp_path, orders=6) as (js, node):
            with pytest.raises(UnknownGroup):
                await js.groups.info("shop/billing")
            with pytest.raises(UnknownGroup):
                await js.groups.delete("shop/billing")
            assert await js.groups.list() == []
            assert await js.streams.list("__", internal=True) == [], "asking for a group makes no shard"
            life = (await js.streams.info("orders")).incarnation
            moves = await js.groups.reset("shop/billing", "latest", streams=["orders"])
            assert moves == (CursorMove("orders", 0, None, Offset(6), life),)
            info = await js.groups.info("shop/billing")
            assert (info.group, info.shard) == ("shop/billing", group_shard("shop/billing"))
            assert (info.coordinator, info.generation, info.members) == (node.node_id, 0, [])
            [cursor] = info.cursors
            assert (cursor.stream, cursor.partition, cursor.offset) == ("orders", 0, 6)
            assert (cursor.incarnation, cursor.metadata) == (life, None)
            assert abs(datetime.now(UTC) - cursor.committed_at) < timedelta(minutes=5)
            [listed] = await js.groups.list("shop/")
            assert (listed.group, listed.members, listed.shard) == ("shop/billing", 0, info.shard)
            assert await js.groups.list("shop/billing/") == []
            async with members(address(node), "shop/billing") as [one]:
                await joined(one)
                assert await one.cursors() == {0: 6}, "its first member begins there"
                await one.leave()
            await js.groups.delete("shop/billing")
            with pytest.raises(UnknownGroup):
                await js.groups.info("shop/billing")
            assert await js.groups.list() == []

    run(scenario())


def test_a_group_in_use_is_changed_only_by_force_and_its_members_hear_it(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with (
            node_with(tmp_path, orders=6) as (js, node),
            members(address(node), "billing") as [one],
        ):
            await joined(one)
            await one.commit(4)
            info = await js.groups.info("billing")
            [member] = info.members
            assert (member.member, member.client, member.streams) == (one.member, one.client, ["orders"])
            assert (member.session_timeout_ms, member.gives_up) == (10_000, [])
            [owned] = member.owned
            assert (owned.stream, owned.partitions) == ("orders", [(0, one.keeps["orders", 0])])
            [listed] = await js.groups.list()
            assert (listed.members, listed.generation) == (1, info.generation)
            with pytest.raises(GroupInUse):
                await js.groups.reset("billing", "earliest")
            with pytest.raises(GroupInUse):
                await js.groups.delete("billing")
            assert not (await one.heartbeat()).refused
            assert await cursors(js) == {("orders", 0): 4}
            [move] = await js.groups.reset("billing", "earliest", force=True)
            assert (move.before, move.after) == (4, 0)
            [refused] = (await one.heartbeat()).refused
            assert refused.error.err_code == MemberFenced.err_code
            with pytest.raises(MemberFenced):
                await one.commit(5)
            assert await cursors(js) == {("orders", 0): 0}
            await joined(one)
            await js.groups.delete("billing", force=True)
            with pytest.raises(MemberFenced):
                await one.commit(5)
            with pytest.raises(UnknownGroup):
                await js.groups.info("billing")

    run(scenario())


def test_the_lag_of_every_partition_is_told(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with (
            node_with(tmp_path, current=10, cut=10, deleted=10, again=10, unread=10) as (js, node),
            members(address(node), "billing", streams=("current", "unread")) as [one],
        ):
            await joined(one)
            places = [{"stream": name, "offset": 4} for name in ("current", "cut", "deleted")]
            life = (await js.streams.info("again")).incarnation
            places.append({"stream": "again", "offset": 4, "incarnation": life})
            answer = await request(js.nats, "group.reset", group="billing", cursors=places, force=True)
            assert answer == {"group": "billing", "cursors": 4}
            await joined(one)
            await js.streams.truncate("cut", before=7)
            await js.streams.delete("deleted")
            await js.streams.delete("again")
            await js.streams.create("again", "again.>")
            await js.publish("again.x", b"0")
            found = await js.groups.lag("billing")
            told = {each.stream: (each.standing, each.cursor, each.lag) for each in found.partitions}
            assert told == {
                "again": (CursorStatus.RECREATED, 4, 1),
                "current": (CursorStatus.CURRENT, 4, 6),
                "cut": (CursorStatus.EXPIRED, 4, 3),
                "deleted": (CursorStatus.NO_STREAM, 4, None),
                "unread": (CursorStatus.NONE, None, 10),
            }
            assert (found.total, found.unknown) == (20, 1)
            assert await scraped_lag(node) == {"again": 1, "current": 6, "cut": 3, "unread": 10}
            owners = {each.stream: each.member for each in found.partitions}
            assert owners == dict.fromkeys(told) | {"current": one.member, "unread": one.member}
            with pytest.raises(UnknownGroup):
                await js.groups.lag("another")

    run(scenario())


def test_a_partitioned_stream_is_told_and_reset_partition_by_partition(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with node_with(tmp_path) as (js, node):
            made = {"name": "orders", "subject": "orders.>", "partitions": 3, "partition_by": "key"}
            answer = await request(js.nats, "stream.create", **made)
            assert answer["effective_partitions"] == 3
            for number in range(30):
                await js.publish("orders.x", b"v", key=f"k{number}")
            ends = {part: (await js.streams.info(f"orders/{part}")).high_watermark for part in range(3)}
            assert sum(ends.values()) == 30
            async with members(address(node), "billing") as [one]:
                await joined(one)
                assert sorted(one.keeps) == [("orders", 0), ("orders", 1), ("orders", 2)]
                await one.commit(2, partition=1)
                found = await js.groups.lag("billing")
                told = [(each.stream, each.partition, each.cursor, each.lag) for each in found.partitions]
                assert told == [
                    ("orders", 0, None, ends[0]),
                    ("orders", 1, 2, ends[1] - 2),
                    ("orders", 2, None, ends[2]),
                ]
                lags = {f"orders/{each.partition}": each.lag for each in found.partitions}
                assert await scraped_lag(node) == lags
                assert {each.member for each in found.partitions} == {one.member}
                await one.leave()
            moves = await js.groups.reset("billing", "latest", streams=["orders"], partitions=[0, 2])
            assert [(move.partition, move.before, move.after) for move in moves] == [
                (0, None, ends[0]),
                (2, None, ends[2]),
            ]
            lives = {part: (await js.streams.info(f"orders/{part}")).incarnation for part in range(3)}
            assert {move.partition: move.incarnation for move in moves} == {0: lives[0], 2: lives[2]}
            assert (await js.groups.lag("billing")).total == ends[1] - 2
            [move] = await js.groups.reset("billing", by=-1, streams=["orders"], partitions=[1])
            assert (move.before, move.after) == (2, 1)
            with pytest.raises(UnknownStream):
                await js.groups.reset("billing", "latest", streams=["orders"], partitions=[3])
            await request(js.nats, "stream.delete", name="orders")
            gone = await js.groups.lag("billing")
            assert {each.standing for each in gone.partitions} == {CursorStatus.NO_STREAM}

    run(scenario())


def test_cursors_are_put_where_it_is_said_and_nowhere_by_a_dry_run(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with node_with(tmp_path, orders=4, clicks=8) as (js, _):
            between = (await js.streams.info("orders")).created_at + timedelta(days=1)
            await js.streams.truncate("clicks", before=2)
            await js.groups.reset("billing", 3, streams=["orders", "clicks"])

            async def put(to: Target | None = None, **options: object) -> dict[str, int]:
                """Where it is said to be put by a dry run, which must have changed nothing."""
                before = await cursors(js)
                wanted = ResetOptions(**options)  # type: ignore[typeddict-item]  # as they are given
                moves = await js.groups.reset("billing", to, **wanted, dry_run=True)
                assert await cursors(js) == before
                return {move.stream: move.after for move in moves}

            assert await put("earliest") == {"clicks": 2, "orders": 0}
            assert await put("latest") == {"clicks": 8, "orders": 4}
            assert await put(2) == {"clicks": 2, "orders": 2}
            assert await put(between) == {"clicks": 8, "orders": 4}
            assert await put(timedelta(days=-1)) == {"clicks": 2, "orders": 0}
            assert await put(by=-2) == {"clicks": 2, "orders": 1}
            assert await put(by=100) == {"clicks": 8, "orders": 4}
            assert await put("latest", streams=["orders"]) == {"orders": 4}
            assert await put("latest", streams=["orders"], partitions=[0]) == {"orders": 4}
            with pytest.raises(OffsetOutOfRange):
                await js.groups.reset("billing", 1)
            with pytest.raises(UnknownStream):
                await js.groups.reset("billing", "latest", streams=["orders", "nothing"])
            with pytest.raises(UnknownStream):
                await js.groups.reset("billing", "latest", streams=["orders"], partitions=[1])
            with pytest.raises(TypeError):
                await js.groups.reset("billing", "latest", stream="orders")  # type: ignore[call-arg]  # the point
            assert await cursors(js) == {("clicks", 0): 3, ("orders", 0): 3}, "all or none"
            await js.groups.reset("billing", by=1)
            assert await cursors(js) == {("clicks", 0): 4, ("orders", 0): 4}

    run(scenario())


def test_a_moment_is_the_first_record_since_then(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with node_with(tmp_path, orders=3) as (js, _):
            records = [record async for record in js.read("orders")]
            for record in records:
                [move] = await js.groups.reset("billing", utc(record.timestamp), streams=["orders"])
                first = next(each for each in records if each.timestamp >= record.timestamp)
                assert move.after == first.offset

    run(scenario())


@pytest.mark.parametrize("name", ["", "a.b", "../etc", "a b", "*", ">", "a/", "\u00e9", "a\n", "x" * 256])
def test_a_name_that_no_group_can_have_is_refused_by_every_request(tmp_path: Path, name: str) -> None:
    async def scenario() -> None:
        async with node_with(tmp_path) as (js, _):
            place = [{"stream": "orders", "offset": 1}]
            for suffix, more in (("info", {}), ("delete", {}), ("reset", {"cursors": place})):
                answer = await request(js.nats, f"group.{suffix}", group=name, **more)
                assert answer["error"]["err_code"] == InvalidName.err_code, suffix
            answer = await request(js.nats, "group.reset", group="g", cursors=[{"stream": name, "offset": 1}])
            assert answer["error"]["err_code"] == InvalidName.err_code
            assert (await request(js.nats, "group.list", prefix=name))["groups"] == []
            assert await js.streams.list("__", internal=True) == [], "nothing was made for it"

    run(scenario())


def test_what_cannot_be_a_cursor_is_refused_and_nothing_is_stored(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with node_with(tmp_path, orders=1) as (js, _):
            good = {"stream": "orders", "offset": 1}
            for bad, refusal in (
                ({"stream": "x", "offset": 1 << 63}, RequestError),
                ({"stream": "x", "partition": 1 << 40, "offset": 1}, InvalidCursor),
                ({"stream": "x", "offset": 1, "incarnation": "no/where"}, InvalidCursor),
                ({"stream": "x", "offset": 1, "metadata": "\u00e9" * 1000}, InvalidCursor),
                ({"stream": "x", "offset": 1, "metadata": "y" * 1025}, RequestError),
                (good, RequestError),
            ):
                answer = await request(js.nats, "group.reset", group="billing", cursors=[good, bad])
                assert answer["error"]["err_code"] == refusal.err_code, bad
            with pytest.raises(UnknownGroup):
                await js.groups.info("billing")

    run(scenario())


def test_a_group_too_large_for_one_page_is_told_whole(tmp_path: Path) -> None:
    """More cursors than a page may have, and of more bytes than fit one."""

    async def scenario() -> None:
        async with node_with(tmp_path) as (js, _):
            for stream in ("a", "b"):
                places = [
                    {"stream": stream, "partition": number, "offset": number, "metadata": "m" * 400}
                    for number in range(1_500)
                ]
                answer = await request(js.nats, "group.reset", group="billing", cursors=places)
                assert answer == {"group": "billing", "cursors": 1_500}
            page = await request(js.nats, "group.info", group="billing", offset=2_990)
            assert (page["total"], len(page["cursors"]), page["offset"]) == (3_000, 10, 2_990)
            assert (page["cursors"][0]["stream"], page["cursors"][0]["partition"]) == ("b", 1_490)
            beyond = await request(js.nats, "group.info", group="billing", offset=3_000)
            assert (beyond["total"], beyond["cursors"], beyond["members"]) == (3_000, [], [])
            found = await js.groups.info("billing")
            told = [(each.stream, each.partition, each.offset) for each in found.cursors]
            assert told == [(stream, number, number) for stream in ("a", "b") for number in range(1_500)]

    run(scenario())


def test_all_groups_are_listed_in_order_and_in_pages_whatever_their_shards(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with node_with(tmp_path) as (js, _):
            names = sorted(f"{space}g{number}" for number in range(15) for space in ("", "shop/"))
            assert len({group_shard(name) for name in names}) == 8
            place = [{"stream": "orders", "offset": 1}]
            for name in names:
                assert "error" not in await request(js.nats, "group.reset", group=name, cursors=place)
            assert [each.group for each in await js.groups.list()] == names
            in_shop = [name for name in names if name.startswith("shop/")]
            assert [each.group for each in await js.groups.list("shop/")] == in_shop
            pages = [await request(js.nats, "group.list", offset=at, limit=7) for at in range(0, 36, 7)]
            assert {page["total"] for page in pages} == {len(names)}
            assert [each["group"] for page in pages for each in page["groups"]] == names
            in_one = [name for name in names if group_shard(name) == "__cursors/2"]
            page = await request(js.nats, "group.list", shard="__cursors/2", limit=2)
            assert [each["group"] for each in page["groups"]] == in_one[:2]
            assert page["total"] == len(in_one)

    run(scenario())


def test_groups_are_managed_without_asyncio(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with nats_and_node(tmp_path) as (url, _), jetstream.connect(url) as js:
            await js.streams.create("orders", "orders.>")
            await js.publish("orders.x", b"0")
            await asyncio.to_thread(without_asyncio, url)

    def without_asyncio(url: str) -> None:
        with jetstream.connect_blocking(url) as js:
            [move] = js.groups.reset("billing", "latest", streams=["orders"])
            assert (move.before, move.after) == (None, 1)
            assert [each.group for each in js.groups.list()] == ["billing"]
            assert js.groups.lag("billing").total == 0
            planned = js.groups.reset("billing", "earliest", dry_run=True)
            js.groups.move("billing", planned)
            assert [each.offset for each in js.groups.info("billing").cursors] == [0]
            js.groups.delete("billing")
            with pytest.raises(JetstreamError):
                js.groups.info("billing")

    run(scenario())

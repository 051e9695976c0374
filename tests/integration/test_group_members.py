"""Members of consumer groups over real sockets: what they own, commit and hear, on one node."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

import jetstream
from envelope.errors import InvalidName, JetstreamError, NotLeader, StreamOffline
from envelope.group_errors import (
    CursorBehind,
    IllegalGeneration,
    InstanceFenced,
    MemberFenced,
    PartitionNotOwned,
)
from envelope.internal_streams import group_shard
from jetstream.client.connection import JetstreamClient
from jetstream.node.node import Node
from jetstream.protocol.group_requests import SendHeartbeat
from jetstream.protocol.group_responses import HeartbeatResponse
from tests.support.nodes import nats_and_node, request, run
from tests.support.raw_member import RawMember, coordinator, joined, members


@asynccontextmanager
async def node_with(directory: Path, *streams: str) -> AsyncIterator[tuple[JetstreamClient, Node]]:
    """A node with these streams."""
    async with nats_and_node(directory) as (url, node), jetstream.connect(url) as js:
        for stream in streams:
            await js.streams.create(stream, f"{stream}.>")
        yield js, node


def address(node: Node) -> tuple[str, int]:
    return node.socket_host, node.socket_port


async def refusal(member: RawMember, wait_ms: int = 0) -> str:
    """The error code that its heartbeat brings."""
    response = await member.heartbeat(wait_ms)
    [refused] = response.refused
    assert refused.member == member.member
    return refused.error.err_code


def test_a_member_owns_the_stream_commits_and_reads_back(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with (
            node_with(tmp_path, "orders") as (_, node),
            members(address(node), "shop/billing") as [one],
        ):
            await joined(one)
            assert one.keeps == {("orders", 0): 1}
            assert await one.cursors() == {}
            assert not await one.commit(42, incarnation="1f0c", metadata="where")
            assert await one.cursors() == {0: 42}
            with pytest.raises(CursorBehind) as behind:
                await one.commit(41, incarnation="1f0c")
            assert behind.value.detail["offset"] == 42
            assert not await one.commit(41, incarnation="1f0c", reset=True)
            assert not await one.commit(7, incarnation="2222")
            assert await one.cursors() == {0: 7}

    run(scenario())


def test_a_partition_moves_once_its_owner_has_released_it(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with (
            node_with(tmp_path, "a", "b") as (_, node),
            members(address(node), "g", 2, ("a", "b")) as both,
        ):
            one, two = both
            await joined(one)
            async with asyncio.TaskGroup() as tasks:
                waiting = tasks.create_task(one.heartbeat(wait_ms=60_000))
                await joined(two)
            assert two.keeps == {}
            assert waiting.result().assignments, "a parked heartbeat brings what is new"
            [(moving, since)] = one.gives_up.items()
            assert len(one.keeps) == 1
            await one.commit(10, stream=moving[0])
            await asyncio.gather(two.heartbeat(wait_ms=60_000), one.release())
            assert set(two.keeps) == {moving}
            assert two.keeps[moving] > since
            with pytest.raises(PartitionNotOwned):
                await one.commit(11, stream=moving[0])
            assert await two.cursors(moving[0]) == {0: 10}
            await two.commit(11, stream=moving[0])

    run(scenario())


def test_who_leaves_hands_everything_over_at_once(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with node_with(tmp_path, "orders") as (_, node), members(address(node), "g", 2) as [one, two]:
            await joined(one)
            await joined(two)
            await asyncio.gather(two.heartbeat(wait_ms=60_000), one.leave())
            assert set(two.keeps) == {("orders", 0)}
            assert await refusal(one) == "member_fenced"
            with pytest.raises(MemberFenced):
                await one.commit(1)
            await one.leave()

    run(scenario())


def test_a_silent_member_is_put_out_and_fenced(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with node_with(tmp_path, "orders") as (_, node), members(address(node), "g", 2) as [one, two]:
            one.session_ms = 1_000
            await joined(one)
            await joined(two)
            while not two.keeps:
                await two.heartbeat(wait_ms=500)
            with pytest.raises(MemberFenced):
                await one.commit(1)
            assert await refusal(one, wait_ms=60_000) == "member_fenced"
            with pytest.raises(MemberFenced):
                await one.join(member=one.member)
            await one.join()
            assert one.keeps == {}, "it is a new member, and the other has the partition"

    run(scenario())


def test_a_static_member_that_starts_again_moves_nothing(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with node_with(tmp_path, "orders") as (_, node), members(address(node), "g", 3) as found:
            former, other, later = found
            former.instance = later.instance = "till-1"
            await joined(former)
            await joined(other)
            await joined(later)
            assert set(later.keeps) == {("orders", 0)}
            assert (await other.heartbeat()).assignments == []
            assert await refusal(former) == "instance_fenced"
            with pytest.raises(InstanceFenced):
                await former.commit(1)

    run(scenario())


def test_what_is_refused_says_why(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with node_with(tmp_path, "orders") as (_, node), members(address(node), "g") as [one]:
            await joined(one)
            with pytest.raises(IllegalGeneration):
                await one.commit(1, generation=99)
            with pytest.raises(PartitionNotOwned):
                await one.commit(1, partition=1)
            with pytest.raises(MemberFenced):
                await one.commit(1, member="somebody")
            for name in ("", "a.b", "a*", "/a"):
                one.group = name
                with pytest.raises(InvalidName):
                    await one.join()
            one.group = next(name for name in ("a", "b") if group_shard(name) != group_shard("g"))
            with pytest.raises(NotLeader):  # of a shard that nobody has made
                await one.commit(1)

    run(scenario())


def test_one_heartbeat_is_for_members_of_groups_in_several_shards(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with node_with(tmp_path, "orders") as (_, node), members(address(node), "g") as [one]:
            many = [RawMember(one.link, f"group-{number}", ["orders"]) for number in range(12)]
            for member in many:
                await coordinator(address(node), member.group)
                await joined(member)
            lost = RawMember(one.link, "group-3", ["orders"], member="nobody")
            beats = [member.beat() for member in (*many, lost)]
            asked = SendHeartbeat(id=one.link.next_id(), beats=beats, max_wait_ms=60_000)
            response = await one.ask(HeartbeatResponse, asked)
            assert [refused.member for refused in response.refused] == ["nobody"]
            asked = SendHeartbeat(id=one.link.next_id(), beats=beats[:-1], max_wait_ms=60_000)
            async with asyncio.TaskGroup() as tasks:
                parked = tasks.create_task(one.ask(HeartbeatResponse, asked))
                await joined(RawMember(one.link, many[5].group, ["orders"]))
                await many[5].leave()
            response = parked.result()
            assert [refused.member for refused in response.refused] == [many[5].member]

    run(scenario())


def test_more_news_than_a_frame_holds_comes_with_the_next_heartbeats(tmp_path: Path) -> None:
    streams = [f"{number:02d}-{'x' * 120}" for number in range(20)]
    groups = [name for name in map(str, range(400)) if group_shard(name) == group_shard("0")][:32]

    async def scenario() -> None:
        async with node_with(tmp_path, *streams) as (_, node), members(address(node), "0") as [one]:
            many = [RawMember(one.link, group, streams) for group in groups]
            for member in many:
                await joined(member)
                member.generation = 0
            answers = 0
            while unheard := [member for member in many if not member.generation]:
                beats = [member.beat() for member in unheard]
                asked = SendHeartbeat(id=one.link.next_id(), beats=beats, max_wait_ms=60_000)
                response = await one.ask(HeartbeatResponse, asked)
                assert response.assignments
                for assignment in response.assignments:
                    many[groups.index(assignment.group)].take(assignment)
                answers += 1
            assert answers > 1
            assert all(len(member.keeps) == len(streams) for member in many)

    run(scenario())


def test_groups_outlive_the_node(tmp_path: Path) -> None:
    async def before() -> tuple[str, int]:
        async with node_with(tmp_path, "orders") as (_, node), members(address(node), "g") as [one]:
            await joined(one)
            await one.commit(42)
            return one.member, one.generation

    async def after(member: str, generation: int) -> None:
        async with nats_and_node(tmp_path) as (_, node), members(address(node), "g", 2) as [one, two]:
            one.member, one.generation, one.commits = member, generation, 1
            await joined(two)
            assert two.keeps == {}, "its owner has a full session from now on"
            assert await one.cursors() == {0: 42}
            await one.commit(43)
            with pytest.raises(CursorBehind):
                await one.commit(42)

    member, generation = run(before())
    run(after(member, generation))


def test_nobody_publishes_into_a_shard(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with node_with(tmp_path, "orders") as (js, node), members(address(node), "g") as [one]:
            await joined(one)
            await one.commit(42)
            [shard] = [each for each in await js.streams.list(internal=True) if each.name != "orders"]
            assert shard.name == group_shard("g")
            for subject in (shard.subject, "jetstream.api.cursors.plain.group.orders"):
                with pytest.raises(JetstreamError):
                    await js.publish(subject, b"13", key="group/g/orders/0")
            for operation, body in (("stream.delete", {}), ("stream.truncate", {"before": 1})):
                answer = await request(js.nats, operation, name=shard.name, **body)
                assert answer["error"]["err_code"] == "unsupported"
            assert await one.cursors() == {0: 42}

    run(scenario())


def test_who_cannot_say_that_it_still_leads_tells_no_cursor(tmp_path: Path) -> None:
    """Another coordinator may have stored a later one: what is in memory may be old."""

    async def scenario() -> None:
        async with node_with(tmp_path, "orders") as (js, node), members(address(node), "g") as [one]:
            await joined(one)
            await one.commit(42)
            shard = node.stream(group_shard("g"))
            assert shard is not None

            def cut_off() -> asyncio.Future[None]:
                nobody: asyncio.Future[None] = asyncio.get_running_loop().create_future()
                nobody.set_exception(StreamOffline("nobody confirms the reign"))
                return nobody

            confirm, shard.confirm_leadership = shard.confirm_leadership, cut_off  # type: ignore[assignment] # as a node finds out
            with pytest.raises(StreamOffline):
                await one.cursors()
            answer = await request(js.nats, "group.info", group="g")
            assert answer["error"]["err_code"] == "stream_offline"
            shard.confirm_leadership = confirm
            assert await one.cursors() == {0: 42}

    run(scenario())

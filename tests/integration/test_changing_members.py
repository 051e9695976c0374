"""Nodes become voters of the metadata group, and cease to be, while they run; with real connections."""

import asyncio

import pytest

from envelope.types import LogIndex, NodeId
from metadata.catalog.tables import RegisteredNode
from metadata.node.catalogue.group import MetadataQuorum
from metadata.node.members import changing_member
from metadata.node.members.changing_member import AsObserver, AsVoter
from metadata.node.members.voting_member import VotingMember
from metadata.node.peers.dialling import Address
from metadata.node.voter.voter import CommittedMembers
from metadata.raft.configuration import Configuration
from metadata.raft.events import CompactLog
from tests.support.catalogs import create
from tests.support.changing_nodes import ChangingGroup, ChangingNode, disk_name, group_of
from tests.support.metadata_members import WAIT_SECONDS
from tests.support.pauses import pause
from tests.support.sockets import run

A, B, C, D = (NodeId(name) for name in "abcd")


async def create_on(group: MetadataQuorum, stream: str) -> None:
    (await group.propose(create(stream, nodes="a"), WAIT_SECONDS)).answer()


async def compact(group: MetadataQuorum) -> None:
    """Have a voter replace its log by a snapshot, as it does where that has become long."""
    part = group.member.part
    assert isinstance(part, VotingMember)
    raft = part.voter.raft
    part.voter._handle(CompactLog(raft.applied, group._state.snapshot()))
    async with asyncio.timeout(WAIT_SECONDS):
        while raft.log.snapshot.index < raft.applied:
            await pause()


async def until_alone(group: MetadataQuorum) -> None:
    """Wait until a leader has given up telling those that have left."""
    part = group.member.part
    assert isinstance(part, VotingMember)
    async with asyncio.timeout(WAIT_SECONDS):
        while part.voter.correspondents:
            await pause()


async def until_same(group: ChangingGroup, streams: int) -> None:
    async with asyncio.timeout(WAIT_SECONDS):
        while any(node.group.catalog.count_streams() != streams for node in group.running):
            await pause()


def test_one_becomes_three_and_others_take_their_place() -> None:
    async def test() -> None:
        async with group_of("abcd") as group:
            await create_on(group[A], "one")
            await group.change("a", "bc")
            await group.change("abc")
            await group.until_voters("abc")
            await create_on(group[D], "two")
            await group.change("abc", "d")
            await group.change("bcd")
            await group.until_voters("bcd")
            for node in group.nodes.values():
                await create_on(node.group, f"of-{node.node_id}")
            await until_same(group, 6)
            # The one that has left comes back as it left, with what it had promised.
            await group.change("bcd", "a")
            await group.change("abc")
            await group.until_voters("abc")
            await until_same(group, 6)
            await group.nodes[B].stop()
            await create_on(group[D], "without-b")
            await until_same(group, 7)

    run(test())


def test_the_leader_that_leaves_observes_and_another_leads() -> None:
    async def test() -> None:
        async with group_of("abc") as group:
            await group.change("a", "bc")
            await group.change("abc")
            leader = await group.leader()
            [left] = [node for node in group.running if node.group is leader]
            rest = "".join(sorted(set("abc") - {left.node_id}))
            await group.change(rest[0])
            await group.until_voters(rest[0])
            assert (await group.leader()).voters == {rest[0]}
            await create_on(left.group, "still")
            await until_same(group, 1)

    run(test())


@pytest.mark.parametrize("has_snapshot", [False, True])
def test_a_voter_that_was_removed_while_it_was_away_observes_once_it_is_told(*, has_snapshot: bool) -> None:
    """With a snapshot its state machine names it, as soon as it is there."""

    async def test() -> None:
        async with group_of("abc") as group:
            await group.change("a", "bc")
            await group.change("abc")
            away = group.nodes[C]
            known = {node: group.nodes[node].address for node in (A, B)}
            if has_snapshot:
                await compact(away.group)
            await away.stop()
            await group.change("a")
            await create_on(group[A], "meanwhile")
            await until_alone(group[A])
            await away.start(AsVoter(disk_name(C), frozenset()), known)
            assert away.group.is_voter, "its log says so"
            old = CommittedMembers(LogIndex(1), Configuration((disk_name(A),)))
            away.group.member.hear(old, [A])
            assert away.group.is_voter, "what was so before its own log proves nothing"
            assert away.group.catalog.count_streams() == 0, "nobody speaks with it"
            away.group.addresses.hear(A, known[A])
            away.group.member.hear(group[A].member.told, [A])
            await group.until_voters("a")
            away.group.member.members_changed()
            await until_same(group, 1)
            assert not away.group.is_voter

    run(test())


def test_a_voter_that_was_away_while_all_others_were_replaced_finds_the_new_ones() -> None:
    async def test() -> None:
        async with group_of("abcd") as group:
            await group.change("a", "bc")
            await group.change("abc")
            away = group.nodes[C]
            await away.stop()
            await group.change("abc", "d")
            await group.change("bcd")
            await group.nodes[A].stop()
            await create_on(group[D], "without-a-and-c")
            await group.nodes[B].stop()
            await away.start(AsVoter(disk_name(C), frozenset()), {})
            for node in (B, D):
                away.group.addresses.hear(node, group.nodes[node].address)
            away.group.member.hear(group[D].member.told, [B, C, D])
            await create_on(group[D], "majority-of-c-and-d")
            await until_same(group, 2)
            assert away.group.is_voter

    run(test())


def test_a_node_is_dialled_where_it_says_that_it_is() -> None:
    async def test() -> None:
        async with group_of("abc") as group:
            await group.change("a", "bc")
            await group.change("abc")
            moved = group.nodes[C]
            await moved.stop()
            before, moved.address = moved.address, ChangingNode(C).address
            assert before != moved.address
            known = {node: group.nodes[node].address for node in (A, B)}
            await moved.start(AsVoter(disk_name(C), frozenset()), known)
            for node in (A, B):
                group[node].addresses.hear(C, moved.address)
            await moved.group.led()
            await group.register(moved)
            row = group[A].catalog.node(C)
            assert isinstance(row, RegisteredNode)
            assert (row.peer_host, row.peer_port) == (moved.address.host, moved.address.port)
            assert group[A].voters == group[C].voters == {A, B, C}

    run(test())


@pytest.mark.parametrize("is_voter", [True, False])
def test_an_address_that_is_heard_while_a_part_ends_is_dialled_by_the_next(*, is_voter: bool) -> None:
    async def test() -> None:
        async with group_of("abc") as group:
            await group.change("a", "bc")
            await group.change("abc" if is_voter else "ab")
            await group.until_voters("abc" if is_voter else "ab")
            ending = group[C].member
            if is_voter:
                ending._go_on_as(AsObserver(frozenset((A, B))))
            else:
                ending._go_on_as(AsVoter(disk_name(C), frozenset()))
            for port in range(1, 13):  # a turn of the loop each, in some of which the part is about to end
                group[C].addresses.hear(B, Address("127.0.0.1", port))
                await asyncio.sleep(0)
            group[C].addresses.hear(B, group.nodes[B].address)
            await group.until_voters("abc" if is_voter else "ab")

    run(test())


def test_a_node_whose_disk_is_full_observes_until_there_is_room(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(changing_member, "_FULL_DISK_SECONDS", 0.05)

    async def test() -> None:
        async with group_of("ab") as group:
            disk = group.nodes[B].disk
            disk.capacity_bytes = 0
            await group.change("a", "b")
            await create_on(group[B], "while-it-is-full")
            await until_same(group, 1)
            assert not group[B].is_voter
            disk.capacity_bytes = None
            await group.until_voters("ab")

    run(test())

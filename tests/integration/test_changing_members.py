"""Nodes become voters of the metadata group, and cease to be, while they run; with real connections."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace

from envelope.types import LogIndex, NodeId
from metadata.catalog.tables import RegisteredNode
from metadata.members import member_name
from metadata.node.catalogue.group import MetadataQuorum
from metadata.node.members.changing_member import AsObserver, AsVoter
from metadata.node.members.voting_member import VotingMember
from metadata.node.peers.addresses import AddressBook
from metadata.node.peers.dialling import Address, PeerIdentity
from metadata.node.storage.file_storage import FileStorage
from metadata.node.storage.port import Storage
from metadata.node.voter.voter import CommittedMembers
from metadata.raft.configuration import Configuration
from metadata.raft.events import ChangeMembers
from tests.support.catalogs import create, register
from tests.support.memory_disk import MemoryDisk
from tests.support.metadata_members import FAST, WAIT_SECONDS, listening
from tests.support.pauses import pause
from tests.support.sockets import run

A, B, C, D = (NodeId(name) for name in "abcd")


def disk_name(node: NodeId) -> NodeId:
    return member_name(node, f"disk-of-{node}")


class Node:
    """One node's part in the group: its disk and its address stay when it is stopped."""

    def __init__(self, node_id: NodeId) -> None:
        self.node_id = node_id
        self.disk = MemoryDisk()
        found = listening(Address("127.0.0.1", 0))
        self.address = Address(*found.getsockname())
        found.close()
        self._group: MetadataQuorum | None = None
        self._task: asyncio.Task[None] | None = None

    @property
    def group(self) -> MetadataQuorum:
        assert self._group is not None, f"{self.node_id} does not run"
        return self._group

    def _open_storage(self, name: NodeId) -> Storage:
        assert name == disk_name(self.node_id)
        return FileStorage.open(self.disk, "metadata")

    async def start(self, begin: AsVoter | AsObserver, known: dict[NodeId, Address]) -> None:
        identity = PeerIdentity("test", self.node_id)
        book = AddressBook({self.node_id: self.address})
        for node, address in known.items():
            book.hear(node, address)
        self._group = await MetadataQuorum.open(
            identity, begin, book, disk_name(self.node_id), self._open_storage, FAST
        )
        self._task = asyncio.create_task(self._group.run(listening(self.address)))

    async def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])
            if not self._task.cancelled():
                self._task.result()
        self._task = self._group = None


class Group:
    """Nodes of which the first begins the group."""

    def __init__(self, names: str) -> None:
        self.nodes = {NodeId(name): Node(NodeId(name)) for name in names}

    def __getitem__(self, node: NodeId) -> MetadataQuorum:
        return self.nodes[node].group

    @property
    def running(self) -> list[Node]:
        return [node for node in self.nodes.values() if node._group is not None]

    async def begin(self) -> None:
        first, *others = self.nodes.values()
        name = disk_name(first.node_id)
        await first.start(AsVoter(name, frozenset((name,))), {})
        known = {first.node_id: first.address}
        for node in others:
            await node.start(AsObserver(frozenset((first.node_id,))), known)
        for node in self.nodes.values():
            await self.register(node)

    async def register(self, node: Node) -> None:
        host, port = node.address.host, node.address.port
        said = replace(register(node.node_id, f"disk-of-{node.node_id}"), peer_host=host, peer_port=port)
        (await node.group.propose(said, WAIT_SECONDS)).answer()

    async def leader(self) -> MetadataQuorum:
        async with asyncio.timeout(WAIT_SECONDS):
            while True:
                for node in self.running:
                    if node.group.member.membership() is not None:
                        return node.group
                await pause()

    async def change(self, voters: str, learners: str = "") -> None:
        """Ask the leader, again and again, until all that run know that it is so."""
        names = [tuple(sorted(disk_name(NodeId(name)) for name in some)) for some in (voters, learners)]
        wanted = Configuration(names[0], learners=names[1])
        async with asyncio.timeout(WAIT_SECONDS):
            while any(node.group.told.configuration != wanted for node in self.running):
                quorum = (await self.leader()).member.membership()
                if quorum is not None and quorum.configuration != wanted:
                    (await self.leader()).member.change_members(ChangeMembers(*names))
                await pause()

    async def until_voters(self, voters: str) -> None:
        """Wait until exactly these of those that run have a vote."""
        async with asyncio.timeout(WAIT_SECONDS):
            while {node.node_id for node in self.running if node.group.is_voter} != set(voters):
                await pause()

    async def stop(self) -> None:
        for node in self.nodes.values():
            await node.stop()


@asynccontextmanager
async def group_of(names: str) -> AsyncIterator[Group]:
    group = Group(names)
    try:
        await group.begin()
        yield group
    finally:
        await group.stop()


async def create_on(group: MetadataQuorum, stream: str) -> None:
    (await group.propose(create(stream, nodes="a"), WAIT_SECONDS)).answer()


async def until_alone(group: MetadataQuorum) -> None:
    """Wait until a leader has given up telling those that have left."""
    part = group.member.part
    assert isinstance(part, VotingMember)
    async with asyncio.timeout(WAIT_SECONDS):
        while part.voter.correspondents:
            await pause()


async def until_same(group: Group, streams: int) -> None:
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


def test_a_voter_that_was_removed_while_it_was_away_observes_once_it_is_told() -> None:
    async def test() -> None:
        async with group_of("abc") as group:
            await group.change("a", "bc")
            await group.change("abc")
            away = group.nodes[C]
            known = {node: group.nodes[node].address for node in (A, B)}
            await away.stop()
            await group.change("a")
            await create_on(group[A], "meanwhile")
            await until_alone(group[A])
            await away.start(AsVoter(disk_name(C), frozenset()), known)
            assert away.group.is_voter, "its log says so"
            old = CommittedMembers(LogIndex(1), Configuration((disk_name(A),)))
            away.group.hear(old, {A: known[A]}, {})
            assert away.group.is_voter, "what was so before its own log proves nothing"
            assert away.group.catalog.count_streams() == 0, "nobody speaks with it"
            away.group.hear(group[A].told, {A: known[A]}, {})
            await group.until_voters("a")
            await until_same(group, 1)

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
            told = group[D].told
            places = {node: group.nodes[node].address for node in (B, C, D)}
            away.group.hear(told, places, {})
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
            before, moved.address = moved.address, Node(C).address
            assert before != moved.address
            known = {node: group.nodes[node].address for node in (A, B)}
            await moved.start(AsVoter(disk_name(C), frozenset()), known)
            for node in (A, B):
                group[node].hear(moved.group.told, {}, {C: moved.address})
            await moved.group.led()
            await group.register(moved)
            row = group[A].catalog.node(C)
            assert isinstance(row, RegisteredNode)
            assert (row.peer_host, row.peer_port) == (moved.address.host, moved.address.port)
            assert group[A].voters == group[C].voters == {A, B, C}

    run(test())

"""Nodes that become voters of a metadata group, and cease to be, while they run."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace

from envelope.types import NodeId
from metadata.members import member_name
from metadata.node.catalogue.group import MetadataQuorum
from metadata.node.members.changing_member import AsObserver, AsVoter
from metadata.node.peers.addresses import PeerAddresses
from metadata.node.peers.dialling import Address, PeerIdentity
from metadata.node.storage.file_storage import FileStorage
from metadata.node.storage.port import Storage
from metadata.raft.configuration import Configuration
from metadata.raft.events import ChangeMembers
from tests.support.catalogs import register
from tests.support.memory_disk import MemoryDisk
from tests.support.metadata_members import FAST, WAIT_SECONDS, listening
from tests.support.pauses import pause


def disk_name(node: NodeId) -> NodeId:
    return member_name(node, f"disk-of-{node}")


class ChangingNode:
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
        book = PeerAddresses({self.node_id: self.address})
        for node, address in known.items():
            book.hear(node, address)
        self._group = await MetadataQuorum.open(
            identity, begin, book, disk_name(self.node_id), self._open_storage, settings=FAST
        )
        self._task = asyncio.create_task(self._group.run(listening(self.address)))

    async def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])
            if not self._task.cancelled():
                self._task.result()
        self._task = self._group = None


class ChangingGroup:
    """Nodes of which the first begins the group."""

    def __init__(self, names: str) -> None:
        self.nodes = {NodeId(name): ChangingNode(NodeId(name)) for name in names}

    def __getitem__(self, node: NodeId) -> MetadataQuorum:
        return self.nodes[node].group

    @property
    def running(self) -> list[ChangingNode]:
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

    async def register(self, node: ChangingNode) -> None:
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
            while any(node.group.member.told.configuration != wanted for node in self.running):
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
async def group_of(names: str) -> AsyncIterator[ChangingGroup]:
    group = ChangingGroup(names)
    try:
        await group.begin()
        yield group
    finally:
        await group.stop()

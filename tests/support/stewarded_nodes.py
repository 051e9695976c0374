"""Nodes as far as metadata goes: group, membership, controller driver; with real files and connections."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Final

from envelope.types import NodeEpoch, NodeId, StreamName
from jetstream.log.disk.os_disk import OsDisk
from metadata.catalog.commands import ChangeIsr, NodeAtEpoch
from metadata.catalog.events import NodeRegistered
from metadata.catalog.tables import Stream
from metadata.controller.settings import ControllerSettings
from metadata.node.catalogue.group import MetadataQuorum
from metadata.node.leases.controller_driver import ControllerDriver
from metadata.node.leases.membership import Membership
from metadata.node.members.voting_member import VotingMember
from metadata.node.peers.dialling import Address, PeerIdentity
from metadata.node.storage.file_storage import FileStorage
from metadata.node.timers.movable_timer import now
from metadata.node.voter.voter import Voter
from metadata.raft.messages.node_messages import LeaseGranted, NodeMessage, NodeUnheardReport
from tests.support.catalogs import create, register
from tests.support.metadata_members import FAST, MS, WAIT_SECONDS, listening

_LOOK_SECONDS: Final = 0.02

SHORT: Final = ControllerSettings(
    lease_ns=1500 * MS, report_valid_ns=1500 * MS, accused_ns=10_000 * MS, retry_interval_ns=300 * MS
)
"""Leases that a test can wait for."""

LONG: Final = ControllerSettings(lease_ns=600_000 * MS)
"""Leases that outlive every test, and are seldom asked for: nothing happens by waiting."""


class StewardedNode:
    """One node: its files and its address stay when it is stopped."""

    def __init__(
        self, name: str, root: Path, settings: ControllerSettings, moved: Callable[[], None]
    ) -> None:
        self.node_id = NodeId(name)
        self._root = root / name
        self._settings = settings
        self._moved = moved
        found = listening(Address("127.0.0.1", 0))
        self.address = Address(*found.getsockname())
        found.close()
        self.grants: list[LeaseGranted] = []
        self.told_unheard: list[NodeId] = []
        self.resumed = 0
        self.task: asyncio.Task[None] | None = None
        self._parts: tuple[MetadataQuorum, Membership, ControllerDriver] | None = None

    @property
    def group(self) -> MetadataQuorum:
        assert self._parts is not None, f"{self.node_id} does not run"
        return self._parts[0]

    @property
    def voter(self) -> Voter:
        assert isinstance(self.group.member.part, VotingMember), f"{self.node_id} has no vote"
        return self.group.member.part.voter

    @property
    def membership(self) -> Membership:
        assert self._parts is not None, f"{self.node_id} does not run"
        return self._parts[1]

    @property
    def controller_driver(self) -> ControllerDriver:
        assert self._parts is not None, f"{self.node_id} does not run"
        return self._parts[2]

    @property
    def runs(self) -> bool:
        return self._parts is not None

    @property
    def has_lease(self) -> bool:
        return self.membership.lease.is_valid(now())

    def start(self, voters: dict[NodeId, Address]) -> None:
        storage = FileStorage.open(OsDisk(self._root), "metadata")
        group = MetadataQuorum.voting(PeerIdentity("test", self.node_id), voters, storage, FAST)
        membership = Membership(group, self.node_id, self._settings)
        membership.on_resumed = self._on_resumed
        self._parts = (group, membership, ControllerDriver(group, self.node_id, self._settings))
        group.subscribe(self)
        group.member.attend(self._heard)
        self.grants.clear()
        self.task = asyncio.create_task(self._run())

    async def register(self) -> NodeEpoch:
        answer = (await self.group.propose(register(self.node_id), WAIT_SECONDS)).answer()
        assert isinstance(answer, NodeRegistered)
        self.membership.begin(answer.node.node_epoch)
        return answer.node.node_epoch

    async def stop(self) -> None:
        """Stop as a process that ends: every connection is closed, and nothing listens any more."""
        if self.task is not None:
            self.task.cancel()
            await asyncio.wait([self.task])
        self.task = self._parts = None

    def applied(self, _: object) -> None:
        self._moved()

    def restored(self) -> None:
        self._moved()

    async def _run(self) -> None:
        group, membership, steward = self.group, self.membership, self.controller_driver
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(group.run(listening(self.address)))
            tasks.create_task(membership.run())
            tasks.create_task(steward.run())

    def _on_resumed(self) -> None:
        self.resumed += 1
        self._moved()

    def _heard(self, message: NodeMessage) -> None:
        if isinstance(message, LeaseGranted):
            self.grants.append(message)
        elif isinstance(message, NodeUnheardReport):
            self.told_unheard.append(message.node)
        self._moved()


class StewardedNodes:
    """A cluster of them."""

    def __init__(self, names: str, root: Path, settings: ControllerSettings) -> None:
        self._moved = asyncio.Event()
        self.all = [StewardedNode(name, root, settings, self._moved.set) for name in names]
        self.voters = {node.node_id: node.address for node in self.all}

    @property
    def running(self) -> list[StewardedNode]:
        return [node for node in self.all if node.runs]

    @property
    def leader(self) -> StewardedNode:
        """The metadata leader; a former one may not know yet."""
        claims = [node for node in self.running if node.group.leader == node.node_id]
        return max(claims, key=lambda node: node.group.term)

    def node(self, node_id: NodeId | None) -> StewardedNode:
        return next(node for node in self.all if node.node_id == node_id)

    def row(self, name: str = "orders") -> Stream:
        """The newest row of a stream that any running node has."""
        catalog = max((node.group.catalog for node in self.running), key=lambda catalog: catalog.applied)
        row = catalog.stream(StreamName(name))
        assert row is not None
        return row

    async def until(self, condition: Callable[[], bool]) -> None:
        """Wait until ``condition`` holds; looked at when anything is applied or said, and as time passes."""
        async with asyncio.timeout(WAIT_SECONDS):
            while not condition():
                self._moved.clear()
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(_LOOK_SECONDS):
                        await self._moved.wait()

    async def create(self, name: str, nodes: str, *, unclean_election: bool = False) -> None:
        """Create a stream on these nodes, the first one leading."""
        command = create(name, nodes=nodes, min_insync_replicas=1, unclean_election=unclean_election)
        applied = await self.running[0].group.propose(command)
        applied.answer()

    async def shrink(self, to: str) -> None:
        """Shrink the ISR of orders, as its leader would."""
        row, catalog = self.row(), self.running[0].group.catalog
        assert row.leader is not None
        members = tuple(
            NodeAtEpoch(node.node_id, node.node_epoch) for node in catalog.nodes() if node.node_id in to
        )
        command = ChangeIsr(
            stream=row.name,
            incarnation=row.incarnation,
            leader=row.leader,
            leader_epoch=row.leader_epoch,
            expected_isr_version=row.isr_version,
            isr=members,
        )
        (await self.running[0].group.propose(command)).answer()

    async def led_by(self, metadata_leader: NodeId) -> None:
        """Have one node lead the metadata log."""

        def does_lead() -> bool:
            for node in self.running:
                if node.node_id != metadata_leader:
                    node.voter.transfer(metadata_leader)
            return all(node.group.leader == metadata_leader for node in self.running)

        await self.until(does_lead)
        await self.until(lambda: self.node(metadata_leader).controller_driver.alive() is not None)


@contextlib.asynccontextmanager
async def nodes(
    names: str, root: Path, settings: ControllerSettings = SHORT
) -> AsyncIterator[StewardedNodes]:
    """A running cluster of registered nodes that all have their lease; stopped at the end."""
    cluster = StewardedNodes(names, root, settings)
    try:
        for node in cluster.all:
            node.start(cluster.voters)
        for node in cluster.all:
            await node.register()
        await cluster.until(lambda: all(node.has_lease for node in cluster.all))
        yield cluster
    finally:
        for node in cluster.all:
            await node.stop()

"""How a node without a list of voters finds its cluster over NATS, or forms one with others.

Nodes publish their notices (`metadata.formation`) on ``<api prefix>.discovery``, and all of them hear all.
A node's promise, and the cluster it belongs to, are in its data directory before they are published:

    name       content
    formation  state file: ``promised``, the candidates of the only set that this node ever promises, and
               ``formed``, the voters of its cluster; each empty until it is known

`find_voters` takes the voters from the settings, from an earlier agreement, or from one made now over NATS.

The agreement is in the data directory, and no discovery is needed again. A node belongs to one cluster for
ever: settings that say something else are refused.
"""

import asyncio
import logging
from collections.abc import Mapping
from typing import Final

from pydantic import TypeAdapter, ValidationError

from envelope.errors import CorruptDataError, InvalidConfig, RemoteProtocolError, Unauthorized
from envelope.types import MonotonicNs, NodeId
from jetstream.log.disk.os_disk import OsDisk
from jetstream.log.disk.port import Disk
from jetstream.log.disk.state_file import decode_state, read_whole, write_state
from jetstream.node.nats.link import NatsLink, ServiceRequest
from jetstream.node.nats.watch import LinkWatch
from jetstream.node.runtime.clock import Clock
from jetstream.node.runtime.crash import Crash
from jetstream.node.runtime.task_group import task_group
from jetstream.node.settings.node_config import NodeConfig, PeersConfig
from jetstream.node.settings.peer_settings import PeerSettings, peer_token
from metadata.formation.machine import (
    SAY_INTERVAL_NS,
    Formation,
    FormationAction,
    FormationRecord,
    NoticeReceived,
    Persist,
    PublishNotice,
    Tick,
)
from metadata.formation.notices import FormedVoter, FormedVoters, VoterCandidate, decode_notice, encode_notice
from metadata.node.peers.dialling import Address

_log = logging.getLogger(__name__)

FORMATION_FILE: Final = "formation"
DISCOVERY_WORD: Final = "discovery"
"""Behind the API's prefix: where notices are published."""
_NOTICES_WAITING_MAX: Final = 256
"""More are dropped: every notice comes again."""

METADATA_DIRECTORY: Final = "metadata"
"""Of a voter: where its metadata log is."""
_RECORD: Final = TypeAdapter(FormationRecord)


class Discovery:
    """This node's part in discovery, on one connection to NATS; used on the loop's thread.

    Attributes:
        formation: what was agreed so far.
    """

    def __init__(
        self, formation: Formation, link: NatsLink, prefix: str, cluster: str, token: str | None
    ) -> None:
        """Speak for ``formation``; `listen` begins.

        Args:
            formation: made with what `read_record` returned.
            link: open.
            prefix: of the request API.
            cluster: notices of others are passed over.
            token: of the peers.
        """
        self.formation = formation
        self._link = link
        self._subject = f"{prefix}.{DISCOVERY_WORD}"
        self._cluster = cluster
        self._token = token
        self._heard: asyncio.Queue[NoticeReceived] = asyncio.Queue(_NOTICES_WAITING_MAX)
        self._warned: set[str] = set()

    async def listen(self) -> None:
        """Hear notices from now on."""
        await self._link.serve(self._subject, self._take)

    def _take(self, message: ServiceRequest) -> None:
        try:
            notice = decode_notice(message.payload, self._cluster, self._token)
        except (RemoteProtocolError, Unauthorized) as error:
            if error.description not in self._warned and len(self._warned) < _NOTICES_WAITING_MAX:
                self._warned.add(error.description)
                _log.warning("a notice is passed over: %s", error.description)
            return
        if notice is not None and not self._heard.full():
            self._heard.put_nowait(NoticeReceived(notice))

    async def form(self, disk: Disk, clock: Clock) -> FormedVoters:
        """Return the voters of this node's cluster, once there is one and that is durable here.

        Raises:
            InvalidConfig: nodes contradict each other, see `Formation.handle`.
            StorageError: what was agreed cannot be kept.
        """
        shown: tuple[NodeId, ...] = ()
        tick_at = clock.monotonic()
        while not self.formation.formed:
            heard = await self._next(tick_at, clock)
            if heard is None:
                tick_at = MonotonicNs(clock.monotonic() + SAY_INTERVAL_NS)
            try:
                actions = self.formation.handle(heard or Tick(), clock.monotonic())
            except InvalidConfig:
                # So that the other side knows, and publishes it too.
                await self._publish(self.formation.announcement())
                raise
            for action in actions:
                await self._perform(action, disk)
            if self.formation.heard != shown:
                shown = self.formation.heard
                _log.info("forming a cluster of %d nodes: %s", self.formation.expected, ", ".join(shown))
        voters = self.formation.formed
        _log.info("the cluster is formed voters=%s", ",".join(voter.node_id for voter in voters))
        return voters

    async def answer(self, clock: Clock) -> None:
        """Answer the nodes that look for the cluster, until cancelled."""
        while True:
            for action in self.formation.handle(await self._heard.get(), clock.monotonic()):
                assert isinstance(action, PublishNotice), f"a cluster that is there decides nothing: {action}"
                await self._publish(action)

    async def _next(self, tick_at: MonotonicNs, clock: Clock) -> NoticeReceived | None:
        """Return the next notice received, None when it is time to publish one."""
        left_ns = tick_at - clock.monotonic()
        if left_ns <= 0:
            return None
        try:
            async with asyncio.timeout(left_ns / 1e9):
                return await self._heard.get()
        except TimeoutError:
            return None

    async def _perform(self, action: FormationAction, disk: Disk) -> None:
        if isinstance(action, Persist):
            await asyncio.to_thread(write_record, disk, action.record)
            _log.info("formation: %s", self.formation)
            action = action.then
        await self._publish(action)

    async def _publish(self, action: PublishNotice) -> None:
        notice = encode_notice(action.notice, self._cluster, self._token)
        await self._link.publish(self._subject.encode(), notice)


def read_record(disk: Disk) -> FormationRecord:
    """Return what a node has promised, and which cluster it belongs to; blocks.

    Raises:
        CorruptDataError: the file is damaged; what was promised is not known any more.
    """
    if not disk.exists(FORMATION_FILE):
        return FormationRecord()
    try:
        return _RECORD.validate_python(decode_state(read_whole(disk, FORMATION_FILE)))
    except ValidationError as error:
        raise CorruptDataError(f"{FORMATION_FILE} cannot be read: {error.error_count()} faults") from None


def write_record(disk: Disk, record: FormationRecord) -> None:
    """Replace what is kept; returns when it is durable.

    Raises:
        DiskFull, StorageError: as `write_state`.
    """
    write_state(disk, FORMATION_FILE, _RECORD.dump_python(record, mode="json"))


async def find_voters(
    config: NodeConfig, node_id: NodeId, directory: str, disk: OsDisk, clock: Clock
) -> Mapping[NodeId, Address] | None:
    """Return the voters if it is not the settings that name them, None if they do, or the node is alone.

    Waits for as long as the nodes that are to form the cluster are not all there.

    Args:
        config: of the node.
        node_id: of the node.
        directory: identity of its data directory.
        disk: that directory, locked.
        clock: the node's.

    Raises:
        InvalidConfig: what was agreed contradicts the settings, or nodes contradict each other.
        CorruptDataError: what was agreed cannot be read.
        StorageError: it cannot be kept.
        UnavailableError: NATS cannot be reached.
    """
    record = await asyncio.to_thread(read_record, disk)
    agreed = _mapping(record.formed)
    peers = config.peers
    if peers is None or peers.bootstrap_expect is None:
        if agreed and (peers is None or peers.voters != agreed):
            raise InvalidConfig(f"node {node_id} belongs to the cluster whose voters are {_shown(agreed)}")
        return None
    own = peers.address_of(node_id)
    if agreed.get(node_id, own) != own:
        raise InvalidConfig(
            f"node {node_id} is a voter at {_place(agreed[node_id])}, and {_place(own)} by its settings"
        )
    if not agreed:
        if disk.exists(METADATA_DIRECTORY):
            raise InvalidConfig(f"node {node_id} was alone, or a voter by peers.voters, and stays so")
        candidate = VoterCandidate(node_id, directory, own.host, own.port)
        agreed = _mapping(
            await _formed(config=config, peers=peers, own=candidate, record=record, disk=disk, clock=clock)
        )
    return agreed


async def _formed(
    config: NodeConfig,
    peers: PeersConfig,
    own: VoterCandidate,
    record: FormationRecord,
    disk: OsDisk,
    clock: Clock,
) -> FormedVoters:
    """Form a cluster, or find it, on a connection to NATS of its own."""
    assert peers.bootstrap_expect is not None, "somebody waits for others"
    formation = Formation(own, peers.bootstrap_expect, record)
    token = await asyncio.to_thread(peer_token, peers)
    link = NatsLink(config.nats, LinkWatch("discovery", clock), Crash())
    secret = None if token is None else token.get_secret_value()
    discovery = Discovery(formation, link, config.api_prefix, config.cluster, secret)
    try:
        await link.open()
        async with task_group() as tasks:
            supervised = _supervised(link, tasks)
            await discovery.listen()
            formed = await discovery.form(disk, clock)
            supervised.cancel()
    finally:
        await link.close()
    return formed


def _supervised(link: NatsLink, tasks: asyncio.TaskGroup) -> asyncio.Task[None]:
    return tasks.create_task(link.supervise())


def discovery_of(config: NodeConfig, peers: PeerSettings, directory: str, link: NatsLink) -> Discovery | None:
    """Return the answerer to nodes that look for the cluster; None if this node is alone."""
    own, token = peers.address, peers.identity.token
    if own is None:
        return None
    voters = (FormedVoter(name, address.host, address.port) for name, address in peers.voters.items())
    candidate = VoterCandidate(peers.identity.node_id, directory, own.host, own.port)
    formation = Formation(candidate, 0, FormationRecord(formed=tuple(sorted(voters))))
    secret = None if token is None else token.get_secret_value()
    return Discovery(formation, link, config.api_prefix, config.cluster, secret)


def _mapping(formed: FormedVoters) -> dict[NodeId, Address]:
    return {voter.node_id: Address(voter.host, voter.port) for voter in formed}


def _shown(voters: Mapping[NodeId, Address]) -> str:
    return ", ".join(f"{name} at {_place(address)}" for name, address in sorted(voters.items()))


def _place(address: Address) -> str:
    return f"{address.host}:{address.port}"

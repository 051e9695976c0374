"""Who the voters are: as the settings say, as was once agreed, or as is agreed now over NATS.

What was agreed is in the data directory, and no discovery is needed again. A node belongs to one cluster for
ever: settings that say something else are refused.
"""

import asyncio
from collections.abc import Mapping
from typing import Final

from envelope.errors import InvalidConfig
from envelope.types import NodeId
from jetstream.log.disk.os_disk import OsDisk
from jetstream.node.clock import Clock
from jetstream.node.config import NodeConfig, PeersConfig
from jetstream.node.crash import Crash
from jetstream.node.discovery import Discovery, read_record
from jetstream.node.nats_link import NatsLink
from jetstream.node.nats_watch import LinkWatch
from jetstream.node.peer_settings import PeerSettings, peer_token
from jetstream.node.task_group import task_group
from metadata.formation.machine import Formation, FormationRecord
from metadata.formation.notices import Candidate, FormedVoter, FormedVoters
from metadata.node.peers.dialling import Address

METADATA_DIRECTORY: Final = "metadata"
"""Of a voter: where its metadata log is."""


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
        candidate = Candidate(node_id, directory, own.host, own.port)
        agreed = _mapping(await _formed(config, peers, candidate, record, disk, clock))
    return agreed


async def _formed(
    config: NodeConfig,
    peers: PeersConfig,
    own: Candidate,
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
    """Return what tells others of the cluster of this node; None if it is alone."""
    own, token = peers.address, peers.identity.token
    if own is None:
        return None
    voters = (FormedVoter(name, address.host, address.port) for name, address in peers.voters.items())
    candidate = Candidate(peers.identity.node_id, directory, own.host, own.port)
    formation = Formation(candidate, 0, FormationRecord(formed=tuple(sorted(voters))))
    secret = None if token is None else token.get_secret_value()
    return Discovery(formation, link, config.api_prefix, config.cluster, secret)


def _mapping(formed: FormedVoters) -> dict[NodeId, Address]:
    return {voter.node_id: Address(voter.host, voter.port) for voter in formed}


def _shown(voters: Mapping[NodeId, Address]) -> str:
    return ", ".join(f"{name} at {_place(address)}" for name, address in sorted(voters.items()))


def _place(address: Address) -> str:
    return f"{address.host}:{address.port}"

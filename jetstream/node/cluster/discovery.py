"""How nodes hear of each other over NATS, and how one without a list of voters finds its cluster.

Nodes publish their notices (`metadata.discovery`) on ``<api prefix>.discovery``, and all of them hear all. A
node asks when it starts, and for as long as it is out of touch with the metadata group; those that run
answer. So addresses that have changed are heard, and which members the group has now.
"""

import asyncio
import logging
from contextlib import suppress
from dataclasses import replace
from typing import Final

from envelope.errors import InvalidConfig, RemoteProtocolError, Unauthorized
from envelope.types import LogIndex, MonotonicNs, NodeId
from jetstream.log.disk.os_disk import OsDisk
from jetstream.node.cluster.member_record import read_record, write_record
from jetstream.node.cluster.metadata_part import stored_log
from jetstream.node.cluster.place import PlaceSettings, alone, place_of
from jetstream.node.nats.link import NatsLink, ServiceRequest
from jetstream.node.nats.watch import LinkWatch
from jetstream.node.runtime.clock import Clock
from jetstream.node.runtime.crash import Crash
from jetstream.node.runtime.task_group import task_group
from jetstream.node.settings.node_config import NodeConfig
from jetstream.node.settings.peer_settings import PeerSettings
from metadata.discovery.notices import NodePlace, Notice, decode_notice, encode_notice, is_kin
from metadata.discovery.search import ASK_INTERVAL_NS, Search
from metadata.node.catalogue.group import MetadataQuorum
from metadata.node.members.changing_member import AsObserver, AsVoter
from metadata.node.peers.dialling import Address
from metadata.node.voter.voter import CommittedMembers

_log = logging.getLogger(__name__)

DISCOVERY_WORD: Final = "discovery"
"""Behind the API's prefix: where notices are published."""
_NOTICES_WAITING_MAX: Final = 256
"""More are dropped: every notice comes again."""
_ASK_AGAIN_NS: Final = 1_000_000_000
"""How often a node asks that is out of touch with the metadata group."""


class NoticeBoard:
    """Notices to and from all nodes of a cluster, on one connection to NATS; used on the loop's thread."""

    def __init__(self, link: NatsLink, config: NodeConfig, peers: PeerSettings) -> None:
        """Speak for a node; `listen` begins."""
        token = peers.identity.token
        self._link = link
        self._subject = f"{config.api_prefix}.{DISCOVERY_WORD}"
        self._cluster = config.cluster
        self._token = None if token is None else token.get_secret_value()
        self._heard: asyncio.Queue[Notice] = asyncio.Queue(_NOTICES_WAITING_MAX)
        self._warned: set[str] = set()

    async def listen(self) -> None:
        """Hear notices from now on."""
        await self._link.serve(self._subject, self._take)

    async def publish(self, notice: Notice) -> None:
        """Send a notice to all who listen; it may be lost."""
        await self._link.publish(self._subject.encode(), encode_notice(notice, self._cluster, self._token))

    async def next(self, seconds: float) -> Notice | None:
        """Return the next notice that arrives, perhaps one of this node; None after so long without one."""
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                return await self._heard.get()
        return None

    def _take(self, message: ServiceRequest) -> None:
        if self._heard.full():
            return
        try:
            notice = decode_notice(message.payload, self._cluster, self._token)
        except (RemoteProtocolError, Unauthorized) as error:
            if error.description not in self._warned and len(self._warned) < _NOTICES_WAITING_MAX:
                self._warned.add(error.description)
                _log.warning("a notice is passed over: %s", error.description)
            return
        if notice is not None:
            self._heard.put_nowait(notice)


def own_notice(peers: PeerSettings, directory: str, disk: OsDisk) -> Notice:
    """Return the notice of a node that knows only itself, and of which cluster its directory is."""
    assert peers.address is not None, "a node that others cannot dial publishes nothing"
    place = NodePlace(peers.identity.node_id, peers.address.host, peers.address.port)
    return Notice(place, directory, read_record(disk).cluster_id)


async def search(config: NodeConfig, peers: PeerSettings, own: Notice, clock: Clock) -> Notice | None:
    """Return the notice of a node of the cluster; None: this node is to begin it.

    It has a connection of its own.

    Args:
        config: of the node.
        peers: of the node.
        own: what it asks with, and whether it is to begin a cluster.
        clock: the node's.

    Raises:
        InvalidConfig: as `Search.hear`.
        UnavailableError: NATS cannot be reached.
    """
    looking = Search(replace(own, asks=True))
    link = NatsLink(config.nats, LinkWatch("discovery", clock), Crash())
    board = NoticeBoard(link, config, peers)
    _log.info("looking for the cluster %s", config.cluster)
    try:
        await link.open()
        tasks: asyncio.TaskGroup
        async with task_group() as tasks:
            supervised = tasks.create_task(link.supervise())
            await board.listen()
            while (question := looking.ask()) is not None:
                await board.publish(question)
                if not await link.is_heard():
                    looking.lost()
                until = clock.monotonic() + ASK_INTERVAL_NS
                while notice := await board.next((until - clock.monotonic()) / 1e9):
                    try:
                        looking.hear(notice)
                    except InvalidConfig:
                        await board.publish(question)  # the other node may not have heard of this one yet
                        raise
            supervised.cancel()
    finally:
        await link.close()
    if looking.found is None:
        _log.info("the cluster %s is begun here", config.cluster)
    else:
        level = logging.WARNING if own.begins else logging.INFO
        _log.log(level, "the cluster %s is there, and is joined: %s", config.cluster, looking.found.source)
    return looking.found


def hear(group: MetadataQuorum, notice: Notice) -> None:
    """Let the node's part of the metadata group know what another node says."""
    group.addresses.hear(notice.source.node_id, Address(notice.source.host, notice.source.port))
    for place in notice.voters:
        group.addresses.hear_of(place.node_id, Address(place.host, place.port))
    if notice.voters:
        told = CommittedMembers(notice.as_of, notice.configuration)
        group.member.hear(told, [voter.node_id for voter in notice.voters])


async def find_place(
    config: NodeConfig, peers: PeerSettings, directory: str, disk: OsDisk, clock: Clock
) -> tuple[AsVoter | AsObserver, Notice | None]:
    """Return the part with which the node begins in the metadata group, and what it has heard of that.

    Waits for as long as no node of the cluster answers, if it has to ask.

    Args:
        config: of the node.
        peers: of the node.
        directory: identity of its data directory.
        disk: that directory, locked.
        clock: the node's.

    Raises:
        InvalidConfig: the directory contradicts the settings, or nodes contradict each other.
        CorruptDataError: what the directory says of the metadata log cannot be read.
        StorageError: the disk refused.
        UnavailableError: NATS cannot be reached.
    """
    node_id = peers.identity.node_id
    record = await asyncio.to_thread(read_record, disk)
    log = None if record.member is not None else await asyncio.to_thread(stored_log, disk, node_id)
    settings = PlaceSettings(
        node_id=node_id,
        directory=directory,
        is_reachable=peers.address is not None,
        voters=frozenset(peers.voters),
    )
    place = place_of(settings, record, log)
    if settings.is_reachable and not record.is_reachable:
        await asyncio.to_thread(write_record, disk, replace(record, is_reachable=True))
    if place is not None:
        return place, None
    own = own_notice(peers, directory, disk)
    begins = peers.begins and record.cluster_id is None
    found = await search(config, peers, replace(own, begins=begins), clock)
    if found is None:
        return alone(settings), None
    return AsObserver(frozenset(voter.node_id for voter in found.voters), found.as_of), found


class Discovery:
    """The node's part while it runs: it answers those who ask, and asks while it is out of touch itself."""

    def __init__(self, board: NoticeBoard, own: Notice, group: MetadataQuorum, clock: Clock) -> None:
        """Speak for a node; ``own`` is its notice without what the group says."""
        self._board = board
        self._own = own
        self._group = group
        self._clock = clock
        self._answered_at = MonotonicNs(-ASK_INTERVAL_NS)
        self._owes_answer = False
        self._complained: set[NodeId] = set()

    async def run(self) -> None:
        """Take part until cancelled."""
        await self._board.listen()
        asked_at = self._clock.monotonic()
        await self._board.publish(self._notice(asks=True))
        while True:
            notice = await self._board.next((ASK_INTERVAL_NS if self._owes_answer else _ASK_AGAIN_NS) / 1e9)
            if notice is not None:
                self._take(notice)
            now = self._clock.monotonic()
            if self._owes_answer and now >= self._answered_at + ASK_INTERVAL_NS:  # all hear every answer
                self._owes_answer, self._answered_at = False, now
                await self._board.publish(self._notice(asks=False))
            if self._group.leader is None and now >= asked_at + _ASK_AGAIN_NS:
                asked_at = now
                await self._board.publish(self._notice(asks=True))

    def _take(self, notice: Notice) -> None:
        source, own = notice.source, self._own.source
        if source == own:
            return
        is_double = source.node_id == own.node_id or (source.host, source.port) == (own.host, own.port)
        if notice.directory == self._own.directory:
            self._complain(source, "has a copy of this node's directory: never start one twice")
        elif self._is_kin(notice) and not is_double:
            hear(self._group, notice)
        elif None not in (notice.cluster_id, self._cluster_id) and notice.cluster_id != self._cluster_id:
            self._complain(source, f"is of another cluster of this name: id={notice.cluster_id}")
        elif is_double:
            self._complain(source, "has the id or the address of this node: give it another")
        self._owes_answer |= notice.asks

    def _is_kin(self, notice: Notice) -> bool:
        row = self._group.catalog.node(notice.source.node_id)
        directory = None if row is None else row.directory
        return is_kin(notice, self._cluster_id, self._group.voters, directory)

    def _complain(self, source: NodePlace, problem: str) -> None:
        if source.node_id not in self._complained:
            self._complained.add(source.node_id)
            _log.error("%s %s", source, problem)

    @property
    def _cluster_id(self) -> str | None:
        return self._group.catalog.cluster.cluster_id or self._own.cluster_id

    def _notice(self, *, asks: bool) -> Notice:
        told = self._group.member.told
        dialled = ((voter, self._group.addresses.of(voter)) for voter in sorted(self._group.voters))
        voters = tuple(
            NodePlace(voter, address.host, address.port) for voter, address in dialled if address is not None
        )
        return replace(
            self._own,
            cluster_id=self._cluster_id,
            asks=asks,
            voters=voters,
            as_of=told.index if told.configuration is not None else LogIndex(0),
            configuration=told.configuration,
        )

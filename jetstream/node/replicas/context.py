"""The parts of a replica that outlive its reigns, and the parts of the node that it uses.

`SyncTimer` is the timer of a stream with ``sync: interval``.
"""

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from typing import Any, Final, Protocol

from envelope.errors import JetstreamError
from envelope.types import Buffer, Incarnation, LeaderEpoch, NodeEpoch, NodeId, Offset, StreamName, SyncMode
from jetstream.log.log import Log
from jetstream.log.reader import FileRange
from jetstream.node.disk.group_commit import GroupCommit
from jetstream.node.disk.log_upkeep import Upkeep
from jetstream.node.disk.open_log import OpenedLog
from jetstream.node.disk.thread import DiskThread
from jetstream.node.nats.gaps import PossibleGaps
from jetstream.node.nats.subscriptions import Subscriptions
from jetstream.node.replicas.catch_up import CatchUp
from jetstream.node.replicas.publish_latency import PublishLatency
from jetstream.node.runtime.clock import Clock
from jetstream.node.runtime.crash import Crash
from jetstream.node.runtime.timers import Timers
from jetstream.node.tiers.segment_cache import Tier
from jetstream.replica.reconcile import LogState
from jetstream.replica.settings import ReplicaSettings
from jetstream.replica.wire import Answer, Question, RepairAnswer
from metadata.catalog.commands import Command
from metadata.catalog.tables import UncleanElection
from metadata.lease import Lease
from metadata.node.catalogue.replicated_catalog import Applied
from metadata.stream_config import StreamConfig

_log = logging.getLogger(__name__)

_UNREGISTERED: Final = NodeEpoch(0)


class PeerSessions(Protocol):
    """The node's connections to others, as its streams know them."""

    def fetch(self, peer: NodeId, name: StreamName, incarnation: Incarnation, message: Question) -> bool:
        """Send a fetch; False: there is no connection, it is lost."""

    def answer(
        self,
        peer: NodeId,
        name: StreamName,
        incarnation: Incarnation,
        message: Answer | RepairAnswer,
        body: Buffer | FileRange | None = None,
    ) -> None:
        """Answer a fetch of ``peer``; lost if it is gone."""

    def is_connected(self, peer: NodeId) -> bool:
        """Return whether the peer can be asked now."""

    def is_lost(self, peer: NodeId) -> bool:
        """Return whether the peer is dead or silent."""


class NoSessions:
    """Of a node that is alone."""

    def fetch(self, peer: NodeId, name: StreamName, incarnation: Incarnation, message: Question) -> bool:
        """See `PeerSessions.fetch`."""
        del peer, name, incarnation, message
        return False

    def answer(
        self,
        peer: NodeId,
        name: StreamName,
        incarnation: Incarnation,
        message: Answer | RepairAnswer,
        body: Buffer | FileRange | None = None,
    ) -> None:
        """See `PeerSessions.answer`."""

    def is_connected(self, peer: NodeId) -> bool:
        """See `PeerSessions.is_connected`."""
        del peer
        return False

    def is_lost(self, peer: NodeId) -> bool:
        """See `PeerSessions.is_lost`."""
        del peer
        return False


@dataclass(slots=True, kw_only=True)
class ClusterServices:
    """The parts of the cluster that a replica uses."""

    node_id: NodeId
    lease: Lease
    sessions: PeerSessions
    timers: Timers
    propose: Callable[[Command], Coroutine[Any, Any, Applied]]
    """Has a command applied by the catalogue."""
    epoch_of: Callable[[NodeId], NodeEpoch]
    """Of the present start of a node."""
    confirm_leadership: Callable[[Incarnation, StreamName, LeaderEpoch], Coroutine[Any, Any, None]]
    """Returns if this node led a stream in that reign when it was called; otherwise raises StreamOffline."""
    settings: ReplicaSettings = field(default_factory=ReplicaSettings)
    catch_up: CatchUp = field(default_factory=CatchUp)
    node_epoch: NodeEpoch = _UNREGISTERED
    """Of this start; known once the node is registered."""

    @property
    def is_alone(self) -> bool:
        """Whether there is no other node, and never will be."""
        return isinstance(self.sessions, NoSessions)


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeServices:
    """The parts of the node that a stream uses."""

    clock: Clock
    disk: DiskThread
    group_commit: GroupCommit
    subscriptions: Subscriptions
    send_acks: Callable[[bytes, Callable[[], None]], None]
    """Sends ready-made NATS commands; calls the second argument if they are lost, at once or later."""
    binds: Callable[[str, str], bool]
    """Whether the named stream is bound to the subject (catalogue look-up)."""
    cluster: ClusterServices
    tasks: asyncio.TaskGroup
    """Fails the node when one of its tasks fails."""
    crash: Crash
    tier: Tier
    """The node's object store."""
    publish_latency: PublishLatency = field(default_factory=PublishLatency)


@dataclass(slots=True)
class ReplicaContext:
    """A stream's replica on this node, through all its reigns."""

    config: StreamConfig
    incarnation: Incarnation
    opened: OpenedLog
    upkeep: Upkeep
    gaps: PossibleGaps = field(default_factory=PossibleGaps)
    counts: Counter[str] = field(default_factory=Counter)
    watchers: set[Callable[[Offset], None]] = field(default_factory=set)
    """Called with every new high watermark."""
    last_unclean: UncleanElection | None = None
    """As the catalogue said when this node began to lead or to follow."""
    name: StreamName = field(init=False)
    """The stream's."""
    log: Log = field(init=False)
    """The node's disk thread writes to it."""

    def __post_init__(self) -> None:
        self.name, self.log = StreamName(self.config.name), self.opened.log

    def watch(self, callback: Callable[[Offset], None]) -> Callable[[], None]:
        """Call ``callback`` with every new high watermark; returns the way to stop that."""
        self.watchers.add(callback)
        return lambda: self.watchers.discard(callback)

    def settle(self) -> None:
        """Forget what is not in the log, which was cut or led; on the disk thread.

        Raises:
            StorageError: the disk refused.
        """
        self.opened.settle()


def log_state(log: Log) -> LogState:
    """Return what the machines know of a log; nothing may be being written to it."""
    return LogState(
        log.reader.epochs,
        log.log_start_offset,
        log.log_end_offset,
        log.writer.synced_end,
        log.compaction.purged_end,
    )


class SyncTimer:
    """Syncs one stream's log every ``sync_interval`` where its configuration has ``sync: interval``."""

    def __init__(self, services: NodeServices) -> None:
        self._disk = services.disk
        self._tasks: asyncio.TaskGroup = services.tasks
        self._timer: asyncio.Task[None] | None = None

    def follow(self, config: StreamConfig, log: Log) -> None:
        """Apply ``config`` from now on."""
        self.stop()
        if config.sync is SyncMode.INTERVAL:
            self._timer = self._tasks.create_task(self._sync(config, log))

    def stop(self) -> None:
        """Sync no more."""
        timer, self._timer = self._timer, None
        if timer is not None:
            timer.cancel()

    async def _sync(self, config: StreamConfig, log: Log) -> None:
        while True:
            await asyncio.sleep(config.sync_interval.total_seconds())
            if not log.writer.dirty or log.failed is not None:
                continue
            try:
                await self._disk.call(log.writer.sync)
            except JetstreamError as error:
                _log.error("stream offline stream=%s error=%r runbook=RB-01", config.name, error)

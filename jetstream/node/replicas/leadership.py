"""A reign of this node over a stream: its replication machine, its followers, its in-sync replicas.

`LeadershipCheck` asks whether a node still leads: a leader that was cut off cannot know by itself.
"""

import asyncio
import logging
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Protocol

from envelope.errors import JetstreamError, NotEnoughReplicas, StreamOffline
from envelope.types import AckPolicy, Incarnation, LeaderEpoch, NodeId, Offset, StreamName
from jetstream.log.format.batch import UnsealedBatch
from jetstream.node.replicas.context import NodeServices, ReplicaContext
from jetstream.node.replicas.follower_responses import FollowerResponses
from jetstream.replica.isr import refusal_of
from jetstream.replica.leader import Leader
from jetstream.replica.leader_events import (
    Action,
    Deposed,
    Event,
    FollowerLost,
    MinimumChanged,
    ProposeIsr,
    ReplicasChanged,
    ServeFollower,
)
from jetstream.replica.progress import FollowerState, min_synced_end
from jetstream.replica.role_events import AdvanceHighWatermark, Tick
from jetstream.replica.wire import FetchMessage
from metadata.catalog.commands import ChangeIsr
from metadata.catalog.events import CommandRefused
from metadata.catalog.tables import Stream

_log = logging.getLogger(__name__)


class LeadershipCheck:
    """Of one stream; each call is one round to the metadata leader, which those at the same time share."""

    def __init__(
        self,
        incarnation: Incarnation,
        name: StreamName,
        leader_epoch: Callable[[], LeaderEpoch],
        services: NodeServices,
    ) -> None:
        """Check the reign that ``leader_epoch`` returns."""
        self._stream = incarnation, name
        self._leader_epoch = leader_epoch
        self._cluster = services.cluster
        self._tasks: asyncio.TaskGroup = services.tasks

    def __call__(self) -> asyncio.Future[None]:
        """See `ReadableStream.confirm_leadership`."""
        confirmed = asyncio.get_running_loop().create_future()
        self._tasks.create_task(self._check(confirmed))
        return confirmed

    async def _check(self, confirmed: asyncio.Future[None]) -> None:
        try:
            await self._cluster.confirm_leadership(*self._stream, self._leader_epoch())
        except StreamOffline as error:
            confirmed.set_exception(error)
        else:
            confirmed.set_result(None)


class Publishers(Protocol):
    """The stream's publishers, as its reign knows them."""

    def committed(self, high_watermark: Offset) -> None:
        """Answer the publishers of records below ``high_watermark``."""

    def suspend(self, reason: JetstreamError | None) -> None:
        """Refuse new messages for ``reason``; with None take them again."""


class LeaderDriver:
    """Performs the actions of `Leader`."""

    def __init__(self, context: ReplicaContext, leader: Leader, services: NodeServices) -> None:
        """The reign has begun on disk; `begin` begins it for everybody else."""
        self.leader_epoch: LeaderEpoch = leader.leader_epoch
        self._context = context
        self._leader = leader
        self._cluster = services.cluster
        self._clock = services.clock
        self._tasks: asyncio.TaskGroup = services.tasks
        self._answers = FollowerResponses(context, leader.leader_epoch, services)
        self._publishers: Publishers | None = None
        self._is_suspended = False
        self._proposals: set[asyncio.Task[None]] = set()

    @property
    def is_replicated(self) -> bool:
        """Whether the stream has followers now."""
        return self._leader.is_replicated

    @property
    def high_watermark(self) -> Offset:
        """First offset that is not committed."""
        return self._leader.high_watermark

    @property
    def holds_leadership(self) -> bool:
        """Whether the node may answer as the stream's leader now."""
        return self._leader.holds_leadership(self._clock.monotonic())

    @property
    def has_committed_own_epoch(self) -> bool:
        """Whether nothing at or above the high watermark has been acked by an earlier leader."""
        return self.holds_leadership and self._leader.has_committed_own_epoch

    def replica_states(self) -> tuple[FollowerState, ...]:
        """Return how far every replica is, this one first."""
        log = self._context.log
        own = FollowerState(
            node=self._cluster.node_id,
            log_end=log.log_end_offset,
            synced_end=log.writer.synced_end,
            high_watermark=self.high_watermark,
            in_sync=True,
        )
        return (own, *self._leader.follower_states())

    def min_synced_end(self, away_max: timedelta) -> Offset:
        """Return an offset below which all replicas have everything; who is away so long does not count."""
        away_max_ns = away_max // timedelta(microseconds=1) * 1000
        leader, now = self._leader, self._clock.monotonic()
        return min_synced_end(leader.log.synced_end, leader.follower_states(), now, away_max_ns)

    def begin(self, publishers: Publishers) -> None:
        """Commit what is committed already, and handle the followers known to be lost."""
        self._publishers = publishers
        for follower in self._leader.follower_states():
            if self._cluster.sessions.is_lost(follower.node):
                self.handle(FollowerLost(follower.node))
        self.handle(Tick())

    def end(self, leader_epoch: LeaderEpoch) -> None:
        """Send no more answers and proposals: another reign has begun, or this one has ended."""
        self._leader.handle(Deposed(leader_epoch), self._clock.monotonic())
        self._answers.end()
        self._cluster.timers.changed(self._tick, self._leader)
        for proposal in self._proposals:
            proposal.cancel()  # without a majority it would hold up the stop of the node

    def row_changed(self, row: Stream) -> None:
        """Apply the catalogue's replicas and ISR."""
        if self._leader.takes_followers:
            # The minimum first, so that nobody is refused for one that holds no more.
            self.handle(MinimumChanged(row.config.insync_minimum))
            self.handle(ReplicasChanged(row.replicas, row.isr_nodes, row.isr_version, row.read_replicas))

    def written(self, batches: Sequence[UnsealedBatch]) -> None:
        """Serve the followers batches that this node is still syncing."""
        leader = self._leader
        self._answers.hot.add(batches)
        self._perform(leader.log_synced(leader.log.synced_end, batches[-1].next, self._clock.monotonic()))

    def appended(self, end: Offset) -> None:
        """Record the end of what is as durable as the stream's mode promises."""
        leader = self._leader
        synced_end = min(self._context.log.writer.synced_end, end)  # the disk may be a group ahead of this
        log_end = max(leader.log.log_end_offset, end)  # and the next group be written
        self._perform(leader.log_synced(synced_end, log_end, self._clock.monotonic()))

    def fetched(self, follower: NodeId, fetch: FetchMessage) -> None:
        """Handle the fetch of a follower."""
        self._perform(self._leader.fetched(follower, fetch, self._clock.monotonic()))

    def handle(self, event: Event) -> None:
        """Handle ``event`` by the machine, and perform its actions."""
        self._perform(self._leader.handle(event, self._clock.monotonic()))
        if self._leader.takes_followers:
            self._suspend_or_resume()

    def _tick(self) -> None:
        self.handle(Tick())

    def _perform(self, actions: Sequence[Action]) -> None:
        assert self._publishers is not None, "a reign acts once it has begun"
        leader = self._leader
        for action in actions:
            match action:
                case AdvanceHighWatermark(high_watermark):
                    self._publishers.committed(high_watermark)
                    self._answers.hot.forget(high_watermark)
                    for watcher in tuple(self._context.watchers):
                        watcher(high_watermark)
                case ServeFollower(follower):
                    if follower in leader.isr.maximal:
                        self._answers.serve(action)
                    else:
                        self._answers.serve_in_turn(action, joins=follower in leader.replicas)
                case ProposeIsr():
                    proposal = self._tasks.create_task(self._propose(action))
                    self._proposals.add(proposal)
                    proposal.add_done_callback(self._proposals.discard)
                case _:
                    self._answers.respond(action, leader.high_watermark)
        if leader.takes_followers and self._tick not in self._cluster.timers.to_ask:
            self._cluster.timers.changed(self._tick, leader)

    def _suspend_or_resume(self) -> None:
        """Refuse messages whose publishers ask for more copies than there can be now."""
        assert self._publishers is not None, "a reign acts once it has begun"
        config = self._context.config
        lacking = self._leader.lacks_replicas and config.ack is AckPolicy.ALL
        if lacking != self._is_suspended:
            self._is_suspended = lacking
            isr, minimum = len(self._leader.isr.committed), config.insync_minimum
            reason = f"stream {config.name} has {isr} replicas in sync, {minimum} are wanted"
            self._publishers.suspend(NotEnoughReplicas(reason) if lacking else None)

    async def _propose(self, proposal: ProposeIsr) -> None:
        """Propose an ISR to the catalogue; its decision also comes by the stream's row."""
        command = ChangeIsr(
            stream=self._context.name,
            incarnation=self._context.incarnation,
            leader=self._cluster.node_id,
            leader_epoch=proposal.leader_epoch,
            expected_isr_version=proposal.expected_isr_version,
            isr=proposal.isr,
        )
        try:
            applied = await self._cluster.propose(command)
        except JetstreamError as error:
            _log.warning("isr not changed stream=%s error=%s", self._context.name, error)
            return  # unknown whether it was: the machine proposes again
        refused = applied.events[0] if applied.events else None
        if isinstance(refused, CommandRefused) and (told := refusal_of(proposal.number, refused)) is not None:
            self.handle(told)

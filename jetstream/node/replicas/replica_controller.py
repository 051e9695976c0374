"""Moves one replica of this node to where the catalogue wants it, one step after the other.

`jetstream.replica.desired_role` decides which step is next.

A replica's log begins only once the catalogue has recorded it; a lost one is not replaced.
"""

import asyncio
import logging
from typing import assert_never

from envelope.errors import JetstreamError, StreamLost
from envelope.types import MonotonicNs
from jetstream.node.replicas.context import ClusterServices, NodeServices
from jetstream.node.replicas.replica import StreamReplica
from jetstream.replica.desired_role import (
    Begin,
    End,
    Follow,
    Open,
    Reconfigure,
    Refuse,
    Repair,
    Resign,
    Step,
    TakeOver,
    next_step,
)
from metadata.catalog.commands import BeginStream
from metadata.catalog.tables import Stream

_log = logging.getLogger(__name__)


async def begin_stream(replica: StreamReplica, row: Stream, cluster: ClusterServices) -> None:
    """Record in the catalogue that there is a log, before anything is in it; `retry_reason` on failure."""
    command = BeginStream(row.name, row.incarnation, cluster.node_id, row.leader_epoch)
    try:
        (await cluster.propose(command)).answer()
    except JetstreamError as error:
        _log.warning("stream not begun stream=%s error=%s", replica.name, error)
        replica.retry_reason = error


def refuse(replica: StreamReplica) -> None:
    """Serve nothing, and report that, until the log is back or an operator decides."""
    replica.problem = StreamLost("its log is gone from the disk, and no other replica was in sync")
    _log.error("stream lost stream=%s: %s runbook=RB-13", replica.name, replica.problem)


class ReplicaController:
    """`changed` sets it going."""

    def __init__(self, replica: StreamReplica, services: NodeServices) -> None:
        self.replica = replica
        self._services = services
        self._node_id = services.cluster.node_id
        self._tasks: asyncio.TaskGroup = services.tasks
        self._row: Stream | None = None
        self._has_ended = False
        self._moving: asyncio.Task[None] | None = None

    def changed(self, row: Stream | None) -> None:
        """Handle the catalogue's newest row; None: this life of the stream is over."""
        self._row = row
        self.replica.tiered.is_over = row is None
        leading = self.replica.leading
        if leading is not None and row is not None:
            if (row.leader, row.leader_epoch) == (self._node_id, leading.leader_epoch):
                leading.row_changed(row)
            else:
                leading.depose(row.leader_epoch)  # at once; the rest takes its time
        if self._moving is None and not self._has_ended:
            self._moving = self._tasks.create_task(self._move())

    async def settled(self) -> None:
        """Return when everything is as the newest row wants it, as far as that is possible."""
        while self._moving is not None:
            await asyncio.wait((self._moving,))

    def stop_moving(self) -> None:
        """Take no more steps after the one that is being taken: newer rows are not heard of any more."""
        self._has_ended = True

    async def end(self) -> bool:
        """Stop and close the replica for good, in any case; return as `StreamReplica.end`."""
        self.stop_moving()
        await self.settled()
        return await self.replica.end()

    async def _move(self) -> None:
        try:
            while not self._has_ended and (step := self._next_step()) is not None:
                await self._take(step)
        finally:
            self._moving = None

    def _next_step(self) -> Step | None:
        step = next_step(self.replica.standing(), self._row, self._node_id)
        is_stuck = self.replica.following is None and self.replica.leading is None
        # A log that does not open is left alone until the stream is gone, or the node starts again; one for
        # which there was no space, for a while.
        return None if is_stuck and not isinstance(step, Open | Refuse | End | Reconfigure) else step

    async def _take(self, step: Step) -> None:
        replica = self.replica
        match step:
            case Open():
                assert self._row is not None, "a stream that is gone is not opened"
                await replica.open(self._row)
                self._try_again_if_due()
            case Refuse():
                refuse(replica)
            case End():
                self._has_ended = True
                await replica.end()
            case Repair():
                await replica.repair()
            case Reconfigure(config):
                await replica.reconfigure(config)
            case Resign():
                await replica.resign()
            case Begin(row):
                await begin_stream(replica, row, self._services.cluster)
                self._try_again_if_due()
            case TakeOver(row):
                await replica.take_over(row, lambda: self._newest_of_reign(row))
                self._try_again_if_due()
            case Follow(leader, leader_epoch):
                assert replica.following is not None, "who does not lead follows"
                replica.context.last_unclean = None if self._row is None else self._row.last_unclean
                replica.following.follow(leader, leader_epoch, self._row)
            case _:
                assert_never(step)

    def _try_again_if_due(self) -> None:
        if self.replica.retry_reason is not None:
            cluster, now = self._services.cluster, self._services.clock.monotonic()
            cluster.timers.at(self._try_again, MonotonicNs(now + cluster.settings.retry_interval_ns))

    def _try_again(self) -> None:
        self.replica.retry_reason = None
        self.changed(self._row)

    def _newest_of_reign(self, row: Stream) -> Stream | None:
        newest = self._row
        if newest is None or (newest.leader, newest.leader_epoch) != (row.leader, row.leader_epoch):
            return None
        return newest

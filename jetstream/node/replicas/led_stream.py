"""A stream under this node's reign: its subject, its publish path, its followers."""

import logging
from functools import partial

from envelope.errors import JetstreamError
from envelope.internal_streams import is_group_shard
from envelope.subjects import overlap
from envelope.types import LeaderEpoch, Offset, TimestampUs
from jetstream.ingest.messages import MessageBlock
from jetstream.ingest.publishers.history import TxidMark, follow_time
from jetstream.node.nats.gaps import Gap
from jetstream.node.nats.routes import REFUSALS
from jetstream.node.nats.subscriptions import Subscription
from jetstream.node.replicas.context import NodeServices, ReplicaContext
from jetstream.node.replicas.internal_write_path import InternalAppendPath
from jetstream.node.replicas.leadership import LeaderDriver
from jetstream.node.replicas.publish_path import PublishPath
from jetstream.replica.leader import Leader
from jetstream.replica.leader_events import MinimumChanged
from jetstream.replica.role_events import LogStartMoved
from metadata.api.responses import GapKind
from metadata.catalog.tables import Stream
from metadata.stream_config import StreamConfig

_log = logging.getLogger(__name__)


class LeadingStream:
    """Made when the reign has begun on disk; ended by `resign`.

    Attributes:
        context: what the stream keeps through all reigns.
        driver: its followers, and what is committed.
        path: its publishers, or what the node itself writes to it.
    """

    def __init__(self, context: ReplicaContext, leader: Leader, services: NodeServices) -> None:
        self.context = context
        self.driver = LeaderDriver(context, leader, services)
        self.path: PublishPath | InternalAppendPath = _path(context, self.driver, services)
        self._disk = services.disk
        self._clock = services.clock
        self._subscriptions = services.subscriptions
        self._subscription = self._new_subscription()

    @property
    def leader_epoch(self) -> LeaderEpoch:
        """Of the reign."""
        return self.driver.leader_epoch

    @property
    def high_watermark(self) -> Offset:
        """First offset that is not committed."""
        return self.driver.high_watermark

    @property
    def last_txid(self) -> int | None:
        """The stream's last txid, also of records that are being written; None: there is none."""
        return self.context.opened.history.last_txid

    @property
    def problem(self) -> JetstreamError | None:
        """Why the messages of its subject do not come; None if they do, or if nobody is to publish there."""
        return None if self._subscription is None else self._subscription.problem

    def deliver(self, messages: MessageBlock) -> None:
        """Handle published messages as `PublishPath.deliver`; there are none where the node itself writes."""
        assert isinstance(self.path, PublishPath), f"nobody publishes to {self.context.name}"
        self.path.deliver(messages)

    def begin(self) -> None:
        """Begin the reign."""
        self.driver.begin(self.path)

    async def attach(self) -> None:
        """Subscribe to the stream's subject; the server has the subscription on return, if it is connected.

        If NATS refuses it, `problem` says so; what is stored can be read all the same.
        """
        self._subscription = self._new_subscription()
        if self._subscription is None:
            return
        await self._subscription.begin()
        if isinstance(self.problem, REFUSALS):
            _log.error(
                "stream not attached stream=%s error=%s runbook=RB-03", self.context.name, self.problem
            )

    async def detach(self) -> None:
        """Leave the subject; messages that NATS sent before are in the mailbox on return."""
        if self._subscription is not None:
            await self._subscription.end()

    async def resubscribe(self, before: StreamConfig) -> None:
        """Move from the subject and queue group of ``before`` to those that the stream has now.

        If no message can match both subjects, the new subscription is there before the former one ends:
        nothing is missed, and nothing comes twice. Otherwise the former one ends first, and the time between,
        two round trips to the server, is a possible gap.
        """
        if overlap(before.subject, self.context.config.subject):
            since = self._clock.wall()
            await self.detach()
            await self.attach()
            self.context.gaps.add(Gap(GapKind.SUBJECT_CHANGED, since, self._clock.wall()))
            return
        former = self._subscription
        await self.attach()
        if former is not None:
            await former.end()

    def _new_subscription(self) -> Subscription | None:
        if isinstance(self.path, InternalAppendPath):
            return None
        return self._subscriptions.of(self.context.config, self.path.deliver)

    def row_changed(self, row: Stream) -> None:
        """Apply the catalogue's replicas, the ISR, the txid that was set, and `read_only`."""
        # Not with the rest of the configuration, which waits for the disk: who switches it is answered now.
        self.path.set_read_only(is_set=row.config.read_only)
        txid_set = row.txid_set
        self.context.opened.history.txid_set = (
            None if txid_set is None else TxidMark(txid_set.leader_epoch, txid_set.offset, txid_set.txid)
        )
        self.driver.row_changed(row)

    def reconfigure(self) -> None:
        """Apply a changed configuration from the next group on."""
        self.path.reconfigure()
        self.driver.handle(MinimumChanged(self.context.config.insync_minimum))

    async def truncate_before(self, offset: Offset) -> None:
        """Let the log begin at ``offset``, durably, and those of the followers soon after.

        Raises:
            OffsetOutOfRange: it is beyond the high watermark.
            JetstreamError: the disk refused.
        """
        await self._disk.call(partial(self.context.upkeep.truncate_before, offset))
        self.log_start_moved()

    def reset_time(self) -> tuple[TimestampUs, TimestampUs]:
        """Let the times of the next records go on from the clock, if they are ahead of it.

        Each record behind the next group has that group's time on disk. Until it is stored, the end of the
        reign, or a refused append before it, undoes this.

        Returns:
            The stream's time before, and now.
        """
        history, now = self.context.opened.history, self._clock.wall()
        before = history.last_timestamp
        if now < before:
            follow_time(history, now)
        return before, history.last_timestamp

    def log_start_moved(self) -> None:
        """Notify the followers of the log start, below which they drop their records."""
        self.driver.handle(LogStartMoved(self.context.log.log_start_offset))

    async def drained(self) -> None:
        """Return when nothing waits to be written or is being written; no more is to come."""
        await self.path.appends.drained()

    def depose(self, leader_epoch: LeaderEpoch) -> None:
        """Send no more answers: another reign has begun."""
        self.driver.end(leader_epoch)
        self.path.appends.stop()

    async def resign(self) -> None:
        """Return when nothing is being written any more; `depose` came before."""
        await self.detach()
        await self.drained()


def _path(
    context: ReplicaContext, driver: LeaderDriver, services: NodeServices
) -> PublishPath | InternalAppendPath:
    return (InternalAppendPath if is_group_shard(context.name) else PublishPath)(context, driver, services)

"""One replica of one stream during one life of its node: follows, or leads, as the catalogue says."""

from typing import TYPE_CHECKING

from envelope.types import LeaderEpoch, MonotonicNs, NodeId, Offset
from jetstream.replica import follower_events as following
from jetstream.replica import leader_events as leading
from jetstream.replica import role_events
from jetstream.replica.follower import Follower
from jetstream.replica.leader_events import Appointment
from jetstream.replica.wire import BatchesMessage, FetchMessage, FetchRefusal, RefusedMessage
from metadata.catalog.tables import Stream
from tests.simulation.replica.checkers.truths import Truths
from tests.simulation.replica.checkers.watermarks import Watermark
from tests.simulation.replica.description import event_text
from tests.simulation.replica.log_ids import LogIds
from tests.simulation.replica.log_image import Batch, LogImage
from tests.simulation.replica.messages import Publish, ToReplica
from tests.simulation.replica.reign import Reign
from tests.simulation.replica.repairing import Repairing
from tests.simulation.replica.writer import (
    BeginEpoch,
    Cut,
    Done,
    Filled,
    Full,
    LogWriter,
    Report,
    Sync,
    Write,
)
from tests.simulation.violation import Violation

if TYPE_CHECKING:
    from tests.simulation.replica.life import Life


class Replica:
    """The shell around one `Follower`, or a `LeaderDriver`; never both."""

    def __init__(self, life: "Life", image: LogImage, high_watermark: Offset) -> None:
        self.life, self.image = life, image
        self.title = f"{life.name}/{image.stream}"
        known = max(image.log_start, min(high_watermark, image.log_end))
        self._truths: Truths = life.world.checks.truths[image.stream]
        self.watermark: Watermark = Watermark(self.title, known)
        self.row: Stream | None = None
        self.reign: Reign | None = None
        self.follower: Follower | None = self._new_follower()
        self.writer = LogWriter(
            life.world, image, life.node.disk, lambda report: life.hold(lambda: self.reported(report))
        )
        self._preparing = False
        self._looked_at: MonotonicNs = life.now()
        """When the leader's silence began to count, if nothing was heard of it since."""
        self._batches: tuple[Batch, ...] = ()
        world, window = life.world, life.world.swarm.shape_of(image.stream).dedupe_window
        self.ids: LogIds | None = (
            LogIds(world.wall_clock, image, window, lambda: self.watermark.offset) if window else None
        )
        life.world.checks.opened(image, reads_all=life.world.swarm.verifies)
        self.repairing = Repairing(self)

    def note(self, what: str) -> None:
        """Write a line of the trace."""
        self.life.world.note(self.title, what)

    # --- the catalogue ----------------------------------------------------------------------------------

    def learn(self, row: Stream) -> None:
        """Take in the newest row."""
        self.row = row
        if self.reign is not None:
            leader = self.reign.leader
            if (row.leader, row.leader_epoch) == (self.life.name, leader.leader_epoch):
                changed = leading.ReplicasChanged(
                    row.replicas, row.isr_nodes, row.isr_version, row.read_replicas
                )
                self.reign.tell(changed)
                return
            self.reign.tell(leading.Deposed(row.leader_epoch))
            self.reign.end()
            self.reign = None
        if self.follower is not None:
            self._follow(_reign_in(row, self.follower))
        self._looked_at = self.life.now()
        self._settle()

    def end(self, row: Stream) -> None:
        """Stop: another node has the replica now."""
        if self.reign is not None:
            self.reign.tell(leading.Deposed(row.leader_epoch))
            self.reign.end()
        self.reign = self.follower = None
        self.writer.crash(power=False)

    def _settle(self) -> None:
        """Follow again after a reign, or begin to lead, once the disk is at rest."""
        row = self.row
        if row is None or self.reign is not None or self._preparing or not self.writer.idle:
            return
        if self.follower is None:
            if self.ids is not None:
                self.ids.cut()
            self.follower = self._new_follower()
            self._follow(_reign_in(row, self.follower))
        if row.leader != self.life.name or not self.follower.is_settled:
            return
        if not row.begun:
            self.life.link.begin_stream(row)
            return
        if self.image.epochs.last >= row.leader_epoch:
            raise Violation(
                f"{self.title} is to lead in epoch {row.leader_epoch}, and knows {self.image.epochs.last}"
            )
        self.follower, self._preparing = None, True
        self.writer.begin_epoch(row.leader_epoch)

    def _lead(self, epoch: LeaderEpoch) -> None:
        self._preparing = False
        row = self.row
        if row is None or (row.leader, row.leader_epoch) != (self.life.name, epoch):
            self._settle()
            return
        self.life.world.trace.counts["reign"] += 1
        appointment = Appointment(
            node_id=self.life.name,
            node_epoch=self.life.node_epoch,
            leader_epoch=epoch,
            replicas=row.replicas,
            isr=row.isr_nodes,
            isr_version=row.isr_version,
            min_insync_replicas=row.config.insync_minimum,
            read_replicas=row.read_replicas,
        )
        self.reign = Reign(self, appointment)
        self.reign.tell(role_events.Tick())

    def _new_follower(self) -> Follower:
        life = self.life
        return Follower(
            life.name, life.node_epoch, self.image.state(), self.watermark.offset, life.world.swarm.settings
        )

    # --- events -----------------------------------------------------------------------------------------

    def receive(self, message: ToReplica) -> None:
        """Take in a fetch, or the answer to one."""
        if isinstance(message.message, FetchMessage):
            if self.reign is not None:
                self.reign.tell(leading.FetchArrived(message.source, message.message))
            else:
                refuse(self.life, message)
        elif self.follower is not None:
            self._batches = message.batches
            self._follow(message.message)
            self._batches = ()

    def publish(self, message: Publish) -> None:
        """Take in a message, if this replica leads."""
        if self.reign is not None:
            self.reign.publish(message)

    def tick(self) -> None:
        """Time has passed: perhaps enough for a machine to want to know."""
        self.repairing.tick()
        if self.ids is not None:
            self.ids.tick()
        now = self.life.now()
        if self.reign is not None:
            if now >= self.reign.leader.wake_at:
                self.reign.tell(role_events.Tick())
        elif self.follower is not None:
            if now >= self.follower.wake_at:
                self._follow(role_events.Tick())
            if now - self._leader_heard_at() > self.life.world.swarm.leader_timeout:
                self._report_leader()

    @property
    def leader(self) -> NodeId | None:
        """Who leads, as far as this process knows."""
        return self.row.leader if self.row is not None else None

    def _leader_heard_at(self) -> MonotonicNs:
        heard_at = self.life.heard_at.get(self.leader) if self.leader is not None else None
        return self._looked_at if heard_at is None else max(self._looked_at, heard_at)

    def lease_resumed(self) -> None:
        """The node's lease had lapsed, and is valid again."""
        if self.reign is not None:
            self.reign.tell(leading.LeaseRenewed())

    def peer_lost(self, peer: NodeId, *, refused: bool) -> None:
        """The connection to another node broke; ``refused``: its process is dead."""
        if self.reign is not None and refused:
            self.reign.tell(leading.FollowerLost(peer))
        elif self.follower is not None and self.follower.leader == peer:
            self._follow(following.LeaderDisconnected())
            if refused:
                self._report_leader()

    def peer_found(self, peer: NodeId) -> None:
        """There is a connection to another node again."""
        if self.follower is not None and self.follower.leader == peer:
            self._follow(following.LeaderConnected())

    def trim(self, offset: Offset) -> None:
        """Remove what lies before ``offset``, as retention does."""
        self.life.world.checks.trimmed(self.image, self.image.move_start(offset))
        if self.reign is not None:
            self.reign.tell(role_events.LogStartMoved(offset))
        elif self.follower is not None:
            self._follow(role_events.LogStartMoved(offset))

    def reported(self, report: Report) -> None:
        """The disk tells something."""
        self.writer.told(report)
        if self.life.world.trace.on:
            self.note(f"disk: {event_text(report)}")
        if self.ids is not None:
            _learn(self.ids, report)
        if isinstance(report, Filled):
            self.repairing.filled(report)
        if isinstance(report, Done) and isinstance(report.job, BeginEpoch):
            self._lead(report.job.epoch)
        elif self.reign is not None:
            self.reign.reported(report)
        elif self.follower is not None and not isinstance(report, Filled):
            for event in _as_events(report, self.image):
                self._follow(event)
        self._settle()

    def _report_leader(self) -> None:
        row = self.row
        if row is None or row.leader is None:
            return
        self._looked_at = self.life.now()
        self.life.link.silent(row)

    # --- following --------------------------------------------------------------------------------------

    def _follow(self, event: following.Event) -> None:
        assert self.follower is not None, f"{self.title} follows"
        self.life.world.steps += 1
        actions = self.follower.handle(event, self.life.now())
        if self.life.world.trace.on:
            self.note(f"{event_text(event)} | {self.follower}")
        for action in actions:
            self._perform(action)

    def _perform(self, action: following.Action) -> None:
        assert self.follower is not None, f"{self.title} follows"
        epoch = self.follower.leader_epoch
        match action:
            case FetchMessage():
                assert self.follower.leader is not None, f"{self.title} follows nobody"
                message = ToReplica(self.life.name, self.image.stream, action)
                self.life.world.network.send((self.life.name, self.follower.leader), message)
            case BatchesMessage() as answer:
                ids, known = self.ids, self.follower.high_watermark
                if ids is None:
                    self.writer.append(self._batches)
                else:
                    received = ids.received(self._batches, known, answer.high_watermark)
                    self.writer.append(self._batches, received)
            case following.Truncate(end):
                self.writer.cut(end, all_of_it=False)
            case following.ResetLog(offset):
                self.writer.cut(offset, all_of_it=True)
            case role_events.AdvanceHighWatermark(high_watermark):
                self.watermark.is_at(high_watermark)
                self._truths.of(epoch).by_follower(self.title, self.image, high_watermark)
                if self.ids is not None:
                    self.ids.hear(high_watermark)
            case following.Distrust(start, end):
                raise Violation(f"{self.title} is told to cut {start} to {end}, which are committed")
            case following.ReportLost(start, end):
                self._truths.check_cut(self.title, start, end, epoch)
                self.life.world.trace.counts["lost"] += 1
                self.watermark.lost(start)


def _reign_in(row: Stream, follower: Follower) -> following.LeaderAssigned:
    return following.LeaderAssigned(
        row.leader, row.leader_epoch, row.may_lack_committed(follower.log.epochs.last)
    )


def refuse(life: "Life", message: ToReplica) -> None:
    """Say that nobody leads the stream at this node."""
    refused = RefusedMessage(message.message.leader_epoch, FetchRefusal.NOT_LEADING)
    life.world.network.send((life.name, message.source), ToReplica(life.name, message.stream, refused))


def _learn(ids: LogIds, report: Report) -> None:
    match report:
        case Done(Write(_, written)):
            if written is not None:
                written.learn()
        case Done(Cut(_, all_of_it)):
            if all_of_it:
                ids.begin_anew()
            else:
                ids.cut()
        case Full() | Filled() | Done():
            pass


def _as_events(report: Report, image: LogImage) -> tuple[following.Event, ...]:
    match report:
        case Full():
            return (following.AppendsUndone(image.state()),)
        case Done(Write(), log):
            written = following.LogWritten(log.log_end_offset)
            return (written,) if image.syncs else (written, following.LogSynced(log.synced_end))
        case Done(Sync(), log):
            return (following.LogSynced(log.synced_end),)
        case Done(Cut(), log):
            return (following.LogCut(log),)
        case _:
            raise AssertionError(f"not for a follower: {report}")

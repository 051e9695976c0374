"""One node with a replica of a stream: its log, its machine, and a shell that does what the machine says."""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Protocol

from envelope.types import Incarnation, LeaderEpoch, MonotonicNs, NodeEpoch, NodeId, Offset, SyncMode
from jetstream.log.state.epochs import NO_EPOCH
from jetstream.replica import follower_events as following
from jetstream.replica import leader_events as leading
from jetstream.replica import role_events
from jetstream.replica.follower import Follower
from jetstream.replica.isr import refusal_of
from jetstream.replica.leader import Leader
from jetstream.replica.leader_events import Appointment
from jetstream.replica.settings import ReplicaSettings
from jetstream.replica.wire import (
    Answer,
    BatchesMessage,
    FetchMessage,
    FetchRefusal,
    RefusedMessage,
)
from metadata.catalog.catalog import Catalog
from metadata.catalog.commands import Command
from metadata.catalog.events import CommandRefused, Events
from metadata.catalog.nodes import restored_replicas
from metadata.catalog.tables import InSyncReplica, Stream
from metadata.lease import unlimited
from tests.support.catalogs import register
from tests.support.checked_leader import CheckedLeader
from tests.support.leader_lags import check_lags
from tests.support.replica_log import Batch, ReplicaLog

SETTINGS: Final = ReplicaSettings(fetch_timeout_ns=ReplicaSettings().retry_interval_ns)
"""The network loses single messages, and nobody is told."""


@dataclass(frozen=True, slots=True)
class Message:
    """A fetch, or the answer to one with the batches it carries."""

    source: NodeId
    target: NodeId
    message: FetchMessage | Answer
    batches: tuple[Batch, ...] = ()


class Surroundings(Protocol):
    """What a member sees of its cluster."""

    now: MonotonicNs
    catalog: Catalog
    has_stream: bool
    read_replicas: tuple[NodeId, ...]

    @property
    def row(self) -> Stream: ...

    def apply(self, command: Command) -> Events: ...

    def send(self, message: Message) -> None: ...

    def committed_by(self, member: "Member", high_watermark: Offset) -> None: ...


class Member:
    """One node: its log, its machine, and what the machine asked for.

    Attributes:
        holds_syncs: the disk has not synced until `sync` says so.
        lease: of the node.
        batches_max: most batches in one answer.
        high_watermark: as this node last told it.
    """

    def __init__(self, cluster: Surroundings, name: NodeId, log: ReplicaLog) -> None:
        self.cluster = cluster
        self.name = name
        self.log = log
        self.node_epoch = NodeEpoch(0)
        self.directory = f"disk-of-{name}"
        self.holds_syncs = False
        self.lease = unlimited()
        self.batches_max = 1000
        self.lost: list[following.ReportLost] = []
        self.distrusts: list[following.Distrust] = []
        self.proposals: deque[leading.ProposeIsr] = deque()
        self.refusals: list[RefusedMessage] = []
        self.high_watermark = Offset(0)
        self.is_up = False
        self._unsynced_kept = True
        self._reports: deque[following.Event] = deque()
        self.leader: Leader | None = None
        self.follower: Follower | None = None

    @property
    def machine(self) -> Leader | Follower | None:
        return self.leader or self.follower

    @property
    def is_registered(self) -> bool:
        """Whether it is in the ISR with the directory that it has now."""
        return any(
            (one.node_id, one.directory) == (self.name, self.directory) for one in self.cluster.row.isr
        )

    # --- life ---------------------------------------------------------------------------------------------

    def start(self, *, on: str | None = None, lost: Sequence[str] = ()) -> None:
        """Register a new start, and begin with what is on disk; knows the catalogue as of now."""
        self.directory = on or self.directory
        kept = self._unsynced_kept
        own = InSyncReplica(self.name, self.directory)
        rows = self.cluster.catalog.streams()
        held = frozenset(row.incarnation for row in rows) - set(map(Incarnation, lost))
        restored = restored_replicas(rows, own, held)
        command = register(self.name, self.directory, unsynced_kept=kept, lost=lost, restored=restored)
        self.cluster.apply(command)
        node = self.cluster.catalog.node(self.name)
        assert node is not None
        self.node_epoch, self.is_up, self.high_watermark = node.node_epoch, True, Offset(0)
        self._follow()
        if self.cluster.has_stream:
            self.learn()

    def crash(self, *, power: bool = False) -> None:
        """Die; with ``power`` also what was not synced is gone."""
        self.is_up, self.leader, self.follower = False, None, None
        self._unsynced_kept = not power
        if power:
            self.log.lose_power()
        self.log.sync()  # recovery makes what it finds durable

    def wipe(self) -> None:
        """Die and come back with an empty disk."""
        self.crash()
        self.log = ReplicaLog(sync=self.log.sync_mode)
        self.start(on=f"{self.directory}'")

    def restart(self, *, power: bool = False) -> None:
        self.crash(power=power)
        self.start()

    def learn(self) -> None:
        """Take in the catalogue's row as it is now."""
        row = self.cluster.row
        if row.leader == self.name:
            if self.leader is None or self.leader.leader_epoch < row.leader_epoch:
                self._lead(row)
            else:
                self.lead(leading.ReplicasChanged(row.replicas, row.isr_nodes, row.isr_version))
            return
        if self.leader is not None and (row.leader_epoch, row.leader) != (
            self.leader.leader_epoch,
            self.name,
        ):
            self.lead(leading.Deposed(row.leader_epoch))
            self._follow()
        last_epoch = self.follower.log.epochs.last if self.follower is not None else NO_EPOCH
        may_lack = row.may_lack_committed(last_epoch)
        self.follow(following.LeaderAssigned(row.leader, row.leader_epoch, may_lack))

    def _lead(self, row: Stream) -> None:
        if self.follower is not None:
            self.follow(following.LeaderAssigned(self.name, row.leader_epoch))
        self.follower = None
        self.log.begin_epoch(row.leader_epoch)
        appointment = Appointment(
            node_id=self.name,
            node_epoch=self.node_epoch,
            leader_epoch=row.leader_epoch,
            replicas=row.replicas,
            isr=row.isr_nodes,
            isr_version=row.isr_version,
            min_insync_replicas=row.config.insync_minimum,
            read_replicas=self.cluster.read_replicas,
        )
        self.leader = CheckedLeader(
            appointment=appointment,
            log=self.log.state(),
            high_watermark=self.high_watermark,
            now=self.cluster.now,
            lease=self.lease,
            settings=SETTINGS,
        )
        self.lead(role_events.Tick())

    def _follow(self) -> None:
        self.leader = None
        self.follower = Follower(self.name, self.node_epoch, self.log.state(), self.high_watermark, SETTINGS)

    # --- events -------------------------------------------------------------------------------------------

    def lead(self, event: leading.Event) -> None:
        assert self.leader is not None, f"{self.name} does not lead"
        for action in self.leader.handle(event, self.cluster.now):
            self._perform_leading(self.leader, action)
        check_lags(self.leader, self.cluster.now)

    def follow(self, event: following.Event, batches: tuple[Batch, ...] = ()) -> None:
        assert self.follower is not None, f"{self.name} does not follow"
        self._reports.append(event)
        if len(self._reports) > 1:
            return  # what the disk reports waits until the actions before it are done
        while self._reports:
            for action in self.follower.handle(self._reports[0], self.cluster.now):
                self._perform_following(action, batches)
            self._reports.popleft()

    def receive(self, message: Message) -> None:
        """Take a message in, if the machine it is for is there; otherwise it is lost."""
        if isinstance(message.message, FetchMessage):
            if self.leader is not None:
                self.lead(leading.FetchArrived(message.source, message.message))
            elif self.is_up:
                answer = RefusedMessage(message.message.leader_epoch, FetchRefusal.NOT_LEADING)
                self.cluster.send(Message(self.name, message.source, answer))
        elif self.follower is not None:
            self.follow(message.message, message.batches)

    def tick(self) -> None:
        """Let time have passed, if it is of any interest to the machine."""
        if self.machine is None or self.cluster.now < self.machine.wake_at:
            return
        if self.leader is not None:
            self.lead(role_events.Tick())
        elif self.follower is not None:
            self.follow(role_events.Tick())

    def publish(self, *values: str) -> None:
        """Append one batch of these values as the leader."""
        assert self.leader is not None
        self.log.append(Batch(self.log.log_end, self.leader.leader_epoch, values))
        self.lead(leading.LeaderLogSynced(self.log.synced_end, self.log.log_end))
        if not self.holds_syncs:
            self.sync()

    def sync(self) -> None:
        """Sync the log, if it ever is, and tell the machine."""
        if self.log.sync_mode is SyncMode.ALWAYS:
            self.log.sync()
        if self.leader is not None:
            self.lead(leading.LeaderLogSynced(self.log.synced_end, self.log.log_end))
        elif self.follower is not None:
            self.follow(following.LogSynced(self.log.synced_end))

    def move_start(self, offset: Offset) -> None:
        """Remove what lies before ``offset``, as retention does."""
        self.log.move_start(offset)
        if self.leader is not None:
            self.lead(role_events.LogStartMoved(offset))
        elif self.follower is not None:
            self.follow(role_events.LogStartMoved(offset))

    def refuse(self, proposal: leading.ProposeIsr, refusal: CommandRefused) -> None:
        """Tell the leader that its proposal was refused."""
        refused = refusal_of(proposal.number, refusal)
        if self.leader is not None and refused is not None:
            self.lead(refused)

    # --- actions ------------------------------------------------------------------------------------------

    def _perform_leading(self, leader: Leader, action: leading.Action) -> None:
        epoch = leader.leader_epoch
        match action:
            case role_events.AdvanceHighWatermark(high_watermark):
                self.high_watermark = high_watermark
                self.cluster.committed_by(self, high_watermark)
            case leading.ProposeIsr():
                self.proposals.append(action)
            case leading.ServeFollower(follower, last_epoch, log_end, limit, high_watermark):
                batches = [
                    batch for batch in self.log.after(log_end, self.batches_max) if batch.next <= limit
                ]
                served = _answer(epoch, last_epoch, log_end, batches, high_watermark)
                self.cluster.send(Message(self.name, follower, served, tuple(batches)))
            case leading.AnswerFollower(follower, answer):
                if isinstance(answer, RefusedMessage):
                    self.refusals.append(answer)
                self.cluster.send(Message(self.name, follower, answer))

    def _perform_following(self, action: following.Action, batches: tuple[Batch, ...]) -> None:
        match action:
            case FetchMessage():
                assert self.follower is not None
                assert self.follower.leader is not None
                self.cluster.send(Message(self.name, self.follower.leader, action))
            case BatchesMessage() as answer:
                for batch in batches:
                    self.log.append(batch)
                assert self.log.log_end == answer.next, "the machine and the log agree"
                self.follow(following.LogWritten(self.log.log_end))
                if not self.holds_syncs:
                    self.sync()
            case following.Truncate(end):
                self.log.cut(end)
                self.log.sync()
                self.follow(following.LogCut(self.log.state()))
            case following.ResetLog(offset):
                self.log.reset(offset)
                self.follow(following.LogCut(self.log.state()))
            case role_events.AdvanceHighWatermark(high_watermark):
                self.high_watermark = high_watermark
                self.cluster.committed_by(self, high_watermark)
            case following.Distrust():
                self.distrusts.append(action)
            case following.ReportLost():
                self.high_watermark = action.start
                self.lost.append(action)


def _answer(
    leader_epoch: LeaderEpoch,
    last_epoch: LeaderEpoch,
    base: Offset,
    batches: list[Batch],
    high_watermark: Offset,
) -> BatchesMessage:
    epochs: list[tuple[LeaderEpoch, Offset]] = []
    for batch in batches:
        if not epochs or epochs[-1][0] != batch.epoch:
            epochs.append((batch.epoch, batch.base))
    end = batches[-1].next if batches else base
    return BatchesMessage(leader_epoch, last_epoch, base, end, high_watermark, epochs=tuple(epochs))

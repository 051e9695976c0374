"""Replicas of one stream, their logs, the catalogue and the messages between them, all moved by hand.

A test decides what is delivered, dropped, repeated or overtaken, which disk is slow, who crashes and what
time it is. Meanwhile the cluster holds all replicas to what replication promises: what was committed once is
so for ever, and a record at an offset under an epoch is one record.
"""

from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Final

from envelope.types import LogIndex, MonotonicNs, NodeEpoch, NodeId, Offset, StreamName, SyncMode
from jetstream.replica import leader_events as leading
from metadata.catalog.catalog import Catalog
from metadata.catalog.commands import ChangeIsr, ChangeLeader, Command, NodeAtEpoch
from metadata.catalog.events import CommandRefused, Events
from metadata.catalog.tables import Stream
from tests.support.catalogs import create
from tests.support.replica_log import Records, ReplicaLog, assert_matching
from tests.support.replica_member import SETTINGS, Member, Message

LAG_MAX: Final = SETTINGS.replica_lag_max_ns
HEARTBEAT: Final = SETTINGS.heartbeat_interval_ns
RETRY: Final = SETTINGS.retry_interval_ns
START: Final = MonotonicNs(1_000_000_000_000)
STREAM: Final = StreamName("orders")
DELIVERIES_MAX: Final = 10_000
A, B, C, D, E = (NodeId(name) for name in "abcde")


@dataclass
class ReplicaCluster:
    """See the module.

    Attributes:
        wire: messages under way, in the order they were sent; `deliver` takes any, `flow` all.
        sent: all messages ever, on the wire or not.
        committed: every record that was ever told to be committed.
        lossy: disks lose what they had synced, so promises may break; only what logs share is checked.
    """

    names: str = "abc"
    minimum: int | None = None
    read_replicas: tuple[NodeId, ...] = ()
    logs: dict[NodeId, ReplicaLog] = field(default_factory=dict)
    isr: tuple[NodeId, ...] | None = None
    """Of the beginning; all replicas if None."""
    lossy: bool = False
    sync: SyncMode = SyncMode.ALWAYS
    leader_epoch: int = 1
    """Of the first reign."""

    def __post_init__(self) -> None:
        self.now = START
        self.catalog = Catalog()
        self.wire: list[Message] = []
        self.sent: list[Message] = []
        self.committed: Records = {}
        self.has_stream = False
        names = [NodeId(name) for name in self.names]
        self.members = {
            name: Member(self, name, self.logs.get(name, ReplicaLog(sync=self.sync)))
            for name in (*names, *self.read_replicas)
        }
        for member in self.members.values():
            member.start()
        self.apply(create(STREAM, nodes=self.names, min_insync_replicas=self.minimum, sync=self.sync))
        self.has_stream = True
        while self.row.leader_epoch < self.leader_epoch:
            self.elect(names[0], tell=())
        if self.isr is not None:
            self._begin_with(self.isr)
        self.tell()

    def __getitem__(self, name: NodeId) -> Member:
        return self.members[name]

    # --- the catalogue ------------------------------------------------------------------------------------

    @property
    def row(self) -> Stream:
        stream = self.catalog.stream(STREAM)
        assert stream is not None
        return stream

    def apply(self, command: Command) -> Events:
        events = self.catalog.apply(LogIndex(self.catalog.applied + 1), command)
        self.catalog.audit()
        return events

    def tell(self, *names: NodeId) -> None:
        """Let these nodes, or all that are up, know the catalogue as it is now."""
        for name in names or self.members:
            if self.members[name].is_up:
                self.members[name].learn()

    def elect(self, name: NodeId, *, tell: Collection[NodeId] | None = None) -> None:
        """Elect a node and tell these, or all that are up."""
        events = self.apply(
            ChangeLeader(STREAM, self.row.incarnation, name, self._registered(name), self.row.leader_epoch)
        )
        assert not isinstance(events[0], CommandRefused), events[0]
        for told in self.members if tell is None else tell:
            if self.members[told].is_up:
                self.members[told].learn()

    def decide(self, name: NodeId, *, tell: bool = True) -> bool:
        """Apply the oldest ISR proposal of a node; tell it what became of it, unless that is lost."""
        member = self.members[name]
        proposal = member.proposals.popleft()
        events = self.apply(self.command(member, proposal))
        first = events[0]
        if isinstance(first, CommandRefused):
            if tell:
                member.refuse(proposal, first)
            return False
        if tell:
            self.tell(name)
        return True

    def command(self, member: Member, proposal: leading.ProposeIsr) -> ChangeIsr:
        return ChangeIsr(
            stream=STREAM,
            incarnation=self.row.incarnation,
            leader=member.name,
            leader_epoch=proposal.leader_epoch,
            expected_isr_version=proposal.expected_isr_version,
            isr=proposal.isr,
        )

    def _begin_with(self, isr: tuple[NodeId, ...]) -> None:
        members = tuple(NodeAtEpoch(name, self._registered(name)) for name in isr)
        row = self.row
        assert row.leader is not None
        self.apply(
            ChangeIsr(
                stream=STREAM,
                incarnation=row.incarnation,
                leader=row.leader,
                leader_epoch=row.leader_epoch,
                expected_isr_version=row.isr_version,
                isr=members,
            )
        )

    def _registered(self, name: NodeId) -> NodeEpoch:
        node = self.catalog.node(name)
        assert node is not None
        return node.node_epoch

    # --- the network and time -----------------------------------------------------------------------------

    def send(self, message: Message) -> None:
        self.wire.append(message)
        self.sent.append(message)

    def deliver(self, message: Message) -> None:
        """Deliver one message, whether it is still on the wire or a copy."""
        if message in self.wire:
            self.wire.remove(message)
        self.members[message.target].receive(message)
        self.audit()

    def between(self, source: NodeId, target: NodeId) -> list[Message]:
        """The messages on the wire from one node to another."""
        return [message for message in self.wire if (message.source, message.target) == (source, target)]

    def flow(self, *, cut_off: Collection[NodeId] = ()) -> None:
        """Deliver everything, and what follows from it, in order; who is cut off sends and gets nothing."""
        for _ in range(DELIVERIES_MAX):
            if not self.wire:
                return
            message = self.wire.pop(0)
            if not {message.source, message.target} & set(cut_off):
                self.members[message.target].receive(message)
                self.audit()
        raise AssertionError(f"no rest after {DELIVERIES_MAX} messages: {self.wire[:3]}")

    def pass_time(self, duration_ns: int, *, cut_off: Collection[NodeId] = ()) -> None:
        """Let time pass in steps of a heartbeat; machines tick if they want to, and messages flow."""
        end = self.now + duration_ns
        while self.now < end:
            self.now = MonotonicNs(min(end, self.now + HEARTBEAT))
            for member in self.members.values():
                member.tick()
            self.flow(cut_off=cut_off)

    # --- promises -----------------------------------------------------------------------------------------

    def committed_by(self, member: Member, high_watermark: Offset) -> None:
        """A member says that all below is committed: for ever the same records."""
        records = member.log.records()
        for offset in range(member.log.log_start, high_watermark):
            record = records.get(Offset(offset))
            assert record is not None, f"{member.name} lacks {offset} below {high_watermark}"
            known = self.committed.setdefault(Offset(offset), record)
            assert self.lossy or known == record, f"{offset} is {record} on {member.name}, was {known}"

    def audit(self) -> None:
        """Logs that share a record share all before it; members of the ISR have all that is committed."""
        logs = {name: member.log.records() for name, member in self.members.items()}
        names = sorted(logs)
        for row, one in enumerate(names):
            for other in names[row + 1 :]:
                assert_matching(one, logs[one], other, logs[other])
        if self.lossy:
            return
        for name in self.row.isr_nodes:
            member = self.members[name]
            for offset, record in self.committed.items():
                if offset >= member.log.log_start:
                    assert logs[name].get(offset) == record, f"{name} is in the ISR without {offset} {record}"
                    assert offset < member.log.synced_end, f"{name} has {offset} in memory only"


def committed_of(cluster: ReplicaCluster) -> list[str]:
    return [value for _, (_, value) in sorted(cluster.committed.items())]


def agree(cluster: ReplicaCluster, *values: str) -> None:
    """All that are up have exactly these values."""
    for member in cluster.members.values():
        if member.is_up:
            assert member.log.values() == list(values), f"{member.name}: {member.machine}"


def come_together(cluster: ReplicaCluster, *, cut_off: tuple[NodeId, ...] = ()) -> None:
    """Let enough time pass for lost fetches to be repeated, and everything flow."""
    cluster.pass_time(RETRY + 2 * HEARTBEAT, cut_off=cut_off)

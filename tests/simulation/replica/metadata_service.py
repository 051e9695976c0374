"""The metadata group as nodes see it: linearizable, slow, lossy, at times away.

The catalogue and the controller are the real ones.
"""

from typing import TYPE_CHECKING, Final

from envelope.types import LogIndex, MonotonicNs, NodeEpoch, NodeId, StreamName
from jetstream.replica.settings import NEVER
from metadata.catalog.catalog import Catalog
from metadata.catalog.commands import ChangeIsr, ChangeLeader, Command
from metadata.catalog.events import (
    CommandRefused,
    Events,
    IsrChanged,
    LeaderChanged,
    NodeRegistered,
    ReplicasReassigned,
    StreamCreated,
    StreamUpdated,
    UncleanlyElected,
)
from metadata.catalog.reassignment import is_ready
from metadata.catalog.tables import InSyncReplica, Stream
from metadata.controller.events import (
    ChangeVoters,
    Decision,
    Elect,
    Finish,
    GrantLease,
    Grow,
    Name,
    NodeHeard,
    NodeStopping,
    RefuseLease,
    RowsChanged,
    Tick,
)
from metadata.controller.events import Event as ControllerEvent
from metadata.controller.events import LeaderSilent as SilenceReported
from metadata.controller.machine import Controller
from metadata.controller.settings import ControllerSettings
from tests.simulation.replica.checkers.read_replicas import check_election
from tests.simulation.replica.messages import (
    METADATA,
    Answer,
    Heartbeat,
    LeaderSilent,
    LeaseGranted,
    LeaseRefused,
    Message,
    Notice,
    Request,
    RequestId,
    Row,
    Stopping,
)
from tests.simulation.replica.swarm import LEASE, Swarm
from tests.support.catalogs import create, register

if TYPE_CHECKING:
    from tests.simulation.replica.service_world import ServiceWorld

_TICK: Final = LEASE // 10
_CALM_DELAY: Final = LEASE // 50
_NO_TIME: Final = MonotonicNs(0)


class MetadataService:
    """Applies commands one after the other, remembers every change, elects leaders."""

    def __init__(self, world: "ServiceWorld") -> None:
        swarm = world.swarm
        self._world = world
        self.catalog = Catalog()
        self._changes: list[tuple[Row, ...]] = []
        self._decided: dict[RequestId, Events] = {}
        self.down = False
        for node in swarm.nodes:
            self._note(register(node))
        for shape in swarm.streams:
            self._note(
                create(
                    shape.name,
                    nodes=shape.replicas,
                    read_replicas=shape.read_replicas,
                    min_insync_replicas=shape.min_insync_replicas,
                    sync=shape.sync,
                    unclean_election=shape.unclean_election,
                )
            )
        world.checks.catalog = self.catalog
        world.checks.elections.begun(self.catalog)
        self._world.checks.elections.term_began(self._now())
        self._controller = new_controller(self.catalog, swarm, self._now())
        world.network.connect(METADATA, self._receive)
        world.timeline.after(_TICK, self._tick)

    @property
    def index(self) -> int:
        """How many commands were applied."""
        return len(self._changes)

    def rows_after(self, index: int, end: int) -> list[Row]:
        """Return the rows that changed between two indexes, in order."""
        return [row for rows in self._changes[index:end] for row in rows]

    def go_down(self) -> None:
        """Take and answer nothing until `come_back`."""
        self.down = True

    def come_back(self) -> None:
        """Begin a new term."""
        self.down = False
        self._world.checks.elections.term_began(self._now())
        self._controller = new_controller(self.catalog, self._world.swarm, self._now())

    def apply(self, command: Command) -> Events:
        """Apply a command at once."""
        events = self._note(command)
        self._world.checks.applied(command)
        self._world.checks.catalog_changed(self.catalog)
        if isinstance(events[0], NodeRegistered):
            self._world.checks.elections.registered(events[0].node.node_id, self._now())
        self._control(RowsChanged(events))
        return events

    def _note(self, command: Command) -> Events:
        events = self.catalog.apply(LogIndex(self.catalog.applied + 1), command)
        self.catalog.audit()
        self._changes.append(rows_of(events))
        if self._world.trace.on:
            outcome = (
                events[0].description
                if isinstance(events[0], CommandRefused)
                else " ".join(map(row_text, rows_of(events)))
            )
            self._world.note(METADATA, f"{self.index}: {type(command).__name__} {outcome}")
        if isinstance(command, ChangeIsr):
            self._world.trace.counts[
                "isr_refused" if isinstance(events[0], CommandRefused) else "isr_changed"
            ] += 1
        self._world.trace.counts["elected_uncleanly"] += any(
            isinstance(event, UncleanlyElected) for event in events
        )
        if self._changes[-1]:
            self._notify()
        return events

    def hand_over(self, stream: Stream, node: NodeId) -> None:
        """Change the leader of ``stream`` now, as if its node stopped."""
        row = self.catalog.node(node)
        assert row is not None, f"{node} is registered"
        command = ChangeLeader(stream.name, stream.incarnation, node, row.node_epoch, stream.leader_epoch)
        self.apply(command)

    def order_election(self, name: StreamName, node: NodeId) -> bool:
        """Ask for an unclean election, as an operator does; return whether the controller permits it."""
        command = self._controller.ordered_election(name, node, self._now())
        if isinstance(command, CommandRefused):
            return False
        self._world.checks.elections.decided(self.catalog, command, self._now(), ordered=True)
        self._world.timeline.after(self._delay(self._world.swarm.metadata_delay), self._perform, command)
        return True

    def _now(self) -> MonotonicNs:
        return MonotonicNs(self._world.timeline.now)

    def _delay(self, mean: int) -> int:
        return self._world.delay(min(mean, _CALM_DELAY) if self._world.healing else mean)

    def _is_lossy(self) -> bool:
        world = self._world
        return not world.healing and world.rng.random() < world.swarm.metadata_loss

    def _notify(self) -> None:
        world = self._world
        for node in world.swarm.nodes:
            delay = self._delay(world.swarm.notice_delay)
            world.timeline.after(delay, world.network.send, (METADATA, node), Notice(self.index))

    def _receive(self, message: Message) -> None:
        if self.down or self._is_lossy():
            return
        delay = 0 if isinstance(message, Heartbeat) else self._delay(self._world.swarm.metadata_delay)
        self._world.timeline.after(delay, self._take, message)

    def _take(self, message: Message) -> None:
        if self.down:
            return
        match message:
            case Request():
                self._decide(message)
            case Heartbeat(source, node_epoch, asked_at):
                if is_present(self.catalog, source, node_epoch):
                    self._world.checks.elections.heard(source, self._now())
                self._control(NodeHeard(source, node_epoch), asked_at)
            case LeaderSilent(source, stream, leader_epoch):
                self._world.checks.silent(source, stream, leader_epoch)
                self._control(SilenceReported(stream, leader_epoch, source))
            case Stopping(source, node_epoch):
                self._world.checks.leases.stopping(source)
                if is_present(self.catalog, source, node_epoch):
                    self._world.checks.elections.stopping(source)
                self._control(NodeStopping(source, node_epoch))
            case _:
                raise AssertionError(f"not for the service: {message}")

    def _decide(self, request: Request) -> None:
        events = self._decided.get(request.request_id)
        if events is None:
            events = self._decided[request.request_id] = self.apply(request.command)
        rows: tuple[Row, ...] = ()
        if isinstance(events[0], NodeRegistered):
            rows = (*self.catalog.nodes(), *self.catalog.streams())
        self._say(request.request_id[0], Answer(request.request_id, events[0], self.index, rows))

    def _say(self, node: NodeId, message: Message) -> None:
        if not self._is_lossy():
            self._world.network.send((METADATA, node), message)

    # --- the controller -------------------------------------------------------------------------------

    def _control(self, event: ControllerEvent, asked_at: MonotonicNs = _NO_TIME) -> None:
        for action in self._controller.handle(event, self._now()):
            match action:
                case GrantLease(node, node_epoch, duration_ns):
                    self._say(node, LeaseGranted(node_epoch, MonotonicNs(asked_at + duration_ns), self.index))
                case RefuseLease(node, node_epoch):
                    self._say(node, LeaseRefused(node_epoch))
                case Elect(command):
                    stream = self.catalog.stream(command.stream)
                    assert stream is not None, f"{command.stream} exists"
                    check_election(stream, command)
                    if not (self._world.swarm.moves and is_wanted(stream, command.leader)):
                        self._world.checks.leases.replaced(stream)
                    self._world.checks.elections.decided(self.catalog, command, self._now(), ordered=False)
                    if not self._is_lossy():
                        delay = self._delay(self._world.swarm.metadata_delay)
                        self._world.timeline.after(delay, self._perform, command)
                case Name() | ChangeVoters():
                    raise AssertionError(f"{action} of a group that has no members here")
                case Finish(decision) | Grow(decision):
                    if not self._is_lossy():
                        delay = self._delay(self._world.swarm.metadata_delay)
                        self._world.timeline.after(delay, self._perform, decision)

    def _perform(self, command: Decision) -> None:
        if not self.down:
            self.apply(command)

    def _tick(self) -> None:
        if not self.down:
            self._control(Tick())
        self._world.timeline.after(_TICK, self._tick)


def new_controller(catalog: Catalog, swarm: Swarm, now: MonotonicNs) -> Controller:
    """Return the controller of a term that begins now."""
    settings = ControllerSettings(
        lease_ns=LEASE,
        report_valid_ns=2 * swarm.leader_timeout,
        accused_ns=swarm.accused,
        retry_interval_ns=LEASE // 2,
        preferred_settle_ns=4 * LEASE if swarm.moves else NEVER,
        preferred_pause_ns=LEASE,
    )
    return Controller(catalog, now, settings)


def is_present(catalog: Catalog, node: NodeId, node_epoch: NodeEpoch) -> bool:
    """Tell whether this is the node's registered start."""
    row = catalog.node(node)
    return row is not None and row.node_epoch == node_epoch


def is_registered(catalog: Catalog, member: InSyncReplica) -> bool:
    """Tell whether the member's node runs on the member's directory."""
    row = catalog.node(member.node_id)
    return row is not None and row.directory == member.directory


def is_wanted(stream: Stream, leader: NodeId) -> bool:
    """Tell whether a leader that is well may be replaced by this one: all it needs is in sync."""
    if stream.target is not None:
        return leader in stream.target and is_ready(stream)
    return leader == stream.replicas[0] and len(stream.isr) == len(stream.replicas)


def row_text(row: Row) -> str:
    """Return a row in a few words, for the trace."""
    if isinstance(row, Stream):
        members = ",".join(row.isr_nodes)
        target = "" if row.target is None else f" of {','.join(row.replicas)} to {','.join(row.target)}"
        read = f" read by {','.join(row.read_replicas)}" if row.read_replicas else ""
        reign = f"leader {row.leader} e{row.leader_epoch}"
        return f"{row.name}: {reign} isr {members} v{row.isr_version}{target}{read}"
    return f"{row.node_id}: node_epoch {row.node_epoch} on {row.directory}"


def rows_of(events: Events) -> tuple[Row, ...]:
    """Return the rows that a command has changed."""
    rows: list[Row] = []
    for event in events:
        if isinstance(event, LeaderChanged | IsrChanged | StreamCreated | StreamUpdated | ReplicasReassigned):
            rows.append(event.stream)
        elif isinstance(event, NodeRegistered):
            rows.append(event.node)
    return tuple(rows)

"""A term of the controller, for tests of its elections."""

from typing import Final

from envelope.types import LeaderEpoch, MonotonicNs, NodeEpoch, NodeId, StreamName
from metadata.catalog.commands import ChangeIsr, ChangeLeader, Command, NodeAtEpoch
from metadata.catalog.events import CommandRefused, Events
from metadata.catalog.tables import Stream
from metadata.controller.events import (
    Action,
    Elect,
    Event,
    LeaderSilent,
    NodeHeard,
    RowsChanged,
    Tick,
)
from metadata.controller.machine import Controller
from metadata.controller.settings import ControllerSettings
from tests.support.catalogs import apply, catalog_of, create, register

SETTINGS: Final = ControllerSettings()


LEASE: Final = SETTINGS.lease_ns


START: Final = 1_000_000_000_000


ORDERS: Final = StreamName("orders")


A, B, C = (NodeId(name) for name in "abc")


class Term:
    """A metadata leader's term over a catalogue with one stream on these nodes, the first one leading."""

    def __init__(
        self,
        nodes: str = "abc",
        settings: ControllerSettings = SETTINGS,
        *,
        heard: str | None = None,
        read_replicas: str = "",
        unclean_election: bool = False,
    ) -> None:
        self.now = MonotonicNs(START)
        self.catalog = catalog_of(
            *(register(node) for node in nodes + read_replicas),
            create(
                ORDERS,
                nodes=nodes,
                read_replicas=read_replicas,
                min_insync_replicas=1,
                unclean_election=unclean_election,
            ),
        )
        self.controller = Controller(self.catalog, self.now, settings)
        for node in nodes + read_replicas if heard is None else heard:
            self.hear(NodeId(node))

    @property
    def row(self) -> Stream:
        row = self.catalog.stream(ORDERS)
        assert row is not None
        return row

    def give(self, event: Event) -> tuple[Action, ...]:
        return self.controller.handle(event, self.now)

    def hear(self, *nodes: NodeId) -> tuple[Action, ...]:
        return tuple(action for node in nodes for action in self.give(NodeHeard(node, self.node_epoch(node))))

    def silent(self, reporter: NodeId, epoch: int | None = None) -> tuple[Action, ...]:
        reign = self.row.leader_epoch if epoch is None else LeaderEpoch(epoch)
        return self.give(LeaderSilent(ORDERS, reign, reporter))

    def apply(self, command: Command) -> tuple[Action, ...]:
        """Apply a command and tell the controller what it did."""
        events: Events = apply(self.catalog, command)
        assert not isinstance(events[0], CommandRefused), events
        self.catalog.audit()
        return self.give(RowsChanged(events))

    def shrink(self, *members: NodeId) -> None:
        row = self.row
        assert row.leader is not None
        isr = tuple(NodeAtEpoch(node, self.node_epoch(node)) for node in members)
        self.apply(
            ChangeIsr(
                stream=ORDERS,
                incarnation=row.incarnation,
                leader=row.leader,
                leader_epoch=row.leader_epoch,
                expected_isr_version=row.isr_version,
                isr=isr,
            )
        )

    def after(self, duration_ns: int, *heard: NodeId) -> tuple[Action, ...]:
        """Let time pass in steps within which these nodes renew their leases; return what was elected."""
        actions: tuple[Action, ...] = ()
        end = self.now + duration_ns
        while self.now < end:
            self.now = MonotonicNs(min(end, self.now + LEASE // 3))
            actions += self.hear(*heard) + self.give(Tick())
        return actions

    def node_epoch(self, node: NodeId) -> NodeEpoch:
        row = self.catalog.node(node)
        assert row is not None
        return row.node_epoch

    def election(self, leader: NodeId, *, unclean: bool = False) -> Elect:
        return Elect(
            ChangeLeader(
                ORDERS,
                self.row.incarnation,
                leader,
                self.node_epoch(leader),
                self.row.leader_epoch,
                unclean=unclean,
            )
        )


def elections(actions: tuple[Action, ...]) -> list[NodeId]:
    return [action.command.leader for action in actions if isinstance(action, Elect)]

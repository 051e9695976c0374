"""When a reassignment ends, and when a stream goes back to its preferred leader."""

from dataclasses import replace
from typing import Final

from envelope.types import MonotonicNs, NodeEpoch, NodeId, StreamName
from metadata.catalog.commands import (
    CancelReassignment,
    ChangeIsr,
    ChangeLeader,
    Command,
    FinishReassignment,
    NodeAtEpoch,
    ReassignReplicas,
)
from metadata.catalog.events import CommandRefused
from metadata.catalog.tables import Stream
from metadata.controller.events import Action, Elect, Finish, NodeHeard, NodeStopping, RowsChanged, Tick
from metadata.controller.machine import Controller
from metadata.controller.settings import ControllerSettings
from tests.support.catalogs import apply, catalog_of, create, register, update

# The lease outlasts every test that does not renew it.
SETTINGS: Final = replace(ControllerSettings(), lease_ns=3600 * 1_000_000_000)
SETTLE: Final = SETTINGS.preferred_settle_ns
PAUSE: Final = SETTINGS.preferred_pause_ns
RETRY: Final = SETTINGS.retry_interval_ns
A, B, C, D = (NodeId(name) for name in "abcd")
ORDERS: Final = StreamName("orders")


class Term:
    """A metadata leader's term over streams on a and b, and on all other nodes nothing."""

    def __init__(self, *streams: str) -> None:
        self.now = MonotonicNs(1_000_000_000_000)
        self.catalog = catalog_of(
            *(register(node) for node in "abcd"),
            *(create(name, nodes="ab", min_insync_replicas=1) for name in streams or ("orders",)),
        )
        self.begin()

    def begin(self) -> None:
        """Begin a new term."""
        self.controller = Controller(self.catalog, self.now, SETTINGS)
        for node in "abcd":
            self.hear(NodeId(node))

    def row(self, name: StreamName = ORDERS) -> Stream:
        row = self.catalog.stream(name)
        assert row is not None
        return row

    def hear(self, node: NodeId) -> None:
        row = self.catalog.node(node)
        assert row is not None
        self.controller.handle(NodeHeard(node, row.node_epoch), self.now)

    def apply(self, command: Command) -> tuple[Action, ...]:
        """Apply a command and tell the controller what it did."""
        events = apply(self.catalog, command)
        assert not isinstance(events[0], CommandRefused), events
        self.catalog.audit()
        return self.controller.handle(RowsChanged(events), self.now)

    def after(self, duration_ns: int) -> tuple[Action, ...]:
        self.now = MonotonicNs(self.now + duration_ns)
        return self.controller.handle(Tick(), self.now)

    def reassign(self, *target: NodeId) -> tuple[Action, ...]:
        return self.apply(ReassignReplicas(ORDERS, self.row().incarnation, target))

    def join(self, *members: NodeId, name: StreamName = ORDERS) -> tuple[Action, ...]:
        row = self.row(name)
        assert row.leader is not None
        isr = tuple(NodeAtEpoch(node, self.epoch(node)) for node in members)
        return self.apply(
            ChangeIsr(
                stream=name,
                incarnation=row.incarnation,
                leader=row.leader,
                leader_epoch=row.leader_epoch,
                expected_isr_version=row.isr_version,
                isr=isr,
            )
        )

    def epoch(self, node: NodeId) -> NodeEpoch:
        row = self.catalog.node(node)
        assert row is not None
        return row.node_epoch

    def election(self, leader: NodeId, name: StreamName = ORDERS) -> ChangeLeader:
        row = self.row(name)
        return ChangeLeader(name, row.incarnation, leader, self.epoch(leader), row.leader_epoch)

    def finish(self) -> Finish:
        row = self.row()
        return Finish(FinishReassignment(ORDERS, row.incarnation, row.isr_version, row.leader_epoch))


# --- reassignments ----------------------------------------------------------------------------------------


def test_nothing_is_proposed_before_all_of_the_target_is_in_sync() -> None:
    term = Term()
    assert term.reassign(C, D) == ()
    assert term.join(A, B, C) == ()
    assert term.after(RETRY) == ()


def test_the_first_of_the_target_is_elected_and_then_the_others_are_let_go() -> None:
    term = Term()
    term.reassign(D, C)
    assert term.join(A, B, C, D) == (Elect(term.election(D)),)
    assert term.after(1) == ()
    assert term.after(RETRY) == (Elect(term.election(D)),), "the first may be lost"
    assert term.apply(term.election(D)) == (term.finish(),)
    assert term.after(RETRY) == (term.finish(),)
    assert term.apply(term.finish().command) == ()
    assert term.row().replicas == (D, C)
    assert term.after(RETRY) == ()


def test_a_leader_that_stays_is_not_replaced() -> None:
    term = Term()
    term.reassign(C, A)
    assert term.join(A, B, C) == (term.finish(),)


def test_one_of_the_target_that_is_stopping_is_not_elected() -> None:
    term = Term()
    term.reassign(C, D)
    term.controller.handle(NodeStopping(C, term.epoch(C)), term.now)
    assert term.join(A, B, C, D) == (Elect(term.election(D)),)


def test_the_next_metadata_leader_goes_on() -> None:
    term = Term()
    term.reassign(C, A)
    term.join(A, B, C)
    term.begin()
    assert term.after(RETRY) == (term.finish(),)


def test_a_cancelled_reassignment_is_not_finished() -> None:
    term = Term()
    term.reassign(C, A)
    term.join(A, B, C)
    assert term.apply(CancelReassignment(ORDERS, term.row().incarnation)) == ()
    assert term.after(RETRY) == ()


def test_an_update_to_fewer_replicas_is_finished_at_once_and_the_next_one_when_all_are_in_sync() -> None:
    term = Term()
    assert term.apply(replace(update(replicas=1), replicas=(A,))) == (term.finish(),)
    term.apply(term.finish().command)
    assert term.row().replicas == (A,)
    assert term.apply(replace(update(replicas=3), replicas=(A, C, D))) == ()
    assert term.join(A, C) == ()
    assert term.join(A, C, D) == (term.finish(),)


# --- preferred leaders ------------------------------------------------------------------------------------


def test_a_stream_goes_back_to_its_preferred_leader_when_nothing_has_changed_for_a_while() -> None:
    term = Term()
    term.apply(term.election(B))
    assert term.after(SETTLE - 1) == ()
    assert term.after(1) == (Elect(term.election(A)),)
    assert term.apply(term.election(A)) == ()
    assert term.after(SETTLE) == ()


def test_every_change_of_the_row_begins_the_wait_anew() -> None:
    term = Term()
    term.apply(term.election(B))
    term.after(SETTLE - 1)
    term.join(A, B)
    assert term.after(SETTLE - 1) == ()
    assert term.after(1) == (Elect(term.election(A)),)


def test_it_stays_where_it_is_while_a_replica_is_missing_or_it_is_moved() -> None:
    term = Term()
    term.apply(term.election(B))
    term.join(B)
    assert term.after(SETTLE) == ()
    term.join(A, B)
    term.reassign(A, C)
    assert term.after(SETTLE) == ()


def test_a_preferred_leader_that_is_stopping_is_not_elected() -> None:
    term = Term()
    term.apply(term.election(B))
    term.controller.handle(NodeStopping(A, term.epoch(A)), term.now)
    assert term.after(SETTLE) == ()


def test_streams_go_back_one_after_the_other() -> None:
    term = Term("p", "q", "r")
    for name in "pqr":
        term.apply(term.election(B, StreamName(name)))
    found = [term.after(SETTLE), term.after(PAUSE - 1), term.after(1), term.after(PAUSE), term.after(PAUSE)]
    elected = [
        [action.command.stream for action in actions if isinstance(action, Elect)] for actions in found
    ]
    assert elected == [["p"], [], ["q"], ["r"], []]


def test_the_next_metadata_leader_waits_too() -> None:
    term = Term()
    term.apply(term.election(B))
    term.after(SETTLE - 1)
    term.begin()
    assert term.after(SETTLE - 1) == ()
    assert term.after(1) == (Elect(term.election(A)),)

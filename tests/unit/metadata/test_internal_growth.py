"""When internal streams get more replicas, and that they never get fewer."""

from dataclasses import replace
from typing import Final

from hypothesis import given, settings
from hypothesis import strategies as st

from envelope.internal_streams import AUDIT, CURSORS, INTERNAL_STREAMS
from envelope.types import MonotonicNs, NodeId, StreamName
from metadata.catalog.commands import (
    CancelReassignment,
    ChangeIsr,
    Command,
    ConfirmRemoval,
    CreateStream,
    FinishReassignment,
    NodeAtEpoch,
    NodeLevel,
    ReassignReplicas,
    SetFeatureLevel,
)
from metadata.catalog.tables import Stream
from metadata.controller.events import Action, Finish, Grow, NodeHeard, NodeStopping, RowsChanged, Tick
from metadata.controller.machine import Controller
from metadata.controller.settings import ControllerSettings
from metadata.features import LATEST_LEVEL
from tests.support.catalogs import apply, catalog_of, create, refusal, register
from tests.support.example_counts import examples

# The lease outlasts every test that does not renew it.
SETTINGS: Final = replace(ControllerSettings(), lease_ns=3600 * 1_000_000_000)
RETRY: Final = SETTINGS.retry_interval_ns
SHARD: Final = StreamName("__cursors/3")


class Term:
    """A metadata leader's term; nodes join it, and are heard."""

    def __init__(self, nodes: str, *streams: CreateStream, feature_level: int | None = LATEST_LEVEL) -> None:
        self.now = MonotonicNs(1_000_000_000_000)
        registered = (register(node, feature_level=feature_level) for node in nodes)
        self.catalog = catalog_of(*registered, *streams)
        self.alive = set(nodes)
        self.begin()

    def begin(self) -> None:
        """Begin a new term, in which the living are heard."""
        self.controller = Controller(self.catalog, self.now, SETTINGS)
        for node in sorted(self.alive):
            self.hear(node)

    def hear(self, node: str) -> None:
        row = self.catalog.node(NodeId(node))
        assert row is not None
        self.controller.handle(NodeHeard(row.node_id, row.node_epoch), self.now)

    def register(self, *nodes: str) -> None:
        for node in nodes:
            self.apply(register(node))
            self.alive.add(node)
            self.hear(node)

    def stop(self, node: str) -> None:
        """A node says that it is about to stop: it can take nothing."""
        row = self.catalog.node(NodeId(node))
        assert row is not None
        self.controller.handle(NodeStopping(row.node_id, row.node_epoch), self.now)

    def apply(self, command: Command) -> None:
        """Apply a command, refused or not, and tell the controller what it did."""
        events = apply(self.catalog, command)
        self.catalog.audit()
        self.controller.handle(RowsChanged(events), self.now)

    def tick(self, after: int = RETRY) -> tuple[Action, ...]:
        self.now = MonotonicNs(self.now + after)
        return self.controller.handle(Tick(), self.now)

    def row(self, name: StreamName) -> Stream:
        row = self.catalog.stream(name)
        assert row is not None
        return row

    def grow(self) -> ReassignReplicas | None:
        """Return what is proposed about growth, and apply it."""
        commands = [action.command for action in self.tick() if isinstance(action, Grow)]
        assert len(commands) <= 1, "one stream at a time"
        for command in commands:
            self.apply(command)
            assert self.row(command.stream).target == command.target
            return command
        return None

    def settle(self, name: StreamName) -> None:
        """All replicas of a stream join the ISR, and its move ends."""
        row = self.row(name)
        assert row.leader is not None
        nodes = [self.catalog.node(node) for node in row.replicas]
        self.apply(
            ChangeIsr(
                stream=name,
                incarnation=row.incarnation,
                leader=row.leader,
                leader_epoch=row.leader_epoch,
                expected_isr_version=row.isr_version,
                isr=tuple(NodeAtEpoch(node.node_id, node.node_epoch) for node in nodes if node is not None),
            )
        )
        row = self.row(name)
        self.apply(FinishReassignment(name, row.incarnation, row.isr_version, row.leader_epoch))
        assert self.row(name).target is None

    def sizes(self) -> dict[str, int]:
        return {row.name: len(row.replicas) for row in self.catalog.streams()}


def test_internal_streams_grow_one_after_the_other_and_users_streams_do_not() -> None:
    term = Term("a", *(create(name, nodes="a") for name in (CURSORS, SHARD, AUDIT, "orders")))
    assert term.grow() is None, "there is one node"
    term.register("b", "c", "d")
    for name in (CURSORS, SHARD, AUDIT):
        command = term.grow()
        assert command is not None
        assert (command.stream, command.target[0], len(command.target)) == (name, "a", 3)
        assert term.grow() is None, "one at a time"
        term.settle(name)
    assert term.grow() is None
    assert term.sizes() == {CURSORS: 3, SHARD: 3, AUDIT: 3, "orders": 1}


def test_internal_streams_grow_when_all_nodes_can_read_the_command() -> None:
    term = Term("a", create(CURSORS, nodes="a"), feature_level=None)
    for node in "bc":
        term.apply(register(node, feature_level=None))
        term.alive.add(node)
        term.hear(node)
    assert term.grow() is None
    said = tuple(NodeLevel(node.node_id, node.node_epoch, LATEST_LEVEL) for node in term.catalog.nodes())
    term.apply(SetFeatureLevel(LATEST_LEVEL, said))
    assert term.grow() is not None


def test_there_are_as_many_replicas_as_nodes_until_there_are_three() -> None:
    term = Term("a", create(CURSORS, nodes="a"))
    for number, node in enumerate("bc", 2):
        term.register(node)
        command = term.grow()
        assert command is not None
        assert len(command.target) == number
        term.settle(CURSORS)
    term.register("d")
    assert term.grow() is None


def test_a_stream_that_has_enough_is_never_made_smaller() -> None:
    term = Term("abcde", create(CURSORS, nodes="abcde"), create(AUDIT, nodes="abc"))
    term.register("a")
    assert term.grow() is None
    assert term.sizes() == {CURSORS: 5, AUDIT: 3}


def test_only_living_nodes_without_a_copy_take_one() -> None:
    term = Term("abcd", create(CURSORS, nodes="a", read_replicas="b"))
    term.stop("c")
    command = term.grow()
    assert command is not None
    assert command.target == ("a", "d"), "b reads and c stops: as many as can be now"
    term.settle(CURSORS)
    assert term.grow() is None
    term.register("c")
    command = term.grow()
    assert command is not None
    assert command.target == ("a", "d", "c")


def test_a_node_that_comes_back_without_registering_takes_a_copy_too() -> None:
    term = Term("abc", create(CURSORS, nodes="ab"))
    term.alive.discard("c")
    term.begin()
    assert term.grow() is None, "c is not heard"
    term.hear("c")
    command = term.grow()
    assert command is not None
    assert command.target == ("a", "b", "c")


def test_a_move_is_proposed_again_after_the_retry_interval() -> None:
    term = Term("ab", create(CURSORS, nodes="a"))
    [first] = term.tick()
    assert isinstance(first, Grow)
    assert term.tick(RETRY - 1) == ()
    assert term.tick(1) == (first,), "it was lost"


def test_what_was_decided_before_an_operator_moved_the_stream_is_refused() -> None:
    term = Term("abcd", create(CURSORS, nodes="a"))
    [decided] = term.tick()
    assert isinstance(decided, Grow)
    moved = ReassignReplicas(CURSORS, term.row(CURSORS).incarnation, (NodeId("d"),))
    term.apply(moved)
    assert refusal(apply(term.catalog, decided.command)) is not None
    assert term.row(CURSORS).target == ("d",)


def test_an_operator_who_takes_a_replica_away_is_not_contradicted_until_a_node_registers() -> None:
    term = Term("abc", create(CURSORS, nodes="abc"))
    assert term.grow() is None
    row = term.row(CURSORS)
    term.apply(ReassignReplicas(CURSORS, row.incarnation, (NodeId("a"), NodeId("b"))))
    term.settle(CURSORS)
    assert term.grow() is None
    assert term.sizes() == {CURSORS: 2}
    term.register("d")
    command = term.grow()
    assert command is not None
    assert command.target == ("a", "b", "d"), "c has yet to remove its files"


def test_growth_that_is_cancelled_is_not_begun_again_until_a_node_registers() -> None:
    term = Term("abc", create(CURSORS, nodes="a"))
    assert term.grow() is not None
    assert term.grow() is None
    life = term.row(CURSORS).incarnation
    term.apply(CancelReassignment(CURSORS, life))
    assert term.grow() is None
    for node in "bc":
        term.apply(ConfirmRemoval(NodeId(node), life))
    assert term.grow() is None
    term.register("b")
    assert term.grow() is not None


def test_the_next_metadata_leader_goes_on() -> None:
    term = Term("abc", create(CURSORS, nodes="a"), create(AUDIT, nodes="a"))
    assert term.grow() is not None
    term.begin()
    assert term.grow() is None, "the first is under way"
    term.settle(CURSORS)
    command = term.grow()
    assert command is not None
    assert command.stream == AUDIT


def test_a_move_that_cannot_end_holds_up_no_other_stream() -> None:
    term = Term("abcd", create(CURSORS, nodes="a"), create(AUDIT, nodes="a"))
    begun = term.grow()
    assert begun is not None
    term.alive.discard(begun.target[-1])
    term.begin()
    assert term.grow() is None, "it may have a lease"
    term.now = MonotonicNs(term.now + SETTINGS.lease_ns)
    for node in sorted(term.alive):
        term.hear(node)
    command = term.grow()
    assert command is not None
    assert command.stream == AUDIT
    assert begun.target[-1] not in command.target


def test_a_stream_that_nobody_leads_waits() -> None:
    term = Term("a", create(CURSORS, nodes="a"))
    term.apply(register("a", "another disk"))
    term.register("b")
    assert term.row(CURSORS).leader is None
    assert term.grow() is None


def test_a_stream_made_for_fewer_nodes_than_there_are_by_then_grows() -> None:
    term = Term("abc")
    assert term.grow() is None
    term.apply(create(CURSORS, nodes="ab"))
    command = term.grow()
    assert command is not None
    assert len(command.target) == 3


@settings(max_examples=examples(100))
@given(
    st.lists(st.sampled_from(INTERNAL_STREAMS), min_size=1, max_size=4, unique=True),
    st.integers(1, 5),
    st.permutations("abcde"),
)
def test_whenever_nodes_join_all_end_with_what_there_is_room_for(
    names: list[StreamName], held: int, order: list[str]
) -> None:
    term = Term("".join(order[:held]), *(create(name, nodes=order[:held]) for name in names))
    for node in order[held:]:
        term.register(node)
        before = term.sizes()
        command = term.grow()
        if command is not None:
            assert set(term.row(command.stream).settled_replicas) < set(command.target)
            term.settle(command.stream)
        assert all(term.sizes()[name] >= size for name, size in before.items())
    while (command := term.grow()) is not None:
        term.settle(command.stream)
    assert term.sizes() == dict.fromkeys(names, max(held, 3))
    assert not any(isinstance(action, Finish) for action in term.tick())

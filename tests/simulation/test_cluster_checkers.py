"""No checker of clusters is mute: each law, broken by hand, is a violation."""

from collections.abc import Callable
from random import Random

import pytest

from envelope.types import (
    Incarnation,
    LeaderEpoch,
    LogIndex,
    NodeEpoch,
    NodeId,
    StreamName,
    Term,
    TimestampUs,
)
from metadata.catalog.commands import ChangeLeader, Command, encode_command
from metadata.catalog.events import LeaderChanged
from metadata.catalog.tables import InSyncReplica, Stream
from metadata.raft.configuration import Configuration, QuorumState
from metadata.raft.events import ChangeMembers
from metadata.raft.messages.node_messages import NodeUnheardReport
from metadata.raft.proposals import PROPOSAL_ID_BYTES, ProposalId, encode_proposal
from metadata.raft.state import Entry, Snapshot
from metadata.stream_config import StreamConfig
from tests.simulation.cluster.catalog_machine import CatalogMachine
from tests.simulation.cluster.checkers.controller_drivers import Reigns
from tests.simulation.cluster.checkers.voters import Voters
from tests.simulation.cluster.node import ClusterNode
from tests.simulation.cluster.swarm import draw
from tests.simulation.cluster.world import World
from tests.simulation.replica.checkers.history import History
from tests.simulation.replica.swarm import LEASE
from tests.simulation.trace import Trace
from tests.simulation.violation import Violation
from tests.support.catalogs import create, register

A, B = NodeId("a"), NodeId("b")


def _row(leader: NodeId, epoch: int) -> Stream:
    config = StreamConfig.model_validate({"name": "orders", "subject": "orders.>", "replicas": 2})
    members = tuple(InSyncReplica(node, f"disk-of-{node}") for node in (A, B))
    life = Incarnation("life-1")
    return Stream(
        config=config,
        incarnation=life,
        created=TimestampUs(0),
        replicas=(A, B),
        leader=leader,
        leader_epoch=LeaderEpoch(epoch),
        isr=members,
        isr_version=1,
    )


def _reigns(*led: tuple[NodeId, int]) -> None:
    reigns = Reigns()
    for leader, epoch in led:
        reigns.applied((LeaderChanged(_row(leader, epoch)),))


def _history(*reads: tuple[int, str], sent: str = "x y z") -> History:
    """One client sent these values, another read these records one after the other."""
    history = History()
    for value in sent.split():
        history.send("p", value)
    for record in reads:
        history.poll("r", [record])
    return history


def _two_values_at_an_offset() -> None:
    history = _history((0, "x"))
    history.poll("s", [(0, "y")])
    history.check(drained=False)


def _acked_where_another_is_read() -> None:
    history = _history((0, "x"))
    history.acked("y", 0)
    history.check(drained=False)


def _value_at_two_offsets() -> None:
    _history((0, "x"), (1, "x")).check(drained=False)


def _acked_twice_at_two_offsets() -> None:
    history = _history()
    history.acked("x", 0)
    history.acked("x", 1)
    history.check(drained=False)


def _acked_and_missing_below_what_was_read() -> None:
    history = _history((1, "y"))
    history.acked("x", 0)
    history.check(drained=False)


def _acked_at_the_tail_and_never_read() -> None:
    history = _history((0, "x"))
    history.acked("y", 1)
    history.check(drained=True)


def _refused_and_read() -> None:
    history = _history((0, "x"))
    history.failed("x")
    history.check(drained=False)


def _read_and_never_sent() -> None:
    _history((0, "w")).check(drained=False)


def _read_backwards() -> None:
    _history((1, "y"), (0, "x")).check(drained=False)


def _skipped() -> None:
    _history((0, "x"), (2, "z")).check(drained=False)


def _sent_after_an_ack_and_stored_before() -> None:
    history = _history(sent="x")
    history.acked("x", 1)
    history.send("p", "y")
    history.acked("y", 0)
    history.check(drained=False)


def _world(leader_asked_ago: int) -> tuple[World, ChangeLeader]:
    """A world in which a node leads a stream with a lease of that age; and an election against it."""
    seed = next(seed for seed in range(1_000) if len(draw(Random(seed)).replica.nodes) == 3)
    rng = Random(seed)
    world = World(rng, draw(rng), Trace())
    for name in world.swarm.nodes:
        world.nodes[name] = ClusterNode(world, name, lambda name: None)
    world.replicas.checks.leases.left = lambda name: LEASE - leader_asked_ago
    leader, other, _ = world.swarm.nodes
    world.nodes[other].start()
    member = world.nodes[other].member
    assert member is not None
    machine = world.machines[other]
    created = create("orders", nodes=(leader, other), min_insync_replicas=1)
    commands: list[Command] = [register(leader), register(other), created]
    for index, command in enumerate(commands, 1):
        machine.apply(_entry(index, command))
    world.stewards.begun(other)
    election = ChangeLeader(StreamName("orders"), created.incarnation, other, NodeEpoch(1), LeaderEpoch(1))
    return world, election


def _entry(index: int, command: Command) -> Entry:
    return Entry(LogIndex(index), Term(1), encode_proposal(_name(index), encode_command(command)))


def _name(index: int) -> ProposalId:
    return ProposalId(index.to_bytes(PROPOSAL_ID_BYTES, "big"))


def _elect(world: World, election: ChangeLeader) -> None:
    """Have the second node decide on an election, and the catalogue apply it."""
    steward = world.swarm.nodes[1]
    world.stewards.proposes(_name(4), world.stewards.judge(steward, election))
    world.machines[steward].apply(_entry(4, election))


def _replaced_with_a_valid_lease() -> None:
    _elect(*_world(leader_asked_ago=LEASE // 2))


def _choose(voters: str, chosen: str, learners: str = "", wanted: int | None = None, heard: str = "") -> None:
    """The controller at a, which has heard some of these members, lets these be voters."""
    world, _ = _world(leader_asked_ago=0)
    leader = world.swarm.nodes[0]
    for name in heard:
        world.raft.checks.heard[leader, NodeId(name)] = world.timeline.now
    names = Configuration(tuple(map(NodeId, voters)), learners=tuple(map(NodeId, learners)))
    quorum = QuorumState(A, names, is_changing=False, is_first=False, heard_at={})
    Voters(world).chosen(leader, quorum, ChangeMembers(tuple(map(NodeId, chosen))), wanted)


_BROKEN: list[tuple[Callable[[], None], str]] = [
    (lambda: _reigns((A, 2), (B, 2)), "epoch 2 of orders is given to a and to b"),
    (lambda: _reigns((A, 3), (B, 2)), "orders goes back from epoch 3 to 2"),
    (_two_values_at_an_offset, "^inconsistent-offsets"),
    (_acked_where_another_is_read, "^inconsistent-offsets"),
    (_value_at_two_offsets, "^duplicate"),
    (_acked_twice_at_two_offsets, "^duplicate"),
    (_acked_and_missing_below_what_was_read, "^lost-write"),
    (_acked_at_the_tail_and_never_read, "^unseen"),
    (_refused_and_read, "^G1a"),
    (_read_and_never_sent, "^unexpected"),
    (_read_backwards, "^nonmonotonic-poll"),
    (_skipped, "^poll-skip"),
    (_sent_after_an_ack_and_stored_before, "^nonmonotonic-send"),
    (_replaced_with_a_valid_lease, "is replaced as dead"),
    (lambda: _choose("abc", "abd"), "a voter that was no learner"),
    (lambda: _choose("abc", "bcd", learners="d"), "without the leader"),
    (lambda: _choose("abc", "ab", wanted=1), "an even number"),
    (lambda: _choose("abc", "a"), "fewer voters, though None are wanted"),
    (lambda: _choose("abcde", "a", wanted=3), "fewer voters, though 3 are wanted"),
    (lambda: _choose("abc", "abd", learners="d", heard="c"), "c is given up as dead, and was heard"),
]


@pytest.mark.parametrize(("breaks", "message"), _BROKEN)
def test_a_broken_law_of_clusters_is_a_violation(breaks: Callable[[], None], message: str) -> None:
    with pytest.raises(Violation, match=message):
        breaks()


def test_what_clients_may_see_is_no_violation() -> None:
    history = _history((0, "x"), (1, "y"), sent="x y z lost")
    history.acked("x", 0)
    history.poll("s", [(1, "y"), (2, "z")])
    history.failed("lost")
    history.check(drained=True)
    _reigns((A, 1), (A, 1), (B, 2))


def test_voters_that_a_controller_may_choose_are_no_violation() -> None:
    _choose("abc", "abc")
    _choose("abc", "abd", learners="d", heard="b")
    _choose("abc", "abcde", learners="de", wanted=5, heard="bc")
    _choose("abcde", "abc", wanted=3, heard="bcde")
    _choose("abcd", "abc", heard="bcd")


def test_a_leader_without_a_lease_or_that_others_do_not_hear_may_be_replaced() -> None:
    _elect(*_world(leader_asked_ago=LEASE))
    world, election = _world(leader_asked_ago=0)
    leader, other, third = world.swarm.nodes
    world.stewards.told(NodeUnheardReport(third, other, leader))
    _elect(world, election)


def test_a_controller_whose_clock_has_jumped_and_a_wish_that_is_not_applied_are_not_judged() -> None:
    world, election = _world(leader_asked_ago=0)
    world.stewards.proposes(_name(5), world.stewards.judge(world.swarm.nodes[1], election))
    world.machines[world.swarm.nodes[1]].apply(_entry(4, election))
    world, election = _world(leader_asked_ago=0)
    world.nodes[world.swarm.nodes[1]].jump(1)
    _elect(world, election)


def test_the_catalogue_as_a_state_machine_is_equal_after_a_snapshot_and_knows_a_retry() -> None:
    machine, other = CatalogMachine(), CatalogMachine()
    assert machine.apply(_entry(1, register())) == _name(1)
    assert machine.apply(Entry(LogIndex(2), Term(1), b"")) is None
    assert machine.apply(Entry(LogIndex(3), Term(1), _entry(1, register()).payload)) is None
    assert machine.state != other.state
    other.restore(Snapshot(machine.index, Term(1), machine.encode()))
    assert (other.state, other.index) == (machine.state, 3)
    assert other.apply(Entry(LogIndex(4), Term(1), _entry(1, register()).payload)) is None

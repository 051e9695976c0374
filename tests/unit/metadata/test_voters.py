"""Which changes of the metadata group's members are due, by example and as properties."""

from dataclasses import replace
from typing import Final

from hypothesis import given, settings
from hypothesis import strategies as st

from envelope.types import MonotonicNs, NodeId
from metadata.catalog.catalog import Catalog
from metadata.catalog.commands import ForgetNode, SetVoters
from metadata.controller.alive_nodes import AliveNodes
from metadata.controller.settings import ControllerSettings
from metadata.controller.voters import VoterChanges
from metadata.members import disk_of, node_of
from metadata.raft.configuration import Configuration, QuorumState
from metadata.raft.events import ChangeMembers
from tests.support.catalogs import apply, refusal, register
from tests.support.example_counts import examples

SETTINGS: Final = ControllerSettings()
RETRY: Final = SETTINGS.retry_interval_ns
SILENT: Final = SETTINGS.voter_replace_after_ns
BEGIN: Final = MonotonicNs(1_000_000_000_000)


def members(names: str) -> tuple[NodeId, ...]:
    """Return members in their order: ``a`` is a founder, ``a'`` the node a on the disk that it registers."""
    return tuple(sorted(NodeId(_member(name)) for name in names.split()))


def _member(name: str) -> str:
    node, is_named, disk = name.partition("'")
    return f"{node}@{disk or f'disk-of-{node}'}" if is_named else node


class Group:
    """A metadata group, its leader (the first voter) and its nodes, of which some are silent."""

    def __init__(
        self, voters: str, nodes: str, racks: dict[str, str] | None = None, leader: str | None = None
    ) -> None:
        """Begin a term with these members and these registered nodes, which are alive."""
        self.now = BEGIN
        self.racks = racks or {}
        self.catalog = Catalog()
        self.configuration = Configuration(members(voters))
        self.leader = members(leader or voters)[0]
        self.is_changing = self.is_first = False
        self.dead: set[NodeId] = set()
        self.alive: set[NodeId] = set()
        for node in nodes.split():
            self.register(node)
        self.begin()

    def register(self, node: str, disk: str | None = None, *, peer_host: str | None = "h") -> None:
        """A node starts, and is alive; without ``peer_host`` it is alone."""
        peer_port = None if peer_host is None else 1
        rack = self.racks.get(node)
        start = replace(register(node, disk), rack=rack, peer_host=peer_host, peer_port=peer_port)
        assert refusal(apply(self.catalog, start)) is None
        self.alive.add(NodeId(node))

    def begin(self) -> None:
        """Begin a term: nobody was heard in it."""
        self.heard_at = dict.fromkeys(self.configuration.members, self.now)
        self.alive_nodes = AliveNodes(self.catalog, self.now, SETTINGS.lease_ns)
        self.changes = VoterChanges(self.catalog, self.alive_nodes, SETTINGS)

    def kill(self, *nodes: str) -> None:
        """Let nodes be heard no more."""
        self.dead.update(map(NodeId, nodes))
        self.alive.difference_update(map(NodeId, nodes))

    def remove(self, node: str) -> None:
        """An operator removes a node that is dead."""
        self.kill(node)
        assert refusal(apply(self.catalog, ForgetNode(NodeId(node)))) is None

    def state(self) -> QuorumState:
        others = self.configuration.members - {self.leader}
        for member in others:
            is_silent = node_of(member) in self.dead or not self._is_on_its_disk(member)
            if not is_silent:
                self.heard_at[member] = self.now
        heard_at = {member: self.heard_at[member] for member in others}
        return QuorumState(self.leader, self.configuration, self.is_changing, self.is_first, heard_at)

    def _is_on_its_disk(self, member: NodeId) -> bool:
        row = self.catalog.node(node_of(member))
        return row is None or disk_of(member) in (None, row.directory)

    def due(self, after: int = RETRY) -> ChangeMembers | None:
        """Return the change that is due then; all that live are heard before."""
        self.now = MonotonicNs(self.now + after)
        for node in self.alive:
            row = self.catalog.node(node)
            assert row is not None
            self.alive_nodes.leases.renew(node, row.node_epoch, self.now)
        change = self.changes.next_change(self.state(), self.now)
        self._check(change)
        return change

    def _check(self, change: ChangeMembers | None) -> None:
        """What holds of every change."""
        if change is None:
            return
        before = set(self.configuration.voters)
        assert change.voters == tuple(sorted(set(change.voters)))
        assert change.voters, "somebody votes"
        assert set(change.voters).isdisjoint(change.learners)
        assert set(change.voters) - before <= set(self.configuration.learners), "learners first"
        assert len(change.voters) % 2 or set(change.voters) == before
        assert self.leader in change.voters
        in_force = ChangeMembers(self.configuration.voters, self.configuration.learners)
        assert self.is_first or change != in_force

    def make(self, change: ChangeMembers) -> None:
        self.configuration = Configuration(change.voters, learners=change.learners)
        self.heard_at = dict.fromkeys(self.configuration.members, self.now) | self.heard_at

    def settle(self, after: int = RETRY) -> list[ChangeMembers]:
        """Make all changes that are due, none of which is refused; return them."""
        made: list[ChangeMembers] = []
        while (change := self.due(after if not made else RETRY)) is not None:
            made.append(change)
            self.make(change)
            assert len(made) < 10, f"no end: {made}"
        return made


def change(voters: str, learners: str = "") -> ChangeMembers:
    return ChangeMembers(members(voters), members(learners))


# --- growing ------------------------------------------------------------------------------------------------


def test_one_voter_becomes_three_by_way_of_learners() -> None:
    group = Group("a", "a b c d")
    assert group.settle() == [change("a", "b' c'"), change("a b' c'")]


def test_one_voter_does_not_become_two() -> None:
    assert Group("a", "a b").settle() == []


def test_three_voters_do_not_become_four_and_five_only_if_they_are_wanted() -> None:
    group = Group("a b c", "a b c d e")
    assert group.settle() == []
    apply(group.catalog, SetVoters(5))
    assert group.settle() == [change("a b c", "d' e'"), change("a b c d' e'")]
    group = Group("a b c", "a b c d")
    apply(group.catalog, SetVoters(5))
    assert group.settle() == []


def test_new_voters_go_where_fewest_are() -> None:
    group = Group("a", "a b c d", {"a": "r1", "b": "r1", "c": "r2", "d": "r3"})
    assert group.settle()[-1] == change("a c' d'")
    group = Group("a", "a b c d", {"b": "r1", "c": "r1"})
    assert group.settle()[-1] == change("a b' d'"), "a node without a rack is one of its own"


def test_a_node_without_an_address_does_not_become_a_voter() -> None:
    group = Group("a", "a b")
    group.register("c", peer_host=None)
    assert group.settle() == []


def test_a_node_that_stops_does_not_become_a_voter() -> None:
    group = Group("a", "a b c")
    group.alive_nodes.stopping.add(NodeId("c"))
    assert group.settle() == []
    group.make(change("a", "b' c'"))
    group.alive.remove(NodeId("c"))  # has gone, and its lease not run out
    assert group.settle(0) == [], "looked at a moment ago"
    assert group.due() == change("a")


def test_a_learner_that_dies_is_dropped() -> None:
    group = Group("a", "a b c d")
    group.make(change("a", "b' c'"))
    group.kill("b")
    assert group.settle(SETTINGS.lease_ns) == [change("a", "c' d'"), change("a c' d'")]
    group = Group("a", "a b c")
    group.make(change("a", "b' c'"))
    group.kill("b")
    assert group.settle(SETTINGS.lease_ns) == [change("a")]


def test_a_learner_that_died_is_tried_again_after_a_while_or_when_its_node_has_been_started() -> None:
    for is_started in (False, True):
        group = Group("a", "a b c")
        group.make(change("a", "b' c'"))
        group.kill("b")
        assert group.settle(SETTINGS.lease_ns) == [change("a")]
        group.dead.clear()
        group.alive.add(NodeId("b"))  # it observes, which needs no other node that can dial it
        assert group.due() is None
        if is_started:
            group.register("b")
        else:
            assert group.due(SETTINGS.voter_replace_after_ns - 3 * RETRY) is None
        assert group.due() == change("a", "b' c'")


def test_a_learner_stays_one_in_the_next_term_before_its_node_is_heard() -> None:
    group = Group("a b c", "a b c d e")
    apply(group.catalog, SetVoters(5))
    group.make(change("a b c", "d' e'"))
    group.begin()
    group.alive.clear()
    assert group.due(0) == change("a b c d' e'"), "the group refuses it if one of them is dead"
    assert group.due(SETTINGS.lease_ns) == change("a b c")


def test_another_takes_the_place_of_a_learner_that_is_not_heard() -> None:
    group = Group("a", "a b c d", {"a": "r1", "b": "r2", "c": "r3", "d": "r1"})
    group.make(change("a", "b' c'"))
    group.dead.add(NodeId("b"))  # though its node has a lease
    assert group.due() == change("a b' c'"), "the group refuses it, as b lacks everything"
    assert group.due(SILENT) == change("a", "c' d'")
    group.make(change("a", "c' d'"))
    assert group.due() == change("a c' d'")


def test_a_learner_that_is_heard_again_is_preferred_again() -> None:
    group = Group("a", "a b c d")
    group.make(change("a", "b' c'"))
    group.dead.add(NodeId("b"))
    assert group.due(SILENT) == change("a", "c' d'")
    group.dead.clear()
    assert group.due() == change("a b' c'")


def test_a_learner_is_not_given_up_for_a_node_that_comes_later() -> None:
    group = Group("a", "a c d")
    assert group.due() == change("a", "c' d'")
    group.make(change("a", "c' d'"))
    group.register("b")
    assert group.due() == change("a c' d'")


def test_nobody_is_a_candidate_before_its_node_is_heard_in_the_term() -> None:
    group = Group("a", "a b c")
    group.alive.clear()
    assert group.due() is None


# --- the dead -----------------------------------------------------------------------------------------------


def test_a_dead_voter_is_exchanged_in_one_change_after_a_while() -> None:
    group = Group("a b c", "a b c d")
    group.kill("b")
    assert group.due() is None
    assert group.due(SILENT - 1 - RETRY) is None
    assert group.settle() == [change("a b c", "d'"), change("a c d'")]


def test_a_dead_voter_stays_one_while_no_other_can_be() -> None:
    group = Group("a b c", "a b c")
    group.kill("b")
    assert group.settle(2 * SILENT) == []


def test_a_voter_that_is_back_in_time_is_not_exchanged() -> None:
    group = Group("a b c", "a b c d")
    group.kill("b")
    assert group.due(SILENT - 1) is None
    group.dead.clear()
    assert group.settle(SILENT) == []


def test_the_time_counts_from_the_beginning_of_the_term() -> None:
    group = Group("a b c", "a b c d")
    group.kill("b")
    group.due(SILENT - 1)
    group.begin()
    assert group.due() is None
    assert group.due(SILENT) == change("a b c", "d'")


def test_a_voter_whose_disk_is_gone_is_exchanged_at_once() -> None:
    group = Group("a b' c'", "a b c")
    group.register("b", "new")
    assert group.settle() == [change("a b' c'", "b'new"), change("a b'new c'")]


def test_a_leader_is_not_dead_whatever_disk_its_node_has_registered() -> None:
    group = Group("a' b' c'", "a b c")
    group.register("a", "new")
    assert group.settle() == []


def test_a_voter_that_only_the_group_does_not_hear_is_no_candidate_for_itself() -> None:
    group = Group("a b' c", "a b c d")
    group.dead.add(NodeId("b"))
    group.due()
    assert group.settle(SILENT) == [change("a b' c", "d'"), change("a c d'")]


def test_the_disk_of_a_founder_is_not_known() -> None:
    group = Group("a b c", "a b c")
    group.register("b", "new")
    assert group.due() is None, "it may be the one that it always had"
    group.dead.add(NodeId("b"))
    group.due()
    assert group.due(SILENT) == change("a b c", "b'new")


def test_a_removed_voter_keeps_its_vote_while_nobody_can_take_it_over() -> None:
    for voters in ("a b c", "a' b' c'", "a b c d e"):
        group = Group(voters, voters.replace("'", ""))
        group.remove("b")
        group.due()
        assert group.settle(2 * SILENT) == [], "no number of voters falls by a removal"


def test_a_removed_voter_is_exchanged_like_any_dead_one() -> None:
    group = Group("a b c", "a b c d")
    group.remove("c")
    assert group.due() is None
    assert group.due(SILENT - 1 - RETRY) is None
    assert group.settle() == [change("a b c", "d'"), change("a b d'")]


def test_a_removed_node_that_comes_back_has_its_vote_again() -> None:
    group = Group("a b c", "a b c")
    group.remove("c")
    group.due()
    assert group.due(SILENT) is None
    group.register("c")
    group.dead.clear()
    assert group.settle() == []


def test_of_two_dead_voters_one_is_exchanged_if_there_is_one_node() -> None:
    group = Group("a b c d e", "a b c d e f")
    group.kill("d", "e")
    group.due()
    assert group.settle(SILENT)[-1] == change("a b c f' d")
    group = Group("a b c d e", "a b c d e")
    group.kill("e")
    group.dead.add(NodeId("d"))  # its node runs, on a disk that need not be that of the voter
    group.due()
    assert group.settle(SILENT)[-1] == change("a b c d' e")


# --- fewer --------------------------------------------------------------------------------------------------


def test_of_fewer_the_dead_go_first_and_the_leader_never() -> None:
    group = Group("a b c d e", "a b c d e")
    group.kill("c")
    group.due()
    group.due(SILENT)
    apply(group.catalog, SetVoters(3))
    assert group.settle() == [change("a b d")]
    apply(group.catalog, SetVoters(1))
    assert group.settle() == [change("a")]
    group = Group("a b c", "a b c", leader="c")
    apply(group.catalog, SetVoters(1))
    assert group.settle() == [change("c")]


def test_of_fewer_those_go_that_share_a_rack() -> None:
    racks = {"a": "r1", "b": "r2", "c": "r1", "d": "r2", "e": "r3"}
    group = Group("a b c d e", "a b c d e", racks)
    apply(group.catalog, SetVoters(3))
    assert group.settle() == [change("a b e")]


def test_an_even_number_is_mended() -> None:
    assert Group("a b c d", "a b c d").settle() == [change("a b c")]
    group = Group("a b", "a b c")
    assert group.settle() == [change("a b", "c'"), change("a b c'")]


# --- one change at a time -----------------------------------------------------------------------------------


def test_nothing_is_due_while_a_change_is_under_way_nor_twice_in_the_retry_interval() -> None:
    group = Group("a", "a b c")
    group.is_changing = True
    assert group.due() is None
    group.is_changing = False
    assert group.due() == change("a", "b' c'")
    assert group.due(RETRY - 1) is None
    assert group.due(1) == change("a", "b' c'")


def test_the_first_change_says_only_who_votes_already() -> None:
    group = Group("a b c", "a b c d e")
    apply(group.catalog, SetVoters(5))
    group.is_first = True
    assert group.due() == change("a b c")


# --- any group ----------------------------------------------------------------------------------------------

_NODES: Final = "abcdefgh"
_RACKS: Final = st.dictionaries(st.sampled_from(_NODES), st.sampled_from(("r1", "r2", "r3")))
_SOME: Final = st.sets(st.sampled_from(_NODES[1:]))


def _odd(number: int) -> int:
    return number if number % 2 else number - 1


@settings(max_examples=examples(200))
@given(
    votes=st.integers(1, 7),
    nodes=st.integers(1, 8),
    racks=_RACKS,
    dead=_SOME,
    removed=_SOME,
    wanted=st.sampled_from((None, 1, 3, 5)),
    are_named=st.booleans(),
)
def test_changes_end_at_the_number_that_can_be_reached(
    votes: int,
    nodes: int,
    racks: dict[str, str],
    dead: set[str],
    removed: set[str],
    wanted: int | None,
    *,
    are_named: bool,
) -> None:
    nodes = max(votes, nodes)
    voters = [f"{node}'" if are_named else node for node in _NODES[:votes]]
    group = Group(" ".join(voters), " ".join(_NODES[:nodes]), racks)
    group.due(0)
    group.kill(*dead)
    for node in removed & dead & set(_NODES[:nodes]):
        group.remove(node)
    apply(group.catalog, SetVoters(wanted))
    before = group.configuration.voters
    live = [voter for voter in before if node_of(voter) not in dead]
    candidates = [node for node in _NODES[votes:nodes] if node not in dead]
    group.due(0)
    group.due(SILENT - RETRY)
    for made in group.settle():
        lives = [voter for voter in made.voters if node_of(voter) not in dead]
        assert 2 * len(lives) > len(made.voters) or 2 * len(live) <= len(before), "it could not end"
    after = group.configuration.voters
    number = max(3, votes) if wanted is None else wanted
    assert len(after) == _odd(min(number, max(votes, len(live) + len(candidates))))
    assert group.leader in after
    assert not group.configuration.learners
    living = [voter for voter in after if node_of(voter) not in dead]
    assert len(living) == min(len(after), len(live) + len(candidates)), "nobody dead votes who need not"
    assert group.settle() == [], "nothing changes by itself"
    _check_spread(group, living, set(before))


def _check_spread(group: Group, living: list[NodeId], before: set[NodeId]) -> None:
    """No new voter is in a rack with others, where another node could have been in a rack with fewer."""

    def rack(node: str) -> str:
        return group.racks.get(node, f"of {node}")

    racks = [rack(node_of(voter)) for voter in living]
    unused = {node for node in group.alive if node not in set(map(node_of, group.configuration.voters))}
    free = [rack(node) for node in unused if node not in set(map(node_of, before))]
    for voter in set(living) - before:
        beside = racks.count(rack(node_of(voter))) - 1
        assert all(beside <= racks.count(name) for name in free)
